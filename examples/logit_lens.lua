-- logit_lens: what each layer would generate next if it were the last. Attaches the model's own
-- head to every layer: the graph that the architecture built can be extended, and the new values
-- tapped.
--
--   build/perigee run examples/logit_lens.lua [MODEL [TEXT]]
--
-- For a model without a tokenizer the text is a list of ids: "5 17 3".
local perigee = require "perigee"
local tables = require "ui.table"

local path = arg[1] or "examples/moonlet"
local text = arg[2] or "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\nI am"
local model = assert(perigee.open(path))
local tokenizer = model:tokenizer()

local function prompt()
  if tokenizer then return text end
  local ids = {}
  for id in text:gmatch "%d+" do ids[#ids + 1] = math.tointeger(tonumber(id)) end
  return ids
end

--- Names of the layers' outputs and of the last norm, whatever the architecture calls them.
local function find()
  local layers, norm = {}, nil
  for _, v in ipairs(model.graph:values()) do
    if v.name:match "layers%.%d+$" then layers[#layers + 1] = v.name end
    if v.op == "output" then norm = v.inputs[1] end
  end
  return layers, norm
end

local g, taps = model.builder, {}
local layers, norm = find()
for i, layer in ipairs(layers) do
  taps[i] = "lens of " .. layer
  g:head(g:rms_norm(g:value(layer), norm)):named(taps[i])
end

local out = model:eval(prompt(), { tap = taps, last = 1 })
local rows = { { "layer", "says", "", "and maybe" } }
for i, name in ipairs(taps) do
  local values, ids = out.taps[name][1]:softmax(1):topk(3)
  local words = {}
  for k = 1, 3 do
    local id = ids[k] - 1 -- positions in a tensor begin at 1, token ids at 0
    words[k] = tokenizer and ("%q"):format(tokenizer:decode { id }) or tostring(id)
  end
  rows[i + 1] = { i, words[1], ("%.0f %%"):format(values[1] * 100), words[2] .. " " .. words[3] }
end
print(tables.render(rows, { header = true }))
