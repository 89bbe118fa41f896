/* tower.h - a vision tower: a plan without caches over the patches of pictures.
 *
 *     pictures (patches, grid) -> one step: a row per patch -> plan -> an output per merged block
 *
 * A picture is a grid of frames x rows x cols patches. Pictures of any sizes share a step: what
 * depends on the grid (positions, lines of the table of positions, blocks that become one output,
 * frames and windows that attend to themselves) is computed here, once per step, and the plan's ops
 * read it (op.h). Attention never leaves a frame, so a picture's features have the same bits alone
 * and in company.
 *
 *     raster          blocks (merge 2)        blocks in windows of one block
 *     0  1  2  3      0  1 | 4  5             the rows of a window are adjacent in the step
 *     4  5  6  7      2  3 | 6  7             (Qwen 2.5); outputs are in raster order again
 *
 * Features have the same bits within one precision. In `fast` weights that are packed (program.h)
 * are packed by the first step and stay so until the tower is closed.
 *
 * Memory: a step takes pictures up to `step_rows` patches, and always at least one; a larger
 * picture runs alone, and its memory is given back afterwards. Results are copied out of the step.
 *
 * Ownership: borrows plan and pool. Threads: one at a time. */
#ifndef PE_TOWER_H
#define PE_TOWER_H

#include "runtime/buffer.h"
#include "runtime/device/device.h"

typedef enum pe_tower_table { /* how a row finds its place in the table of positions */
                              PE_TABLE_NONE,
                              PE_TABLE_RASTER,  /* one line per patch; all pictures have one size */
                              PE_TABLE_ALIGNED, /* side x side lines, bilinear, corners aligned */
                              PE_TABLE_ANTIALIASED, /* the same, corners not aligned, antialiased */
                              PE_TABLE_AXES /* `side` lines for columns, then `side` for rows */
} pe_tower_table;

typedef struct pe_tower_spec {
  int32_t patch;  /* floats of a patch */
  int32_t merge;  /* merge x merge patches become one output; 1: none */
  bool blocks;    /* patches come merge block by merge block, else in raster order */
  int32_t window; /* side of a window, in merge blocks; 0: no windows */
  pe_tower_table table;
  int32_t side;
  int64_t step_rows; /* patches of a step, unless a single picture has more; 0: the default */
  const pe_backend *backend; /* NULL: the CPU */
  pe_precision precision;
} pe_tower_spec;

enum {
  /* 4,096 patches are a picture of 1024 x 1024: more of them at once are not faster, and take
   * memory in proportion. */
  PE_TOWER_STEP_ROWS = 4096,
  PE_TOWER_MOST_ROWS = 1 << 20 /* of one picture: 16384 x 16384 pixels */
};

typedef struct pe_picture {
  const float *patch; /* [frames * rows * cols][spec.patch], borrowed until the tower is done */
  int32_t frames, rows, cols;
} pe_picture;

typedef struct pe_tower pe_tower;

/* Gives. PE_ESHAPE if plan and spec do not fit. */
pe_status pe_tower_open(const pe_plan *plan, pe_pool *pool, const pe_tower_spec *spec,
                        pe_tower **out, pe_error *err);
void pe_tower_close(pe_tower *t); /* takes; NULL is fine */

/* Can the tower take a picture of this grid? Sets its number of outputs. */
pe_status pe_tower_check(const pe_tower *t, const pe_picture *p, int64_t *outputs, pe_error *err);

/* Memory that a step of this many patches needs, at most. */
uint64_t pe_tower_bytes(const pe_tower *t, int64_t rows);

/* Starts on new pictures; what was running is dropped. The list is copied. */
pe_status pe_tower_begin(pe_tower *t, const pe_picture *list, int32_t count, pe_error *err);
/* Works until the clock passes until_ns; *done: the results are complete. */
pe_status pe_tower_proceed(pe_tower *t, int64_t until_ns, bool *done, pe_error *err);

/* Gives the memory of steps back, between pictures; the next step takes it again. */
void pe_tower_rest(pe_tower *t);

/* Result 0 is the plan's output, result i its tap i - 1. Lines follow the pictures in order; lines
 * of values before the merge are in the order in which the patches came. */
typedef struct pe_tower_result {
  pe_buffer *data; /* float32 [lines, width] */
  int64_t lines;
  int32_t width;
  bool all; /* a line per patch, else per output */
} pe_tower_result;
/* Gives result i of the finished pictures; a second call gives an empty one. */
pe_tower_result pe_tower_take(pe_tower *t, size_t i);

#endif
