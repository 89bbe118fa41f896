/* The safetensors container: reading, and that every wrong header is an error. */
#include "check.h"
#include "runtime/weights/safetensors.h"

/* A file in memory: length, header, then `data` bytes 0, 1, 2, ... */
static pe_buffer *file_of(const char *header, size_t len, uint64_t claimed, size_t data) {
  pe_buffer *b;
  pe_error err;
  if (pe_buffer_alloc(8 + len + data, &b, &err)) abort();
  for (int i = 0; i < 8; i++) b->data[i] = (uint8_t)(claimed >> 8 * i);
  memcpy(b->data + 8, header, len);
  for (size_t i = 0; i < data; i++) b->data[8 + len + i] = (uint8_t)i;
  return b;
}

static pe_status read_text(const char *header, size_t data, pe_safetensors **out, pe_error *err) {
  pe_buffer *b = file_of(header, strlen(header), strlen(header), data);
  pe_status rc = pe_safetensors_read(b, out, err);
  pe_buffer_release(b);
  return rc;
}

static const char good[] =
    "{\"__metadata__\":{\"format\":\"pt\",\"made \\u0062y\":\"hand\"},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
    "\"a\":{\"data_offsets\":[24,28],\"shape\":[2],\"dtype\":\"BF16\",\"more\":[{}]},"
    "\"\\u00e4\\\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[28,29]},"
    "\"none\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[29,29]}}   ";

static void reads(void) {
  pe_safetensors *s;
  pe_error err;
  pe_status rc = read_text(good, 29, &s, &err);
  CHECK_OK(rc, err);
  if (rc) return;
  CHECK_INT(s->count, 4);
  CHECK_STR(s->tensor[0].name.at, "b"); /* in the order of the header */
  CHECK_STR(s->tensor[1].name.at, "a");
  CHECK_STR(s->tensor[2].name.at, "\xc3\xa4\"");
  CHECK_INT(s->tensor[0].rank, 2);
  CHECK_INT(s->tensor[0].shape[1], 3);
  CHECK_INT(s->tensor[1].dtype, PE_BF16);
  CHECK_INT(s->buf->data[s->tensor[1].at], 24);
  CHECK_INT(s->tensor[2].rank, 0);
  CHECK_INT(s->tensor[2].bytes, 1);
  CHECK_INT(s->tensor[3].bytes, 0);
  pe_safetensors_close(s);
  rc = read_text("{}", 0, &s, &err);
  CHECK_OK(rc, err);
  if (!rc) pe_safetensors_close(s);
}

#define T(rest) "{\"t\":{" rest "}}"
#define F32(shape, offsets) T("\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets)

static void lies(void) {
  static const struct {
    const char *header;
    pe_status code;
    const char *part;
  } cases[] = {
      {"", PE_EFORMAT, "header"},
      {"[]", PE_EFORMAT, "object"},
      {"{\"t\":1}", PE_EFORMAT, "object"},
      {"{} {}", PE_EFORMAT, "line 1"},
      {"{\"t\":{}}", PE_EFORMAT, "'t' has no dtype"},
      {T("\"dtype\":\"F32\",\"data_offsets\":[0,4]"), PE_EFORMAT, "no shape"},
      {T("\"dtype\":\"F32\",\"shape\":[1]"), PE_EFORMAT, "no data_offsets"},
      {T("\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[0,8]"), PE_EUNSUPPORTED,
       "'t' has dtype 'C64'"},
      {T("\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]"), PE_EUNSUPPORTED, "'f32'"},
      {T("\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]"), PE_EFORMAT, "dtype"},
      {F32("[1]", "[0,8]"), PE_EFORMAT, "needs 4 bytes, but data_offsets span 8"},
      {F32("[3]", "[0,8]"), PE_EFORMAT, "needs 12 bytes, but data_offsets span 8"},
      {F32("[2]", "[8,0]"), PE_EFORMAT, "begins at 8 but ends at 0"},
      {F32("[2]", "[0]"), PE_EFORMAT, "must have 2 numbers, got 1"},
      {F32("[2]", "[0,8,9]"), PE_EUNSUPPORTED, "data_offsets"},
      {F32("[-1]", "[0,4]"), PE_EFORMAT, "got -1"},
      {F32("[1.5]", "[0,4]"), PE_EFORMAT, "got 1.5"},
      {F32("[\"1\"]", "[0,4]"), PE_EFORMAT, "shape"},
      {F32("[[1]]", "[0,4]"), PE_EFORMAT, "shape"},
      {F32("[18446744073709551616]", "[0,4]"), PE_EFORMAT, "18446744073709551616"},
      {F32("[4611686018427387904,4611686018427387904]", "[0,4]"), PE_EFORMAT, "overflows"},
      {F32("[9223372036854775807]", "[0,9223372036854775804]"), PE_EFORMAT, "overflows"},
      {F32("[2305843009213693951]", "[0,9223372036854775804]"), PE_EFORMAT,
       "need 9223372036854775"},
      {F32("[1,1,1,1,1,1,1,1,1]", "[0,4]"), PE_EUNSUPPORTED, "more than 8 numbers"},
      {F32("[8]", "[0,32]"), PE_EFORMAT, "truncated: 1 tensors need "},
      {F32("[1]", "[9223372036854775800,9223372036854775804]"), PE_EFORMAT, "truncated"},
      {"{\"__metadata__\":{\"k\":1}}", PE_EFORMAT, "__metadata__"},
      {"{\"x\\ny\":{}}", PE_EFORMAT, "'x?y'"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"a\":{\"dtype\":\"U8\","
       "\"shape\":[2],\"data_offsets\":[2,4]}}",
       PE_EFORMAT, "'a' occurs twice"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\","
       "\"shape\":[2],\"data_offsets\":[3,5]}}",
       PE_EFORMAT, "'a' and 'b' overlap"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]},\"b\":{\"dtype\":\"U8\","
       "\"shape\":[8],\"data_offsets\":[0,8]}}",
       PE_EFORMAT, "overlap"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pe_safetensors *s = NULL;
    pe_error err = {0};
    CHECK_FAILS(read_text(cases[i].header, 16, &s, &err), cases[i].code, err, cases[i].part);
  }
}

