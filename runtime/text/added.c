/* added.c - see added.h. */
#include "runtime/text/added.h"

#include <string.h>

#include "runtime/text/unicode.h"
#include "runtime/utf8.h"

/* ---- building ------------------------------------------------------------------------------ */

pe_status pe_added_put(pe_added *a, pe_added_token token, pe_error *err) {
  pe_status rc = pe_grow(&a->token, &a->cap, a->count + 1, sizeof *a->token, err);
  if (rc) return rc;
  char *copy = pe_arena_dup(&a->arena, token.content.at, token.content.len);
  if (!copy) return pe_nomem(err, "added token");
  token.content.at = copy, token.decoded = token.content;
  a->token[a->count++] = token;
  return PE_OK;
}

static pe_status read_flag(const pe_json_value *v, const char *key, pe_str content, bool *out,
                           pe_error *err) {
  const pe_json_value *f = pe_json_get(v, key);
  if (!pe_json_is(f, PE_JSON_TRUE) && !pe_json_is(f, PE_JSON_FALSE))
    return pe_fail(err, PE_EFORMAT, "added token '%.*s': '%s' must be true or false",
                   pe_str_clip(content), content.at, key);
  *out = f->type == PE_JSON_TRUE;
  return PE_OK;
}

static pe_status read_token(const pe_json_value *v, pe_added_token *t, pe_error *err) {
  const pe_json_value *content = pe_json_get(v, "content"), *id = pe_json_get(v, "id");
  if (!pe_json_is(content, PE_JSON_STRING))
    return pe_fail(err, PE_EFORMAT, "'content' of an added token must be a string");
  *t = (pe_added_token){.content = content->str};
  if (!pe_json_is(id, PE_JSON_INT) || id->integer < 0 || id->integer > UINT32_MAX)
    return pe_fail(err, PE_EFORMAT,
                   "added token '%.*s': 'id' must be an integer from 0 to 2^32 - 1",
                   pe_str_clip(t->content), t->content.at);
  const struct {
    const char *key;
    bool *to;
  } flag[] = {{"special", &t->special},
              {"normalized", &t->normalized},
              {"single_word", &t->single_word},
              {"lstrip", &t->lstrip},
              {"rstrip", &t->rstrip}};
  pe_status rc = PE_OK;
  for (size_t i = 0; !rc && i < sizeof flag / sizeof *flag; i++)
    rc = read_flag(v, flag[i].key, t->content, flag[i].to, err);
  return rc;
}

pe_status pe_added_read(pe_added *a, const pe_json_value *list, pe_error *err) {
  if (!list || list->type == PE_JSON_NULL) return PE_OK;
  if (list->type != PE_JSON_ARRAY)
    return pe_fail(err, PE_EFORMAT, "added_tokens must be an array, got %s",
                   pe_json_type_name(list->type));
  pe_status rc = PE_OK;
  for (const pe_json_value *v = list->child; !rc && v; v = v->next) {
    pe_added_token t;
    rc = read_token(v, &t, err);
    if (!rc && t.content.len) rc = pe_added_put(a, t, err);
  }
  return rc;
}

/* Filled from the end, because among equal contents the first counts. */
static pe_status index_texts(pe_added *a, pe_error *err) {
  pe_status rc = PE_OK;
  for (size_t i = a->count; !rc && i-- > 0;)
    rc = pe_vocab_add(&a->texts, a->token[i].content, (int64_t)i, err);
  return rc ? rc : pe_vocab_finish(&a->texts, err);
}

/* Assigns ids: the model's own, otherwise the next one after the vocabulary and all added tokens so
 * far. */
