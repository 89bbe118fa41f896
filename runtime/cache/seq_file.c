/* seq_file.c - a sequence as bytes and as a file; see seq.h.
 *
 *     header      magic, version, KV type, identity, rope_length, count, past, groups, names, 0,
 *                 state bytes
 *     per group   first saved token, bytes of a token, window
 *     tokens      int32 x count
 *     names       of the pictures among them: 60 bytes each (names.h)
 *     per group   rows, as pe_kv_copy_out gives them
 *     state
 *     checksum    XXH3-128 of everything above
 *
 * Numbers are little-endian. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/hash.h"
#include "runtime/cache/seq.h"

static const char magic[] = "perigeeS"; /* without its zero in a file */
enum { VERSION = 3, CHECKSUM = 16 };

typedef struct header {
  char magic[8];
  uint32_t version, type;
  uint8_t identity[16];
  int32_t rope_length, count, past, groups, names, zero;
  uint64_t state_bytes;
} header;

typedef struct group_header {
  uint64_t from, token_bytes, window;
} group_header;

/* ---- saving ---------------------------------------------------------------------------------- */

/* The first token that a group still needs. */
static int32_t needed_from(const pe_kv *kv, int32_t group, int32_t past) {
  int32_t window = kv->graph->group[group].window;
  return window > 0 && past >= window ? past - window + 1 : 0;
}

/* The first token that is saved: whole blocks, so that the loaded sequence can share them. */
static int32_t kept_from(const pe_seq *s, int32_t group) {
  int32_t from = needed_from(s->kv, group, s->past);
  return s->ragged ? from : from / s->kv->block * s->kv->block;
}

static pe_status put_rows(const pe_seq *s, pe_buf *out, pe_error *err) {
  pe_status rc = PE_OK;
  for (int32_t g = 0; !rc && g < s->kv->graph->group_count; g++) {
    int32_t from = kept_from(s, g);
    size_t bytes = (size_t)(s->past - from) * pe_kv_group_token_bytes(s->kv, g);
    if ((rc = pe_buf_reserve(out, bytes, err))) break;
    pe_kv_copy_out(s->kv, &s->tables, g, from, s->past, (uint8_t *)out->data + out->len);
    out->len += bytes;
  }
  return rc;
}

