#!/bin/sh
# Links perigee for macOS on arm64 here, and looks at the result. The compiler is zig's, which
# brings macOS's C headers and libSystem. Libraries built from Debian's sources stand in for those
# of Homebrew; for the rest the Makefile takes its own path for macOS. Programs cannot be run here:
# the tests are compiled and linked. All is kept in $BUILD/macos, so a second run takes seconds.
set -eu
BUILD=${BUILD:-build}
mkdir -p "$BUILD/macos"
OUT=$(cd "$BUILD/macos" && pwd)
DEPS=$OUT/deps APT=$OUT/apt ZIG=$OUT/zig/ziglang/zig
ZIG_VERSION=0.17.0 # not always the newest: a new clang may have new warnings
JOBS=$(getconf _NPROCESSORS_ONLN)
HOSTCC=${CC:-cc}
export ZIG_GLOBAL_CACHE_DIR="$OUT/cache" ZIG_LOCAL_CACHE_DIR="$OUT/cache"
# The oldest macOS whose shaders know bfloat.
export CC="$ZIG cc -target aarch64-macos.14.0" AR="$ZIG ar"

# quietly COMMAND: shows what it printed only if it fails.
quietly() { "$@" >"$OUT/log" 2>&1 || { cat "$OUT/log" >&2; return 1; }; }

# ---- the compiler and the sources --------------------------------------------------------------

get_zig() {
  echo "  GET    zig $ZIG_VERSION"
  quietly python3 -m pip install --target "$OUT/zig" "ziglang==$ZIG_VERSION"
}

# apt-get with lists of its own: the machine's may have no sources.
apt() {
  apt-get -o Dir::Etc::sourcelist="$APT/sources.list" -o Dir::Etc::sourceparts=- \
    -o Dir::State::lists="$APT/lists" -o Dir::Cache="$APT" -o APT::Sandbox::User=root "$@"
}

# The machine's mirror. Of Debian two releases, since a mirror may lack the files of one: the newer
# is nearer to what Homebrew has.
list_sources() {
  [ ! -f "$APT/sources.list" ] || return 0
  mkdir -p "$APT/lists/partial" "$APT/archives/partial"
  . /etc/os-release
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    sed -nE 's/^(URIs: *|deb +(\[[^]]*\] +)?)([a-z]+:[^ ]+).*/\3/p' | head -n 1)
  case $ID in
  debian) suites='trixie bookworm' parts=main ;;
  *) suites=$VERSION_CODENAME parts='main universe' ;;
  esac
  for suite in $suites; do
    echo "deb-src [signed-by=/usr/share/keyrings/$ID-archive-keyring.gpg] $mirror $suite $parts"
  done >"$APT/sources.list"
  quietly apt update || { rm "$APT/sources.list"; return 1; }
}

# get PACKAGE: its sources are then in $DEPS/PACKAGE.
get() {
  [ ! -d "$DEPS/$1" ] || return 0
  list_sources
  echo "  GET    $1"
  mkdir -p "$DEPS/get"
  for suite in $(awk '{ print $4 }' "$APT/sources.list"); do
    (cd "$DEPS/get" && apt source "$1/$suite") >"$OUT/log" 2>&1 || continue
    mv "$DEPS/get/$1"-*/ "$DEPS/$1"
    return 0
  done
  cat "$OUT/log" >&2
  return 1
}

# ---- the libraries -----------------------------------------------------------------------------

