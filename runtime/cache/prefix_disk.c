/* prefix_disk.c - see prefix_disk.h. */
#include "runtime/cache/prefix_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_ROOM = 4096 };

static void file_path(const pe_disk *d, pe_tree_hash h, const char *suffix, char out[PATH_ROOM]) {
  snprintf(out, PATH_ROOM, "%s/%016llx%016llx.prefix%s", d->folder, (unsigned long long)h.high,
           (unsigned long long)h.low, suffix);
}

/* ---- forgetting ------------------------------------------------------------------------------ */

void pe_disk_forget(pe_disk *d, pe_tree_node *n, bool remove) {
  char path[PATH_ROOM];
  if (!n->file_bytes) return;
  file_path(d, n->hash, "", path);
  pe_disk_job *job = remove && d->thread ? pe_disk_job_new(PE_DISK_REMOVE, path) : NULL;
  if (job)
    pe_disk_thread_put(d->thread, job);
  else if (remove)
    unlink(path);
  d->bytes -= n->file_bytes, n->file_bytes = 0;
  pe_tree_pull(&n->file_age);
  for (int32_t g = 0; g < d->tree->groups; g++) n->disk[g] = 0;
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++) {
    n->slot[i].disk = false;
    if (!n->slot[i].state) n->slot[i].position = 0;
  }
}

static void shrink(pe_disk *d) {
  while (d->budget && d->bytes > d->budget && d->tree->files.newer != &d->tree->files) {
    pe_tree_node *n = d->tree->files.newer->node;
    pe_disk_forget(d, n, true);
    pe_tree_settle(d->tree, n);
  }
}

/* ---- reading --------------------------------------------------------------------------------- */

static pe_status read_all(const char *path, uint64_t want, pe_buf *out, pe_error *err) {
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (fd < 0) return pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  pe_status rc = PE_OK;
  if (fstat(fd, &st) || !S_ISREG(st.st_mode))
    rc = pe_fail(err, PE_EIO, "%s: not a regular file", path);
  else if ((uint64_t)st.st_size != want)
    rc = pe_fail(err, PE_EFORMAT, "%s: %lld bytes, expected %llu", path, (long long)st.st_size,
                 (unsigned long long)want);
  else
    rc = pe_buf_reserve(out, want, err);
  while (!rc && out->len < want) {
    ssize_t n = read(fd, out->data + out->len, want - out->len);
    if (n > 0)
      out->len += (size_t)n;
    else if (n == 0 || errno != EINTR)
      rc =
          pe_fail(err, PE_EIO, "%s: %s", path, n ? strerror(errno) : "truncated while it was read");
  }
  close(fd);
  return rc;
}

static bool same_words(const uint8_t *bytes, const int32_t *word, int32_t count) {
  return !memcmp(bytes, word, (size_t)count * sizeof *word);
}

/* The file knows every word of these tokens by the name that it has here. */
static bool same_names(const pe_tree *t, const pe_tree_node *n, const uint8_t *name,
                       int32_t names) {
  for (int32_t i = 0, k; i < n->count; i++) {
    if (!pe_word_is_name(n->word[i]) || (i && n->word[i] == n->word[i - 1])) continue;
    uint8_t here[PE_NAME_BYTES];
    pe_name_write(n->word[i], pe_names_find(t->kv->names, n->word[i]), here);
    for (k = 0; k < names; k++)
      if (!memcmp(here, name + (size_t)k * PE_NAME_BYTES, PE_NAME_BYTES)) break;
    if (k == names) return false;
  }
  return true;
}

/* The image is of this node: its tokens and those of the whole path are equal. */
static bool image_of(const pe_tree *t, const pe_tree_node *n, const pe_prefix_image *image) {
  if (image->head.depth != n->depth || image->head.count != n->count ||
      !same_words(image->head.word, n->word, n->count) ||
      !same_names(t, n, image->head.name, image->head.names))
    return false;
  for (n = n->parent; n->depth >= 0; n = n->parent)
    if (!same_words(image->path + (uint64_t)n->depth * (uint64_t)t->size * 4, n->word, t->size) ||
        !same_names(t, n, image->path_name, image->head.path_names))
      return false;
  return pe_tree_key(t, &image->head.key) == n;
}

