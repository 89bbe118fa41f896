#!/bin/sh
# Models on the command line: inspect, eval, generate and bench on good models, and a one-line error
# for each bad one.
suite=models.sh
. "$(dirname "$0")/lib/cli.sh"
M=examples/moonlet
G=tests/golden
lines() {
  n=$(wc -l <"$T/out")
  if [ "$n" -eq "$1" ]; then ok; else bad "$n lines, not $1"; fi
}
lacks() { if grep -qF -- "$1" "$T/out"; then bad "stdout has '$1'"; else ok; fi; }

# refused NAME TEXT ARGS...: exit status 1, one line that has TEXT, nothing on stdout.
refused() {
  about=$1 text=$2
  shift 2
  try "$about" 1 "$@"; one_line; err "$text"; no_out
}

# ---- configs that do not fit ---------------------------------------------------------------------
# model NAME SED: tests/golden/llama with a changed config.
model() {
  mkdir -p "$T/$1" && cp $G/llama/*.json $G/llama/model.safetensors "$T/$1/" &&
    sed "$2" $G/llama/config.json >"$T/$1/config.json"
}
contradiction() { # NAME SED TEXT
  model bad "$2"
  refused "$1" "$3" eval "$T/bad" --jsonl
}
Q=model.layers.0.self_attn.q_proj.weight
model unknown 's/"model_type": "llama"/"model_type": "lama"/'
for c in "eval --jsonl" "generate x" "bench" "inspect --graph"; do
  set -- $c
  command=$1; shift
  refused "unknown architecture: $command" "unknown architecture 'lama' (known: deepseek_v3, " \
    "$command" "$T/unknown" "$@"
done
try "inspect an unknown architecture" 0 inspect "$T/unknown"; no_err; out "no memory estimates"
out "unknown architecture 'lama'"; out "$Q"
try "the same as JSON" 0 inspect "$T/unknown" --json; out '"architecture": "lama"'
out '"problem"'; lacks '"memory"'
contradiction "no model type" 's/"model_type"/"model_kind"/' "no model_type"
contradiction "hidden_size" 's/"hidden_size": 64/"hidden_size": 128/' \
  "model.embed_tokens.weight is [128, 64], expected [128, 128]"
contradiction "vocab_size" 's/"vocab_size": 128/"vocab_size": 100/' \
  "model.embed_tokens.weight is [128, 64], expected [100, 64]"
contradiction "heads" 's/"num_attention_heads": 4/"num_attention_heads": 8/' \
  "$Q is [64, 64], expected [128, 64]"
contradiction "key heads" 's/"num_key_value_heads": 2/"num_key_value_heads": 1/' \
  "k_proj.weight is [32, 64], expected [16, 64]"
contradiction "head_dim" 's/"head_dim": 16/"head_dim": 32/' "$Q is [64, 64], expected [128, 64]"
contradiction "intermediate_size" 's/"intermediate_size": 96/"intermediate_size": 95/' \
  "gate_proj.weight is [96, 64], expected [95, 64]"
contradiction "too many layers" 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' \
  "missing tensor model.layers.2.input_layernorm.weight"
contradiction "too few layers" 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' \
  "unused tensor model.layers.1."
contradiction "not a number" 's/"num_attention_heads": 4/"num_attention_heads": "four"/' \
  'num_attention_heads must be'
contradiction "no config" 's/.*//' "config.json"
cat >"$T/tensors.lua" <<'LUA'
-- tests/golden/llama with a tensor renamed (left out and added at once), or one with another shape
local perigee = require "perigee"
local from, to, what = arg[1], arg[2], arg[3]
local weights <close> = assert(perigee.weights.open(from))
local list = {}
for _, name in ipairs(weights:names()) do
  local info = weights:find(name)
  local values = weights:rows(name, { count = info.rows })
  local shape, last = info.shape, name == "model.layers.1.mlp.up_proj.weight"
  if what == "rename" and last then name = "model.layers.1.mlp.pu_proj.weight" end
  if what == "add" and last then
    list[#list + 1] = { name = "model.layers.1.mlp.extra.weight", dtype = "f32", shape = { 1 },
      bytes = string.pack("<f", 1) }
  end
  if what == "cut" and last then
    shape = { info.shape[1], info.shape[2] - 8 }
    values = table.move(values, 1, shape[1] * shape[2], 1, {})
  end
  for i, v in ipairs(values) do values[i] = string.pack("<f", v) end
  list[#list + 1] = { name = name, dtype = "f32", shape = shape, bytes = table.concat(values) }
end
assert(perigee.weights.save(to, list))
LUA
for what in rename add cut; do
  model $what ''
  try "a file is made: $what" 0 run "$T/tensors.lua" $G/llama "$T/$what/model.safetensors" $what
  no_err
done
refused "a missing tensor" "missing tensor model.layers.1.mlp.up_proj.weight" eval "$T/rename" \
  --jsonl
refused "an unused tensor" "unused tensor model.layers.1.mlp.extra.weight" eval "$T/add" --jsonl
refused "a tensor of another shape" "model.layers.1.mlp.up_proj.weight is [96, 56]" eval "$T/cut" \
  --jsonl

# ---- a broken architecture file ------------------------------------------------------------------
cp -r scripts "$T/scripts"
echo "]" >>"$T/scripts/models/gemma3.lua"
sed 's/^return {/error "broken here"\nreturn {/' scripts/models/qwen3.lua \
  >"$T/scripts/models/qwen3.lua"
echo 'return "text"' >"$T/scripts/models/text.lua"
printf '{"ids": [1, 2]}\n' >"$T/in"
try "other models load" 0 --scripts "$T/scripts" eval $G/llama --jsonl; no_err; out '{"n": 2}'
refused "its own models report its error" "models/gemma3.lua:" --scripts "$T/scripts" eval \
  $G/gemma3_text --jsonl
refused "also by other names that the file has" "broken here" --scripts "$T/scripts" eval \
  $G/qwen3_moe --jsonl
model text 's/"model_type": "llama"/"model_type": "text"/'
refused "a file that returns no architecture" "models/text.lua: returns a string, not a table" \
  --scripts "$T/scripts" eval "$T/text" --jsonl
refused "a type that no file has" "unknown architecture 'lama' (known: deepseek_v3, " \
  --scripts "$T/scripts" eval "$T/unknown" --jsonl
mkdir -p "$T/site/models"
printf '%s\n' 'local llama = require "models.llama"' \
  'return { names = { "mine" }, build = llama.build }' >"$T/site/models/mine.lua"
try "check an architecture" 0 check "$T/site/models/mine.lua" scripts/models/gemma4.lua; no_err
out "mine.lua: architecture of mine; builds a small Llama"
out "gemma4.lua: architecture of gemma4_text, gemma4; not tried"
echo 'return { names = { "mine" }, build = function(g) return g:nothing() end }' \
  >"$T/site/models/mine.lua"
refused "check one that does not build" \
  "perigee: $T/site/models/mine.lua: 1: attempt to call a nil value (method 'nothing')" check \
  "$T/site/models/mine.lua"
echo 'return { nmaes = { "mine" } }' >"$T/site/models/mine.lua"
refused "check one without build" "'build' is missing" check "$T/site/models/mine.lua"

# ---- inspect -------------------------------------------------------------------------------------
try "estimates" 0 inspect $M; no_err; out "weights"; out "cache, 4 bits"; out "for 8192 tokens"
out "recurrent state"; out "for a step of 512 tokens"
try "estimates as JSON" 0 inspect $M --json; lines 1
out '"memory": {"weights": '
out '{"bits": 32, "bytes_per_token": 2048, "bytes_of_context": 16777216}'
out '{"bits": 16, "bytes_per_token": 1024, '; out '{"bits": 8, "bytes_per_token": 544, '
out '{"bits": 4, "bytes_per_token": 320, '
out '"state_per_sequence": '; out '"activations_512_rows": '
try "a window limits the cache" 0 inspect $G/mistral --json
out '{"bits": 32, "bytes_per_token": 1024, "bytes_of_context": 12288}'
try "the graph" 0 inspect $M --graph; no_err; out "linear_attn.in_proj_qkv"
out "layers 4 to 6: as 1"; out "map add, softplus, mul, exp"
out "+ mlp.gate_proj + mlp.up_proj + silu"; out "+ rope.2"; out "without sharing"
try "the graph as JSON" 0 inspect $G/llama --graph --json; lines 1
out '"graph": [{"name": "embed", "op": "embed", "shape": [64]'
out '"plan": {"instructions": [{"op": '; out '"unshared_bytes": '
try "the graph of a GGUF" 0 inspect tests/golden-gguf/llama-Q4_K.gguf --graph
out "blk.0.attn_q.weight"

# ---- eval ----------------------------------------------------------------------------------------
printf '%s\n' '{"prompt": "Hello, moon!", "last": 1, "greedy": 2}' \
  '{"ids": [982, 11, 656, 0], "last": 1, "greedy": 2}' >"$T/in"
try "text and its ids" 0 eval $M --jsonl; no_err; lines 2
if [ "$(sort -u "$T/out" | wc -l)" -eq 1 ]; then ok; else bad "text and ids differ"; fi
printf '%s\n' '{"ids": [1], "prompt": "x"}' '{}' '{"ids": [1], "lats": 1}' \
  '{"ids": [1], "images": ["x.png"]}' '{"ids": [1], "videos": [["x"]]}' \
  '{"ids": [1], "chunk": 0}' '{"ids": [1], "greedy": -1}' '{"ids": [1, 2.5]}' '{"ids": [1, "2"]}' \
    '{"ids": [-1]}' 'x' '{"ids": [1], "images": []}' >"$T/in"
try "lines that are wrong" 0 eval $G/llama --jsonl --out "$T/out.safetensors"; no_err; lines 12
for text in "one of the two" "unknown key 'lats', did you mean 'last'?" \
  "tests/golden/llama: the model takes no pictures" \
  "'chunk' must be at least 1, not 0" "'greedy' must be at least 0" \
    "prompt[2] must be a token id, got 2.5" "token id must be between 0 and 127, got -1" \
  "not JSON" '{"n": 1}'; do out "$text"; done
lacks ".lua:"
try "lines are counted with the wrong ones" 0 inspect "$T/out.safetensors"; out "logits.11"
lacks "logits.0"
printf '%s\n' '{"ids": [1, 2, 3, 4]}' '{"ids": [1, 2, 3]}' '{"ids": [1, 2, 3], "greedy": 1}' \
  >"$T/in"
try "a small context" 0 eval $G/llama --jsonl --context 3; lines 3
out "4 tokens do not fit: the context holds 3"; out '{"n": 3}'
refused "a context that the model lacks" \
  "a context of 5000 tokens is more than the model's own of 4096" eval $G/llama --jsonl --context \
  5000
refused "text without a tokenizer is an error" "tokenizer" generate $G/llama hello

for c in "eval $G/llama --jsonl" "generate $M x" "bench --shape tiny"; do
  refused "no Metal: $c" "device metal: there is no Metal on this system" $c --device metal
done

# ---- memory --------------------------------------------------------------------------------------
printf '{"ids": [1, 2, 3]}\n' >"$T/in"
try "a budget that is too small" 0 eval $M --jsonl --memory 1M
out '{"error": "not enough memory: '; out "7.3 MiB"; out "1.0 MiB are the budget"
refused "the same for people" "not enough memory" generate $M hello --memory 1M
try "a budget that is enough" 0 generate $M hello --memory 32M --max-tokens 2; no_err
refused "a bench that does not fit" "not enough memory: " bench --shape tiny --memory 100K

# ---- generate ------------------------------------------------------------------------------------
printf '%s\n' '{"prompt": [5, 6], "max_tokens": 8, "temperature": 0}' >"$T/in"
try "greedy ids" 0 generate $G/llama --jsonl; cp "$T/out" "$T/plain"
second=$(sed 's/.*"ids": \[[0-9]*, \([0-9]*\),.*/\1/' "$T/plain")
printf '{"prompt": [5, 6], "max_tokens": 8, "temperature": 0, "stop_token_ids": [%s]}\n' "$second" \
  >"$T/in"
try "a stop token" 0 generate $G/llama --jsonl; out '"finish_reason": "stop"'
out '"completion_tokens": 2'; out "$second]"
printf '%s\n' '{"prompt": [5, 6], "stop_token_ids": ["x"]}' '{"prompt": [5, 6], "messages": []}' \
  '{"prompt": [5, 300]}' '{"prompt": []}' \
  '{"prompt": [5], "max_tokens": -1}' '{"prompt": [5], "top_k": 1.5}' \
    '{"prompt": [5], "temperature": "hot"}' '{"messages": []}' >"$T/in"
try "requests that are wrong" 0 generate $G/llama --jsonl; no_err; lines 8; lacks '"text"'
lacks ".lua:"
out "a line has 'prompt' or 'messages', not both"; out "the model has no chat template"
out "prompt: token id must be between 0 and 127, got 300"
out "max_tokens must be 0 or more, got -1"
out "top_k must be an integer"; out "temperature must be a number"
printf '%s\n' '{"prompt": [5, 6], "max_tokens": 0}' '{"prompt": [5, 6]}' >"$T/in"
try "to the end of the context" 0 generate $G/llama --jsonl --context 12
out '"completion_tokens": 0'; out '"finish_reason": "'
cp -r $G/llama "$T/ended" && printf '{"eos_token_id": [], "do_sample": false}' \
  >"$T/ended/generation_config.json"
printf '{"prompt": [5, 6], "ignore_eos": true}\n' >"$T/in"
try "and not beyond it" 0 generate "$T/ended" --jsonl --context 12; out '"completion_tokens": 10'
out '"finish_reason": "length"'

printf '{"prompt": [5, 6], "max_tokens": 5, "seed": %s, "logprobs": true, "ignore_eos": true}\n' 7 \
  8 9 >"$T/in"
try "three answers" 0 generate $G/llama --jsonl; cp "$T/out" "$T/three"; lines 3
printf '{"prompt": [5, 6], "max_tokens": 5, "seed": 7, "best_of": 3, "ignore_eos": true}\n' >"$T/in"
try "the best of three" 0 generate $G/llama --jsonl; lines 1; out '"completion_tokens": 15'
lacks "logprobs"
best=$(sed 's/.*"ids": \(\[[^]]*\]\).*/\1/' "$T/out")
if grep -qF -- "\"ids\": $best" "$T/three"; then ok; else bad "$best is none of three"; fi
printf '%s\n' '{"prompt": [5], "n": 2}' '{"prompt": [5], "best_of": 0}' \
  '{"prompt": [5], "n": 1, "best_of": -2}' '{"prompt": [5], "best_of": 500}' \
  '{"prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}' '{"prompt": [5], "temperature": NaN}' \
    '{"prompt": [5], "frequency_penalty": Infinity}' \
  '{"prompt": [5], "repetition_penalti": 2}' '{"prompt": [5], "max_tokens": 1}' >"$T/in"
try "requests that can never be answered" 0 generate $G/llama --jsonl --context 12; no_err
lines 9; lacks ".lua:"
out "n must be 1 here, got 2"
out "best_of must be between n, which is 1, and 128, got 0"; out "got -2"
out "got 500"
out "prompt of 12 tokens does not fit: the context is 12 and one token must be left"
out "temperature must be"; out "frequency_penalty must be finite, got inf"
out "unknown key 'repetition_penalti', did you mean 'repetition_penalty'?"
out '"completion_tokens": 1'

# ---- bench ---------------------------------------------------------------------------------------
try "bench a model" 0 bench $G/llama --seconds 0.05; no_err; out "tokens/s"; out "GB/s"
out "decode"; out "prefill"
try "bench a shape as JSON" 0 bench --shape tiny --quant mxfp4 --seconds 0.01 --json; lines 1
no_err
out '{"test": "prefill", "tokens": 512, "batch": 1, "depth": 0, "tokens_per_s": '
out '"gb_per_s": '
LOAD="--tests batch,mixed,prefix,memory --prompt 64 --seconds 0.01"
try "bench under load" 0 bench $G/llama $LOAD; no_err; out "x one sequence"
out "time between tokens of 7 streams"; out "decode steps), 63 cached"; out "per token"
try "the same as CSV" 0 bench $G/llama $LOAD --csv; no_err; lines 8
out "test,tokens,batch,depth,tokens_per_s"; out "decode,"; out "mixed,64,8"; out "prefix,64,1"
try "the same as JSON" 0 bench $G/llama $LOAD --json; no_err; lines 1; out '"speedup": '
out '"gap_p99_ms": '; out '"cached": 63'; out '"bytes_per_token": '
name="bench on a terminal"
if ! ${CC:-cc} -O1 -o "$T/pty" tests/sh/pty.c 2>"$T/err"; then skip "no C compiler"
elif ! "$T/pty" /bin/sh </dev/null 2>"$T/err"; then skip "no pseudo-terminals here"
elif TERM=xterm "$T/pty" "$P" bench $G/llama $LOAD >"$T/out" <<'PTY'
expect bench
expect 0% batch
expect 100% memory
expect x one sequence
end 0
PTY
then ok; else bad "no progress was seen"; fi
try "bench pictures" 0 bench $M --tests image --seconds 0.001; no_err; out "pictures/s"
out "a picture in a conversation: first token"; out "x), 383 cached"
SHORT="--profile --prompts 16 --depths 0 --seconds 0.01"
try "profile a model" 0 bench $M $SHORT --svg "$T/roof.svg"; no_err; out "limits ("
out "prefill 16"; out "decode at 0"; out "round"; out "% read"
if grep -q "</svg>" "$T/roof.svg"; then ok; else bad "no roofline was written"; fi
try "the same as JSON" 0 bench $G/llama --profile --prompts 8 --seconds 0.01 --json; no_err; lines 1
out '"limits": {"name": '; out '"op": "all"'; out '"gflop_per_s": '
try "the quality of fast" 0 bench $M --quality --tokens 60; no_err; lines 10
out "60 tokens, against exact"; out "100.00 %"
try "over a text" 0 bench $M --quality --text README.md --tokens 40 --csv; no_err; lines 9
out "precision,kv_bits,tokens,kl,"; out "fast,16,40,"
try "bench grammars" 0 bench $M --tests grammar --seconds 0.001 --json; no_err; lines 1
out '"test": "grammar", "tokens": 48, "batch": 16'; out '"free_per_s": '; out '"ratio": '
try "bench grammars in words" 0 bench $M --tests grammar --seconds 0.001; out "held to JSON schemas"
refused "grammars of a shape" "needs a MODEL with a tokenizer" bench --shape tiny --tests grammar
refused "quality of a shape" "--quality needs a MODEL" bench --shape tiny --quality
refused "a text that is not there" "nowhere" bench $M --quality --text "$T/nowhere"
refused "a list of words" "--depths: '1,x' is not a list of numbers" bench --shape tiny --depths 1,x
refused "pictures without a tower" "no vision tower" bench $G/llama --tests image
refused "an unknown test" "unknown test 'batches'" bench $G/llama --tests batches
refused "an unknown shape" "unknown shape 'x' (shapes: " bench --shape x
refused "an unknown quant" "unknown kind of storage 'q9'" bench --shape tiny --quant q9
refused "neither" "expected either MODEL or --shape" bench

closing
