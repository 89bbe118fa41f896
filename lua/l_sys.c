/* l_sys.c - perigee.sys: the machine, the versions of the libraries, and the scripts of this
 * program. */
#define PCRE2_CODE_UNIT_WIDTH 8
#define XXH_INLINE_ALL
#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <lua.h>
#include <pcre2.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utf8proc.h>
#include <uv.h>
#include <webp/decode.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#include "lua/bind.h"
#include "lua/source.h"
#include "lua/state.h"
#include "runtime/base64.h"
#include "runtime/machine.h"
#include "runtime/seal.h"
#include "runtime/utf8.h"

static void set_integer(lua_State *L, const char *key, uint64_t n) {
  lua_pushinteger(L, n > INT64_MAX ? INT64_MAX : (lua_Integer)n);
  lua_setfield(L, -2, key);
}

static void set_string(lua_State *L, const char *key, const char *text) {
  lua_pushstring(L, text);
  lua_setfield(L, -2, key);
}

/* [table] -> [table]: with a list of what `next` iterates over */
static void set_names(lua_State *L, const char *key, const char *(*next)(int *at)) {
  const char *name;
  lua_newtable(L);
  for (int at = 0, n = 0; (name = next(&at));) {
    lua_pushstring(L, name);
    lua_rawseti(L, -2, ++n);
  }
  lua_setfield(L, -2, key);
}

static int sys_machine(lua_State *L) {
  pe_machine m;
  pe_machine_read(&m);
  lua_newtable(L);
  set_string(L, "system", m.system);
  set_string(L, "cpu", m.cpu);
  set_integer(L, "cores", (uint64_t)m.cores);
  set_integer(L, "cores_online", (uint64_t)m.cores_online);
  set_integer(L, "memory", m.memory);
  set_integer(L, "memory_available", m.memory_available);
  set_integer(L, "memory_limit", m.memory_limit);
  set_integer(L, "page_size", m.page_size);
  set_integer(L, "open_files", m.open_files);
  set_integer(L, "locked_memory", m.locked_memory);
  set_names(L, "features", pe_machine_next_feature);
  set_names(L, "kernels", pe_machine_next_kernels);
  return 1;
}

static int sys_versions(lua_State *L) {
  char pcre2[64] = "";
  pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
  uint32_t jit = 0;
  pcre2_config(PCRE2_CONFIG_JIT, &jit);
  lua_newtable(L);
  set_string(L, "lua", LUA_RELEASE);
  set_string(L, "libuv", uv_version_string());
  set_string(L, "pcre2", pcre2);
  lua_pushboolean(L, jit != 0);
  lua_setfield(L, -2, "pcre2_jit");
  set_string(L, "utf8proc", utf8proc_version());
  lua_pushfstring(L, "%d.%d.%d", XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE);
  lua_setfield(L, -2, "xxhash");
  int webp = WebPGetDecoderVersion(); /* a byte per number */
  lua_pushfstring(L, "%d.%d.%d", webp >> 16 & 255, webp >> 8 & 255, webp & 255);
  lua_setfield(L, -2, "libwebp");
  set_string(L, "zlib", zlibVersion());
  set_string(L, "zstd", ZSTD_versionString());
#if defined(__clang__)
  set_string(L, "compiler", "clang " __clang_version__);
#elif defined(__GNUC__)
  set_string(L, "compiler", "gcc " __VERSION__);
#else
  set_string(L, "compiler", "unknown");
#endif
  return 1;
}

/* script(name) -> text or nil */
static int sys_script(lua_State *L) {
  if (!pe_source_push(L, luaL_checkstring(L, 1))) lua_pushnil(L);
  return 1;
}

/* scripts() -> names, folder or nil */
static int sys_scripts(lua_State *L) {
  pe_source_push_names(L);
  lua_pushstring(L, pe_state_of(L)->scripts); /* nil for NULL */
  return 2;
}

static int sys_cpu_ns(lua_State *L) {
  lua_pushinteger(L, pe_watchdog_cpu_ns(pe_state_of(L)->watchdog));
  return 1;
}

/* width(text) -> columns on a terminal; invalid bytes and control characters count as one. */
static int sys_width(lua_State *L) {
  size_t len;
  const char *at = luaL_checklstring(L, 1, &len), *end = at + len;
  lua_Integer columns = 0;
  while (at < end) {
    int32_t cp;
    at += pe_utf8_next(at, end, &cp);
    columns += cp < ' ' || cp == 127 ? 1 : utf8proc_charwidth(cp);
  }
  lua_pushinteger(L, columns);
  return 1;
}

