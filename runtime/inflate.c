/* inflate.c - see inflate.h. */
#include "runtime/inflate.h"

#include <inttypes.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

/* zlib counts in 32 bits: it gets its input and output in portions of this size. */
static const uint64_t PORTION = (uint64_t)1 << 30;

static uInt portion(uint64_t n) { return (uInt)(n < PORTION ? n : PORTION); }

static pe_status too_large(pe_str packed, uint64_t most, pe_error *err) {
  return pe_fail(err, PE_ELIMIT, "%zu compressed bytes become more than %" PRIu64, packed.len,
                 most);
}

/* One call of zlib; *at bytes of the input are used, *len of the output are there. */
static int step(z_stream *z, pe_str packed, size_t *at, uint8_t *to, uint64_t room, uint64_t *len) {
  z->next_in = (Bytef *)(uintptr_t)(packed.at + *at); /* zlib does not write to it */
  z->avail_in = portion(packed.len - *at);
  z->next_out = to + *len;
  z->avail_out = portion(room - *len);
  uInt in = z->avail_in, free = z->avail_out;
  int rc = inflate(z, Z_NO_FLUSH);
  *at += in - z->avail_in;
  *len += free - z->avail_out;
  return rc;
}

/* `room` is one byte more than the limit: a text that fills it is too long, one of exactly the
 * limit is not. */
static pe_status gunzip(pe_str packed, uint8_t *to, uint64_t room, uint64_t *len, pe_error *err) {
  z_stream z = {0};
  if (inflateInit2(&z, 15 + 16) != Z_OK) /* the largest window; 16: gzip's head */
    return pe_nomem(err, "zlib");
  size_t at = 0;
  int rc = Z_OK;
  while (*len < room && (rc == Z_OK || (rc == Z_STREAM_END && at < packed.len))) {
    if (rc == Z_STREAM_END) inflateReset(&z); /* another member follows */
    size_t before = at;
    uint64_t had = *len;
    rc = step(&z, packed, &at, to, room, len);
    if (rc == Z_OK && at == before && *len == had) break;
  }
  const char *why = z.msg ? z.msg : "it ends too early";
  pe_status status = PE_OK;
  if (*len == room)
    status = too_large(packed, room - 1, err);
  else if (rc == Z_MEM_ERROR)
    status = pe_nomem(err, "zlib");
  else if (rc != Z_STREAM_END)
    status =
        pe_fail(err, PE_EFORMAT, "not valid gzip after %zu of %zu bytes: %s", at, packed.len, why);
  inflateEnd(&z);
  return status;
}

static pe_status unzstd(pe_str packed, uint8_t *to, uint64_t room, uint64_t *len, pe_error *err) {
  size_t n = ZSTD_decompress(to, room, packed.at, packed.len);
  if (!ZSTD_isError(n)) {
    *len = n;
    return n == room ? too_large(packed, room - 1, err) : PE_OK;
  }
  switch (ZSTD_getErrorCode(n)) {
  case ZSTD_error_dstSize_tooSmall: return too_large(packed, room - 1, err);
  case ZSTD_error_memory_allocation: return pe_nomem(err, "zstd");
  default: return pe_fail(err, PE_EFORMAT, "not valid zstd: %s", ZSTD_getErrorName(n));
  }
}

pe_status pe_inflate(pe_packing kind, pe_str packed, uint64_t most, pe_buffer **out, uint64_t *len,
                     pe_error *err) {
  static pe_status (*const kinds[])(pe_str, uint8_t *, uint64_t, uint64_t *, pe_error *) = {
      [PE_PACKING_GZIP] = gunzip, [PE_PACKING_ZSTD] = unzstd};
  *out = NULL;
  *len = 0;
  pe_status status = pe_buffer_reserve(most + 1, out, err);
  if (!status) status = kinds[kind](packed, (*out)->data, most + 1, len, err);
  if (!status) return PE_OK;
  pe_buffer_release(*out);
  *out = NULL;
  return status;
}
