-- Pictures over HTTP: moonlet's answers about pictures alone, streamed and 30 at once; the prefix
-- cache; hostile pictures.
local apiapp = require "apiapp"
local async = require "lib.async"
local http = require "http"
local http_tools = require "http_tools"
local perigee = require "perigee"
local pictures = require "picture_files"
local text = require "lib.text"
local uv = require "luv"
local test = require("harness").test
local json = perigee.json

if ... then return end -- once is enough: test_media and test_features run under forced collection

local CHAT = "/v1/chat/completions"
local MOONLET = "examples/moonlet/"

local uris = {}
local function uri_of(name)
  uris[name] = uris[name] or pictures.uri(pictures.read(MOONLET .. name))
  return uris[name]
end

--- A copy of messages with data URIs instead of the names of files.
local function with_pictures(messages)
  local list = json.decode(json.encode(messages))
  for _, message in ipairs(list) do
    for _, part in ipairs(type(message.content) == "table" and message.content or {}) do
      if part.type == "image_url" then part.image_url.url = uri_of(part.image_url.url) end
    end
  end
  return list
end

local answers, named = assert(json.decode(assert(text.read_file(MOONLET .. "answers.json")))), {}
for _, a in ipairs(answers) do named[a.name] = a end

--- The body of a request for one of the answers.
local function ask_of(a, more)
  local body = { messages = with_pictures(a.messages), tools = a.tools,
    chat_template_kwargs = a.chat_template_kwargs, return_token_ids = true }
  for key, value in pairs(more or {}) do body[key] = value end
  return body
end

--- A body with a picture and a question.
local function look(source, question, more)
  local body = { messages = { { role = "user", content = {
    { type = "image_url", image_url = { url = source } },
    { type = "text", text = question or "What is in the picture?" } } } } }
  for key, value in pairs(more or {}) do body[key] = value end
  return body
end

local function content(answer) return answer.choices[1].message.content end

local function image_tokens(a)
  local n = 0
  for _, grid in ipairs(a.grids) do n = n + grid[1] * grid[2] * grid[3] // 4 end
  return n
end

