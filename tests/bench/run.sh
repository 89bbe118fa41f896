#!/bin/sh
# Prints the tables of all benchmarks. TOKENIZERS: folders of tokenizers (default: published ones
# next to the repository, else two small ones in it). MODEL: the model to serve (examples/moonlet).
BUILD=${BUILD:-build}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

tokenizers() {
  cases=../shared/cases/tokenizers
  list=$TOKENIZERS
  [ -n "$list" ] || for t in qwen3 llama3 gemma2 mistral_v3 t5 all_minilm; do
    list="$list $cases/$t"
  done
  [ -n "$TOKENIZERS" ] || [ -d "$cases" ] || \
    list="tests/tokenizers/bpe-qwen2 tests/tokenizers/spm-llama"
  "$BUILD/bench/tokenizer" --text 5000000 > "$work/text" || return 1
  echo "Tokenizers: 5 MB of mixed text, one thread (second row: the tokenizers library)"
  printf '%-14s %8s %10s %10s %10s\n' name "load ms" "cold MB/s" "warm MB/s" tokens
  absent=
  for t in $list; do
    "$BUILD/bench/tokenizer" "$t/tokenizer.json" "$work/text" "$(basename "$t")" || return 1
    [ -n "$absent" ] || python3 tests/bench/tokenizer_peer.py "$t/tokenizer.json" "$work/text" \
      "  library" 2>/dev/null || absent=yes
  done
  [ -z "$absent" ] || echo "(the tokenizers library is not importable: nothing to compare with)"
  set -- $list
  "$BUILD/bench/tokenizer" --words "$1/tokenizer.json"
}

server() {
  echo "Server: clients that send the next request as soon as one is answered, 128 tokens each"
  "$BUILD/perigee" run tests/bench/serve.lua "${MODEL:-examples/moonlet}"
}

tokenizers || exit 1
echo
"$BUILD/bench/image" || exit 1
echo
"$BUILD/bench/int16" affine all 0 1 || exit 1
"$BUILD/bench/sampler" || exit 1
echo
server
