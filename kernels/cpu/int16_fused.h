/* int16_fused.h - a part of int16_impl.h: one or two rows, with weights unpacked in registers.
 *
 * Measured on a busy core, 4-bit affine, 1024 x 1024: 1.6 times the speed of `blocks` with one row,
 * 1.4 with two, 1.14 with three and none with four, for which two more copies of each form would
 * be needed. */
enum { FUSED = PE_FUSED, CHUNK_GROUPS = PE_PACK_CHUNK / 16 };

/* A core that is shared with another thread gets half of its instructions, and one row needs few
 * products for each byte: what is done once per group counts. Scales of the two types that most
 * files have are therefore widened where they are used; `any` are unpacked chunk by chunk. */
enum { TYPES = 3 };
#define TYPE_any (-1)
#define TYPE_f16 PE_PACK_F16
#define TYPE_bf16 PE_PACK_BF16
static int type_index(const pe_pack *w) {
  return w->times > 1 ? 0 : w->scale == PE_PACK_F16 ? 1 : w->scale == PE_PACK_BF16 ? 2 : 0;
}

/* Part p of line g of some scales, or of their biases. */
ALWAYS vf fused_scale(const pe_pack *w, const uint8_t *at, int g, int p, const int type) {
  const int i = g * LANES + p * W;
  if (type == TYPE_any) return load((const float *)(const void *)at + i);
  return typed_scale(w, at + i * 2, (pe_pack_scale)type);
}

/* Where the scales and biases of a chunk are. */
typedef struct fused_lines {
  const uint8_t *s, *b;
} fused_lines;

/* Ends group g: the integers are scaled and added to acc, the bias is added to sum. */
ALWAYS void fused_group(const pe_pack *w, dots d, const operand *x, fused_lines at, int g,
                        vf acc[FUSED][PARTS], vf sum[FUSED][PARTS], const int R, const int type) {
  for (int p = 0; p < PARTS; p++) {
    const vf s = fused_scale(w, at.s, g, p, type);
    for (int r = 0; r < R; r++) {
      vi t = fused_total(d, r, p, R);
      if (w->offset) t += splat_int(-w->offset * x->sum[g * R + r]);
      acc[r][p] = fma_(s * splat(x->scale[g * R + r]), to_floats(t), acc[r][p]);
    }
    if (!w->bias) continue;
    const vf b = fused_scale(w, at.b, g, p, type);
    for (int r = 0; r < R; r++) sum[r][p] = fma_(b, splat(x->scaled[g * R + r]), sum[r][p]);
  }
}

/* Blocks of 16 columns: the first two of 32 columns, or the other two. */
ALWAYS void fused_half(const uint8_t *base, const uint8_t *upper, vu levels, const int16_t *x,
                       dots d, const int half, const int R, const form f) {
  fused_block(base, upper, levels, x, d, 2 * half, R, f);
  fused_block(base, upper, levels, x, d, 2 * half + 1, R, f);
}

/* What is requested while a chunk is multiplied: as many bytes further on, a few cache lines with
 * each 32 columns. In the order of their addresses, scales last: so the processor sees that they
 * are one stream. Planes and scales requested apart got 0.85 to 0.9 of the bandwidth where chunks
 * are long. */
typedef struct requests {
  int ahead, each, all; /* bytes: how much further; at a time; of a chunk */
  int chunks;           /* whole ones within `ahead` */
} requests;

/* Scales that are unpacked chunk by chunk are read first, so these chunks are requested whole. A
 * constant is 1.02 times as fast elsewhere. */
ALWAYS requests requests_of(const pe_pack *w, const int type) {
  const int chunks = (AHEAD + w->chunk_bytes - 1) / w->chunk_bytes, steps = w->chunk / 32;
  const bool whole = type == TYPE_any || chunks == 1;
  return (requests){whole ? chunks * w->chunk_bytes : AHEAD,
                    (w->chunk_bytes / 64 + steps - 1) / steps * 64, w->chunk_bytes,
                    whole ? chunks : AHEAD / w->chunk_bytes};
}

/* One chunk of a panel, of which `groups` groups exist. */
ALWAYS void fused_chunk(const pe_pack *w, const uint8_t *chunk, const uint8_t *other, vu levels,
                        operand x, int groups, vf acc[FUSED][PARTS], vf sum[FUSED][PARTS],
                        requests ask, const int R, const form f, const int type) {
  float s[CHUNK_GROUPS * LANES], b[CHUNK_GROUPS * LANES];
  const bool halves = f.base == 2 || f.upper == 2 || f.levels; /* groups may have 16 columns */
  const uint8_t *base = chunk, *upper = chunk + w->upper_at;
  const int act = w->act, cols = groups * act;
  fused_lines at = {chunk + w->scale_at, chunk + w->bias_at};
  if (type == TYPE_any) {
    scales_of(w, chunk, 1, s, b);
    at = (fused_lines){(const uint8_t *)s, (const uint8_t *)b};
  }
  dots d;
  fused_clear(d, R);
  for (int col = 0, left = act, g = 0, asked = 0; col < cols; col += 32, asked += ask.each) {
    prefetch(other + asked, asked + ask.each < ask.all ? ask.each : ask.all - asked);
    for (int half = 0; half < 2; half++) {
      fused_half(base, upper, levels, x.codes, d, half, R, f);
      left -= 16;
      if ((half || halves) && !left) {
        fused_group(w, d, &x, at, g++, acc, sum, R, type);
        fused_clear(d, R), left = act;
      }
      if (halves && col + 16 == cols) break;
    }
    base += 32 * 2 * f.base, upper += 32 * 2 * f.upper, x.codes += 32 * R;
  }
}

