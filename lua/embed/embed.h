/* embed.h - the scripts inside the program: a table that mkembed writes at build time. */
#ifndef PE_EMBED_H
#define PE_EMBED_H

#include <stddef.h>

typedef struct pe_embed {
  const char *name; /* the path below scripts/: "cmd/run.lua" */
  const char *text;
  size_t size;
} pe_embed;

extern const pe_embed pe_embed_files[]; /* sorted by name (strcmp) */
extern const size_t pe_embed_count;

#endif
