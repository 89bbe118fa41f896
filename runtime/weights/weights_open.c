/* weights_open.c - pe_weights_open: finds out what a path is and calls the reader for it. */
#include "runtime/weights/weights.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static bool ends_with(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && !strcmp(text + n - m, end);
}

static pe_status open_file(pe_weights *w, const char *path, pe_error *err) {
  static const char *const pickles[] = {".bin", ".pt", ".pth", ".ckpt"};
  if (ends_with(path, ".gguf") || pe_gguf_magic(path)) return pe_weights_open_gguf(w, path, err);
  if (ends_with(path, ".safetensors")) return pe_weights_open_safetensors(w, path, err);
  for (size_t i = 0; i < sizeof pickles / sizeof *pickles; i++)
    if (ends_with(path, pickles[i]))
      return pe_fail(
          err, PE_EUNSUPPORTED,
          "%s: perigee does not read pickled PyTorch files, which can run code when loaded: "
          "convert the model to safetensors, for example with mlx_lm.convert",
          path);
  return pe_fail(err, PE_EFORMAT,
                 "%s is neither a model directory nor a .safetensors or .gguf file", path);
}

pe_status pe_weights_open(const char *path, pe_weights **out, pe_error *err) {
  struct stat st;
  if (stat(path, &st)) return pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  pe_weights *w;
  pe_status rc = pe_weights_new(path, &w, err);
  if (rc) return rc;
  rc = S_ISDIR(st.st_mode) ? pe_weights_open_directory(w, path, err) : open_file(w, path, err);
  if (!rc) rc = pe_weights_intact(w, err);
  if (rc)
    pe_weights_release(w);
  else
    *out = w;
  return rc;
}
