/* prefix_disk.h - the disk tier of the prefix cache: a folder with one file per node.
 *
 * A node is written before it is evicted, or earlier when the engine is idle. Ancestors go first,
 * so every file on disk has a complete path to the top. A file is written under a temporary name
 * and renamed, so that a killed process leaves no half file. Nothing is synced, since that would
 * stall every stream: after a crash of the machine a file may be torn, which its checksums reveal.
 * The name is the hash of the path; the tokens inside are compared before use, so a collision costs
 * a miss.
 *
 * Opening reads the headers, and every file becomes a node without contents in memory. Files of
 * other models are left alone; damaged files of this model and those without a parent are removed.
 * Above the budget the oldest files are removed.
 *
 * While a batch runs on the engine thread, files are read and written by a thread of their own
 * (disk_thread.h). A node counts as written when its contents are queued; if that write fails, so
 * does reading it later. A node is brought only if its file was read ahead (pe_disk_fetch).
 *
 * Only opening can fail for the caller of the cache. What cannot be written is lost, what cannot be
 * read is computed again, and both are counted. */
#ifndef PE_PREFIX_DISK_H
#define PE_PREFIX_DISK_H

#include "runtime/cache/disk_thread.h"

typedef struct pe_disk {
  pe_tree *tree; /* borrowed */
  char *folder;  /* NULL: no disk tier; all functions do nothing */
  pe_prefix_spec spec;
  uint64_t budget, bytes, reads, writes, errors, dropped;
  pe_disk_thread *thread; /* NULL: files are read and written at once */
} pe_disk;

pe_status pe_disk_open(pe_disk *d, pe_tree *t, const pe_prefix_spec *spec,
                       const pe_prefix_options *o, pe_error *err);
void pe_disk_close(pe_disk *d);

/* Memory has contents of n that its file does not have. */
bool pe_disk_lacks(const pe_disk *d, const pe_tree_node *n);
/* Writes these contents. May remove files of other nodes, and nodes that had nothing else. */
void pe_disk_save(pe_disk *d, pe_tree_node *n);
/* Reads the file of n into memory. PE_EIO, PE_EFORMAT, PE_EUNSUPPORTED, PE_ENOTFOUND: the file
 * is unusable and n has lost it. Other failures (no memory, no free block, no file) leave n as
 * it was. */
pe_status pe_disk_bring(pe_disk *d, pe_tree_node *n, pe_error *err);
/* Starts reading the file of n ahead, if there is a thread; returns the number of the job, 0: none
 * is needed or possible. */
uint64_t pe_disk_fetch(pe_disk *d, const pe_tree_node *n);
/* n has no file from now on; remove: deletes it. */
void pe_disk_forget(pe_disk *d, pe_tree_node *n, bool remove);

#endif
