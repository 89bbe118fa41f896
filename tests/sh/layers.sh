#!/bin/sh
# The layers, by includes: kernels <- runtime <- lua <- scripts. Each sees itself and its left neighbour. And the fixed top level.
set -u
cd "$(dirname "$0")/../.." || exit 1
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL layers.sh/$1"; }

# check NAME FOLDER PATTERN: no file below FOLDER has a line that matches.
check() {
  found=$(find "$2" -name '*.[ch]' -exec grep -nE "$3" {} + 2>/dev/null)
  if [ -z "$found" ]; then ok; else echo "$found"; bad "$1"; fi
}

check "kernels include only kernels" kernels '^[[:space:]]*#[[:space:]]*include[[:space:]]*"(runtime|lua|scripts|tests)/'
check "kernels know neither Lua nor libuv" kernels '#[[:space:]]*include[[:space:]]*[<"](lua|lauxlib|lualib|uv|luv/)[^>"]*[>"]'
check "runtime includes only runtime and kernels" runtime '^[[:space:]]*#[[:space:]]*include[[:space:]]*"(lua|scripts|tests)/'
check "runtime knows neither Lua nor libuv" runtime '#[[:space:]]*include[[:space:]]*[<"](lua|lauxlib|lualib|uv|luv/)[^>"]*[>"]'
check "lua includes only lua and runtime" lua '^[[:space:]]*#[[:space:]]*include[[:space:]]*"(kernels|scripts|tests)/'

# Includes are written from the root, so that the rules above see all of them.
found=$(find kernels runtime lua -name '*.[ch]' -exec grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' {} + 2>/dev/null |
  grep -vE 'include[[:space:]]*"(kernels|runtime|lua)/')
if [ -z "$found" ]; then ok; else echo "$found"; bad "includes are written from the root"; fi

# Nothing in runtime/ or kernels/ prints, exits or jumps.
found=$(find kernels runtime -name '*.c' -exec grep -nE '(^|[^_[:alnum:]])(printf|fprintf|puts|perror|exit|_Exit|abort|longjmp|setjmp)[[:space:]]*\(' {} + 2>/dev/null |
  grep -vE '^[^:]*:[0-9]+:[[:space:]]*(/?\*|//)')
if [ -z "$found" ]; then ok; else echo "$found"; bad "runtime and kernels neither print nor exit"; fi

# All heap memory of runtime/ goes through pe_alloc and its siblings, which are in base.c.
found=$(find runtime kernels -name '*.c' ! -path runtime/base.c -exec grep -nE '(^|[^_[:alnum:]])(malloc|calloc|realloc|free|strdup)[[:space:]]*\(' {} + 2>/dev/null |
  grep -vE '^[^:]*:[0-9]+:[[:space:]]*(/?\*|//)')
if [ -z "$found" ]; then ok; else echo "$found"; bad "runtime memory goes through pe_alloc"; fi

# The top level is fixed.
for f in $(git ls-files 2>/dev/null | sed 's|/.*||' | sort -u); do
  case $f in
    runtime | kernels | lua | scripts | examples | tests | Makefile | LICENSE | README.md) ok ;;
    .gitignore | .clang-format | .luacheckrc | .luarc.json | .ci) ok ;;
    *) bad "'$f' is not part of the fixed top level" ;;
  esac
done

echo "layers.sh: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
