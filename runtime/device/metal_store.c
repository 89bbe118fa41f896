/* metal_store.c - see metal_store.h. */
#include "runtime/device/metal_store.h"

#include <stdlib.h>
#include <string.h>

enum {
  PARTS = 3,          /* data, scales, biases */
  NEAR = 1 << 20,     /* bytes between tensors that do not begin another buffer */
  VECTOR_ALIGN = 4,   /* floats: 16 bytes */
  STACK_WORDS = PARTS /* of a matrix in a stack */
};

typedef struct piece { /* the bytes of one part of one matrix */
  const uint8_t *at;
  uint64_t bytes, align;
} piece;

pe_status pe_metal_status(const pe_metal_error *e, pe_error *err) {
  return pe_fail(err, e->room ? PE_ENOMEM : PE_EIO, "metal: %s", e->text);
}

/* ---- what a plan reads ----------------------------------------------------------------------- */

int32_t pe_metal_matrices(const pe_instr *x) {
  if (x->op == PE_OP_EXPERT_LINEAR || x->op == PE_OP_EXPERT_GATED) return x->args.expert.experts;
  if (x->op == PE_OP_HEAD_LINEAR) return x->args.head.heads;
  return x->mat ? 1 : 0;
}

static const pe_quant_matrix *matrix_of(const pe_instr *x, int which) {
  return which ? x->mat2 : x->mat;
}

/* `row` bytes at the start of every row. */
static uint64_t extent(int64_t rows, uint64_t step, uint64_t row) {
  return rows ? (uint64_t)(rows - 1) * step + row : 0;
}

/* Kernels read data in words of four bytes, unless elements are smaller, and scales one by one. */
static piece piece_of(const pe_quant_matrix *m, int part) {
  const uint8_t *const at[PARTS] = {m->data, m->scales, m->biases};
  if (!at[part]) return (piece){0};
  if (part)
    return (piece){at[part],
                   extent(m->rows, m->scale_bytes, pe_quant_scale_bytes(&m->quant, m->cols)),
                   pe_dtype_size(m->quant.scale_dtype)};
  const uint64_t row = pe_quant_row_bytes(&m->quant, m->dtype, m->cols);
  return (piece){at[0], extent(m->rows, m->row_bytes, row), 4};
}

/* Values of vec[i] of an instruction. */
static int64_t vector_length(const pe_instr *x, int i) {
  const pe_op_args *a = &x->args;
  switch (x->op) {
  case PE_OP_LINEAR: return a->linear.out;
  case PE_OP_GATED: return a->gated.out;
  case PE_OP_EXPERT_LINEAR:
  case PE_OP_EXPERT_GATED: return (int64_t)a->expert.experts * a->expert.out;
  case PE_OP_NORM: return a->norm.weights;
  case PE_OP_MAP: return a->map.input[i].width;
  case PE_OP_ROPE_TABLE:
    return i ? a->rope_table.variants : (int64_t)a->rope_table.variants * a->rope_table.turns;
  case PE_OP_ROPE: return a->rope.norm.weights;
  case PE_OP_STORE: return a->store.rope.norm.weights;
  case PE_OP_ATTENTION: return a->attention.heads;
  case PE_OP_ROUTE: return a->route.experts;
  case PE_OP_CONV: return (int64_t)a->conv.channels * (i ? 1 : a->conv.taps);
  case PE_OP_SSM: return a->ssm.heads;
  default: return 0;
  }
}

/* ---- matrices -------------------------------------------------------------------------------- */

/* Is p in the pages of a file, or in reserved ones? Neighbouring parts are in the same buffer, so
 * the last one found is asked first. */
static bool in_pages(const pe_weights *w, const piece *p, const pe_buffer **last) {
  for (size_t i = 0; i <= w->count * PARTS; i++) {
    if (i) {
      const pe_weight *x = &w->list[(i - 1) / PARTS];
      const pe_buffer *const parts[PARTS] = {x->data.buf, x->scales.buf, x->biases.buf};
      *last = parts[(i - 1) % PARTS];
    }
    const pe_buffer *b = *last;
    if (b && p->at >= b->data && p->at + p->bytes <= b->data + b->size)
      return (uintptr_t)b->data % pe_gpu_page() == 0;
  }
  return false;
}

static const uint8_t *round_down(const uint8_t *p) {
  return (const uint8_t *)((uintptr_t)p / pe_gpu_page() * pe_gpu_page());
}
static const uint8_t *round_up(const uint8_t *p) { return round_down(p + pe_gpu_page() - 1); }

static pe_metal_range *find_range(const pe_metal_store *s, const piece *p) {
  for (size_t i = 0; i < s->ranges; i++)
    if (p->at >= s->range[i].from && p->at + p->bytes <= s->range[i].to) return &s->range[i];
  return NULL;
}

