/* tower_layout.c - see tower_layout.h. */
#include "runtime/device/tower_layout.h"

#include <math.h>
#include <string.h>

enum { ARRAYS = 7 + PE_REGIONS + 1 };

static void arrays_of(pe_tower_layout *l, pe_buf *out[ARRAYS]) {
  pe_buf *const all[ARRAYS] = {&l->patch,
                               &l->position,
                               &l->segment_of,
                               &l->at,
                               &l->index,
                               &l->weight,
                               &l->merge,
                               &l->from,
                               &l->region[PE_REGION_FRAME],
                               &l->region[PE_REGION_WINDOW]};
  memcpy(out, all, sizeof all);
}

void pe_tower_layout_free(pe_tower_layout *l) {
  pe_buf *arrays[ARRAYS];
  arrays_of(l, arrays);
  for (int i = 0; i < ARRAYS; i++) pe_buf_free(arrays[i]);
}

/* ---- the table of positions ------------------------------------------------------------------ */

/* Lines of one axis of the table that place i of n is made of: `count` from `first` on. */
typedef struct taps {
  int32_t first, count;
  double *weight;
} taps;

static taps aligned(int32_t i, int32_t n, int32_t side, double *weight) {
  double at = n > 1 ? (double)i * (side - 1) / (n - 1) : 0;
  int32_t first = (int32_t)at;
  if (first > side - 1) first = side - 1;
  weight[0] = 1 - (at - first), weight[1] = at - first;
  return (taps){first, first + 1 < side ? 2 : 1, weight};
}

/* A triangle around the place, as wide as the picture is coarser than the table. */
static taps antialiased(int32_t i, int32_t n, int32_t side, double *weight) {
  double scale = (double)side / n, support = scale > 1 ? scale : 1, centre = scale * (i + 0.5);
  int32_t first = (int32_t)fmax(centre - support + 0.5, 0),
          end = (int32_t)fmin(centre + support + 0.5, side);
  double sum = 0;
  for (int32_t k = first; k < end; k++) {
    weight[k - first] = fmax(1 - fabs((k - centre + 0.5) / support), 0);
    sum += weight[k - first];
  }
  for (int32_t k = first; k < end; k++) weight[k - first] /= sum;
  return (taps){first, end - first, weight};
}

static pe_status put_line(pe_tower_layout *l, int32_t index, double weight, pe_error *err) {
  float w = (float)weight;
  pe_status rc = pe_buf_int(&l->index, index, err);
  return rc ? rc : pe_buf_put(&l->weight, &w, sizeof w, err);
}

