-- place: where the rows of pictures stand among the tokens of a prompt.
--
-- layout replaces each placeholder token by the tokens of its picture; locate finds them in a
-- prompt in which that was done before. Both return items, one for each plan, in order:
--
--   { at, last, tokens, grid, runs = { { at, count }, … }, plan, seconds_per_grid (videos) }
--
-- at and last are the positions (from 1) of the first and the last token that shows the picture,
-- runs the stretches of such tokens: some families put other tokens between the rows of a picture.
local place = {}

local Out = {}
Out.__index = Out

--- Appends token ids.
function Out:ids(list)
  for _, id in ipairs(list) do self.list[#self.list + 1] = id end
end

--- Appends `count` tokens that show the picture.
function Out:features(token, count)
  local at = #self.list + 1
  for i = at, at + count - 1 do self.list[i] = token end
  self.runs[#self.runs + 1] = { at, count }
end

local function item_of(plan, runs)
  local final = runs[#runs]
  return { at = runs[1][1], last = final[1] + final[2] - 1, tokens = plan.tokens, grid = plan.grid,
    runs = runs, plan = plan, seconds_per_grid = plan.seconds_per_grid }
end

--- Replaces the placeholders. Returns the new list of ids and the items; nil and why, if there are
--- fewer placeholders than plans. `encode` turns text into ids. positions: numbers of tokens,
--- ascending, at which something is; a third result says where that is now.
function place.layout(self, ids, plans, encode, positions)
  local out = setmetatable({ list = {} }, Out)
  local items, i, moved = {}, 1, {}
  local function move(before)
    while positions and #moved < #positions and positions[#moved + 1] <= before do
      moved[#moved + 1] = #out.list
    end
  end
  while i <= #ids do
    move(i - 1)
    local plan = plans[#items + 1]
    local token = plan and (plan.kind == "video" and self.video_token or self.placeholder
      or self.image_token)
    if plan and ids[i] == token then
      local strips = self.strips and self:strips(plan)
      if strips and out.list[#out.list] == self.first then out.list[#out.list] = nil end
      out.runs = {}
      self:expand(plan, out, encode)
      items[#items + 1] = item_of(plan, out.runs)
      if strips and ids[i + 1] == self.last then i = i + 1 end
    else
      out.list[#out.list + 1] = ids[i]
    end
    i = i + 1
  end
  if #items < #plans then
    return nil, ("the prompt has places for %d of %d pictures"):format(#items, #plans)
  end
  move(math.maxinteger)
  return out.list, items, moved
end

--- Finds the pictures in ids that are laid out already; nil and why, if their tokens are missing.
function place.locate(self, ids, plans)
  local items, i = {}, 1
  for n, plan in ipairs(plans) do
    local token = plan.kind == "video" and self.video_token or self.image_token
    local missing, runs = plan.tokens, {}
    while missing > 0 and i <= #ids do
      if ids[i] == token then
        local run = runs[#runs]
        if run and run[1] + run[2] == i then run[2] = run[2] + 1 else runs[#runs + 1] = { i, 1 } end
        missing = missing - 1
      end
      i = i + 1
    end
    if missing > 0 then
      return nil, ("picture %d needs %d tokens, the prompt has %d"):format(n, plan.tokens,
        plan.tokens - missing)
    end
    items[n] = item_of(plan, runs)
  end
  return items
end

return place