/* Panels that are read together: `streams` of them at a time, `count` panels apart:
 *
 *     panel ..      panel + count ..      panel + 2 count ..      panel + 3 count .. */
typedef struct reading {
  const pe_pack *w; /* NULL: none */
  int64_t panel, count;
  int streams;
} reading;

static const uint8_t *stream_at(const reading *r, int z) {
  return pe_pack_panel(r->w, r->panel + z * r->count);
}

/* The first reading of panels from .. to - 1. A stream is a quarter of them or a few less: streams
 * with the same place in their pages would share the ways of the caches, which takes 1.03 of the
 * time. What a few less leaves is another reading. */
static reading reading_of(const pe_pack *w, int64_t from, int64_t to) {
  enum { PAGE = 4096, NEAR = 512, LESS = 3 };
  const int64_t most = (to - from) / STREAMS;
  if (from >= to) return (reading){0};
  if (!most) return (reading){w, from, to - from, 1}; /* the few that are left */
  for (int64_t n = most; n > 0 && n >= most - LESS; n--) {
    const int64_t off = (int64_t)((uint64_t)n * w->panel_bytes % PAGE);
    if (off >= NEAR && off <= PAGE - NEAR) return (reading){w, from, n, STREAMS};
  }
  return (reading){w, from, most, STREAMS};
}

/* At the end of each stream the beginning of one of the next reading is requested. Without this,
 * decode of a model of 0.6 billion 4-bit weights had 0.97 of the speed. */
static void ends_of(const reading *now, const reading *next, const uint8_t *ends[STREAMS]) {
  for (int z = 0; z < now->streams; z++)
    ends[z] = next->w ? stream_at(next, z % next->streams) : stream_at(now, z + 1);
}

ALWAYS void fused(const pe_int16_product *o, const reading *now, const reading *next, const int R,
                  const form f, const int type) {
  const pe_pack *w = o->w;
  const vu levels = level_table(w);
  const int most = w->groups * w->times; /* groups of activations in a chunk */
  const requests ask = requests_of(w, type);
  const uint8_t *ends[STREAMS];
  ends_of(now, next, ends);
  const int chunks = (int)((o->x->groups + most - 1) / most);
  for (int64_t i = 0; i < now->count; i++) {
    vf acc[STREAMS][FUSED][PARTS], sum[STREAMS][FUSED][PARTS];
    const uint8_t *at = pe_pack_panel(w, now->panel + i);
    const uint64_t apart = (uint64_t)now->count * w->panel_bytes;
    operand x = operand_at(o->x, (pe_int16_tile){0, R}, 0, 0);
    int rest = chunks + (i + 1 < now->count ? ask.chunks : 0); /* at most, until the end */
    for (int z = 0; z < now->streams; z++)
      for (int r = 0; r < R; r++)
        for (int p = 0; p < PARTS; p++) acc[z][r][p] = sum[z][r][p] = (vf){0};
    for (int64_t left = o->x->groups; left > 0; left -= most, at += w->chunk_bytes) {
      const int over = (ask.chunks - rest--) * ask.all; /* bytes after the end, or negative */
      for (int z = 0; z < now->streams; z++) {
        const uint8_t *chunk = at + (uint64_t)z * apart;
        const uint8_t *other = over < 0 ? chunk + ask.ahead : ends[z] + over;
        fused_chunk(w, chunk, other, levels, x, left < most ? (int)left : most, acc[z], sum[z], ask,
                    R, f, type);
      }
      x.codes += w->chunk * R, x.scale += most * R, x.scaled += most * R, x.sum += most * R;
    }
    for (int z = 0; z < now->streams; z++)
      finish(o, (const float *)acc[z], (const float *)sum[z], LANES,
             now->panel + i + z * now->count, 0, R);
  }
}

ALWAYS void fused_range(const pe_int16_product *o, int64_t from, int64_t to, const int R,
                        const form f, const int type) {
  const pe_int16_columns *n = &o->next;
  reading last = {0};
  if (n->w) last = reading_of(n->w, n->from / LANES, (n->to + LANES - 1) / LANES);
  for (reading now = reading_of(o->w, from, to), next; now.w; now = next) {
    from += now.count * now.streams;
    next = reading_of(o->w, from, to);
    fused(o, &now, next.w ? &next : &last, R, f, type);
  }
}

#define EACH_TYPE(X, name) X(name, any) X(name, f16) X(name, bf16)
#define DEFINE_FUSED(R, name, type)                                                                \
  static void fused_##R##_##name##_##type(const pe_int16_product *o, int64_t from, int64_t to) {   \
    fused_range(o, from, to, R, FORM_##name, TYPE_##type);                                         \
  }
#define DEFINE_FUSED_ROWS(name, type) DEFINE_FUSED(1, name, type) DEFINE_FUSED(2, name, type)
#define DEFINE_FUSED_FORM(name) EACH_TYPE(DEFINE_FUSED_ROWS, name)
EACH_FORM(DEFINE_FUSED_FORM)

static void (*const fused_rows[FORMS][TYPES][FUSED])(const pe_int16_product *, int64_t, int64_t) = {
#define FUSED_ROWS(name, type) {fused_1_##name##_##type, fused_2_##name##_##type},
#define FUSED_FORM(name) {EACH_TYPE(FUSED_ROWS, name)},
    EACH_FORM(FUSED_FORM)
#undef FUSED_FORM
#undef FUSED_ROWS
};

/* Results from .. to - 1 of one or two rows. */
static void fused_product(const pe_int16_product *o, int64_t from, int64_t to) {
  fused_rows[form_index(o->w)][type_index(o->w)][o->x->rows - 1](o, from / LANES,
                                                                 (to + LANES - 1) / LANES);
}
