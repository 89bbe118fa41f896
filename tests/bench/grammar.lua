-- grammar: masks of constrained output by perigee and by llguidance, one core, in turn.
-- `make bench-grammar`.
--
--   perigee run tests/bench/grammar.lua [tokenizer=FILE] [cases=FILE] [python=python3] [rounds=3]
--
-- tokenizer: a tokenizer.json (default: Qwen3's next to the repository, else a small one in it).
-- cases: schemas with texts that they accept, { "cases": [{ "schema": …, "texts": [[TEXT,
-- "accept"], …] }] } (default: those next to the repository, else random schemas and texts).
-- python: one that has llguidance. PEER_FOLDER: for files (default build/peer).
--
-- Both make the masks before each token of a text and after its last one. Of each mask the fastest
-- of the rounds counts, so that what else the machine does is left out; in each round all grammars
-- are made anew. Only masks that both made are compared.
package.path = "tests/bench/?.lua;tests/lua/?.lua;tests/fuzz/?.lua;" .. package.path
local perigee = require "perigee"
local driver = require "driver"
local oracle = require "schema_oracle"
local pair = require "pair"
local tables = require "ui.table"
local uv = require "luv"
local json = perigee.json

local SHARED = "../shared/cases/"
local RANDOM = 200 -- schemas, where there are no cases
local LONG = 20    -- bytes of a text; shorter ones have few masks

local function there(path, otherwise) return uv.fs_stat(path) and path or otherwise end

local settings = pair.settings { rounds = "3", python = "python3",
  tokenizer = there(SHARED .. "tokenizers/qwen3/tokenizer.json",
    "tests/tokenizers/bpe-qwen2/tokenizer.json"),
  cases = there(SHARED .. "structured/schemas.json", "random") }
local rounds = assert(math.tointeger(tonumber(settings.rounds)), "rounds is not a number")
local folder = os.getenv "PEER_FOLDER" or "build/peer"
local LINES = folder .. "/grammar.jsonl"

-- ---- lines --------------------------------------------------------------------------------------

local function decoded(text) return assert(json.decode(text, { digits = true })) end

local function write_lines(lines)
  local f = assert(io.open(LINES, "w"))
  for _, line in ipairs(lines) do f:write(json.encode(line), "\n") end
  f:close()
end

--- The answers of a program to the lines.
local function asked(words)
  local list, command = {}, ('"$0" "$@" <%s'):format(LINES)
  local out = pair.output({ "sh", "-c", command, table.unpack(words) },
    { folder = folder, cores = "0" })
  for line in out:gmatch "[^\n]+" do list[#list + 1] = decoded(line) end
  return list
end

local OURS = { uv.exepath(), "grammar", settings.tokenizer, "--jsonl" }
local PEER = { settings.python, "tests/bench/grammar_peer.py", settings.tokenizer }

local function lines_of_file(path)
  local tokenizer = assert(perigee.tokenizer.open(settings.tokenizer))
  local lines = {}
  for _, case in ipairs(decoded(driver.read_file(path)).cases) do
    for _, pick in ipairs(case.schema ~= nil and case.texts or {}) do
      if pick[2] == "accept" and #pick[1] > LONG then
        local ids = tokenizer:encode(pick[1], { parse_special = false })
        lines[#lines + 1] = json.object { { "schema", case.schema }, { "ids", ids } }
        break
      end
    end
  end
  return lines
end

--- Random schemas, with texts drawn from their masks.
local function random_lines()
  local r, lines, out = driver.random(1), {}, {}
  for i = 1, RANDOM do
    local wish = json.object { { "seed", i }, { "steps", 60 } }
    lines[i] = json.object { { "schema", oracle.schema(r) }, { "walk", wish } }
  end
  write_lines(lines)
  for i, answer in ipairs(asked(OURS)) do
    if answer.complete and #answer.ids > 0 then
      out[#out + 1] = json.object { { "schema", lines[i].schema }, { "ids", answer.ids } }
    end
  end
  return out
end

-- ---- figures ------------------------------------------------------------------------------------

--- Keeps the fastest of two answers to the same line.
local function keep_best(best, answer)
  best.compile_us = math.min(best.compile_us, answer.compile_us)
  for i, us in ipairs(answer.mask_us) do best.mask_us[i] = math.min(best.mask_us[i], us) end
end

local function measured()
  local best = { {}, {} }
  for _ = 1, rounds do
    for side, words in ipairs { OURS, PEER } do
      for i, answer in ipairs(asked(words)) do
        if not best[side][i] then
          best[side][i] = answer
        elseif not answer.error then
          keep_best(best[side][i], answer)
        end
      end
    end
  end
  return best[1], best[2]
end

local function quantiles(list)
  table.sort(list)
  local function at(q) return list[math.min(#list, math.floor(#list * q) + 1)] or 0 / 0 end
  return at(0.5), at(0.9), at(0.95), at(0.99), at(1)
end

local function table_row(name, list)
  local row = { name }
  for _, us in ipairs { quantiles(list) } do
    row[#row + 1] = us < 100 and us or math.floor(us + 0.5)
  end
  row[#row + 1] = #list
  return row
end

local function compare(ours, peers)
  local lists, refused = { {}, {}, {}, {} }, { 0, 0 }
  for i, a in ipairs(ours) do
    local b = peers[i]
    refused[1] = refused[1] + (a.error and 1 or 0)
    refused[2] = refused[2] + (b.error and 1 or 0)
    if not a.error and not b.error then
      table.insert(lists[1], a.compile_us)
      table.insert(lists[2], b.compile_us)
      for k = 1, math.min(#a.mask_us, #b.mask_us) do
        table.insert(lists[3], a.mask_us[k])
        table.insert(lists[4], b.mask_us[k])
      end
    end
  end
  return lists, refused
end

local found, version = pcall(pair.output, { settings.python, "-c",
  "import llguidance; print(llguidance.__version__)" }, { folder = folder })
if not found then
  io.stderr:write(("bench-grammar: %s has no llguidance; install it (python3 -m pip install"
    .. " llguidance) or name another one (GRAMMAR='python=PATH')\n"):format(settings.python))
  os.exit(1)
end
write_lines(settings.cases == "random" and random_lines() or lines_of_file(settings.cases))
local lists, refused = compare(measured())
print(("masks of %s, in us, the fastest of %d rounds; llguidance %s"):format(settings.tokenizer,
  rounds, version:match "%S+"))
print(tables.render({ { "", "median", "p90", "p95", "p99", "most", "of" },
  table_row("compile, perigee", lists[1]), table_row("compile, llguidance", lists[2]),
  table_row("mask, perigee", lists[3]), table_row("mask, llguidance", lists[4]) },
  { header = true }))
print(("refused schemas: perigee %d, llguidance %d"):format(table.unpack(refused)))
