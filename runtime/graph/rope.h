/* rope.h - rotary frequencies of every kind that a config can name.
 *
 * default, linear, llama3, yarn, dynamic, longrope, proportional (Gemma 4), and two kinds of vision
 * towers, whose positions are a row and a column (grid: Qwen, grid_turns: Pixtral). The result is a
 * table of inverse frequencies and a factor for cos and sin. Kinds that depend on the length of the
 * sequence (dynamic, longrope) keep both variants and the threshold, and the kernel chooses (op.h:
 * pe_rope_table_args). Computed in double precision and rounded once. */
#ifndef PE_ROPE_H
#define PE_ROPE_H

#include "kernels/op.h"
#include "runtime/base.h"

typedef enum pe_rope_kind {
  PE_ROPE_DEFAULT,
  PE_ROPE_LINEAR,
  PE_ROPE_LLAMA3,
  PE_ROPE_YARN,
  PE_ROPE_DYNAMIC,
  PE_ROPE_LONGROPE,
  PE_ROPE_PROPORTIONAL,
  PE_ROPE_GRID,      /* towers: each axis has its own run of frequencies, over its section */
  PE_ROPE_GRID_TURNS /* towers: the axes take the frequencies of one run in turns */
} pe_rope_kind;

typedef struct pe_rope_spec {
  pe_rope_kind kind;
  int32_t dims;    /* values of a head that rotate; even */
  int32_t turning; /* proportional: dims is the whole head, and only this many values rotate */
  double theta, factor;
  double original;                                     /* original_max_position_embeddings */
  double low_freq_factor, high_freq_factor;            /* llama3 */
  double beta_fast, beta_slow, mscale, mscale_all_dim; /* yarn; mscale 0: not given */
  bool truncate;                            /* yarn: round the bounds to whole dimensions */
  double attention_factor;                  /* yarn, longrope; 0: from the formula */
  double max_position;                      /* dynamic, longrope */
  const double *short_factor, *long_factor; /* longrope: dims / 2 each */
  const double *divisor; /* dims / 2 divisors of the frequencies (GGUF's rope_freqs), or NULL */
  int32_t section[3];    /* rotations that follow each axis of a position; all 0: one axis */
  bool interleaved_axes;
  double growth; /* of queries with their position, every `original` positions; 0: none */
} pe_rope_spec;

/* Most values of a head that can rotate. Heads of known models have up to 512 values; the table of
 * frequencies below has this size. */
enum { PE_ROPE_MAX = 1024 };

typedef struct pe_rope {
  pe_rope_table_args args;
  float frequency[PE_ROPE_MAX]; /* [variants][turns] */
  float factor[2];              /* multiplies cos and sin of each variant, on top of args.scale */
} pe_rope;

int pe_rope_find(const char *name); /* "yarn" -> PE_ROPE_YARN; -1: unknown */
pe_status pe_rope_make(const pe_rope_spec *s, pe_rope *out, pe_error *err);

#endif