/* What the thread has read. PE_ELIMIT: it has not. */
static pe_status take_read(pe_disk *d, const pe_tree_node *n, pe_buf *bytes, pe_error *err) {
  pe_disk_job *job = pe_disk_thread_take(d->thread, n->hash);
  if (!job) return pe_fail(err, PE_ELIMIT, "block %d was not read ahead", n->depth);
  pe_status rc = job->status;
  if (rc) pe_fail(err, rc, "%s: cannot be read", job->path);
  *bytes = job->bytes, job->bytes = (pe_buf){0};
  pe_disk_job_free(job);
  return rc;
}

uint64_t pe_disk_fetch(pe_disk *d, const pe_tree_node *n) {
  char path[PATH_ROOM];
  if (!d->thread || !n->file_bytes) return 0;
  file_path(d, n->hash, "", path);
  pe_disk_job *job = pe_disk_job_new(PE_DISK_READ, path);
  if (!job) return 0;
  job->hash = n->hash, job->size = n->file_bytes;
  return pe_disk_thread_put(d->thread, job);
}

/* Reads and checks the file of n. An unusable file is forgotten, a damaged one also deleted. */
static pe_status load(pe_disk *d, pe_tree_node *n, pe_buf *bytes, pe_prefix_image *image,
                      pe_error *err) {
  char path[PATH_ROOM];
  file_path(d, n->hash, "", path);
  pe_status rc =
      d->thread ? take_read(d, n, bytes, err) : read_all(path, n->file_bytes, bytes, err);
  if (rc == PE_ELIMIT) return rc;
  if (!rc)
    rc = (d->thread ? pe_prefix_image_view : pe_prefix_image_read)(
        &d->spec, (const uint8_t *)bytes->data, bytes->len, image, err);
  if (!rc && !image_of(d->tree, n, image))
    rc = pe_fail(err, PE_ENOTFOUND, "%s: the file has other tokens", path);
  if (!rc || rc == PE_ENOMEM) return rc;
  if (rc != PE_ENOTFOUND) d->errors++;
  pe_disk_forget(d, n, rc == PE_EFORMAT);
  return rc;
}

static pe_status bring_blocks(pe_disk *d, pe_tree_node *n, const pe_prefix_image *image,
                              pe_error *err) {
  pe_kv *kv = d->tree->kv;
  pe_kv_seq fresh = {0};
  int32_t most = 0;
  for (int32_t g = 0; g < d->tree->groups; g++)
    if (image->head.fill[g] > n->fill[g] && image->head.fill[g] > most) most = image->head.fill[g];
  pe_status rc = most ? pe_kv_prepare(kv, &fresh, 0, most, err) : PE_OK;
  for (int32_t g = 0; !rc && most && g < d->tree->groups; g++) {
    if (image->head.fill[g] <= n->fill[g]) continue;
    pe_kv_copy_in(kv, &fresh, g, 0, image->head.fill[g], image->rows[g]);
    pe_tree_put_block(d->tree, n, g, fresh.table[g][0], image->head.fill[g]);
  }
  pe_kv_release(kv, &fresh);
  return rc;
}

/* The node has this snapshot on disk only. One that it dropped since is not read back. */
static bool wants_state(const pe_tree_node *n, int32_t position) {
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++)
    if (n->slot[i].disk && n->slot[i].position == position) return !n->slot[i].state;
  return false;
}

