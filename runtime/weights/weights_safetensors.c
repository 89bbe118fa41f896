/* weights_safetensors.c - finds the safetensors files of a model and adds their tensors. */
#include "runtime/weights/weights.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Far above real files (a config.json has kilobytes, the index of a model with 10^5 tensors 10 MB):
 * a larger file is not what its name says. */
enum { MAX_CONFIG = 8 << 20, MAX_INDEX = 64 << 20 };
static const char index_name[] = "model.safetensors.index.json";

static bool begins(const char *text, const char *start) {
  return !strncmp(text, start, strlen(start));
}
static bool ends(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && !strcmp(text + n - m, end);
}

/* ---- one file -------------------------------------------------------------------------------- */

static pe_status load_file(pe_weights *w, const char *path, pe_error *err) {
  pe_weights_file *file;
  pe_status rc = pe_weights_add_file(w, path, &file, err);
  if (rc || (rc = pe_safetensors_open(path, &file->safetensors, err))) return rc;
  const pe_safetensors *s = file->safetensors;
  for (size_t i = 0; i < s->count && !rc; i++) {
    const pe_safetensor *t = &s->tensor[i];
    pe_weight weight = {
        .name = t->name, .dtype = t->dtype, .rank = t->rank, .data = {s->buf, t->at, t->bytes}};
    memcpy(weight.shape, t->shape, sizeof weight.shape);
    rc = pe_weights_add(w, &weight, err);
  }
  return rc;
}

/* Maps a JSON file next to the weights; *out stays NULL if it does not exist. gives */
static pe_status map_text(const char *path, uint64_t limit, pe_buffer **out, pe_error *err) {
  if (access(path, F_OK)) return PE_OK;
  pe_status rc = pe_buffer_map(path, out, err);
  if (rc || (*out)->size <= limit) return rc;
  rc = pe_fail(err, PE_ELIMIT, "%s has %llu bytes, the limit is %llu", path,
               (unsigned long long)(*out)->size, (unsigned long long)limit);
  pe_buffer_release(*out);
  *out = NULL;
  return rc;
}

static pe_status load_config(pe_weights *w, const char *path, pe_error *err) {
  pe_buffer *text = NULL;
  pe_json_value *tree;
  pe_status rc = map_text(path, MAX_CONFIG, &text, err);
  if (rc || !text) return rc;
  if ((rc = pe_json_parse((const char *)text->data, (size_t)text->size, &w->arena, &tree, err)))
    pe_error_prefix(err, "%s", path);
  else if (tree->type != PE_JSON_OBJECT)
    rc = pe_fail(err, PE_EFORMAT, "%s must be a JSON object, got %s", path,
                 pe_json_type_name(tree->type));
  else
    w->config = tree;
  pe_buffer_release(text);
  return rc;
}

/* ---- the index ------------------------------------------------------------------------------- */

typedef struct placed {
  pe_str name, file;
} placed;

typedef struct shard_map {
  placed *list;
  size_t count, cap;
} shard_map;

static pe_status add_placed(pe_weights *w, shard_map *map, pe_json *json, const pe_json_token *key,
                            pe_error *err) {
  pe_json_token value;
  placed p = {.name = {pe_arena_dup(&w->arena, key->str.at, key->str.len), key->str.len}};
  pe_status rc = p.name.at ? PE_OK : pe_nomem(err, "index");
  if (rc || (rc = pe_json_expect(json, PE_JSON_STRING, "a file name of weight_map", &value, err)))
    return rc;
  p.file = pe_str_of(pe_arena_dup(&w->arena, value.str.at, value.str.len), value.str.len);
  if (!p.file.at) return pe_nomem(err, "index");
  if (!p.file.len || memchr(p.file.at, '/', p.file.len) || memchr(p.file.at, 0, p.file.len))
    return pe_fail(err, PE_EFORMAT,
                   "weight_map: the file of tensor '%.*s', '%.*s', is not a plain file name",
                   pe_str_clip(p.name), p.name.at, pe_str_clip(p.file), p.file.at);
  if ((rc = pe_grow(&map->list, &map->cap, map->count + 1, sizeof p, err))) return rc;
  map->list[map->count++] = p;
  return PE_OK;
}

