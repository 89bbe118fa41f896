/* tokenizer_open.c - opens a tokenizer from a path: a tokenizer.json, a model directory or a GGUF
 * file. */
#include <stdio.h>
#include <sys/stat.h>

#include "runtime/buffer.h"
#include "runtime/text/tokenizer_parts.h"

static pe_status open_json(const char *path, pe_tokenizer **out, pe_error *err) {
  pe_buffer *file = NULL;
  pe_status rc = pe_buffer_map(path, &file, err);
  if (rc) return rc;
  rc = pe_tokenizer_read_json((const char *)file->data, file->size, out, err);
  pe_buffer_release(file);
  if (rc) pe_error_prefix(err, "%s", path);
  return rc;
}

static pe_status open_gguf(const char *path, pe_tokenizer **out, pe_error *err) {
  pe_gguf *g = NULL;
  pe_status rc = pe_gguf_open(path, &g, err);
  if (rc) return rc;
  if ((rc = pe_tokenizer_read_gguf(g, out, err))) pe_error_prefix(err, "%s", path);
  pe_gguf_close(g);
  return rc;
}

/* bos_token and its siblings in tokenizer_config.json: a text, or an object with `content`. */
static pe_status read_config(pe_tokenizer *t, const char *path, pe_error *err) {
  static const char *const key[PE_SPECIALS] = {"bos_token", "eos_token", "unk_token", "pad_token"};
  pe_buffer *file = NULL;
  pe_arena a = {0};
  pe_json_value *v = NULL;
  pe_status rc = pe_buffer_map(path, &file, err);
  if (!rc && (rc = pe_json_parse((const char *)file->data, file->size, &a, &v, err)))
    pe_error_prefix(err, "%s", path);
  for (int i = 0; !rc && i < PE_SPECIALS; i++) {
    const pe_json_value *s = pe_json_get(v, key[i]);
    if (pe_json_is(s, PE_JSON_OBJECT)) s = pe_json_get(s, "content");
    int32_t id = pe_json_is(s, PE_JSON_STRING) ? pe_tokenizer_id(t, s->str) : -1;
    if (id >= 0) t->special[i] = id;
  }
  pe_arena_free(&a);
  pe_buffer_release(file);
  return rc;
}

static bool is_file(const char *folder, const char *name, char path[4096]) {
  struct stat st;
  int n = snprintf(path, 4096, "%s/%s", folder, name);
  return n > 0 && n < 4096 && !stat(path, &st) && !S_ISDIR(st.st_mode);
}

/* A folder without tokenizer.json: names the vocabulary it has instead, and how to convert it. */
static pe_status refuse_folder(const char *path, pe_error *err) {
  static const struct {
    const char *file, *what;
  } other[] = {{"tokenizer.model", "a SentencePiece or tiktoken model"},
               {"tiktoken.model", "a tiktoken vocabulary"},
               {"qwen.tiktoken", "a tiktoken vocabulary"},
               {"tekken.json", "a Tekken vocabulary"},
               {"spiece.model", "a SentencePiece model"},
               {"vocab.json", "an old vocabulary in two files"},
               {"vocab.txt", "an old WordPiece vocabulary"}};
  char file[4096];
  for (size_t i = 0; i < sizeof other / sizeof *other; i++)
    if (is_file(path, other[i].file, file))
      return pe_fail(err, PE_EUNSUPPORTED,
                     "%s: no tokenizer.json, only %s (%s); convert it with transformers: "
                     "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
                     path, other[i].file, other[i].what);
  return pe_fail(err, PE_ENOTFOUND, "%s: no tokenizer.json in this folder", path);
}

static pe_status open_folder(const char *path, pe_tokenizer **out, pe_error *err) {
  char file[4096];
  if (!is_file(path, "tokenizer.json", file)) return refuse_folder(path, err);
  pe_tokenizer *t = NULL;
  pe_status rc = open_json(file, &t, err);
  if (!rc && is_file(path, "tokenizer_config.json", file)) rc = read_config(t, file, err);
  if (rc)
    pe_tokenizer_release(t);
  else
    *out = t;
  return rc;
}

pe_status pe_tokenizer_open(const char *path, pe_tokenizer **out, pe_error *err) {
  struct stat st;
  if (!stat(path, &st) && S_ISDIR(st.st_mode)) return open_folder(path, out, err);
  return pe_gguf_magic(path) ? open_gguf(path, out, err) : open_json(path, out, err);
}