/* equal(a, b) -> boolean; the time it takes depends on the lengths only. */
static int sys_equal(lua_State *L) {
  size_t n, m;
  const char *a = luaL_checklstring(L, 1, &n), *b = luaL_checklstring(L, 2, &m);
  volatile unsigned char differ = n != m; /* volatile: the compiler must not stop early either */
  for (size_t i = 0; i < m; i++) differ |= (unsigned char)(b[i] ^ (n ? a[i % n] : 0));
  lua_pushboolean(L, !differ);
  return 1;
}

/* [secret] -> 32 bytes; raises for another length */
static const uint8_t *check_secret(lua_State *L) {
  size_t n;
  const char *secret = luaL_checklstring(L, 1, &n);
  luaL_argexpected(L, n == PE_SEAL_SECRET, 1, "a secret of 32 bytes");
  return (const uint8_t *)secret;
}

/* seal(secret, nonce, text) -> base64 */
static int sys_seal(lua_State *L) {
  size_t nonce_n, n;
  const uint8_t *secret = check_secret(L);
  const char *nonce = luaL_checklstring(L, 2, &nonce_n), *text = luaL_checklstring(L, 3, &n);
  luaL_argexpected(L, nonce_n == PE_SEAL_NONCE, 2, "a nonce of 12 bytes");
  luaL_Buffer digits;
  uint8_t *sealed = lua_newuserdatauv(L, n + PE_SEAL_MORE, 0);
  char *to = luaL_buffinitsize(L, &digits, pe_base64_size(n + PE_SEAL_MORE));
  pe_seal(secret, (const uint8_t *)nonce, text, n, sealed);
  pe_base64_encode(sealed, n + PE_SEAL_MORE, to);
  luaL_pushresultsize(&digits, pe_base64_size(n + PE_SEAL_MORE));
  return 1;
}

/* unseal(secret, base64) -> text, or nil: this was not sealed with the secret */
static int sys_unseal(lua_State *L) {
  size_t n;
  const uint8_t *secret = check_secret(L);
  const char *digits = luaL_checklstring(L, 2, &n);
  uint8_t *text = lua_newuserdatauv(L, n / 4 * 3 + 3, 0);
  pe_buffer *sealed;
  pe_error err;
  if (pe_base64_decode(pe_str_of(digits, n), n, &sealed, &err)) return luaL_pushfail(L), 1;
  size_t size = (size_t)sealed->size;
  bool ours = pe_seal_open(secret, sealed->data, size, text);
  pe_buffer_release(sealed);
  if (ours)
    lua_pushlstring(L, (const char *)text, size - PE_SEAL_MORE);
  else
    luaL_pushfail(L);
  return 1;
}

/* raise_files() -> the limit of open files, raised as high as the system allows */
static int sys_raise_files(lua_State *L) {
  pe_error err;
  uint64_t files;
  if (pe_machine_raise_files(&files, &err)) return pe_bind_error(L, &err);
  lua_pushinteger(L, files > INT64_MAX ? INT64_MAX : (lua_Integer)files);
  return 1;
}

/* trim(): returns memory that was freed to the system, where the allocator keeps it */
static int sys_trim(lua_State *L) {
  (void)L;
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  return 0;
}

/* is_refused(path) -> boolean: is this Unix socket left over from a process that has ended? Only
 * ECONNREFUSED says so: a socket that is full, slow or another user's gives another error. */
static int sys_is_refused(lua_State *L) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  size_t len;
  const char *path = luaL_checklstring(L, 1, &len);
  if (len >= sizeof at.sun_path)
    return luaL_error(L, "socket path of %d bytes is too long: at most %d", (int)len,
                      (int)sizeof at.sun_path - 1);
  memcpy(at.sun_path, path, len);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd >= 0) fcntl(fd, F_SETFL, O_NONBLOCK); /* connecting to a full queue would block */
  bool refused =
      fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) < 0 && errno == ECONNREFUSED;
  if (fd >= 0) close(fd);
  lua_pushboolean(L, refused);
  return 1;
}

int pe_open_sys(lua_State *L) {
  static const luaL_Reg functions[] = {{"machine", sys_machine},
                                       {"versions", sys_versions},
                                       {"script", sys_script},
                                       {"scripts", sys_scripts},
                                       {"cpu_ns", sys_cpu_ns},
                                       {"width", sys_width},
                                       {"equal", sys_equal},
                                       {"seal", sys_seal},
                                       {"unseal", sys_unseal},
                                       {"raise_files", sys_raise_files},
                                       {"is_refused", sys_is_refused},
                                       {"trim", sys_trim},
                                       {NULL, NULL}};
  luaL_newlib(L, functions);
  return 1;
}
