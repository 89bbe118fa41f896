/* weights_join.c - joins the tensors of a quantised module into one weight and checks it against
 * config.json. Other quantisation methods are refused by name.
 *
 * MLX's config has `quantization`: group_size, bits and mode for all modules, and entries by module
 * path that override them: another object (without a mode it means affine, whatever the default is)
 * or a bool. The file decides *whether* a module is quantised (it has scales), the config decides
 * *how*: from words and scales alone, 4 bits in groups of 32 look like 2 bits in groups of 64.
 * Where file and config both say something, they must agree. */
#include "runtime/weights/weights.h"

#include <stdlib.h>
#include <string.h>

static bool ends(pe_str s, const char *end) {
  size_t n = strlen(end);
  return s.len >= n && !memcmp(s.at + s.len - n, end, n);
}

static pe_str cut(pe_str s, size_t tail) { return pe_str_of(s.at, s.len - tail); }

/* ---- refusals -------------------------------------------------------------------------------- */

static const char again[] = "convert it with mlx_lm.convert, or take the unquantised model";
static const char original[] = "convert the unquantised model with mlx_lm.convert -q";

static const struct {
  const char *method, *name, *advice;
} foreign_methods[] = {
    {"awq", "AWQ", again},
    {"gptq", "GPTQ", again},
    {"fp8", "FP8 blocks", again},
    {"fbgemm_fp8", "FP8", original},
    {"bitsandbytes", "bitsandbytes", original},
    {"compressed-tensors", "compressed-tensors", again},
    {"modelopt", "ModelOpt", again},
    {"bitnet", "BitNet", original},
};

static const struct {
  const char *suffix, *name, *advice;
} foreign_tensors[] = {
    {".qweight", "AWQ or GPTQ", again},
    {".weight_scale_inv", "FP8 blocks", again},
    {".weight_packed", "compressed-tensors", again},
    {".weight_scale_2", "ModelOpt", again},
    {".weight_scale", "FP8 or compressed-tensors", again},
    {".weight.absmax", "bitsandbytes", original},
    {".weight.quant_map", "bitsandbytes", original},
    {".SCB", "bitsandbytes", original},
};

static const pe_json_value *object(const pe_json_value *config, const char *key) {
  const pe_json_value *v = pe_json_get(config, key);
  return pe_json_is(v, PE_JSON_OBJECT) ? v : NULL;
}

/* Configs of multimodal models may have it in text_config only. */
static const pe_json_value *quantization_config(const pe_json_value *config) {
  const pe_json_value *v = object(config, "quantization_config");
  return v ? v : object(object(config, "text_config"), "quantization_config");
}

pe_status pe_weights_check_config(const pe_weights *w, pe_error *err) {
  if (object(w->config, "quantization"))
    return PE_OK; /* converted by MLX, whatever it was before */
  pe_str method = pe_json_str(pe_json_get(quantization_config(w->config), "quant_method"), "");
  if (!method.len || pe_str_eq(method, "mxfp4")) return PE_OK;
  for (size_t i = 0; i < sizeof foreign_methods / sizeof *foreign_methods; i++)
    if (pe_str_eq(method, foreign_methods[i].method))
      return pe_fail(
          err, PE_EUNSUPPORTED,
          "the model is quantised with %s (quant_method '%s'), which perigee does not read: %s",
          foreign_methods[i].name, foreign_methods[i].method, foreign_methods[i].advice);
  return pe_fail(err, PE_EUNSUPPORTED, "config.json has an unknown quant_method, '%.*s': %s",
                 pe_str_clip(method), method.at, original);
}

static pe_status check_tensors(const pe_weights *w, pe_error *err) {
  for (size_t k = 0; k < w->count; k++)
    for (size_t i = 0; i < sizeof foreign_tensors / sizeof *foreign_tensors; i++)
      if (ends(w->list[k].name, foreign_tensors[i].suffix))
        return pe_fail(
            err, PE_EUNSUPPORTED,
            "the model is quantised with %s (tensor '%.*s'), which perigee does not read: %s",
            foreign_tensors[i].name, pe_str_clip(w->list[k].name), w->list[k].name.at,
            foreign_tensors[i].advice);
  return PE_OK;
}

/* ---- quantization in config.json ------------------------------------------------------------- */

typedef struct override {
  pe_str path, core; /* as written; without the prefixes in which conventions differ */
  const pe_json_value *value;
} override;

typedef struct rules {
  const pe_json_value *base; /* NULL: the config does not mention quantisation */
  override *list;
  size_t count;
} rules;

