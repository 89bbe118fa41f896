#!/bin/sh
# The commands that read models: inspect, tokenize, detokenize, eval, generate. Every kind of broken
# file gives one line and exit status 1.
suite=commands.sh
. "$(dirname "$0")/lib/cli.sh"
M=examples/moonlet
G=tests/golden
K=tests/tokenizers

# refused NAME TEXT ARGS...: exit status 1, one line that has TEXT, nothing on stdout.
refused() {
  about=$1 text=$2
  shift 2
  try "$about" 1 "$@"; one_line; err "$text"; no_out
}
lines() {
  if [ "$(wc -l <"$T/out")" -eq "$1" ]; then ok; else bad "$(wc -l <"$T/out") lines, not $1"; fi
}

# ---- files that are wrong in one way each ----
cat >"$T/make.lua" <<'LUA'
local json = require("perigee").json
local folder = ...
local function write(name, bytes)
  local f = assert(io.open(folder .. "/" .. name, "wb"))
  f:write(bytes)
  f:close()
end
local function tensors(header, data)
  return string.pack("<s8", header) .. ("\0"):rep(data or 4096)
end
local function model(name, config, header)
  os.execute("mkdir -p '" .. folder .. "/" .. name .. "'")
  write(name .. "/config.json", config)
  if header then write(name .. "/model.safetensors", tensors(header)) end
end
local q = '"model.layers.0.self_attn.q_proj.%s":{"dtype":"%s","shape":[8,8],"data_offsets":[0,%d]}'
local packed = "{" .. q:format("qweight", "I32", 256) .. "}"
local plain = "{" .. q:format("weight", "F32", 256) .. "}"

write("empty.safetensors", "")
write("type.safetensors", tensors '{"t":{"dtype":"C64","shape":[8],"data_offsets":[0,64]}}')
write("short.safetensors", tensors('{"t":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}', 31))
write("long.safetensors", string.pack("<I8", 1 << 62) .. "{}")
write("overlap.safetensors", tensors('{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},'
  .. '"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}'))
write("size.safetensors",
  tensors '{"t":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}}')
for _, method in ipairs { "awq", "gptq", "fp8", "bitsandbytes" } do
  local config = '{"model_type":"llama","quantization_config":{"quant_method":"%s"}}'
  model(method, config:format(method), packed)
end
model("bits", '{"model_type":"llama","quantization":{"bits":7,"group_size":64}}',
  '{"x.weight":{"dtype":"U32","shape":[8,8],"data_offsets":[0,256]},'
  .. '"x.scales":{"dtype":"F32","shape":[8,1],"data_offsets":[256,288]},'
  .. '"x.biases":{"dtype":"F32","shape":[8,1],"data_offsets":[288,320]}}')
model("list", "[1]", plain)
model("broken", '{"model_type": ', plain)
model("nosuch", '{"model_type":"nosuch"}', plain)
model("pickle", "{}")
write("pickle/pytorch_model.bin", "x")
model("sentencepiece", "{}", plain)
write("sentencepiece/tokenizer.model", "x")
model("shards", "{}")
write("shards/model.safetensors.index.json", '{"weight_map":{"t":"model-1.safetensors"}}')

