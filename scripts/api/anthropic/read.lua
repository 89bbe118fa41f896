-- read: the req (api/request.lua) of a body of the Messages API.
--
-- A message is a text or a list of blocks. In chat's neutral form
--
--   system blocks            are system messages of their own, as are those between the others
--   tool_result of a user    are tool messages, before what else the user says
--   thinking of an assistant is its reasoning_content. A signature (api/sealed.lua) is looked at
--                            where the text was left out; others, and none, are fine
--   tool_use                 are tool_calls; what follows them is another message
--   a last assistant message is continued
--
-- Blocks that tools of other servers made, and thinking that was redacted there, are left out.
local check = require "chat.check"
local content = require "chat.content"
local errors = require "lib.errors"
local perigee = require "perigee"
local request = require "api.request"
local schema = require "api.schema"
local sealed = require "api.sealed"
local structured = require "api.structured"
local async = require "lib.async"
local json = perigee.json
local refuse, value = errors.refuse, schema.value

local INT = 0x7fffffff
local NOT_HERE = "is not supported by this server"

local FIELDS = schema.fields({
  schema.sampling { stop = { name = "stop_sequences" }, top_k = { from = -1 },
    skip_special = { name = "skip_special_tokens" } },
  { { "model", "string", to = 256 },
    { "max_tokens", "integer", from = 1, to = INT },
    { "messages", "array", from = 1 },
    { "system", "any" },
    { "stream", "boolean" },
    { "tools", "array", to = 1024 },
    { "tool_choice", "object" },
    { "thinking", "object" },
    { "output_config", "object" },
    { "output_format", "object" },
    { "metadata", "object" },
    { "perigee", "object" } }, structured.FIELDS },
  { mcp_servers = NOT_HERE, container = NOT_HERE, compaction = NOT_HERE })

local function given(v) return v ~= nil and v ~= json.null end

local function one_of(name, v, choices)
  value("string", name, v)
  for _, choice in ipairs(choices) do
    if v == choice then return v end
  end
  refuse(name, "must be one of %s, got '%s'", table.concat(choices, ", "), v:sub(1, 64))
end

-- ---- blocks -------------------------------------------------------------------------------------

--- The blocks of a content, with their paths: a text is one of them.
local function each_block(said, at)
  if type(said) == "string" then
    said = json.array { content.text(said) }
  elseif not check.is_list(said) then
    refuse(at, "must be a string or an array of blocks, got %s", check.kind_of(said))
  end
  local i = 0
  return function()
    i = i + 1
    if i > #said then return nil end
    async.breathe()
    local place = ("%s[%d]"):format(at, i - 1)
    local block = value("object", place, said[i])
    return block, place, value("string", place .. ".type", block.type)
  end
end

--- Blocks that this server did not make and cannot show.
local function is_foreign(kind)
  return kind == "redacted_thinking" or kind == "server_tool_use" or kind == "mcp_tool_use"
    or kind:find "_tool_result$" ~= nil
end

local function unknown(at, kind)
  refuse(at .. ".type", "must be a known type of block here, got '%s'", kind:sub(1, 64))
end

-- A reader: places (of pictures, see api/request.lua), room (bytes of long documents that may still
-- come: api/body.lua does not count them as text).
local parts = {}

function parts.text(block, at)
  return content.text(value("string", at .. ".text", block.text))
end

function parts.image(block, at, reader)
  local source = value("object", at .. ".source", block.source)
  local part = json.object { { "type", "image" } }
  reader.places[part] = at .. ".source"
  local kind = one_of(at .. ".source.type", source.type, { "base64", "url", "file" })
  if kind == "file" then refuse(at .. ".source", "names a file, but files are not kept here") end
  local key = kind == "url" and "url" or "data"
  local data = source[key]
  if not check.is_long(data) then
    value("string", ("%s.source.%s"):format(at, key), data, { from = 1 })
  end
  part[kind == "url" and "image" or "base64"] = data
  return part
end

--- The text of a long string.
local function long_text(data, at, reader)
  reader.room = reader.room - #data
  if reader.room < 0 then
    error(errors.new { status = 413, code = "too_much_text", field = at,
      message = at .. ": the documents have more text than is read in a request" }, 0)
  end
  return data:text()
end

--- Only text: other documents are files of a kind that no model here reads.
function parts.document(block, at, reader)
  local source = value("object", at .. ".source", block.source)
  if source.type ~= "text" then
    refuse(at .. ".source.type", "must be 'text': other documents cannot be read here")
  end
  local data, place = source.data, at .. ".source.data"
  if check.is_long(data) then data = long_text(data, place, reader) end
  return content.text(value("string", place, data))
end