--- Checks the answer to a request for `a`.
local function is_answer(t, a, status, answer)
  if status ~= 200 then return t.fail(("%s: %s"):format(a.name, json.encode(answer))) end
  local ids = table.move(answer.choices[1].token_ids, 1, #a.ids, 1, {})
  t.eq(ids, table.move(a.ids, 1, #a.ids, 1, {}), a.name)
  t.eq(answer.usage.prompt_tokens, #a.prompt_ids, a.name)
  local tokens = image_tokens(a)
  t.eq(answer.usage.prompt_tokens_details.image_tokens, tokens > 0 and tokens or nil, a.name)
end

test("every answer, alone and in a stream", function(t)
  apiapp.run(t, function(app)
    for _, a in ipairs(answers) do
      if #a.grids > 0 or not os.getenv "SAN" then -- 43 answers take the thread sanitizer minutes
        local status, answer = app:ask(CHAT, ask_of(a))
        is_answer(t, a, status, answer)
      end
    end
    for _, a in ipairs(answers) do
      if #a.grids > 0 then
        local events = assert(app:events(CHAT, ask_of(a, {
          stream_options = { include_usage = true } })))
        local said, final = {}, events[#events - 1]
        for i = 1, #events - 2 do
          said[i] = events[i].choices[1].delta.content or ""
        end
        t.eq(table.concat(said), a.text, a.name)
        t.eq(final.usage.prompt_tokens_details.image_tokens, image_tokens(a), a.name)
      end
    end
    local stats = app.entry.pictures:stats()
    t.eq({ stats.entries, stats.misses }, { 7, 7 }, "each picture was computed once")
    t.ok(stats.hits > 10)
  end)
end)

--- All bodies at once; calls check(i, status, answer) for each.
local function at_once(app, bodies, check)
  local functions = {}
  for i, body in ipairs(bodies) do
    functions[i] = function() check(i, app:ask(CHAT, body)) end
  end
  async.all(functions)
end

test("30 at once and 3 at once as one by one", function(t)
  for _, n in ipairs { 3, 30 } do
    apiapp.run(t, function(app)
      local bodies, list = {}, {}
      for i = 1, n do -- pictures first, then texts, tools, thinking
        list[i] = answers[(i + 17) % #answers + 1]
        bodies[i] = ask_of(list[i])
      end
      at_once(app, bodies, function(i, status, answer) is_answer(t, list[i], status, answer) end)
    end)
  end
end)

test("the same picture hits the prefix cache in any format, another never does", function(t)
  apiapp.run(t, function(app)
    local long = ("Look at the picture and answer the question. "):rep(12)
    local function cached(source, question)
      local status, answer = app:ask(CHAT, look(source, long .. question, { max_tokens = 4 }))
      t.eq(status, 200, json.encode(answer))
      return answer.usage.prompt_tokens_details.cached_tokens, content(answer)
    end
    local png = pictures.uri(pictures.file "own_rgb8.png")
    local webp = pictures.uri(pictures.file "own_lossless.webp", "image/webp")
    local other = pictures.uri(pictures.plain(7, 5, 1, 2, 3))
    t.eq(cached(png, "What is it?"), 0)
    local again, said = cached(webp, "What is it?")
    t.ok(again > 64, "another format: " .. again)
    local first, different = cached(other, "What is it?")
    t.ok(first < 8, "another picture: " .. first) -- the words before it
    t.eq(app.entry.pictures:stats().misses, 2)
    local same, once_more = cached(png, "What is it?")
    t.ok(same >= again)
    t.eq(once_more, said)
    t.ok(different ~= nil)
  end)
end)

test("a long conversation with a picture in its first turn comes from the cache", function(t)
  apiapp.run(t, function(app)
    local messages = with_pictures(named.image.messages)
    local last = 0
    for turn = 1, 6 do
      local status, answer = app:ask(CHAT, { messages = messages })
      t.eq(status, 200)
      local usage = answer.usage
      if turn > 1 then
        t.ok(usage.prompt_tokens_details.cached_tokens >= last - 16, "turn " .. turn)
      end
      last = usage.prompt_tokens
      messages[#messages + 1] = { role = "assistant", content = content(answer) }
      local question = turn % 2 == 0 and "What is the capital of Italy?"
        or "What is the background color of the picture?"
      messages[#messages + 1] = { role = "user", content = question }
    end
    t.eq(messages[4].content, "The background is white.")
  end)
end)

test("places of pictures: strings, other names, any role, marks in text", function(t)
  apiapp.run(t, function(app)
    local red, words = uri_of "images/red_circle.png", "What is in the picture?"
    local function said(parts, role)
      local status, answer = app:ask(CHAT, { messages = { { role = role or "user",
        content = parts } } })
      t.eq(status, 200, json.encode(answer))
      return content(answer), answer.usage.prompt_tokens
    end
    local plain, tokens = said { { type = "image_url", image_url = red },
      { type = "text", text = words } }
    t.eq(plain, "I see a red circle.")
    t.eq(said { { type = "input_image", image_url = red, detail = "high" },
      { type = "input_text", text = words } }, plain)
    t.eq(said { { type = "image", image = red }, words }, plain)
    -- Client text that looks like a placeholder is text: more tokens, the same picture.
    local _, more = said { { type = "image_url", image_url = { url = red, detail = "auto" } },
      { type = "text", text = "<|image_pad|>" .. words } }
    t.ok(more > tokens + 1, "plain text")
    local status, answer = app:ask(CHAT, { messages = { { role = "user",
      content = "<|vision_start|><|image_pad|><|vision_end|>" .. words } } })
    t.eq({ status, answer.usage.prompt_tokens_details.image_tokens }, { 200, nil })
    local part = { type = "image_url", image_url = { url = red } }
    for _, other in ipairs { { role = "system", content = { part, "A picture." } },
      { role = "assistant", content = { part, "A picture." } },
      { role = "tool", tool_call_id = "x", content = { part, "A picture." } } } do
      local list = { other, { role = "user", content = { part, words } } }
      if other.role == "tool" then
        local call = { id = "x", type = "function",
          ["function"] = { name = "look", arguments = "{}" } }
        table.insert(list, 1, { role = "user", content = "Look!" })
        table.insert(list, 2, { role = "assistant", tool_calls = { call } })
      end
      status, answer = app:ask(CHAT, { messages = list, max_tokens = 4 })
      t.eq(status, 200, json.encode(answer))
      t.eq(answer.usage.prompt_tokens_details.image_tokens, 50, other.role)
    end
    local counted
    status, counted = app:ask("/tokenize", { messages = look(red, words).messages })
    t.eq({ status, counted.count }, { 200, tokens })
    status = app:ask(CHAT, look(red, words, { n = 2, temperature = 0 }))
    t.eq(status, 200)
  end)
end)

--- Moonlet's template with a place for videos, which Qwen's have.
local function video_template()
  local source = text.read_file(MOONLET .. "chat_template.jinja")
  return (source:gsub("{%%%- if part%.type in %('image', 'image_url'%) %-%%}",
    "{%%- if part.type in ('video', 'video_url') -%%}"
    .. "{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    .. "{%%- elif part.type in ('image', 'image_url') -%%}"))
end

test("a video is a list of frames, or a data URI of several", function(t)
  apiapp.run(t, function(app)
    local frames, joined = {}, {}
    for i = 1, 4 do
      local file = pictures.plain(64, 64, 40 * i, 20, 200)
      frames[i], joined[i] = pictures.uri(file), pictures.base64(file)
    end
    local function ask(video)
      local status, answer = app:ask(CHAT, { max_tokens = 4, messages = { { role = "user",
        content = { video, { type = "text", text = "What is in the video?" } } } } })
      return status, answer
    end
    local status, answer = ask { type = "video_url", video_url = { url = frames } }
    t.eq(status, 200, json.encode(answer))
    local tokens = answer.usage.prompt_tokens_details.image_tokens
    t.ok(tokens > 0)
    status, answer = ask { type = "video_url",
      video_url = { url = "data:video/png;base64," .. table.concat(joined, ",") } }
    t.eq({ status, answer.usage.prompt_tokens_details.image_tokens }, { 200, tokens })
    t.eq(app.entry.pictures:stats().misses, 1, "the same video")
    status, answer = ask { type = "video_url", video_url = { url = frames, fps = 1 } }
    t.eq(status, 200, json.encode(answer))
    t.eq(app.entry.pictures:stats().misses, 2, "other times")
    frames[3] = pictures.uri(pictures.plain(32, 64, 1, 1, 1))
    status, answer = ask { type = "video_url", video_url = { url = frames } }
    t.eq({ status, answer.error.param }, { 400, "messages[0].content[0].video_url" })
    t.match(answer.error.message, "frame 3 has 32 x 64 pixels")
  end, { template = video_template() })
end)

--- Checks that a body is refused with this status, path and message.
local function refused(t, app, body, wanted)
  local status, answer = app:ask(CHAT, body)
  t.eq(status, wanted[1], wanted[3])
  t.eq(answer.error and answer.error.param, wanted[2])
  t.match(answer.error and answer.error.message or "", wanted[3])
end

test("pictures that are refused name their message and part", function(t)
  apiapp.run(t, function(app)
    local red = pictures.read(MOONLET .. "images/red_circle.png")
    local at = "messages[2].content[1].image_url"
    local function wrong(source, status, message)
      local body = { messages = { { role = "user", content = "My name is Chris." },
        { role = "assistant", content = "Nice to meet you, Chris!" },
        { role = "user", content = { { type = "text", text = "What is this?" },
          { type = "image_url", image_url = { url = source } } } } } }
      refused(t, app, body, { status, at, message })
    end
    wrong(pictures.uri(red:sub(1, #red // 2)), 400, "")
    wrong(pictures.uri(red:sub(1, 20)), 400, "")
    wrong(pictures.uri "this is a text, not a picture", 400, "not a JPEG")
    wrong(pictures.uri "", 400, "")
    wrong("data:image/png;base64,@@@@", 400, "not base64")
    wrong("data:image/png", 400, "no comma")
    wrong("file:///etc/passwd", 400, "must be a data URI")
    wrong("media:1", 400, "must be a data URI")
    wrong("http://127.0.0.1/x.png", 400, "not enabled")
    wrong("https://example.com/x.png", 400, "not enabled")
    wrong(pictures.uri(pictures.file "own_huge.png"), 400, "")
    wrong(pictures.uri(pictures.plain(1, 5000, 1, 2, 3)), 400, "one side is more than")
    local status = app:ask(CHAT, look(pictures.uri(pictures.plain(1, 1, 9, 9, 9)), "?",
      { max_tokens = 2 }))
    t.eq(status, 200)
    local many = {}
    for i = 1, 200 do
      many[i] = { type = "image_url", image_url = { url = uri_of "images/small.png" } }
    end
    refused(t, app, { messages = { { role = "user", content = many } } },
      { 400, "messages[0].content[128].image_url", "one picture too many: a request may have 128" })
    local ok, answer = app:ask(CHAT, look(uri_of "images/red_circle.png"))
    t.eq({ ok, content(answer) }, { 200, "I see a red circle." })
    app.entry.pictures, app.entry.kept = nil, app.entry.pictures
    refused(t, app, look(uri_of "images/red_circle.png"),
      { 400, "messages[0].content[0].image_url", "the model 'moonlet' takes no pictures" })
    app.entry.pictures = app.entry.kept
  end)
end)

test("limits: bytes of a file, pictures, tokens", function(t)
  apiapp.run(t, function(app)
    local red, at = uri_of "images/red_circle.png", "messages[0].content[0].image_url"
    local body = look(red)
    table.insert(body.messages[1].content, 1, body.messages[1].content[1])
    table.insert(body.messages[1].content, 1, body.messages[1].content[1])
    refused(t, app, body, { 400, "messages[0].content[2].image_url", "may have 2" })
    refused(t, app, look(pictures.uri(pictures.plain(300, 300, 1, 2, 3))),
      { 413, at, "more than the limit of 50000" })
    -- The tokens of pictures are counted before anything is decoded.
    local decoded = app.entry.pictures:stats().image
    refused(t, app, look(red, ("one two three "):rep(20)), { 400, "messages", "does not fit" })
    t.eq(app.entry.pictures:stats().image, decoded)
  end, { media = { bytes = 50000 }, pictures = 2, context = 64 })
end)

test("children are killed while 20 requests are being decoded", function(t)
  apiapp.run(t, function(app)
    local bodies = {}
    for i = 1, 20 do
      bodies[i] = look(pictures.uri(pictures.plain(400, 300, i, 10 * i, 200)), nil,
        { max_tokens = 2 })
    end
    local killed, timer = 0, uv.new_timer()
    timer:start(1, 1, function()
      for _, pid in ipairs(app.entry.media.decoder:stats().children) do
        if killed < 4 and app.entry.media.decoder:stats().running > 0 then
          uv.kill(pid, "sigkill")
          killed = killed + 1
        end
      end
    end)
    local good, bad = 0, 0
    at_once(app, bodies, function(_, status, answer)
      if status == 200 then good = good + 1 end
      if status == 400 then
        bad = bad + 1
        t.match(answer.error.message, "messages%[0%]")
      end
    end)
    timer:close()
    t.ok(killed > 0)
    t.eq(good + bad, 20)
    t.ok(good >= 16, ("%d of 20 answered"):format(good))
    local status, answer = app:ask(CHAT, look(uri_of "images/red_circle.png"))
    t.eq({ status, content(answer) }, { 200, "I see a red circle." })
  end)
end)

test("clients that leave take their pictures with them", function(t)
  apiapp.run(t, function(app)
    local at = { address = "127.0.0.1", port = app.port }
    for i = 1, 8 do
      local body = json.encode(look(pictures.uri(pictures.plain(300, 300, i, i, i)), nil, {}))
      local peer = http_tools.connect(at)
      peer:send(("POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"):format(CHAT,
        #body, body))
      async.sleep(3 * i)
      peer.stream:close()
    end
    local own = app.entry.pictures
    for _ = 1, 500 do -- the tower ends the step that it has begun
      if not next(app.live or {}) and own.tower.free == 2 then break end
      async.sleep(10)
    end
    t.eq(next(app.live or {}), nil)
    t.eq(app.entry.batch.alive, 0)
    t.eq({ own.slots.free, #own.slots.waiting, own.tower.free }, { 8, 0, 2 })
    t.eq(next(app.entry.pictures.cache.pending), nil)
    local status = app:ask(CHAT, look(uri_of "images/red_circle.png"))
    t.eq(status, 200)
  end, { noisy = true })
end)

test("requests whose pictures are being prepared count as queued", function(t)
  apiapp.run(t, function(app)
    app.config.queue.requests = 3
    local bodies, counts = {}, {}
    for i = 1, 12 do
      bodies[i] = look(pictures.uri(pictures.plain(300, 300, i, i, i)), nil, { max_tokens = 1 })
    end
    at_once(app, bodies, function(_, status, answer)
      counts[status] = (counts[status] or 0) + 1
      if status == 429 then t.eq(answer.error.code, "queue_full") end
    end)
    t.ok((counts[200] or 0) >= 3, "some are answered")
    t.eq((counts[200] or 0) + (counts[429] or 0), 12)
    t.ok((counts[429] or 0) > 0, "others are told to come back")
  end)
end)

test("memory comes back", function(t)
  apiapp.run(t, function(app)
    local function round(from)
      for i = from, from + 9 do
        local status = app:ask(CHAT, look(pictures.uri(pictures.plain(200, 200, i, 3, 3)), nil,
          { max_tokens = 1 }))
        t.eq(status, 200)
      end
      collectgarbage()
      collectgarbage()
      return (select(2, perigee.live()))
    end
    local before = round(1)
    local after = round(50)
    after = math.min(after, round(100))
    t.ok(after <= before + (2 << 20), ("%d bytes, then %d"):format(before, after))
    t.ok(app.entry.pictures:stats().bytes <= 1 << 20)
  end, { feature_bytes = 1 << 20 })
end)

test("http URLs, if the configuration allows the host", function(t)
  local files = http.server { handler = function(request, response)
    if request.path == "/gone.png" then return response:send(404, {}, "") end
    return response:send(200, { ["content-type"] = "image/png" },
      pictures.read(MOONLET .. "images/red_circle.png"))
  end }
  local port = assert(files:listen { host = "127.0.0.1", port = 0 }).port
  apiapp.run(t, function(app)
    local base, at = ("http://127.0.0.1:%d/"):format(port), "messages[0].content[0].image_url"
    local status, answer = app:ask(CHAT, look(base .. "red.png"))
    t.eq({ status, content(answer) }, { 200, "I see a red circle." })
    refused(t, app, look(base .. "gone.png"), { 400, at, "status 404" })
    refused(t, app, look "http://example.com/x.png", { 400, at, "not allowed" })
    app.entry.media.urls = { hosts = { "127.0.0.1" } }
    refused(t, app, look(base .. "red.png"), { 400, at, "" })
    files:drain { seconds = 1 }
  end, { media = { urls = { hosts = { "127.0.0.1" }, private = true } } })
end)

test("hooks see names instead of pictures, and may drop, repeat and generate again", function(t)
  local seen = {}
  local hooks = { {
    normalize = function(req, chat)
      for _, part in ipairs(chat.messages[1].content) do
        if part.image_url then seen[#seen + 1] = part.image_url.url end
      end
      if req.user ~= "drop" then return nil end
      return { messages = { { role = "user", content = "Hello!" } } }
    end,
    generate = function(req, run)
      run(req, { silent = true })
      return run(req)
    end } }
  apiapp.run(t, function(app)
    local red = uri_of "images/red_circle.png"
    local status, answer = app:ask(CHAT, look(red))
    t.eq({ status, content(answer) }, { 200, "I see a red circle." })
    t.eq(seen, { "media:1" })
    status, answer = app:ask(CHAT, look(red, nil, { user = "drop" }))
    t.eq({ status, content(answer) }, { 200, named.hello.text })
    t.eq(answer.usage.prompt_tokens_details.image_tokens, nil)
  end, { hooks = hooks })
end)