/* room: 2 * (side + 1) doubles */
static pe_status put_lookup(pe_tower_layout *l, const pe_tower_spec *s, const pe_picture *p,
                            int32_t y, int32_t x, double *room, pe_error *err) {
  pe_status rc = PE_OK;
  if (s->table == PE_TABLE_RASTER) rc = put_line(l, y * p->cols + x, 1, err);
  if (s->table == PE_TABLE_AXES) {
    rc = put_line(l, x, 1, err);
    if (!rc) rc = put_line(l, s->side + y, 1, err);
  }
  if (s->table == PE_TABLE_ALIGNED || s->table == PE_TABLE_ANTIALIASED) {
    taps (*axis)(int32_t, int32_t, int32_t, double *) =
        s->table == PE_TABLE_ALIGNED ? aligned : antialiased;
    taps v = axis(y, p->rows, s->side, room), h = axis(x, p->cols, s->side, room + s->side + 1);
    for (int32_t i = 0; i < v.count; i++)
      for (int32_t j = 0; !rc && j < h.count; j++)
        rc = put_line(l, (v.first + i) * s->side + h.first + j, v.weight[i] * h.weight[j], err);
  }
  return rc ? rc : pe_buf_int(&l->at, (int32_t)(l->index.len / sizeof(int32_t)), err);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The pictures of a step, one at a time. */
typedef struct walk {
  pe_tower_layout *l;
  const pe_tower_spec *s;
  const pe_picture *p;
  int32_t rows;  /* of the whole step */
  int32_t row;   /* the next one */
  int32_t first; /* of the picture, as patches come */
  double *room;
  int32_t *unit_at; /* the first row of each merge block of a frame */
} walk;

static int32_t frame_size(const pe_picture *p) { return p->rows * p->cols; }

/* The row of the patch at (y, x), number `from` of its frame. */
static pe_status put_row(walk *k, int32_t frame, int32_t y, int32_t x, int32_t from,
                         pe_error *err) {
  int32_t *position = (int32_t *)(void *)k->l->position.data;
  position[k->row] = y, position[k->rows + k->row] = x, position[2 * k->rows + k->row] = frame;
  k->row++;
  pe_status rc = pe_buf_int(&k->l->from, k->first + frame * frame_size(k->p) + from, err);
  return rc ? rc : put_lookup(k->l, k->s, k->p, y, x, k->room, err);
}

static pe_status put_region(walk *k, int kind, int32_t first, pe_error *err) {
  pe_region r = {first, k->row - first};
  pe_regions *all = &k->l->step.tower.region[kind];
  if (r.count > all->longest) all->longest = r.count;
  all->count++;
  return pe_buf_put(&k->l->region[kind], &r, sizeof r, err);
}

static pe_status put_block(walk *k, int32_t frame, int32_t by, int32_t bx, pe_error *err) {
  const int32_t m = k->s->merge, unit = by * (k->p->cols / m) + bx;
  pe_status rc = PE_OK;
  k->unit_at[unit] = k->row;
  for (int32_t i = 0; !rc && i < m * m; i++)
    rc = put_row(k, frame, by * m + i / m, bx * m + i % m, unit * m * m + i, err);
  return rc;
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* Blocks window by window; without windows the frame is one. */
static pe_status put_blocks(walk *k, int32_t frame, pe_error *err) {
  const int32_t m = k->s->merge, h = k->p->rows / m, w = k->p->cols / m;
  const int32_t side = k->s->window ? k->s->window : h > w ? h : w;
  pe_status rc = PE_OK;
  for (int32_t wy = 0; !rc && wy < h; wy += side)
    for (int32_t wx = 0; !rc && wx < w; wx += side) {
      int32_t first = k->row;
      for (int32_t by = wy; !rc && by < least(wy + side, h); by++)
        for (int32_t bx = wx; !rc && bx < least(wx + side, w); bx++)
          rc = put_block(k, frame, by, bx, err);
      if (!rc && k->s->window) rc = put_region(k, PE_REGION_WINDOW, first, err);
    }
  return rc;
}

static pe_status put_raster(walk *k, int32_t frame, pe_error *err) {
  const int32_t m = k->s->merge, cols = k->p->cols;
  pe_status rc = PE_OK;
  for (int32_t i = 0; !rc && i < frame_size(k->p); i++) {
    if (i / cols % m == 0 && i % cols % m == 0)
      k->unit_at[i / cols / m * (cols / m) + i % cols / m] = k->row;
    rc = put_row(k, frame, i / cols, i % cols, i, err);
  }
  return rc;
}

/* The rows of every merge block of the frame, in raster order of the blocks. */
static pe_status put_merges(walk *k, pe_error *err) {
  const int32_t m = k->s->merge, units = frame_size(k->p) / (m * m);
  const int32_t down = k->s->blocks ? m : k->p->cols; /* from a row of a block to the next */
  pe_status rc = PE_OK;
  for (int32_t u = 0; u < units; u++)
    for (int32_t i = 0; !rc && i < m * m; i++)
      rc = pe_buf_int(&k->l->merge, k->unit_at[u] + i / m * down + i % m, err);
  k->l->step.outputs += units;
  return rc;
}

static pe_status put_picture(walk *k, pe_error *err) {
  pe_status rc = PE_OK;
  for (int32_t f = 0; !rc && f < k->p->frames; f++) {
    int32_t first = k->row;
    rc = k->s->blocks ? put_blocks(k, f, err) : put_raster(k, f, err);
    if (!rc) rc = put_region(k, PE_REGION_FRAME, first, err);
    if (!rc) rc = put_merges(k, err);
  }
  k->first = k->row;
  return rc;
}

/* ---- the step -------------------------------------------------------------------------------- */

/* The patches in the order of the rows: those of a single picture without windows are already. */
static pe_status put_patches(pe_tower_layout *l, const pe_tower_spec *s, const pe_picture *list,
                             int32_t count, pe_error *err) {
  l->step.tower.patch = list[0].patch, l->step.tower.patch_width = s->patch;
  if (count == 1 && !s->window) return PE_OK;
  const size_t bytes = (size_t)s->patch * sizeof(float);
  const int32_t *from = (const int32_t *)(void *)l->from.data;
  pe_status rc = pe_buf_reserve(&l->patch, (size_t)l->step.rows * bytes, err);
  for (int32_t r = 0, i = 0, first = 0; !rc && r < l->step.rows; r++) {
    while (r - first == list[i].frames * frame_size(&list[i])) first = r, i++;
    rc = pe_buf_put(&l->patch, list[i].patch + (size_t)(from[r] - first) * (size_t)s->patch, bytes,
                    err);
  }
  l->step.tower.patch = (const float *)(void *)l->patch.data;
  return rc;
}

/* The arrays may have moved while they grew, so the pointers of the step are set last. */
static void point_step(pe_tower_layout *l, const pe_tower_spec *s) {
  pe_step *p = &l->step;
  p->position = (const int32_t *)(void *)l->position.data;
  p->segment_of = (const int32_t *)(void *)l->segment_of.data;
  p->segment = &l->segment, p->segments = 1;
  p->tower.lookup =
      (pe_lookup){(const int32_t *)(void *)l->at.data, (const int32_t *)(void *)l->index.data,
                  (const float *)(void *)l->weight.data};
  p->tower.merge = (const int32_t *)(void *)l->merge.data,
  p->tower.merge_count = s->merge * s->merge;
  for (int i = 0; i < PE_REGIONS; i++)
    p->tower.region[i].list = (const pe_region *)(void *)l->region[i].data;
  l->order = (const int32_t *)(void *)l->from.data;
}

pe_status pe_tower_layout_step(pe_tower_layout *l, const pe_tower_spec *s, const pe_picture *list,
                               int32_t count, pe_error *err) {
  pe_buf *arrays[ARRAYS];
  int32_t rows = 0, frame = 0;
  arrays_of(l, arrays);
  for (int i = 0; i < ARRAYS; i++) arrays[i]->len = 0;
  for (int32_t i = 0; i < count; i++) {
    rows += list[i].frames * frame_size(&list[i]);
    if (frame_size(&list[i]) > frame) frame = frame_size(&list[i]);
  }
  l->step = (pe_step){.rows = rows}, l->segment = (pe_segment){.count = rows};
  walk k = {.l = l, .s = s, .rows = rows};
  k.room = pe_calloc(2 * (size_t)s->side + 2, sizeof *k.room);
  k.unit_at = pe_calloc((size_t)frame + 1, sizeof *k.unit_at);
  pe_status rc = k.room && k.unit_at ? PE_OK : pe_nomem(err, "tower step");
  size_t ints = (size_t)rows * sizeof(int32_t);
  if (!rc) rc = pe_buf_reserve(&l->position, 3 * ints, err);
  if (!rc) rc = pe_buf_reserve(&l->segment_of, ints, err);
  if (!rc) memset(l->segment_of.data, 0, ints);
  if (!rc) rc = pe_buf_int(&l->at, 0, err);
  for (int32_t i = 0; !rc && i < count; i++) {
    k.p = &list[i];
    rc = put_picture(&k, err);
  }
  if (!rc) rc = put_patches(l, s, list, count, err);
  if (!rc) point_step(l, s);
  pe_free(k.room), pe_free(k.unit_at);
  return rc;
}
