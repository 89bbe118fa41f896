/* table.h - from ops to kernels: which functions of the Metal library compute an instruction, over
 * which grids. C only and without Metal: the host encodes what this table says, tests run it.
 *
 * An op is one pass or several, with a barrier between them. Which kernel is taken may depend on
 * the shapes and the number of rows, but the bits of a row do not: all kernels of an op add in the
 * same order (see product.metal and attention.metal). Nothing here keeps state. */
#ifndef PE_METAL_TABLE_H
#define PE_METAL_TABLE_H

#include "kernels/metal/args.h"
#include "kernels/op.h"

#include <stddef.h>

/* Sizes of tiles and thresholds, which a person may tune on a real device. Their list, with
 * defaults, ranges and meanings, is scripts/engine/tiles.lua. */
typedef struct pe_metal_tiles {
  int32_t linear_rows_2, linear_rows_4, linear_rows_8, linear_rows_wide, linear_simdgroups;
  int32_t join_rows, norm_rows, expert_sort_pairs, attention_split, attention_tiles;
} pe_metal_tiles;
extern const pe_metal_tiles pe_metal_tiles_default;

typedef struct pe_metal_tile { /* one of them */
  const char *name;
  size_t offset; /* in pe_metal_tiles */
  int32_t value, least, most;
} pe_metal_tile;
extern const pe_metal_tile pe_metal_tile_list[];
extern const int pe_metal_tile_count;

typedef struct pe_metal_job {
  pe_op op;
  const pe_metal_call *call;
  const pe_op_args *args;
  const pe_step *step;
  const pe_quant_matrix *mat, *mat2, *mat3, *mat4; /* NULL: none; of experts and heads the first */
  const pe_metal_tiles *tiles;                     /* NULL: the defaults */
  int32_t joined;           /* products of one input that it computes; 0: an op as it is */
  const pe_rope_args *rope; /* of a store: the rope that it does as well; NULL: none */
  bool total;               /* of experts: their sum as well; */
  bool route;               /* and their choice */
} pe_metal_job;

typedef struct pe_metal_grid { /* for dispatchThreadgroups; a group has a multiple of 32 threads */
  uint32_t groups[3], threads;
} pe_metal_grid;

typedef struct pe_metal_pass {
  const char *kernel;                                        /* its name in the library */
  uint32_t binds;                                            /* bits of the slots that it has */
  uint32_t constants;                                        /* bits of its function constants */
  uint32_t writes;                                           /* bits of the slots that it writes */
  void (*grid)(const pe_metal_job *job, pe_metal_grid *out); /* groups may be 0: nothing to do */
  const struct pe_metal_pass *then; /* after a barrier; NULL: the op is done */
} pe_metal_pass;

/* The first pass of a job. NULL: there is no kernel, and *why says for what. */
const pe_metal_pass *pe_metal_pass_of(const pe_metal_job *job, const char **why);
/* Bytes of scratch that the passes of a job share. */
uint64_t pe_metal_scratch(const pe_metal_job *job);
/* How many times the passes of a job read each of its matrices; of experts those that are chosen,
 * if rows agree as little as they can. */
double pe_metal_reads(const pe_metal_job *job);
/* The value of a function constant (pe_metal_constant) for a job. */
uint32_t pe_metal_constant_of(const pe_metal_job *job, int constant);

/* The text of all kernels, for newLibraryWithSource. */
extern const char pe_metal_source[];

#endif
