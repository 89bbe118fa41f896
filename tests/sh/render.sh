#!/bin/sh
# perigee render: JSON lines in, prompts out; a line that fails does not affect the others.
suite=render.sh
. "$(dirname "$0")/lib/cli.sh"

printf '%s%s' '{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}' \
  '{{ strftime_now("%Y") }}{{ now }}{{ x.y if x }}' >"$T/a.jinja"
hi='{"messages": [{"role": "user", "content": "hi"}]'

printf '%s\n' '{"messages": [{"role": "user", "content": "hé"}], "now": 0}' \
  '{"messages": 5, "now": 0}' 'x' \
  '{"messages": [], "now": 1794647107, "x": {"y": [1.0, null]}}' >"$T/in"
try "lines" 0 render "$T/a.jinja" --jsonl; no_err
out_is "{\"prompt\": \"user:hé;1970\"}
{\"error\": \"line 1: 'int' object is not iterable\"}
$(sed -n 3p "$T/out")
{\"prompt\": \"2026[1.0, None]\"}"
out '{"error": "the line is not JSON'

printf '%s\n' '{"messages": [{"role": "user", "content": "<s>"}], "now": 0}' >"$T/in"
try "spans" 0 render "$T/a.jinja" --jsonl --spans; no_err
spans='"spans": [[1, 5, true], [6, 8, false], [9, 13, true]]'
out_is \
  "{\"prompt\": \"user:<s>;1970\", $spans, \"boundaries\": [[0, 0], [1, 9]], \"generations\": []}"

echo "$hi, \"now\": 0}" >"$T/in"
try "continue" 0 render "$T/a.jinja" --jsonl --continue; no_err
out_is '{"prompt": "user:hi"}'

echo "$hi, \"add_generation_prompt\": true}" >"$T/in"
try "for people" 0 render examples/moonlet; no_err
out_is '<|im_start|>user
hi<|im_end|>
<|im_start|>assistant'

printf '{%% if %%}' >"$T/b.jinja"
echo '{}' >"$T/in"
try "syntax error in lines" 0 render "$T/b.jinja" --jsonl; no_err
out_is "{\"error\": \"line 1: expected an expression, got '%}'\"}"
echo '{}' >"$T/in"
try "syntax error" 1 render "$T/b.jinja"; one_line; no_out
err "perigee: render: line 1: expected an expression, got '%}'"
try "no template" 1 render "$T" --jsonl; one_line

closing
