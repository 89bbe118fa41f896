/* weights.h - the tensors of a model, one interface over every file format.
 *
 * pe_weights_open takes what people have on disk:
 * - a model directory with safetensors: the shards of model.safetensors.index.json, else
 *   model*.safetensors, else all other *.safetensors except consolidated*.safetensors (Mistral
 *   ships its weights twice);
 * - a single .safetensors file, with the config.json next to it, if there is one;
 * - a .gguf file, or any part of a split one (NAME-00001-of-00003.gguf): all parts are opened.
 *
 * Files are mapped; nothing is copied or decoded. A weight is a name, a logical shape (outermost
 * first; the last dimension is a row) and the location of its bytes. Tensors that belong together
 * are one weight: MLX's `X.weight` + `X.scales` (+ `X.biases`) is `X.weight` with the shape before
 * quantisation; gpt-oss's `X_blocks` + `X_scales` is `X`. An MLX layout is checked against
 * config.json; a contradiction is an error that names the module and both numbers. Formats that
 * perigee does not read (AWQ, GPTQ, FP8 blocks, bitsandbytes, compressed-tensors, pickles, other
 * GGUF types) are refused by name.
 *
 * Ownership: counted. A pe_weights owns its files, weights and config; everything borrowed from it
 * lives until the last release. Graphs retain it. Threads: immutable after opening, so any thread
 * may read.
 *
 * Files should be replaced by renaming: the old one stays mapped and whole. One that is truncated
 * or overwritten in place takes its weights with it. Truncation is noticed by the first read of a
 * lost page (fault.h), overwriting by pe_weights_check, which serve calls every second. From then
 * on pe_weights_intact fails: steps end with its error, nothing that they computed is used or
 * cached, and the model must be opened again. */
#ifndef PE_WEIGHTS_H
#define PE_WEIGHTS_H

#include "runtime/buffer.h"
#include "runtime/weights/gguf.h"
#include "runtime/json.h"
#include "runtime/weights/safetensors.h"
#include "kernels/quant.h"

enum { PE_WEIGHT_MAX_RANK = PE_SAFETENSORS_MAX_RANK };

typedef struct pe_weight_part {
  pe_buffer *buf; /* borrowed: the mapping of a whole file; NULL: no such part */
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
  int part_count; /* tensors of the file that make up this weight */
  uint64_t bytes; /* of all parts */
  int file;       /* which of pe_weights.files holds data */
} pe_weight;

typedef struct pe_weights_file {
  const char *path;
  pe_safetensors *safetensors; /* this or gguf; the other is NULL */
  pe_gguf *gguf;
} pe_weights_file;

typedef struct pe_weights {
  const char *path; /* as opened */
  size_t count, file_count;
  pe_weight *list; /* in the order of the files */
  pe_weights_file *files;
  uint64_t bytes; /* of all weights */
  /* ---- private ------------------------------------------------------------------------------- */
  int refs;
  const pe_json_value *config; /* config.json; NULL: none */
  pe_weight **sorted;          /* by name */
  size_t cap, file_cap;
  pe_buffer *made;        /* bytes of synthetic weights */
  struct pe_packs *packs; /* packs.h; NULL: none was made */
  pe_arena arena;
} pe_weights;

pe_status pe_weights_open(const char *path, pe_weights **out, pe_error *err); /* gives */
pe_weights *pe_weights_retain(pe_weights *w); /* gives one more reference */
void pe_weights_release(pe_weights *w);       /* takes; NULL is fine */

/* PE_EIO, with the name of the file without its folder: a file could not be read as it was when it
 * was opened. A look at a mark; any thread, after every read. */
pe_status pe_weights_intact(const pe_weights *w, pe_error *err);
/* The same after a look at size and time of every file, which may wait for a disk. */
pe_status pe_weights_check(const pe_weights *w, pe_error *err);

const pe_weight *pe_weights_find(const pe_weights *w, const char *name); /* NULL: not found */
const pe_gguf *pe_weights_gguf(const pe_weights *w); /* the first GGUF file; NULL: none */

/* Decodes rows [from, from + count) to float32: count * weight->cols consecutive values. */
pe_status pe_weight_dequant(const pe_weight *weight, int64_t from, int64_t count, float *out,
                            pe_error *err);
/* Reads the pages of a weight into memory, so that the first step does not wait for the disk. */
void pe_weight_touch(const pe_weight *weight);
/* Takes the whole pages of these bytes of a file out of memory; reading them brings them back. */
void pe_weights_forget(const pe_weights *w, const uint8_t *at, uint64_t bytes);
/* The description that kernels take; borrows the mapping. */
pe_quant_matrix pe_weight_matrix(const pe_weight *weight);
/* How the values are stored: "BF16", "affine 4-bit group 64", "mxfp4", "Q4_K". */
enum { PE_WEIGHT_LABEL = 32 };
void pe_weight_label(const pe_weight *weight, char out[PE_WEIGHT_LABEL]);

/* One kind of storage. */
typedef struct pe_weights_kind {
  char label[PE_WEIGHT_LABEL];
  size_t count;
  int64_t values;
  uint64_t bytes;
} pe_weights_kind;
/* The kinds of storage in use, most bytes first. gives; pe_free */
pe_status pe_weights_summary(const pe_weights *w, pe_weights_kind **out, size_t *count,
                             pe_error *err);

/* Weights without a file, for benchmarks: these names, shapes and layouts with random values small
 * enough that a model built from them gives finite logits. */
typedef struct pe_weight_shape {
  const char *name;
  int rank;
  int64_t shape[PE_WEIGHT_MAX_RANK];
  pe_quant quant;
  pe_dtype dtype; /* if quant.kind is PE_QUANT_NONE */
} pe_weight_shape;
pe_status pe_weights_synthetic(const pe_weight_shape *list, size_t count, uint64_t seed,
                               pe_weights **out, pe_error *err); /* gives */

/* ---- between the weights_*.c files ----------------------------------------------------------- */

/* An empty pe_weights with one reference. gives */
pe_status pe_weights_new(const char *path, pe_weights **out, pe_error *err);
pe_status pe_weights_add_file(pe_weights *w, const char *path, pe_weights_file **out,
                              pe_error *err);
/* Appends a weight of the last file; computes rows, cols and bytes from shape and data. */
pe_status pe_weights_add(pe_weights *w, const pe_weight *weight, pe_error *err);
/* Sorts by name; the same name twice is an error that names both files. */
pe_status pe_weights_index(pe_weights *w, pe_error *err);
/* The weight named stem + tail; NULL: none. */
pe_weight *pe_weights_look(const pe_weights *w, pe_str stem, const char *tail);
/* A string in the arena; `at` is NULL when out of memory. */
pe_str pe_weights_printf(pe_weights *w, const char *format, ...) PE_PRINTF(2, 3);
void pe_weight_shape_text(const pe_weight *weight, char *out, size_t size); /* "[4, 64, 8]" */

pe_status pe_weights_open_directory(pe_weights *w, const char *path, pe_error *err);
pe_status pe_weights_open_safetensors(pe_weights *w, const char *path, pe_error *err);
pe_status pe_weights_open_gguf(pe_weights *w, const char *path, pe_error *err);
/* Refuses quantisation methods that perigee does not read. */
pe_status pe_weights_check_config(const pe_weights *w, pe_error *err);
/* Joins the tensors of each quantised module into one weight. */
pe_status pe_weights_join(pe_weights *w, pe_error *err);

#endif
