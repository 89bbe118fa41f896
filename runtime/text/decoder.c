/* decoder.c - see decoder.h. */
#include "runtime/text/decoder.h"
#include "runtime/text/decoder_stages.h"

enum { MAX_NESTING = 16 }; /* of Sequences: bounds the recursion; published files have 1 */

static pe_status keep(pe_decoder *d, pe_str s, pe_str *out, pe_error *err) {
  char *p = pe_arena_dup(&d->arena, s.at, s.len);
  if (!p) return pe_nomem(err, "decoder");
  *out = pe_str_of(p, s.len);
  return PE_OK;
}

static pe_status read_text(pe_decoder *d, const pe_json_value *v, const char *key,
                           const char *otherwise, pe_str *out, pe_error *err) {
  const pe_json_value *s = pe_json_get(v, key);
  if (!pe_json_is(s, PE_JSON_STRING) && !otherwise)
    return pe_fail(err, PE_EFORMAT, "decoder: '%s' must be a string", key);
  return keep(d, pe_json_str(s, otherwise), out, err);
}

static pe_status read_metaspace(pe_decoder *d, const pe_json_value *v, pe_decoder_stage *s,
                                pe_error *err) {
  pe_str scheme = pe_json_str(pe_json_get(v, "prepend_scheme"), "always");
  s->first_dropped =
      !pe_str_eq(scheme, "never") && pe_json_bool(pe_json_get(v, "add_prefix_space"), true);
  return read_text(d, v, "replacement", NULL, &s->text, err);
}

static pe_status read_wordpiece(pe_decoder *d, const pe_json_value *v, pe_decoder_stage *s,
                                pe_error *err) {
  s->clean_up = pe_json_bool(pe_json_get(v, "cleanup"), true);
  return read_text(d, v, "prefix", "##", &s->text, err);
}

static pe_status read_bpe(pe_decoder *d, const pe_json_value *v, pe_decoder_stage *s,
                          pe_error *err) {
  return read_text(d, v, "suffix", "</w>", &s->text, err);
}

static pe_status read_ctc(pe_decoder *d, const pe_json_value *v, pe_decoder_stage *s,
                          pe_error *err) {
  s->clean_up = pe_json_bool(pe_json_get(v, "cleanup"), true);
  pe_status rc = read_text(d, v, "pad_token", "<pad>", &s->text, err);
  return rc ? rc : read_text(d, v, "word_delimiter_token", "|", &s->with, err);
}

static pe_status read_strip(pe_decoder *d, const pe_json_value *v, pe_decoder_stage *s,
                            pe_error *err) {
  s->start = pe_json_int(pe_json_get(v, "start"), 0);
  s->stop = pe_json_int(pe_json_get(v, "stop"), 0);
  return read_text(d, v, "content", " ", &s->text, err);
}

static pe_status read_replace(pe_decoder *d, const pe_json_value *v, pe_decoder_stage *s,
                              pe_error *err) {
  const pe_json_value *pattern = pe_json_get(v, "pattern");
  if (!pe_json_is(pe_json_get(pattern, "String"), PE_JSON_STRING)) {
    s->kind = PE_DECODER_REPLACE_REGEX;
    return pe_normalizer_read(v, &s->regex, err);
  }
  pe_status rc = read_text(d, pattern, "String", NULL, &s->text, err);
  return rc ? rc : read_text(d, v, "content", NULL, &s->with, err);
}

static pe_status read_plain(pe_decoder *d, const pe_json_value *v, pe_decoder_stage *s,
                            pe_error *err) {
  (void)d, (void)v, (void)s, (void)err;
  return PE_OK;
}

static const struct {
  const char *name;
  pe_decoder_kind kind;
  pe_status (*read)(pe_decoder *, const pe_json_value *, pe_decoder_stage *, pe_error *);
} kinds[] = {{"ByteLevel", PE_DECODER_BYTE_LEVEL, read_plain},
             {"Metaspace", PE_DECODER_METASPACE, read_metaspace},
             {"WordPiece", PE_DECODER_WORDPIECE, read_wordpiece},
             {"BPEDecoder", PE_DECODER_BPE, read_bpe},
             {"CTC", PE_DECODER_CTC, read_ctc},
             {"ByteFallback", PE_DECODER_BYTE_FALLBACK, read_plain},
             {"Fuse", PE_DECODER_FUSE, read_plain},
             {"Strip", PE_DECODER_STRIP, read_strip},
             {"Replace", PE_DECODER_REPLACE, read_replace}};

static pe_status read_any(pe_decoder *d, const pe_json_value *v, int depth, pe_error *err) {
  pe_str type = pe_json_str(pe_json_get(v, "type"), "");
  if (pe_str_eq(type, "Sequence")) {
    const pe_json_value *list = pe_json_get(v, "decoders");
    if (!pe_json_is(list, PE_JSON_ARRAY))
      return pe_fail(err, PE_EFORMAT, "decoder: 'decoders' of a Sequence must be an array");
    if (depth == MAX_NESTING)
      return pe_fail(err, PE_ELIMIT, "decoder is nested deeper than %d levels", MAX_NESTING);
    pe_status rc = PE_OK;
    for (const pe_json_value *i = list->child; !rc && i; i = i->next)
      rc = read_any(d, i, depth + 1, err);
    return rc;
  }
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (!pe_str_eq(type, kinds[i].name)) continue;
    if (d->count == PE_DECODER_MAX_STAGES)
      return pe_fail(err, PE_ELIMIT, "decoder has more than %d stages", PE_DECODER_MAX_STAGES);
    pe_decoder_stage *s = &d->stage[d->count++];
    s->kind = kinds[i].kind;
    return kinds[i].read(d, v, s, err);
  }
  return pe_fail(err, PE_EUNSUPPORTED, "unknown decoder '%.*s'", pe_str_clip(type), type.at);
}

pe_status pe_decoder_read(const pe_json_value *v, pe_decoder **out, pe_error *err) {
  pe_decoder *d = pe_calloc(1, sizeof *d);
  if (!d) return pe_nomem(err, "decoder");
  pe_status rc = PE_OK;
  if (v && v->type != PE_JSON_NULL)
    rc = read_any(d, v, 0, err);
  else
    d->count = 1; /* stage 0 is zeroed, and PE_DECODER_JOIN is 0 */
  for (int i = 0; i + 1 < d->count; i++)
    if (d->stage[i].kind == PE_DECODER_BYTE_FALLBACK)
      d->stage[i].fused = d->stage[i + 1].kind == PE_DECODER_FUSE;
  if (rc)
    pe_decoder_free(d);
  else
    *out = d;
  return rc;
}

void pe_decoder_free(pe_decoder *d) {
  if (!d) return;
  for (int i = 0; i < d->count; i++) pe_normalizer_free(d->stage[i].regex);
  pe_arena_free(&d->arena);
  pe_free(d);
}

bool pe_decoder_byte_level(const pe_decoder *d) {
  for (int i = 0; i < d->count; i++)
    if (d->stage[i].kind == PE_DECODER_BYTE_LEVEL) return true;
  return false;
}
