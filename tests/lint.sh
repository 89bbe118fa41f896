#!/bin/sh
# What `make lint` checks: luacheck, 100 columns, trailing white space, the C format, and that clang
# accepts what gcc does (CLANG: its flags).
# Prints every finding as FILE:LINE and ends with the count; exit 1 when there is one.
set -u
cd "$(dirname "$0")/.." || exit 1
found=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# report NAME: the findings in $log, if any.
report() {
  [ -s "$log" ] || return 0
  n=$(wc -l <"$log")
  found=$((found + n))
  echo "lint: $1"
  head -n 40 "$log" | sed 's/^/  /'
  [ "$n" -le 40 ] || echo "  … and $((n - 40)) more"
}

# Generated tables and lists of cases keep their own width.
sources=$(git ls-files '*.c' '*.h' '*.metal' '*.lua' '*.sh' '*.py' '*.cjs' 'scripts/ui/web/*' \
  Makefile README.md .ci |
  grep -vE 'unicode_tables\.h|^tests/(golden|parsers|templates|tokenizers)/')

# Columns are characters, not bytes. The README keeps its own width.
LC_ALL=C.UTF-8 grep -nE '^.{101,}' $(echo "$sources" | grep -v 'README\.md') |
  cut -d: -f1,2 >"$log"
report "lines longer than 100 columns"

grep -nE '[[:space:]]+$' $sources | cut -c1-100 >"$log"
report "trailing white space"

# Other versions of clang-format wrap differently; Debian 12 has this one.
if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
  for f in $(echo "$sources" | grep -E '\.[ch]$'); do
    clang-format "$f" | cmp -s - "$f" || echo "$f: not as clang-format 14 writes it"
  done >"$log"
  report "format"
else
  echo "lint: clang-format 14 is not installed, the C format was not checked"
fi

if command -v clang >/dev/null 2>&1; then
  # shellcheck disable=SC2086
  for f in $(echo "$sources" | grep -E '\.c$'); do clang ${CLANG:-} -fsyntax-only "$f"; done 2>&1 |
    grep 'error:' >"$log"
  report "clang"
fi

luacheck -q --no-color scripts examples tests >"$log" 2>&1 && : >"$log"
report "luacheck"

[ $found -eq 0 ] || { echo "lint: $found findings"; exit 1; }
echo "lint: clean"