static pe_status bring_states(pe_disk *d, pe_tree_node *n, const pe_prefix_image *image,
                              pe_error *err) {
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++) {
    if (!image->head.position[i] || !wants_state(n, image->head.position[i])) continue;
    pe_snapshot *s = pe_alloc(sizeof *s + d->spec.state_bytes);
    if (!s) return pe_nomem(err, "snapshot");
    s->refs = 1, s->position = image->head.position[i];
    memcpy(s->data, image->state[i], d->spec.state_bytes);
    pe_tree_put_state(d->tree, n, s);
    pe_snapshot_release(s);
  }
  return PE_OK;
}

pe_status pe_disk_bring(pe_disk *d, pe_tree_node *n, pe_error *err) {
  pe_buf bytes = {0};
  pe_prefix_image image;
  if (!n->file_bytes) return pe_fail(err, PE_EARG, "block %d has no file", n->depth);
  pe_status rc = load(d, n, &bytes, &image, err);
  if (!rc) rc = bring_blocks(d, n, &image, err);
  if (!rc) {
    pe_tree_admit(d->tree, n);
    rc = bring_states(d, n, &image, err);
  }
  if (!rc) d->reads++;
  pe_buf_free(&bytes);
  return rc;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool write_all(int fd, const char *at, size_t left) {
  for (ssize_t n; left; at += n, left -= (size_t)n)
    if ((n = write(fd, at, left)) < 0) {
      if (errno != EINTR) return false;
      n = 0;
    }
  return true;
}

static bool write_file(const char *path, const pe_buf *bytes) {
  char part[PATH_ROOM + 40];
  snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid());
  int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return false;
  bool ok = write_all(fd, bytes->data, bytes->len);
  ok = !close(fd) && ok;
  ok = ok && !rename(part, path);
  if (!ok) unlink(part);
  return ok;
}

static bool only_on_disk(const pe_tree *t, const pe_tree_node *n) {
  bool some = false;
  for (int32_t g = 0; g < t->groups; g++) some |= n->disk[g] > n->fill[g];
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++) some |= n->slot[i].disk && !n->slot[i].state;
  return some;
}

bool pe_disk_lacks(const pe_disk *d, const pe_tree_node *n) {
  const pe_tree *t = d->tree;
  bool some = !n->file_bytes;
  for (int32_t g = 0; g < t->groups; g++) some |= n->fill[g] > n->disk[g];
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++) some |= n->slot[i].state && !n->slot[i].disk;
  return some;
}

/* Writes the name of every run of equal words in a label, unless out is NULL; returns their number.
 * next: the token after the label, or 0; a run that goes on with it is left out. */
static int32_t write_names(const pe_tree *t, const pe_tree_node *n, int32_t next, uint8_t *out) {
  int32_t count = 0;
  for (int32_t i = n->count; i-- > 0; next = n->word[i]) {
    if (!pe_word_is_name(n->word[i]) || n->word[i] == next) continue;
    const pe_name *name = pe_names_find(t->kv->names, n->word[i]);
    if (out) pe_name_write(n->word[i], name, out + (size_t)count * PE_NAME_BYTES);
    count++;
  }
  return count;
}

/* The same for the path to a node. */
static int32_t write_path_names(const pe_tree *t, const pe_tree_node *n, uint8_t *out) {
  int32_t count = 0, next = 0;
  for (n = n->parent; n->depth >= 0; next = n->word[0], n = n->parent)
    count += write_names(t, n, next, out ? out + (size_t)count * PE_NAME_BYTES : NULL);
  return count;
}

static pe_prefix_head head_of(const pe_tree *t, const pe_tree_node *n) {
  pe_prefix_head h = {.hash = n->hash,
                      .parent = n->parent->hash,
                      .depth = n->depth,
                      .count = n->count,
                      .names = write_names(t, n, 0, NULL),
                      .path_names = write_path_names(t, n, NULL),
                      .word = (const uint8_t *)n->word};
  for (int32_t g = 0; g < t->groups; g++)
    h.fill[g] = n->fill[g] > n->disk[g] ? n->fill[g] : n->disk[g];
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++) h.position[i] = n->slot[i].position;
  while (n->depth >= 0) n = n->parent;
  h.key = (pe_prefix_key){(uint32_t)n->word[0] | (uint64_t)(uint32_t)n->word[1] << 32, n->word[2]};
  return h;
}

