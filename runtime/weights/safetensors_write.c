/* safetensors_write.c - the writing half of safetensors.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/json.h"
#include "runtime/weights/safetensors.h"

static uint64_t item_bytes(const pe_safetensors_item *x) {
  uint64_t n = pe_dtype_size(x->dtype);
  for (int i = 0; i < x->rank; i++) n *= (uint64_t)x->shape[i];
  return n;
}

static pe_status put_item(pe_buf *b, const pe_safetensors_item *x, uint64_t at, pe_error *err) {
  pe_status rc = pe_json_put_str(b, pe_str_c(x->name), false, err);
  if (!rc)
    rc = pe_buf_printf(b, err, ":{\"dtype\":\"%s\",\"shape\":[", pe_dtype_file_name(x->dtype));
  for (int i = 0; !rc && i < x->rank; i++)
    rc = pe_buf_printf(b, err, "%s%lld", i ? "," : "", (long long)x->shape[i]);
  if (!rc)
    rc = pe_buf_printf(b, err, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                       (unsigned long long)(at + item_bytes(x)));
  return rc;
}

/* Pads the header with spaces so that the data begins at a multiple of 64 bytes, a cache line. */
static pe_status make_header(pe_buf *b, const pe_safetensors_item *items, size_t count,
                             pe_error *err) {
  pe_status rc = pe_buf_byte(b, '{', err);
  uint64_t at = 0;
  for (size_t i = 0; !rc && i < count; i++) {
    if (i) rc = pe_buf_byte(b, ',', err);
    if (!rc) rc = put_item(b, &items[i], at, err);
    at += item_bytes(&items[i]);
  }
  if (!rc) rc = pe_buf_byte(b, '}', err);
  while (!rc && (b->len + 8) % 64) rc = pe_buf_byte(b, ' ', err);
  return rc;
}

static bool write_all(FILE *f, const pe_buf *header, const pe_safetensors_item *items,
                      size_t count) {
  uint64_t n = header->len;
  uint8_t length[8];
  for (int i = 0; i < 8; i++) length[i] = (uint8_t)(n >> (8 * i));
  bool ok = fwrite(length, 1, 8, f) == 8 && fwrite(header->data, 1, n, f) == n;
  for (size_t i = 0; ok && i < count; i++) {
    uint64_t bytes = item_bytes(&items[i]);
    ok = !bytes || fwrite(items[i].data, 1, bytes, f) == bytes;
  }
  return ok;
}

pe_status pe_safetensors_write(const char *path, const pe_safetensors_item *items, size_t count,
                               pe_error *err) {
  pe_buf header = {0}, temporary = {0};
  FILE *f = NULL;
  pe_status rc = make_header(&header, items, count, err);
  if (!rc) rc = pe_buf_printf(&temporary, err, "%s.%ld.part", path, (long)getpid());
  if (!rc) rc = pe_buf_byte(&temporary, 0, err);
  if (!rc && !(f = fopen(temporary.data, "wb")))
    rc = pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  if (!rc && !write_all(f, &header, items, count))
    rc = pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  if (f && fclose(f) && !rc) rc = pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  if (!rc && rename(temporary.data, path))
    rc = pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  if (rc && f) unlink(temporary.data);
  pe_buf_free(&header), pe_buf_free(&temporary);
  return rc;
}
