/* weights.h - the tensors of a model, one face over every file format.
 *
 * pe_weights_open takes what people have on disk:
 * - a model directory with safetensors: the shards of model.safetensors.index.json, else model*.safetensors, else every
 *   other *.safetensors but consolidated.safetensors (Mistral ships its weights twice);
 * - one .safetensors file (config.json beside it is read, too);
 * - a .gguf file, or any part of a split one (NAME-00001-of-00003.gguf): all parts are opened.
 *
 * Files are mapped, nothing is copied or decoded. A weight is a name, a logical shape (outermost first; the last
 * dimension is a row) and where its bytes are. What a format spreads over several tensors is one weight here, with the
 * parts inside: MLX's `X.weight` + `X.scales` (+ `X.biases`) is `X.weight` with the shape before quantisation; gpt-oss's
 * `X_blocks` + `X_scales` is `X`. An MLX layout is checked against config.json; a contradiction is an error that names
 * the module and both numbers. What perigee does not read (AWQ, GPTQ, FP8 blocks, bitsandbytes, compressed-tensors,
 * pickles, other GGUF types) is refused by name.
 *
 * Ownership: a pe_weights owns its files, weights and config; everything borrowed from it lives until pe_weights_release.
 * Whoever reads it for longer than its opener may (a graph) holds it once more. Threads: immutable after opening, so any thread may read. */
#ifndef PE_WEIGHTS_H
#define PE_WEIGHTS_H

#include "runtime/buffer.h"
#include "runtime/weights/gguf.h"
#include "runtime/json.h"
#include "runtime/weights/safetensors.h"
#include "kernels/quant.h"

enum { PE_WEIGHT_MAX_RANK = PE_SAFETENSORS_MAX_RANK };

typedef struct pe_weight_part {
  pe_buffer *buf; /* borrowed: the mapping of a whole file; NULL when there is no such part */
  uint64_t at, bytes;
} pe_weight_part;

typedef struct pe_weight {
  pe_str name;    /* NUL-terminated */
  pe_dtype dtype; /* of plain elements; quantised: of the packed words */
  int rank;
  int64_t shape[PE_WEIGHT_MAX_RANK];
  int64_t rows, cols; /* leading dimensions flattened; a scalar is 1 x 1, a vector one row */
  pe_quant quant;     /* kind PE_QUANT_NONE: plain */
  pe_weight_part data, scales, biases;
  float global;   /* nvfp4's factor for the whole matrix; else 1 */
  int part_count; /* tensors of the file that this weight is made of */
  uint64_t bytes; /* of all parts */
  int file;       /* which of pe_weights.files holds data */
} pe_weight;

typedef struct pe_weights_file {
  const char *path;
  pe_safetensors *safetensors; /* one of the two */
  pe_gguf *gguf;
} pe_weights_file;

typedef struct pe_weights {
  const char *path; /* as opened */
  size_t count, file_count;
  pe_weight *list; /* in the order of the files */
  pe_weights_file *files;
  uint64_t bytes; /* of all weights */
  /* ---- private ---- */
  int held; /* by others than whoever opened it */
  const pe_json_value *config;
  pe_weight **sorted; /* by name */
  size_t cap, file_cap;
  pe_buffer *made; /* the bytes of synthetic weights */
  pe_arena arena;
} pe_weights;

pe_status pe_weights_open(const char *path, pe_weights **out, pe_error *err); /* gives */
const pe_weights *
pe_weights_retain(const pe_weights *w);       /* gives: one more close before it is gone */
void pe_weights_release(const pe_weights *w); /* takes; NULL is fine */

const pe_weight *pe_weights_find(const pe_weights *w, const char *name); /* NULL: not there */
const pe_json_value *pe_weights_config(const pe_weights *w);             /* config.json, or NULL */
const pe_gguf *pe_weights_gguf(const pe_weights *w); /* the first GGUF file, or NULL */
const char *pe_weights_metadata(const pe_weights *w,
                                const char *key); /* safetensors' __metadata__, or NULL */

/* Rows [from, from + count) as float32, one behind the other: count * weight->cols values. */
pe_status pe_weights_dequant(const pe_weights *w, const pe_weight *weight, int64_t from,
                             int64_t count, float *out, pe_error *err);
/* Asks the system for the pages of a weight and waits until they are in memory: what a first run would do on its way. */
void pe_weight_touch(const pe_weight *weight);
/* The description that kernels take; borrows the mapping. */
pe_quant_matrix pe_weight_matrix(const pe_weight *weight);
/* "BF16", "affine 4-bit group 64", "mxfp4", "Q4_K": how the values are stored. */
enum { PE_WEIGHT_LABEL = 32 };
void pe_weight_label(const pe_weight *weight, char out[PE_WEIGHT_LABEL]);

/* What there is of each kind of storage, most bytes first. */
typedef struct pe_weights_kind {
  char label[PE_WEIGHT_LABEL];
  size_t count;
  int64_t values;
  uint64_t bytes;
} pe_weights_kind;
pe_status pe_weights_summary(const pe_weights *w, pe_weights_kind **out, size_t *count,
                             pe_error *err); /* gives; pe_free */

/* Weights that are in no file, for benchmarks: tensors of these names, shapes and layouts with random content of a sane
 * size, so that a model of them runs. */
typedef struct pe_weight_shape {
  const char *name;
  int rank;
  int64_t shape[PE_WEIGHT_MAX_RANK];
  pe_quant quant;
  pe_dtype dtype; /* where quant.kind is PE_QUANT_NONE */
} pe_weight_shape;
pe_status pe_weights_synthetic(const pe_weight_shape *list, size_t count, uint64_t seed,
                               pe_weights **out, pe_error *err); /* gives */

/* ---- between the weights_*.c files --------------------------------------------------------------------- */

pe_status pe_weights_add_file(pe_weights *w, const char *path, pe_weights_file **out,
                              pe_error *err);
/* Appends a weight of the last file; fills rows, cols and bytes from shape and data. */
pe_status pe_weights_add(pe_weights *w, const pe_weight *weight, pe_error *err);
/* Sorts by name; the same name twice is an error that names both files. */
pe_status pe_weights_index(pe_weights *w, pe_error *err);
pe_weight *pe_weights_look(const pe_weights *w, pe_str stem,
                           const char *tail); /* by the name stem + tail */
pe_str pe_weights_printf(pe_weights *w, const char *format, ...)
    PE_PRINTF(2, 3); /* in the arena; at NULL: no memory */
void pe_weight_shape_text(const pe_weight *weight, char *out, size_t size); /* "[4, 64, 8]" */

pe_status pe_weights_open_directory(pe_weights *w, const char *path, pe_error *err);
pe_status pe_weights_open_safetensors(pe_weights *w, const char *path, pe_error *err);
pe_status pe_weights_open_gguf(pe_weights *w, const char *path, pe_error *err);
pe_status pe_weights_check_config(const pe_weights *w,
                                  pe_error *err); /* refuses foreign quantisation */
pe_status pe_weights_join(pe_weights *w,
                          pe_error *err); /* makes one weight of what belongs together */

#endif
