/* fuzz_prefix_file.c - any bytes as a file of the prefix cache: refused, or a node whose parts are
 * inside the bytes. Then again with correct checksums, and as a file in the folder of a cache that
 * is then matched against its tokens. */
#include "tests/c/prefix.h"

#include <unistd.h>

static char folder[64];
static world w;

static void leave(void) { rmdir(folder); }

static void set_up(void) {
  snprintf(folder, sizeof folder, "%s/perigee-fuzz-XXXXXX",
           access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
  if (!mkdtemp(folder)) abort();
  atexit(leave);
  world_open(&w, &shapes[5], 4, 200, 1 << 20, NULL);
  pe_prefix_close(w.p);
  w.options.folder = folder;
}

static uint64_t number(const uint8_t *at, int bytes) {
  uint64_t v = 0;
  for (int i = 0; i < bytes; i++) v |= (uint64_t)at[i] << (8 * i);
  return v;
}

static bool inside(const uint8_t *bytes, size_t size, const uint8_t *part, uint64_t length) {
  return !part || (part >= bytes && length <= size && (uint64_t)(part - bytes) <= size - length);
}

static bool parse(const pe_prefix_spec *spec, const uint8_t *bytes, size_t size,
                  pe_prefix_image *image) {
  pe_error err;
  if (pe_prefix_image_read(spec, bytes, size, image, &err)) return false;
  const pe_prefix_head *h = &image->head;
  if (!inside(bytes, size, h->word, (uint64_t)h->count * 4) ||
      !inside(bytes, size, h->name, (uint64_t)h->names * PE_NAME_BYTES) ||
      !inside(bytes, size, image->path, (uint64_t)h->depth * 16) ||
      !inside(bytes, size, image->path_name, (uint64_t)h->path_names * PE_NAME_BYTES))
    abort();
  for (int g = 0; g < PE_GRAPH_GROUPS; g++)
    if (!inside(bytes, size, image->rows[g], (uint64_t)h->fill[g] * spec->token_bytes[g])) abort();
  for (int i = 0; i < PE_TREE_SLOTS; i++)
    if (!inside(bytes, size, image->state[i], spec->state_bytes)) abort();
  return true;
}

/* The only file of a cache, under the name of its tokens if it is a first block. */
static void cache(const pe_prefix_image *image, const uint8_t *bytes, size_t size) {
  char path[160];
  int32_t token[4], found;
  pe_seq s;
  pe_error err;
  snprintf(path, sizeof path, "%s/%016llx%016llx.prefix", folder,
           (unsigned long long)image->head.hash.high, (unsigned long long)image->head.hash.low);
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(bytes, 1, size, f) != size || fclose(f)) abort();
  if (pe_prefix_open(w.kv, w.recur, &w.options, &w.p, &err)) abort();
  memcpy(token, image->head.word, (size_t)image->head.count * 4);
  if (pe_seq_open(&s, w.kv, w.recur, &err)) abort();
  if (pe_prefix_match(w.p, &image->head.key, token, image->head.count, &s, &found, &err) ||
      found >= image->head.count)
    abort();
  pe_seq_close(&s);
  check_tree(&w);
  pe_prefix_close(w.p);
  for (int g = 0; g < w.graph.group_count; g++)
    if (w.kv->used[g]) abort();
  unlink(path);
  if (check_failures) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pe_prefix_spec spec;
  pe_prefix_image image;
  if (!folder[0]) set_up();
  pe_prefix_spec_of(w.kv, w.recur, w.options.identity, &spec);
  parse(&spec, data, size, &image);
  if (size < PE_PREFIX_FILE_FIXED + 12) return 0;
  int64_t count = (int32_t)number(data + 88, 4);
  int64_t names = (int32_t)number(data + 92, 4);
  if (count < 1 || count > 4 || names < 0 || names > count) return 0;
  const size_t head = PE_PREFIX_FILE_FIXED + (size_t)(count * 4 + names * PE_NAME_BYTES) + 8;
  if (size < head) return 0;
  uint8_t *sealed = malloc(size);
  memcpy(sealed, data, size);
  memcpy(sealed, spec.stamp, sizeof spec.stamp);
  pe_prefix_image_seal(sealed, size, &(pe_prefix_image){.head.head_bytes = head});
  if (parse(&spec, sealed, size, &image)) cache(&image, sealed, size);
  free(sealed);
  return 0;
}