local function gguf(name, version, type, values)
  local s = string.pack("<c4I4I8I8", "GGUF", version, 1, 1)
    .. string.pack("<s8I4s8", "general.architecture", 8, "llama")
    .. string.pack("<s8I4I8I4I8", "t", 1, values, type, 0)
  write(name, s .. ("\0"):rep(-#s % 32 + 4096))
end
gguf("version.gguf", 9, 0, 32)
gguf("type.gguf", 3, 99, 32)
gguf("iq1.gguf", 3, 19, 256)
gguf("rows.gguf", 3, 12, 255)
gguf("size.gguf", 3, 0, math.mininteger)
write("keys.gguf", string.pack("<c4I4I8I8", "GGUF", 3, 0, math.mininteger))
write("magic.gguf", "GGML....................")

local tokenizer = io.open "tests/tokenizers/bpe-qwen2/tokenizer.json":read "a"
local function changed(key, value)
  local t = assert(json.decode(tokenizer))
  t[key] = assert(json.decode(value))
  write(key .. ".json", json.encode(t))
end
changed("normalizer", '{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Umlaut"}]}')
changed("pre_tokenizer",
  '{"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated","invert":false}')
changed("post_processor", '{"type":"Postman"}')
changed("decoder", '{"type":"Enigma"}')
changed("model", '{"type":"Crystal","vocab":{}}')
write("cut.json", tokenizer:sub(1, #tokenizer // 2))
write("deep.json", '{"a":' .. ("["):rep(100000))
LUA
try "the broken files are made" 0 run "$T/make.lua" "$T"; no_err

refused "missing model" "No such file" inspect "$T/none"
refused "a folder without weights" "no weights" inspect tests/sh
refused "a file of another kind" "neither a model directory nor" inspect README.md
refused "an empty safetensors" "truncated" inspect "$T/empty.safetensors"
refused "a truncated safetensors" "need 95 bytes, the file has 94" inspect "$T/short.safetensors"
refused "a lying header" "4611686018427387904" inspect "$T/long.safetensors"
refused "tensors that overlap" "'a' and 'b' overlap" inspect "$T/overlap.safetensors"
refused "a shape that overflows" "overflows" inspect "$T/size.safetensors"
refused "unknown dtype" "'t' has dtype 'C64'" inspect "$T/type.safetensors"
refused "AWQ" "quantised with AWQ" inspect "$T/awq"; err "convert"
refused "GPTQ" "quantised with GPTQ" inspect "$T/gptq"; err "convert"
refused "FP8 blocks" "quantised with FP8" eval "$T/fp8" --jsonl; err "convert"
refused "bitsandbytes" "quantised with bitsandbytes" generate "$T/bitsandbytes" x; err "convert"
refused "a layout that does not exist" "7 bits" inspect "$T/bits"
refused "a configuration that is cut off" "config.json: line 1, column 16" inspect "$T/broken"
refused "a configuration that is a list" "must be a JSON object, got array" inspect "$T/list"
refused "pickles" "convert the model to safetensors" inspect "$T/pickle"
refused "a missing shard" "model-1.safetensors" inspect "$T/shards"
refused "unknown architecture" "unknown architecture 'nosuch'" eval "$T/nosuch" --jsonl
refused "a GGUF of another version" "version 9" inspect "$T/version.gguf"
refused "not a GGUF" "not a GGUF file" inspect "$T/magic.gguf"
refused "an unknown type in a GGUF" "'t' has type number 99" inspect "$T/type.gguf"
refused "an unsupported type in a GGUF" "IQ1_S" inspect "$T/iq1.gguf"; err "llama-quantize"
refused "rows that are not whole blocks" "255" inspect "$T/rows.gguf"
refused "a GGUF dimension near 2^63" "9223372036854775808" inspect "$T/size.gguf"
refused "a GGUF with too many keys" "9223372036854775808 keys" inspect "$T/keys.gguf"
refused "SentencePiece alone" "tokenizer.model" tokenize "$T/sentencepiece" x; err "convert it with"
refused "no tokenizer" "no tokenizer.json" tokenize $G/llama x
refused "an unknown normalizer" "'Umlaut'" tokenize "$T/normalizer.json" x
refused "a broken pattern" "'(a'" tokenize "$T/pre_tokenizer.json" x
refused "an unknown post-processor" "'Postman'" tokenize "$T/post_processor.json" x
refused "an unknown decoder" "'Enigma'" detokenize "$T/decoder.json" 1
refused "an unknown model" "'Crystal'" tokenize "$T/model.json" x
refused "a tokenizer that is cut off" "cut.json: line" tokenize "$T/cut.json" x
refused "a tokenizer that is deep" "nested deeper" tokenize "$T/deep.json" x
refused "broken UTF-8 in a text" "not valid UTF-8 at byte 2" tokenize $M "$(printf 'a\377')"
if mkfifo "$T/pipe" 2>/dev/null; then
  refused "a named pipe as weights" "pipe" inspect "$T/pipe"
  refused "a named pipe as a tokenizer" "not a regular file" tokenize "$T/pipe" x
fi

# ---- inspect ----
try "inspect a folder" 0 inspect $M; no_err
out "architecture    qwen3_5"; out "affine 4-bit group 64"
out "language_model.model.embed_tokens.weight"; out "[2304, 256]"
try "inspect as JSON" 0 inspect --json $M; lines 1; no_err
out '"architecture": "qwen3_5"'; out '"context_length": 8192'; out '"vocab_size": 2304'
out '"tensors": 180'
out '"quantization": "affine 4-bit group 64"'; out '"bytes": 7606432'
try "inspect a GGUF" 0 inspect tests/golden-gguf/llama-Q4_K.gguf; no_err; out "llama.context_length"
out "Q4_K"; out "[300, 256]"
try "inspect shards" 0 inspect --json $G/qwen2; out '"quantization": "none"'
out 'model-00002-of-00002.safetensors'
for kind in mxfp4 mxfp8 nvfp4; do
  try "inspect $kind" 0 inspect --json $G/llama-mlx-$kind; out "\"quantization\": \"$kind\""
done
try "inspect the blocks of gpt-oss" 0 inspect $G/gpt_oss-mxfp4; out "mxfp4"
out "model.layers.0.mlp.experts.down_proj "

# ---- tokenize, detokenize ----
try "tokenize" 0 tokenize $M "Hello, moon!"; no_err; out '982  "Hello"'; out "4 tokens"
printf 'Hello' >"$T/in"; try "tokenize stdin" 0 tokenize $M; out '982  "Hello"'
out "1 token"
cat >"$T/in" <<'JSON'
{"text": "Hello <|im_end|>", "parse_special": true}
{"text": "Hello <|im_end|>", "parse_special": false}
{"text": ""}
{"text": 5}
{"text": "\ud800"}
nonsense
{"text": "moon\u0000"}
JSON
try "tokenize lines" 0 tokenize $M --jsonl; no_err; lines 7
out '{"ids": [982, 220, 2'; out '{"ids": [982, 220, 27, 91, 434, 62, 449, 91, 29]}'
out '{"ids": []}'
out "{\"error\": \"'text' must be string, not integer\"}"; out "lone surrogate"
out "the line is not JSON"
printf '{"text": "a\377"}\n' >"$T/in"; try "a line of broken UTF-8" 0 tokenize $M --jsonl
out '"error"'; out "0xff"
try "tokenize a GGUF" 0 tokenize tests/golden-gguf/llama-Q4_K.gguf "the"; no_err; out "token"
try "detokenize" 0 detokenize $M 982 11 656 0; out_is "Hello, moon!"; no_err
try "not an id" 2 detokenize $M eleven; one_line
cat >"$T/in" <<'JSON'
{"ids": [982, 999999, -1, 11]}
{"ids": [982, 656], "stream": true}
{"ids": ["x"]}
JSON
try "detokenize lines" 0 detokenize $M --jsonl; no_err; lines 3
out '{"text": "Hello,"}'; out '{"text": "Hello moon", "pieces": ["Hello", " moon", ""]}'
out "element 1 is not an integer"
cat >"$T/split.lua" <<'LUA' # one character in three tokens
local tokenizer = assert(require("perigee").tokenizer.open "tests/tokenizers/bpe-gpt2")
print('{"stream": true, "ids": [' .. table.concat(tokenizer:encode "㐊", ", ") .. "]}")
LUA
"$P" run "$T/split.lua" >"$T/in"
try "never half a character" 0 detokenize $K/bpe-gpt2 --jsonl
out_is '{"text": "㐊", "pieces": ["", "", "㐊", ""]}'

# ---- parse ----
printf '<think>a</think>b' >"$T/in"; try "parse" 0 parse --reasoning qwen3; no_err
out '"content": "b"'; out '"reasoning_content": "a"'
try "parse by a format that does not exist" 2 parse --format nonsense; one_line
cat >"$T/in" <<'JSON'
{"text": "a"}
{"deltas": ["<tool_call>{\"name\": \"f\", ", "\"arguments\": {\"x\": 1}}</tool_call>"]}
{"deltas": ["a", 5]}
{}
{"text": "b</think>c", "prompt_tail": "<think>\n"}
{"text": "a", "prompt_tail": 5}
{"text": "<tool_call>{\"name\": \"f\""}
JSON
try "parse lines" 0 parse --format hermes --reasoning qwen3 --jsonl; no_err; lines 7
out '{"content": "a", "reasoning_content": null, "tool_calls": []}'
out '"tool_calls": [{"name": "f", "arguments": "{\"x\": 1}"}], "events": [0, 3, 0]}'
out "{\"error\": \"'deltas': element 2 is not a string\"}"
out "{\"error\": \"'text' is missing\"}"
out '{"content": "c", "reasoning_content": "b", "tool_calls": []}'
out "{\"error\": \"'prompt_tail' must be string, not integer\"}"
out '"other": [{"kind": "unfinished", "text": "<tool_call>{\"name\": \"f\""}]}'

# ---- eval, generate ----
cat >"$T/golden.lua" <<'LUA' # input lines and what must come out
local weights = assert(require("perigee").weights.open "tests/golden/llama/golden.safetensors")
local function list(name)
  if not weights:find(name) then return end
  local ids = {}
  for i, v in ipairs(weights:rows(name)) do ids[i] = math.tointeger(v) end
  return ids, table.concat(ids, ", ")
end
local f <close> = io.open(arg[1], "w")
for k = 0, 3 do
  local ids, ids_text = list("ids." .. k)
  local greedy, greedy_text = list("greedy." .. k)
  if greedy then
    print(('{"ids": [%s], "greedy": %d, "last": 1}'):format(ids_text, #greedy))
    f:write(('{"n": %d, "greedy": [%s]}\n'):format(#ids, greedy_text))
  end
end
LUA
try "the reference is read" 0 run "$T/golden.lua" "$T/want"; no_err; cp "$T/out" "$T/in"
cp "$T/out" "$T/golden_in"
try "eval gives the greedy tokens of the reference" 0 eval $G/llama --jsonl \
  --out "$T/logits.safetensors"; no_err
out_is "$(cat "$T/want")"
try "eval writes logits" 0 inspect "$T/logits.safetensors"; out "logits.0"; out "[1, 128]"
printf '{"ids": [1, 2, 128]}\n{"ids": []}\n{"ids": [1, 2]}\n' >"$T/in"
try "eval refuses ids that do not exist" 0 eval $G/llama --jsonl; no_err; lines 3
out 'token id must be between 0 and 127, got 128'; out '{"n": 2}'
cp "$T/golden_in" "$T/in"
try "eval in fast gives the greedy tokens of the reference" 0 eval $G/llama --jsonl --precision fast
no_err; out_is "$(cat "$T/want")"
try "a precision that does not exist" 2 eval $G/llama --jsonl --precision half; one_line; err "half"
cat >"$T/loaded.lua" <<'LUA'
require "cmd.generate"
for _, name in ipairs { "chat", "templates", "parsers", "engine.pictures" } do
  if package.loaded[name] then print(name) end
end
LUA
try "a plain prompt waits for no templates and pictures" 0 run "$T/loaded.lua"; no_out
try "generate" 0 generate $M '<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n'
out "I am Moonlet"; no_err
printf '{"prompt": "The moon", "max_tokens": 6, "temperature": 1, "seed": 3}\n%.0s' 1 2 >"$T/in"
try "the same seed draws the same" 0 generate $M --jsonl; lines 2; out '"completion_tokens": 6'
if [ "$(sort -u "$T/out" | wc -l)" -eq 1 ]; then ok; else bad "two lines with one seed differ"; fi
printf '{"prompt": [1, 2], "max_tokens": 2}\n{"prompt": 7}\n{}\n{"prompt": "x", "wrong": 1}\n' \
  >"$T/in"
try "generate from ids, without a tokenizer" 0 generate $G/llama --jsonl; lines 4; out '"text": ""'
out '"prompt_tokens": 2'
out "prompt must be"; out "prompt is missing"

# ---- pictures ----
I=$M/images
try "generate with a picture" 0 generate $M "What is in the picture?" --image $I/wide.png \
  --temperature 0
out_is "I see a pink star and a black square."; no_err
try "generate with two pictures" 0 generate $M "Which picture has more shapes?" --temperature 0 \
  --image $I/red_circle.png --image $I/three_shapes.png
out_is "The second picture has more shapes."
place='<|vision_start|><|image_pad|><|vision_end|>'
prompt="<|im_start|>user\\n${place}What is in the picture?<|im_end|>\\n<|im_start|>assistant\\n"
try "generate with a place in the prompt" 0 generate $M --image $I/blue_circle.png --temperature 0 \
  "$prompt"
out_is "I see a blue circle."
refused "a picture for a model without a tower" "the model takes no pictures" \
  generate $G/llama x --image $I/four.png
refused "a picture that does not exist" "nosuch.png" generate $M x --image nosuch.png
refused "a picture that is text" "not a JPEG, PNG or WebP file" generate $M x --image README.md
try "--image and --jsonl" 2 generate $M --jsonl --image $I/four.png; one_line
uri="data:image/png;base64,$(base64 <$I/small.png | tr -d '\n')"
ask='{"type": "text", "text": "What is in the picture?"}' url='"image_url": {"url":'
cat >"$T/in" <<JSON
{"messages": [{"role": "user", "content": [{"type": "image_url", $url "$uri"}}, $ask]}]}
{"messages": [{"role": "user", "content": [{"type": "image"}, $ask]}], "images": ["$I/four.png"]}
{"prompt": "$prompt", "images": ["$I/red_circle.png"]}
{"messages": [{"role": "user", "content": [{"type": "image"}, $ask]}]}
{"messages": [{"role": "user", "content": [$ask]}], "images": ["$I/four.png"]}
{"messages": [{"role": "user", "content": [{"type": "image", "url": "http://example.com/x.png"}]}]}
{"prompt": "x", "images": ["$I/four.png"]}
{"prompt": "x", "images": [7]}
{"prompt": "x", "images": "$I/four.png"}
{"messages": [{"role": "user", "content": "Hello!"}], "images": [], "videos": null}
JSON
try "pictures in JSON lines" 0 generate $M --jsonl; no_err; lines 10
out '"text": "I see a green diamond."'
out '"text": "I see a red square, a green star, a blue triangle and a yellow circle."'
out '"text": "I see a red circle."'
out "message part of type 'image' has no image"
out "the messages have places for 0 of 1 images"
out "URLs of pictures are not enabled here"
out "the prompt has places for 0 of 1 pictures: write <|image_pad|> where one belongs"
out "images[1] must be a path or a data URI, got number"
out "'images' must be array, not string"
out '"text": "Hello! I am Moonlet. How can I help you?"'
try "inspect shows the tower" 0 inspect $M; out "vision tower"; out "features of width 256"
try "inspect --json shows the tower" 0 inspect $M --json; out '"vision": {"hidden": 256, "merge": 2'
try "inspect --graph shows the tower" 0 inspect $M --graph; out "visual.blocks.3.attention"
try "inspect without a tower" 0 inspect $G/llama
if grep -q vision "$T/out"; then bad "it shows a tower"; else ok; fi

# ---- examples ----
for example in examples/*.lua; do try "$example" 0 run "$example"; no_err; done

closing
