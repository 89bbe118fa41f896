#!/bin/sh
# --device metal: refused where there is no Metal, and on the fake Metal of tests/metal a few models
# that together have every family of ops, within the tolerance of their references and bit for bit
# in any batch and any chunks. make test-metal runs all models.
suite=metal.sh
. "$(dirname "$0")/lib/cli.sh"
G=tests/golden
ids='{"ids":[3,9,1,4,1,5,9,2,6,5,3,5],"greedy":4}'

unset PERIGEE_METAL
if [ "$(uname)" != Darwin ]; then
  echo "$ids" >"$T/in"
  try "no Metal" 1 eval $G/llama --jsonl --device metal; one_line; no_out
  err "device metal: there is no Metal on this system"
  PERIGEE_METAL=$T/none.so
  export PERIGEE_METAL
  try "no such shared object" 1 eval $G/llama --jsonl --device metal; one_line; no_out
fi

# ---- counting needs no GPU -----------------------------------------------------------------------
unset PERIGEE_METAL
try "count" 0 bench $G/qwen3-yarn --device metal --count; no_err
out "prefill 512"; out "decode at 0"; out "dispatches"; out "M5"; out "153"
try "count as JSON" 0 bench $G/llama --device metal --count --json --prompts 32 --depths 7
out '"phase": "decode at 7"'
# A layer is 6 dispatches for one token: products of one input, rope and store, attention, o, gate
# and up, down; beside them embed, the rope table, two outputs and the head. Nothing joined: 11 and
# 6.
layers() {
  try "$1" 0 bench $G/$4 --device metal --count --json --prompts 32 --depths 7 $2; no_err
  got=$(grep -o '"phase": "decode at 7", "op": "all"[^}]*' "$T/out" |
    grep -o '"dispatches": [0-9]*')
  if [ "$got" = "\"dispatches\": $3" ]; then ok; else bad "$got, not $3"; fi
}
layers "dispatches of three layers" "" 23 qwen3
layers "nothing joined" "--metal-tiles join_rows=0" 39 qwen3
layers "norms apart" "--metal-tiles norm_rows=0" 30 qwen3
# Of its six layers two have experts: 7 dispatches, with the router, the experts' gate and up, which
# choose, and their products with the sum and the residual in place of gate and up, and down.
layers "dispatches with experts" "" 43 qwen3_moe-mlx4
# The kernel of what a map reads does it: the gates of attention and delta nets, of a shared expert
# (whose product is one more of those that are added), residuals with a factor. A delta rule does
# the norm of its heads too.
layers "a gated norm, gated attention, a shared expert" "" 35 qwen3_5_moe
# Parts of a value are read where they are, and a delta net makes its inputs itself. In one of its
# layers they are overwritten before the norm.
layers "slices, norms and maps before a delta net" "" 36 qwen3_next
layers "maps after recurrences, residuals with a factor" "" 29 granitemoehybrid
layers "shared experts" "" 25 glm4_moe-mlx4
# Latent attention in 7: both products that narrow, q, heads to the latent, rope and store (which
# make the keys), attention, heads to values, o.
layers "latent attention" "" 34 deepseek_v3-mlx4
layers "maps of experts and with vectors" "" 23 gpt_oss-mxfp4
layers "norms of values, factors of layers" "" 75 gemma4_text
# A token reads the matrices of its experts once, and sorting one row would win nothing: in two
# layers 3 experts of 2 * 32 * 64 weights of 5 bits each. Heads are read once as well.
reads() {
  try "$1" 0 bench $G/$2 --device metal --count --json --prompts 32 --depths 7 \
    --metal-tiles expert_sort_pairs=1; no_err
  got=$(grep -o "\"phase\": \"decode at 7\", \"op\": \"$3\"[^}]*" "$T/out" |
    sed -E 's/.*"dispatches": ([0-9.]+).*"weights_mb": ([0-9.]+).*/\1 \2/' |
    awk '{ printf "%d %.0f", $1, $2 * 1e6 }')
  if [ "$got" = "$4" ]; then ok; else bad "$got, not $4"; fi
}
reads "experts of a token" qwen3_moe-mlx4 expert_gated "2 15360"
reads "heads of a token" deepseek_v3-mlx4 head_linear "6 16128"
try "no such tile" 2 bench $G/qwen3 --device metal --count --metal-tiles join=3; one_line
err "there is no tile 'join'"
try "a tile out of its range" 2 bench $G/qwen3 --device metal --count \
  --metal-tiles linear_simdgroups=9
