-- attention_map: which token attends to which. Taps the queries and keys of one attention layer and
-- plots its weights.
--
--   build/perigee run examples/attention_map.lua [MODEL [TEXT [LAYER [HEAD]]]]
--
-- For a model without a tokenizer the text is a list of ids: "5 17 3".
local perigee = require "perigee"
local plot = require "ui.plot"

local path = arg[1] or "examples/moonlet"
local text = arg[2] or "The cat sat on the mat because it was tired."
local layer, head = math.tointeger(tonumber(arg[3] or 1)), math.tointeger(tonumber(arg[4] or 1))

local model = assert(perigee.open(path))
local tokenizer = model:tokenizer()

local function ids_and_labels()
  local ids, labels = {}, {}
  if tokenizer then
    ids = model:ids(text)
  else
    for id in text:gmatch "%d+" do ids[#ids + 1] = math.tointeger(tonumber(id)) end
  end
  for i, id in ipairs(ids) do labels[i] = tokenizer and tokenizer:decode { id } or tostring(id) end
  return ids, labels
end

--- The n-th attention of the graph, and the names of its queries and keys. Its second input is the
--- store of its keys and values; a layer that shares those of another has none.
local function find(n)
  local byname, store = {}, nil
  for _, v in ipairs(model.graph:values()) do
    byname[v.name] = v
    if v.op == "attention" then
      store = byname[v.inputs[2]] or store
      n = n - 1
      if n == 0 then return v, v.inputs[1], store.inputs[1] end
    end
  end
  error(("the model has no attention layer %d"):format(layer), 0)
end

local attention, q_name, k_name = find(layer)
local ids, labels = ids_and_labels()
local n = #ids
local taps = model:eval(ids, { tap = { q_name, k_name }, last = 1 }).taps
-- [tokens, heads, width], rotated already; keys of a single head are [tokens, width]
local q, k = taps[q_name], taps[k_name]
if #k.shape == 2 then k = k:reshape { n, 1, k.shape[2] } end
local shared = q.shape[2] // k.shape[2] -- query heads per key head

local queries = q:select(2, head)
local keys = k:select(2, (head - 1) // shared + 1)
local scores = queries:matmul(keys:t()) * attention.scale
local positions = perigee.tensor.range(n)
local row, column = positions:reshape { n, 1 }, positions:reshape { 1, n }
scores = column:gt(row):where(-math.huge, scores)
if attention.window > 0 then
  scores = (row - column):ge(attention.window):where(-math.huge, scores)
end
local weights = scores:softmax(2)

print(("%s, head %d: rows are queries, columns the keys they attend to"):format(attention.name,
  head))
print(plot.heat(weights, { labels = labels }))
print(("the last token, %q, attends to:"):format(labels[n]))
local values, at = weights[n]:topk(math.min(3, n))
for i = 1, #values do
  print(("  %-12s %5.1f %%"):format(labels[at[i]], values[i] * 100))
end
