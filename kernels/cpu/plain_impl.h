/* plain_impl.h - products with weights as they are stored, a part of prim_impl.h; see plain.h.
 *
 *   PE_FEW                  up to this number of rows `few` is used
 *   PE_FEW_ROWS             rows of its tiles: 4, or 1
 *   PE_PANEL_ROWS, _PARTS   rows of a tile of a panel: 14 or 6; sixteens of weight rows: 2 or 1 */
#include "kernels/cpu/plain.h"

#include "kernels/cpu/plain_layout.h"
#include "kernels/cpu/transpose.h"

/* ---- widening -------------------------------------------------------------------------------- */

typedef enum plain_type { PLAIN_F32, PLAIN_F16, PLAIN_BF16, PLAIN_MXFP8, PLAIN_TYPES } plain_type;

static plain_type plain_type_of(const pe_quant_matrix *m) {
  if (m->quant.kind == PE_QUANT_MXFP8) return PLAIN_MXFP8;
  return m->dtype == PE_F32 ? PLAIN_F32 : m->dtype == PE_F16 ? PLAIN_F16 : PLAIN_BF16;
}
ALWAYS int plain_size(const plain_type t) { return t == PLAIN_F32 ? 4 : t == PLAIN_MXFP8 ? 1 : 2; }

#ifdef PE_SCALAR
static inline vf scalar_halves(const uint8_t *p) {
  vf v;
  for (int j = 0; j < W; j++) v[j] = pe_f16_to_f32((uint16_t)(p[2 * j] | p[2 * j + 1] << 8));
  return v;
}
static inline vu scalar_shorts(const uint8_t *p) {
  vu v;
  for (int j = 0; j < W; j++) v[j] = (uint32_t)(p[2 * j] | p[2 * j + 1] << 8);
  return v;
}
static inline vi plain_codes(const uint8_t *p) { return (vi){p[0], p[1], p[2], p[3]}; }
#define PE_HALVES(p) scalar_halves(p)
#define PE_SHORTS(p) scalar_shorts(p)
#else
ALWAYS vi plain_codes(const uint8_t *p) { /* W bytes as integers */
  v16b bytes = {0};
  memcpy(&bytes, p, W);
  return PE_WIDEN(bytes, 0);
}
#endif

ALWAYS vu words_at(const uint8_t *p) {
  vu v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* Subnormals of E4M3 get the smallest exponent, and the surplus 2^-6 is subtracted. */
ALWAYS vf plain_e4m3(const uint8_t *p, float scale) {
  const vi c = plain_codes(p), plus = c & 0x7f, small = plus < 8;
  vf f = (vf)((plus << 20) + (120 << 23) + (small & 1 << 23)) - (vf)(small & 121 << 23);
  f = select_(plus == 0x7f, splat(NAN), f);
  return (vf)((vi)f | (vi)((vu)(c & 0x80) << 24)) * splat(scale);
}

/* W weights; scale: of mxfp8. */
ALWAYS vf plain_weights(const uint8_t *p, float scale, const plain_type t) {
  switch (t) {
  case PLAIN_BF16: return (vf)(PE_SHORTS(p) << 16);
  case PLAIN_F16: return PE_HALVES(p);
  case PLAIN_MXFP8: return plain_e4m3(p, scale);
  default: return (vf)words_at(p);
  }
}

static float plain_scale(uint8_t code) { /* as MLX reads E8M0: 255 is infinity */
  uint32_t bits = code ? (uint32_t)code << 23 : 0x00400000;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/* One weight row from some column on. */
typedef struct plain_row {
  const uint8_t *data, *scales;
} plain_row;

ALWAYS plain_row plain_row_at(const pe_quant_matrix *m, int64_t row, int64_t col,
                              const plain_type t) {
  plain_row r = {m->data + (uint64_t)row * m->row_bytes + (uint64_t)(col * plain_size(t)), NULL};
  if (t == PLAIN_MXFP8) r.scales = m->scales + (uint64_t)row * m->scale_bytes + col / 32;
  return r;
}

/* The last n < 16 columns, and zeros. Rows of mxfp8 have none. */
static void plain_tail(const pe_quant_matrix *m, const uint8_t *p, int64_t n, float *lanes) {
  memset(lanes, 0, LANES * sizeof *lanes);
  pe_quant_plain(m->dtype, p, n, lanes);
}

static void plain_finish(const pe_plain_product *o, int64_t row, int64_t j, float y) {
  if (o->bias) y += o->bias[j];
  if (o->residual) y += o->residual[row * o->residual_step + j];
  o->out[row * o->out_step + j] = y;
}

#include "kernels/cpu/plain_few.h"
#include "kernels/cpu/plain_panel.h"

static void plain_arrange(const pe_plain_product *o, float *scratch) {
  if (o->rows > PE_FEW) panel_arrange(o, scratch);
}

static void plain_product(const pe_plain_product *o, int64_t from, int64_t to, float *scratch) {
  if (o->rows > PE_FEW)
    panels(o, from, to, scratch);
  else
    few(o, from, to);
}

static const pe_plain plain_versions = {.arrange = plain_arrange, .product = plain_product};
