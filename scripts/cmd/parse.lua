-- parse: splits the text of an answer into content, reasoning and tool calls.
local perigee = require "perigee"
local command = require "lib.command"
local jsonl = require "lib.jsonl"
local parsers = require "parsers"
local json = perigee.json

local function pieces_of(request)
  local deltas = jsonl.field(request, "deltas", { kind = "array" })
  if not deltas then return jsonl.field(request, "text", { kind = "string", required = true }) end
  for i, piece in ipairs(deltas) do
    if type(piece) ~= "string" then
      error(("'deltas': element %d is not a string"):format(i), 0)
    end
  end
  return deltas
end

local function calls_of(r)
  local calls = json.array {}
  for i, call in ipairs(r.calls) do
    calls[i] = json.object { { "name", call.name }, { "arguments", call.arguments } }
  end
  return calls
end

local function others_of(r)
  local others = json.array {}
  for i, o in ipairs(r.other) do
    others[i] = json.object { { "kind", o.kind }, { "text", o.text } }
  end
  return others
end

local function answer(request, formats)
  local pieces = pieces_of(request)
  local r = parsers.parse(pieces, { format = formats.format, reasoning = formats.reasoning,
    tools = request.tools, prompt_tail = jsonl.field(request, "prompt_tail", { kind = "string" }) })
  local out = json.object { { "content", r.content or json.null },
    { "reasoning_content", r.reasoning or json.null }, { "tool_calls", calls_of(r) } }
  if #r.other > 0 then out.other = others_of(r) end
  if type(pieces) == "table" then out.events = json.array(r.counts) end
  return out
end

local function run(opts)
  local formats = {}
  for kind, name in pairs { tools = opts.format, reasoning = opts.reasoning } do
    local format, why = parsers.find(kind, name)
    if not format then return command.fail(command.USAGE, "parse", why) end
    formats[kind == "tools" and "format" or kind] = format
  end
  if opts.jsonl then return jsonl.serve(function(request) return answer(request, formats) end) end
  local text = io.read "a"
  local valid, at = utf8.len(text)
  if not valid then
    return nil, ("stdin is not UTF-8 at byte %d (0x%02x)"):format(at, text:byte(at))
  end
  io.write(json.encode(answer({ text = text }, formats), { indent = 2 }), "\n")
end

return {
  summary = "find tool calls and reasoning in the text of an answer",
  usage = "[--format NAME] [--reasoning NAME]",
  details = "Reads the text from stdin.\nTool formats: "
    .. table.concat(parsers.names "tools", ", ") .. ".\nReasoning formats: "
    .. table.concat(parsers.names "reasoning", ", ") .. [[.

Text that is neither content nor reasoning nor a call is listed under `other` with its kind:
  unfinished             a call that the end of the text cut off
  unknown                a call of a tool that was not declared
  analysis, commentary   text of these channels]],
  options = {
    { name = "format", kind = "string", value = "NAME", default = "auto",
      help = "tool call format" },
    { name = "reasoning", kind = "string", value = "NAME", default = "none",
      help = "reasoning format" },
    { name = "jsonl", kind = "flag",
      help = 'read JSON lines: {"text": "…" or "deltas": […], "tools": […], "prompt_tail": "…"}' },
  },
  max = 0,
  run = run,
}
