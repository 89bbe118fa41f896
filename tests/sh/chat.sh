#!/bin/sh
# perigee chat with piped input: messages and commands, one per line; saving and loading.
suite=chat.sh
. "$(dirname "$0")/lib/cli.sh"

cat >"$T/in" <<END
Hello!
My name is Chris.
What is my name?
/save $T/talk.json
/new
/system Answer in upper case.
What sound does a cow make?
/load $T/talk.json
/stats
What is my \\
name?
END
try "a conversation" 0 chat examples/moonlet
out "Hello! I am Moonlet. How can I help you?"
out "Your name is Chris."
out "6 messages in $T/talk.json"
out "A COW SAYS MOO."
out "  6 messages"
out "prompt tokens"
no_err

cat >"$T/in" <<'END'
/think on
What is 48 + 37?
/undo
/retry
/set temp 3
/set temperature 0
/set
/bogus
/image picture.png
/image README.md
/load nowhere.json
/help
/quit
Hello!
END
try "commands" 0 chat examples/moonlet --system "Be brief."
out "48 + 37 = 85."
out "  temperature 0"
out "/system TEXT"
err "there is no message to answer again"
err "unknown key 'temp'"
err "unknown command /bogus"
err "picture.png: No such file or directory"
err "README.md: not a JPEG, PNG or WebP file"
err "nowhere.json"
if grep -q 'Moonlet' "$T/out"; then bad "it went on after /quit"; else ok; fi

I=examples/moonlet/images
cat >"$T/in" <<END
/image $I/red_circle.png
/image $I/three_shapes.png
Which picture has more shapes?
What is the capital of Italy?
/save $T/seen.json
/new
/image $I/red_circle.png
/image
Hello!
/load $T/seen.json
/undo
/image $I/blue_circle.png
What is in the picture?
/retry
END
try "pictures" 0 chat examples/moonlet --temperature 0
out "  red_circle.png: 160 x 160 pixels, 25 tokens"
out "  three_shapes.png: 180 x 180 pixels, 36 tokens"
out "The second picture has more shapes."
out "The capital of Italy is Rome."
out "Hello! I am Moonlet."
no_err
if [ "$(grep -c 'I see a blue circle' "$T/out")" -eq 2 ]; then ok; else bad "not seen twice"; fi

: >"$T/in"
try "no model" 1 chat tests/data
one_line
try "no template" 1 chat tests/golden/llama
one_line
err "chat template"
closing
