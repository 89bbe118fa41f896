#!/bin/sh
# Runs the official clients and a real browser against a server. pip and npm install into
# build/clients; the browser, Python and Node come from the distribution (.ci/packages clients). The
# last line is "N passed, N failed".
set -u
BUILD=${BUILD:-build}
HOME_DIR=$BUILD/clients
mkdir -p "$HOME_DIR"
log=$HOME_DIR/log && : >"$log"
passed=0 failed=0 server=

finish() { [ -n "$server" ] && kill -TERM "$server" 2>/dev/null; wait 2>/dev/null; }
trap finish EXIT

venv=$HOME_DIR/venv/bin modules=$HOME_DIR/node_modules
# python_with FOLDER MODULES PACKAGES…: a virtual environment that can import these modules.
python_with() {
  folder=$HOME_DIR/$1 modules_of=$2; shift 2
  "$folder/bin/python" -c "import $modules_of" 2>/dev/null && return
  python3 -m venv "$folder" || exit 1
  "$folder/bin/pip" install -q --disable-pip-version-check "$@" || exit 1
}
python_with venv openai,anthropic openai anthropic
# pydantic-ai does not know the newest client of the Messages API yet.
python_with agents anthropic,litellm,pydantic_ai,agents,instructor 'anthropic<1' instructor \
  litellm mcp openai-agents 'pydantic-ai-slim[anthropic,openai]'
packages='openai playwright-core @anthropic-ai/sdk @anthropic-ai/claude-code @openai/codex
  opencode-ai ai @ai-sdk/openai zod'
for package in $packages; do
  [ -d "$modules/$package" ] && continue
  npm install --silent --no-fund --no-audit --prefix "$HOME_DIR" $packages || exit 1
  break
done

# serve ARGUMENTS…: starts a server on a free port; its address is in $PERIGEE_URL.
serve() {
  : >"$HOME_DIR/address"
  "$BUILD/perigee" serve "$@" --port 0 >"$HOME_DIR/address" 2>>"$log" & server=$!
  for _ in $(seq 200); do
    PERIGEE_URL=$(head -n 1 "$HOME_DIR/address"); [ -n "$PERIGEE_URL" ] && break
    kill -0 "$server" 2>/dev/null || { echo "the server ended:"; cat "$log"; exit 1; }
    sleep 0.05
  done
  export PERIGEE_URL
}

# stop: kill -TERM must drain and end with 0.
stop() {
  kill -TERM "$server"; wait "$server"; rc=$?; server=
  if [ $rc -eq 0 ]; then passed=$((passed + 1)); return; fi
  failed=$((failed + 1)); echo "FAIL the server ended with $rc after SIGTERM"; tail -n 20 "$log"
}

# suite NAME COMMAND…
suite() {
  name=$1; shift
  out=$("$@" 2>&1); rc=$?
  last=$(printf '%s\n' "$out" | tail -n 1) n='\([0-9][0-9]*\)'
  set -- $(printf '%s\n' "$last" | sed -n "s/.*\b$n passed, $n failed.*/\1 \2/p")
  if [ $# -ne 2 ]; then
    failed=$((failed + 1)); printf '%s\n' "$out"
    echo "FAIL $name: exit $rc, no closing line"; return
  fi
  passed=$((passed + $1)); failed=$((failed + $2))
  if [ "$2" -ne 0 ]; then printf '%s\n' "$out"; else printf '  %-8s %s\n' "$name" "$last"; fi
}

export PYTHONDONTWRITEBYTECODE=1 # suite.py is imported; the tree stays clean
export NODE_PATH="$PWD/$modules" PERIGEE_OUT="$PWD/$HOME_DIR"
export PERIGEE_ANSWERS="$PWD/examples/moonlet/answers.json"
suite markdown node tests/clients/test_markdown.cjs
serve moonlet=examples/moonlet --api-key someone=secret
suite python "$venv/python" tests/clients/test_openai.py
suite node node tests/clients/test_openai.cjs
suite python "$venv/python" tests/clients/test_anthropic.py
suite node node tests/clients/test_anthropic.cjs
suite python "$venv/python" tests/clients/test_responses.py
suite node node tests/clients/test_responses.cjs
suite python "$venv/python" tests/clients/test_structured.py
suite node node tests/clients/test_structured.cjs
suite agents "$HOME_DIR/agents/bin/python" tests/clients/test_agents_structured.py
suite dialects node tests/clients/test_dialects.cjs
stop
site=$(mktemp -d) && mkdir -p "$site/templates" "$site/hooks"
export PERIGEE_SITE=$site
serve moonlet=examples/moonlet --site "$site"
suite browser node tests/clients/test_page.cjs
suite browser node tests/clients/test_panel.cjs
stop
rm -rf "$site"
printf '%s\n' 'return { models = { scripted = "examples/moonlet" },' \
  'aliases = { ["claude-*"] = "scripted", ["gpt-*"] = "scripted" } }' >"$HOME_DIR/config.lua"
serve --config "$HOME_DIR/config.lua" --site tests/clients/site
PERIGEE_CLAUDE=$PWD/$modules/.bin/claude PERIGEE_OPENCODE=$PWD/$modules/.bin/opencode \
  suite agents "$HOME_DIR/agents/bin/python" tests/clients/test_agents.py
PERIGEE_CODEX=$PWD/$modules/.bin/codex suite agents "$HOME_DIR/agents/bin/python" \
  tests/clients/test_agents_responses.py
stop
serve moonlet=examples/moonlet
PERIGEE_PID=$server suite abuse python3 tests/clients/test_abuse.py
stop
PERIGEE_BIN=$BUILD/perigee PERIGEE_LOG=$log suite reload python3 tests/clients/test_reload.py
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