static const uint8_t *old_state(const pe_prefix_image *old, int32_t position) {
  for (int i = 0; i < PE_TREE_SLOTS; i++)
    if (old->head.position[i] == position) return old->state[i];
  return NULL;
}

/* The path, and the parts that memory has; the bits of the others go into the job. */
static void fill_parts(const pe_disk *d, const pe_tree_node *n, pe_disk_job *job) {
  const pe_tree *t = d->tree;
  const pe_prefix_image *parts = &job->parts;
  uint8_t *bytes = (uint8_t *)job->bytes.data;
  for (const pe_tree_node *up = n->parent; up->depth >= 0; up = up->parent)
    memcpy(bytes + (parts->path - bytes) + (size_t)up->depth * (size_t)t->size * 4, up->word,
           (size_t)t->size * 4);
  write_names(t, n, 0, bytes + (parts->head.name - bytes));
  write_path_names(t, n, bytes + (parts->path_name - bytes));
  for (int32_t g = 0; g < t->groups; g++) {
    int32_t fill = parts->head.fill[g], block = n->block[g];
    if (!fill) continue;
    pe_kv_seq one = {.tokens = fill};
    one.table[g] = &block, one.count[g] = 1;
    if (fill == n->fill[g])
      pe_kv_copy_out(t->kv, &one, g, 0, fill, bytes + (parts->rows[g] - bytes));
    else
      job->old_rows |= 1u << g;
  }
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++) {
    if (!parts->head.position[i]) continue;
    if (n->slot[i].state)
      memcpy(bytes + (parts->state[i] - bytes), n->slot[i].state->data, d->spec.state_bytes);
    else
      job->old_states |= 1u << i;
  }
}

/* Fills the other parts from the old file. False: it does not have them. */
static bool merge_old(const pe_prefix_spec *s, pe_disk_job *job, const pe_prefix_image *old) {
  uint8_t *bytes = (uint8_t *)job->bytes.data;
  const pe_prefix_image *parts = &job->parts;
  for (int32_t g = 0; g < s->groups; g++) {
    if (!(job->old_rows & 1u << g)) continue;
    if (old->head.fill[g] != parts->head.fill[g]) return false;
    memcpy(bytes + (parts->rows[g] - bytes), old->rows[g],
           (size_t)old->head.fill[g] * s->token_bytes[g]);
  }
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++) {
    if (!(job->old_states & 1u << i)) continue;
    const uint8_t *state = old_state(old, parts->head.position[i]);
    if (!state) return false;
    memcpy(bytes + (parts->state[i] - bytes), state, s->state_bytes);
  }
  return true;
}

/* Both are of the same node: the same tokens from the top on. */
static bool same_node(const pe_prefix_spec *s, const pe_disk_job *job, const pe_prefix_image *old) {
  const pe_prefix_head *a = &job->parts.head, *b = &old->head;
  const char *word = job->bytes.data + PE_PREFIX_FILE_FIXED;
  return a->depth == b->depth && a->count == b->count && a->key.salt == b->key.salt &&
         a->key.rope_variant == b->key.rope_variant && a->names == b->names &&
         a->path_names == b->path_names && !memcmp(word, b->word, (size_t)a->count * 4) &&
         !memcmp(a->name, b->name, (size_t)a->names * PE_NAME_BYTES) &&
         !memcmp(job->parts.path_name, old->path_name, (size_t)a->path_names * PE_NAME_BYTES) &&
         !memcmp(job->parts.path, old->path, (size_t)a->depth * (size_t)s->block * 4);
}

static bool merge_file(const pe_prefix_spec *s, pe_disk_job *job) {
  pe_buf before = {0};
  pe_prefix_image old;
  bool ok = !read_all(job->path, job->size, &before, NULL) &&
            !pe_prefix_image_read(s, (const uint8_t *)before.data, before.len, &old, NULL) &&
            same_node(s, job, &old) && merge_old(s, job, &old);
  pe_buf_free(&before);
  return ok;
}

