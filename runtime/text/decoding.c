/* decoding.c - see decoding.h. */
#include "runtime/text/decoding.h"
#include "runtime/text/decoder_stages.h"
#include "runtime/text/unicode.h"
#include "runtime/text/vocab.h"
#include "runtime/utf8.h"

#include <string.h>

typedef pe_decoder_stage stage;

enum { BEGIN = 1, END = 2 }; /* marks of a chunk: its token begins, ends */

typedef struct progress { /* of one stage */
  pe_buf hold;            /* held back: half a character, a tail that may change */
  pe_buf part;            /* a token that arrives in chunks, until it is whole */
  pe_buf last;            /* CTC: the previous token */
  pe_buf tmp[2];          /* for replacing */
  size_t tokens;          /* seen so far */
  size_t valid;           /* ByteFallback: bytes of the held run that are whole characters */
  bool open;              /* this stage has begun a token and not ended it */
  int64_t cut;            /* Strip: characters that may still be removed at the start */
  int64_t held;           /* Strip: characters held back at the end */
} progress;

struct pe_decoding {
  const pe_decoder *decoder;
  progress *at; /* by stage */
  pe_buf *out;
};

static pe_status feed(pe_decoding *d, int i, pe_str s, int marks, pe_error *err);

static const pe_str nothing = {"", 0};

/* Passes on a part of the single token that Fuse and ByteLevel emit. */
static pe_status feed_endless(pe_decoding *d, int i, pe_str s, pe_error *err) {
  int marks = d->at[i].open ? 0 : BEGIN;
  d->at[i].open = true;
  return feed(d, i + 1, s, marks, err);
}

/* Passes on the whole characters among the held bytes. Half a character stays, or is broken if this
 * is the end. */
static pe_status feed_utf8(pe_decoding *d, int i, bool end, pe_error *err) {
  pe_buf *b = &d->at[i].hold;
  pe_str all = pe_buf_str(b);
  const char *at = all.at, *stop = at + all.len, *from = at;
  pe_status rc = PE_OK;
  while (!rc && at < stop) {
    int32_t cp;
    int n = pe_utf8_next(at, stop, &cp);
    if (cp == PE_UTF8_CUT && !end) break;
    if (cp < 0) {
      if (at > from) rc = feed_endless(d, i, pe_str_of(from, (size_t)(at - from)), err);
      if (!rc) rc = feed_endless(d, i, pe_str_of("\xef\xbf\xbd", 3), err);
      from = at + n;
    }
    at += n;
  }
  if (!rc && at > from) rc = feed_endless(d, i, pe_str_of(from, (size_t)(at - from)), err);
  b->len = (size_t)(stop - at);
  if (b->len) memmove(b->data, at, b->len);
  return rc;
}

static pe_status byte_level(pe_decoding *d, int i, pe_str s, pe_error *err) {
  bool all;
  pe_status rc = pe_unicode_put_bytes(&d->at[i].hold, s, &all, err);
  if (!rc && !all) rc = pe_buf_put(&d->at[i].hold, s.at, s.len, err); /* plain text */
  return rc ? rc : feed_utf8(d, i, false, err);
}

/* Ends the single token, or a run of byte tokens that counts as one. */
static pe_status end_endless(pe_decoding *d, int i, pe_error *err) {
  pe_status rc = feed_utf8(d, i, true, err);
  if (!rc && d->at[i].open) rc = feed(d, i + 1, nothing, END, err);
  d->at[i].open = false;
  return rc;
}

/* A held run is broken: each of its bytes becomes a token U+FFFD. */
static pe_status break_run(pe_decoding *d, int i, pe_error *err) {
  pe_status rc = PE_OK;
  for (size_t n = d->at[i].hold.len; !rc && n; n--)
    rc = feed(d, i + 1, pe_str_of("\xef\xbf\xbd", 3), BEGIN | END, err);
  d->at[i].hold.len = d->at[i].valid = 0;
  d->at[i].open = true; /* the bytes that follow are broken also */
  return rc;
}

static pe_status end_run(pe_decoding *d, int i, pe_error *err) {
  if (d->decoder->stage[i].fused) return end_endless(d, i, err);
  pe_str run = pe_buf_str(&d->at[i].hold);
  pe_status rc = PE_OK;
  if (run.len && pe_utf8_valid(run.at, run.len) == run.len)
    rc = feed(d, i + 1, run, BEGIN | END, err);
  else if (run.len)
    rc = break_run(d, i, err);
  d->at[i].hold.len = d->at[i].valid = 0;
  d->at[i].open = false;
  return rc;
}