/* Strips prefixes: `language_model.model.layers.0`, `model.language_model.layers.0` and
 * `model.layers.0` are the same module. */
static pe_str core_path(pe_str path) {
  static const char *const prefixes[] = {"model.", "language_model.", "text_model."};
  for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
    size_t n = strlen(prefixes[i]);
    if (path.len > n && !memcmp(path.at, prefixes[i], n))
      path = pe_str_of(path.at + n, path.len - n), i = (size_t)-1;
  }
  return path;
}

static int compare(pe_str a, pe_str b) {
  int d = memcmp(a.at, b.at, a.len < b.len ? a.len : b.len);
  return d ? d : (a.len > b.len) - (a.len < b.len);
}

static int by_core(const void *a, const void *b) {
  return compare(((const override *)a)->core, ((const override *)b)->core);
}

static pe_status read_rules(const pe_weights *w, rules *r, pe_error *err) {
  const pe_json_value *q = object(w->config, "quantization");
  if (!q && (q = quantization_config(w->config)) && pe_json_get(q, "quant_method")) q = NULL;
  if (!q) return PE_OK;
  r->base = q;
  if (!(r->list = pe_calloc(q->count, sizeof *r->list)))
    return pe_nomem(err, "quantisation of config.json");
  for (const pe_json_value *v = q->child; v; v = v->next)
    if (v->type == PE_JSON_OBJECT || v->type == PE_JSON_TRUE || v->type == PE_JSON_FALSE)
      r->list[r->count++] = (override){v->key, core_path(v->key), v};
  if (r->count) qsort(r->list, r->count, sizeof *r->list, by_core);
  return PE_OK;
}

/* The entry for a module: among those with the same core path the one with the same full path, else
 * any of them. */
static const pe_json_value *find_rule(const rules *r, pe_str module) {
  pe_str core = core_path(module);
  size_t low = 0, high = r->count;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    if (compare(r->list[mid].core, core) < 0)
      low = mid + 1;
    else
      high = mid;
  }
  const pe_json_value *any = NULL;
  for (; low < r->count && pe_str_same(r->list[low].core, core); low++) {
    any = r->list[low].value;
    if (pe_str_same(r->list[low].path, module)) break;
  }
  return any;
}

/* ---- one module ------------------------------------------------------------------------------ */

typedef struct module {
  pe_str name;
  pe_weight *weight, *scales, *biases;
  pe_error *err;
} module;

static pe_status module_fail(const module *m, pe_status code, const char *what) {
  return pe_fail(m->err, code, "module '%.*s': %s", pe_str_clip(m->name), m->name.at, what);
}

static pe_status shapes_fail(const module *m, const pe_weight *a, const pe_weight *b) {
  char x[128], y[128];
  pe_weight_shape_text(a, x, sizeof x);
  pe_weight_shape_text(b, y, sizeof y);
  return pe_fail(m->err, PE_ESHAPE,
                 "shapes do not fit together: '%.*s' has shape %s, '%.*s' has shape %s",
                 pe_str_clip(a->name), a->name.at, x, pe_str_clip(b->name), b->name.at, y);
}

/* A tensor with a dimension of 0 can have any other dimension. 2^40 keeps the products below, of a
 * length and at most 32 bits * 1024 values, below 2^63. */
enum { MAX_LAST_BITS = 40 };
static bool sane_last(const pe_weight *t) { return t->shape[t->rank - 1] >> MAX_LAST_BITS == 0; }

/* Do two tensors agree in the first `rank` dimensions? */
static bool same_front(const pe_weight *a, const pe_weight *b, int rank) {
  for (int i = 0; i < rank; i++)
    if (a->shape[i] != b->shape[i]) return false;
  return true;
}

/* Scales of bytes belong to the float formats (mxfp4, mxfp8, nvfp4), which have no biases; all
 * others are affine. */
static bool looks_affine(const module *m) { return m->scales->dtype != PE_U8; }

