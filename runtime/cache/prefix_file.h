/* prefix_file.h - the file of one node of the prefix cache.
 *
 * A header (model, contents, the tokens of the node and the names of pictures among them), then a
 * body: the tokens of the path to the node and their names, the rows of every group that has some,
 * the snapshots. The header has its own checksum, so
 * an index can be built from headers alone; it contains the checksum of the body. Numbers are
 * little-endian, checksums are XXH3, whose values are fixed across versions.
 *
 *   0  "PEPREFIX", version u32     56  hash of the parent 16    100  body bytes u64
 *  12  identity 16                 72  salt u64                 108  body checksum u64
 *  28  geometry u64                80  rope variant i32         116  tokens by group i32 x 16
 *  36  header bytes u32            84  depth i32                180  snapshot positions i32 x 4,
 *  40  hash 16                     88  count i32                     0: none
 *                                  92  names i32                196  the node's tokens i32 x count,
 *                                  96  names of the path i32         its names 60 bytes each,
 *                                                                    then the header checksum u64
 *
 * The first 36 bytes are the same in all files of one model and geometry (block, groups, sizes). A
 * file that starts differently is not ours; one that starts like this but fails a check is damaged.
 *
 * No field is used before its checksum is verified, and sizes are compared with the size of the
 * file first. */
#ifndef PE_PREFIX_FILE_H
#define PE_PREFIX_FILE_H

#include "runtime/cache/prefix_tree.h"

enum {
  PE_PREFIX_FILE_VERSION = 2,
  PE_PREFIX_FILE_STAMP = 36,
  PE_PREFIX_FILE_FIXED = 196,
  PE_PREFIX_FILE_SUM_AT = 108
};

typedef struct pe_prefix_spec { /* the same for all files of a model */
  uint8_t stamp[PE_PREFIX_FILE_STAMP];
  int32_t block, groups;
  uint64_t token_bytes[PE_GRAPH_GROUPS], state_bytes;
  int32_t window[PE_GRAPH_GROUPS];
} pe_prefix_spec;

typedef struct pe_prefix_head {
  pe_tree_hash hash, parent;
  pe_prefix_key key;
  int32_t depth, count;
  int32_t names, path_names; /* of pictures among the tokens (names.h), PE_NAME_BYTES each */
  int32_t fill[PE_GRAPH_GROUPS], position[PE_TREE_SLOTS];
  const uint8_t *word; /* count tokens; borrowed from the bytes, not aligned */
  const uint8_t *name; /* names of them; borrowed */
  uint64_t head_bytes, body_bytes, body_sum;
} pe_prefix_head;

typedef struct pe_prefix_image { /* a whole file, borrowed */
  pe_prefix_head head;
  const uint8_t *path; /* depth * block tokens */
  const uint8_t *path_name;
  const uint8_t *rows[PE_GRAPH_GROUPS], *state[PE_TREE_SLOTS];
} pe_prefix_image;

void pe_prefix_spec_of(const pe_kv *kv, const pe_recur *recur, const uint8_t identity[16],
                       pe_prefix_spec *out);
static inline uint64_t pe_prefix_head_room(const pe_prefix_spec *s) {
  return PE_PREFIX_FILE_FIXED + (uint64_t)s->block * (4 + PE_NAME_BYTES) + 8;
}

/* PE_EUNSUPPORTED: not a file of this model; PE_EFORMAT: damaged. size: bytes available. */
pe_status pe_prefix_head_read(const pe_prefix_spec *s, const uint8_t *bytes, uint64_t size,
                              pe_prefix_head *out, pe_error *err);
/* view: without the checksum of the body, for bytes that were checked before. */
pe_status pe_prefix_image_view(const pe_prefix_spec *s, const uint8_t *bytes, uint64_t size,
                               pe_prefix_image *out, pe_error *err);
pe_status pe_prefix_image_read(const pe_prefix_spec *s, const uint8_t *bytes, uint64_t size,
                               pe_prefix_image *out, pe_error *err);

/* Starts a file in an empty buffer; sizes and checksums of the head are computed here. The caller
 * fills the parts of the body, whose places are returned in `parts`, and then calls
 * pe_prefix_image_seal. */
pe_status pe_prefix_image_begin(const pe_prefix_spec *s, const pe_prefix_head *h, pe_buf *out,
                                pe_prefix_image *parts, pe_error *err);
void pe_prefix_image_seal(uint8_t *bytes, uint64_t size, const pe_prefix_image *parts);

#endif
