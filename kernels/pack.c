/* pack.c - see pack.h: the table of kinds, the layout of a chunk, filling, and reading back. */
#include "kernels/pack.h"

#include "kernels/pack_stored.h"

#include <math.h>
#include <string.h>

/* ---- kinds ----------------------------------------------------------------------------------- */

/* Levels are stored with the offset added, so that they are unsigned. */
static const uint8_t e2m1_levels[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
static const uint8_t nonlinear_levels[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                             129, 141, 153, 166, 181, 197, 217, 241};

typedef struct form {
  uint8_t kind, bits; /* bits: only affine has several */
  uint8_t base, upper;
  uint8_t scale; /* of affine: that of its type */
  bool bias;
  uint8_t offset;
  const uint8_t *levels;
  uint8_t group; /* 0: as the matrix says */
  uint8_t align; /* chunks are a multiple of this many columns */
} form;

static const form forms[] = {
    {PE_QUANT_AFFINE, 2, 2, 0, 0, true, 0, NULL, 0, 64},
    {PE_QUANT_AFFINE, 3, 2, 1, 0, true, 0, NULL, 0, 64},
    {PE_QUANT_AFFINE, 4, 4, 0, 0, true, 0, NULL, 0, 64},
    {PE_QUANT_AFFINE, 5, 4, 1, 0, true, 0, NULL, 0, 64},
    {PE_QUANT_AFFINE, 6, 4, 2, 0, true, 0, NULL, 0, 64},
    {PE_QUANT_AFFINE, 8, 8, 0, 0, true, 0, NULL, 0, 64},
    /* 64 columns and their 2 scales are 544 bytes, no whole number of cache lines; 128 are */
    {PE_QUANT_MXFP4, 0, 4, 0, PE_PACK_E8M0, false, 12, e2m1_levels, 32, 128},
    {PE_QUANT_GGUF_MXFP4, 0, 4, 0, PE_PACK_E8M0_GGUF, false, 12, e2m1_levels, 32, 128},
    {PE_QUANT_NVFP4, 0, 4, 0, PE_PACK_E4M3, false, 12, e2m1_levels, 16, 64},
    {PE_QUANT_Q4_0, 0, 4, 0, PE_PACK_F16, false, 8, NULL, 32, 64},
    {PE_QUANT_Q4_1, 0, 4, 0, PE_PACK_F16, true, 0, NULL, 32, 64},
    {PE_QUANT_Q5_0, 0, 4, 1, PE_PACK_F16, false, 16, NULL, 32, 64},
    {PE_QUANT_Q5_1, 0, 4, 1, PE_PACK_F16, true, 0, NULL, 32, 64},
    {PE_QUANT_Q8_0, 0, 8, 0, PE_PACK_F16, false, 128, NULL, 32, 64},
    {PE_QUANT_IQ4_NL, 0, 4, 0, PE_PACK_F16, false, 128, nonlinear_levels, 32, 64},
    {PE_QUANT_Q2_K, 0, 2, 0, PE_PACK_SUB_NIBBLES, true, 0, NULL, 16, 0},
    {PE_QUANT_Q3_K, 0, 2, 1, PE_PACK_SUB_I8, false, 4, NULL, 16, 0},
    {PE_QUANT_Q4_K, 0, 4, 0, PE_PACK_SUB_U8, true, 0, NULL, 32, 0},
    {PE_QUANT_Q5_K, 0, 4, 1, PE_PACK_SUB_U8, true, 0, NULL, 32, 0},
    {PE_QUANT_Q6_K, 0, 4, 2, PE_PACK_SUB_I8, false, 32, NULL, 16, 0},
    {PE_QUANT_IQ4_XS, 0, 4, 0, PE_PACK_SUB_I8, false, 128, nonlinear_levels, 32, 0},
};

static const form *form_of(const pe_quant *q) {
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
    if (forms[i].kind == q->kind && (!forms[i].bits || forms[i].bits == q->bits)) return &forms[i];
  return NULL;
}

bool pe_pack_supported(const pe_quant_matrix *m) {
  return m->rows > 0 && m->cols > 0 && pe_quant_valid(&m->quant) && form_of(&m->quant);
}

/* ---- layout ---------------------------------------------------------------------------------- */

static pe_pack_scale scale_of_type(pe_dtype t) {
  return t == PE_F16 ? PE_PACK_F16 : t == PE_BF16 ? PE_PACK_BF16 : PE_PACK_F32;
}

/* Bytes of a scale or a bias of one row and group. */
static int entry_bytes(pe_pack_scale s) {
  return s == PE_PACK_F32 ? 4 : s == PE_PACK_F16 || s == PE_PACK_BF16 ? 2 : 1;
}

static int super_bytes(pe_pack_scale s) {
  return s == PE_PACK_SUB_I8 ? 2 : s == PE_PACK_SUB_U8 || s == PE_PACK_SUB_NIBBLES ? 4 : 0;
}

void pe_pack_describe(const pe_quant_matrix *m, pe_pack *out) {
  const form *f = form_of(&m->quant);
  pe_pack p = {.quant = m->quant,
               .rows = m->rows,
               .cols = m->cols,
               .base = f->base,
               .upper = f->upper,
               .scale = f->bits ? scale_of_type(m->quant.scale_dtype) : f->scale,
               .bias = f->bias,
               .offset = f->offset,
               .levels = f->levels,
               .group = f->group ? f->group : m->quant.group,
               .global = m->quant.kind == PE_QUANT_NVFP4 ? m->global : 1};
  p.act = p.group < 64 ? p.group : 64;
  p.chunk = !f->align ? PE_PACK_CHUNK : p.group > f->align ? p.group : f->align;
  p.groups = p.chunk / p.group, p.times = p.group / p.act;
  int entries = p.groups * PE_PACK_ROWS * entry_bytes(p.scale);
  p.upper_at = p.chunk * p.base / 8 * PE_PACK_ROWS;
  p.scale_at = p.upper_at + p.chunk * p.upper / 8 * PE_PACK_ROWS;
  p.bias_at = p.scale_at + entries;
  p.super_at = p.bias_at + (p.bias && p.scale != PE_PACK_SUB_NIBBLES ? entries : 0);
  int end = p.super_at + super_bytes(p.scale) * PE_PACK_ROWS;
  p.chunk_bytes = (end + PE_PACK_ALIGN - 1) / PE_PACK_ALIGN * PE_PACK_ALIGN;
  p.panel_bytes = (uint64_t)((p.cols + p.chunk - 1) / p.chunk) * (uint64_t)p.chunk_bytes;
  *out = p;
}

uint64_t pe_pack_bytes(const pe_quant_matrix *m) {
  pe_pack p;
  pe_pack_describe(m, &p);
  return (uint64_t)pe_pack_panels(&p) * p.panel_bytes;
}

/* ---- filling --------------------------------------------------------------------------------- */

typedef struct span { /* the rows of a panel, at most 256 columns of them */
  const pe_pack *p;
  const pe_quant_matrix *m;
  int64_t row, col; /* the first */
  int lanes, cols;
  uint8_t *chunk; /* where it begins in the pack */
} span;

typedef uint32_t v4w __attribute__((vector_size(16)));

/* Four words of each of four rows, `step` bytes apart, become four lanes of four words. Word by
 * word, packing would spend most of its time on stores. */
static void put_4x4(uint8_t *plane, const uint8_t *rows, uint64_t step) {
  v4w a, b, c, d;
  memcpy(&a, rows, sizeof a), memcpy(&b, rows + step, sizeof b);
  memcpy(&c, rows + 2 * step, sizeof c), memcpy(&d, rows + 3 * step, sizeof d);
  const v4w ac = __builtin_shufflevector(a, c, 0, 4, 1, 5),
            bd = __builtin_shufflevector(b, d, 0, 4, 1, 5);
  const v4w ac2 = __builtin_shufflevector(a, c, 2, 6, 3, 7),
            bd2 = __builtin_shufflevector(b, d, 2, 6, 3, 7);
  const v4w line[4] = {
      __builtin_shufflevector(ac, bd, 0, 4, 1, 5), __builtin_shufflevector(ac, bd, 2, 6, 3, 7),
      __builtin_shufflevector(ac2, bd2, 0, 4, 1, 5), __builtin_shufflevector(ac2, bd2, 2, 6, 3, 7)};
  for (int i = 0; i < 4; i++) memcpy(plane + i * PE_PACK_ROWS * 4, &line[i], sizeof line[i]);
}

/* The words of a plane: `words` of each row, `each` of them in a chunk; rows are `step` bytes
 * apart. */
static void put_words(const span *x, uint8_t *plane, const uint8_t *rows, uint64_t step, int words,
                      int each) {
  for (; words > 0; words -= each, rows += each * 4, plane += x->p->chunk_bytes) {
    const int n = words < each ? words : each;
    for (int lane = 0, i; lane < x->lanes; lane += 4) {
      const uint8_t *from = rows + (uint64_t)lane * step;
      for (i = 0; x->lanes - lane >= 4 && i + 4 <= n; i += 4)
        put_4x4(plane + (i * PE_PACK_ROWS + lane) * 4, from + 4 * i, step);
      for (; i < n; i++)
        for (int k = lane; k < lane + 4 && k < x->lanes; k++)
          memcpy(plane + (i * PE_PACK_ROWS + k) * 4, rows + (uint64_t)k * step + 4 * i, 4);
    }
  }
}

static void put_planes(const span *x, const pe_stored *s) {
  const pe_pack *p = x->p;
  const int chunks = (x->cols + p->chunk - 1) / p->chunk;
  const int base = p->chunk * p->base / 32, upper = p->chunk * p->upper / 32;
  put_words(x, x->chunk, (const uint8_t *)s->base, sizeof *s, chunks * base, base);
  if (upper)
    put_words(x, x->chunk + p->upper_at, (const uint8_t *)s->upper, sizeof *s, chunks * upper,
              upper);
}

static inline void put_sized(const span *x, uint8_t *out, const uint8_t *in, uint64_t step, int n,
                             int each, const int lanes, const size_t size) {
  for (int g = 0; g < n; g++, in += size) {
    uint8_t *to = out + (size_t)(g / each) * (size_t)x->p->chunk_bytes +
                  (size_t)(g % each) * PE_PACK_ROWS * size;
    for (int lane = 0; lane < lanes; lane++)
      memcpy(to + (size_t)lane * size, in + (uint64_t)lane * step, size);
  }
}

/* n entries of each row, `size` bytes each, `each` of them in a chunk: of all rows side by side. */
static void put_entries(const span *x, int at, const uint8_t *in, uint64_t step, int n, int each,
                        int size) {
  uint8_t *out = x->chunk + at;
  const bool whole = x->lanes == PE_PACK_ROWS;
  if (size == 1 && whole)
    put_sized(x, out, in, step, n, each, PE_PACK_ROWS, 1);
  else if (size == 2 && whole)
    put_sized(x, out, in, step, n, each, PE_PACK_ROWS, 2);
  else
    put_sized(x, out, in, step, n, each, x->lanes, (size_t)size);
}

/* The same span of the next panel. Sixteen rows are read at once, in steps that the hardware does
 * not recognise when several rows share a page: packing 128 x 1024 in 4 bits, this gives 1.9 times
 * the speed. */
static void ask_for(const uint8_t *p, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

static void fill_mlx(const span *x) {
  const pe_pack *p = x->p;
  const pe_quant_matrix *m = x->m;
  const int bits = p->quant.bits, size = entry_bytes(p->scale), n = x->cols / p->group;
  const uint8_t *data =
      m->data + (uint64_t)x->row * m->row_bytes + (uint64_t)x->col * (uint64_t)bits / 8;
  const uint64_t at =
      (uint64_t)x->row * m->scale_bytes + (uint64_t)(x->col / p->group) * (uint64_t)size;
  for (int lane = 0; lane < x->lanes; lane++)
    ask_for(data + (uint64_t)(PE_PACK_ROWS + lane) * m->row_bytes, (uint64_t)(x->cols * bits / 8));
  if (bits == 4) { /* words of 4 bits are as we want them */
    put_words(x, x->chunk, data, m->row_bytes, x->cols / 8, p->chunk / 8);
  } else {
    pe_stored s[PE_PACK_ROWS];
    if (x->cols < PE_PACK_CHUNK) memset(s, 0, sizeof s);
    for (int lane = 0; lane < x->lanes; lane++)
      pe_stored_stream(data + (uint64_t)lane * m->row_bytes, bits, x->cols, &s[lane]);
    put_planes(x, s);
  }
  put_entries(x, p->scale_at, m->scales + at, m->scale_bytes, n, p->groups, size);
  if (p->bias) put_entries(x, p->bias_at, m->biases + at, m->scale_bytes, n, p->groups, size);
}

static void fill_blocks(const span *x) {
  const pe_pack *p = x->p;
  const pe_quant_kind kind = p->quant.kind;
  const int values = pe_quant_block_values(kind), bytes = pe_quant_block_bytes(kind);
  const int size = entry_bytes(p->scale), n = x->cols / p->group, count = x->cols / values;
  const int supers = super_bytes(p->scale) / 2;
  const uint8_t *block = x->m->data + (uint64_t)x->row * x->m->row_bytes +
                         (uint64_t)(x->col / values) * (uint64_t)bytes;
  pe_stored s[PE_PACK_ROWS];
  if (x->cols < PE_PACK_CHUNK) memset(s, 0, sizeof s);
  for (int lane = 0; lane < x->lanes; lane++, block += x->m->row_bytes) {
    ask_for(block + PE_PACK_ROWS * x->m->row_bytes, (uint64_t)(count * bytes));
    pe_stored_blocks(kind, block, count, &s[lane]);
  }
  put_planes(x, s);
  put_entries(x, p->scale_at, s->scales, sizeof *s, n, p->groups, size);
  if (p->super_at > p->bias_at)
    put_entries(x, p->bias_at, s->biases, sizeof *s, n, p->groups, size);
  if (supers) put_entries(x, p->super_at, s->supers, sizeof *s, supers, supers, 2);
}

/* Zeros where no row or column is, and where a chunk ends inside a cache line. */
static void clear_unused(const pe_pack *p, uint8_t *chunk, int lanes) {
  const int end = p->super_at + super_bytes(p->scale) * PE_PACK_ROWS;
  if (lanes < PE_PACK_ROWS || p->cols % p->chunk)
    memset(chunk, 0, (size_t)p->panel_bytes);
  else if (end < p->chunk_bytes)
    for (uint64_t at = 0; at < p->panel_bytes; at += (uint64_t)p->chunk_bytes)
      memset(chunk + at + end, 0, (size_t)(p->chunk_bytes - end));
}

void pe_pack_fill(const pe_pack *p, const pe_quant_matrix *m, int64_t from, int64_t to) {
  const uint64_t step = (uint64_t)(PE_PACK_CHUNK / p->chunk) * (uint64_t)p->chunk_bytes;
  const bool blocks = pe_quant_block_bytes(p->quant.kind) != 0;
  for (int64_t panel = from; panel < to; panel++) {
    uint8_t *at = p->data + (uint64_t)panel * p->panel_bytes;
    const int64_t row = panel * PE_PACK_ROWS, left = p->rows - row;
    const int lanes = left < PE_PACK_ROWS ? (int)left : PE_PACK_ROWS;
    clear_unused(p, at, lanes);
    for (int64_t col = 0; col < p->cols; col += PE_PACK_CHUNK, at += step) {
      const int64_t cols = p->cols - col < PE_PACK_CHUNK ? p->cols - col : PE_PACK_CHUNK;
      const span x = {p, m, row, col, lanes, (int)cols, at};
      (blocks ? fill_blocks : fill_mlx)(&x);
    }
  }
}

/* ---- reading back ---------------------------------------------------------------------------- */

static int plane_at(const uint8_t *plane, int bits, int lane, int col) {
  const int i = col / 8, b = col % 8 / 2, h = col % 2;
  const int word = bits == 8 ? 2 * i + h : i * bits / 4;
  const int shift = bits == 8 ? 0 : bits * (2 * (i % (4 / bits)) + h);
  return plane[(word * PE_PACK_ROWS + lane) * 4 + b] >> shift & ((1 << bits) - 1);
}

static float half_at(const uint8_t *p) { return pe_f16_to_f32((uint16_t)(p[0] | p[1] << 8)); }

/* 2^(code - 128): half of what E8M0 says, since levels are doubled. */
static float half_e8m0(uint8_t code, bool gguf) {
  if (code == 255 && !gguf) return INFINITY;
  return ldexpf(1, code - 128);
}

/* The scale (or bias, at bias_at) of group g of a chunk if it needs no super. */
static float typed_at(const pe_pack *p, const uint8_t *at, int g, int lane) {
  at += (g * PE_PACK_ROWS + lane) * entry_bytes(p->scale);
  float f;
  switch (p->scale) {
  case PE_PACK_F16: return half_at(at);
  case PE_PACK_BF16: return pe_bf16_to_f32((uint16_t)(at[0] | at[1] << 8));
  case PE_PACK_F32: memcpy(&f, at, sizeof f); return f;
  case PE_PACK_E4M3: return pe_e4m3_to_f32(*at) * p->global * 0.5f;
  default: return half_e8m0(*at, p->scale == PE_PACK_E8M0_GGUF);
  }
}

static void scale_at(const pe_pack *p, const uint8_t *chunk, int g, int lane, float *s, float *b) {
  const uint8_t *super = chunk + p->super_at + 2 * lane;
  const uint8_t scale = chunk[p->scale_at + g * PE_PACK_ROWS + lane];
  *b = 0;
  switch (p->scale) {
  case PE_PACK_SUB_I8: *s = half_at(super) * (float)(int8_t)scale; break;
  case PE_PACK_SUB_U8:
    *s = half_at(super) * (float)scale;
    *b = -(half_at(super + 2 * PE_PACK_ROWS) * (float)chunk[p->bias_at + g * PE_PACK_ROWS + lane]);
    break;
  case PE_PACK_SUB_NIBBLES:
    *s = half_at(super) * (float)(scale & 15);
    *b = -(half_at(super + 2 * PE_PACK_ROWS) * (float)(scale >> 4));
    break;
  default:
    *s = typed_at(p, chunk + p->scale_at, g, lane);
    if (p->bias) *b = typed_at(p, chunk + p->bias_at, g, lane);
    break;
  }
}

void pe_pack_group(const pe_pack *p, int64_t row, int64_t group, int16_t *values, float *s,
                   float *b) {
  const int64_t col = group * p->group;
  const int lane = (int)(row % PE_PACK_ROWS), first = (int)(col % p->chunk);
  const uint8_t *chunk =
      pe_pack_panel(p, row / PE_PACK_ROWS) + (uint64_t)(col / p->chunk) * (uint64_t)p->chunk_bytes;
  for (int i = 0; i < p->group; i++) {
    int code = plane_at(chunk, p->base, lane, first + i);
    if (p->upper) code |= plane_at(chunk + p->upper_at, p->upper, lane, first + i) << p->base;
    values[i] = (int16_t)((p->levels ? p->levels[code] : code) - p->offset);
  }
  scale_at(p, chunk, first / p->group, lane, s, b);
}

void pe_pack_row(const pe_pack *p, int64_t row, float *out) {
  int16_t values[PE_PACK_CHUNK];
  float s, b;
  for (int64_t g = 0; g < p->cols / p->group; g++, out += p->group) {
    pe_pack_group(p, row, g, values, &s, &b);
    for (int i = 0; i < p->group; i++)
      out[i] = p->bias ? s * (float)values[i] + b : s * (float)values[i];
  }
}