--- What a search found: its title, where it was, and what it says.
function parts.search_result(block, at)
  local lines = { value("string", at .. ".title", block.title),
    value("string", at .. ".source", block.source) }
  for inner, place, kind in each_block(block.content, at .. ".content") do
    if kind ~= "text" then unknown(place, kind) end
    lines[#lines + 1] = parts.text(inner, place).text
  end
  return content.text(table.concat(lines, "\n"))
end

function parts.tool_reference(block, at)
  local name = value("string", at .. ".tool_name", block.tool_name)
  return content.text(("Tool %s is available now."):format(name))
end

--- Adds the part of a block to a list.
local function add_part(list, block, at, kind, reader)
  if is_foreign(kind) then return end
  if not parts[kind] then unknown(at, kind) end
  list[#list + 1] = parts[kind](block, at, reader)
end

-- ---- messages -----------------------------------------------------------------------------------

local roles = {}

function roles.system(out, said, at)
  for block, place, kind in each_block(said, at) do
    if kind ~= "text" then unknown(place, kind) end
    out[#out + 1] = json.object { { "role", "system" },
      { "content", parts.text(block, place).text } }
  end
end

local function result(block, at, reader)
  local list = json.array {}
  for inner, place, kind in each_block(given(block.content) and block.content or "",
    at .. ".content") do
    add_part(list, inner, place, kind, reader)
  end
  return json.object { { "role", "tool" },
    { "tool_call_id", value("string", at .. ".tool_use_id", block.tool_use_id) },
    { "content", list } }
end

function roles.user(out, said, at, reader)
  local list, before = json.array {}, #out
  for block, place, kind in each_block(said, at) do
    if kind == "tool_result" then
      out[#out + 1] = result(block, place, reader)
    else
      add_part(list, block, place, kind, reader)
    end
  end
  if #list > 0 or #out == before then
    out[#out + 1] = json.object { { "role", "user" }, { "content", list } }
  end
end

local turns = {}

function turns.text(turn, block, at)
  turn.content = json.is_array(turn.content) and turn.content or json.array {}
  table.insert(turn.content, parts.text(block, at))
end

function turns.thinking(turn, block, at)
  local thought = value("string", at .. ".thinking", block.thinking)
  local signed = given(block.signature) and value("string", at .. ".signature", block.signature)
  if thought == "" then thought = signed and sealed.open(signed) or "" end
  if thought == "" then return end
  local before = turn.reasoning_content
  turn.reasoning_content = before and before .. "\n\n" .. thought or thought
end

function turns.tool_use(turn, block, at)
  local input = given(block.input) and value("object", at .. ".input", block.input)
    or json.object {}
  turn.tool_calls = turn.tool_calls or json.array {}
  table.insert(turn.tool_calls, json.object {
    { "id", value("string", at .. ".id", block.id) }, { "type", "function" },
    { "function", json.object { { "name", value("string", at .. ".name", block.name,
      { from = 1, to = 256 }) }, { "arguments", input } } } })
end

function roles.assistant(out, said, at)
  local turn
  for block, place, kind in each_block(said, at) do
    if not is_foreign(kind) then
      if not turns[kind] then unknown(place, kind) end
      if not turn or turn.tool_calls and kind ~= "tool_use" then
        turn = json.object { { "role", "assistant" }, { "content", json.null } }
        out[#out + 1] = turn
      end
      turns[kind](turn, block, place)
    end
  end
end

--- All messages in chat's form.
local function messages_of(o, reader)
  local out = json.array {}
  if given(o.system) then roles.system(out, o.system, "system") end
  for i, message in ipairs(o.messages or {}) do
    local at = ("messages[%d]"):format(i - 1)
    value("object", at, message)
    local role = one_of(at .. ".role", message.role, { "user", "assistant", "system" })
    roles[role](out, message.content, at .. ".content", reader)
  end
  return out
end

--- Is the last message the beginning of the answer?
local function is_begun(messages)
  local last = messages[#messages]
  return last ~= nil and last.role == "assistant" and not last.tool_calls
    and not content.is_empty(last.content)
end

--- The form of the answer. It says what a whole answer is, so none may have begun.
local function grammar_of(o, messages)
  local grammar = structured.read(o, { { "output_config.format", (o.output_config or {}).format },
    { "output_format", o.output_format } })
  if grammar and is_begun(messages) then
    refuse("messages", "must not end with the beginning of the answer, since %s says what all of "
      .. "it is", grammar.field)
  end
  return grammar
end

-- ---- tools --------------------------------------------------------------------------------------

local PLACEHOLDER = "DeferredToolPlaceholder" -- Claude Code's, for tools that it will offer later

local function tool_of(tool, at)
  local inner = json.object { { "name", check.tool_name(tool.name, at .. ".name") } }
  if given(tool.description) then
    inner.description = value("string", at .. ".description", tool.description)
  end
  if given(tool.input_schema) then
    inner.parameters = value("object", at .. ".input_schema", tool.input_schema)
  end
  return json.object { { "type", "function" }, { "function", inner } }
end

--- The tools in chat's form, the set of the names of those that are left out (they run at other
--- servers), and of those whose arguments must follow their schema.
local function tools_of(list)
  local out, dropped, strict = json.array {}, {}, {}
  for i, tool in ipairs(list or {}) do
    local at = ("tools[%d]"):format(i - 1)
    value("object", at, tool)
    if given(tool.type) and value("string", at .. ".type", tool.type) ~= "custom"
      or tool.name == PLACEHOLDER then
      dropped[tool.name or ""] = true
    else
      out[#out + 1] = tool_of(tool, at)
      strict[tool.name] = given(tool.strict) and value("boolean", at .. ".strict", tool.strict)
    end
  end
  return out, dropped, strict
end

local CHOICES = { auto = "auto", any = "required", none = "none" }

--- tool_choice in chat's form, and parallel_tool_calls.
local function choice_of(choice, tools, dropped)
  if not choice then return nil end
  local kind = one_of("tool_choice.type", choice.type, { "auto", "any", "tool", "none" })
  local single = given(choice.disable_parallel_tool_use)
    and value("boolean", "tool_choice.disable_parallel_tool_use", choice.disable_parallel_tool_use)
  local name = kind == "tool" and value("string", "tool_choice.name", choice.name)
  if name and dropped[name] or kind == "any" and #tools == 0 and next(dropped) then
    return "auto", not single
  end
  return CHOICES[kind] or json.object { { "type", "function" },
    { "function", json.object { { "name", name } } } }, not single
end

-- ---- the rest -----------------------------------------------------------------------------------

--- Should it think, for how many tokens, and is the text left out? Adaptive: as the model's
--- template has it.
local function thinking_of(thinking)
  if not thinking then return false end
  local omits = given(thinking.display)
    and value("string", "thinking.display", thinking.display) == "omitted"
  local kind = one_of("thinking.type", thinking.type, { "enabled", "adaptive", "disabled" })
  local budget = given(thinking.budget_tokens)
    and value("integer", "thinking.budget_tokens", thinking.budget_tokens, { from = 1, to = INT })
  if kind == "adaptive" then return nil, budget or nil, omits end
  return kind == "enabled", kind == "enabled" and budget or nil, omits
end

local function effort_of(config)
  return config and given(config.effort) and value("string", "output_config.effort", config.effort,
    { from = 1, to = 64 }) or nil
end

--- The conversation's name: Claude Code's user_id is JSON as text.
local function session_of(metadata)
  local id = metadata and metadata.user_id
  if not given(id) then return nil end
  local about = json.decode(value("string", "metadata.user_id", id, { to = 1024 }))
  return json.is_object(about) and type(about.session_id) == "string" and about.session_id or nil
end

--- Nothing is kept here. These words make the vendor's clients send the whole conversation.
local function refuse_thread()
  error(errors.new { field = "thread",
    message = "thread is not supported: conversations are not kept here, send all messages",
    details = json.object { { "error_code", "thread_unsupported_request" },
      { "unsupported", json.array { "thread" } } } }, 0)
end

--- The req of a body; raises what is wrong with it.
return function(body, from, app)
  if given(body.thread) then refuse_thread() end
  local o = schema.read(body, FIELDS)
  local reader = { places = {}, room = app.config.limits.text or math.huge }
  if not o.messages then refuse("messages", "is missing") end
  local tools, dropped, strict = tools_of(o.tools)
  local choice, parallel = choice_of(o.tool_choice, tools, dropped)
  local thinking, budget, omits = thinking_of(o.thinking)
  local messages = messages_of(o, reader)
  local sampling = o.sampling or {}
  sampling.max_tokens = o.max_tokens
  return request.chat({ id = "msg_", api = "messages", call_prefix = "toolu_", body = body,
    model = o.model, stream = o.stream == true, sampling = sampling, thinking = thinking,
    thinking_budget = budget, omits_thinking = omits, effort = effort_of(o.output_config),
    session = session_of(o.metadata), perigee = o.perigee, places = reader.places,
    strict = strict, grammar = grammar_of(o, messages), fast_forward = o.fast_forward,
    user = o.metadata and type(o.metadata.user_id) == "string" and o.metadata.user_id or nil,
    chat = { messages = messages, tools = tools, tool_choice = choice,
      parallel_tool_calls = parallel, continue_final_message = is_begun(messages) or nil } }, from)
end
