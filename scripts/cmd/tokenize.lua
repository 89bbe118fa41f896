-- tokenize: text to token ids.
local perigee = require "perigee"
local command = require "lib.command"
local jsonl = require "lib.jsonl"
local tables = require "ui.table"
local json = perigee.json

local function answer_with(tokenizer)
  return function(request)
    local text = jsonl.field(request, "text", { kind = "string", required = true })
    local ids, why = tokenizer:encode(text, {
      add_special = jsonl.field(request, "add_special", { kind = "boolean", default = false }),
      parse_special = jsonl.field(request, "parse_special", { kind = "boolean", default = true }),
    })
    if not ids then return nil, why end
    return json.object { { "ids", json.array(ids) } }
  end
end

--- Prints a table of ids and tokens.
local function show(tokenizer, text, opts)
  local ids, why = tokenizer:encode(text,
    { add_special = opts.add_special, parse_special = not opts.plain })
  if not ids then return nil, why end
  local rows = {}
  for i, id in ipairs(ids) do rows[i] = { id, json.encode(tokenizer:token(id)) } end
  io.write(tables.render(rows), #rows > 0 and "\n" or "",
    ("%d token%s\n"):format(#ids, #ids == 1 and "" or "s"))
  return command.OK
end

local function run(opts)
  local tokenizer, why = perigee.tokenizer.open(opts[1])
  if not tokenizer then return nil, why end
  if opts.jsonl then return jsonl.serve(answer_with(tokenizer)) end
  return show(tokenizer, opts[2] or io.read "a", opts)
end

return {
  summary = "convert text to token ids",
  usage = "TOK [TEXT]",
  details = [[
TOK is a model directory, a tokenizer.json or a GGUF file. Without TEXT, reads it from stdin.]],
  options = {
    { name = "jsonl", kind = "flag",
      help = 'read JSON lines: {"text": "…", "add_special": false, "parse_special": true}' },
    { name = "add-special", kind = "flag", help = "add BOS and EOS tokens as the tokenizer does" },
    { name = "plain", kind = "flag", help = "do not parse special tokens in the text" },
  },
  min = 1,
  max = 2,
  run = run,
}
