/* The GGUF container: reading, and that every wrong header is an error. */
#include "check.h"
#include "gguf_writer.h"

#include <unistd.h>

/* Keys of every kind, two tensors, alignment 64. */
static void put_good(writer *w) {
  put_header(w, 3, 2, 12);
  put_key(w, "general.architecture", PE_GGUF_STRING), put_str(w, "llama");
  put_key(w, "general.alignment", PE_GGUF_U32), put(w, 64, 4);
  put_key(w, "u8", PE_GGUF_U8), put(w, 200, 1);
  put_key(w, "i8", PE_GGUF_I8), put(w, 0x9c, 1);
  put_key(w, "i16", PE_GGUF_I16), put(w, (uint16_t)-300, 2);
  put_key(w, "i64", PE_GGUF_I64), put(w, (uint64_t)-5, 8);
  put_key(w, "f32", PE_GGUF_F32), put(w, 0x3fc00000, 4);
  put_key(w, "f64", PE_GGUF_F64), put(w, 0xbff8000000000000, 8);
  put_key(w, "yes", PE_GGUF_BOOL), put(w, 1, 1);
  put_key(w, "ints", PE_GGUF_ARRAY), put(w, PE_GGUF_I32, 4), put(w, 3, 8), put(w, 1, 4),
      put(w, (uint32_t)-2, 4), put(w, 3, 4);
  put_key(w, "texts", PE_GGUF_ARRAY), put(w, PE_GGUF_STRING, 4), put(w, 2, 8), put_str(w, "one"),
      put_str(w, "");
  put_key(w, "floats", PE_GGUF_ARRAY), put(w, PE_GGUF_F32, 4), put(w, 1, 8), put(w, 0x40000000, 4);
  put_tensor(w, "q", 2, (uint64_t[]){32, 3}, 2, 0); /* Q4_0: 3 blocks of 18 */
  put_tensor(w, "v", 1, (uint64_t[]){5}, 0, 64);    /* F32 */
  put_data(w, 64, 64 + 20);
}

static pe_buffer *buffer_of(const uint8_t *data, size_t len) {
  pe_buffer *b;
  pe_error err;
  if (pe_buffer_alloc(len, &b, &err)) abort();
  memcpy(b->data, data, len);
  return b;
}

