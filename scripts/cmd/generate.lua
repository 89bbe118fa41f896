-- generate: continues a prompt, streamed to the terminal; or JSON lines, all in one batch.
local perigee = require "perigee"
local command = require "lib.command"
local jsonl = require "lib.jsonl"
local models = require "engine.model"
local preload = require "engine.preload"
local text = require "lib.text"
local json = perigee.json

-- Loaded when messages or pictures are first seen: a plain prompt, whose first token comes after a
-- few tenths of a second, would wait 20 ms for them.
local function chat_of(path) return require("chat").open(path) end
local function talk(...) return (require("engine.pictures").talk(...)) end

-- ---- JSON lines ---------------------------------------------------------------------------------

--- A JSON value as plain Lua: tables without the metatables of json.
local function plain(value)
  if type(value) ~= "table" then return value end
  local out = {}
  for k, v in pairs(value) do out[k] = plain(v) end
  return out
end

-- The keys of a line that become the prompt.
local CHAT = { messages = true, tools = true, tool_choice = true, chat_template_kwargs = true,
  add_generation_prompt = true, continue_final_message = true, now = true }

-- What a prompt with pictures adds to a request.
local PREPARED = { "prompt", "boundaries", "media", "positions", "rope_delta" }

local function need(value, why)
  if not value then error(why, 0) end
  return value
end

local PICTURES = { images = true, videos = true }

--- The prompt of the messages of a line, with its pictures. Raises errors.
local function prompt_of(speaker, line)
  speaker.words = speaker.words or need(chat_of(speaker.model.path))
  return talk(speaker.model, speaker.words, { messages = line.messages,
    tools = line.tools, tool_choice = line.tool_choice, kwargs = line.chat_template_kwargs,
    images = jsonl.field(line, "images", { kind = "array" }),
    videos = jsonl.field(line, "videos", { kind = "array" }),
    now = jsonl.field(line, "now", { kind = "integer" }),
    add_generation_prompt = jsonl.field(line, "add_generation_prompt", { kind = "boolean" }),
    continue_final_message = jsonl.field(line, "continue_final_message", { kind = "boolean" }) })
end

--- The prompt of a line, as text or ids, with its pictures.
local function prompt_with_pictures(model, line)
  local given = { images = jsonl.field(line, "images", { kind = "array" }),
    videos = jsonl.field(line, "videos", { kind = "array" }) }
  if not line.prompt then error("prompt is missing", 0) end
  return model:pictures():prepare(model:ids(plain(line.prompt)), given)
end

--- The request of a line. speaker: the model, and its chat template once a line has needed it.
local function request_of(speaker, line)
  local request, talks = {}, line.messages ~= nil
  for key, value in pairs(line) do
    if value ~= json.null and not PICTURES[key] and not (talks and CHAT[key]) then
      request[key] = plain(value)
    end
  end
  if json.is_object(line.prompt) then error("'prompt' must be text or a list of ids", 0) end
  local seen
  if talks then
    if request.prompt then error("a line has 'prompt' or 'messages', not both", 0) end
    seen = prompt_of(speaker, line)
  elseif #(line.images or {}) > 0 or #(line.videos or {}) > 0 then
    seen = prompt_with_pictures(speaker.model, line)
  end
  for _, key in ipairs(seen and PREPARED or {}) do request[key] = seen[key] end
  if request.n and request.n ~= 1 then
    error(("n must be 1 here, got %s"):format(tostring(request.n)), 0)
  end
  -- The keys of JSON are strings, those of the batch are ids.
  for key in pairs(json.is_object(line.logit_bias) and line.logit_bias or {}) do
    local id = math.tointeger(tonumber(key))
    if not id then error(("logit_bias: '%s' is not a token id"):format(key), 0) end
    request.logit_bias[id], request.logit_bias[key] = request.logit_bias[key], nil
  end
  return request
end

local function logprobs_of(seq)
  local list = json.array {}
  for i, token in ipairs(seq.logprobs) do
    local top = json.array {}
    for k, t in ipairs(token.top or {}) do
      top[k] = json.object { { "id", t.id }, { "logprob", t.logprob } }
    end
    list[i] = json.object { { "id", token.id }, { "logprob", token.logprob }, { "top", top } }
  end
  return list
end

