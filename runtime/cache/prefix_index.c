/* prefix_index.c - opening the folder of prefix_disk.h: headers become nodes. */
#include "runtime/cache/prefix_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  MOST_FOLDER = 3000, /* bytes; leaves room for file names below PATH_MAX */
  NAME = 32,          /* hex digits of a hash */
  SUFFIX = 7          /* of ".prefix" */
};

typedef struct entry {
  pe_prefix_head head;
  uint64_t bytes;
  int64_t time;
  pe_tree_node *node;
} entry;

typedef struct listing {
  pe_disk *disk;
  DIR *dir;
  entry *at;
  size_t count, cap;
  pe_arena words;
  uint8_t *room; /* of one header */
} listing;

/* ---- names ----------------------------------------------------------------------------------- */

/* 32 hex digits and ".prefix"; *rest: the rest of the name. */
static bool ours(const char *name, pe_tree_hash *hash, const char **rest) {
  char half[17] = {0};
  if (strspn(name, "0123456789abcdef") != NAME || strncmp(name + NAME, ".prefix", SUFFIX))
    return false;
  hash->high = strtoull(memcpy(half, name, 16), NULL, 16);
  hash->low = strtoull(memcpy(half, name + 16, 16), NULL, 16);
  *rest = name + NAME + SUFFIX;
  return true;
}

/* ".PID.part": a temporary file of a process that no longer runs. */
static bool is_stale(const char *rest) {
  char *end;
  if (*rest != '.') return false;
  long pid = strtol(rest + 1, &end, 10);
  return end > rest + 1 && !strcmp(end, ".part") && pid > 0 &&
         (pid == (long)getpid() || (kill((pid_t)pid, 0) && errno == ESRCH));
}

/* ---- headers --------------------------------------------------------------------------------- */

/* Reads a header; PE_EUNSUPPORTED: not a readable file of this model. */
static pe_status read_head(listing *l, const char *name, entry *e, pe_error *err) {
  struct stat st;
  pe_status rc = PE_OK;
  uint64_t room = pe_prefix_head_room(&l->disk->spec), have = 0;
  int fd = openat(dirfd(l->dir), name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode))
    rc = pe_fail(err, PE_EUNSUPPORTED, "%s: not a regular file", name);
  for (ssize_t n = 1; !rc && have < room && n > 0; have += n > 0 ? (uint64_t)n : 0)
    n = read(fd, l->room + have, room - have);
  if (fd >= 0) close(fd);
  if (!rc) rc = pe_prefix_head_read(&l->disk->spec, l->room, have, &e->head, err);
  if (rc) return rc;
  e->bytes = (uint64_t)st.st_size, e->time = (int64_t)st.st_mtime;
  if (e->bytes != e->head.head_bytes + e->head.body_bytes)
    return pe_fail(err, PE_EFORMAT, "%s: %llu bytes, expected %llu", name,
                   (unsigned long long)e->bytes,
                   (unsigned long long)(e->head.head_bytes + e->head.body_bytes));
  const size_t size = (size_t)e->head.count * 4, names = (size_t)e->head.names * PE_NAME_BYTES;
  char *words = pe_arena_alloc(&l->words, size + names);
  if (!words) return pe_nomem(err, "prefix cache index");
  memcpy(words, e->head.word, size);
  if (names) memcpy(words + size, e->head.name, names);
  e->head.word = (const uint8_t *)words, e->head.name = (const uint8_t *)words + size;
  return PE_OK;
}

