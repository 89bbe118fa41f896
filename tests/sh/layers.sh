#!/bin/sh
# Traffic between folders goes one way: C includes and Lua requires, folder by folder. Also checks
# the functions that runtime/ and kernels/ must not call, and the fixed top level.
#
# The checker first proves itself on a small tree that has a violation of each kind.
set -u
cd "$(dirname "$0")/../.." || exit 1
passed=0 failed=0
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL layers.sh/$1"; }

# ---- C -------------------------------------------------------------------------------------------
# FOLDER: the other folders that its files may include. Only lua/ may include lua.h and uv.h. No
# folder of runtime includes runtime/tensor: it is a library for scripts.
cat >"$T/includes" <<'RULES'
kernels:
kernels/cpu: kernels
kernels/metal: kernels
runtime: kernels
runtime/weights: kernels runtime
runtime/text: runtime runtime/weights
runtime/grammar: runtime runtime/text
runtime/tensor: kernels runtime
runtime/image: runtime
runtime/graph: kernels runtime runtime/weights
runtime/cache: kernels runtime runtime/weights runtime/graph
runtime/device: kernels kernels/cpu kernels/metal
runtime/device: runtime runtime/weights runtime/graph runtime/cache
runtime/batch: kernels runtime runtime/weights runtime/text runtime/graph runtime/cache
runtime/batch: runtime/device runtime/grammar
lua: lua/embed runtime runtime/weights runtime/text runtime/tensor runtime/image runtime/graph
lua: runtime/cache runtime/device runtime/batch runtime/grammar
lua/embed:
RULES
# The one exception: machine.c reports the instruction sets that the CPU kernels detect.
echo "runtime/machine.c kernels/cpu" >"$T/excepted"