local function answer_of(seq)
  if seq.error then return jsonl.failure(seq.error) end
  local answer = { { "text", seq.text }, { "ids", json.array(seq.ids) },
    { "finish_reason", seq.finish }, { "prompt_tokens", seq.prompt_tokens },
    { "completion_tokens", seq.completion_tokens }, { "cached_tokens", seq.cached_tokens } }
  if seq.logprobs then answer[#answer + 1] = { "logprobs", logprobs_of(seq) } end
  return json.object(answer)
end

--- A function that writes answers in the order of the lines, each as soon as all before it are
--- written.
local function writer()
  local ready, next_line = {}, 0
  return function(number, answer)
    ready[number] = answer
    while ready[next_line] do
      jsonl.write(ready[next_line])
      ready[next_line] = nil
      next_line = next_line + 1
    end
  end
end

local function answer_lines(model, opts)
  local batch <close>, why = model:batch { sequences = opts.sequences }
  if not batch then return nil, why end
  local write, speaker = writer(), { model = model }
  jsonl.each(function(number, line, problem)
    local ok, seq, refused
    if line then
      ok, seq, refused = pcall(function()
        local request = request_of(speaker, line)
        request.on_done = function(done) write(number, answer_of(done)) end
        return batch:add(request)
      end)
      if not ok then problem = seq elseif not seq then problem = refused end
    end
    if problem then write(number, jsonl.failure(problem)) end
  end)
  local ok, failed = batch:run()
  if not ok then return nil, failed end
  return command.OK
end

-- ---- for people ---------------------------------------------------------------------------------

--- Replaces \n, \t and \\ in a prompt typed at a shell.
local function unescape(s)
  return (s:gsub("\\([nt\\])", { n = "\n", t = "\t", ["\\"] = "\\" }))
end

local shown = { "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
  "seed", "stop", "ignore_eos" }

--- The request for a prompt and its pictures. If the prompt has no place for them, it is a message
--- that follows them.
local function request_for(model, prompt, images)
  if not images then return { prompt = prompt } end
  local pictures = model:pictures()
  local words = not pictures:has_place(model:ids(prompt)) and chat_of(model.path)
  if not words then return { prompt = prompt, images = images } end
  local parts = json.array {}
  for i, path in ipairs(images) do
    parts[i] = json.object { { "type", "image" }, { "image", path } }
  end
  parts[#parts + 1] = json.object { { "type", "text" }, { "text", prompt } }
  local message = json.object { { "role", "user" }, { "content", parts } }
  return talk(model, words, { messages = json.array { message } })
end

local function show(model, prompt, opts)
  local started = perigee.sys.cpu_ns()
  local request = request_for(model, prompt, opts.image)
  request.on_text = function(piece)
    io.stdout:write(piece)
    io.stdout:flush()
  end
  for _, key in ipairs(shown) do request[key] = opts[key] end
  local r = model:generate(request)
  io.stdout:write "\n"
  if opts.verbose then
    local seconds = (perigee.sys.cpu_ns() - started) * 1e-9
    io.stderr:write(("%d prompt tokens, %d generated, %s, %s\n"):format(r.prompt_tokens,
      r.completion_tokens, r.finish_reason, text.seconds(seconds)))
  end
  return command.OK
end

local function main(opts)
  local possible, unable = command.check_compute(opts)
  if not possible then return nil, unable end
  local model, why = models.open(opts[1], command.model_options(opts))
  if not model then return nil, why end
  preload(model)
  if opts.jsonl and opts.image then
    return command.fail(command.USAGE, "generate", "with --jsonl pictures are \"images\" of a line")
  end
  if opts.jsonl then return answer_lines(model, opts) end
  local ok, result = pcall(show, model, unescape(opts[2] or io.read "a"), opts)
  if not ok then return nil, result end
  return result
end

return {
  summary = "generate text from a prompt",
  usage = "MODEL [PROMPT]",
  details = [[
Without PROMPT, the prompt is read from stdin. \n and \t in PROMPT stand for a newline and a tab.
With --jsonl each line is {"prompt": "text" or [ids], or "messages": […] with "tools", …;
"images": ["path", …], "videos": [["frame path", …], …], "max_tokens": N, "temperature": T,
"seed": N, …}, and all lines are generated in one batch. Pictures take their places in the prompt,
or the parts of messages that name no picture of their own; a part names a path or a data URI.
With --image a prompt that has no place for pictures is sent as a message, with the chat template.
Sampling parameters that are not given come from generation_config.json.]],
  options = {
    { name = "jsonl", kind = "flag", help = "read and write JSON lines" },
    { name = "sequences", kind = "integer", value = "N", min = 1, max = 65536, shown = 64,
      help = "with --jsonl: sequences generated at once" },
    { name = "image", kind = "string", value = "FILE", many = true,
      help = "a picture (PNG, JPEG or WebP) for the prompt; may be repeated" },
    { name = "max-tokens", kind = "integer", value = "N", min = 0,
      help = "most tokens to generate (default: up to the context length)" },
    { name = "temperature", kind = "number", value = "T",
      help = "sampling temperature; 0: greedy" },
    { name = "top-p", kind = "number", value = "P",
      help = "sample from the most likely tokens with a total probability of P" },
    { name = "top-k", kind = "integer", value = "K", min = 0,
      help = "sample from the K most likely tokens; 0: all" },
    { name = "min-p", kind = "number", value = "P",
      help = "drop tokens less likely than P times the most likely one" },
    { name = "repetition-penalty", kind = "number", value = "R",
      help = "above 1: make tokens of prompt and output less likely" },
    { name = "stop", kind = "string", value = "TEXT", help = "stop before this text" },
    { name = "seed", kind = "integer", value = "N",
      help = "seed of the sampler: the same seed gives the same text" },
    { name = "ignore-eos", kind = "flag", help = "continue after an end token" },
    { name = "verbose", kind = "flag", help = "print token counts and CPU time to stderr" },
  },
  min = 1,
  max = 2,
  run = main,
}
