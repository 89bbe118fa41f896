-- machine: rules for the states of an automaton whose moves are symbols. A state is a list of
-- integers. A move back to the same state becomes a left-recursive list, which costs the matcher
-- nothing per element; other moves are a rule for what follows.
--
--   machine.rule(c, { 0 }, function(state) return moves, finish end)
--
-- `moves` is a list of { symbols, state }; `finish` the symbols of the end, nil where the text may
-- not end.
local failure = require "grammar.failure"

local machine = {}

local STATES = 10000 -- a third of the rules that a grammar may have
local MOVE = 1 / 8   -- steps of a conversion (init.lua): a state may have as many moves

local function joined(...)
  local out = {}
  for _, list in ipairs { ... } do table.move(list, 1, #list, #out + 1, out) end
  return out
end

--- The alternatives of a state: with a loop, what follows it begins with any number of turns.
local function write(c, rule, key, moves, finish, rule_of)
  local turns, out, loop = {}, {}, {}
  for _, move in ipairs(moves) do
    if table.concat(move[2], ",") == key then turns[#turns + 1] = move[1] end
  end
  if #turns > 0 then
    local again = c:rule "turns"
    loop[1] = again
    local alternatives = { {} }
    for i, turn in ipairs(turns) do alternatives[i + 1] = joined(loop, turn) end
    c:define(again, alternatives)
  end
  for _, move in ipairs(moves) do
    c.spend(MOVE)
    local next_key = table.concat(move[2], ",")
    if next_key ~= key then
      out[#out + 1] = joined(loop, move[1], { rule_of(next_key, move[2]) })
    end
  end
  if finish then out[#out + 1] = joined(loop, finish) end
  c:define(rule, out)
end

function machine.rule(c, start, step)
  local rules, todo, states = {}, {}, 0
  local function rule_of(key, state)
    if not rules[key] then
      states = states + 1
      if states > STATES then
        failure.raise("limit", "", "members or elements need more than %d states", STATES)
      end
      rules[key] = c:rule "members"
      todo[#todo + 1] = { key, state }
    end
    return rules[key]
  end
  local first = rule_of(table.concat(start, ","), start)
  while #todo > 0 do
    local key, state = table.unpack(table.remove(todo))
    c.spend(2)
    local moves, finish = step(state)
    write(c, rules[key], key, moves, finish, rule_of)
  end
  return first
end

return machine