# archive NAME FLAGS FILES...: $DEPS/NAME.a, of files below the current folder.
archive() {
  name=$1 flags=$2
  shift 2
  echo "  LIB    $name"
  rm -rf "$DEPS/objects/$name" "$DEPS/$name.a" # of a build that failed
  mkdir -p "$DEPS/objects/$name"
  for f in "$@"; do echo "$f $DEPS/objects/$name/$(echo "${f%.c}" | tr / _).o"; done |
    FLAGS=$flags quietly xargs -P "$JOBS" -n 2 sh -c '$CC -O2 -w $FLAGS -c "$0" -o "$1"'
  $AR rcs "$DEPS/$name.a" "$DEPS/objects/$name"/*.o
}

# describe NAME VERSION [ARCHIVE]: for pkg-config.
describe() {
  mkdir -p "$DEPS/pkgconfig"
  printf 'Name: %s\nDescription: for macOS\nVersion: %s\nCflags: -I%s\nLibs: %s\n' "$1" "$2" \
    "$DEPS/include" "${3:+$DEPS/$3.a}" >"$DEPS/pkgconfig/$1.pc"
}

lua() {
  get lua5.4
  cd "$DEPS/lua5.4/src"
  # What Debian's build writes for paths of modules; perigee loads none.
  echo '#define DEB_HOST_MULTIARCH "none"' >lua5.4-deb-multiarch.h
  cp lua.h luaconf.h lualib.h lauxlib.h lua5.4-deb-multiarch.h "$DEPS/include"
  archive lua -DLUA_USE_MACOSX $(ls l*.c | grep -vE '^luac?\.c')
  describe lua5.4 5.4 lua
}

uv() {
  get libuv1
  cd "$DEPS/libuv1"
  cp -R include/. "$DEPS/include"
  unix='async core dl fs getaddrinfo getnameinfo loop-watcher loop pipe poll process signal stream
    tcp thread tty udp proctitle random-devurandom random-getentropy bsd-ifaddrs kqueue
    darwin-proctitle darwin fsevents'
  archive uv '-Iinclude -Isrc -D_DARWIN_UNLIMITED_SELECT=1 -D_DARWIN_USE_64_BIT_INODE=1' \
    src/*.c $(printf 'src/unix/%s.c ' $unix)
  describe libuv 1 uv
}

rocks() {
  get lua-luv
  get lua-cjson
  echo "  LIB    luv cjson"
  CPPFLAGS="-I$DEPS/include" quietly sh .ci/rocks "$DEPS" "$DEPS/lua-luv/src" "$DEPS/lua-cjson"
}

pcre2() {
  get pcre2
  cd "$DEPS/pcre2/src"
  cp pcre2.h.generic pcre2.h
  cp config.h.generic config.h
  cp pcre2_chartables.c.dist pcre2_chartables.c
  cp pcre2.h "$DEPS/include"
  # Programs, tests and files that others include do not belong to the library.
  archive pcre2 '-DHAVE_CONFIG_H -DPCRE2_CODE_UNIT_WIDTH=8 -DSUPPORT_UNICODE -DSUPPORT_JIT
    -DPCRE2_STATIC -I.' $(ls pcre2_*.c | grep -vE 'dftables|fuzz|_test|print|jit_m|ucpt')
  describe libpcre2-8 10 pcre2
}

utf8proc() {
  get utf8proc
  cd "$DEPS/utf8proc"
  cp utf8proc.h "$DEPS/include"
  archive utf8proc -DUTF8PROC_STATIC utf8proc.c
  describe libutf8proc 2 utf8proc
}

webp() {
  get libwebp
  cd "$DEPS/libwebp"
  mkdir -p "$DEPS/include/webp"
  cp src/webp/*.h "$DEPS/include/webp"
  archive webp -I. src/dec/*.c src/dsp/*.c src/utils/*.c
  describe libwebp 1 webp
}

zlib() {
  get zlib
  cd "$DEPS/zlib"
  cp zlib.h zconf.h "$DEPS/include"
  archive z -DHAVE_UNISTD_H inflate.c inffast.c inftrees.c adler32.c crc32.c zutil.c
  describe zlib 1 z
}

zstd() {
  get libzstd
  cd "$DEPS/libzstd"
  cp lib/zstd.h lib/zstd_errors.h "$DEPS/include"
  archive zstd '-DZSTD_DISABLE_ASM -Ilib' lib/common/*.c lib/decompress/*.c
  describe libzstd 1 zstd
}

# Headers are all there is to these two.
plain() {
  get xxhash
  get libstb
  mkdir -p "$DEPS/include/stb"
  cp "$DEPS/xxhash/xxhash.h" "$DEPS/include"
  cp "$DEPS"/libstb/stb_image*.h "$DEPS/include/stb"
  describe libxxhash 0
}

mkdir -p "$DEPS/include"
[ -x "$ZIG" ] || get_zig
for library in lua uv rocks pcre2 utf8proc webp zlib zstd plain; do
  [ -f "$DEPS/.$library" ] || ($library; touch "$DEPS/.$library")
done

# ---- perigee -----------------------------------------------------------------------------------

touch "$OUT/.packages"
# zig reads -march in words of its own.
${MAKE:-make} --no-print-directory -j "$JOBS" BUILD="$OUT" UNAME=Darwin CC="$CC" AR="$AR" \
  HOSTCC="$HOSTCC" SAN= ROCKS="$DEPS" DOTPROD=-mcpu=generic+v8_2a+dotprod \
  PKG="PKG_CONFIG_LIBDIR='$DEPS/pkgconfig' pkg-config" all tests
python3 tests/macho.py "$OUT/perigee"
