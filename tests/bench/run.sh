#!/bin/sh
# Prints the tables of all benchmarks. TOKENIZERS: folders to use (default: the published ones beside the repository,
# else two small ones of ours). MODEL: what is served (examples/moonlet).
BUILD=${BUILD:-build}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

tokenizers() {
  cases=../shared/cases/tokenizers
  list=${TOKENIZERS:-"$cases/qwen3 $cases/llama3 $cases/gemma2 $cases/mistral_v3 $cases/t5 $cases/all_minilm"}
  [ -n "$TOKENIZERS" ] || [ -d "$cases" ] || list="tests/tokenizers/bpe-qwen2 tests/tokenizers/spm-llama"
  "$BUILD/bench/tokenizer" --text 5000000 > "$work/text" || return 1
  echo "Tokenizers: 5 MB of mixed text, one thread (second row: the tokenizers library)"
  printf '%-14s %8s %10s %10s %10s\n' name "load ms" "cold MB/s" "warm MB/s" tokens
  absent=
  for t in $list; do
    "$BUILD/bench/tokenizer" "$t/tokenizer.json" "$work/text" "$(basename "$t")" || return 1
    [ -n "$absent" ] || python3 tests/bench/tokenizer_peer.py "$t/tokenizer.json" "$work/text" "  library" 2>/dev/null || absent=yes
  done
  [ -z "$absent" ] || echo "(the tokenizers library is not importable: nothing to compare with)"
  set -- $list
  "$BUILD/bench/tokenizer" --words "$1/tokenizer.json"
}

server() {
  echo "Server: clients of one \`perigee serve\` that ask again as soon as they are answered, 128 tokens an answer"
  "$BUILD/perigee" run tests/bench/serve.lua "${MODEL:-examples/moonlet}"
}

tokenizers || exit 1
echo
server
