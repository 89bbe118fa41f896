/* postprocessor.c - see postprocessor.h. */
#include "runtime/text/postprocessor.h"

#include <string.h>

enum { MAX_NESTING = 16 }; /* of Sequences: bounds the recursion; published files have 1 */

static pe_status read_id(const pe_json_value *v, const char *what, int32_t *out, pe_error *err) {
  int64_t id = pe_json_int(v, -1);
  if (id < 0 || id >= INT32_MAX)
    return pe_fail(err, PE_EFORMAT,
                   "post_processor: the id of %s must be an integer from 0 to 2^31 - 2", what);
  *out = (int32_t)id;
  return PE_OK;
}

static pe_status put(pe_ids *l, int32_t id, pe_error *err) {
  pe_status rc = pe_ids_reserve(l, 1, err);
  if (!rc) pe_ids_put(l, id, 0);
  return rc;
}

static pe_status put_first(pe_ids *l, const pe_ids *front, pe_error *err) {
  pe_status rc = pe_ids_reserve(l, front->count, err);
  if (rc || !front->count) return rc;
  if (l->count) memmove(l->id + front->count, l->id, l->count * sizeof *l->id);
  memcpy(l->id, front->id, front->count * sizeof *l->id);
  l->count += front->count;
  return PE_OK;
}

/* {"sep": ["[SEP]", 3], "cls": ["[CLS]", 2]} */
static pe_status read_pair(const pe_json_value *v, pe_postprocessor *p, pe_error *err) {
  int32_t cls = 0, sep = 0;
  pe_status rc = read_id(pe_json_at(pe_json_get(v, "cls"), 1), "cls", &cls, err);
  if (!rc) rc = read_id(pe_json_at(pe_json_get(v, "sep"), 1), "sep", &sep, err);
  pe_ids front = {.id = &cls, .count = 1};
  if (!rc) rc = put_first(&p->before, &front, err);
  return rc ? rc : put(&p->after, sep, err);
}

/* The ids that a template's special token stands for. */
static pe_status put_special(const pe_json_value *specials, pe_str name, pe_ids *l, pe_error *err) {
  const pe_json_value *ids = NULL;
  if (pe_json_is(specials, PE_JSON_OBJECT))
    for (const pe_json_value *s = specials->child; s; s = s->next)
      if (pe_str_same(s->key, name)) ids = pe_json_get(s, "ids");
  if (!pe_json_is(ids, PE_JSON_ARRAY))
    return pe_fail(err, PE_EFORMAT,
                   "post_processor: the template uses '%.*s', which is not in special_tokens",
                   pe_str_clip(name), name.at);
  pe_status rc = PE_OK;
  for (const pe_json_value *i = ids->child; !rc && i; i = i->next) {
    int32_t id = 0;
    if (!(rc = read_id(i, "a special token", &id, err))) rc = put(l, id, err);
  }
  return rc;
}

static pe_status read_template(const pe_json_value *v, pe_postprocessor *p, pe_error *err) {
  const pe_json_value *single = pe_json_get(v, "single");
  if (!pe_json_is(single, PE_JSON_ARRAY))
    return pe_fail(err, PE_EFORMAT,
                   "post_processor: 'single' of TemplateProcessing must be an array");
  pe_ids front = {0};
  int texts = 0;
  pe_status rc = PE_OK;
  for (const pe_json_value *part = single->child; !rc && part; part = part->next) {
    const pe_json_value *special = pe_json_get(part, "SpecialToken");
    if (special)
      rc =
          put_special(pe_json_get(v, "special_tokens"), pe_json_str(pe_json_get(special, "id"), ""),
                      texts ? &p->after : &front, err);
    else if (pe_json_get(part, "Sequence"))
      texts++;
    else
      rc = pe_fail(err, PE_EFORMAT,
                   "post_processor: a template part must be a SpecialToken or a Sequence");
  }
  if (!rc && texts != 1)
    rc = pe_fail(err, PE_EUNSUPPORTED,
                 "post_processor: the template must contain the text once, got %d times", texts);
  if (!rc) rc = put_first(&p->before, &front, err);
  pe_ids_free(&front);
  return rc;
}

static pe_status read_any(const pe_json_value *v, int depth, pe_postprocessor *p, pe_error *err) {
  if (!v || v->type == PE_JSON_NULL) return PE_OK;
  pe_str type = pe_json_str(pe_json_get(v, "type"), "");
  if (pe_str_eq(type, "ByteLevel")) return PE_OK;
  if (pe_str_eq(type, "TemplateProcessing")) return read_template(v, p, err);
  if (pe_str_eq(type, "BertProcessing") || pe_str_eq(type, "RobertaProcessing"))
    return read_pair(v, p, err);
  if (!pe_str_eq(type, "Sequence"))
    return pe_fail(err, PE_EUNSUPPORTED, "unknown post_processor '%.*s'", pe_str_clip(type),
                   type.at);
  const pe_json_value *list = pe_json_get(v, "processors");
  if (!pe_json_is(list, PE_JSON_ARRAY))
    return pe_fail(err, PE_EFORMAT, "post_processor: 'processors' of a Sequence must be an array");
  if (depth == MAX_NESTING)
    return pe_fail(err, PE_ELIMIT, "post_processor is nested deeper than %d levels", MAX_NESTING);
  pe_status rc = PE_OK;
  for (const pe_json_value *i = list->child; !rc && i; i = i->next)
    rc = read_any(i, depth + 1, p, err);
  return rc;
}

pe_status pe_postprocessor_read(const pe_json_value *v, pe_postprocessor *p, pe_error *err) {
  return read_any(v, 0, p, err);
}

void pe_postprocessor_free(pe_postprocessor *p) {
  pe_ids_free(&p->before);
  pe_ids_free(&p->after);
}