static bool finish_write(pe_disk_job *job) {
  pe_prefix_image_seal((uint8_t *)job->bytes.data, job->bytes.len, &job->parts);
  return write_file(job->path, &job->bytes);
}

static pe_status read_checked(const pe_prefix_spec *s, pe_disk_job *job) {
  pe_prefix_image image;
  pe_status rc = read_all(job->path, job->size, &job->bytes, NULL);
  if (rc) return rc;
  return pe_prefix_image_read(s, (const uint8_t *)job->bytes.data, job->bytes.len, &image, NULL);
}

bool pe_disk_work(const pe_prefix_spec *spec, pe_disk_job *job) {
  switch (job->verb) {
  case PE_DISK_REMOVE: unlink(job->path); return true;
  case PE_DISK_READ: job->status = read_checked(spec, job); return true;
  default:
    if ((job->old_rows || job->old_states) && !merge_file(spec, job)) return false;
    return finish_write(job);
  }
}

/* With a thread, parts of the old file are merged there. */
static bool put_job(pe_disk *d, pe_disk_job *job, const pe_prefix_image *old) {
  if (d->thread) {
    bool queued = pe_disk_thread_put(d->thread, job) > 0;
    d->dropped += !queued;
    return queued;
  }
  bool ok = merge_old(&d->spec, job, old) && finish_write(job);
  d->errors += !ok;
  pe_disk_job_free(job);
  return ok;
}

static pe_disk_job *new_write(const pe_disk *d, const pe_tree_node *n, const pe_prefix_head *head) {
  char path[PATH_ROOM];
  file_path(d, n->hash, "", path);
  pe_disk_job *job = pe_disk_job_new(PE_DISK_WRITE, path);
  if (job && !pe_prefix_image_begin(&d->spec, head, &job->bytes, &job->parts, NULL)) {
    job->hash = n->hash, job->size = n->file_bytes;
    return job;
  }
  pe_disk_job_free(job);
  return NULL;
}

static bool write_node(pe_disk *d, pe_tree_node *n) {
  pe_tree *t = d->tree;
  pe_buf before = {0};
  pe_prefix_image old = {0};
  if (!d->thread && n->file_bytes && only_on_disk(t, n) &&
      load(d, n, &before, &old, NULL) == PE_ENOMEM)
    return false;
  pe_prefix_head head = head_of(t, n);
  pe_disk_job *job = new_write(d, n, &head);
  uint64_t size = job ? job->bytes.len : 0;
  if (job) fill_parts(d, n, job);
  bool ok = job && put_job(d, job, &old);
  if (ok) {
    d->bytes += size - n->file_bytes, n->file_bytes = size, d->writes++;
    memcpy(n->disk, head.fill, (size_t)t->groups * sizeof *n->disk);
    for (int32_t i = 0; i < PE_TREE_SLOTS; i++) n->slot[i].disk = n->slot[i].position != 0;
  }
  d->errors += !job;
  pe_buf_free(&before);
  return ok;
}

void pe_disk_save(pe_disk *d, pe_tree_node *n) {
  if (!d->folder || !pe_disk_lacks(d, n)) return;
  int32_t count = 1;
  for (pe_tree_node *up = n->parent; up->depth >= 0 && !up->file_bytes; up = up->parent) count++;
  pe_tree_node **path = pe_alloc((size_t)count * sizeof *path);
  if (!path) {
    d->errors++;
    return;
  }
  for (int32_t i = count; i--; n = n->parent) path[i] = n;
  bool ok = true;
  for (int32_t i = 0; ok && i < count; i++) ok = write_node(d, path[i]);
  for (n = path[count - 1]; n->depth >= 0; n = n->parent)
    if (n->file_bytes) pe_tree_push(&d->tree->files, &n->file_age);
  pe_free(path);
  shrink(d);
}
