/* prefix_disk.h - the folder behind the prefix cache: one file per node.
 *
 * A node is written when something of it is about to leave memory, or earlier, while there is nothing else to do; after those of its ancestors that have no file yet; so
 * whatever files there are, each one's path to the top is there too. A file is written beside and renamed: one that is there
 * under its name is whole, however the process ended. Nothing waits for the disk, which would hold up every stream: should
 * the machine itself go down, a file may be torn, and the checksums tell. Its name is the hash of its path; the
 * tokens inside are compared before it is used, so two paths with one hash cost a miss.
 *
 * At opening the headers are read and every file becomes a node that has nothing in memory. Files of other models are left
 * alone; those of ours that are damaged or have lost their parents are removed. Above the budget the oldest files go.
 *
 * Nothing here fails for the caller of the cache but opening: what cannot be written is lost, what cannot be read is
 * computed again, and both are counted. */
#ifndef PE_PREFIX_DISK_H
#define PE_PREFIX_DISK_H

#include "runtime/cache/prefix_file.h"

typedef struct pe_disk {
  pe_tree *tree; /* borrowed */
  char *folder;  /* NULL: there is no disk tier, and nothing below does anything */
  pe_prefix_spec spec;
  uint64_t budget, bytes, reads, writes, errors;
} pe_disk;

pe_status pe_disk_open(pe_disk *d, pe_tree *t, const pe_prefix_spec *spec,
                       const pe_prefix_options *o, pe_error *err);
void pe_disk_close(pe_disk *d);

bool pe_disk_lacks(const pe_disk *d,
                   const pe_tree_node *n); /* memory has something of n that its file has not */
/* Writes what memory has of n and the file has not. May remove other nodes' files, and nodes that had nothing else. */
void pe_disk_save(pe_disk *d, pe_tree_node *n);
/* Everything of n's file into memory. PE_EIO, PE_EFORMAT, PE_EUNSUPPORTED, PE_ENOTFOUND: the file was no good, and n has it no more. Other
 * failures (no memory, no free block, no file) leave n as it was. */
pe_status pe_disk_bring(pe_disk *d, pe_tree_node *n, pe_error *err);
void pe_disk_forget(pe_disk *d, pe_tree_node *n, bool remove); /* n has no file any more */

#endif