pe_status pe_seq_save(const pe_seq *s, const uint8_t identity[16], pe_buf *out, pe_error *err) {
  const pe_kv *kv = s->kv;
  size_t begin = out->len;
  header h = {.version = VERSION,
              .type = (uint32_t)kv->type,
              .rope_length = s->rope_length,
              .count = s->count,
              .past = s->past,
              .groups = kv->graph->group_count,
              .names = s->names,
              .state_bytes = pe_recur_bytes(s->recur)};
  memcpy(h.magic, magic, sizeof h.magic), memcpy(h.identity, identity, sizeof h.identity);
  pe_status rc = pe_buf_put(out, &h, sizeof h, err);
  for (int32_t g = 0; !rc && g < h.groups; g++) {
    group_header k = {(uint64_t)kept_from(s, g), pe_kv_group_token_bytes(kv, g),
                      (uint64_t)kv->graph->group[g].window};
    rc = pe_buf_put(out, &k, sizeof k, err);
  }
  if (!rc) rc = pe_buf_put(out, s->token, (size_t)s->count * sizeof *s->token, err);
  for (int32_t i = 0; !rc && i < s->names; i++) {
    uint8_t bytes[PE_NAME_BYTES];
    pe_name_write(s->name[i], pe_names_find(kv->names, s->name[i]), bytes);
    rc = pe_buf_put(out, bytes, sizeof bytes, err);
  }
  if (!rc) rc = put_rows(s, out, err);
  if (!rc) rc = pe_buf_put(out, pe_recur_slot(s->recur, s->slot), h.state_bytes, err);
  if (!rc) rc = pe_buf_reserve(out, CHECKSUM, err);
  if (rc) {
    out->len = begin;
    return rc;
  }
  pe_hash_128(out->data + begin, out->len - begin, 0, (uint8_t *)out->data + out->len);
  out->len += CHECKSUM;
  return PE_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

static void hex_text(const uint8_t bytes[16], char out[33]) {
  for (int i = 0; i < 16; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* A saved sequence, undamaged, of this version, KV type and model? */
static pe_status check_header(const pe_seq *s, const uint8_t identity[16], const uint8_t *at,
                              size_t size, header *h, pe_error *err) {
  if (size < sizeof *h + CHECKSUM)
    return pe_fail(err, PE_EFORMAT, "a saved sequence has at least %zu bytes, got %zu",
                   sizeof *h + CHECKSUM, size);
  memcpy(h, at, sizeof *h);
  if (memcmp(h->magic, magic, sizeof h->magic))
    return pe_fail(err, PE_EFORMAT, "not a saved sequence");
  uint8_t sum[CHECKSUM];
  pe_hash_128(at, size - CHECKSUM, 0, sum);
  if (memcmp(sum, at + size - CHECKSUM, CHECKSUM))
    return pe_fail(err, PE_EFORMAT, "the saved sequence of %zu bytes is damaged: checksum mismatch",
                   size);
  if (h->version != VERSION)
    return pe_fail(err, PE_EUNSUPPORTED,
                   "the saved sequence has version %u, version %d is supported", h->version,
                   VERSION);
  if (h->type != (uint32_t)s->kv->type)
    return pe_fail(
        err, PE_EUNSUPPORTED, "the saved sequence has KV rows of %d bits, this cache has %d",
        h->type < PE_KV_TYPES ? pe_kv_bits((pe_kv_type)h->type) : 0, pe_kv_bits(s->kv->type));
  if (memcmp(h->identity, identity, sizeof h->identity)) {
    char a[33], b[33];
    hex_text(h->identity, a), hex_text(identity, b);
    return pe_fail(err, PE_EUNSUPPORTED, "the saved sequence is of another model: %s, this is %s",
                   a, b);
  }
  return PE_OK;
}

/* The numbers fit this model, and the size fits the numbers. */
static pe_status check_sizes(const pe_seq *s, const uint8_t *at, size_t size, const header *h,
                             pe_error *err) {
  const pe_kv *kv = s->kv;
  if (h->groups != kv->graph->group_count || h->state_bytes != pe_recur_bytes(s->recur))
    return pe_fail(err, PE_EUNSUPPORTED,
                   "the saved sequence has %d cache groups and a state of %llu bytes, this model "
                   "has %d and %llu",
                   h->groups, (unsigned long long)h->state_bytes, kv->graph->group_count,
                   (unsigned long long)pe_recur_bytes(s->recur));
  if (h->count < 0 || h->past < 0 || h->past > h->count || h->rope_length < 0 || h->names < 0)
    return pe_fail(err, PE_EFORMAT, "the saved sequence claims %d computed tokens of %d", h->past,
                   h->count);
  uint64_t need = sizeof *h + (uint64_t)h->groups * sizeof(group_header) + (uint64_t)h->count * 4 +
                  (uint64_t)h->names * PE_NAME_BYTES + h->state_bytes + CHECKSUM;
  for (int32_t g = 0; g < h->groups; g++) {
    group_header k;
    uint64_t rows;
    if (size < sizeof *h + ((size_t)g + 1) * sizeof k + CHECKSUM)
      return pe_fail(err, PE_EFORMAT, "the saved sequence of %zu bytes is truncated", size);
    memcpy(&k, at + sizeof *h + (size_t)g * sizeof k, sizeof k);
    if (k.token_bytes != pe_kv_group_token_bytes(kv, g))
      return pe_fail(
          err, PE_EUNSUPPORTED, "the saved sequence has %llu bytes per token, this model has %llu",
          (unsigned long long)k.token_bytes, (unsigned long long)pe_kv_group_token_bytes(kv, g));
    if (k.window != (uint64_t)kv->graph->group[g].window)
      return pe_fail(err, PE_EUNSUPPORTED,
                     "the saved sequence has a window of %llu tokens, this model has %d",
                     (unsigned long long)k.window, kv->graph->group[g].window);
    if (k.from > (uint64_t)needed_from(kv, g, h->past))
      return pe_fail(err, PE_EUNSUPPORTED,
                     "the saved sequence has tokens from %llu on, this model needs them from %d on",
                     (unsigned long long)k.from, needed_from(kv, g, h->past));
    if (!pe_mul_size((uint64_t)h->past - k.from, k.token_bytes, &rows) ||
        !pe_add_size(need, rows, &need))
      return pe_fail(err, PE_EFORMAT, "the saved sequence of %d tokens is too large", h->past);
  }
  if (need != size)
    return pe_fail(err, PE_EFORMAT, "the saved sequence has %zu bytes, its header claims %llu",
                   size, (unsigned long long)need);
  return PE_OK;
}

/* Takes the names of the file and replaces its words by those that stand for them here. */
static pe_status read_names(pe_seq *s, const uint8_t *at, int32_t count, pe_error *err) {
  const int32_t own = s->names; /* of the pictures that it was opened with */
  int32_t *list = pe_calloc((size_t)own + (size_t)count + 1, sizeof *list);
  if (!list) return pe_nomem(err, "names of pictures");
  if (own) memcpy(list, s->name, (size_t)own * sizeof *list);
  pe_free(s->name);
  s->name = list;
  pe_name name = {0};
  for (; s->names < own + count; s->names++) {
    pe_name_read(at + (size_t)(s->names - own) * PE_NAME_BYTES, &name);
    pe_status rc = pe_names_put(s->kv->names, &name, &s->name[s->names], err);
    if (rc) return rc;
  }
  for (int32_t i = 0, k; i < s->count; i++) {
    if (!pe_word_is_name(s->token[i])) continue;
    for (k = 0; k < count; k++)
      if (pe_name_read(at + (size_t)k * PE_NAME_BYTES, &name) == s->token[i]) break;
    if (k == count)
      return pe_fail(err, PE_EFORMAT, "the saved sequence has no name for its token %d", i);
    s->token[i] = s->name[own + k];
  }
  return PE_OK;
}

/* Token ids must be in every embedding table. */
static pe_status check_tokens(const pe_seq *s, pe_error *err) {
  const pe_graph *g = s->kv->graph;
  int64_t known = INT32_MAX;
  for (size_t i = 0; i < g->node_count; i++)
    if (g->node[i].op == PE_OP_EMBED && g->param[g->node[i].mat].rows < known)
      known = g->param[g->node[i].mat].rows;
  for (int32_t i = 0; i < s->count; i++)
    if (s->token[i] >= known) /* negative ones are names */
      return pe_fail(err, PE_EFORMAT,
                     "the saved sequence has token %d, the vocabulary ends at %lld", s->token[i],
                     (long long)known);
  return PE_OK;
}

/* Takes blocks for `past` tokens one at a time, and releases those that leave a window at once, so
 * that a window never holds more than it sees and the `slack` tokens that were saved before it. */
static pe_status make_room(pe_seq *s, int32_t past, int32_t slack, pe_error *err) {
  pe_status rc = PE_OK;
  for (int32_t t = 0, to; !rc && t < past; t = to) {
    to = past - t < s->kv->block ? past : t + s->kv->block;
    if (!(rc = pe_kv_prepare(s->kv, &s->tables, t, to, err)) && to > slack)
      pe_kv_retire(s->kv, &s->tables, to - slack);
  }
  return rc;
}

/* Fills from[] with the first saved token of each group. Returns the most tokens that a group has
 * saved before those it needs. */
static int32_t read_groups(const pe_seq *s, const uint8_t *at, const header *h, int32_t *from) {
  int32_t slack = 0;
  for (int32_t g = 0; g < h->groups; g++) {
    group_header k;
    memcpy(&k, at + sizeof *h + (size_t)g * sizeof k, sizeof k);
    from[g] = (int32_t)k.from;
    int32_t more = needed_from(s->kv, g, h->past) - from[g];
    if (more > slack) slack = more;
  }
  return slack;
}

static const uint8_t *read_rows(pe_seq *s, const uint8_t *at, const header *h,
                                const int32_t *from) {
  for (int32_t g = 0; g < h->groups; g++) {
    pe_kv_copy_in(s->kv, &s->tables, g, from[g], h->past, at);
    at += (size_t)(h->past - from[g]) * pe_kv_group_token_bytes(s->kv, g);
    if (from[g] % s->kv->block) s->ragged = h->past;
  }
  pe_kv_retire(s->kv, &s->tables, h->past);
  return at;
}

pe_status pe_seq_load(pe_seq *s, const uint8_t identity[16], const void *bytes, size_t size,
                      pe_error *err) {
  const uint8_t *at = bytes;
  int32_t from[PE_GRAPH_GROUPS], slack = 0;
  header h;
  if (s->count || s->past)
    return pe_fail(err, PE_EARG, "cannot load into a sequence of %d tokens: it must be empty",
                   s->count);
  pe_status rc = check_header(s, identity, at, size, &h, err);
  if (!rc) rc = check_sizes(s, at, size, &h, err);
  if (!rc) rc = pe_grow(&s->token, &s->cap, (size_t)h.count, sizeof *s->token, err);
  if (rc) return rc;
  slack = read_groups(s, at, &h, from);
  at += sizeof h + (size_t)h.groups * sizeof(group_header);
  if (h.count) memcpy(s->token, at, (size_t)h.count * sizeof *s->token);
  at += (size_t)h.count * sizeof *s->token;
  s->count = h.count;
  rc = read_names(s, at, h.names, err);
  at += (size_t)h.names * PE_NAME_BYTES;
  if (!rc) rc = check_tokens(s, err);
  if (!rc) rc = make_room(s, h.past, slack, err);
  if (rc) {
    pe_kv_release(s->kv, &s->tables);
    s->count = 0;
    return rc;
  }
  at = read_rows(s, at, &h, from);
  if (h.state_bytes) memcpy(pe_recur_slot(s->recur, s->slot), at, h.state_bytes);
  s->past = h.past, s->rope_length = h.rope_length;
  return PE_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static pe_status write_all(int fd, const pe_buf *b, const char *path, pe_error *err) {
  for (size_t done = 0; done < b->len;) {
    ssize_t n = write(fd, b->data + done, b->len - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return pe_fail(err, PE_EIO, "%s: %s", path, n ? strerror(errno) : "no bytes written");
    done += (size_t)n;
  }
  return fsync(fd) ? pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno)) : PE_OK;
}

/* The entry in the folder must reach the disk as well. Some file systems cannot sync folders; that
 * is not a failure. */
static void sync_folder(const char *path) {
  char folder[4096];
  const char *slash = strrchr(path, '/');
  size_t n = slash ? (size_t)(slash - path) : 0;
  if (n >= sizeof folder) return;
  memcpy(folder, path, n);
  memcpy(folder + n, slash ? (n ? "" : "/") : ".", slash && n ? 1 : 2);
  int fd = open(folder, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)fsync(fd);
  close(fd);
}

pe_status pe_seq_write_file(const pe_buf *b, const char *path, pe_error *err) {
  pe_buf name = {0};
  pe_status rc = pe_buf_printf(&name, err, "%s.XXXXXX", path);
  int fd = -1;
  if (!rc && (fd = mkstemp(name.data)) < 0)
    rc = pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  if (!rc) rc = write_all(fd, b, path, err);
  if (fd >= 0 && close(fd) && !rc) rc = pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  if (!rc && rename(name.data, path)) rc = pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  if (rc && fd >= 0) (void)unlink(name.data);
  if (!rc) sync_folder(path);
  pe_buf_free(&name);
  return rc;
}

pe_status pe_seq_save_file(const pe_seq *s, const uint8_t identity[16], const char *path,
                           pe_error *err) {
  pe_buf b = {0};
  pe_status rc = pe_seq_save(s, identity, &b, err);
  if (!rc) rc = pe_seq_write_file(&b, path, err);
  pe_buf_free(&b);
  return rc;
}

static pe_status read_fd(int fd, const char *path, pe_buf *out, pe_error *err) {
  struct stat st;
  if (fstat(fd, &st)) return pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  if (!S_ISREG(st.st_mode)) return pe_fail(err, PE_EIO, "%s: not a regular file", path);
  pe_status rc = pe_buf_reserve(out, (size_t)st.st_size, err);
  while (!rc && out->len < (size_t)st.st_size) {
    ssize_t n = read(fd, out->data + out->len, (size_t)st.st_size - out->len);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) rc = pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
    if (n <= 0) break; /* it became shorter: the checksum will not match */
    out->len += (size_t)n;
  }
  return rc;
}

pe_status pe_seq_read_file(const char *path, pe_buf *out, pe_error *err) {
  /* O_NONBLOCK: a named pipe must be refused, not waited for */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  pe_status rc = read_fd(fd, path, out, err);
  close(fd);
  return rc;
}

/* Read, not mapped: its checksum must be that of the very bytes that are used. */
pe_status pe_seq_load_file(pe_seq *s, const uint8_t identity[16], const char *path, pe_error *err) {
  pe_buf b = {0};
  pe_status rc = pe_seq_read_file(path, &b, err);
  if (!rc && (rc = pe_seq_load(s, identity, b.data, b.len, err))) pe_error_prefix(err, "%s", path);
  pe_buf_free(&b);
  return rc;
}
