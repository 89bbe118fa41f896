/* identity.c - what a cache was computed with, as a hash: see pe_seq_identity in seq.h.
 *
 * Bits are equal within one build, instruction set, precision and KV type, for one graph over one
 * set of weights. All of them are hashed. Numbers that a script gave (frequencies of ropes, folded
 * constants) are hashed by value, views of weights by where they point to. Files are identified by
 * size, times of change and inode, not by content: reading a model of many gigabytes would take
 * longer than what the caches save, and samples of it miss edits between them. A copy of a model
 * therefore starts with empty caches. The time of the last change of attributes is one of the
 * times, since nobody can set it: a file that was overwritten and then restored, with its time,
 * never finds what was computed in between. */
#include <string.h>

#include "kernels/host.h"
#include "runtime/cache/seq.h"
#include "runtime/hash.h"

static void stir(uint8_t hash[16], const void *bytes, size_t n) {
  uint64_t seed;
  memcpy(&seed, hash, sizeof seed);
  uint8_t next[16];
  pe_hash_128(bytes, n, seed, next);
  for (int i = 0; i < 16; i++) hash[i] = (uint8_t)(next[i] ^ (i < 8 ? 0 : hash[i]));
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Bytes that are in no file were made here, from their shapes and a seed: samples tell seeds
 * apart. */
static void stir_part(uint8_t hash[16], const pe_weight_part *p) {
  enum { SAMPLE = 4096 };
  const pe_buffer *b = p->buf;
  const uint64_t place[] = {p->bytes, p->at, b ? b->size : 0, b ? b->inode : 0};
  stir(hash, place, sizeof place);
  if (!b) return;
  const int64_t times[] = {b->changed_ns, b->touched_ns};
  stir(hash, times, sizeof times);
  if (b->mapped) return;
  uint64_t n = p->bytes < SAMPLE ? p->bytes : SAMPLE;
  const uint8_t *at = b->data + p->at;
  stir(hash, at, n), stir(hash, at + (p->bytes - n) / 2, n), stir(hash, at + (p->bytes - n), n);
}

static void stir_weights(uint8_t hash[16], const pe_weights *list) {
  for (size_t i = 0; i < list->count; i++) {
    const pe_weight *w = &list->list[i];
    char label[PE_WEIGHT_LABEL] = {0};
    pe_weight_label(w, label);
    stir(hash, w->name.at, w->name.len), stir(hash, label, strlen(label));
    stir(hash, w->shape, (size_t)w->rank * sizeof *w->shape);
    stir(hash, &w->global, sizeof w->global);
    stir_part(hash, &w->data), stir_part(hash, &w->scales), stir_part(hash, &w->biases);
  }
}

/* ---- the graph ------------------------------------------------------------------------------- */

/* Params are views: the same tensor from another row, or in other steps. */
static void stir_params(uint8_t hash[16], const pe_graph *g) {
  for (size_t i = 0; i < g->param_count; i++) {
    const pe_param_info *p = &g->param[i];
    const pe_quant_matrix *m = &p->mat[0];
    const uint8_t *base = p->weight->data.buf ? p->weight->data.buf->data : NULL;
    const int64_t view[] = {p->count, p->rows, p->cols, (int64_t)m->row_bytes,
                            base && m->data ? m->data - base : 0};
    stir(hash, p->name, strlen(p->name)), stir(hash, view, sizeof view);
  }
}

/* Vectors of params are named by the param; -1: numbers of the script, which are hashed. Nodes use
 * params in the order in which they were made, so the search goes on from the last one, *at. */
static int32_t param_of(const pe_graph *g, const float *vec, size_t *at) {
  for (size_t i = 0; i < g->param_count; i++, ++*at)
    if (g->param[*at % g->param_count].vec == vec) return (int32_t)(*at % g->param_count);
  return -1;
}

static void stir_vectors(uint8_t hash[16], const pe_graph *g, const pe_node *n, size_t *at) {
  for (int i = 0; i < PE_OP_VECS; i++) {
    const float *v = n->vec[i];
    const int32_t param = v ? param_of(g, v, at) : -2;
    stir(hash, &param, sizeof param);
    if (param != -1) continue;
    const pe_rope_table_args *rope = &n->args.rope_table;
    size_t count = n->op == PE_NODE_CONSTANT ? (size_t)n->width : 0;
    if (n->op == PE_OP_ROPE_TABLE)
      count = i ? (size_t)rope->variants : (size_t)rope->turns * (size_t)rope->variants;
    stir(hash, v, count * sizeof *v); /* constants of maps are nodes themselves */
  }
}

static void stir_nodes(uint8_t hash[16], const pe_graph *g) {
  size_t at = 0;
  for (size_t i = 0; i < g->node_count; i++) {
    const pe_node *n = &g->node[i];
    const int64_t shape[] = {n->op,  (int64_t)n->rows, n->width, n->inputs,
                             n->mat, n->cache,         n->offset};
    stir(hash, shape, sizeof shape), stir(hash, n->in, sizeof n->in);
    stir(hash, &n->args, sizeof n->args);
    stir_vectors(hash, g, n, &at);
  }
}

void pe_seq_identity(const pe_kv *kv, uint8_t out[16]) {
  static const char exact[6] = "exact", fast[6] = "fast";
  const char *precision = kv->precision == PE_FAST ? fast : exact;
  const pe_graph *g = kv->graph;
  const int32_t type = (int32_t)kv->type;
  memset(out, 0, 16);
  stir(out, &type, sizeof type), stir(out, precision, sizeof exact);
  stir(out, kv->backend, strlen(kv->backend));
  stir(out, pe_host_isa(), strlen(pe_host_isa()));
  stir(out, pe_host_build(), strlen(pe_host_build()));
  stir_weights(out, g->weights);
  stir_params(out, g);
  stir_nodes(out, g);
}