static int by_address(const void *a, const void *b) {
  const piece *x = a, *y = b;
  return x->at < y->at ? -1 : x->at > y->at;
}

/* Wraps the pages of sorted pieces, neighbours together. */
static bool wrap(pe_metal_store *s, const piece *list, size_t count, pe_metal_error *e) {
  const uint64_t most = pe_gpu_facts_of(s->gpu)->most_bytes;
  for (size_t i = 0, next; i < count; i = next) {
    const uint8_t *from = round_down(list[i].at), *to = round_up(list[i].at + list[i].bytes);
    for (next = i + 1; next < count && list[next].at <= to + NEAR; next++) {
      const uint8_t *end = round_up(list[next].at + list[next].bytes);
      if (end > to && (uint64_t)(end - from) > most) break;
      if (end > to) to = end;
    }
    pe_metal_range *r = &s->range[s->ranges];
    if (!pe_gpu_wrap(s->gpu, from, (uint64_t)(to - from), &r->buffer, e)) return false;
    r->from = from, r->to = to, s->ranges++, s->wrapped += (uint64_t)(to - from);
  }
  return true;
}

static bool copy(pe_metal_store *s, const piece *p, pe_metal_error *e) {
  pe_metal_range *r = &s->range[s->ranges];
  if (!pe_gpu_allocate(s->gpu, p->bytes, &r->buffer, e)) return false;
  memcpy(r->buffer.data, p->at, p->bytes);
  r->from = p->at, r->to = p->at + p->bytes, s->ranges++, s->copied += p->bytes;
  return true;
}

static size_t count_pieces(const pe_plan *plan) {
  size_t n = 0;
  for (size_t i = 0; i < plan->count; i++)
    n += 2 * PARTS * ((size_t)pe_metal_matrices(&plan->instr[i]) + 1); /* a copied stack also */
  return n;
}

/* All pieces of the plan: first those that can be wrapped, then those that must be copied. */
static size_t list_pieces(const pe_plan *plan, piece *list, size_t *wrappable) {
  size_t n = 0, other = count_pieces(plan);
  const size_t end = other;
  const pe_buffer *last = NULL;
  for (size_t i = 0; i < plan->count; i++)
    for (int k = 0; k < 2; k++) {
      const pe_quant_matrix *m = matrix_of(&plan->instr[i], k);
      for (int32_t j = 0; m && j < pe_metal_matrices(&plan->instr[i]); j++)
        for (int part = 0; part < PARTS; part++) {
          const piece p = piece_of(&m[j], part);
          const bool aligned = p.at && (uintptr_t)p.at % p.align == 0;
          if (!p.bytes) continue;
          if (aligned && in_pages(plan->graph->weights, &p, &last))
            list[n++] = p;
          else
            list[--other] = p;
        }
    }
  *wrappable = n;
  memmove(list + n, list + other, (end - other) * sizeof *list);
  return n + (end - other);
}

static pe_status hold_matrices(pe_metal_store *s, const pe_plan *plan, pe_error *err) {
  pe_metal_error e = {0};
  s->cap = count_pieces(plan) + 1;
  piece *list = pe_calloc(s->cap, sizeof *list);
  s->range = pe_calloc(s->cap, sizeof *s->range);
  if (!list || !s->range) {
    pe_free(list);
    return pe_nomem(err, "weights on the GPU");
  }
  size_t wrappable, count = list_pieces(plan, list, &wrappable);
  qsort(list, wrappable, sizeof *list, by_address);
  bool ok = wrap(s, list, wrappable, &e);
  for (size_t i = wrappable; ok && i < count; i++)
    ok = find_range(s, &list[i]) || copy(s, &list[i], &e);
  pe_free(list);
  return ok ? PE_OK : pe_metal_status(&e, err);
}

/* ---- stacks of matrices ---------------------------------------------------------------------- */

/* One buffer with a part of all matrices of a stack. */
static bool copy_stack(pe_metal_store *s, const pe_quant_matrix *m, int32_t count, int part,
                       pe_metal_operand *out, uint64_t *at, pe_metal_error *e) {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < count; i++) {
    at[i * STACK_WORDS] = bytes;
    bytes += (piece_of(&m[i], part).bytes + 3) & ~(uint64_t)3;
  }
  pe_metal_range *r = &s->range[s->ranges];
  if (!pe_gpu_allocate(s->gpu, bytes, &r->buffer, e)) return false;
  s->ranges++, s->copied += bytes; /* without addresses: nothing else finds it */
  for (int32_t i = 0; i < count; i++) {
    const piece p = piece_of(&m[i], part);
    memcpy(r->buffer.data + at[i * STACK_WORDS], p.at, p.bytes);
  }
  *out = (pe_metal_operand){&r->buffer, 0};
  return true;
}