static pe_status take_name(listing *l, const char *name, pe_error *err) {
  pe_tree_hash hash;
  const char *rest;
  entry e = {0};
  if (!ours(name, &hash, &rest)) return PE_OK;
  if (*rest) {
    if (is_stale(rest)) unlinkat(dirfd(l->dir), name, 0);
    return PE_OK;
  }
  pe_status rc = read_head(l, name, &e, err);
  if (!rc && (hash.low != e.head.hash.low || hash.high != e.head.hash.high))
    rc = PE_EUNSUPPORTED; /* the name is not its hash */
  if (rc == PE_ENOMEM) return rc;
  if (rc) {
    l->disk->errors++;
    if (rc == PE_EFORMAT) unlinkat(dirfd(l->dir), name, 0);
    return PE_OK;
  }
  rc = pe_grow(&l->at, &l->cap, l->count + 1, sizeof *l->at, err);
  if (!rc) l->at[l->count++] = e;
  return rc;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static int compare_hash(pe_tree_hash a, pe_tree_hash b) {
  return a.high != b.high ? (a.high > b.high) - (a.high < b.high)
                          : (a.low > b.low) - (a.low < b.low);
}

static int by_place(const void *x, const void *y) {
  const entry *a = x, *b = y;
  return a->head.depth != b->head.depth
             ? (a->head.depth > b->head.depth) - (a->head.depth < b->head.depth)
             : compare_hash(a->head.hash, b->head.hash);
}

static int by_time(const void *x, const void *y) {
  const entry *a = x, *b = y;
  return a->time != b->time ? (a->time > b->time) - (a->time < b->time)
                            : (a->head.depth < b->head.depth) - (a->head.depth > b->head.depth);
}

static pe_status parent_of(listing *l, const entry *e, pe_tree_node **out, pe_error *err) {
  *out = NULL;
  if (e->head.depth == 0) return pe_tree_make_key(l->disk->tree, &e->head.key, out, err);
  entry want = {.head = {.depth = e->head.depth - 1, .hash = e->head.parent}};
  const entry *found = bsearch(&want, l->at, l->count, sizeof want, by_place);
  if (found) *out = found->node;
  return PE_OK;
}

static void fill_node(pe_disk *d, pe_tree_node *n, const entry *e) {
  n->file_bytes = e->bytes, d->bytes += e->bytes;
  memcpy(n->disk, e->head.fill, (size_t)d->tree->groups * sizeof *n->disk);
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++)
    n->slot[i].position = e->head.position[i], n->slot[i].disk = e->head.position[i] != 0;
  pe_tree_push(&d->tree->files, &n->file_age);
}

static void remove_file(const listing *l, pe_tree_hash h) {
  char name[NAME + SUFFIX + 1];
  snprintf(name, sizeof name, "%016llx%016llx.prefix", (unsigned long long)h.high,
           (unsigned long long)h.low);
  unlinkat(dirfd(l->dir), name, 0);
}

/* Takes the names of a file. False: a word has none, or stands for another picture here; then none
 * is taken. */
static bool claim_names(listing *l, const entry *e, const int32_t *word, pe_status *rc,
                        pe_error *err) {
  pe_names *names = l->disk->tree->kv->names;
  int32_t n = 0;
  pe_name name = {0};
  for (; n < e->head.names; n++) {
    int32_t own = pe_name_read(e->head.name + (size_t)n * PE_NAME_BYTES, &name);
    if ((*rc = pe_names_claim(names, own, &name, err))) break;
  }
  bool all = n == e->head.names;
  for (int32_t i = 0; all && i < e->head.count; i++)
    all = !pe_word_is_name(word[i]) || pe_names_find(names, word[i]);
  if (*rc == PE_ENOTFOUND) *rc = PE_OK;
  while (!all && n-- > 0)
    pe_names_release(names, pe_name_read(e->head.name + (size_t)n * PE_NAME_BYTES, &name));
  return all;
}

static void drop_names(listing *l, const entry *e) {
  pe_name name = {0};
  for (int32_t i = 0; i < e->head.names; i++)
    pe_names_release(l->disk->tree->kv->names,
                     pe_name_read(e->head.name + (size_t)i * PE_NAME_BYTES, &name));
}

/* Adds the node below its parent. A file without a parent is unreachable, and one whose tokens are
 * a prefix of another's is redundant: both are removed. */
