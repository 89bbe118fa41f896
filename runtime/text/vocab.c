/* vocab.c - see vocab.h. */
#include "runtime/text/vocab.h"

#include <string.h>

#include "runtime/hash.h"

/* The highest id allowed: 4 * entries + 65,536. Real vocabularies have few holes; the constant
 * leaves room for small ones with added tokens far above. */
enum { MIN_ID_ROOM = 65536, ID_ROOM_FACTOR = 4 };

pe_status pe_vocab_add(pe_vocab *v, pe_str text, int64_t id, pe_error *err) {
  if (id < 0 || id >= INT32_MAX)
    return pe_fail(err, PE_EFORMAT, "token '%.*s' has id %lld, it must be between 0 and %d",
                   pe_str_clip(text), text.at, (long long)id, INT32_MAX - 1);
  if (v->text.len + text.len > UINT32_MAX || v->count >= UINT32_MAX / 4)
    return pe_fail(err, PE_ELIMIT, "vocabulary is larger than 4 GiB");
  pe_status rc = pe_grow(&v->entry, &v->cap, v->count + 1, sizeof *v->entry, err);
  size_t at = v->text.len;
  if (!rc) rc = pe_buf_put(&v->text, text.at, text.len, err);
  if (rc) return rc;
  v->entry[v->count++] = (pe_vocab_entry){(uint32_t)at, (uint32_t)text.len, (int32_t)id};
  return PE_OK;
}

static pe_str text_at(const pe_vocab *v, uint32_t at, uint32_t len) {
  return pe_str_of(v->text.data ? v->text.data + at : "", len);
}

/* The slot that holds text, or the free slot where it belongs. */
static pe_vocab_slot *find_slot(const pe_vocab *v, pe_str text, uint32_t *tag) {
  uint64_t h = pe_hash(text.at, text.len);
  *tag = (uint32_t)(h >> 32);
  for (uint32_t i = (uint32_t)h & v->mask;; i = (i + 1) & v->mask) {
    pe_vocab_slot *s = &v->slot[i];
    if (!s->next_id ||
        (s->tag == *tag && s->len == text.len && pe_str_same(text_at(v, s->at, s->len), text)))
      return s;
  }
}

static pe_status check_ids(const pe_vocab *v, int32_t *top, pe_error *err) {
  int64_t most = (int64_t)v->count * ID_ROOM_FACTOR + MIN_ID_ROOM;
  *top = -1;
  for (size_t i = 0; i < v->count; i++) {
    if (v->entry[i].id > most) {
      pe_str t = text_at(v, v->entry[i].at, v->entry[i].len);
      return pe_fail(err, PE_EFORMAT,
                     "token '%.*s' has id %d in a vocabulary of %zu tokens, the limit is %lld",
                     pe_str_clip(t), t.at, v->entry[i].id, v->count, (long long)most);
    }
    if (v->entry[i].id > *top) *top = v->entry[i].id;
  }
  return PE_OK;
}

pe_status pe_vocab_finish(pe_vocab *v, pe_error *err) {
  int32_t top;
  pe_status rc = check_ids(v, &top, err);
  if (rc) return rc;
  uint64_t slots = 16;
  while (slots * 2 < (uint64_t)v->count * 3) slots *= 2; /* at most two thirds full */
  pe_free(v->slot);
  pe_free(v->by_id);
  v->mask = (uint32_t)(slots - 1), v->size = top + 1;
  v->slot = pe_calloc(slots, sizeof *v->slot);
  v->by_id = pe_alloc((size_t)v->size * sizeof *v->by_id);
  if (!v->slot || !v->by_id) return pe_nomem(err, "vocabulary");
  memset(v->by_id, 0xff, (size_t)v->size * sizeof *v->by_id);
  for (size_t i = v->count; i-- > 0;) { /* from the end, because the later entry counts */
    pe_vocab_entry *e = &v->entry[i];
    uint32_t tag;
    pe_vocab_slot *s = find_slot(v, text_at(v, e->at, e->len), &tag);
    if (v->by_id[e->id].id < 0) v->by_id[e->id] = *e;
    if (s->next_id)
      e->id = -1; /* the text has a later id, but this id still reads as it */
    else
      *s = (pe_vocab_slot){tag, e->at, e->len, e->id + 1};
  }
  return PE_OK;
}

void pe_vocab_free(pe_vocab *v) {
  pe_buf_free(&v->text);
  pe_free(v->entry);
  pe_free(v->slot);
  pe_free(v->by_id);
  *v = (pe_vocab){0};
}

int32_t pe_vocab_id(const pe_vocab *v, pe_str text) {
  if (!v->slot) return -1;
  uint32_t tag;
  return find_slot(v, text, &tag)->next_id - 1;
}

pe_str pe_vocab_text(const pe_vocab *v, int32_t id) {
  if (id < 0 || id >= v->size || v->by_id[id].id < 0) return (pe_str){0};
  return text_at(v, v->by_id[id].at, v->by_id[id].len);
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c |= 32;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int pe_vocab_byte_token(pe_str t) {
  if (t.len != 6 || memcmp(t.at, "<0x", 3) || t.at[5] != '>') return -1;
  int hi = hex_digit(t.at[3]), lo = hex_digit(t.at[4]);
  return hi < 0 || lo < 0 ? -1 : hi << 4 | lo;
}
