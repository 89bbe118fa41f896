-- constraint: what the tokens of an answer may be, as phases for batch:add.
--
--   req.grammar                the answer is a text of it (grammar/source.lua; a hook may set it)
--   tool_choice: required      it is a call, or several
--   tools                      it is free, but what begins like a call is one: of a tool that was
--                              offered, with JSON for arguments, or, if the tool is strict, with
--                              arguments that its schema accepts
--   req.allowed                in both cases only these of the tools are called; the prompt shows
--                              all, so that it stays the beginning of the conversation's next one
--   req.grammar and tools      it is a text of the grammar, or calls
--   req.grammar and required   it is calls if the grammar is of_text (api/structured.lua);
--                              otherwise, also if a hook has set it, that is a 400: one of the two
--                              would be dropped
--
-- Reasoning is free. If the prompt has opened it, everything is up to the mark that closes it;
-- otherwise, unless it is off, the grammar begins with a block of reasoning that may be left out.
--
-- A schema that cannot be followed is a 400 with the field and the place in it, unless it is that
-- of a tool that nobody called strict: then the keywords that cannot be are left out, because a
-- client does not choose the schemas of the tools that it passes on. Its arguments are any JSON
-- object if nothing can be made of the rest either.
--
-- Converting a schema lets the loop turn, and ends when the client has left. What the builder may
-- need long for runs on a helper thread (lib/jobs.lua); its limits bound that, so it runs to its
-- end.
local async = require "lib.async"
local errors = require "lib.errors"
local grammars = require "pipeline.grammars"
local input = require "grammar.input"
local jobs = require "lib.jobs"
local opening = require "pipeline.opening"
local parsers = require "parsers"
local perigee = require "perigee"
local source = require "grammar.source"
local define, json = require("grammar").define, perigee.json

local constraint = {}

-- ---- errors -------------------------------------------------------------------------------------

--- Raises that a field cannot be followed. Errors that are not about grammars are the server's.
local function refuse(field, err)
  local kind = source.word(err)
  if not kind then error(err, 0) end
  error(errors.new { code = "grammar_" .. kind, field = field,
    message = ("%s cannot be followed (%s): %s"):format(field, kind, err.message) }, 0)
end

-- ---- what is asked ------------------------------------------------------------------------------

--- The tools that may be called, as parsers/shape.lua wants them. whole: by their schemas, strict
--- or not. loose: there are some with a schema that are not strict.
local function tools_of(req, whole)
  local list, name, allowed = {}, (req.force_call or {}).name, req.allowed
  for i, tool in ipairs(req.chat.tools) do
    local fn = tool["function"]
    if (not name or fn.name == name) and (not allowed or allowed[fn.name]) then
      local strict = req.strict and req.strict[fn.name]
      local text = type(strict) == "table" and strict or nil
      local given = fn.parameters ~= json.null and fn.parameters or nil
      list[#list + 1] = { name = fn.name, must = strict and true, text = text,
        field = text and text.field or ("tools[%d].function.parameters"):format(i - 1),
        schema = (whole or strict) and given or nil }
      list.loose = list.loose or whole and given and not strict
    end
  end
  return list
end

--- A text that says all about tools that their grammar depends on.
local function tools_key(tools)
  local parts = {}
  for i, tool in ipairs(tools) do
    parts[i] = ("%s %s %s %s"):format(tool.name, tostring(tool.must),
      tool.schema and json.encode(tool.schema) or "", input.key(tool.text))
    async.breathe()
  end
  return table.concat(parts, "\n")
end

local function source_key(given)
  local kind = assert(source.kind(given))
  return ("%s %s %s %s %s"):format(kind, tostring(given.strict), tostring(given.whitespace),
    tostring(given.order), json.encode(given[kind]))
end

--- req.grammar, checked: a hook may have made it.
local function source_of(req)
  local given = req.grammar
  if given == nil then return nil end
  if type(given) == "userdata" then return { compiled = given, field = "grammar" } end
  local field = type(given) == "table" and given.field or "grammar"
  if type(given) ~= "table" then
    errors.refuse(field, "must be a grammar or a table, got %s", type(given))
  end
  local kind, why = source.kind(given)
  if not kind then refuse(field, why) end
  local own = { field = field } -- a hook may use the same table for all requests
  for key, value in pairs(given) do own[key] = value end
  return own
end

-- ---- the vocabulary -----------------------------------------------------------------------------

-- By tokenizer: { number, tokens = { [text] = id } }.
local known = setmetatable({}, { __mode = "k" })
local count = 0

--- The added tokens of a tokenizer.
local function marks_of(tok)
  if known[tok] then return known[tok] end
  count = count + 1
  local marks = { number = count, tokens = {} }
  for _, id in ipairs(tok:added()) do marks.tokens[tok:token(id)] = id end
  known[tok] = marks
  return marks
end

-- ---- rules --------------------------------------------------------------------------------------

