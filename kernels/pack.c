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

static void put_word(uint8_t *plane, int word, int lane, uint32_t v) {
  memcpy(plane + (word * PE_PACK_ROWS + lane) * 4, &v, sizeof v);
}

/* The four even bytes of t. */
static uint32_t even_bytes(uint64_t t) {
  t &= UINT64_C(0x00ff00ff00ff00ff);
  t = (t | t >> 8) & UINT64_C(0x0000ffff0000ffff);
  return (uint32_t)(t | t >> 16);
}

/* Writes `bits` bits, from `shift` on, of `count` codes of one row as a plane. */
static inline void put_plane(uint8_t *plane, const uint8_t *codes, int count, int lane,
                             const int bits, const int shift) {
  const uint32_t mask = (bits < 8 ? (1u << bits) - 1 : 255u) * 0x01010101u;
  uint32_t word = 0;
  for (int i = 0; i < count / 8; i++) {
    uint64_t t;
    memcpy(&t, codes + 8 * i, sizeof t);
    uint32_t even = even_bytes(t) >> shift & mask, odd = even_bytes(t >> 8) >> shift & mask;
    if (bits == 8) {
      put_word(plane, 2 * i, lane, even);
      put_word(plane, 2 * i + 1, lane, odd);
      continue;
    }
    const int blocks = 4 / bits, at = i % blocks; /* blocks of eight columns in a word */
    if (!at) word = 0;
    word |= even << 2 * bits * at | odd << (2 * bits * at + bits);
    if (at == blocks - 1) put_word(plane, i / blocks, lane, word);
  }
}

/* All planes but a base of 4 bits, which goes through put_words. */
static void put_codes(const pe_pack *p, uint8_t *chunk, const uint8_t *codes, int lane) {
  if (p->base == 2) put_plane(chunk, codes, p->chunk, lane, 2, 0);
  if (p->base == 8) put_plane(chunk, codes, p->chunk, lane, 8, 0);
  uint8_t *upper = chunk + p->upper_at;
  if (p->upper == 1 && p->base == 2) put_plane(upper, codes, p->chunk, lane, 1, 2);
  if (p->upper == 1 && p->base == 4) put_plane(upper, codes, p->chunk, lane, 1, 4);
  if (p->upper == 2) put_plane(upper, codes, p->chunk, lane, 2, 4);
}

typedef uint8_t v16b __attribute__((vector_size(16)));
typedef uint16_t v8h __attribute__((vector_size(16)));

/* The low 4 bits of `count` codes as words: nibble j of a word is code j of eight. Reads and writes
 * whole units of 32 codes. */
static void join_nibbles(const uint8_t *codes, int count, uint32_t *words) {
  for (int i = 0; i < count; i += 32) {
    v8h a, b;
    memcpy(&a, codes + i, sizeof a), memcpy(&b, codes + i + 16, sizeof b);
    a &= 0x0f0f, b &= 0x0f0f;
    a |= a >> 4, b |= b >> 4;
    const v16b joined = __builtin_shufflevector((v16b)a, (v16b)b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18,
                                                20, 22, 24, 26, 28, 30);
    memcpy(words + i / 8, &joined, sizeof joined);
  }
}

typedef uint32_t v4 __attribute__((vector_size(16)));

/* Four words of each of four rows, `step` bytes apart, become four lanes of four words. Word by
 * word, packing would spend most of its time on stores. */
static void put_4x4(uint8_t *plane, const uint8_t *rows, uint64_t step) {
  v4 a, b, c, d;
  memcpy(&a, rows, sizeof a), memcpy(&b, rows + step, sizeof b);
  memcpy(&c, rows + 2 * step, sizeof c), memcpy(&d, rows + 3 * step, sizeof d);
  const v4 ac = __builtin_shufflevector(a, c, 0, 4, 1, 5),
           bd = __builtin_shufflevector(b, d, 0, 4, 1, 5);
  const v4 ac2 = __builtin_shufflevector(a, c, 2, 6, 3, 7),
           bd2 = __builtin_shufflevector(b, d, 2, 6, 3, 7);
  const v4 line[4] = {
      __builtin_shufflevector(ac, bd, 0, 4, 1, 5), __builtin_shufflevector(ac, bd, 2, 6, 3, 7),
      __builtin_shufflevector(ac2, bd2, 0, 4, 1, 5), __builtin_shufflevector(ac2, bd2, 2, 6, 3, 7)};
  for (int i = 0; i < 4; i++) memcpy(plane + i * PE_PACK_ROWS * 4, &line[i], sizeof line[i]);
}

/* The base plane of `cols` columns of 4 bits: words of `lanes` rows that are `step` bytes apart. */
static void put_words(const pe_pack *p, uint8_t *chunk, const uint8_t *rows, uint64_t step,
                      int64_t cols, int lanes) {
  for (; cols > 0; cols -= p->chunk, rows += p->chunk / 2, chunk += p->chunk_bytes) {
    const int words = (int)(cols < p->chunk ? cols : p->chunk) / 8;
    for (int lane = 0, i; lane < lanes; lane += 4) {
      const uint8_t *from = rows + (uint64_t)lane * step;
      for (i = 0; lanes - lane >= 4 && i + 4 <= words; i += 4)
        put_4x4(chunk + (i * PE_PACK_ROWS + lane) * 4, from + 4 * i, step);
      for (; i < words; i++)
        for (int k = lane; k < lane + 4 && k < lanes; k++)
          memcpy(chunk + (i * PE_PACK_ROWS + k) * 4, rows + (uint64_t)k * step + 4 * i, 4);
    }
  }
}

