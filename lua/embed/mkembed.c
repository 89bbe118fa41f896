/* mkembed.c - writes the C source that holds the scripts: mkembed ROOT FILE... > embed.c
 *
 * A C program, so that the build needs nothing but a C compiler. Names are paths below ROOT. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct file {
  const char *path, *name;
  size_t size;
} file;

static int by_name(const void *a, const void *b) {
  return strcmp(((const file *)a)->name, ((const file *)b)->name);
}

static void put_byte(int c) {
  if (c == '"' || c == '\\')
    printf("\\%c", c);
  else if (c == '?')
    printf("\\?"); /* no trigraphs */
  else if (c < 128 && isprint(c))
    putchar(c);
  else
    printf("\\%03o", (unsigned)c);
}

/* One string literal per line of the script. Returns false when the file cannot be read. */
static bool put_text(file *f, size_t index) {
  FILE *in = fopen(f->path, "rb");
  if (!in) return false;
  printf("static const char text_%zu[] =", index);
  bool open = false;
  for (int c; (c = getc(in)) != EOF; f->size++) {
    if (!open) printf("\n  \"");
    open = c != '\n';
    put_byte(c);
    if (!open) putchar('"');
  }
  printf("%s;\n", open ? "\"" : f->size ? "" : " \"\"");
  bool good = !ferror(in);
  fclose(in);
  return good;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: mkembed ROOT FILE...\n");
    return 2;
  }
  size_t count = (size_t)argc - 2, root = strlen(argv[1]);
  file *files = calloc(count + 1, sizeof *files);
  if (!files) return 1;
  for (size_t i = 0; i < count; i++) {
    const char *path = argv[i + 2];
    bool below = !strncmp(path, argv[1], root) && path[root] == '/';
    files[i] = (file){.path = path, .name = below ? path + root + 1 : path};
  }
  qsort(files, count, sizeof *files, by_name);
  printf("/* Written by mkembed. */\n#include \"lua/embed/embed.h\"\n\n");
  int status = 0;
  for (size_t i = 0; i < count; i++)
    if (!put_text(&files[i], i)) {
      perror(files[i].path);
      status = 1;
    }
  printf("\nconst pe_embed pe_embed_files[] = {\n");
  for (size_t i = 0; i < count; i++)
    printf("  {\"%s\", text_%zu, %zu},\n", files[i].name, i, files[i].size);
  printf("  {0, 0, 0}};\nconst size_t pe_embed_count = %zu;\n", count);
  free(files);
  return status;
}
