/* plain_few.h - a part of plain_impl.h: products of few rows, bound by memory. */

/* Streams of addresses: one does not fill the buffers of outstanding cache lines. Lines are
 * requested this many bytes ahead in each. */
enum { STREAMS = 4, AHEAD = 2048 };

/* Columns k .. k + 15 of R rows. */
ALWAYS void few_lanes(const plain_row w[STREAMS], int64_t k, const float *x, int64_t xs,
                      vf acc[MOST][MOST][PARTS], const int R, const plain_type t) {
  for (int p = 0; p < PARTS; p++) {
    vf b[STREAMS];
    for (int s = 0; s < STREAMS; s++) {
      const float scale = t == PLAIN_MXFP8 ? plain_scale(w[s].scales[k / 32]) : 0;
      b[s] = plain_weights(w[s].data + (k + p * W) * plain_size(t), scale, t);
    }
    for (int r = 0; r < R; r++) {
      vf a = load(x + r * xs + k + p * W);
      for (int s = 0; s < STREAMS; s++) acc[r][s][p] = fma_(a, b[s], acc[r][s][p]);
    }
  }
}

static void few_tail(const pe_plain_product *o, const plain_row w[STREAMS], int64_t k,
                     const float *x, int rows, vf acc[MOST][MOST][PARTS]) {
  const int64_t n = o->w->cols - k, size = (int64_t)pe_dtype_size(o->w->dtype);
  float b[STREAMS][LANES], a[LANES];
  for (int s = 0; s < STREAMS; s++) plain_tail(o->w, w[s].data + k * size, n, b[s]);
  for (int r = 0; r < rows; r++) {
    load_tail(x + r * o->x_step + k, n, a);
    for (int s = 0; s < STREAMS; s++)
      for (int p = 0; p < PARTS; p++)
        acc[r][s][p] = fma_(load(a + p * W), load(b[s] + p * W), acc[r][s][p]);
  }
}

/* The sums of R rows from `row` on with one weight row of each stream. */
ALWAYS void few_tile(const pe_plain_product *o, const plain_row w[STREAMS], int64_t row, bool ask,
                     float *sums, const int R, const plain_type t) {
  const float *x = o->x + row * o->x_step;
  vf acc[MOST][MOST][PARTS];
  int64_t k = 0;
  for (int r = 0; r < R; r++)
    for (int s = 0; s < STREAMS; s++)
      for (int p = 0; p < PARTS; p++) acc[r][s][p] = (vf){0};
  for (; k + 2 * LANES <= o->w->cols; k += 2 * LANES) {
    if (ask)
      for (int s = 0; s < STREAMS; s++)
        for (int b = 0; b < 2 * LANES * plain_size(t); b += 64)
          __builtin_prefetch(w[s].data + k * plain_size(t) + b + AHEAD);
    few_lanes(w, k, x, o->x_step, acc, R, t);
    few_lanes(w, k + LANES, x, o->x_step, acc, R, t);
  }
  if (k + LANES <= o->w->cols) few_lanes(w, k, x, o->x_step, acc, R, t), k += LANES;
  if (k < o->w->cols) few_tail(o, w, k, x, R, acc);
  tile_sums(acc, sums, STREAMS, R, STREAMS);
}

#define DEFINE_FEW(R, T)                                                                           \
  static void few_##R##_##T(const pe_plain_product *o, const plain_row *w, int64_t row, bool ask,  \
                            float *sums) {                                                         \
    few_tile(o, w, row, ask, sums, R, PLAIN_##T);                                                  \
  }
#define EACH_FEW_TYPE(X, R) X(R, F32) X(R, F16) X(R, BF16) X(R, MXFP8)
#define FEW_NAME(R, T) few_##R##_##T,
typedef void few_fn(const pe_plain_product *o, const plain_row *w, int64_t row, bool ask,
                    float *sums);
EACH_FEW_TYPE(DEFINE_FEW, 1)
#if PE_FEW_ROWS > 1
EACH_FEW_TYPE(DEFINE_FEW, 2)
EACH_FEW_TYPE(DEFINE_FEW, 3)
EACH_FEW_TYPE(DEFINE_FEW, 4)
#endif
static few_fn *const few_tiles[PE_FEW_ROWS][PLAIN_TYPES] = {
    {EACH_FEW_TYPE(FEW_NAME, 1)},
#if PE_FEW_ROWS > 1
    {EACH_FEW_TYPE(FEW_NAME, 2)},
    {EACH_FEW_TYPE(FEW_NAME, 3)},
    {EACH_FEW_TYPE(FEW_NAME, 4)},
#endif
};

/* Rows are cut into tiles that differ by at most one row. */
static void few(const pe_plain_product *o, int64_t from, int64_t to) {
  const int64_t apart = (to - from + STREAMS - 1) / STREAMS;
  const int64_t tiles = (o->rows + PE_FEW_ROWS - 1) / PE_FEW_ROWS;
  const plain_type type = plain_type_of(o->w);
  for (int64_t i = from; i < from + apart; i++) {
    plain_row w[STREAMS];
    for (int s = 0; s < STREAMS; s++) { /* the last stream may be shorter: its sums are not used */
      const int64_t j = i + s * apart;
      w[s] = plain_row_at(o->w, j < to ? j : to - 1, 0, type);
    }
    for (int64_t t = 0; t < tiles; t++) {
      const int64_t row = o->rows * t / tiles, n = o->rows * (t + 1) / tiles - row;
      float sums[PE_FEW_ROWS * STREAMS];
      few_tiles[n - 1][type](o, w, row, !t, sums);
      for (int64_t r = 0; r < n; r++)
        for (int s = 0; s < STREAMS && i + s * apart < to; s++)
          plain_finish(o, row + r, i + s * apart, sums[r * STREAMS + s]);
    }
  }
}
