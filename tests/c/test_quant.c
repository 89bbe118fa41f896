/* test_quant.c - decodes every layout and compares with tests/data/quant.safetensors, which the
 * packages `gguf` and `mlx` computed. */
#include "check.h"
#include "kernels/quant.h"
#include "runtime/weights/safetensors.h"

static pe_safetensors *table;

static const pe_safetensor *entry(const char *name, const char *tail) {
  char full[64];
  snprintf(full, sizeof full, "%s.%s", name, tail);
  for (size_t i = 0; i < table->count; i++)
    if (pe_str_eq(table->tensor[i].name, full)) return &table->tensor[i];
  return NULL;
}

static const uint8_t *bytes_of(const pe_safetensor *t) {
  return t ? table->buf->data + t->at : NULL;
}

/* Equal bit for bit; any NaN equals any NaN. */
static void compare(const char *name, int64_t at, const float *got, const uint8_t *want,
                    int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float w;
    memcpy(&w, want + i * 4, 4);
    if (!memcmp(&got[i], &w, 4) || (isnan(got[i]) && isnan(w))) continue;
    check_failures++;
    printf("    %s: value %" PRId64 " is %.9g, not %.9g\n", name, at + i, (double)got[i],
           (double)w);
    return;
  }
}

/* Whole rows, then every range [from, from + count) that starts or ends near the end of a block. */
static void check_matrix(const char *name, const pe_quant_matrix *m, const uint8_t *want) {
  float *got = malloc((size_t)(m->rows * m->cols) * sizeof *got);
  int before = check_failures;
  pe_quant_rows(m, 0, m->rows, got);
  compare(name, 0, got, want, m->rows * m->cols);
  static const int64_t cuts[] = {0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 95, 96, 127, 128};
  for (size_t a = 0; a < sizeof cuts / sizeof *cuts && check_failures == before; a++)
    for (size_t b = 0; b < sizeof cuts / sizeof *cuts; b++) {
      int64_t from = cuts[a], count = cuts[b], row = (int64_t)(a + b) % m->rows;
      if (from + count > m->cols) continue;
      pe_quant_row(m, row, from, count, got);
      compare(name, row * m->cols + from, got, want + (row * m->cols + from) * 4, count);
    }
  free(got);
}

static bool open_table(void) {
  pe_error err;
  pe_status rc = pe_safetensors_open("tests/data/quant.safetensors", &table, &err);
  CHECK_OK(rc, err);
  return !rc;
}

static void check_case(const char *name, pe_quant q, pe_dtype dtype) {
  const pe_safetensor *data = entry(name, "data"), *want = entry(name, "expected"),
                      *scales = entry(name, "scales");
  const pe_safetensor *global = entry(name, "global_scale");
  CHECK(data && want);
  if (!data || !want) return;
  pe_quant_matrix m = {
      .quant = q, .dtype = dtype, .rows = want->shape[0], .cols = want->shape[1], .global = 1};
  if (scales) m.quant.scale_dtype = scales->dtype;
  m.data = bytes_of(data), m.scales = bytes_of(scales), m.biases = bytes_of(entry(name, "biases"));
  m.row_bytes = pe_quant_row_bytes(&m.quant, dtype, m.cols),
  m.scale_bytes = pe_quant_scale_bytes(&m.quant, m.cols);
  if (global) {
    memcpy(&m.global, bytes_of(global), 4);
    m.global /= 448.0f * 6.0f;
  }
  CHECK(pe_quant_valid(&m.quant));
  CHECK_INT(m.row_bytes * (uint64_t)m.rows, data->bytes);
  CHECK_INT(m.scale_bytes * (uint64_t)m.rows, scales ? scales->bytes : 0);
  check_matrix(name, &m, bytes_of(want));
}

static void gguf_blocks(void) {
  if (!open_table()) return;
  int seen = 0;
  for (int kind = 0; kind < PE_QUANT_COUNT; kind++) {
    if (!pe_quant_block_bytes((pe_quant_kind)kind)) continue;
    check_case(pe_quant_name((pe_quant_kind)kind), (pe_quant){.kind = (pe_quant_kind)kind}, PE_U8);
    seen++;
  }
  CHECK_INT(seen, 13);
  pe_safetensors_close(table);
}

