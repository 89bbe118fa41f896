-- opening: the tokens that begin a tool call, for requests that demand one (tool_choice "required",
-- or a tool by name).
--
-- A forced text must be cut where the tokenizer would cut it, or the model continues from tokens it
-- has never seen: "<function=" alone ends with "=", but before a name that is one token with
-- "=get". So an opening is tokenized with each text that may follow it, and the tokens that are the
-- same with all of them are forced. With several tools to choose from these are the tokens that
-- their openings have in common; the model writes the rest of the name.
local errors = require "lib.errors"

local opening = {}

local FOLLOWERS = { "{", "<", '"', "a" } -- how arguments begin in the known formats, and a letter

--- The longest common beginning of two lists.
local function common(a, b)
  local n = 0
  while n < #a and a[n + 1] == b[n + 1] do n = n + 1 end
  return table.move(a, 1, n, 1, {})
end

--- The ids of a text that stay the same whatever follows.
function opening.stable(tok, text)
  local ids
  for _, follower in ipairs(FOLLOWERS) do
    local all, why = tok:encode(text .. follower, { add_special = false })
    if not all then error(tostring(why), 0) end
    ids = ids and common(ids, all) or all
  end
  return ids
end

--- The ids for a request, nil when it demands no call. Raises when the model's format of calls has
--- no text that begins one. `prepared`: its prompt (pipeline/prompt.lua).
function opening.ids(req, entry, prepared)
  local choice, allowed, words = req.force_call, req.allowed, prepared.words
  if not (choice and req.chat.tools) then return nil end
  local options = { tools = req.chat.tools, prompt_tail = prepared.tail }
  local ids
  for _, tool in ipairs(req.chat.tools) do
    local name = tool["function"].name
    if (not choice.name or choice.name == name) and (not allowed or allowed[name]) then
      local text = words and words:opening(name, options)
      if not text then
        errors.refuse("tool_choice", "demands a call, which this model's format cannot force")
      end
      local own = opening.stable(entry.tok, text)
      ids = ids and common(ids, own) or own
    end
  end
  if ids and #ids > 0 then return ids end
  return entry.tok:encode(words:opening(nil, options), { add_special = false })
end

return opening