static pe_status byte_fallback(pe_decoding *d, int i, pe_str s, pe_error *err) {
  int byte = pe_vocab_byte_token(s);
  if (byte < 0) {
    pe_status rc = end_run(d, i, err);
    return rc ? rc : feed(d, i + 1, s, BEGIN | END, err);
  }
  progress *p = &d->at[i];
  pe_status rc = pe_buf_byte(&p->hold, (char)byte, err);
  if (rc) return rc;
  if (d->decoder->stage[i].fused) return feed_utf8(d, i, false, err);
  p->valid += pe_utf8_valid(p->hold.data + p->valid, p->hold.len - p->valid);
  int32_t cp = PE_UTF8_CUT;
  if (p->valid < p->hold.len)
    pe_utf8_next(p->hold.data + p->valid, p->hold.data + p->hold.len, &cp);
  return p->open || cp == PE_UTF8_BROKEN ? break_run(d, i, err) : PE_OK;
}

static const char *find(pe_str s, size_t from, pe_str what) {
  if (!what.len) return NULL;
  for (const char *at = s.at + from, *end = s.at + s.len; (size_t)(end - at) >= what.len; at++) {
    if (!(at = memchr(at, what.at[0], (size_t)(end - at) - what.len + 1))) return NULL;
    if (!memcmp(at, what.at, what.len)) return at;
  }
  return NULL;
}

/* Replaces every `what` in *s by `with`, in the buffer that *s is not in. */
static pe_status replace_all(progress *p, pe_str *s, pe_str what, pe_str with, pe_error *err) {
  const char *hit = find(*s, 0, what);
  if (!hit) return PE_OK;
  pe_buf *b = s->at == p->tmp[0].data ? &p->tmp[1] : &p->tmp[0];
  b->len = 0;
  pe_status rc = PE_OK;
  size_t from = 0;
  for (; !rc && hit; hit = find(*s, from, what)) {
    rc = pe_buf_put(b, s->at + from, (size_t)(hit - s->at) - from, err);
    if (!rc) rc = pe_buf_put(b, with.at, with.len, err);
    from = (size_t)(hit - s->at) + what.len;
  }
  if (!rc) rc = pe_buf_put(b, s->at + from, s->len - from, err);
  if (!rc) *s = pe_buf_str(b);
  return rc;
}