/* Names are MODE-BITS-GROUP-SCALES. */
static void mlx_layouts(void) {
  if (!open_table()) return;
  int seen = 0;
  for (size_t i = 0; i < table->count; i++) {
    char name[64], mode[16];
    int bits, group;
    const char *dot = strstr(table->tensor[i].name.at, ".data");
    if (!dot || sscanf(table->tensor[i].name.at, "%15[^-]-%d-%d-", mode, &bits, &group) != 3)
      continue;
    snprintf(name, sizeof name, "%.*s", (int)(dot - table->tensor[i].name.at),
             table->tensor[i].name.at);
    int kind = pe_quant_find(mode, strlen(mode));
    CHECK(kind > 0);
    check_case(name, (pe_quant){(pe_quant_kind)kind, bits, group, PE_U8}, PE_U32);
    seen++;
  }
  CHECK_INT(seen, 5 * 3 + 3 * 3 + 4);
  pe_safetensors_close(table);
}

/* The worked example: w[i] = i / 4 in 4 bits gives codes 15 15 14 14 ... with a negative scale. */
static void affine_by_hand(void) {
  uint8_t data[16];
  for (int i = 0; i < 16; i++) data[i] = (uint8_t)(0x11 * (15 - i));
  float scale = -0.516667f, bias = 7.75f, out[32];
  pe_quant_matrix m = {.quant = {PE_QUANT_AFFINE, 4, 32, PE_F32},
                       .rows = 1,
                       .cols = 32,
                       .data = data,
                       .row_bytes = 16,
                       .scales = (uint8_t *)&scale,
                       .biases = (uint8_t *)&bias,
                       .scale_bytes = 4};
  pe_quant_rows(&m, 0, 1, out);
  CHECK_NEAR(out[0], 0, 1e-4);
  CHECK_NEAR(out[2], 0.516667, 1e-4);
  CHECK_NEAR(out[31], 7.75, 0);
}

static void stream_of_codes(void) {
  /* bits 0..23 of a byte stream whose bytes are 0x21 0x43 0x65 */
  static const uint8_t s[3] = {0x21, 0x43, 0x65};
  uint32_t all = 0x654321;
  for (int bits = 1; bits <= 8; bits++)
    for (int i = 0; (i + 1) * bits <= 24; i++)
      CHECK_INT(pe_quant_code(s, bits, (uint64_t)i), all >> (i * bits) & ((1u << bits) - 1));
}

static void plain_elements(void) {
  double f64[2] = {1.5, -1e300};
  int64_t i64[2] = {-3, INT64_C(1) << 40};
  uint64_t u64[2] = {7, UINT64_MAX};
  int16_t i16[2] = {-300, 300};
  uint16_t f16[2] = {0x3c00, 0xfbff}, bf16[2] = {0x3f80, 0xc2c8};
  uint8_t u8[4] = {0, 1, 128, 255}, unaligned[9] = {0};
  float out[4], third = 1 / 3.0f;
  pe_quant_plain(PE_F64, (uint8_t *)f64, 2, out);
  CHECK(out[0] == 1.5f && isinf(out[1]) && out[1] < 0);
  pe_quant_plain(PE_I64, (uint8_t *)i64, 2, out);
  CHECK(out[0] == -3 && out[1] == 0x1p40f);
  pe_quant_plain(PE_U64, (uint8_t *)u64, 2, out);
  CHECK(out[0] == 7 && out[1] == 0x1p64f);
  pe_quant_plain(PE_I16, (uint8_t *)i16, 2, out);
  CHECK(out[0] == -300 && out[1] == 300);
  pe_quant_plain(PE_F16, (uint8_t *)f16, 2, out);
  CHECK(out[0] == 1 && out[1] == -65504);
  pe_quant_plain(PE_BF16, (uint8_t *)bf16, 2, out);
  CHECK(out[0] == 1 && out[1] == -100);
  pe_quant_plain(PE_U8, u8, 4, out);
  CHECK(out[3] == 255);
  pe_quant_plain(PE_I8, u8, 4, out);
  CHECK(out[2] == -128 && out[3] == -1);
  pe_quant_plain(PE_BOOL, u8, 4, out);
  CHECK(out[0] == 0 && out[1] == 1 && out[2] == 1);
  memcpy(unaligned + 1, &third, 4);
  pe_quant_plain(PE_F32, unaligned + 1, 1, out);
  CHECK(out[0] == third);
}

