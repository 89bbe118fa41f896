/* prefix_folder.h - a folder for tests of the disk tier: its files listed, read, restored and
 * removed. */
#ifndef PE_TEST_PREFIX_FOLDER_H
#define PE_TEST_PREFIX_FOLDER_H

#include "prefix.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const pe_prefix_key plain;
static const int32_t text[MOST_TOKENS] = {5, 6, 7, 8, 9, 1, 2, 3, 4, 5,
                                          6, 7, 1, 1, 2, 2, 3, 3, 4, 4};
static char folder[200];

enum { MOST_FILES = 64, FILE_ROOM = 4096 };
typedef struct file {
  char path[600];
  uint8_t bytes[FILE_ROOM];
  size_t size;
} file;
static file files[MOST_FILES];

static inline void make_folder(void) {
  const char *tmp = getenv("TMPDIR");
  if (!tmp)
    tmp = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm"; /* faster for thousands of small files */
  snprintf(folder, sizeof folder, "%s/perigee-prefix-XXXXXX", tmp);
  CHECK(mkdtemp(folder) != NULL);
}

static inline int list_files(char path[][600], int most) {
  int n = 0;
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d)) && n < most;)
    if (e->d_name[0] != '.') snprintf(path[n++], 600, "%s/%s", folder, e->d_name);
  if (d) closedir(d);
  return n;
}

static inline void empty_folder(void) {
  static char path[1000][600];
  for (int n; (n = list_files(path, 1000)) > 0;)
    for (int i = 0; i < n; i++) remove(path[i]);
}

static inline void remove_folder(void) {
  empty_folder();
  CHECK_INT(rmdir(folder), 0);
}

static inline int count_files(void) {
  static char path[MOST_FILES][600];
  return list_files(path, MOST_FILES);
}

static inline int by_path(const void *a, const void *b) {
  return strcmp(((const file *)a)->path, ((const file *)b)->path);
}

static inline int read_files(void) {
  static char path[MOST_FILES][600];
  int n = list_files(path, MOST_FILES);
  for (int i = 0; i < n; i++) {
    FILE *f = fopen(path[i], "rb");
    memcpy(files[i].path, path[i], sizeof path[i]);
    files[i].size = f ? fread(files[i].bytes, 1, FILE_ROOM, f) : 0;
    if (f) fclose(f);
  }
  qsort(files, (size_t)n, sizeof *files, by_path);
  return n;
}

static inline void write_bytes(const char *path, const void *bytes, size_t size) {
  FILE *f = fopen(path, "wb");
  CHECK(f && fwrite(bytes, 1, size, f) == size);
  if (f) fclose(f);
}

static inline void restore_files(int n) {
  empty_folder();
  for (int i = 0; i < n; i++) write_bytes(files[i].path, files[i].bytes, files[i].size);
}

static inline pe_prefix_stats stats_of(const world *w) {
  pe_prefix_stats stats;
  pe_prefix_stat(w->p, &stats);
  return stats;
}

/* Evicts everything from memory, so that it is written to disk. */
static inline void push_out(world *w) {
  for (int g = 0; g < w->graph.group_count; g++) pe_prefix_evict(w->p, g, 1 << 20);
  check_tree(w);
}

static inline void reopen(world *w) {
  pe_prefix_close(w->p);
  for (int g = 0; g < w->graph.group_count; g++) CHECK_INT(w->kv->used[g], 0);
  world_open_prefix(w);
  check_tree(w);
}

#endif