static pe_status link_entry(listing *l, entry *e, pe_error *err) {
  pe_disk *d = l->disk;
  const int32_t *word = (const int32_t *)(const void *)e->head.word; /* the arena aligns */
  pe_tree_node *parent, *n = NULL;
  pe_status rc = parent_of(l, e, &parent, err);
  if (rc) return rc;
  bool named = claim_names(l, e, word, &rc, err);
  if (rc) return rc;
  bool good =
      named && parent && (parent->depth < 0 || parent->count == d->tree->size) &&
      !compare_hash(parent->hash, e->head.parent) &&
      !compare_hash(pe_tree_hash_of(d->tree, parent->hash, word, e->head.count), e->head.hash);
  if (good && (n = pe_tree_child(parent, word, e->head.count))) {
    if (n->count >= e->head.count) {
      good = false;
    } else {
      pe_disk_forget(d, n, true);
      pe_tree_extend(d->tree, n, word, e->head.count);
    }
  }
  if (good && !n) rc = pe_tree_add(d->tree, parent, word, e->head.count, &n, err);
  if (good && !rc) fill_node(d, e->node = n, e);
  if (!good) remove_file(l, e->head.hash);
  if (named) drop_names(l, e);                        /* the node has its own */
  if (parent && !rc) pe_tree_settle(d->tree, parent); /* removes a key node without children */
  return rc;
}

/* Oldest first; a node is never older than its children. From the newest file to the oldest, the
 * nodes of its path that are not in the list yet go before all that are: each moves once, however
 * long the paths are. */
static void order_files(listing *l) {
  pe_tree_age *list = &l->disk->tree->files;
  qsort(l->at, l->count, sizeof *l->at, by_time);
  for (size_t i = 0; i < l->count; i++)
    if (l->at[i].node) pe_tree_pull(&l->at[i].node->file_age);
  for (size_t i = l->count; i-- > 0;) {
    pe_tree_age *oldest = list->newer;
    for (pe_tree_node *n = l->at[i].node; n && n->depth >= 0 && !n->file_age.older; n = n->parent)
      pe_tree_push(oldest, &n->file_age);
  }
}

/* Entries whose node now has a longer label: the longer file replaced theirs. */
static void forget_replaced(listing *l) {
  for (size_t i = 0; i < l->count; i++)
    if (l->at[i].node && compare_hash(l->at[i].node->hash, l->at[i].head.hash))
      l->at[i].node = NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

static pe_status build_index(pe_disk *d, pe_error *err) {
  listing l = {.disk = d, .dir = opendir(d->folder)};
  if (!l.dir) return pe_fail(err, PE_EIO, "%s: %s", d->folder, strerror(errno));
  pe_status rc = (l.room = pe_alloc(pe_prefix_head_room(&d->spec)))
                     ? PE_OK
                     : pe_nomem(err, "prefix cache index");
  for (struct dirent *e; !rc && (e = readdir(l.dir));) rc = take_name(&l, e->d_name, err);
  if (!rc && l.count) qsort(l.at, l.count, sizeof *l.at, by_place);
  for (size_t i = 0; !rc && i < l.count; i++) rc = link_entry(&l, &l.at[i], err);
  if (!rc && l.count) forget_replaced(&l), order_files(&l);
  pe_arena_free(&l.words);
  pe_free(l.at), pe_free(l.room);
  closedir(l.dir);
  return rc;
}

pe_status pe_disk_open(pe_disk *d, pe_tree *t, const pe_prefix_spec *spec,
                       const pe_prefix_options *o, pe_error *err) {
  *d = (pe_disk){.tree = t, .spec = *spec, .budget = o->disk_budget};
  if (!o->folder || !o->budget) return PE_OK;
  size_t size = strlen(o->folder) + 1;
  if (size < 2 || size > MOST_FOLDER)
    return pe_fail(err, PE_EARG, "the folder name must have between 1 and %d bytes, got %zu",
                   MOST_FOLDER - 1, size - 1);
  if (mkdir(o->folder, 0700) && errno != EEXIST)
    return pe_fail(err, PE_EIO, "%s: %s", o->folder, strerror(errno));
  if (!(d->folder = pe_alloc(size))) return pe_nomem(err, "prefix cache");
  memcpy(d->folder, o->folder, size);
  return build_index(d, err);
}

void pe_disk_close(pe_disk *d) {
  pe_free(d->folder);
  *d = (pe_disk){0};
}