one_line; err "tile linear_simdgroups is 9; it must be between 1 and 8"
try "half a tile" 2 bench $G/qwen3 --device metal --count --metal-tiles join_rows=,norm_rows=1
one_line; err "'join_rows=' is not NAME=VALUE"
try "count on the CPU" 1 bench $G/llama --count; one_line; err "--count needs --device metal"

# ---- models on the fake --------------------------------------------------------------------------
PERIGEE_METAL=${P%/perigee}/tests/fake-metal.so
export PERIGEE_METAL
name="models on the fake"
if [ ! -f "$PERIGEE_METAL" ]; then
  skip "no fake Metal was built"
else
  echo "$ids" >"$T/in"
  try "eval" 0 eval $G/llama --jsonl --device metal; no_err; cp "$T/out" "$T/metal"
  echo "$ids" >"$T/in"
  try "eval on the CPU" 0 eval $G/llama --jsonl --device cpu
  if cmp -s "$T/metal" "$T/out"; then ok; else bad "other tokens than on the CPU"; fi
  # Other tiles, other dispatches, the same numbers.
  for tiles in join_rows=0 norm_rows=64,linear_rows_wide=1,linear_simdgroups=1 linear_rows_wide=64
  do
    echo "$ids" >"$T/in"
    try "$tiles" 0 eval $G/llama --jsonl --device metal --metal-tiles $tiles; no_err
    if cmp -s "$T/metal" "$T/out"; then ok; else bad "other numbers than with the defaults"; fi
  done
  echo 'local m = require("perigee").engine.metal(); print(m.name, m.differences, m.residency)' \
    >"$T/info.lua"
  try "self-test" 0 run "$T/info.lua"; no_err; out_is "Fake M1	0	true"
  # The first buffer limit splits the weights; the last is less than one tensor.
  for most in 262144 65536; do
    echo "$ids" >"$T/in"
    FAKE_METAL_MOST_BYTES=$most
    export FAKE_METAL_MOST_BYTES
    try "buffers of $most bytes" 0 eval $G/llama --jsonl --device metal --context 32; no_err
    if cmp -s "$T/metal" "$T/out"; then ok; else bad "other tokens than in one buffer"; fi
  done
  FAKE_METAL_MOST_BYTES=4096
  echo "$ids" >"$T/in"
  try "buffers that are too small" 0 eval $G/llama --jsonl --device metal
  out "; Fake M1 takes 4096"
  unset FAKE_METAL_MOST_BYTES
  echo "$ids" >"$T/in"
  FAKE_METAL_WORKING_SET=1000
  export FAKE_METAL_WORKING_SET
  try "no room on the GPU" 0 eval $G/llama --jsonl --device metal
  out "bytes; Fake M1 has room for 1000"
  unset FAKE_METAL_WORKING_SET
  # A call that fails is the error of the requests that it hits, or of opening, and of nothing else.
  for n in 1 4 30 60 61 62 63 64 65 66 80; do
    printf '{"prompt":[%d,2,3],"max_tokens":6,"temperature":0}\n' 1 4 5 >"$T/in"
    FAKE_METAL_FAIL_AT=$n
    export FAKE_METAL_FAIL_AT
    name="failure at call $n"
    "$P" generate $G/llama --jsonl --device metal <"$T/in" >"$T/out" 2>"$T/err"
    got=$?
    case $got in 0 | 1) ok ;; *) bad "exit status $got" ;; esac
    if [ "$(cat "$T/out" "$T/err" | grep -cE '"error"|"ids"|^perigee: ')" -ge 1 ]; then ok
    else bad "neither an answer nor an error"; fi
  done
  unset FAKE_METAL_FAIL_AT
  for model in llama-mlx4 qwen3_moe-mlx4 qwen3_5-mlx4; do
    PERIGEE_TEST_GC=normal
    export PERIGEE_TEST_GC
    try "$model" 0 run tests/lua/run.lua test_models "$model"; no_err; out "0 failed"
  done
  try "taps" 0 run tests/lua/run.lua test_taps qwen3_5_moe; no_err; out "0 failed"
fi
closing
