/* tensor_print.c - prints a tensor as one line with a histogram, or its numbers; see tensor.h. */
#include "runtime/tensor/tensor_block.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SPARK_BINS = 16, LEVELS = 8, CELL = 48 };

static pe_print_options filled_in(const pe_print_options *o) {
  pe_print_options f = o ? *o : (pe_print_options){0};
  if (f.width <= 0) f.width = 80;
  if (f.edge <= 0) f.edge = 3;
  if (f.threshold <= 0) f.threshold = 1000;
  if (f.digits <= 0 || f.digits > 17) f.digits = 4;
  return f;
}

/* ---- one line -------------------------------------------------------------------------------- */

static pe_status print_bytes(uint64_t n, pe_buf *out, pe_error *err) {
  static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
  if (n < 1024) return pe_buf_printf(out, err, "  %d B", (int)n);
  double x = (double)n / 1024;
  int u = 0;
  for (; x >= 1024 && u < 3; u++) x /= 1024;
  return pe_buf_printf(out, err, "  %.1f %s", x, units[u]);
}

static pe_status print_spark(const pe_tensor *t, const pe_tensor_summary *s, bool ascii,
                             pe_buf *out, pe_error *err) {
  static const char *const bars[LEVELS] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static const char marks[LEVELS + 1] = "_.:-=+*#";
  int64_t counts[SPARK_BINS], most = 1;
  pe_status rc = pe_tensor_histogram(t, s->min, s->max, counts, SPARK_BINS, err);
  for (int i = 0; i < SPARK_BINS && !rc; i++) most = counts[i] > most ? counts[i] : most;
  for (int i = 0; i < SPARK_BINS && !rc; i++) {
    int level = (int)((double)counts[i] / (double)most * (LEVELS - 1) + 0.5);
    rc = ascii ? pe_buf_byte(out, marks[level], err)
               : pe_buf_put(out, bars[level], strlen(bars[level]), err);
  }
  return rc;
}

pe_status pe_tensor_print_line(const pe_tensor *t, const pe_print_options *o, pe_buf *out,
                               pe_error *err) {
  char shape[PE_SHAPE_TEXT];
  pe_print_options f = filled_in(o);
  pe_tensor_summary s;
  pe_status rc = pe_buf_printf(out, err, "tensor %s %s", pe_dtype_name(t->dtype),
                               pe_shape_text(t->rank, t->shape, shape));
  if (!rc) rc = print_bytes(pe_tensor_bytes(t), out, err);
  pe_tensor_stats(t, &s);
  if (!rc && s.mean == s.mean) { /* some elements are finite */
    rc = pe_buf_printf(out, err, "   %.3g ", s.min);
    if (!rc) rc = print_spark(t, &s, f.ascii, out, err);
    if (!rc) rc = pe_buf_printf(out, err, " %.3g   mean %.3g  std %.3g", s.max, s.mean, s.std);
  }
  if (!rc && s.nan) rc = pe_buf_printf(out, err, "  nan %" PRId64, s.nan);
  if (!rc && s.inf) rc = pe_buf_printf(out, err, "  inf %" PRId64, s.inf);
  return rc;
}

/* ---- the numbers ----------------------------------------------------------------------------- */

typedef struct printer {
  const pe_tensor *t;
  pe_print_options o;
  /* Elements shown at the beginning and end of each axis; tail 0: all of them. */
  int64_t head[PE_TENSOR_RANK], tail[PE_TENSOR_RANK];
  int64_t index[PE_TENSOR_RANK];
  bool scientific;
  int digits, cell; /* after the decimal point; columns of one number */
  pe_buf *out;
  pe_error *err;
} printer;

static int format_cell(const printer *p, char text[CELL]) {
  pe_number v = pe_tensor_get(p->t, p->index);
  if (p->t->dtype == PE_BOOL) return snprintf(text, CELL, "%s", v.i ? "true" : "false");
  if (v.kind == PE_NUMBER_INT) return snprintf(text, CELL, "%" PRId64, v.i);
  if (v.kind == PE_NUMBER_UINT) return snprintf(text, CELL, "%" PRIu64, v.u);
  if (v.f != v.f) return snprintf(text, CELL, "nan");
  if (isinf(v.f)) return snprintf(text, CELL, v.f < 0 ? "-inf" : "inf");
  return snprintf(text, CELL, p->scientific ? "%.*e" : "%.*f", p->digits, v.f);
}

/* Calls fn for every element to be shown. */
static void each_shown(printer *p, int axis, void (*fn)(printer *p)) {
  if (axis == p->t->rank) {
    fn(p);
    return;
  }
  for (int64_t i = 0; i < p->head[axis] + p->tail[axis]; i++) {
    p->index[axis] = i < p->head[axis] ? i : p->t->shape[axis] - p->tail[axis] - p->head[axis] + i;
    each_shown(p, axis + 1, fn);
  }
}