static void lying_length(void) {
  static const uint64_t claimed[] = {3,          99999999,   100000000, 1ull << 31,
                                     1ull << 62, 1ull << 63, UINT64_MAX};
  for (size_t i = 0; i < sizeof claimed / sizeof *claimed; i++) {
    pe_safetensors *s;
    pe_error err = {0};
    pe_buffer *b = file_of("{}", 2, claimed[i], 0);
    CHECK_FAILS(pe_safetensors_read(b, &s, &err), PE_EFORMAT, err,
                claimed[i] < 100000000 ? "the file has 10" : "limit");
    pe_buffer_release(b);
  }
}

/* A hundred thousand nested arrays are an error, not a stack overflow. */
static void deep(void) {
  enum { DEPTH = 100000 };
  char *text = malloc(DEPTH + 64);
  int n = sprintf(text, "{\"t\":{\"x\":");
  memset(text + n, '[', DEPTH);
  text[n + DEPTH] = 0;
  pe_safetensors *s;
  pe_error err = {0};
  CHECK_FAILS(read_text(text, 0, &s, &err), PE_EFORMAT, err, "de");
  free(text);
}

static void truncations(void) {
  pe_buffer *whole = file_of(good, strlen(good), strlen(good), 29);
  for (uint64_t n = 0; n < whole->size; n++) {
    pe_buffer *b;
    pe_safetensors *s;
    pe_error err = {0};
    CHECK_OK(pe_buffer_alloc(n, &b, &err), err);
    memcpy(b->data, whole->data, n);
    CHECK_FAILS(pe_safetensors_read(b, &s, &err), PE_EFORMAT, err, "truncated");
    pe_buffer_release(b);
  }
  pe_buffer_release(whole);
}

static void no_memory(void) {
  pe_buffer *b = file_of(good, strlen(good), strlen(good), 29);
  for (int64_t n = 1;; n++) {
    pe_safetensors *s = NULL;
    pe_error err = {0};
    int64_t live = pe_alloc_live();
    pe_alloc_fail_at(n);
    pe_status rc = pe_safetensors_read(b, &s, &err);
    int64_t asked = pe_alloc_count();
    pe_alloc_fail_at(0);
    if (rc == PE_OK) {
      CHECK(asked < n);
      CHECK(n > 4);
      pe_safetensors_close(s);
      break;
    }
    CHECK_INT(rc, PE_ENOMEM);
    CHECK_INT(pe_alloc_live(), live);
  }
  pe_buffer_release(b);
}

/* A mutated file gives an error, or a directory that keeps the promises of safetensors.h. */
static void mutants(void) {
  pe_buffer *whole = file_of(good, strlen(good), strlen(good), 29), *b;
  pe_error err = {0};
  uint64_t rng = 88172645463325252u;
  int opened = 0;
  CHECK_OK(pe_buffer_alloc(whole->size, &b, &err), err);
  for (int round = 0; round < 5000; round++) {
    memcpy(b->data, whole->data, whole->size);
    for (int k = 0; k <= round % 3; k++) {
      rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
      b->data[rng % b->size] =
          rng >> 40 & 1 ? (uint8_t)(rng >> 32) : (uint8_t) "0123456789{}[]\",:-"[rng >> 33 & 15];
    }
    pe_safetensors *s;
    if (pe_safetensors_read(b, &s, &err)) continue;
    opened++;
    for (size_t i = 0; i < s->count; i++)
      CHECK(s->tensor[i].at <= b->size && s->tensor[i].bytes <= b->size - s->tensor[i].at);
    pe_safetensors_close(s);
  }
  CHECK(opened > 100 && opened < 4900);
  pe_buffer_release(b);
  pe_buffer_release(whole);
}

static void missing(void) {
  pe_safetensors *s;
  pe_error err = {0};
  CHECK_FAILS(pe_safetensors_open("tests/data/no-such-file", &s, &err), PE_EIO, err,
              "tests/data/no-such-file");
  CHECK_FAILS(pe_safetensors_open("tests/c/check.h", &s, &err), PE_EFORMAT, err,
              "tests/c/check.h: not a safetensors");
}

static const check_test tests[] = {
    {"reads", reads},
    {"lies", lies},
    {"lying length", lying_length},
    {"deep", deep},
    {"truncations", truncations},
    {"no memory", no_memory},
    {"mutants", mutants},
    {"missing", missing},
};
CHECK_MAIN("safetensors", tests)
