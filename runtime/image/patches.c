/* patches.c - see patches.h. */
#include "runtime/image/patches.h"

typedef float level_table[3][256];

static void fill_levels(const pe_patch_layout *l, level_table levels) {
  for (int c = 0; c < 3; c++)
    for (int i = 0; i < 256; i++) {
      float x = (float)(i * l->scale);
      levels[c][i] = (x - l->mean[c]) / l->std[c];
    }
}

pe_status pe_patches_grid(const pe_patch_layout *l, int32_t width, int32_t height, int64_t count,
                          pe_patch_grid *out, pe_error *err) {
  if (l->patch_width < 1 || l->patch_height < 1 || l->merge < 1 || l->frames < 1 || count < 1)
    return pe_fail(err, PE_EARG, "patches, merge blocks and frames must be 1 or more");
  if (l->order == PE_PATCH_YXC && l->frames != 1)
    return pe_fail(err, PE_EARG, "the order y, x, channel has one frame per row, got %d",
                   l->frames);
  if (l->width && (l->x < 0 || l->y < 0 || l->width < 1 || l->height < 1 ||
                   l->width > width - l->x || l->height > height - l->y))
    return pe_fail(err, PE_EARG, "%d x %d pixels at %d, %d are not inside a picture of %d x %d",
                   l->width, l->height, l->x, l->y, width, height);
  int64_t w = l->width ? l->width : width, h = l->width ? l->height : height;
  int64_t across = (int64_t)l->patch_width * l->merge, down = (int64_t)l->patch_height * l->merge;
  if (w < 1 || h < 1 || w % across || h % down)
    return pe_fail(err, PE_ESHAPE, "a picture of %d x %d pixels has no whole blocks of %d x %d",
                   (int)w, (int)h, (int)across, (int)down);
  *out = (pe_patch_grid){.groups = (count + l->frames - 1) / l->frames,
                         .rows = h / l->patch_height,
                         .columns = w / l->patch_width,
                         .values = (int64_t)3 * l->frames * l->patch_width * l->patch_height};
  return PE_OK;
}

/* One patch of one picture: channel c goes to out + c * step, pixels in order. */
static void channels_first(const pe_patch_layout *l, level_table levels, const uint8_t *from,
                           int64_t stride, float *out, int64_t step) {
  for (int c = 0; c < 3; c++) {
    float *to = out + c * step;
    for (int32_t y = 0; y < l->patch_height; y++) {
      const uint8_t *p = from + y * stride + c;
      for (int32_t x = 0; x < l->patch_width; x++) *to++ = levels[c][p[3 * x]];
    }
  }
}

static void channels_last(const pe_patch_layout *l, level_table levels, const uint8_t *from,
                          int64_t stride, float *out) {
  for (int32_t y = 0; y < l->patch_height; y++) {
    const uint8_t *p = from + y * stride;
    for (int32_t x = 0; x < l->patch_width; x++, p += 3, out += 3)
      out[0] = levels[0][p[0]], out[1] = levels[1][p[1]], out[2] = levels[2][p[2]];
  }
}

/* The patch in this row and column, from the pictures of one group. */
static void one_row(const pe_patch_layout *l, level_table levels, const pe_image *images,
                    int64_t first, int64_t count, int64_t row, int64_t column, float *out) {
  int64_t stride = (int64_t)images[0].width * 3, area = (int64_t)l->patch_width * l->patch_height;
  int64_t x = column * l->patch_width, y = row * l->patch_height;
  if (l->width) x += l->x, y += l->y;
  for (int64_t f = 0; f < l->frames; f++) {
    int64_t i = first + f < count ? first + f : count - 1;
    const uint8_t *from = images[i].rgb + y * stride + x * 3;
    if (l->order == PE_PATCH_YXC)
      channels_last(l, levels, from, stride, out);
    else
      channels_first(l, levels, from, stride, out + f * area, l->frames * area);
  }
}

pe_status pe_patches(const pe_patch_layout *l, const pe_image *images, int64_t count, float *out,
                     pe_error *err) {
  pe_patch_grid g;
  if (count < 1) return pe_fail(err, PE_EARG, "there must be a picture");
  pe_status rc = pe_patches_grid(l, images[0].width, images[0].height, count, &g, err);
  if (rc) return rc;
  for (int64_t i = 1; i < count; i++)
    if (images[i].width != images[0].width || images[i].height != images[0].height)
      return pe_fail(err, PE_ESHAPE, "frame %d has %d x %d pixels, the first has %d x %d",
                     (int)i + 1, images[i].width, images[i].height, images[0].width,
                     images[0].height);
  level_table levels;
  fill_levels(l, levels);
  const int64_t m = l->merge;
  for (int64_t group = 0; group < g.groups; group++)
    for (int64_t top = 0; top < g.rows; top += m)
      for (int64_t left = 0; left < g.columns; left += m)
        for (int64_t k = 0; k < m * m; k++, out += g.values)
          one_row(l, levels, images, group * l->frames, count, top + k / m, left + k % m, out);
  return PE_OK;
}
