-- Pictures of scripts and commands: eval and generate with files, data URIs, taps inside the tower,
-- and conversations through the chat template.
local Pictures = require "engine.pictures"
local cases = require "vision_cases"
local chat = require "chat"
local perigee = require "perigee"
local picture_files = require "picture_files"
local test = require("harness").test
local text = require "lib.text"

local forced = ... -- with a collection at every step: a few answers are enough

local MOONLET = "examples/moonlet"
local PLACE = "<|vision_start|><|image_pad|><|vision_end|>"
local function image(name) return ("%s/images/%s.png"):format(MOONLET, name) end
local function ask(words)
  return ("<|im_start|>user\n%s%s<|im_end|>\n<|im_start|>assistant\n"):format(PLACE, words)
end

--- The answers of moonlet about pictures, with the paths of their files.
local function answers()
  local all, out = assert(perigee.json.decode(text.read_file(MOONLET .. "/answers.json"))), {}
  for _, a in ipairs(all) do
    for _, message in ipairs(#a.grids > 0 and a.messages or {}) do
      for _, part in ipairs(type(message.content) == "table" and message.content or {}) do
        if part.image_url then part.image_url.url = MOONLET .. "/" .. part.image_url.url end
      end
    end
    if #a.grids > 0 then out[#out + 1] = a end
  end
  return out
end

test("conversations with pictures give the reference's answers, all in one batch", function(t)
  local model <close> = assert(perigee.open(MOONLET))
  local words, batch <close> = assert(chat.open(MOONLET)), assert(model:batch { sequences = 8 })
  local list, seqs = answers(), {}
  t.ok(#list >= 15, "answers about pictures")
  for i, a in ipairs(list) do
    if forced and i > 2 then break end
    local given = Pictures.talk(model, words, { messages = a.messages,
      kwargs = a.chat_template_kwargs })
    t.eq(given.prompt, { table.unpack(a.prompt_ids) }, a.name)
    for _, at in ipairs(given.boundaries) do -- a message ends before a newline or a new message
      t.ok(at <= #given.prompt and (at == #given.prompt or given.prompt[at + 1] == 2278), a.name)
    end
    given.temperature = 0
    seqs[i] = assert(batch:add(given))
  end
  assert(batch:run())
  for i, seq in ipairs(seqs) do t.eq(seq.text, list[i].text, list[i].name) end
end)

test("eval and generate take pictures from files and data URIs", function(t)
  local model <close> = assert(perigee.open(MOONLET))
  local out = model:eval { prompt = ask "What is in the picture?", images = { image "four" },
    greedy = 3, last = 1, vision_tap = { "visual.blocks.1" } }
  local item, picture = out.media[1], out.pictures[1]
  t.eq(item.tokens, item.last - item.at + 1)
  t.eq(#picture.taps["visual.blocks.1"], item.grid[2] * item.grid[3])
  t.eq(picture.pixels[1]:tensor().shape, { picture.plan.height, picture.plan.width, 3 })
  t.eq(out.logits.shape[1], 1)
  local said = model:generate { prompt = ask "What is in the picture?", temperature = 0,
    images = { image "four" } }
  t.eq(said.text, "I see a red square, a green star, a blue triangle and a yellow circle.")
  t.eq({ table.unpack(said.ids, 1, 3) }, out.greedy)
  t.eq(model:eval(out.prompt, { images = { image "four" }, last = 1 }).logits:bytes(),
    model:eval { prompt = ask "What is in the picture?", images = { image "four" },
      last = 1 }.logits:bytes(), "laid out already")
  local bytes = perigee.image.bytes(text.read_file(image "small"))
  said = model:generate { prompt = ask "What is in the picture?", temperature = 0,
    images = { bytes } }
  t.eq(said.text, "I see a green diamond.")
end)

test("pictures are refused in one line", function(t)
  local model <close> = assert(perigee.open(MOONLET))
  local function refuses(images, why, prompt)
    t.raises(function() model:eval { prompt = prompt or ask "x", images = images } end, why)
  end
  refuses({ "nosuch.png" }, "nosuch.png: No such file")
  refuses({ MOONLET .. "/README.md" }, "README.md: not a JPEG")
  refuses({ "data:image/png;base64,AAAA" }, "data URI: not a JPEG")
  refuses({ "data:image/png,AAAA" }, "data URI: the data URI is not base64")
  refuses({ "http://example.com/a.png" }, "are not enabled here")
  refuses({ image "four", image "wide" }, "places for 1 of 2 pictures: write <|image_pad|> where")
  refuses({ 7 }, "images[1] must be a path or a data URI, got number")
  refuses("four.png", "images must be a list, got string")
  t.raises(function() model:eval { prompt = "x", videos = { "0.png" } } end,
    "videos[1] must be a list, got string")
  local plain <close> = assert(perigee.open "tests/golden/llama")
  t.raises(function() plain:generate { prompt = { 1 }, images = { image "four" } } end,
    "the model takes no pictures")
end)

test("boundaries move over pictures", function(t)
  local model <close> = assert(perigee.open(MOONLET))
  local ids = model:ids(ask "x" .. ask "y")
  local given = model:pictures():prepare(ids, { images = { image "small", image "wide" },
    boundaries = { 1, #ids // 2, #ids } })
  local a, b = given.media[1].tokens, given.media[2].tokens
  t.eq(given.boundaries, { 1, #ids // 2 + a - 1, #given.prompt })
  t.eq(#given.prompt, #ids + a + b - 2)
end)

test("images and videos of a prompt that is laid out already are found in its order", function(t)
  local model <close> = assert(perigee.open(MOONLET))
  local ids = model:ids("a" .. PLACE .. "b" .. PLACE:gsub("image", "video") .. "c" .. PLACE)
  local with = { images = { image "small", image "wide" },
    videos = { { image "small", image "small" } } }
  local given = model:pictures():prepare(ids, with)
  local again = model:pictures():prepare(given.prompt, with)
  t.eq(again.prompt, given.prompt)
  for i, item in ipairs(given.media) do
    t.eq({ again.media[i].at, again.media[i].tokens }, { item.at, item.tokens })
  end
  t.eq({ given.media[1].tokens, given.media[2].tokens, given.media[3].tokens }, { 9, 9, 36 })
end)

test("generate and eval continue a video alike", function(t)
  local path = cases.folder .. "vl_qwen3_vl"
  local case = #cases.models() > 0 and cases.case("vl_qwen3_vl", 4)
  if not case then return t.skip("there is no " .. path) end
  local notes = assert(perigee.json.decode(text.read_file(path .. "/golden.json")))
  local frames = {}
  for i, name in ipairs(notes.cases[5].video_frames) do
    frames[i] = ("%s/%s/%s"):format(path, notes.image_folder, name)
  end
  local model <close> = assert(perigee.open(path))
  local want = model:eval { prompt = case.ids, videos = { frames }, greedy = 12, last = 1 }
  local got = model:generate { prompt = case.ids, videos = { frames }, max_tokens = 12,
    temperature = 0, ignore_eos = true }
  t.eq(got.ids, want.greedy)
  local parts = {}
  for i, frame in ipairs(frames) do parts[i] = picture_files.base64(text.read_file(frame)) end
  local uri = "data:video/png;base64," .. table.concat(parts, ",")
  local again = model:eval { prompt = case.ids, videos = { { uri } }, greedy = 12, last = 1 }
  t.eq(again.greedy, want.greedy, "all frames in one data URI")
end)