static pe_status clean_up(progress *p, pe_str *s, pe_error *err) {
  static const char *const rule[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                        {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                        {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                        {" 've", "'ve"}, {" 're", "'re"}};
  pe_status rc = PE_OK;
  for (size_t i = 0; !rc && i < sizeof rule / sizeof *rule; i++)
    rc = replace_all(p, s, pe_str_c(rule[i][0]), pe_str_c(rule[i][1]), err);
  return rc;
}

static pe_status wordpiece(pe_decoding *d, int i, pe_str s, pe_error *err) {
  const stage *st = &d->decoder->stage[i];
  pe_status rc = PE_OK;
  if (d->at[i].tokens++) {
    if (s.len >= st->text.len && !memcmp(s.at, st->text.at, st->text.len)) {
      s.at += st->text.len, s.len -= st->text.len;
    } else {
      pe_buf *b = &d->at[i].tmp[0];
      b->len = 0;
      if ((rc = pe_buf_byte(b, ' ', err)) || (rc = pe_buf_put(b, s.at, s.len, err))) return rc;
      s = pe_buf_str(b);
    }
  }
  if (st->clean_up) rc = clean_up(&d->at[i], &s, err);
  return rc ? rc : feed(d, i + 1, s, BEGIN | END, err);
}

/* Passes on the held end of the previous token. Its suffix becomes `with`: a space, or "" if it was
 * the last token. */
static pe_status end_bpe(pe_decoding *d, int i, const char *with, pe_error *err) {
  progress *p = &d->at[i];
  if (!p->open) return PE_OK;
  pe_str s = pe_buf_str(&p->hold);
  pe_status rc = replace_all(p, &s, d->decoder->stage[i].text, pe_str_c(with), err);
  if (!rc) rc = feed(d, i + 1, s, END, err);
  p->open = false, p->hold.len = 0;
  return rc;
}

static pe_status bpe(pe_decoding *d, int i, pe_str s, pe_error *err) {
  pe_status rc = end_bpe(d, i, " ", err);
  const char *hit = find(s, 0, d->decoder->stage[i].text);
  size_t sure = hit ? (size_t)(hit - s.at) : s.len;
  if (!rc) rc = feed(d, i + 1, pe_str_of(s.at, sure), BEGIN, err);
  if (!rc) rc = pe_buf_put(&d->at[i].hold, s.at + sure, s.len - sure, err);
  d->at[i].open = true;
  return rc;
}

static pe_status ctc(pe_decoding *d, int i, pe_str s, pe_error *err) {
  const stage *st = &d->decoder->stage[i];
  progress *p = &d->at[i];
  if (p->tokens++ && pe_str_same(pe_buf_str(&p->last), s)) return PE_OK;
  p->last.len = 0;
  pe_status rc = pe_buf_put(&p->last, s.at, s.len, err);
  if (!rc) rc = replace_all(p, &s, st->text, nothing, err);
  if (!rc && st->clean_up) rc = clean_up(p, &s, err);
  if (!rc && st->clean_up) rc = replace_all(p, &s, st->with, pe_str_c(" "), err);
  return rc || !s.len ? rc : feed(d, i + 1, s, BEGIN | END, err);
}

static pe_status regex(pe_decoding *d, int i, pe_str s, pe_error *err) {
  pe_buf *b = &d->at[i].tmp[0];
  b->len = 0;
  pe_status rc = pe_normalizer_apply(d->decoder->stage[i].regex, s, b, NULL, err);
  return rc ? rc : feed(d, i + 1, pe_buf_str(b), BEGIN | END, err);
}

/* The length of the longest end of s that could begin `what`. */
static size_t half_match(pe_str s, pe_str what) {
  for (size_t n = s.len < what.len ? s.len : what.len - 1; what.len && n; n--)
    if (!memcmp(s.at + s.len - n, what.at, n)) return n;
  return 0;
}

/* Works on chunks: only a tail that may be half a match is held back. */
static pe_status replace(pe_decoding *d, int i, pe_str s, int marks, pe_error *err) {
  const stage *st = &d->decoder->stage[i];
  pe_buf *b = &d->at[i].hold;
  pe_status rc = PE_OK;
  if (b->len) {
    if ((rc = pe_buf_put(b, s.at, s.len, err))) return rc;
    s = pe_buf_str(b);
  }
  size_t from = 0, keep_back;
  const char *hit;
  int begin = marks & BEGIN;
  for (; !rc && (hit = find(s, from, st->text)); begin = 0) {
    rc = feed(d, i + 1, pe_str_of(s.at + from, (size_t)(hit - s.at) - from), begin, err);
    if (!rc) rc = feed(d, i + 1, st->with, 0, err);
    from = (size_t)(hit - s.at) + st->text.len;
  }
  pe_str rest = pe_str_of(s.at + from, s.len - from);
  keep_back = marks & END ? 0 : half_match(rest, st->text);
  if (!rc)
    rc = feed(d, i + 1, pe_str_of(rest.at, rest.len - keep_back), begin | (marks & END), err);
  if (rc) return rc;
  const char *tail = rest.at + rest.len - keep_back;
  if (s.at == b->data) {
    if (keep_back) memmove(b->data, tail, keep_back);
    b->len = keep_back;
    return PE_OK;
  }
  return pe_buf_put(b, tail, keep_back, err);
}

static pe_status metaspace(pe_decoding *d, int i, pe_str s, int marks, pe_error *err) {
  const stage *st = &d->decoder->stage[i];
  if (marks & BEGIN) d->at[i].tokens++;
  bool drop = st->first_dropped && d->at[i].tokens == 1;
  size_t from = 0;
  pe_status rc = PE_OK;
  int begin = marks & BEGIN;
  for (const char *hit; !rc && (hit = find(s, from, st->text)); begin = 0) {
    rc = feed(d, i + 1, pe_str_of(s.at + from, (size_t)(hit - s.at) - from), begin, err);
    if (!rc && !drop) rc = feed(d, i + 1, pe_str_c(" "), 0, err);
    from = (size_t)(hit - s.at) + st->text.len;
  }
  return rc ? rc : feed(d, i + 1, pe_str_of(s.at + from, s.len - from), begin | (marks & END), err);
}

static pe_status strip_release(pe_decoding *d, int i, int64_t n, pe_error *err) {
  pe_status rc = PE_OK;
  for (; !rc && n > 0; n--, d->at[i].held--) rc = feed(d, i + 1, d->decoder->stage[i].text, 0, err);
  return rc;
}

static pe_status strip(pe_decoding *d, int i, pe_str s, int marks, pe_error *err) {
  const stage *st = &d->decoder->stage[i];
  progress *p = &d->at[i];
  pe_status rc = PE_OK;
  if (marks & BEGIN) {
    p->cut = st->start, p->held = 0;
    rc = feed(d, i + 1, nothing, BEGIN, err);
  }
  for (const char *at = s.at, *end = at + s.len; !rc && at < end;) {
    int32_t cp;
    size_t n = (size_t)pe_utf8_next(at, end, &cp);
    bool same = pe_str_same(pe_str_of(at, n), st->text);
    if (!same) {
      p->cut = 0;
      if (!(rc = strip_release(d, i, p->held, err))) rc = feed(d, i + 1, pe_str_of(at, n), 0, err);
    } else if (p->cut > 0) {
      p->cut--;
    } else {
      p->held++;
      rc = strip_release(d, i, p->held - (st->stop > 0 ? st->stop : 0), err);
    }
    at += n;
  }
  if (!rc && marks & END) rc = feed(d, i + 1, nothing, END, err);
  return rc;
}

static pe_status join(pe_decoding *d, int i, pe_str s, pe_error *err) {
  pe_status rc = d->at[i].tokens++ ? pe_buf_byte(d->out, ' ', err) : PE_OK;
  return rc ? rc : pe_buf_put(d->out, s.at, s.len, err);
}

/* Stages that need whole tokens. */
static pe_status feed_token(pe_decoding *d, int i, pe_str s, pe_error *err) {
  switch (d->decoder->stage[i].kind) {
  case PE_DECODER_BYTE_LEVEL: return byte_level(d, i, s, err);
  case PE_DECODER_WORDPIECE: return wordpiece(d, i, s, err);
  case PE_DECODER_BPE: return bpe(d, i, s, err);
  case PE_DECODER_CTC: return ctc(d, i, s, err);
  case PE_DECODER_BYTE_FALLBACK: return byte_fallback(d, i, s, err);
  case PE_DECODER_REPLACE_REGEX: return regex(d, i, s, err);
  default: return join(d, i, s, err);
  }
}

/* A chunk enters stage i; after the last stage it is output. */
static pe_status feed(pe_decoding *d, int i, pe_str s, int marks, pe_error *err) {
  if (i == d->decoder->count) return pe_buf_put(d->out, s.at, s.len, err);
  switch (d->decoder->stage[i].kind) {
  case PE_DECODER_FUSE: return feed_endless(d, i, s, err);
  case PE_DECODER_METASPACE: return metaspace(d, i, s, marks, err);
  case PE_DECODER_STRIP: return strip(d, i, s, marks, err);
  case PE_DECODER_REPLACE: return replace(d, i, s, marks, err);
  default: break;
  }
  if ((marks & (BEGIN | END)) == (BEGIN | END)) return feed_token(d, i, s, err);
  pe_buf *part = &d->at[i].part;
  if (marks & BEGIN) part->len = 0;
  pe_status rc = pe_buf_put(part, s.at, s.len, err);
  return rc || !(marks & END) ? rc : feed_token(d, i, pe_buf_str(part), err);
}

static pe_status finish_stage(pe_decoding *d, int i, pe_error *err) {
  switch (d->decoder->stage[i].kind) {
  case PE_DECODER_BYTE_LEVEL: return end_endless(d, i, err);
  case PE_DECODER_BYTE_FALLBACK: return end_run(d, i, err);
  case PE_DECODER_FUSE: return d->at[i].open ? feed(d, i + 1, nothing, END, err) : PE_OK;
  case PE_DECODER_BPE: return end_bpe(d, i, "", err);
  default: return PE_OK;
  }
}

pe_status pe_decoding_new(const pe_decoder *d, pe_decoding **out, pe_error *err) {
  pe_decoding *s = pe_calloc(1, sizeof *s);
  if (s) s->at = pe_calloc((size_t)d->count, sizeof *s->at);
  if (!s || !s->at) {
    pe_free(s);
    return pe_nomem(err, "decoder");
  }
  s->decoder = d;
  *out = s;
  return PE_OK;
}

void pe_decoding_free(pe_decoding *s) {
  if (!s) return;
  for (int i = 0; i < s->decoder->count; i++) {
    progress *p = &s->at[i];
    pe_buf *all[] = {&p->hold, &p->part, &p->last, &p->tmp[0], &p->tmp[1]};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) pe_buf_free(all[k]);
  }
  pe_free(s->at);
  pe_free(s);
}

pe_status pe_decoding_push(pe_decoding *s, pe_str token, pe_buf *out, pe_error *err) {
  s->out = out;
  return feed(s, 0, token, BEGIN | END, err);
}

pe_status pe_decoding_finish(pe_decoding *s, pe_buf *out, pe_error *err) {
  s->out = out;
  pe_status rc = PE_OK;
  for (int i = 0; !rc && i < s->decoder->count; i++) rc = finish_stage(s, i, err);
  for (int i = 0; i < s->decoder->count; i++) {
    progress *p = &s->at[i];
    p->hold.len = p->part.len = p->last.len = 0;
    p->tokens = p->valid = 0;
    p->open = false, p->cut = p->held = 0;
  }
  return rc;
}