static void note_size(printer *p) {
  double x = fabs(pe_number_as_float(pe_tensor_get(p->t, p->index)));
  if (isfinite(x) && x != 0 && (x >= 1e6 || x < 1e-4)) p->scientific = true;
}

/* Finds how many digits after the point are needed: trailing zeros are not. */
static void note_digits(printer *p) {
  char text[CELL];
  pe_number v = pe_tensor_get(p->t, p->index);
  if (v.kind != PE_NUMBER_FLOAT || !isfinite(v.f)) return;
  int n = snprintf(text, CELL, "%.*f", p->o.digits, v.f), digits = p->o.digits;
  while (digits > 1 && text[--n] == '0') digits--;
  if (digits > p->digits) p->digits = digits;
}

static void note_width(printer *p) {
  char text[CELL];
  int n = format_cell(p, text);
  if (n > p->cell) p->cell = n;
}

static void choose_shown(printer *p) {
  const pe_tensor *t = p->t;
  int64_t edge = p->o.edge, shown;
  bool all = pe_tensor_size(t) <= p->o.threshold;
  do { /* the ends of eight axes are still many numbers: show fewer of each */
    shown = 1;
    for (int i = 0; i < t->rank; i++) {
      bool whole = all || t->shape[i] <= 2 * edge + 1;
      p->head[i] = whole ? t->shape[i] : edge, p->tail[i] = whole ? 0 : edge;
      shown *= p->head[i] + p->tail[i];
    }
  } while (!all && shown > p->o.threshold && --edge > 0);
}

/* Shortens the last axis to the columns that fit; "…" takes one of them. */
static void fit_width(printer *p) {
  int last = p->t->rank - 1;
  if (last < 0) return;
  int64_t fit = (p->o.width - 2 * p->t->rank) / (p->cell + 2),
          shown = p->head[last] + p->tail[last];
  if (shown + (p->tail[last] > 0) <= fit) return;
  if (fit < 3) fit = 3;
  if (shown <= fit && p->tail[last] == 0) return;
  p->head[last] = fit / 2, p->tail[last] = (fit - 1) / 2;
}

static const char *dots(const printer *p) { return p->o.ascii ? "..." : "…"; }

static pe_status print_cell(printer *p) {
  char text[CELL];
  format_cell(p, text);
  return pe_buf_printf(p->out, p->err, "%*s", p->cell, text);
}

/* Separates neighbours: numbers by a comma, rows by a line break, matrices by empty lines. */
static pe_status print_gap(printer *p, int axis) {
  int below = p->t->rank - 1 - axis; /* dimensions of one neighbour */
  if (below == 0) return pe_buf_put(p->out, ", ", 2, p->err);
  pe_status rc = pe_buf_byte(p->out, ',', p->err);
  for (int i = 0; i < below && !rc; i++) rc = pe_buf_byte(p->out, '\n', p->err);
  return rc ? rc : pe_buf_printf(p->out, p->err, "%*s", axis + 1, "");
}

static pe_status print_axis(printer *p, int axis) {
  if (axis == p->t->rank) return print_cell(p);
  int64_t count = p->head[axis] + p->tail[axis];
  pe_status rc = pe_buf_byte(p->out, '[', p->err);
  for (int64_t i = 0; i < count && !rc; i++) {
    if (i > 0) rc = print_gap(p, axis);
    if (!rc && i == p->head[axis]) {
      rc = pe_buf_put(p->out, dots(p), strlen(dots(p)), p->err);
      if (!rc) rc = print_gap(p, axis);
    }
    p->index[axis] = i < p->head[axis] ? i : p->t->shape[axis] - count + i;
    if (!rc) rc = print_axis(p, axis + 1);
  }
  return rc ? rc : pe_buf_byte(p->out, ']', p->err);
}

pe_status pe_tensor_print(const pe_tensor *t, const pe_print_options *o, pe_buf *out,
                          pe_error *err) {
  printer p = {.t = t, .o = filled_in(o), .out = out, .err = err};
  choose_shown(&p);
  if (pe_tensor_kind_of(t->dtype) == PE_TENSOR_F32 ||
      pe_tensor_kind_of(t->dtype) == PE_TENSOR_F64) {
    each_shown(&p, 0, note_size);
    if (p.scientific)
      p.digits = p.o.digits;
    else
      each_shown(&p, 0, note_digits);
    if (p.digits < 1) p.digits = 1;
  }
  each_shown(&p, 0, note_width);
  fit_width(&p);
  return print_axis(&p, 0);
}
