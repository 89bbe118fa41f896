/* int16_unpack.h - a part of int16_lanes.h: codes and scales of a chunk, in registers. */

/* ---- codes ----------------------------------------------------------------------------------- */

/* The ways in which a chunk holds codes; constants after inlining. */
typedef struct form {
  int base, upper;
  bool levels;
} form;
enum { FORMS = 7 };
#define FORM_2 ((form){2, 0, false})
#define FORM_2_1 ((form){2, 1, false})
#define FORM_4 ((form){4, 0, false})
#define FORM_4_1 ((form){4, 1, false})
#define FORM_4_2 ((form){4, 2, false})
#define FORM_4_LEVELS ((form){4, 0, true})
#define FORM_8 ((form){8, 0, false})
#define EACH_FORM(X) X(2) X(2_1) X(4) X(4_1) X(4_2) X(4_LEVELS) X(8)
enum {
#define FORM_ENUM(name) INDEX_##name,
  EACH_FORM(FORM_ENUM)
#undef FORM_ENUM
};

static int form_index(const pe_pack *w) {
  if (w->levels) return INDEX_4_LEVELS;
  if (w->base == 8) return INDEX_8;
  if (w->base == 4) return !w->upper ? INDEX_4 : w->upper == 1 ? INDEX_4_1 : INDEX_4_2;
  return w->upper ? INDEX_2_1 : INDEX_2;
}

ALWAYS uint32_t each_byte(int bits) { return ((1u << bits) - 1) * 0x01010101u; }

/* Part `p` of the bits of a plane narrower than a byte, block i, half h, from bit `to` on of each
 * byte. The first `late` bits of the words do not count. */
ALWAYS vu plane_bits(const uint8_t *plane, int i, int h, int p, int late, const int bits,
                     const int to) {
  const int blocks = 4 / bits, at = bits * (2 * (i % blocks) + h), shift = at - to;
  const vu v = load_words(plane + i / blocks * 64 + p * 4 * W) >> late;
#ifdef PE_FIELD
  (void)shift;
  return PE_FIELD(v, at, bits, to);
#else
  return (shift > 0 ? v >> shift : v << -shift) & (each_byte(bits) << to);
#endif
}

/* The bytes of columns h, h + 2, h + 4, h + 6 of block i of a chunk. `late`: see plane_bits, of the
 * upper plane. */
ALWAYS vu late_bytes_of(const uint8_t *chunk, const uint8_t *upper, vu levels, int i, int h, int p,
                        int late, const form f) {
  if (f.base == 8) return load_words(chunk + (2 * i + h) * 64 + p * 4 * W);
  vu v = plane_bits(chunk, i, h, p, 0, f.base, 0);
  if (f.upper) v |= plane_bits(upper, i, h, p, f.upper == 1 ? late : 0, f.upper, f.base);
  if (f.levels) v = (vu)PE_LOOKUP(levels, v);
  return v;
}

ALWAYS vu bytes_of(const uint8_t *chunk, const uint8_t *upper, vu levels, int i, int h, int p,
                   const form f) {
  return late_bytes_of(chunk, upper, levels, i, h, p, 0, f);
}

ALWAYS vi even_bytes(vu v) { return (vi)(v & 0x00ff00ffu); }
ALWAYS vi odd_bytes(vu v) { return (vi)((vh)v >> 8); }

/* The table of levels in every 16 bytes of a register. */
ALWAYS vu level_table(const pe_pack *w) {
  uint8_t bytes[4 * W] = {0};
  if (w->levels)
    for (int i = 0; i < 4 * W; i += 16) memcpy(bytes + i, w->levels, 16);
  return load_words(bytes);
}

/* ---- scales ---------------------------------------------------------------------------------- */

ALWAYS vf to_floats(vi v) { return __builtin_convertvector(v, vf); }

ALWAYS vf bytes_to_floats(const uint8_t *p) { return to_floats((vi)PE_BYTES(p)); }

ALWAYS vf signed_to_floats(const uint8_t *p) {
  return to_floats((vi)((vu)PE_BYTES(p) << 24) >> 24);
}

/* 2^(byte - 128): half of the scale, since levels are doubled. */
ALWAYS vf e8m0_to_floats(const uint8_t *p, bool gguf) {
  vi v = (vi)PE_BYTES(p);
  vu normal = (vu)(v - 1) << 23, tiny = 0x00200000u << (vu)(v & 1);
  vf s = select_(v < 2, (vf)tiny, (vf)normal);
  return gguf ? s : select_(v == 255, splat(INFINITY), s);
}

/* The bits of E4M3 as those of a float, which is 2^-120 times the value. */
ALWAYS vf e4m3_to_floats(const uint8_t *p) {
  vi v = (vi)PE_BYTES(p), size = v & 0x7f;
  vf f = (vf)(size << 20) * splat(0x1p120f);
  f = select_(size == 0x7f, splat(NAN), f);
  return (vf)((vu)f | (vu)(v & 0x80) << 24);
}