static pe_status read_map(pe_weights *w, shard_map *map, pe_json *json, pe_error *err) {
  pe_json_token token;
  pe_status rc = pe_json_expect(json, PE_JSON_OBJECT, "the index", &token, err);
  while (!rc && !(rc = pe_json_next(json, &token, err)) && token.type == PE_JSON_KEY) {
    bool mine = pe_str_eq(token.str, "weight_map");
    if ((rc = pe_json_next(json, &token, err))) return rc;
    if (!mine || token.type != PE_JSON_OBJECT) {
      rc = pe_json_skip(json, &token, err);
      continue;
    }
    while (!(rc = pe_json_next(json, &token, err)) && token.type == PE_JSON_KEY)
      if ((rc = add_placed(w, map, json, &token, err))) return rc;
  }
  if (!rc) rc = pe_json_expect(json, PE_JSON_END, "the index's end", &token, err);
  return !rc && !map->count ? pe_fail(err, PE_EFORMAT, "weight_map is missing or empty") : rc;
}

static int by_file(const void *a, const void *b) {
  return strcmp(((const placed *)a)->file.at, ((const placed *)b)->file.at);
}

static pe_status load_shards(pe_weights *w, const char *folder, const shard_map *map,
                             pe_error *err) {
  pe_status rc = PE_OK;
  for (size_t i = 0; i < map->count && !rc; i++) {
    if (i && pe_str_same(map->list[i - 1].file, map->list[i].file)) continue;
    pe_str path = pe_weights_printf(w, "%s/%s", folder, map->list[i].file.at);
    if (!path.at) return pe_nomem(err, "path");
    if (access(path.at, F_OK))
      return pe_fail(err, PE_ENOTFOUND, "%s does not exist, but %s expects tensor '%.*s' in it",
                     path.at, index_name, pe_str_clip(map->list[i].name), map->list[i].name.at);
    rc = load_file(w, path.at, err);
  }
  return rc;
}

/* Checks that every tensor of the index is in the file that the index names. Files were loaded in
 * the order of the map, so their numbers can be counted along. */
static pe_status check_map(const pe_weights *w, const shard_map *map, pe_error *err) {
  int file = -1;
  for (size_t i = 0; i < map->count; i++) {
    const placed *p = &map->list[i];
    if (!i || !pe_str_same(map->list[i - 1].file, p->file)) file++;
    const pe_weight *t = pe_weights_look(w, p->name, "");
    if (!t || t->file != file)
      return pe_fail(err, PE_ENOTFOUND, "%s does not contain tensor '%.*s', but %s says so%s%s",
                     w->files[file].path, pe_str_clip(p->name), p->name.at, index_name,
                     t ? "; it is in " : "", t ? w->files[t->file].path : "");
  }
  return PE_OK;
}

static pe_status open_index(pe_weights *w, const char *folder, const char *path, pe_buffer *text,
                            pe_error *err) {
  shard_map map = {0};
  pe_json json;
  pe_json_open(&json, (const char *)text->data, (size_t)text->size, 0);
  pe_status rc = read_map(w, &map, &json, err);
  pe_json_close(&json);
  if (rc) pe_error_prefix(err, "%s", path);
  if (!rc) {
    qsort(map.list, map.count, sizeof *map.list, by_file);
    if (!(rc = load_shards(w, folder, &map, err)) && !(rc = pe_weights_index(w, err)))
      rc = check_map(w, &map, err);
  }
  pe_free(map.list);
  return rc;
}

/* ---- a directory without an index ------------------------------------------------------------ */

enum { FILE_MODEL, FILE_OTHER, FILE_CONSOLIDATED, FILE_GGUF, FILE_PICKLE, FILE_KINDS };

typedef struct listing {
  const char **list[FILE_KINDS];
  size_t count[FILE_KINDS], cap[FILE_KINDS];
} listing;

static int kind_of(const char *name) {
  if (name[0] == '.') return -1; /* macOS writes ._model.safetensors to foreign disks */
  if (ends(name, ".safetensors"))
    return begins(name, "consolidated") ? FILE_CONSOLIDATED
           : begins(name, "model")      ? FILE_MODEL
                                        : FILE_OTHER;
  if (ends(name, ".gguf")) return FILE_GGUF;
  return ends(name, ".bin") || ends(name, ".pt") || ends(name, ".pth") || ends(name, ".ckpt")
             ? FILE_PICKLE
             : -1;
}