/* Reads mode, bits and group_size of a config object; the defaults are MLX's for that mode. */
static pe_status read_rule(const module *m, const pe_json_value *v, pe_quant *q) {
  pe_str mode = pe_json_str(pe_json_get(v, "mode"), "affine");
  int kind = pe_quant_find(mode.at, mode.len);
  if (kind < PE_QUANT_AFFINE || kind > PE_QUANT_NVFP4)
    return pe_fail(m->err, PE_EUNSUPPORTED,
                   "module '%.*s': config.json has an unknown quantisation mode, '%.*s'",
                   pe_str_clip(m->name), m->name.at, pe_str_clip(mode), mode.at);
  q->kind = (pe_quant_kind)kind;
  int64_t bits = pe_json_int(pe_json_get(v, "bits"), kind == PE_QUANT_MXFP8 ? 8 : 4);
  int64_t group = pe_json_int(pe_json_get(v, "group_size"),
                              kind == PE_QUANT_AFFINE ? 64 : pe_quant_block_values(q->kind));
  q->bits = bits > 0 && bits <= 32 ? (int)bits : 0,
  q->group = group > 0 && group <= 1024 ? (int)group : 0;
  if (!pe_quant_valid(q))
    return pe_fail(m->err, PE_EUNSUPPORTED,
                   "module '%.*s': there is no quantisation %s with %lld bits in groups of %lld "
                   "(config.json) and %s scales (file)",
                   pe_str_clip(m->name), m->name.at, pe_quant_name(q->kind), (long long)bits,
                   (long long)group, pe_dtype_file_name(q->scale_dtype));
  return PE_OK;
}

/* Without a config: tries all layouts. Exactly one must fit. */
static pe_status guess(const module *m, uint64_t words, uint64_t groups, pe_quant *q) {
  static const int bits[] = {2, 3, 4, 5, 6, 8}, group[] = {16, 32, 64, 128};
  pe_quant try = *q;
  int found = 0;
  for (int kind = PE_QUANT_AFFINE; kind <= PE_QUANT_NVFP4; kind++)
    for (size_t b = 0; b < sizeof bits / sizeof *bits; b++)
      for (size_t g = 0; g < sizeof group / sizeof *group; g++) {
        try.kind = (pe_quant_kind)kind, try.bits = bits[b], try.group = group[g];
        if (!pe_quant_valid(&try) || words * 32 != groups * (uint64_t)(bits[b] * group[g]))
          continue;
        *q = try;
        found++;
      }
  if (found == 1) return PE_OK;
  return pe_fail(
      m->err, PE_EFORMAT,
      "module '%.*s': %llu words and %llu scales per row fit %d layouts; config.json must give the "
      "right one in 'quantization'",
      pe_str_clip(m->name), m->name.at, (unsigned long long)words, (unsigned long long)groups,
      found);
}

static pe_status choose(const module *m, const rules *r, uint64_t words, uint64_t groups,
                        pe_quant *q) {
  q->scale_dtype = m->scales->dtype;
  if (!r->base) return guess(m, words, groups, q);
  const pe_json_value *rule = find_rule(r, m->name);
  if (pe_json_is(rule, PE_JSON_FALSE))
    return module_fail(
        m, PE_EFORMAT,
        "config.json says that it is not quantised (false), but the file has its scales");
  pe_status rc = read_rule(m, pe_json_is(rule, PE_JSON_OBJECT) ? rule : r->base, q);
  if (rc) return rc;
  if (words * 32 != groups * (uint64_t)(q->bits * q->group))
    return pe_fail(
        m->err, PE_ESHAPE,
        "module '%.*s': with %d bits in groups of %d (config.json), rows of %llu words need %.6g "
        "scales, but the file has %llu",
        pe_str_clip(m->name), m->name.at, q->bits, q->group, (unsigned long long)words,
        (double)words * 32 / (q->bits * q->group), (unsigned long long)groups);
  return PE_OK;
}

static void attach(pe_weight *w, pe_weight_part *part, pe_weight *from) {
  *part = from->data;
  w->bytes += from->bytes, w->part_count++;
  from->part_count = 0; /* `finish` removes it from the list */
}

static pe_status attach_global(const module *m, const pe_weights *w) {
  pe_weight *g = pe_weights_look(w, m->name, ".global_scale");
  if (!g || m->weight->quant.kind != PE_QUANT_NVFP4) return PE_OK;
  if (g->dtype != PE_F32 || g->data.bytes != 4)
    return module_fail(m, PE_ESHAPE, "global_scale must be a single F32");
  float value;
  pe_weight_part part;
  memcpy(&value, g->data.buf->data + g->data.at, sizeof value);
  m->weight->global = value / (448.0f * 6.0f); /* largest E4M3 scale times largest E2M1 code */
  attach(m->weight, &part, g);
  return PE_OK;
}