static pe_status read_writer(const writer *w, pe_gguf **out, pe_error *err) {
  pe_buffer *b = buffer_of(w->data, w->len);
  pe_status rc = pe_gguf_read(b, out, err);
  pe_buffer_release(b);
  return rc;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void reads(void) {
  writer w;
  pe_gguf *g;
  pe_error err;
  put_good(&w);
  pe_status rc = read_writer(&w, &g, &err);
  CHECK_OK(rc, err);
  if (rc) return;
  int64_t i;
  bool b;
  pe_str s;
  CHECK_INT(g->version, 3);
  CHECK_INT(g->alignment, 64);
  CHECK_INT(g->meta_count, 12);
  CHECK(pe_gguf_str(g, "general.architecture", &s) && pe_str_eq(s, "llama"));
  CHECK(pe_gguf_int(g, "u8", &i) && i == 200);
  CHECK(pe_gguf_int(g, "i8", &i) && i == -100);
  CHECK(pe_gguf_int(g, "i16", &i) && i == -300);
  CHECK(pe_gguf_int(g, "i64", &i) && i == -5);
  CHECK(pe_gguf_int(g, "yes", &i) && i == 1);
  CHECK_NEAR(pe_gguf_float_at(pe_gguf_find(g, "f32"), 0), 1.5, 0);
  CHECK_NEAR(pe_gguf_float_at(pe_gguf_find(g, "f64"), 0), -1.5, 0);
  CHECK(pe_gguf_bool(g, "yes", &b) && b);
  CHECK(!pe_gguf_int(g, "f32", &i) && !pe_gguf_bool(g, "u8", &b));
  CHECK(!pe_gguf_int(g, "texts", &i) && !pe_gguf_str(g, "texts", &s) &&
        !pe_gguf_int(g, "absent", &i));
  const pe_gguf_meta *m = pe_gguf_find(g, "ints");
  CHECK(m && m->type == PE_GGUF_ARRAY && m->element == PE_GGUF_I32 && m->count == 3);
  CHECK_INT(pe_gguf_int_at(m, 1), -2);
  CHECK_INT(pe_gguf_int_at(m, 3), 0);
  CHECK_NEAR(pe_gguf_float_at(pe_gguf_find(g, "floats"), 0), 2, 0);
  m = pe_gguf_find(g, "texts");
  const uint8_t *at = m->data;
  CHECK(pe_str_eq(pe_gguf_str_next(&at), "one"));
  CHECK_INT(pe_gguf_str_next(&at).len, 0);
  CHECK_INT(g->tensor_count, 2);
  CHECK_INT(g->tensor[0].shape[0], 3); /* outermost first */
  CHECK_INT(g->tensor[0].shape[1], 32);
  CHECK_INT(g->tensor[0].bytes, 54);
  CHECK_INT(g->tensor[0].at % 64, 0);
  CHECK_INT(g->buf->data[g->tensor[1].at], 64);
  CHECK_INT(g->tensor[1].bytes, 20);
  pe_gguf_close(g);
}

/* Each writes a file with one wrong entry. */
static void lie_magic(writer *w) { put_good(w), w->data[0] = 'g'; }
static void lie_v1(writer *w) { put_good(w), w->data[4] = 1; }
static void lie_v4(writer *w) { put_good(w), w->data[4] = 4; }
static void lie_big(writer *w) { put_good(w), memcpy(w->data + 4, "\0\0\0\3", 4); }
static void lie_keys(writer *w) { put_header(w, 3, 0, UINT64_MAX), put_data(w, 32, 100); }
static void lie_tensors(writer *w) { put_header(w, 3, 1ull << 62, 0), put_data(w, 32, 100); }
static void lie_key_length(writer *w) {
  put_header(w, 3, 0, 1), put(w, UINT64_MAX - 7, 8), put_data(w, 32, 64);
}
static void lie_type(writer *w) {
  put_header(w, 3, 0, 1), put_key(w, "k", 13), put_data(w, 32, 64);
}
static void lie_nested(writer *w) {
  put_header(w, 3, 0, 1), put_key(w, "k", PE_GGUF_ARRAY), put(w, PE_GGUF_ARRAY, 4), put(w, 1, 8),
      put_data(w, 32, 64);
}
static void lie_array(writer *w, pe_gguf_type t, uint64_t n) {
  put_header(w, 3, 0, 1), put_key(w, "k", PE_GGUF_ARRAY), put(w, t, 4), put(w, n, 8),
      put_data(w, 32, 64);
}
static void lie_ints(writer *w) { lie_array(w, PE_GGUF_U64, 1ull << 61); }
static void lie_texts(writer *w) { lie_array(w, PE_GGUF_STRING, UINT64_MAX); }
static void lie_twice(writer *w) {
  put_header(w, 3, 0, 3), put_key(w, "k", PE_GGUF_U8), put(w, 1, 1), put_key(w, "j", PE_GGUF_U8),
      put(w, 1, 1);
  put_key(w, "k", PE_GGUF_U8), put(w, 1, 1);
}
static void lie_alignment(writer *w, uint32_t a) {
  put_header(w, 3, 0, 1), put_key(w, "general.alignment", PE_GGUF_U32), put(w, a, 4);
}
static void lie_alignment0(writer *w) { lie_alignment(w, 0); }
static void lie_alignment48(writer *w) { lie_alignment(w, 48); }
static void lie_alignment_text(writer *w) {
  put_header(w, 3, 0, 1), put_key(w, "general.alignment", PE_GGUF_STRING), put_str(w, "32");
}
static void one_tensor(writer *w, int rank, const uint64_t *dims, uint32_t type, uint64_t offset) {
  put_header(w, 3, 1, 0), put_tensor(w, "t", rank, dims, type, offset), put_data(w, 32, 64);
}
static void lie_rank(writer *w) { one_tensor(w, 5, (uint64_t[]){1, 1, 1, 1, 1}, 0, 0); }
static void lie_dim(writer *w) { one_tensor(w, 1, (uint64_t[]){1ull << 63}, 0, 0); }
static void lie_product(writer *w) {
  one_tensor(w, 3, (uint64_t[]){1ull << 32, 1ull << 31, 2}, 0, 0);
}
static void lie_size(writer *w) { one_tensor(w, 2, (uint64_t[]){1ull << 31, 1ull << 31}, 28, 0); }
static void lie_row(writer *w) { one_tensor(w, 2, (uint64_t[]){48, 1}, 2, 0); }
static void lie_ggml(writer *w) { one_tensor(w, 1, (uint64_t[]){32}, 4, 0); }
static void lie_offset(writer *w) { one_tensor(w, 1, (uint64_t[]){4}, 0, 8); }
static void lie_far(writer *w) { one_tensor(w, 1, (uint64_t[]){4}, 0, UINT64_MAX - 31); }
static void lie_beyond(writer *w) { one_tensor(w, 1, (uint64_t[]){17}, 0, 0); }
static void two_tensors(writer *w, const char *a, const char *b, uint64_t at) {
  put_header(w, 3, 2, 0), put_tensor(w, a, 1, (uint64_t[]){16}, 0, 0),
      put_tensor(w, b, 1, (uint64_t[]){4}, 0, at);
  put_data(w, 32, 128);
}
static void lie_overlap(writer *w) { two_tensors(w, "a", "b", 32); }
static void lie_names(writer *w) { two_tensors(w, "a", "a", 64); }

static void lies(void) {
  static const struct {
    void (*make)(writer *);
    pe_status code;
    const char *part;
  } cases[] = {
      {lie_magic, PE_EFORMAT, "not a GGUF file"},
      {lie_v1, PE_EUNSUPPORTED, "version 1"},
      {lie_v4, PE_EUNSUPPORTED, "version 4"},
      {lie_big, PE_EUNSUPPORTED, "big-endian"},
      {lie_keys, PE_EFORMAT, "18446744073709551615 keys do not fit"},
      {lie_tensors, PE_EFORMAT, "4611686018427387904 tensors do not fit"},
      {lie_key_length, PE_EFORMAT, "a key at byte 32 needs 18446744073709551608 bytes"},
      {lie_type, PE_EFORMAT, "value type 13"},
      {lie_nested, PE_EUNSUPPORTED, "array of arrays"},
      {lie_ints, PE_EFORMAT, "key 'k': truncated"},
      {lie_texts, PE_EFORMAT, "key 'k': truncated"},
      {lie_twice, PE_EFORMAT, "key 'k' occurs twice"},
      {lie_alignment0, PE_EFORMAT, "alignment must be a power of two, got 0"},
      {lie_alignment48, PE_EFORMAT, "alignment must be a power of two, got 48"},
      {lie_alignment_text, PE_EFORMAT, "general.alignment is not a number"},
      {lie_rank, PE_EFORMAT, "at most 4 dimensions, got 5"},
      {lie_dim, PE_EFORMAT, "dimension 9223372036854775808"},
      {lie_product, PE_EFORMAT, "overflows"},
      {lie_size, PE_EFORMAT, "overflows"},
      {lie_row, PE_ESHAPE, "rows have 48 values, which is not a multiple of Q4_0's blocks of 32"},
      {lie_ggml, PE_EUNSUPPORTED, "type number 4"},
      {lie_offset, PE_EFORMAT, "offset 8 is not a multiple of the alignment 32"},
      {lie_far, PE_EFORMAT, "overflows"},
      {lie_beyond, PE_EFORMAT, "need 132 bytes, the file has 128"},
      {lie_overlap, PE_EFORMAT, "'a' and 'b' overlap"},
      {lie_names, PE_EFORMAT, "'a' occurs twice"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    writer w;
    pe_gguf *g = NULL;
    pe_error err = {0};
    cases[i].make(&w);
    CHECK_FAILS(read_writer(&w, &g, &err), cases[i].code, err, cases[i].part);
  }
}

static void version_two(void) {
  writer w;
  pe_gguf *g;
  pe_error err;
  put_good(&w);
  w.data[4] = 2;
  pe_status rc = read_writer(&w, &g, &err);
  CHECK_OK(rc, err);
  if (!rc) pe_gguf_close(g);
}

static void truncations(void) {
  writer w;
  put_good(&w);
  for (size_t n = 0; n < w.len; n++) {
    pe_gguf *g;
    pe_error err = {0};
    pe_buffer *b = buffer_of(w.data, n);
    CHECK_FAILS(pe_gguf_read(b, &g, &err), PE_EFORMAT, err,
                n < 4 ? "not a GGUF file" : "truncated");
    pe_buffer_release(b);
  }
}

static void no_memory(void) {
  writer w;
  put_good(&w);
  pe_buffer *b = buffer_of(w.data, w.len);
  for (int64_t n = 1;; n++) {
    pe_gguf *g = NULL;
    pe_error err = {0};
    int64_t live = pe_alloc_live();
    pe_alloc_fail_at(n);
    pe_status rc = pe_gguf_read(b, &g, &err);
    pe_alloc_fail_at(0);
    if (rc == PE_OK) {
      CHECK_INT(n, 6); /* the reader, two directories, two checks */
      pe_gguf_close(g);
      break;
    }
    CHECK_INT(rc, PE_ENOMEM);
    CHECK_INT(pe_alloc_live(), live);
  }
  pe_buffer_release(b);
}

/* Reads every value of a mutated file that opened: nothing may lie outside the file. */
static void walk(const pe_gguf *g) {
  uint64_t sum = 0;
  for (size_t i = 0; i < g->meta_count; i++) {
    const pe_gguf_meta *m = &g->meta[i];
    const uint8_t *at = m->data;
    for (uint64_t k = 0; k < m->count && m->element == PE_GGUF_STRING; k++) {
      pe_str s = pe_gguf_str_next(&at);
      for (size_t c = 0; c < s.len; c++) sum += (uint8_t)s.at[c];
    }
    for (uint64_t k = 0; k < m->count && m->element != PE_GGUF_STRING; k++)
      sum += (uint64_t)pe_gguf_int_at(m, k) + (pe_gguf_float_at(m, k) > 0);
  }
  for (size_t i = 0; i < g->tensor_count; i++)
    for (uint64_t k = 0; k < g->tensor[i].bytes; k++) sum += g->buf->data[g->tensor[i].at + k];
  CHECK(sum != 1);
}

static void mutants(void) {
  static const uint64_t edges[] = {0,         1,          31,        32,         255,       65535,
                                   INT32_MAX, UINT32_MAX, INT64_MAX, 1ull << 63, UINT64_MAX};
  writer w;
  put_good(&w);
  pe_buffer *b = buffer_of(w.data, w.len);
  uint64_t rng = 88172645463325252u;
  int opened = 0;
  for (int round = 0; round < 5000; round++) {
    memcpy(b->data, w.data, w.len);
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    size_t at = rng % (b->size - 8);
    if (rng >> 40 & 1)
      memcpy(b->data + at, &edges[(rng >> 41) % 11], rng >> 50 & 1 ? 8 : 4);
    else
      b->data[at] ^= (uint8_t)(1 << (rng >> 41 & 7));
    pe_gguf *g;
    pe_error err;
    if (pe_gguf_read(b, &g, &err)) continue;
    opened++;
    walk(g);
    pe_gguf_close(g);
  }
  CHECK(opened > 100 && opened < 4900);
  pe_buffer_release(b);
}

static void files(void) {
  pe_gguf *g;
  pe_error err = {0};
  pe_str s;
  CHECK(pe_gguf_magic("tests/golden-gguf/llama-Q4_0.gguf") && !pe_gguf_magic("tests/c/check.h") &&
        !pe_gguf_magic("none"));
  CHECK_FAILS(pe_gguf_open("none", &g, &err), PE_EIO, err, "none: ");
  CHECK_FAILS(pe_gguf_open("tests/c/check.h", &g, &err), PE_EFORMAT, err,
              "tests/c/check.h: not a GGUF file");
  pe_status rc = pe_gguf_open("tests/golden-gguf/llama-Q4_0.gguf", &g, &err);
  CHECK_OK(rc, err);
  if (rc) return;
  CHECK(pe_gguf_str(g, "general.architecture", &s) && pe_str_eq(s, "llama"));
  CHECK_INT(g->tensor_count, 21);
  CHECK_INT(pe_gguf_find(g, "tokenizer.ggml.tokens")->count, 300);
  pe_gguf_close(g);
}

/* What was checked when the file was opened is what is used later. */
static void overwritten(void) {
  char path[] = "/tmp/perigee-gguf-XXXXXX";
  static uint8_t bytes[1 << 20];
  FILE *f = fopen("tests/golden-gguf/llama-Q4_0.gguf", "rb");
  int fd = mkstemp(path);
  if (!f || fd < 0) abort();
  size_t size = fread(bytes, 1, sizeof bytes, f);
  fclose(f);
  pe_gguf *g = NULL;
  pe_error err = {0};
  CHECK(size > 8192 && write(fd, bytes, size) == (ssize_t)size);
  CHECK_OK(pe_gguf_open(path, &g, &err), err);
  memset(bytes, 0xff, size);
  CHECK(pwrite(fd, bytes, size, 0) == (ssize_t)size);
  close(fd);
  const pe_gguf_meta *m = g ? pe_gguf_find(g, "tokenizer.ggml.tokens") : NULL;
  CHECK(m && m->count == 300);
  const uint8_t *at = m ? m->data : NULL;
  for (uint64_t i = 0; m && i < m->count && !check_failures; i++)
    CHECK(pe_gguf_str_next(&at).len < 100);
  pe_gguf_close(g);
  unlink(path);
}

static const check_test tests[] = {
    {"reads", reads},
    {"lies", lies},
    {"version two", version_two},
    {"truncations", truncations},
    {"no memory", no_memory},
    {"mutants", mutants},
    {"files", files},
    {"overwritten", overwritten},
};
CHECK_MAIN("gguf", tests)