/* n entries of a row, `size` bytes each, become every 16th entry. */
static inline void put_sized(uint8_t *out, const uint8_t *in, int n, int lane, const size_t size) {
  out += (size_t)lane * size;
  for (int g = 0; g < n; g++, out += PE_PACK_ROWS * size, in += size) memcpy(out, in, size);
}
static void put_entries(uint8_t *out, const uint8_t *in, int n, int size, int lane) {
  switch (size) {
  case 1: put_sized(out, in, n, lane, 1); break;
  case 2: put_sized(out, in, n, lane, 2); break;
  default: put_sized(out, in, n, lane, 4); break;
  }
}

/* The same span of the next panel. Sixteen rows are read at once, in steps that the hardware does
 * not recognise when several rows share a page: packing 128 x 1024 in 4 bits, this gives 1.9 times
 * the speed. */
static void ask_for(const uint8_t *p, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

/* A span of one row: columns from .. to - 1, at most 256; their chunks begin at `chunk`. What a
 * base of 4 bits is made of stays where it is, or goes to `words`. */
static void fill_mlx(const pe_pack *p, const pe_quant_matrix *m, int64_t row, int64_t from,
                     int64_t to, int lane, uint8_t *chunk, uint32_t *words) {
  const int bits = p->quant.bits, size = entry_bytes(p->scale);
  const uint8_t *data =
      m->data + (uint64_t)row * m->row_bytes + (uint64_t)from * (uint64_t)bits / 8;
  uint64_t at = (uint64_t)row * m->scale_bytes + (uint64_t)(from / p->group) * (uint64_t)size;
  ask_for(data + PE_PACK_ROWS * m->row_bytes, (uint64_t)(to - from) * (uint64_t)bits / 8);
  for (int64_t col = from; col < to; col += p->chunk, chunk += p->chunk_bytes) {
    const int count = to - col < p->chunk ? (int)(to - col) : p->chunk;
    if (bits != 4) { /* words of 4 bits are as we want them */
      uint8_t codes[PE_PACK_CHUNK];
      if (count < p->chunk) memset(codes, 0, sizeof codes);
      pe_stored_stream(data, bits, count, codes);
      if (p->base == 4) join_nibbles(codes, count, words + (col - from) / 8);
      put_codes(p, chunk, codes, lane);
    }
    const int groups = count < p->chunk ? count / p->group : p->groups;
    put_entries(chunk + p->scale_at, m->scales + at, groups, size, lane);
    if (p->bias) put_entries(chunk + p->bias_at, m->biases + at, groups, size, lane);
    data += p->chunk * bits / 8, at += (uint64_t)(p->groups * size);
  }
}

static void fill_blocks(const pe_pack *p, const pe_quant_matrix *m, int64_t row, int64_t from,
                        int64_t to, int lane, uint8_t *chunk, uint32_t *words) {
  const pe_quant_kind kind = p->quant.kind;
  const int values = pe_quant_block_values(kind), bytes = pe_quant_block_bytes(kind);
  const int size = entry_bytes(p->scale), count = (int)(to - from) / values;
  const uint8_t *block =
      m->data + (uint64_t)row * m->row_bytes + (uint64_t)(from / values) * (uint64_t)bytes;
  pe_stored s;
  ask_for(block + PE_PACK_ROWS * m->row_bytes, (uint64_t)(count * bytes));
  if (to - from < PE_PACK_CHUNK) memset(&s, 0, sizeof s);
  pe_stored_blocks(kind, block, count, &s);
  if (p->base == 4) join_nibbles(s.codes, (int)(to - from), words);
  for (int col = 0, at = 0; col < to - from; col += p->chunk, at += p->groups * size) {
    put_codes(p, chunk, s.codes + col, lane);
    put_entries(chunk + p->scale_at, s.scales + at, p->groups, size, lane);
    if (p->super_at > p->bias_at)
      put_entries(chunk + p->bias_at, s.biases + at, p->groups, size, lane);
    put_entries(chunk + p->super_at, s.supers, super_bytes(p->scale) / 2, 2, lane);
    chunk += p->chunk_bytes;
  }
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

/* The rows of a panel, columns from .. to - 1. */
static void fill_span(const pe_pack *p, const pe_quant_matrix *m, int64_t row, int lanes,
                      int64_t from, int64_t to, uint8_t *chunk) {
  const bool blocks = pe_quant_block_bytes(p->quant.kind) != 0;
  uint32_t words[PE_PACK_ROWS][PE_PACK_CHUNK / 8];
  for (int lane = 0; lane < lanes; lane++)
    (blocks ? fill_blocks : fill_mlx)(p, m, row + lane, from, to, lane, chunk, words[lane]);
  if (!blocks && p->quant.bits == 4)
    put_words(p, chunk, m->data + (uint64_t)row * m->row_bytes + (uint64_t)from / 2, m->row_bytes,
              to - from, lanes);
  else if (p->base == 4)
    put_words(p, chunk, (const uint8_t *)words, sizeof *words, to - from, lanes);
}

void pe_pack_fill(const pe_pack *p, const pe_quant_matrix *m, int64_t from, int64_t to) {
  const uint64_t span = (uint64_t)(PE_PACK_CHUNK / p->chunk) * (uint64_t)p->chunk_bytes;
  for (int64_t panel = from; panel < to; panel++) {
    uint8_t *at = p->data + (uint64_t)panel * p->panel_bytes;
    const int64_t row = panel * PE_PACK_ROWS, left = p->rows - row;
    const int lanes = left < PE_PACK_ROWS ? (int)left : PE_PACK_ROWS;
    clear_unused(p, at, lanes);
    for (int64_t col = 0; col < p->cols; col += PE_PACK_CHUNK, at += span) {
      const int64_t end = p->cols - col < PE_PACK_CHUNK ? p->cols : col + PE_PACK_CHUNK;
      fill_span(p, m, row, lanes, col, end, at);
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