/* Fills every third word from `at` on with the place of a part of each matrix, from *out on. */
static bool place_stack(pe_metal_store *s, const pe_quant_matrix *m, int32_t count, int part,
                        pe_metal_operand *out, uint64_t *at, pe_metal_error *e) {
  const piece first = piece_of(&m[0], part);
  const uint8_t *lowest = first.at;
  if (!first.bytes) return true;
  const pe_metal_range *r = find_range(s, &first);
  for (int32_t i = 0; i < count; i++) {
    const piece p = piece_of(&m[i], part);
    if (find_range(s, &p) != r) return copy_stack(s, m, count, part, out, at, e);
    if (p.at < lowest) lowest = p.at;
  }
  for (int32_t i = 0; i < count; i++)
    at[i * STACK_WORDS] = (uint64_t)(piece_of(&m[i], part).at - lowest);
  *out = (pe_metal_operand){&r->buffer, (uint64_t)(lowest - r->from)};
  return true;
}

static pe_status place_matrices(pe_metal_store *s, const pe_plan *plan, pe_error *err) {
  pe_metal_error e = {0};
  uint64_t words = 2, at = 0; /* a buffer is never empty */
  for (size_t i = 0; i < plan->count; i++)
    words += 2 * STACK_WORDS * (uint64_t)pe_metal_matrices(&plan->instr[i]);
  bool ok = pe_gpu_allocate(s->gpu, words * sizeof(uint64_t), &s->stacks, &e);
  uint64_t *table = (uint64_t *)(void *)s->stacks.data;
  for (size_t i = 0; ok && i < plan->count; i++) {
    const pe_instr *x = &plan->instr[i];
    const int32_t count = pe_metal_matrices(x);
    s->of[i].stack = (pe_metal_operand){&s->stacks, at * sizeof(uint64_t)};
    for (int k = 0; ok && k < 2 && count; k++, at += (uint64_t)count * STACK_WORDS)
      for (int part = 0; ok && matrix_of(x, k) && part < PARTS; part++)
        ok = place_stack(s, matrix_of(x, k), count, part, &s->of[i].mat[k][part], table + at + part,
                         &e);
  }
  return ok ? PE_OK : pe_metal_status(&e, err);
}

/* ---- vectors --------------------------------------------------------------------------------- */

/* Is vec[j] of instruction i one that an earlier instruction has? Then its place is known. */
static bool known_vector(const pe_metal_store *s, const pe_plan *plan, size_t i, int j) {
  const pe_instr *x = &plan->instr[i];
  for (size_t k = 0; k < i; k++)
    for (int n = 0; n < PE_OP_VECS; n++)
      if (plan->instr[k].vec[n] == x->vec[j] &&
          vector_length(&plan->instr[k], n) >= vector_length(x, j)) {
        s->of[i].vec[j] = s->of[k].vec[n];
        return true;
      }
  return false;
}

static pe_status hold_vectors(pe_metal_store *s, const pe_plan *plan, pe_error *err) {
  pe_metal_error e = {0};
  uint64_t floats = 0;
  for (size_t i = 0; i < plan->count; i++)
    for (int j = 0; j < PE_OP_VECS; j++) {
      const pe_instr *x = &plan->instr[i];
      if (!x->vec[j] || known_vector(s, plan, i, j)) continue;
      s->of[i].vec[j] = (pe_metal_operand){&s->vectors, floats * sizeof(float)};
      floats += (uint64_t)(vector_length(x, j) + VECTOR_ALIGN - 1) / VECTOR_ALIGN * VECTOR_ALIGN;
    }
  if (!floats) return PE_OK;
  if (!pe_gpu_allocate(s->gpu, floats * sizeof(float), &s->vectors, &e))
    return pe_metal_status(&e, err);
  for (size_t i = 0; i < plan->count; i++)
    for (int j = 0; j < PE_OP_VECS; j++)
      if (plan->instr[i].vec[j])
        memcpy(s->vectors.data + s->of[i].vec[j].at, plan->instr[i].vec[j],
               (size_t)vector_length(&plan->instr[i], j) * sizeof(float));
  s->copied += floats * sizeof(float);
  return PE_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

pe_status pe_metal_store_open(pe_metal_store *s, pe_gpu *gpu, const pe_plan *plan, pe_error *err) {
  s->gpu = gpu;
  s->of = pe_calloc(plan->count + 1, sizeof *s->of);
  if (!s->of) return pe_nomem(err, "weights on the GPU");
  pe_status rc = hold_vectors(s, plan, err);
  if (!rc) rc = hold_matrices(s, plan, err);
  if (!rc) rc = place_matrices(s, plan, err);
  return rc;
}

void pe_metal_store_close(pe_metal_store *s) {
  for (size_t i = 0; i < s->ranges; i++) pe_gpu_free(s->gpu, &s->range[i].buffer);
  pe_gpu_free(s->gpu, &s->vectors), pe_gpu_free(s->gpu, &s->stacks);
  pe_free(s->range), pe_free(s->of);
  *s = (pe_metal_store){0};
}
