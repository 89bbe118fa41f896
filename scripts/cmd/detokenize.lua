-- detokenize: token ids to text, at once or as a stream would emit it.
local perigee = require "perigee"
local command = require "lib.command"
local jsonl = require "lib.jsonl"
local json = perigee.json

--- The piece emitted after each id and at the end, and all of them joined.
local function stream(tokenizer, ids, options)
  local detokenizer <close>, why = tokenizer:stream(options)
  if not detokenizer then return nil, why end
  local pieces = json.array {}
  for i, id in ipairs(ids) do pieces[i] = assert(detokenizer:push(id)) end
  pieces[#ids + 1] = assert(detokenizer:finish())
  return json.object { { "text", table.concat(pieces) }, { "pieces", pieces } }
end

local function check_ids(ids)
  for i, id in ipairs(ids) do
    if math.type(id) ~= "integer" then
      error(("'ids': element %d is not an integer"):format(i), 0)
    end
  end
  return ids
end

local function answer_with(tokenizer)
  return function(request)
    local ids = check_ids(jsonl.field(request, "ids", { kind = "array", required = true }))
    local no = { kind = "boolean", default = false }
    local options = { skip_special = jsonl.field(request, "skip_special", no) }
    if jsonl.field(request, "stream", no) then return stream(tokenizer, ids, options) end
    local text, why = tokenizer:decode(ids, options)
    if not text then return nil, why end
    return json.object { { "text", text } }
  end
end

local function run(opts)
  local tokenizer, why = perigee.tokenizer.open(opts[1])
  if not tokenizer then return nil, why end
  if opts.jsonl then return jsonl.serve(answer_with(tokenizer)) end
  local ids = {}
  for i = 2, #opts do
    ids[i - 1] = math.tointeger(tonumber(opts[i]))
    if not ids[i - 1] then
      return command.fail(command.USAGE, "detokenize", ("'%s' is not a token id"):format(opts[i]))
    end
  end
  local text, err = tokenizer:decode(ids, { skip_special = opts.skip_special })
  if not text then return nil, err end
  io.write(text, "\n")
end

return {
  summary = "convert token ids to text",
  usage = "TOK [ID…]",
  details = "TOK is a model directory, a tokenizer.json or a GGUF file. Unknown ids are dropped.",
  options = {
    { name = "jsonl", kind = "flag",
      help = 'read JSON lines: {"ids": […], "skip_special": false, "stream": false}' },
    { name = "skip-special", kind = "flag", help = "omit special tokens" },
  },
  min = 1,
  run = run,
}