local function check_cancelled(run)
  if run.cancelled then
    error(errors.new { status = 409, code = "cancelled", message = "the request was cancelled" },
      0)
  end
end

--- A function that lets the loop turn, and ends the conversion when the client has left.
local function pause_of(run)
  return function()
    async.breathe()
    check_cancelled(run)
  end
end

-- What a helper thread does for a grammar at worst, 0.2 s, as bytes of text to be tokenized: so it
-- never has the last of the threads.
local WORK = 2 << 20

--- A function that runs start(callback) on a helper thread, when it is the client's turn.
local function job_of(run)
  return function(start)
    local result, why = jobs.run(run.client, WORK, function(_, callback) return start(callback) end)
    check_cancelled(run)
    if result == nil and why.code == "cancelled" then error(errors.from(why), 0) end
    return result, why
  end
end

--- Raises the error of a builder that is full: it may be for schemas that nobody called strict.
local function unless_crowded(ask, b, lenient)
  local _, why = b:empty(b:any {})
  if why and ask.tools.loose and not lenient then error(why, 0) end
end

--- The rules of the calls of a request (parsers/shape.lua).
local function calls_in(ask, b, lenient)
  local req = ask.run.req
  return ask.words:calls(b, { tools = ask.tools, given = req.chat.tools, known = ask.known,
    ends = ask.ends,
    parallel = ask.parallel, token = ask.token, pause = ask.pause, job = ask.job,
    lenient = lenient,
    refuse = function(tool, err)
      unless_crowded(ask, b, lenient)
      if tool.must then refuse(tool.field, err) end
    end })
end

--- Compiles the texts of custom tools alone: an error among all tools would not say whose it is.
local function check_texts(ask)
  for _, tool in ipairs(ask.tools) do
    if tool.text then
      local g, why = ask.job(function(callback) return input.compile(tool.text, callback) end)
      if not g then refuse(tool.field, why) end
      g:close()
    end
  end
end

--- The grammar of write(builder, lenient); or nil and an error about it.
local function written(ask, write, lenient)
  local b = assert(perigee.grammar.builder())
  local ok, root = pcall(write, b, lenient)
  if ok then return ask.job(function(callback) return b:compile(root, nil, callback) end) end
  b:close()
  if errors.is(root) or not source.word(root) then error(root, 0) end
  return nil, root
end

--- Compiles write(builder, lenient). What fails as a whole is tried once more without the schemas
--- that nobody called strict.
local function compile(ask, write)
  for _, lenient in ipairs { false, true } do
    local g, why = written(ask, write, lenient)
    if g then return g end
    if lenient or not ask.tools then refuse(ask.field, why) end
  end
end