static pe_status join_mlx(const pe_weights *w, const rules *r, module *m) {
  pe_weight *t = m->weight;
  int last = t->rank - 1;
  if (t->rank < 1 || m->scales->rank != t->rank || !same_front(t, m->scales, last) ||
      !m->scales->shape[last] || !sane_last(t) || !sane_last(m->scales))
    return shapes_fail(m, t, m->scales);
  if (looks_affine(m) && !m->biases)
    return module_fail(m, PE_EFORMAT, "has scales but no biases, which affine quantisation needs");
  if (!looks_affine(m) && m->biases)
    return module_fail(m, PE_EFORMAT,
                       "has scales of bytes, as the float formats have, but also biases");
  if (m->biases && (m->biases->rank != t->rank || !same_front(m->scales, m->biases, t->rank) ||
                    m->biases->dtype != m->scales->dtype))
    return shapes_fail(m, m->scales, m->biases);
  pe_quant q = {0};
  pe_status rc = choose(m, r, (uint64_t)t->shape[last], (uint64_t)m->scales->shape[last], &q);
  if (rc) return rc;
  t->quant = q;
  t->shape[last] = t->cols = m->scales->shape[last] * q.group;
  attach(t, &t->scales, m->scales);
  if (m->biases) attach(t, &t->biases, m->biases);
  return attach_global(m, w);
}

/* gpt-oss: [..., groups, 16] bytes and [..., groups] scales are [..., groups * 32] values. */
static pe_status join_blocks(module *m) {
  pe_weight *t = m->weight;
  int last = t->rank - 1;
  if (t->rank < 2 || t->shape[last] != 16 || m->scales->dtype != PE_U8 || m->scales->rank != last ||
      !same_front(t, m->scales, last) || !sane_last(m->scales))
    return shapes_fail(m, t, m->scales);
  t->quant = (pe_quant){PE_QUANT_MXFP4, 4, 32, PE_U8};
  t->rank = last;
  t->cols = t->shape[last - 1] *= 32;
  t->rows = 1;
  for (int i = 0; i + 1 < last; i++) t->rows *= t->shape[i];
  attach(t, &t->scales, m->scales);
  return PE_OK;
}

/* ---- all modules ----------------------------------------------------------------------------- */

static pe_status join_one(const pe_weights *w, const rules *r, pe_weight *t, pe_error *err) {
  module m = {.weight = t, .err = err};
  if (t->dtype == PE_U8 && ends(t->name, "_blocks")) {
    m.name = cut(t->name, strlen("_blocks"));
    m.scales = pe_weights_look(w, m.name, "_scales");
    return m.scales ? join_blocks(&m) : PE_OK;
  }
  if (!ends(t->name, ".weight")) return PE_OK;
  m.name = cut(t->name, strlen(".weight"));
  m.scales = pe_weights_look(w, m.name, ".scales");
  if (m.scales && t->dtype == PE_U32) {
    m.biases = pe_weights_look(w, m.name, ".biases");
    return join_mlx(w, r, &m);
  }
  if (!r->base) return PE_OK;
  if (t->dtype == PE_U32) return module_fail(&m, PE_ENOTFOUND, "has a packed weight but no scales");
  if (pe_json_is(find_rule(r, m.name), PE_JSON_OBJECT))
    return pe_fail(err, PE_EFORMAT,
                   "module '%.*s': config.json says %lld bits, but the weight is %s",
                   pe_str_clip(m.name), m.name.at,
                   (long long)pe_json_int(pe_json_get(find_rule(r, m.name), "bits"), 4),
                   pe_dtype_file_name(t->dtype));
  return PE_OK;
}

/* Removes joined tensors from the list and renames `X_blocks` to `X`. Renaming earlier would break
 * the lookup of names. */
static pe_status finish(pe_weights *w, pe_error *err) {
  size_t n = 0;
  for (size_t i = 0; i < w->count; i++) {
    pe_weight *t = &w->list[i];
    if (!t->part_count) continue;
    if (t->part_count > 1 && ends(t->name, "_blocks")) {
      t->name = cut(t->name, strlen("_blocks"));
      if (!(t->name.at = pe_arena_dup(&w->arena, t->name.at, t->name.len)))
        return pe_nomem(err, "name of a weight");
    }
    w->list[n++] = *t;
  }
  w->count = n;
  return pe_weights_index(w, err);
}

pe_status pe_weights_join(pe_weights *w, pe_error *err) {
  rules r = {0};
  pe_status rc = pe_weights_check_config(w, err);
  if (rc || (rc = check_tensors(w, err)) || (rc = read_rules(w, &r, err))) return rc;
  for (size_t i = 0; i < w->count && !rc; i++) rc = join_one(w, &r, &w->list[i], err);
  pe_free(r.list);
  return rc ? rc : finish(w, err);
}
