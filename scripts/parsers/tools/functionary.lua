-- functionary: <|from|>assistant <|recipient|>NAME <|content|>{…}, where the recipient `all` is the
-- user. Also <function=NAME>{…}</function> and a JSON array of calls.
local args = require "parsers.args"
local llama = require "parsers.tools.llama"
local scan = require "parsers.scan"

local ENDS = { "<|from|>", "<|recipient|>", "<|stop|>", "<|eot_id|>" }
local between = { ends = ENDS, marks = scan.marks(ENDS) }

local function recipient(s)
  s:space()
  local name = s:name()
  s:space()
  if not name or not s:take "<|content|>" then return false end
  if name == "all" then
    s.content:cut()
    return true
  end
  s:space()
  local mark = args.between(s, name, between)
  if type(mark) == "string" then s:back(mark) end
  return mark
end

--- The line before the recipient.
local function from(s)
  s:space()
  s:name()
  s:space()
  return s:ahead "<|recipient|>"
end

return {
  name = "functionary",
  aliases = { "meetkai" },
  marks = { ["<|from|>"] = from, ["<|recipient|>"] = recipient, ["<|stop|>"] = scan.drop,
    ["<|eot_id|>"] = scan.drop, ["<function="] = llama.marks["<function="] },
  inner = { "<|content|>", "</function>" },
  opening = { { "<|from|>assistant\n<|recipient|>", "\n<|content|>", shows = "<|recipient|>" },
    { "<function=", ">" } },
  grammar = function(s)
    if not s:shows "<|recipient|>" then
      return { mark = "<function=", call = s:each(function(tool)
        return { s:text(tool.name .. ">"), s:object(tool) }
      end), after = { s:text "</function>" } }
    end
    return { lead = { s:mark "<|from|>", s:text "assistant\n" }, mark = "<|recipient|>",
      call = s:each(function(tool)
        return { s:text(tool.name .. "\n"), s:mark "<|content|>", s:object(tool) }
      end), other = { s:text "all\n", s:mark "<|content|>" } }
  end,
  start = { ["["] = function(s) return args.array(s, { bare = true }) end },
  selftest = {
    { text = '<|from|>assistant\n<|recipient|>tide\n<|content|>{"port": "Brest"}'
        .. "<|from|>assistant\n<|recipient|>now\n<|content|>{}<|stop|>",
      calls = { { "tide", '{"port": "Brest"}' }, { "now", "{}" } } },
    { text = "<|from|>assistant\n<|recipient|>all\n<|content|>Hello there",
      content = "Hello there" },
    { text = '<function=a>{"x": {"y": 1}}</function>', calls = { { "a", '{"x": {"y": 1}}' } } },
    { text = '[{"name": "a", "arguments": {}}]', calls = { { "a", "{}" } } },
    { text = '<|recipient|>tide\n<|content|>{"po',
      unfinished = '<|recipient|>tide\n<|content|>{"po' },
  },
}