static pe_status number(pe_added *a, const pe_vocab *vocab, pe_error *err) {
  int64_t size = 0, highest = -1;
  for (size_t i = 0; i < vocab->count; i++) size += vocab->entry[i].id >= 0;
  for (size_t i = 0; i < a->count; i++) {
    pe_added_token *t = &a->token[i];
    int32_t first = pe_vocab_id(&a->texts, t->content);
    t->id = -1;
    if (first != (int32_t)i) {
      a->token[first].special |= t->special;
      continue;
    }
    int64_t id = pe_vocab_id(vocab, t->content);
    if (id < 0) id = highest >= size ? highest + 1 : size;
    if (id >= INT32_MAX)
      return pe_fail(err, PE_ELIMIT, "no id is left for added token '%.*s'",
                     pe_str_clip(t->content), t->content.at);
    if (id > highest) highest = id;
    t->id = (int32_t)id;
  }
  a->ids = (int32_t)(highest + 1);
  if (!(a->by_id = pe_calloc((size_t)a->ids, sizeof *a->by_id)))
    return pe_nomem(err, "added tokens");
  for (size_t i = 0; i < a->count; i++)
    if (a->token[i].id >= 0) a->by_id[a->token[i].id] = (int32_t)i + 1;
  return PE_OK;
}

/* Among equal (normalized) contents the first one added is found, special ones before others. */
static pe_status add_pattern(pe_added_search *s, const pe_added *a, pe_str text, size_t index,
                             pe_error *err) {
  if (!text.len) return PE_OK;
  uint32_t node = 0;
  for (size_t i = 0;
       s->trie.edge && i < text.len && (node = pe_trie_child(&s->trie, node, (uint8_t)text.at[i]));)
    i++;
  if (node && s->trie.value[node] >= 0) return PE_OK;
  uint8_t byte = (uint8_t)text.at[0];
  s->firsts += !s->first[byte];
  s->first[byte] = true, s->only = byte;
  s->special |= a->token[index].special;
  return pe_trie_add(&s->trie, text, (int32_t)index, err);
}

static pe_status add_patterns(pe_added *a, const pe_normalizer *n, bool special, pe_buf *text,
                              pe_error *err) {
  pe_status rc = PE_OK;
  for (size_t i = 0; !rc && i < a->count; i++) {
    pe_added_token *t = &a->token[i];
    if (t->id < 0 || t->special != special) continue;
    if (t->normalized && n) {
      text->len = 0;
      if ((rc = pe_normalizer_apply(n, t->content, text, NULL, err))) break;
      const char *copy = pe_arena_dup(&a->arena, text->data, text->len);
      if (!copy) return pe_nomem(err, "added token");
      t->decoded = pe_str_of(copy, text->len);
    }
    rc = add_pattern(t->normalized ? &a->normal : &a->raw, a, t->decoded, i, err);
  }
  return rc;
}

pe_status pe_added_finish(pe_added *a, const pe_vocab *vocab, const pe_normalizer *n,
                          pe_error *err) {
  pe_buf text = {0};
  pe_status rc = index_texts(a, err);
  if (!rc) rc = number(a, vocab, err);
  if (!rc) rc = add_patterns(a, n, true, &text, err);
  if (!rc) rc = add_patterns(a, n, false, &text, err);
  pe_buf_free(&text);
  return rc;
}

void pe_added_free(pe_added *a) {
  pe_trie_free(&a->raw.trie);
  pe_trie_free(&a->normal.trie);
  pe_vocab_free(&a->texts);
  pe_free(a->by_id);
  pe_free(a->token);
  pe_arena_free(&a->arena);
  *a = (pe_added){0};
}

const pe_added_token *pe_added_by_id(const pe_added *a, int32_t id) {
  return id >= 0 && id < a->ids && a->by_id[id] ? &a->token[a->by_id[id] - 1] : NULL;
}

const pe_added_token *pe_added_by_text(const pe_added *a, pe_str text) {
  int32_t i = pe_vocab_id(&a->texts, text);
  return i < 0 ? NULL : &a->token[i];
}

/* ---- search -------------------------------------------------------------------------------- */

