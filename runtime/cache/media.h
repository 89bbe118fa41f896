/* media.h - the pictures of a prompt: where their rows are, their features and their positions.
 *
 * An item is one picture or video. Its rows are the placeholders in the prompt: the next `tokens`
 * tokens that equal the one at `at`. They form one run or several, because some families put other
 * tokens between the lines or the frames of a picture:
 *
 *     prompt    5  17  150  P  P  P  151  P  P  P  151  9      P: placeholder
 *     runs                 [0  1  2]     [3  4  5]             lines of the item's features
 *
 * The rows of an item take their embeddings from its features, which a vision tower computed.
 * `whole` items (Gemma) have rows that see each other: each of their runs is computed in one step.
 *
 * A model with positions on three axes gets them for the whole prompt; a token generated at index i
 * has position i + delta on all of them. Without positions a token's position is its index.
 *
 * Ownership: counted; retains the buffers of the features, whose bytes nobody changes. Threads:
 * immutable, and the count is atomic. */
#ifndef PE_MEDIA_H
#define PE_MEDIA_H

#include "kernels/op.h"
#include "runtime/buffer.h"
#include "runtime/cache/names.h"

typedef struct pe_media_plane { /* float32 [tokens][width] */
  pe_buffer *buffer;
  uint64_t offset;
} pe_media_plane;

typedef struct pe_media_item {
  int32_t at, tokens; /* index of the first placeholder, from 0; rows */
  bool whole;
  uint8_t hash[32]; /* of the content and its processing */
  pe_media_plane plane[PE_FEATURE_PLANES];
  int32_t planes;
} pe_media_item;

typedef struct pe_media_run {
  int32_t at, count;  /* tokens at .. at + count - 1 of the prompt */
  int32_t item, line; /* its item; the line of the features that belongs to `at` */
} pe_media_run;

typedef struct pe_media {
  int32_t tokens; /* of the prompt */
  int32_t width, planes;
  pe_media_item *item;
  pe_name *name; /* of each item */
  int32_t items;
  pe_media_run *run; /* in order */
  int32_t runs;
  int32_t longest;   /* run of a whole item; 0: none is whole */
  int32_t *position; /* [3][tokens], or NULL */
  int32_t delta;
  uint64_t bytes; /* of all features */
  /* ---- private ---- */
  pe_arena arena;
  int refs;
} pe_media;

typedef struct pe_media_spec { /* borrowed while opening, except the buffers, which are retained */
  const int32_t *prompt;
  int32_t tokens;
  const pe_media_item *item; /* in order of `at` */
  int32_t items, width;
  const int32_t *position; /* [3][tokens], or NULL */
  int32_t delta;
} pe_media_spec;

/* Gives. Errors name the item, from 1, and both numbers. */
pe_status pe_media_open(const pe_media_spec *s, pe_media **out, pe_error *err);
pe_media *pe_media_retain(pe_media *m); /* NULL is fine, here and below */
void pe_media_release(pe_media *m);

/* The first run that ends after token `index`; m->runs: none does. */
int32_t pe_media_next(const pe_media *m, int32_t index);
/* If a step that ends before token `index` would cut a whole item: its run, else NULL. */
const pe_media_run *pe_media_cut(const pe_media *m, int32_t index);
int32_t pe_media_position(const pe_media *m, int axis, int32_t index);
/* The words of tokens from .. from + count - 1: ids, and names[item] in the rows of pictures. */
void pe_media_words(const pe_media *m, const int32_t *names, int32_t from, int32_t count,
                    int32_t *word);
static inline const float *pe_media_feature(const pe_media *m, const pe_media_run *r, int32_t plane,
                                            int32_t index) {
  const pe_media_plane *p = &m->item[r->item].plane[plane];
  return (const float *)(const void *)(p->buffer->data + p->offset) +
         (int64_t)(r->line + index - r->at) * m->width;
}

#endif
