/* rope.c - see rope.h. */
#include "runtime/graph/rope.h"

#include <math.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

int pe_rope_find(const char *name) {
  static const struct {
    const char *name;
    pe_rope_kind kind;
  } names[] = {{"default", PE_ROPE_DEFAULT},
               {"linear", PE_ROPE_LINEAR},
               {"llama3", PE_ROPE_LLAMA3},
               {"yarn", PE_ROPE_YARN},
               {"dynamic", PE_ROPE_DYNAMIC},
               {"longrope", PE_ROPE_LONGROPE},
               {"su", PE_ROPE_LONGROPE},
               {"mrope", PE_ROPE_DEFAULT},
               {"proportional", PE_ROPE_PROPORTIONAL},
               {"grid", PE_ROPE_GRID},
               {"grid_turns", PE_ROPE_GRID_TURNS}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(names[i].name, name)) return names[i].kind;
  return -1;
}

static double plain(const pe_rope_spec *s, int i) { return pow(s->theta, -2.0 * i / s->dims); }

static double llama3(const pe_rope_spec *s, int i) {
  double inv = plain(s, i), wave = 2 * pi / inv;
  if (wave < s->original / s->high_freq_factor) return inv;
  if (wave > s->original / s->low_freq_factor) return inv / s->factor;
  double t = (s->original / wave - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
  return (1 - t) * inv / s->factor + t * inv;
}

/* The dimension that makes this many rotations over the original context length. */
static double turning_at(const pe_rope_spec *s, double rotations) {
  return s->dims * log(s->original / (rotations * 2 * pi)) / (2 * log(s->theta));
}

static double yarn(const pe_rope_spec *s, int i) {
  double low = turning_at(s, s->beta_fast), high = turning_at(s, s->beta_slow);
  if (s->truncate) low = floor(low), high = ceil(high);
  low = fmax(low, 0), high = fmin(high, s->dims - 1);
  if (low == high) high += 0.001;
  double ramp = fmin(fmax((i - low) / (high - low), 0), 1), inv = plain(s, i);
  return inv / s->factor * ramp + inv * (1 - ramp);
}

static double yarn_scale(double factor, double m) {
  return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

static double yarn_factor(const pe_rope_spec *s) {
  if (s->attention_factor > 0) return s->attention_factor;
  if (s->mscale > 0 && s->mscale_all_dim > 0)
    return yarn_scale(s->factor, s->mscale) / yarn_scale(s->factor, s->mscale_all_dim);
  return yarn_scale(s->factor, 1);
}

static double longrope_factor(const pe_rope_spec *s) {
  if (s->attention_factor > 0) return s->attention_factor;
  return s->factor <= 1 ? 1 : sqrt(1 + log(s->factor) / log(s->original));
}

static pe_status check(const pe_rope_spec *s, pe_error *err) {
  if (s->dims < 2 || s->dims % 2 || s->dims > PE_ROPE_MAX)
    return pe_fail(
        err, PE_ESHAPE,
        "rope: the number of rotated values of a head must be even and between 2 and %d, got %d",
        PE_ROPE_MAX, s->dims);
  if (!(s->theta > 0) || !isfinite(s->theta))
    return pe_fail(err, PE_EARG, "rope: theta must be positive and finite, got %g", s->theta);
  bool grid = s->kind == PE_ROPE_GRID || s->kind == PE_ROPE_GRID_TURNS;
  if (grid && (s->dims % 4 || s->section[0] != s->dims / 4 || s->section[1] != s->dims / 4))
    return pe_fail(err, PE_EARG,
                   "rope: a grid of %d values needs two sections of %d rotations, got %d and %d",
                   s->dims, s->dims / 4, s->section[0], s->section[1]);
  bool scaled = s->kind == PE_ROPE_LINEAR || s->kind == PE_ROPE_LLAMA3 || s->kind == PE_ROPE_YARN ||
                s->kind == PE_ROPE_DYNAMIC || s->kind == PE_ROPE_PROPORTIONAL;
  if (scaled && !(s->factor > 0))
    return pe_fail(err, PE_EARG, "rope: the factor must be positive, got %g", s->factor);
  bool original =
      s->kind == PE_ROPE_LLAMA3 || s->kind == PE_ROPE_YARN || s->kind == PE_ROPE_LONGROPE;
  if (original && !(s->original > 0))
    return pe_fail(err, PE_EARG, "rope: original_max_position_embeddings must be positive, got %g",
                   s->original);
  if (s->growth > 0 && !(s->original >= 1))
    return pe_fail(err, PE_EARG, "rope: original_max_position_embeddings must be 1 or more, got %g",
                   s->original);
  int64_t sections = (int64_t)s->section[0] + s->section[1] + s->section[2];
  if (s->section[0] < 0 || s->section[1] < 0 || s->section[2] < 0 || sections > s->dims / 2)
    return pe_fail(err, PE_ESHAPE,
                   "rope: sections of %d, %d and %d rotations do not fit the %d of a head",
                   s->section[0], s->section[1], s->section[2], s->dims / 2);
  if (s->kind == PE_ROPE_LONGROPE && (!s->short_factor || !s->long_factor))
    return pe_fail(err, PE_EARG, "rope: longrope needs short_factor and long_factor");
  return PE_OK;
}

/* Rotation i is number `within` of section `axis`; there are two sections of the same size. */
static double grid(const pe_rope_spec *s, int i) {
  int each = s->section[0], axis = i / each, within = i % each;
  if (s->kind == PE_ROPE_GRID) return pow(s->theta, -(double)within / each);
  return plain(s, 2 * within + axis);
}

static double frequency(const pe_rope_spec *s, int i) {
  switch (s->kind) {
  case PE_ROPE_LINEAR: return plain(s, i) / s->factor;
  case PE_ROPE_LLAMA3: return llama3(s, i);
  case PE_ROPE_YARN: return yarn(s, i);
  case PE_ROPE_GRID:
  case PE_ROPE_GRID_TURNS: return grid(s, i);
  case PE_ROPE_PROPORTIONAL: return i < s->turning / 2 ? plain(s, i) / s->factor : 0;
  default: return plain(s, i);
  }
}

pe_status pe_rope_make(const pe_rope_spec *s, pe_rope *out, pe_error *err) {
  pe_status rc = check(s, err);
  if (rc) return rc;
  int half = s->dims / 2;
  memset(out, 0, sizeof *out);
  pe_rope_table_args *a = &out->args;
  a->turns = half, a->variants = 1, a->dims = s->dims, a->theta = (float)s->theta,
  a->factor = (float)s->factor;
  a->interleaved_axes = s->interleaved_axes;
  memcpy(a->section, s->section, sizeof a->section);
  if (s->growth > 0) a->growth = (float)s->growth, a->every = (int32_t)s->original;
  double scale = s->kind == PE_ROPE_YARN       ? yarn_factor(s)
                 : s->kind == PE_ROPE_LONGROPE ? longrope_factor(s)
                                               : 1;
  a->scale = (float)scale, out->factor[0] = out->factor[1] = 1;
  for (int i = 0; i < half; i++) {
    double f = frequency(s, i) / (s->divisor ? s->divisor[i] : 1);
    if (s->kind == PE_ROPE_LONGROPE) {
      out->frequency[half + i] = (float)(f / s->long_factor[i]);
      f /= s->short_factor[i];
    }
    out->frequency[i] = (float)f;
  }
  if (s->kind == PE_ROPE_LONGROPE) a->variants = 2, a->threshold = (int32_t)s->original;
  if (s->kind == PE_ROPE_DYNAMIC) a->dynamic = 1, a->threshold = (int32_t)s->max_position;
  return PE_OK;
}