/* The index of the next leftmost-longest match from `at` on, or -1. */
static int32_t find_match(const pe_added_search *s, pe_str text, size_t at, size_t *from,
                          size_t *to) {
  if (!s->firsts) return -1;
  for (; at < text.len; at++) {
    if (s->firsts == 1) {
      const char *p = memchr(text.at + at, s->only, text.len - at);
      if (!p) return -1;
      at = (size_t)(p - text.at);
    } else if (!s->first[(uint8_t)text.at[at]]) {
      continue;
    }
    int32_t found = -1;
    uint32_t node = 0;
    for (size_t i = at;
         i < text.len && (node = pe_trie_child(&s->trie, node, (uint8_t)text.at[i]));) {
      i++;
      if (s->trie.value[node] >= 0) found = s->trie.value[node], *to = i;
    }
    if (found >= 0) {
      *from = at;
      return found;
    }
  }
  return -1;
}

/* The character that ends at `at`; -1 at the start of the text. */
static int32_t char_before(pe_str text, size_t at, size_t *from) {
  if (!at) return -1;
  size_t i = at - 1;
  while (i && (text.at[i] & 0xc0) == 0x80) i--;
  int32_t cp;
  pe_utf8_next(text.at + i, text.at + at, &cp);
  *from = i;
  return cp;
}

static int32_t char_after(pe_str text, size_t at, size_t *to) {
  if (at == text.len) return -1;
  int32_t cp;
  *to = at + (size_t)pe_utf8_next(text.at + at, text.at + text.len, &cp);
  return cp;
}

static bool touches_word(pe_str text, size_t from, size_t to) {
  size_t unused;
  return pe_unicode_word(char_before(text, from, &unused)) ||
         pe_unicode_word(char_after(text, to, &unused));
}

static bool is_mark(const pe_added_scan *s, int32_t id) {
  size_t lo = 0, hi = s->marks;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (s->mark[mid] < id)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo < s->marks && s->mark[lo] == id;
}

bool pe_added_next(pe_added_scan *s, pe_added_part *out) {
  if (s->has_pending) {
    s->has_pending = false;
    *out = s->pending;
    return true;
  }
  size_t from = 0, to = 0, next = 0;
  for (int32_t i; (i = find_match(s->search, s->text, s->at, &from, &to)) >= 0;) {
    const pe_added_token *t = &s->added->token[i];
    s->at = to;
    if ((t->special || is_mark(s, t->id)) && !s->allow(s->context, from, to, &s->at)) continue;
    if (t->single_word && touches_word(s->text, from, to)) continue;
    if (t->lstrip) {
      while (from > s->done && pe_unicode_space(char_before(s->text, from, &next))) from = next;
      if (from < s->done) from = s->done; /* rstrip of the last token has swallowed its start */
    }
    if (t->rstrip)
      while (pe_unicode_space(char_after(s->text, to, &next))) to = next;
    pe_added_part token = {from, to, t->id};
    size_t done = s->done;
    s->done = to;
    if (from >= to) continue; /* nothing of it is left */
    if (done >= from) {
      *out = token;
      return true;
    }
    *out = (pe_added_part){done, from, -1};
    s->pending = token, s->has_pending = true;
    return true;
  }
  s->at = s->text.len;
  if (s->done >= s->text.len) return false;
  *out = (pe_added_part){s->done, s->text.len, -1};
  s->done = s->text.len;
  return true;
}

/* Is the text of a guarded token at `at`? */
static bool guarded_at(const pe_added_scan *s, const pe_added_search *search, size_t at) {
  if (!search->firsts || !search->first[(uint8_t)s->text.at[at]]) return false;
  uint32_t node = 0;
  size_t one = 0;
  char_after(s->text, at, &one);
  for (size_t i = at;
       i < s->text.len && (node = pe_trie_child(&search->trie, node, (uint8_t)s->text.at[i]));) {
    int32_t k = search->trie.value[node];
    if (++i <= one || k < 0) continue;
    const pe_added_token *t = &s->added->token[k];
    if (t->special || is_mark(s, t->id)) return true;
  }
  return false;
}

size_t pe_added_guarded(const pe_added_scan *s, size_t at) {
  while (at < s->text.len && !guarded_at(s, &s->added->raw, at) &&
         !guarded_at(s, &s->added->normal, at))
    at++;
  return at;
}