static int by_text(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static pe_status list_directory(pe_weights *w, const char *path, listing *l, pe_error *err) {
  DIR *d = opendir(path);
  if (!d) return pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  pe_status rc = PE_OK;
  for (struct dirent *e; !rc && (e = readdir(d));) {
    int k = kind_of(e->d_name);
    if (k < 0 || (rc = pe_grow(&l->list[k], &l->cap[k], l->count[k] + 1, sizeof *l->list[k], err)))
      continue;
    const char *name = pe_arena_dup(&w->arena, e->d_name, strlen(e->d_name));
    if (!name)
      rc = pe_nomem(err, "file name");
    else
      l->list[k][l->count[k]++] = name;
  }
  closedir(d);
  for (int k = 0; k < FILE_KINDS; k++)
    if (l->count[k]) qsort(l->list[k], l->count[k], sizeof *l->list[k], by_text);
  return rc;
}

static pe_status nothing_here(const char *path, const listing *l, pe_error *err) {
  if (l->count[FILE_GGUF])
    return pe_fail(err, PE_ENOTFOUND,
                   "%s contains no safetensors but GGUF files: name one, for example %s/%s", path,
                   path, l->list[FILE_GGUF][0]);
  if (l->count[FILE_CONSOLIDATED])
    return pe_fail(err, PE_EUNSUPPORTED,
                   "%s contains only %s, in Mistral's own layout: download the Hugging Face layout "
                   "(model*.safetensors)",
                   path, l->list[FILE_CONSOLIDATED][0]);
  if (l->count[FILE_PICKLE])
    return pe_fail(err, PE_EUNSUPPORTED,
                   "%s contains only pickled PyTorch files (%s), which can run code when loaded: "
                   "convert the model to safetensors, for example with mlx_lm.convert",
                   path, l->list[FILE_PICKLE][0]);
  return pe_fail(err, PE_ENOTFOUND, "%s contains no weights (model*.safetensors or a .gguf file)",
                 path);
}

static pe_status open_listed(pe_weights *w, const char *path, pe_error *err) {
  listing l = {0};
  pe_status rc = list_directory(w, path, &l, err);
  int k = l.count[FILE_MODEL] ? FILE_MODEL : FILE_OTHER;
  if (!rc && !l.count[k]) rc = nothing_here(path, &l, err);
  for (size_t i = 0; i < l.count[k] && !rc; i++) {
    pe_str file = pe_weights_printf(w, "%s/%s", path, l.list[k][i]);
    rc = file.at ? load_file(w, file.at, err) : pe_nomem(err, "path");
  }
  for (int i = 0; i < FILE_KINDS; i++) pe_free(l.list[i]);
  return rc ? rc : pe_weights_index(w, err);
}

/* ---- opening --------------------------------------------------------------------------------- */

static pe_status join(pe_weights *w, const char *path, pe_error *err) {
  pe_status rc = pe_weights_join(w, err);
  if (rc) pe_error_prefix(err, "%s", path);
  return rc;
}

pe_status pe_weights_open_directory(pe_weights *w, const char *path, pe_error *err) {
  pe_buffer *text = NULL;
  pe_str config = pe_weights_printf(w, "%s/config.json", path),
         map = pe_weights_printf(w, "%s/%s", path, index_name);
  if (!config.at || !map.at) return pe_nomem(err, "path");
  pe_status rc = load_config(w, config.at, err);
  if (rc) return rc;
  if ((rc = pe_weights_check_config(w, err))) {
    pe_error_prefix(err, "%s", path);
    return rc;
  }
  if ((rc = map_text(map.at, MAX_INDEX, &text, err))) return rc;
  rc = text ? open_index(w, path, map.at, text, err) : open_listed(w, path, err);
  pe_buffer_release(text);
  return rc ? rc : join(w, path, err);
}

pe_status pe_weights_open_safetensors(pe_weights *w, const char *path, pe_error *err) {
  const char *slash = strrchr(path, '/');
  pe_str config =
      pe_weights_printf(w, "%.*sconfig.json", slash ? (int)(slash - path) + 1 : 0, path);
  if (!config.at) return pe_nomem(err, "path");
  pe_status rc = load_config(w, config.at, err);
  if (rc || (rc = load_file(w, path, err)) || (rc = pe_weights_index(w, err))) return rc;
  return join(w, path, err);
}