local function joined(...)
  local out = {}
  for _, list in ipairs { ... } do table.move(list, 1, #list, #out + 1, out) end
  return out
end

--- A symbol with what comes before it: reasoning, which may be left out, and, if it is an answer
--- and not calls, what the format writes before an answer.
local function with_thought(ask, b, symbol, is_answer)
  local thought = ask.thought(b)
  local plain = joined(thought.after or {}, is_answer and thought.answer or {}, { symbol })
  return define(b, "root", { plain, thought.block and joined(thought.block, plain) })
end

-- ---- grammars -----------------------------------------------------------------------------------

local function cache_of(ask)
  local app = ask.run.app
  app.grammars = app.grammars or grammars.new()
  return app.grammars
end

local function key_of(ask, kind, ...)
  return table.concat({ kind, ask.words and ask.words:shape_key(ask.given_tools) or "",
    tostring(ask.marks and ask.marks.number), ask.opened and "opened" or "",
    ask.closed and "closed" or "", tostring(ask.parallel), ... }, "\n")
end

--- An answer that is calls, or, with `given`, a text of it.
local function calls_grammar(ask, given)
  local key = key_of(ask, "calls", given and source_key(given) or "", tools_key(ask.tools))
  return cache_of(ask):get(key, function()
    check_texts(ask)
    return compile(ask, function(b, lenient)
      local calls = with_thought(ask, b, calls_in(ask, b, lenient).whole)
      if not given then return calls end
      local text, why = source.rule(b, given)
      if not text then
        unless_crowded(ask, b, lenient)
        refuse(given.field, why)
      end
      return define(b, "either", { { with_thought(ask, b, text, true) }, { calls } })
    end)
  end)
end

--- What comes after the mark of a call.
local function rest_grammar(ask)
  local key = key_of(ask, "rest", tools_key(ask.tools))
  return cache_of(ask):get(key, function()
    check_texts(ask)
    return compile(ask, function(b, lenient) return calls_in(ask, b, lenient).rest end)
  end)
end

--- An answer that is a text of what is given.
local function source_grammar(ask, given)
  if given.compiled then return given.compiled end
  return cache_of(ask):get(key_of(ask, "source", source_key(given)), function()
    return compile(ask, function(b)
      local text, why = source.rule(b, given)
      if not text then refuse(given.field, why) end
      return with_thought(ask, b, text, true)
    end)
  end)
end

-- ---- phases -------------------------------------------------------------------------------------

--- A mark of a FREE phase.
local function mark_of(ask, text) return ask.token(text) or text end

local function marks_in(ask, texts)
  local list = {}
  for i, text in ipairs(texts) do list[i] = mark_of(ask, text) end
  return list
end

--- The phases of an answer that is of a grammar: thinking that is open comes first.
local function bound(ask, grammar)
  if not ask.opened then return { { grammar = grammar } } end
  return { { marks = marks_in(ask, { ask.closing }) }, { grammar = grammar, gap = true } }
end

--- The phases of a free answer in which calls are calls; nil if nothing marks them.
local function free(ask, marks, grammar, parallel)
  local list = {}
  if ask.opened then list[1] = { marks = marks_in(ask, { ask.closing }), ends = true } end
  list[#list + 1] = { marks = marks_in(ask, marks), ends = true }
  list[#list + 1] = { grammar = grammar, back = parallel and #list or nil }
  return list
end

--- Everything about a request that its phases depend on.
local function ask_of(run, prompt)
  local words, tok = prompt.words, run.entry.tok
  local marks = tok and marks_of(tok)
  local ask = { run = run, words = words, marks = marks, pause = pause_of(run), job = job_of(run),
    field = "tool_choice", ends = run.entry.model.stops }
  function ask.token(text) return marks and marks.tokens[text] end
  local chat = run.req.chat
  if words and chat then
    ask.opened, ask.closed, ask.closing = words:reasons(prompt.tail, chat.kwargs)
    prompt.known = prompt.known or parsers.known(chat.tools, run.req.allowed)
    ask.known, ask.given_tools = prompt.known, chat.tools
    ask.parallel = chat.parallel_tool_calls ~= false
  end
  function ask.thought(b)
    if not (words and chat) then return {} end
    return words:thought(b, { token = ask.token, opened = ask.opened, closed = ask.closed })
  end
  return ask
end

--- How tools are held to their shape if the answer may also be free: "off", "frame" or "schema".
local function tool_grammar(run) return run.app.config.tool_grammar or "frame" end

--- The phases of one prompt's answers, and the ids that are banned; nil: they are free. force: the
--- tokens that an answer begins with instead, of a format without a grammar.
local function phases_of(run, prompt)
  local req, chat = run.req, run.req.chat
  local given = source_of(req)
  local offered = chat and chat.tools and not req.bans_calls and prompt.words
  if not (given or offered) then return nil end
  local ask = ask_of(run, prompt)
  if given then
    ask.field, given.pause, given.job = given.field, ask.pause, ask.job
  end
  if not offered then return bound(ask, source_grammar(ask, given)) end
  local marks = ask.words:call_marks(chat.tools)
  if req.force_call then
    if given and not given.of_text then
      errors.refuse(given.field, "and tool_choice demand two forms of one answer")
    end
    if not marks then return nil, opening.ids(req, run.entry, prompt) end
    ask.tools = tools_of(req, true)
    return bound(ask, calls_grammar(ask, nil))
  end
  local mode = tool_grammar(run)
  ask.tools = tools_of(req, mode == "schema" or given ~= nil)
  if given then
    if not marks or given.compiled then return bound(ask, source_grammar(ask, given)) end
    return bound(ask, calls_grammar(ask, given))
  end
  local held = mode ~= "off" or next(req.strict or {}) or req.allowed
  if not marks or #marks == 0 or not held then return nil end
  return free(ask, marks, rest_grammar(ask), ask.parallel)
end

--- The marks of calls that are tokens, for a request that forbids calls.
local function banned(run, prompt)
  local words, tok, list = prompt.words, run.entry.tok, {}
  if not (run.req.bans_calls and words and tok) then return nil end
  local tokens = marks_of(tok).tokens
  for _, mark in ipairs(words:call_marks(nil) or {}) do list[#list + 1] = tokens[mark] end
  return #list > 0 and list or nil
end

--- Has the tokens of the model's batch ready for masks, so that its engine need not build them.
local function build_tokens(run)
  local batch = run.entry.batch
  if batch.tokens_built then return end
  local tokens <close> = batch.core.tokens
  local ok, why = job_of(run)(function(callback) return tokens:build(callback) end)
  if not ok then error(why, 0) end
  batch.tokens_built = true
end

--- Prepares the prompts of a run: prompt.phases, prompt.force, prompt.banned and prompt.known (what
--- parsers know about the tools). Inside a task; raises request errors. The loop may turn.
function constraint.prepare(run, list)
  for _, prompt in ipairs(list) do
    prompt.phases, prompt.force = phases_of(run, prompt)
    if prompt.phases then build_tokens(run) end
    prompt.banned = banned(run, prompt)
  end
end

return constraint