# includes FOLDER...: prints FILE:LINE: what is wrong, for every include that the rules forbid.
includes() {
  find "$@" -name '*.[ch]' 2>/dev/null | sort |
    xargs awk -v RULES="$T/includes" -v EXCEPTED="$T/excepted" '
    function folder(path) {
      return match(path, /\/[^\/]*$/) ? substr(path, 1, RSTART - 1) : ""
    }
    function wrong(why) { printf "%s:%d: %s\n", FILENAME, FNR, why }
    BEGIN {
      while ((getline line < RULES) > 0) {
        split(line, side, ":"); n = split(side[2], list, " "); known[side[1]] = 1
        for (i = 1; i <= n; i++) may[side[1], list[i]] = 1
      }
      while ((getline line < EXCEPTED) > 0) { split(line, side, " "); except[side[1], side[2]] = 1 }
    }
    FNR == 1 {
      here = folder(FILENAME)
      if (!(here in known)) wrong("the folder " here " has no rule")
    }
    /^[ \t]*#[ \t]*include/ {
      system_header = $0 ~ /include[ \t]*</
      name = $0; sub(/^[^"<]*["<]/, "", name); sub(/[">].*/, "", name)
      if (name ~ /^(lua|lauxlib|lualib|uv)\.h$|^luv\// && here !~ /^lua/)
        wrong(here " includes " name)
      if (system_header) next
      there = folder(name)
      if (!(there in known)) wrong("\"" name "\" is not written from the root")
      else if (there != here && !((here, there) in may) && !((FILENAME, there) in except))
        wrong(here " includes " there " (" name ")")
    }' /dev/null
}

# ---- Lua -----------------------------------------------------------------------------------------
# A module is required only by its own folder and by the folders to its right.
ORDER="lib ui grammar http templates parsers chat models engine hooks policy pipeline api serve
  repl cmd meta"

# requires: prints FILE:LINE: what is wrong, for every require in scripts/ that the order forbids. A
# name that is built at run time counts by its literal prefix: require("cmd." .. name).
requires() {
  find scripts -name '*.lua' 2>/dev/null | sort | xargs awk -v ORDER="$(echo $ORDER)" '
    function wrong(why) { printf "%s:%d: %s\n", FILENAME, FNR, why }
    BEGIN {
      CALL = "(^|[^A-Za-z0-9_.:])require[ \t]*"
      n = split(ORDER, list, " "); for (i = 1; i <= n; i++) place[list[i]] = i
    }
    FNR == 1 {
      here = FILENAME; sub(/^scripts\//, "", here)
      if (here == "main.lua") here = "main"; else sub(/\/.*/, "", here)
      if (here != "main" && !(here in place)) wrong("the folder " here " has no place in the order")
    }
    /^[ \t]*--/ { next }
    {
      rest = $0
      while (match(rest, CALL "[(,]?[ \t]*[\"\047][A-Za-z_][A-Za-z0-9_.]*")) {
        name = substr(rest, RSTART, RLENGTH); rest = substr(rest, RSTART + RLENGTH)
        sub(/.*["\047]/, "", name)
        there = name; sub(/\..*/, "", there)
        if (name == "perigee" || name == "luv" || name == "cjson" || here == "main") continue
        if (!(there in place)) wrong("\"" name "\" is in no folder of scripts/")
        else if (place[there] > place[here]) wrong(here " requires " there " (" name ")")
      }
      # The sandbox passes on names that it has checked.
      if (rest ~ (CALL "[(][ \t]*[A-Za-z_]") && FILENAME != "scripts/hooks/sandbox.lua")
        wrong("the required name has no literal prefix")
    }' /dev/null
}

# ---- calls ---------------------------------------------------------------------------------------

JUMPS="printf|fprintf|puts|perror|exit|_Exit|abort|longjmp|setjmp"
HEAP="malloc|calloc|realloc|free|strdup" # base.c wraps them in pe_alloc and its siblings

# calls NAMES FOLDER...: prints where one of these functions is called outside of a comment.
calls() {
  names=$1
  shift
  find "$@" -name '*.c' ! -path runtime/base.c -exec \
    grep -nE "(^|[^_[:alnum:]])($names)[[:space:]]*\(" /dev/null {} + 2>/dev/null |
    grep -vE '^[^:]*:[0-9]+:[[:space:]]*(/?\*|//)'
}

# ---- the checks ----------------------------------------------------------------------------------

# clean NAME COMMAND...: the command prints nothing.
clean() {
  name=$1
  shift
  found=$("$@")
  if [ -z "$found" ]; then ok; else echo "$found"; bad "$name"; fi
}

all() {
  includes kernels runtime lua
  requires
  calls "$JUMPS" kernels runtime
  calls "$HEAP" kernels runtime
}

# ---- itself: every kind of violation is found, and nothing else ----------------------------------
# put FILE TEXT: a file of the small tree.
put() { mkdir -p "$T/tree/$(dirname "$1")" && printf '%s\n' "$2" >"$T/tree/$1"; }
put kernels/op.h '#include "kernels/dtype.h"'
put kernels/bad.h '#include "kernels/cpu/prim.h"'
put kernels/up.c '#include "runtime/base.h"'
put kernels/cpu/prim.c '#include "kernels/op.h"'
put runtime/base.c '  free(p);'
put runtime/machine.c '#include "kernels/cpu/features.h"'
put runtime/pool.c '#include "kernels/cpu/features.h"'
put runtime/lua.c '#include <lua.h>'
put runtime/uv.c '  #  include <uv.h>'
put runtime/print.c 'int x; void f(void) { printf("x"); }'
put runtime/heap.c 'void f(void) { p = malloc(4); }'
put runtime/comment.c '/* never calls malloc() */'
put runtime/graph/graph.c '#include "runtime/weights/weights.h"'
put runtime/graph/up.c '#include "runtime/cache/kv.h"'
put runtime/text/side.c '#include "runtime/graph/graph.h"'
put runtime/batch/tensor.c '#include "runtime/tensor/tensor.h"'
put runtime/cache/short.c '#include "kv.h"'
put runtime/new/x.c '#include "runtime/base.h"'
put lua/bind.c '#include <lua.h>
#include "runtime/tensor/tensor.h"'
put lua/kernel.c '#include "kernels/op.h"'
put scripts/main.lua 'require "cmd.run"'
put scripts/lib/text.lua 'local perigee = require "perigee"
-- require "cmd.run" in a comment'
put scripts/lib/up.lua 'local x = require "ui.term"'
put scripts/lib/load.lua 'return require("cmd." .. name)'
put scripts/lib/guard.lua 'pcall(require, "serve." .. name)'
put scripts/lib/free.lua 'return require(name)'
put scripts/api/down.lua "local x, y = require 'lib.text', require('hooks.site')"
put scripts/api/two.lua 'local x, y = require "lib.text", require "serve"'
put scripts/odd/x.lua 'return 1'
put scripts/serve/no.lua 'require "nowhere.at_all"'
cat >"$T/want" <<'WANT'
kernels/bad.h:1:
kernels/up.c:1:
lua/kernel.c:1:
runtime/batch/tensor.c:1:
runtime/cache/short.c:1:
runtime/graph/up.c:1:
runtime/heap.c:1:
runtime/lua.c:1:
runtime/new/x.c:1:
runtime/pool.c:1:
runtime/print.c:1:
runtime/text/side.c:1:
runtime/uv.c:1:
scripts/api/two.lua:1:
scripts/lib/free.lua:1:
scripts/lib/guard.lua:1:
scripts/lib/load.lua:1:
scripts/lib/up.lua:1:
scripts/odd/x.lua:1:
scripts/serve/no.lua:1:
WANT
(cd "$T/tree" && all) >"$T/all"
grep -oE '^[^:]*:[0-9]+:' "$T/all" | sort -u >"$T/found"
while read -r line; do
  if grep -qxF "$line" "$T/found"; then ok; else bad "the violation at $line is not found"; fi
done <"$T/want"
extra=$(grep -vxFf "$T/want" "$T/found")
if [ -z "$extra" ]; then ok; else echo "$extra"; bad "found where nothing is wrong"; fi

# ---- the repository ------------------------------------------------------------------------------
clean "C includes go one way" includes kernels runtime lua
clean "Lua requires go one way" requires
clean "runtime and kernels neither print nor exit" calls "$JUMPS" kernels runtime
clean "runtime memory goes through pe_alloc" calls "$HEAP" kernels runtime

for f in $(git ls-files 2>/dev/null | sed 's|/.*||' | sort -u); do
  case $f in
    runtime | kernels | lua | scripts | examples | tests | Makefile | LICENSE | README.md) ok ;;
    .gitignore | .clang-format | .luacheckrc | .luarc.json | .ci) ok ;;
    *) bad "'$f' is not part of the fixed top level" ;;
  esac
done

echo "layers.sh: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
