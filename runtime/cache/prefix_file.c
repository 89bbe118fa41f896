/* prefix_file.c - see prefix_file.h. */
#include "runtime/cache/prefix_file.h"
#include "runtime/hash.h"

#include <string.h>

static void put(uint8_t *at, uint64_t v, int bytes) {
  for (int i = 0; i < bytes; i++) at[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get(const uint8_t *at, int bytes) {
  uint64_t v = 0;
  for (int i = 0; i < bytes; i++) v |= (uint64_t)at[i] << (8 * i);
  return v;
}

static int32_t get_i32(const uint8_t *at) { return (int32_t)(uint32_t)get(at, 4); }

/* ---- the files of a model -------------------------------------------------------------------- */

void pe_prefix_spec_of(const pe_kv *kv, const pe_recur *recur, const uint8_t identity[16],
                       pe_prefix_spec *out) {
  uint8_t shape[24 + PE_GRAPH_GROUPS * 12] = {0};
  *out = (pe_prefix_spec){
      .block = kv->block, .groups = kv->graph->group_count, .state_bytes = pe_recur_bytes(recur)};
  put(shape, (uint64_t)kv->block, 4), put(shape + 4, (uint64_t)out->groups, 4),
      put(shape + 8, (uint64_t)kv->type, 4);
  put(shape + 16, out->state_bytes, 8);
  for (int32_t g = 0; g < out->groups; g++) {
    out->token_bytes[g] = pe_kv_group_token_bytes(kv, g),
    out->window[g] = kv->graph->group[g].window;
    put(shape + 24 + g * 12, out->token_bytes[g], 8),
        put(shape + 32 + g * 12, (uint64_t)(uint32_t)out->window[g], 4);
  }
  memcpy(out->stamp, "PEPREFIX", 8);
  put(out->stamp + 8, PE_PREFIX_FILE_VERSION, 4);
  memcpy(out->stamp + 12, identity, 16);
  put(out->stamp + 28, XXH3_64bits(shape, sizeof shape), 8);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* The size of the body of a head; false if the numbers cannot be those of a node. */
static bool body_size(const pe_prefix_spec *s, const pe_prefix_head *h, uint64_t *out) {
  uint64_t bytes, part;
  if (h->count < 1 || h->count > s->block || h->depth < 0 || h->depth > INT32_MAX / s->block - 1)
    return false;
  if (h->path_names < 0 || h->path_names > h->depth * s->block) return false;
  bytes = (uint64_t)h->depth * (uint64_t)s->block * 4 + (uint64_t)h->path_names * PE_NAME_BYTES;
  for (int32_t g = 0; g < PE_GRAPH_GROUPS; g++) {
    if (h->fill[g] < 0 || h->fill[g] > (g < s->groups ? h->count : 0)) return false;
    if (g < s->groups && s->window[g] <= 0 && h->fill[g] < h->count) return false;
    if (g < s->groups && (!pe_mul_size((uint64_t)h->fill[g], s->token_bytes[g], &part) ||
                          !pe_add_size(bytes, part, &bytes)))
      return false;
  }
  for (int i = 0; i < PE_TREE_SLOTS; i++) {
    int32_t at = h->position[i], base = h->depth * s->block;
    if (at == 0) continue;
    if (!s->state_bytes || at <= base || at > base + h->count ||
        !pe_add_size(bytes, s->state_bytes, &bytes))
      return false;
    for (int k = 0; k < i; k++)
      if (h->position[k] == at) return false;
  }
  *out = bytes;
  return true;
}

static void place_parts(const pe_prefix_spec *s, const uint8_t *body, pe_prefix_image *image) {
  const pe_prefix_head *h = &image->head;
  image->path = body, body += (uint64_t)h->depth * (uint64_t)s->block * 4;
  image->path_name = body, body += (uint64_t)h->path_names * PE_NAME_BYTES;
  for (int32_t g = 0; g < PE_GRAPH_GROUPS; g++) {
    image->rows[g] = h->fill[g] ? body : NULL;
    if (h->fill[g]) body += (uint64_t)h->fill[g] * s->token_bytes[g];
  }
  for (int i = 0; i < PE_TREE_SLOTS; i++) {
    image->state[i] = h->position[i] ? body : NULL;
    if (h->position[i]) body += s->state_bytes;
  }
}

/* ---- reading --------------------------------------------------------------------------------- */

static uint64_t head_size(int32_t count, int32_t names) {
  return PE_PREFIX_FILE_FIXED + (uint64_t)count * 4 + (uint64_t)names * PE_NAME_BYTES + 8;
}

static void read_fields(const uint8_t *bytes, pe_prefix_head *h) {
  *h = (pe_prefix_head){.head_bytes = get(bytes + 36, 4),
                        .hash = {get(bytes + 40, 8), get(bytes + 48, 8)},
                        .parent = {get(bytes + 56, 8), get(bytes + 64, 8)},
                        .key = {get(bytes + 72, 8), get_i32(bytes + 80)},
                        .depth = get_i32(bytes + 84),
                        .count = get_i32(bytes + 88),
                        .names = get_i32(bytes + 92),
                        .path_names = get_i32(bytes + 96),
                        .word = bytes + PE_PREFIX_FILE_FIXED,
                        .body_bytes = get(bytes + 100, 8),
                        .body_sum = get(bytes + PE_PREFIX_FILE_SUM_AT, 8)};
  for (int g = 0; g < PE_GRAPH_GROUPS; g++) h->fill[g] = get_i32(bytes + 116 + 4 * g);
  for (int i = 0; i < PE_TREE_SLOTS; i++) h->position[i] = get_i32(bytes + 180 + 4 * i);
}

pe_status pe_prefix_head_read(const pe_prefix_spec *s, const uint8_t *bytes, uint64_t size,
                              pe_prefix_head *out, pe_error *err) {
  uint64_t body = 0;
  if (size && memcmp(bytes, s->stamp, size < PE_PREFIX_FILE_STAMP ? size : PE_PREFIX_FILE_STAMP))
    return pe_fail(err, PE_EUNSUPPORTED, "not a file of this model");
  if (size < PE_PREFIX_FILE_FIXED)
    return pe_fail(err, PE_EFORMAT, "%llu bytes, the header has at least %d",
                   (unsigned long long)size, PE_PREFIX_FILE_FIXED);
  pe_prefix_head h;
  read_fields(bytes, &h);
  if (h.count < 1 || h.count > s->block || h.names < 0 || h.names > h.count ||
      h.head_bytes != head_size(h.count, h.names))
    return pe_fail(err, PE_EFORMAT, "a header of %llu bytes cannot have a block of %d tokens",
                   (unsigned long long)h.head_bytes, h.count);
  if (size < h.head_bytes)
    return pe_fail(err, PE_EFORMAT, "%llu bytes, the header has %llu", (unsigned long long)size,
                   (unsigned long long)h.head_bytes);
  if (XXH3_64bits(bytes, h.head_bytes - 8) != get(bytes + h.head_bytes - 8, 8))
    return pe_fail(err, PE_EFORMAT, "header checksum mismatch");
  if (!body_size(s, &h, &body) || body != h.body_bytes)
    return pe_fail(err, PE_EFORMAT, "the header claims a body of %llu bytes, expected %llu",
                   (unsigned long long)h.body_bytes, (unsigned long long)body);
  h.name = h.word + (size_t)h.count * 4;
  *out = h;
  return PE_OK;
}

pe_status pe_prefix_image_view(const pe_prefix_spec *s, const uint8_t *bytes, uint64_t size,
                               pe_prefix_image *out, pe_error *err) {
  pe_prefix_head h;
  pe_status rc = pe_prefix_head_read(s, bytes, size, &h, err);
  if (rc) return rc;
  if (size - h.head_bytes != h.body_bytes)
    return pe_fail(err, PE_EFORMAT, "a body of %llu bytes, the header claims %llu",
                   (unsigned long long)(size - h.head_bytes), (unsigned long long)h.body_bytes);
  *out = (pe_prefix_image){.head = h};
  place_parts(s, bytes + h.head_bytes, out);
  return PE_OK;
}

pe_status pe_prefix_image_read(const pe_prefix_spec *s, const uint8_t *bytes, uint64_t size,
                               pe_prefix_image *out, pe_error *err) {
  pe_status rc = pe_prefix_image_view(s, bytes, size, out, err);
  if (rc) return rc;
  const pe_prefix_head *h = &out->head;
  if (XXH3_64bits(bytes + h->head_bytes, h->body_bytes) != h->body_sum)
    return pe_fail(err, PE_EFORMAT, "body checksum mismatch");
  return PE_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_fields(const pe_prefix_spec *s, const pe_prefix_head *h, uint8_t *bytes) {
  memcpy(bytes, s->stamp, PE_PREFIX_FILE_STAMP);
  put(bytes + 36, h->head_bytes, 4);
  put(bytes + 40, h->hash.low, 8), put(bytes + 48, h->hash.high, 8);
  put(bytes + 56, h->parent.low, 8), put(bytes + 64, h->parent.high, 8);
  put(bytes + 72, h->key.salt, 8), put(bytes + 80, (uint32_t)h->key.rope_variant, 4);
  put(bytes + 84, (uint32_t)h->depth, 4), put(bytes + 88, (uint32_t)h->count, 4);
  put(bytes + 92, (uint32_t)h->names, 4), put(bytes + 96, (uint32_t)h->path_names, 4);
  put(bytes + 100, h->body_bytes, 8);
  for (int g = 0; g < PE_GRAPH_GROUPS; g++) put(bytes + 116 + 4 * g, (uint32_t)h->fill[g], 4);
  for (int i = 0; i < PE_TREE_SLOTS; i++) put(bytes + 180 + 4 * i, (uint32_t)h->position[i], 4);
  memcpy(bytes + PE_PREFIX_FILE_FIXED, h->word, (size_t)h->count * 4);
}

pe_status pe_prefix_image_begin(const pe_prefix_spec *s, const pe_prefix_head *h, pe_buf *out,
                                pe_prefix_image *parts, pe_error *err) {
  *parts = (pe_prefix_image){.head = *h};
  if (!body_size(s, h, &parts->head.body_bytes))
    return pe_fail(err, PE_EARG, "block %d of %d tokens is incomplete", h->depth, h->count);
  parts->head.head_bytes = head_size(h->count, h->names);
  uint64_t size = parts->head.head_bytes + parts->head.body_bytes;
  pe_status rc = pe_buf_reserve(out, size, err);
  if (rc) return rc;
  out->len = size;
  uint8_t *bytes = (uint8_t *)out->data;
  write_fields(s, &parts->head, bytes);
  parts->head.name = bytes + PE_PREFIX_FILE_FIXED + (size_t)h->count * 4;
  place_parts(s, bytes + parts->head.head_bytes, parts);
  return PE_OK;
}

void pe_prefix_image_seal(uint8_t *bytes, uint64_t size, const pe_prefix_image *parts) {
  uint64_t head = parts->head.head_bytes;
  put(bytes + PE_PREFIX_FILE_SUM_AT, XXH3_64bits(bytes + head, size - head), 8);
  put(bytes + head - 8, XXH3_64bits(bytes, head - 8), 8);
}