static void small_floats(void) {
  CHECK(pe_e4m3_to_f32(0x00) == 0 && !signbit(pe_e4m3_to_f32(0x00)) &&
        signbit(pe_e4m3_to_f32(0x80)));
  CHECK(pe_e4m3_to_f32(0x01) == 0x1p-9f && pe_e4m3_to_f32(0x08) == 0x1p-6f);
  CHECK(pe_e4m3_to_f32(0x38) == 1 && pe_e4m3_to_f32(0x7e) == 448 && pe_e4m3_to_f32(0xfe) == -448);
  CHECK(isnan(pe_e4m3_to_f32(0x7f)) && isnan(pe_e4m3_to_f32(0xff)));
  CHECK(pe_e5m2_to_f32(0x3c) == 1 && pe_e5m2_to_f32(0x7b) == 57344 && isinf(pe_e5m2_to_f32(0x7c)));
  CHECK(pe_e5m2_to_f32(0x01) == 0x1p-16f && isnan(pe_e5m2_to_f32(0x7f)));
  CHECK(pe_e8m0_to_f32(127) == 1 && pe_e8m0_to_f32(0) == 0x1p-127f &&
        pe_e8m0_to_f32(254) == 0x1p127f);
  CHECK(isnan(pe_e8m0_to_f32(255)));
  for (int i = 0; i < 8; i++)
    CHECK(pe_e2m1_to_f32((uint8_t)(i + 8)) == -pe_e2m1_to_f32((uint8_t)i));
  CHECK(pe_e2m1_to_f32(7) == 6 && pe_e2m1_to_f32(1) == 0.5f);
}

static void combinations(void) {
  pe_quant q = {PE_QUANT_AFFINE, 4, 64, PE_BF16};
  CHECK(pe_quant_valid(&q));
  CHECK_INT(pe_quant_row_bytes(&q, PE_U32, 128), 64);
  CHECK_INT(pe_quant_scale_bytes(&q, 128), 4);
  CHECK_INT(pe_quant_row_bytes(&q, PE_U32, 100), 0); /* not whole groups */
  q.bits = 7;
  CHECK(!pe_quant_valid(&q));
  q.bits = 4, q.group = 16;
  CHECK(!pe_quant_valid(&q));
  q.group = 64, q.scale_dtype = PE_U8;
  CHECK(!pe_quant_valid(&q));
  pe_quant k = {.kind = PE_QUANT_Q4_K}, plain = {0};
  CHECK_INT(pe_quant_row_bytes(&k, PE_U8, 512), 288);
  CHECK_INT(pe_quant_row_bytes(&k, PE_U8, 128), 0);
  CHECK_INT(pe_quant_row_bytes(&plain, PE_F64, INT64_MAX), 0); /* overflow */
  CHECK_INT(pe_quant_row_bytes(&plain, PE_BF16, 3), 6);
}

/* The table of type numbers agrees with the table of layouts. */
static void type_numbers(void) {
  int decoded = 0, named = 0;
  for (uint32_t n = 0; n < 64; n++) {
    const pe_ggml_type *t = pe_ggml_type_find(n);
    if (!t) continue;
    named++;
    if (t->kind < 0) continue;
    if (t->kind == PE_QUANT_NONE) {
      CHECK_INT(t->bytes, pe_dtype_size(t->dtype));
      continue;
    }
    decoded++;
    CHECK_STR(t->name, pe_quant_name((pe_quant_kind)t->kind));
    CHECK_INT(t->values, pe_quant_block_values((pe_quant_kind)t->kind));
    CHECK_INT(t->bytes, pe_quant_block_bytes((pe_quant_kind)t->kind));
  }
  CHECK_INT(decoded, 13);
  CHECK_INT(named, 34);
  CHECK(!pe_ggml_type_find(4) && !pe_ggml_type_find(UINT32_MAX));
}

/* Kinds that are not decoded: their sizes tell where the next tensor of a file begins. */
static void opaque_types(void) {
  static const struct {
    uint32_t number;
    const char *name;
    int values, bytes;
  } known[] = {
      {9, "Q8_1", 32, 40},     {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
      {17, "IQ2_XS", 256, 74}, {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
      {21, "IQ3_S", 256, 110}, {22, "IQ2_S", 256, 82},   {29, "IQ1_M", 256, 56},
      {34, "TQ1_0", 256, 54},  {35, "TQ2_0", 256, 66},   {40, "NVFP4", 64, 36},
      {41, "Q1_0", 128, 18},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    const pe_ggml_type *t = pe_ggml_type_find(known[i].number);
    CHECK(t && t->kind < 0);
    if (!t) continue;
    CHECK_STR(t->name, known[i].name);
    CHECK_INT(t->values, known[i].values);
    CHECK_INT(t->bytes, known[i].bytes);
  }
}

static const check_test tests[] = {
    {"gguf blocks", gguf_blocks},       {"mlx layouts", mlx_layouts},
    {"affine by hand", affine_by_hand}, {"stream of codes", stream_of_codes},
    {"plain elements", plain_elements}, {"small floats", small_floats},
    {"combinations", combinations},     {"type numbers", type_numbers},
    {"opaque types", opaque_types},
};
CHECK_MAIN("quant", tests)
