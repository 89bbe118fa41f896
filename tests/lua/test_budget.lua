-- Thinking budgets: after so many tokens of reasoning the text that ends it is forced, exactly
-- there, in every API, streamed and whole, alone and among others.
local apiapp = require "apiapp"
local async = require "lib.async"
local budgets = require "pipeline.budget"
local chat = require "chat"
local harness = require "harness"
local parsers = require "parsers"
local perigee = require "perigee"
local json = perigee.json
local test = harness.test

if ... then return end -- once is enough: under forced collection test_api does

local CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
local SUM = { { role = "user", content = "What is 48 + 37?" } }

local function body_of(more)
  local body = { messages = SUM, temperature = 0, enable_thinking = true, return_token_ids = true }
  for key, value in pairs(more or {}) do body[key] = value end
  return body
end

local function ask(t, app, more)
  local status, answer = app:ask(CHAT, body_of(more))
  t.eq(status, 200, json.encode(answer))
  return answer.choices, answer.usage
end

--- The first n ids.
local function first(ids, n) return table.move(ids, 1, n, 1, {}) end

local function slice(ids, from, to) return table.move(ids, from, to, 1, {}) end

test("exactly so many tokens of reasoning, then the closing mark, then the answer", function(t)
  apiapp.run(t, function(app)
    local closing = budgets.closing(app.entry.words, app.entry.tok).first
    t.eq(app.entry.tok:decode(closing, { skip_special = false }), "\n</think>\n\n")
    local free, usage = ask(t, app)
    local thought = usage.completion_tokens_details.reasoning_tokens
    local ids = free[1].token_ids
    for _, n in ipairs { 0, 1, 2, 7, thought - 1 } do
      local choices, used = ask(t, app, { thinking_token_budget = n })
      local got = choices[1].token_ids
      t.eq(used.completion_tokens_details.reasoning_tokens, n)
      t.eq(first(got, n), first(ids, n))
      t.eq(slice(got, n + 1, n + #closing), closing)
      t.ok(choices[1].message.content ~= "")
      t.eq(choices[1].finish_reason, "stop")
    end
    for _, n in ipairs { thought + 2, 100000 } do -- it ends by itself, after a line end
      local choices, used = ask(t, app, { thinking_token_budget = n })
      t.eq({ choices[1].token_ids, used.completion_tokens_details }, { ids,
        usage.completion_tokens_details })
    end
    t.eq(ask(t, app, { thinking_token_budget = 5, max_tokens = 6 })[1].finish_reason, "length")
    local plain = ask(t, app, { thinking_token_budget = 5, enable_thinking = false })
    t.eq(plain[1].message.content, "48 + 37 = 85.")
    t.eq(plain[1].message.reasoning_content, nil)
  end)
end)

--- The parts of a streamed answer of chat completions, joined, and its usage.
local function joined(events)
  local said, thought, usage = {}, {}, nil
  for _, event in ipairs(events) do
    if event ~= "[DONE]" then
      usage = event.usage and event.usage ~= json.null and event.usage or usage
      local delta = event.choices[1] and event.choices[1].delta or {}
      said[#said + 1] = delta.content
      thought[#thought + 1] = delta.reasoning_content
    end
  end
  return table.concat(said), table.concat(thought), usage
end

test("streamed, n times, and next to others: the same tokens as alone", function(t)
  apiapp.run(t, function(app)
    local function one(i)
      return { thinking_token_budget = i, n = 3, temperature = 1, seed = 7 * i, max_tokens = 40 }
    end
    local alone, together = {}, {}
    for i = 1, 6 do alone[i] = ask(t, app, one(i)) end
    local tasks = {}
    for i = 1, 6 do
      for _, choice in ipairs(alone[i]) do t.ok(choice.message.reasoning_content) end
      tasks[i] = function() together[i] = ask(t, app, one(i)) end
    end
    async.all(tasks)
    t.eq(together, alone)
    for n = 0, 9, 3 do
      local whole = ask(t, app, { thinking_token_budget = n })
      local said, thought, usage = joined(app:events(CHAT,
        body_of { thinking_token_budget = n, stream_options = { include_usage = true } }))
      t.eq({ said, thought }, { whole[1].message.content,
        whole[1].message.reasoning_content or "" })
      t.eq(usage.completion_tokens_details.reasoning_tokens, n)
    end
  end)
end)

test("through the Messages API: a budget, and one of an adaptive request", function(t)
  apiapp.run(t, function(app)
    local chosen = ask(t, app, { thinking_token_budget = 7 })
    for _, kind in ipairs { "enabled", "adaptive" } do
      local status, answer = app:ask(MESSAGES, { messages = SUM, temperature = 0, max_tokens = 100,
        thinking = { type = kind, budget_tokens = 7 } })
      t.eq(status, 200, json.encode(answer))
      local last = answer.content[#answer.content]
      if kind == "enabled" then
        t.eq(answer.content[1].thinking, chosen[1].message.reasoning_content)
        t.eq(last.text, chosen[1].message.content)
      else -- moonlet's template does not think unless told so
        t.eq(last.text, "48 + 37 = 85.")
      end
    end
  end)
end)

test("the effort of a request has the budget that is configured", function(t)
  apiapp.run(t, function(app)
    app.config.thinking_budgets = { low = 4 }
    local function thought(effort)
      local status, answer = app:ask(RESPONSES, { input = SUM, temperature = 0,
        reasoning = { effort = effort }, chat_template_kwargs = { enable_thinking = true } })
      t.eq(status, 200, json.encode(answer))
      return answer.usage.output_tokens_details.reasoning_tokens
    end
    t.eq(thought "low", 4)
    t.ok(thought "high" > 10)
    local _, usage = ask(t, app, { reasoning_effort = "low" })
    t.eq(usage.completion_tokens_details.reasoning_tokens, 4)
    _, usage = ask(t, app, { reasoning_effort = "low", thinking_token_budget = 6 })
    t.eq(usage.completion_tokens_details.reasoning_tokens, 6)
  end)
end)

test("a hook may set the budget", function(t)
  local hooks = { { request = function(req)
    if req.body.user == "short" then req.thinking_budget = 3 end
  end } }
  apiapp.run(t, function(app)
    local _, usage = ask(t, app, { user = "short" })
    t.eq(usage.completion_tokens_details.reasoning_tokens, 3)
    local _, answer = app:ask(RESPONSES, { input = "What is 48 + 37?", temperature = 0,
      user = "short", chat_template_kwargs = { enable_thinking = true } })
    t.eq(answer.usage.output_tokens_details.reasoning_tokens, 3)
  end, { hooks = hooks })
end)

test("a model that begins to think once more is made to answer at once", function(t)
  local thinks, forced = true, {}
  local out = { thought = function() return 2 end, end_thought = function() end,
    thinking = function() return thinks end, thinks = true }
  local seq = { watch = true, force = function(_, ids)
    forced[#forced + 1] = ids
    return true
  end }
  local function run(closing, before)
    forced, thinks, out.thinks, seq.watch = {}, true, true, true
    local budget = budgets.new(2, closing, before)
    for _, now in ipairs { true, true, true, false, true, true, true, false } do
      thinks = now
      budget:token({ id = 1, text = "a" }, out, seq)
    end
    budget:token({ id = 1, finish = "length" }, out, seq)
    thinks, out.thinks = false, false
    budget:token({ id = 1, text = "a" }, out, seq)
    return forced, seq.watch
  end
  local two = { first = { 1, 2 }, again = { 3 }, once = false }
  t.eq({ run(two, 0) }, { { { 1, 2 }, { 3 }, { 3 } }, true })
  t.eq({ run(two, 2) }, { { { 1, 2 }, { 3 } }, true })
  two.again, two.once = two.first, true
  t.eq({ run(two, 0) }, { { { 1, 2 }, { 1, 2 } }, false })
end)

-- ---- formats ------------------------------------------------------------------------------------

--- How the prompt of a model of each format opens its thinking.
local OPEN = { qwen3 = "<think>\n", deepseek_r1 = "<think>\n", glm4 = "<think>",
  mistral = "[THINK]", step3p5 = "<think>\n", poolside_v1 = "<think>", seed_oss = "<seed:think>",
  gemma4 = "<|channel>thought\n", gpt_oss = "<|channel|>analysis<|message|>" }

test("every reasoning format says whether it thinks, and its closing ends that", function(t)
  for _, name in ipairs(parsers.names "reasoning") do
    local closing, again = parsers.closing(name)
    if name == "none" then
      t.eq({ closing, again }, {})
    else
      for how, text in pairs { prompt = "", answer = OPEN[name] } do
        local p = parsers.new { format = "none", reasoning = name,
          prompt_tail = how == "prompt" and OPEN[name] or "assistant\n" }
        p:feed(text)
        t.eq(p:thinking(), true, name .. ": " .. how)
        p:feed "so far"
        t.eq(p:thinking(), true, name)
        p:feed(closing)
        t.eq(p:thinking(), false, name)
        p:feed(name == "gpt_oss" and "<|channel|>final<|message|>So." or "So.")
        t.eq(p:thinking(), false, name)
      end
      local r = parsers.parse({ "so", closing, OPEN[name], again, "B" },
        { format = "none", reasoning = name, prompt_tail = OPEN[name] })
      t.eq({ r.reasoning, r.content }, { "so", "B" }, name)
    end
  end
end)

test("nothing is closed in the middle of a call", function(t)
  local p = parsers.new { format = "hermes", reasoning = "qwen3", prompt_tail = "<think>\n" }
  p:feed 'a <tool_call>{"name": '
  t.eq(p:thinking(), false)
  p:feed '"f"}</tool_call> b'
  t.eq(p:thinking(), true)
end)

test("white space around the mark is the template's own", function(t)
  local function words(between)
    local source = "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>"
      .. "{{ m.reasoning_content }}" .. between .. "{% endif %}{{ m.content }}{% endfor %}"
      .. "{% if add_generation_prompt %}[assistant]<think>{% endif %}"
    return assert(chat.open("examples/moonlet", { template = source }))
  end
  t.eq(words("</think>"):closing(), "</think>")
  t.eq(words("\n</think>\n"):closing(), "\n</think>\n")
  t.eq(words("\n</think>\nAnswer:"):closing(), "\n</think>\n\n") -- more than the mark: not for us
  t.eq(assert(chat.open "examples/moonlet"):closing(), "\n</think>\n\n")
end)
