-- opening: the tokens that begin a call, for requests that demand one (tool_choice "required", or a tool by name).
--
-- A text that is forced must be cut where the tokenizer would cut it, or the model goes on from tokens that it has never seen:
-- "<function=" alone ends with "=", but before a name that is one token "=get". So an opening is tokenized with what may follow
-- it, and what comes out the same with all of them is forced. With several tools to choose from that is what their
-- openings have in common; the model writes the rest of the name.
local errors = require "api.errors"

local opening = {}

local FOLLOWERS = { "{", "<", '"', "a" } -- how the arguments of a call may go on, and something else

--- What two lists of ids have in common at their start.
local function common(a, b)
  local n = 0
  while n < #a and a[n + 1] == b[n + 1] do n = n + 1 end
  return table.move(a, 1, n, 1, {})
end

--- The ids of a text that stand whatever follows.
local function stable(tok, text)
  local ids
  for _, follower in ipairs(FOLLOWERS) do
    local all, why = tok:encode(text .. follower, { add_special = false })
    if not all then error(tostring(why), 0) end
    ids = ids and common(ids, all) or all
  end
  return ids
end

--- The ids for a request, or nil when it demands nothing. Raises when the format of the model's calls has no way to begin one.
--- `prepared`: its prompt (pipeline/prompt.lua).
function opening.ids(req, entry, prepared)
  local choice, words = req.force_call, prepared.words
  if not choice then return nil end
  local ids
  for _, tool in ipairs(req.chat.tools) do
    local name = tool["function"].name
    if not choice.name or choice.name == name then
      local text = words and words:opening(name, { tools = req.chat.tools, prompt_tail = prepared.tail })
      if not text then
        error(errors.new { status = 400, param = "tool_choice",
          message = "tool_choice demands a call, and the format of this model's calls has no way to begin one" }, 0)
      end
      local own = stable(entry.tok, text)
      ids = ids and common(ids, own) or own
    end
  end
  if ids and #ids > 0 then return ids end
  return entry.tok:encode(words:opening(nil, { tools = req.chat.tools, prompt_tail = prepared.tail }), { add_special = false })
end

return opening
