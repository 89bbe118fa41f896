#!/bin/sh
# normalize, messages in generate, and check of templates and policies.
suite=words.sh
. "$(dirname "$0")/lib/cli.sh"
M=examples/moonlet

# ---- normalize ----
# talk ROLE CONTENT …: a list of messages.
talk() {
  list=
  while [ $# -gt 0 ]; do
    list="$list${list:+, }{\"role\": \"$1\", \"content\": \"$2\"}"
    shift 2
  done
  printf '[%s]' "$list"
}
call='"id": "1", "function": {"name": "f", "arguments":'
cat >"$T/in" <<JSON
{"messages": $(talk developer a system b user c)}
{"messages": $(talk wizard a)}
x
{"messages": []}
{}
{"messages": [], "template": "/nonexistent.jinja"}
{"messages": $(talk user u system s), "template": "$M"}
{"messages": [], "extra": 1}
{"messages": [{"role": "assistant", "tool_calls": [{$call "{\"b\":1,\"a\":2}"}}]}]}
JSON
try "normalize lines" 0 normalize --jsonl; no_err
roles="system, developer, user, assistant, tool, function"
cat >"$T/want" <<JSON
{"messages": $(talk system 'a\n\nb' user c)}
{"error": "messages[0].role must be one of $roles, got 'wizard'"}
$(sed -n 3p "$T/out")
{"messages": []}
{"error": "'messages' is missing"}
{"error": "/nonexistent.jinja: no such file or directory"}
{"messages": $(talk system s user u)}
{"error": "unknown key 'extra'"}
{"messages": [{"role": "assistant", "tool_calls": [{$call {"b": 1, "a": 2}}}], "content": null}]}
JSON
out_is "$(cat "$T/want")"
out '{"error": "the line is not JSON'
printf '{"messages": [{"role": "user", "content": "a"}]}' >"$T/in"
try "normalize for people" 0 normalize; no_err; out '"role": "user"'
printf '[' >"$T/in"
try "normalize invalid JSON" 1 normalize; one_line; no_out
printf '{"messages": 5}' >"$T/in"
try "normalize a number as messages" 1 normalize; one_line; no_out

# ---- messages in generate ----
image='[{"type": "image_url", "image_url": {"url": "nosuch.png"}}]'
sound='[{"type": "input_audio", "input_audio": {"data": "x"}}]'
think='"chat_template_kwargs": {"enable_thinking": true}'
cat >"$T/in" <<JSON
{"messages": $(talk user 'Hello!'), "max_tokens": 30, "temperature": 0}
{"messages": [{"role": "user", "content": $image}]}
{"messages": [{"role": "user", "content": $sound}]}
{"messages": $(talk user 'What is 48 + 37?'), $think, "max_tokens": 1}
{"messages": $(talk user a assistant b), "continue_final_message": true, "max_tokens": 1}
{"messages": $(talk user a), "tool_choice": "required"}
{"messages": $(talk user a), "now": "x"}
JSON
try "generate from messages" 0 generate $M --jsonl; no_err
text='"text": "Hello! I am Moonlet. How can I help you?"'
ids='"ids": [982, 0, 351, 569, 939, 13, 992, 874, 351, 860, 337, 30, 2279]'
counts='"prompt_tokens": 10, "completion_tokens": 13, "cached_tokens": 0'
out "{$text, $ids, \"finish_reason\": \"stop\", $counts}"
out "nosuch.png: No such file or directory"
out "is of type 'input_audio', but the chat template has no place for audio"
out '"prompt_tokens": 20'
out '"prompt_tokens": 10, "completion_tokens": 1,'
out "tool_choice demands a call, but there are no tools"
out "'now' must be integer, not string"

# ---- check: templates ----
cat >"$T/good.jinja" <<'JINJA'
{#- perigee-test: {"messages": [{"role": "user", "content": "a => b"}]} => "<user>a => b" -#}
{# perigee-test:
   {"messages": [{"role": "user", "content": "\u0023}"}], "now": 0} => "<user>\u0023}"
#}
{#- a comment like any other -#}
{#- perigee-test: {"messages": []} => error "there is nothing" -#}
{%- if not messages %}{{ raise_exception("there is nothing to say") }}{% endif -%}
{%- for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor -%}
JINJA
try "a template with cases" 0 check "$T/good.jinja"; no_err
out_is "$T/good.jinja: 3 cases passed; can: strings, system, system_late"
try "a model's template" 0 check $M/chat_template.jinja; out "has no cases; can: "
out "thinking = enable_thinking, tools"
template_fails() { # NAME TEXT TEMPLATE
  printf '%s' "$3" >"$T/bad.jinja"
  try "$1" 1 check "$T/bad.jinja"; one_line; err "perigee: $T/bad.jinja: $2"; no_out
}
template_fails "a syntax error" "line 1: expected an expression, got '%}'" '{% if %}'
template_fails "another text" 'line 2: the case gives "hi", not "ho"' '
{#- perigee-test: {} => "ho" -#}hi'
template_fails "an error where none was expected" "line 1: the case fails: line 1: no" \
  '{#- perigee-test: {} => "" -#}{{ raise_exception("no") }}'
template_fails "no error where one was expected" 'line 1: the case gives "x", not the error "y"' \
  '{#- perigee-test: {} => error "y" -#}x'
template_fails "another error" 'line 1: the case fails with "line 1: no", not "yes"' \
  '{#- perigee-test: {} => error "yes" -#}{{ raise_exception("no") }}'
template_fails "a case that cannot be read" 'line 1: the case is not written as' \
  '{#- perigee-test: {} -> "" -#}'
template_fails "a template that shows nothing" "a user's message cannot be rendered: " 'nothing'
template_fails "a template without end" \
  "a user's message cannot be rendered: line 1: the template runs too long" \
  '{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}'
try "a template that is not there" 1 check "$T/none.jinja"; one_line

# ---- check: policies ----
mkdir "$T/policy"
try "the policy that ships" 0 check scripts/policy/fifo.lua; no_err
out "a policy: 2 steps are legal"
policy() { # NAME STATUS TEXT SOURCE
  printf '%s' "$4" >"$T/policy/mine.lua"
  try "$1" "$2" check "$T/policy/mine.lua"
  if [ "$2" -eq 0 ]; then no_err; out "$3"; else one_line; err "$3"; fi
}
policy "a policy that fills" 0 "a policy: 2 steps are legal; has no self-test" \
  'return function(step) step:fill() end'
policy "a policy with cases" 0 "a policy: 2 steps are legal; 1 case passed" \
  'return { schedule = function(step) step:fill() end, selftest = function() end }'
policy "a policy that gives too much" 1 "step 1: " \
  'return function(step) step:give(step:waiting()[1], 100000) end'
policy "a policy that gives to nobody" 1 "step 1: gave nothing" \
  'return { schedule = function() end }'
policy "a policy that returns" 1 "step 1: must return nothing, returned number" \
  'return function(step) step:fill() return 1 end'
policy "a policy that never ends" 1 "step 1: " 'return function() while true do end end'
policy "a policy that fails later" 1 "step 2: " \
  'return function(step) if #step:running() > 0 then error "later" end step:fill() end'
printf 'return { schedule = function() error "no" end }' >"$T/elsewhere.lua"
try "a policy anywhere" 1 check "$T/elsewhere.lua"; one_line; err "step 1: "

closing