ALWAYS vf typed_scale(const pe_pack *w, const uint8_t *p, const pe_pack_scale type) {
  switch (type) {
  case PE_PACK_F16: return (vf)PE_HALVES(p);
  case PE_PACK_BF16: return (vf)((vu)PE_SHORTS(p) << 16);
  case PE_PACK_F32: return (vf)load_words(p);
  case PE_PACK_E4M3: return e4m3_to_floats(p) * splat(w->global) * splat(0.5f);
  default: return e8m0_to_floats(p, type == PE_PACK_E8M0_GGUF);
  }
}

ALWAYS void typed_line(const pe_pack *w, const uint8_t *at, float *out, const int size,
                       const pe_pack_scale type) {
  for (int p = 0; p < PARTS; p++) store(out + p * W, typed_scale(w, at + p * W * size, type));
}

/* A line of 16 per group of the activations: `times` for one of the weights. Scales and biases of a
 * chunk go together, and many kinds have one line of each in it: loops of few turns would take
 * longer than what is in them. */
ALWAYS void typed_scales(const pe_pack *w, const uint8_t *chunk, int chunks, float *s, float *b,
                         const pe_pack_scale type) {
  const int size = type == PE_PACK_F32 ? 4 : type == PE_PACK_F16 || type == PE_PACK_BF16 ? 2 : 1;
  const int groups = w->groups, times = w->times, bytes = w->chunk_bytes;
  const uint8_t *at = chunk + w->scale_at, *bias = w->bias ? chunk + w->bias_at : NULL;
  if (groups * times == 1) {
    for (int i = 0; i < chunks; i++, at += bytes, s += LANES) {
      typed_line(w, at, s, size, type);
      if (bias) typed_line(w, bias, b, size, type), bias += bytes, b += LANES;
    }
    return;
  }
  for (int i = 0; i < chunks; i++, at += bytes)
    for (int g = 0; g < groups; g++)
      for (int k = 0; k < times; k++, s += LANES) {
        const int line = g * LANES * size;
        typed_line(w, at + line, s, size, type);
        if (bias) typed_line(w, bias + i * bytes + line, b, size, type), b += LANES;
      }
}

ALWAYS void super_chunk(const pe_pack *w, const uint8_t *chunk, float *s, float *b) {
  for (int p = 0; p < PARTS; p++) {
    const uint8_t *super = chunk + w->super_at + p * W * 2;
    const vf d = (vf)PE_HALVES(super);
    /* -(dmin * m) = (-dmin) * m */
    const vf low = w->bias ? -(vf)PE_HALVES(super + 2 * LANES) : (vf){0};
    for (int g = 0; g < w->groups; g++) {
      const int at = g * LANES + p * W;
      const uint8_t *scale = chunk + w->scale_at + at;
      if (w->scale == PE_PACK_SUB_I8) {
        store(s + at, d * signed_to_floats(scale));
      } else if (w->scale == PE_PACK_SUB_U8) {
        store(s + at, d * bytes_to_floats(scale));
        store(b + at, low * bytes_to_floats(chunk + w->bias_at + at));
      } else {
        vi both = (vi)PE_BYTES(scale);
        store(s + at, d * to_floats(both & 15));
        store(b + at, low * to_floats(both >> 4));
      }
    }
  }
}

ALWAYS void super_scales(const pe_pack *w, const uint8_t *chunk, int chunks, float *s, float *b) {
  const int lines = w->groups * LANES;
  for (int i = 0; i < chunks; i++, chunk += w->chunk_bytes, s += lines, b += lines)
    super_chunk(w, chunk, s, b);
}

/* s and b of some chunks, one line of 16 per group of the activations. */
static NEVER void scales_of(const pe_pack *w, const uint8_t *chunk, int chunks, float *s,
                            float *b) {
  switch (w->scale) {
  case PE_PACK_F16: typed_scales(w, chunk, chunks, s, b, PE_PACK_F16); break;
  case PE_PACK_BF16: typed_scales(w, chunk, chunks, s, b, PE_PACK_BF16); break;
  case PE_PACK_F32: typed_scales(w, chunk, chunks, s, b, PE_PACK_F32); break;
  case PE_PACK_E8M0: typed_scales(w, chunk, chunks, s, b, PE_PACK_E8M0); break;
  case PE_PACK_E8M0_GGUF: typed_scales(w, chunk, chunks, s, b, PE_PACK_E8M0_GGUF); break;
  case PE_PACK_E4M3: typed_scales(w, chunk, chunks, s, b, PE_PACK_E4M3); break;
  default: super_scales(w, chunk, chunks, s, b); break;
  }
}
