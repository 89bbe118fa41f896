/* wordpiece.c - see wordpiece.h. */
#include "runtime/text/wordpiece.h"

#include <string.h>

void pe_wordpiece_finish(pe_wordpiece *m) {
  for (size_t i = 0; i < m->vocab->count; i++)
    if (m->vocab->entry[i].len > m->longest) m->longest = m->vocab->entry[i].len;
}

static pe_status put_unk(const pe_wordpiece *m, size_t base, pe_ids *out, pe_error *err) {
  int32_t id = pe_vocab_id(m->vocab, m->unk);
  if (id < 0)
    return pe_fail(err, PE_EFORMAT,
                   "the text needs the unk token '%.*s', which is not in the vocabulary",
                   pe_str_clip(m->unk), m->unk.at);
  pe_status rc = pe_ids_reserve(out, 1, err);
  if (!rc) pe_ids_put(out, id, base);
  return rc;
}

static int64_t chars_of(pe_str s) {
  int64_t n = 0;
  for (size_t i = 0; i < s.len; i++) n += (s.at[i] & 0xc0) != 0x80;
  return n;
}

/* The end of the longest token that begins at `from`, or 0. The scratch begins with the prefix. */
static size_t longest_token(const pe_wordpiece *m, pe_buf *scratch, pe_str piece, size_t from,
                            int32_t *id) {
  size_t head = from ? m->prefix.len : 0, room = m->longest > head ? m->longest - head : 0;
  size_t end = piece.len - from < room ? piece.len : from + room;
  memcpy(scratch->data + m->prefix.len, piece.at + from, end - from);
  for (; end > from; end--) {
    if (end < piece.len && (piece.at[end] & 0xc0) == 0x80) continue; /* inside a character */
    *id = pe_vocab_id(m->vocab, pe_str_of(scratch->data + m->prefix.len - head, head + end - from));
    if (*id >= 0) return end;
  }
  return 0;
}

pe_status pe_wordpiece_encode(const pe_wordpiece *m, pe_buf *scratch, pe_str piece, size_t base,
                              pe_ids *out, pe_error *err) {
  if (!piece.len) return PE_OK;
  if (m->whole) {
    int32_t id = pe_vocab_id(m->vocab, piece);
    if (id < 0) return put_unk(m, base, out, err);
    pe_status rc = pe_ids_reserve(out, 1, err);
    if (!rc) pe_ids_put(out, id, base);
    return rc;
  }
  if (chars_of(piece) > m->max_chars) return put_unk(m, base, out, err);
  scratch->len = 0;
  pe_status rc = pe_buf_put(scratch, m->prefix.at, m->prefix.len, err);
  if (!rc) rc = pe_buf_reserve(scratch, m->longest + 1, err);
  if (!rc) rc = pe_ids_reserve(out, piece.len, err);
  size_t before = out->count;
  for (size_t from = 0, to; !rc && from < piece.len; from = to) {
    int32_t id = -1;
    if (!(to = longest_token(m, scratch, piece, from, &id))) {
      out->count = before; /* if one part is not a token, the whole word is unknown */
      return put_unk(m, base, out, err);
    }
    pe_ids_put(out, id, base + from);
  }
  return rc;
}
