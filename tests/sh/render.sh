#!/bin/sh
# perigee render: JSON lines in, prompts out; one failed line fails alone.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
P=$PWD/$BUILD/perigee
case $BUILD in /*) P=$BUILD/perigee ;; esac
passed=0 failed=0
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT

# is NAME WANTED: stdout of the last run.
is() {
  if [ "$(cat "$T/out")" = "$2" ]; then passed=$((passed + 1)); return; fi
  failed=$((failed + 1))
  echo "FAIL render.sh/$1"
  sed 's/^/    got:  /' "$T/out"
  printf '%s\n' "$2" | sed 's/^/    want: /'
}
# status NAME WANTED GOT
status() {
  if [ "$2" = "$3" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL render.sh/$1: exit status $3, not $2"; fi
}

printf '%s' '{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{{ strftime_now("%Y") }}{{ now }}{{ x.y if x }}' >"$T/a.jinja"
printf '%s\n' '{"messages": [{"role": "user", "content": "hé"}], "now": 0}' '{"messages": 5, "now": 0}' 'x' \
  '{"messages": [], "now": 1794647107, "x": {"y": [1.0, null]}}' |
  "$P" render "$T/a.jinja" --jsonl >"$T/out" 2>"$T/err"
status "lines" 0 $?
is "lines" "{\"prompt\": \"user:hé;1970\"}
{\"error\": \"line 1: 'int' object is not iterable\"}
$(sed -n 3p "$T/out")
{\"prompt\": \"2026[1.0, None]\"}"
grep -q '^{"error": "the line is not JSON' "$T/out" && passed=$((passed + 1)) || { failed=$((failed + 1)); echo "FAIL render.sh/bad line"; }

printf '%s\n' '{"messages": [{"role": "user", "content": "<s>"}], "now": 0}' | "$P" render "$T/a.jinja" --jsonl --spans >"$T/out"
is "spans" '{"prompt": "user:<s>;1970", "spans": [[1, 5, true], [6, 8, false], [9, 13, true]], "boundaries": [[0, 0], [1, 9]], "generations": []}'

printf '%s\n' '{"messages": [{"role": "user", "content": "hi"}], "now": 0}' | "$P" render "$T/a.jinja" --jsonl --continue >"$T/out"
is "continue" '{"prompt": "user:hi"}'

printf '%s\n' '{"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": true}' | "$P" render examples/moonlet >"$T/out"
status "people" 0 $?
is "people" '<|im_start|>user
hi<|im_end|>
<|im_start|>assistant'

printf '{%% if %%}' >"$T/b.jinja"
echo '{}' | "$P" render "$T/b.jinja" --jsonl >"$T/out" 2>"$T/err"
status "syntax error on lines" 0 $?
is "syntax error on lines" "{\"error\": \"line 1: expected an expression, got '%}'\"}"
echo '{}' | "$P" render "$T/b.jinja" >"$T/out" 2>"$T/err"
status "syntax error" 1 $?
cp "$T/err" "$T/out"
is "syntax error" "perigee: render: line 1: expected an expression, got '%}'"
"$P" render "$T" --jsonl </dev/null >"$T/out" 2>"$T/err"
status "no template" 1 $?

echo "render.sh: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
