/* patches.h - a resized picture, or frames of a video, as the float32 rows that a vision tower
 * reads: one row per patch, normalised.
 *
 * A value is (x * scale, in double, rounded to float; then minus mean, divided by std, in float):
 * the reference's order of rounding. There are 256 * 3 of them, so they come from a table.
 *
 * Rows go from left to right and from top to bottom; with merge > 1, the patches of one merge block
 * (merge x merge, in the same order) come together, then the next block. Values of a row:
 *   PE_PATCH_CYX   channel, frame, y, x   (Qwen; with one frame: Gemma 3, Pixtral, Mistral 3)
 *   PE_PATCH_YXC   y, x, channel          (Gemma 4, LFM2-VL; one frame)
 * A video of T frames has T / frames groups of rows, in order; the last picture is repeated if T is
 * not a multiple of `frames`, and so a still picture fills its group. Any thread. */
#ifndef PE_PATCHES_H
#define PE_PATCHES_H

#include "runtime/image/image.h"

typedef enum pe_patch_order { PE_PATCH_CYX, PE_PATCH_YXC } pe_patch_order;

typedef struct pe_patch_layout {
  pe_patch_order order;
  int32_t patch_width, patch_height; /* pixels */
  int32_t merge;                     /* side of a merge block, in patches */
  int32_t frames;                    /* pictures in one row */
  double scale;                      /* usually 1/255 */
  float mean[3], std[3];             /* 0 and 1: not normalised */
  int32_t x, y, width, height;       /* the part of the pictures; width 0: all of it */
} pe_patch_layout;

typedef struct pe_patch_grid {
  int64_t groups, rows, columns; /* patches of a picture; groups of frames */
  int64_t values;                /* of one row */
} pe_patch_grid;

/* The grid of `count` pictures of this size. Sides must be multiples of patch * merge. */
pe_status pe_patches_grid(const pe_patch_layout *layout, int32_t width, int32_t height,
                          int64_t count, pe_patch_grid *out, pe_error *err);

/* Fills groups * rows * columns * values floats. All pictures have the same size. */
pe_status pe_patches(const pe_patch_layout *layout, const pe_image *images, int64_t count,
                     float *out, pe_error *err);

#endif
