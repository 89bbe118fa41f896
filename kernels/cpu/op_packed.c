/* op_packed.c - products with packed weights, of `fast` precision: rounding a value to 16-bit
 * codes, linear, gated, expert_linear, expert_gated. The arithmetic is in int16.h.
 *
 * A value is rounded once for all products that read it; the rows of experts are rounded where they
 * are gathered. If the rows are few, every thread rounds all of them for itself (call->rounds):
 * this takes less time than waiting until one thread has. A norm whose result is only read rounded
 * is computed where that happens (call->norm). A gated MLP with such a result rounds it while it is
 * in the cache (call->result). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/experts.h"

enum {
  /* Floats of each product of a gated MLP before they are joined: 64 KB, so that both stay in the
   * cache. A strip of few rows has many columns: they are read as streams, and an
   * activation of a few numbers at a time would wait for each of its steps. */
  STRIP = 1 << 14,
  LEAST_STRIP = 2 * PE_PACK_ROWS, /* columns */
  FLOATS = PE_PACK_ALIGN / (int)sizeof(float)
};

/* Bytes as floats, in whole cache lines. */
static int64_t floats_of(uint64_t bytes) {
  return (int64_t)((bytes + PE_PACK_ALIGN - 1) / PE_PACK_ALIGN) * FLOATS;
}

/* A product is shared in blocks: a pair of panels for as many tiles as stay in the cache, or a
 * panel if there is one tile, or what is rounded together. Neighbouring blocks have the same tiles,
 * so that a task reads these once. */
typedef struct blocks {
  int32_t tiles;         /* of a block */
  int64_t width, across; /* columns of a block, blocks of the same tiles */
  int64_t count;
} blocks;

static blocks blocks_of(const pe_cpu_call *c) {
  const pe_int16_rows *x = c->rounded[0];
  const int64_t panels = pe_pack_panels(c->pack), pair = x->tiles > 1 ? 2 : 1;
  const int64_t each = c->result ? PE_INT16_UNIT / PE_PACK_ROWS : pair;
  blocks b = {pe_int16_cached(x), each * PE_PACK_ROWS, (panels + each - 1) / each, 0};
  b.count = (x->tiles + b.tiles - 1) / b.tiles * b.across;
  return b;
}

typedef struct part { /* columns from .. to - 1 for some tiles */
  int64_t from, to;
  int32_t from_tile, to_tile;
} part;

/* The next blocks of *from .. to - 1 that have the same tiles, as one part. */
static bool next_part(const pe_cpu_call *c, int64_t *from, int64_t to, part *out) {
  const blocks b = blocks_of(c);
  if (*from >= to) return false;
  const int64_t row = *from / b.across, col = *from % b.across;
  const int64_t n = pe_cpu_least(to - *from, b.across - col);
  *out = (part){.from = col * b.width,
                .to = pe_cpu_least((col + n) * b.width, c->pack->rows),
                .from_tile = (int32_t)(row * b.tiles),
                .to_tile = (int32_t)pe_cpu_least((row + 1) * b.tiles, c->rounded[0]->tiles)};
  *from += n;
  return true;
}

/* A product of a few rows reads its weights from memory, one of many multiplies: what takes longer
 * counts. In the unit of other costs, a byte that is read takes as long as two multiply-adds. */
typedef struct product_cost {
  double bytes, read, multiply;
} product_cost;

static product_cost cost_of(const pe_pack *w, int64_t rows) {
  const double bytes = (double)pe_pack_panels(w) * (double)w->panel_bytes;
  return (product_cost){bytes, 2 * bytes, (double)rows * (double)w->rows * (double)w->cols / 4};
}

static double time_of(const pe_pack *w, int64_t rows) {
  const product_cost cost = cost_of(w, rows);
  return cost.read > cost.multiply ? cost.read : cost.multiply;
}

static double product_reads(const pe_pack *w, int64_t rows) {
  const product_cost cost = cost_of(w, rows);
  return cost.read > cost.multiply ? cost.bytes : 0;
}

/* ---- rounding -------------------------------------------------------------------------------- */

/* Tasks take whole tiles if there are enough: the rows of one share cache lines of scales. */
enum { ENOUGH_TILES = 4 };

static bool by_tiles(const pe_int16_rows *x) { return x->tiles >= ENOUGH_TILES; }

/* Rows of a norm are rounded while they are in the first-level cache, of which they take this many
 * floats at most, if one row does not take more. */
enum { NORM_FLOATS = 1 << 12 };

static int64_t norm_width(const pe_cpu_call *c) {
  return (int64_t)c->args.norm.width * c->args.norm.count;
}

static int32_t norm_rows(const pe_cpu_call *c) {
  const int64_t rows = NORM_FLOATS / norm_width(c);
  return rows < 1 ? 1 : (int32_t)rows;
}

/* Floats of scratch for them. */
static int64_t norm_floats(const pe_cpu_call *c) {
  return c->norm ? floats_of((uint64_t)(norm_rows(c->norm) * norm_width(c->norm)) * sizeof(float))
                 : 0;
}

/* Rows from .. to - 1 of the input. room: norm_floats. */
static void round_rows(const pe_cpu_call *c, const pe_int16_rows *out, int32_t from, int32_t to,
                       float *room) {
  if (!c->norm) {
    c->int16->quantize(out, c->in[0].at, c->in[0].step, pe_int16_whole(out, from, to));
    return;
  }
  const int64_t width = norm_width(c->norm);
  for (int32_t end; from < to; from = end) {
    end = (int32_t)pe_cpu_least(from + norm_rows(c->norm), to);
    for (int32_t r = from; r < end; r++) pe_cpu_norm_row(c->norm, r, room + (r - from) * width);
    c->int16->quantize(out, room - from * width, width, pe_int16_whole(out, from, end));
  }
}

static void round_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_int16_rows *x = c->rounded[0];
  int64_t from, to;
  pe_cpu_range(share, by_tiles(x) ? x->tiles : x->rows, &from, &to);
  if (by_tiles(x)) {
    from = pe_int16_tile_at(x, (int32_t)from).from;
    to = to < x->tiles ? pe_int16_tile_at(x, (int32_t)to).from : x->rows;
  }
  round_rows(c, x, (int32_t)from, (int32_t)to, share->scratch);
}

static pe_cpu_work round_work(const pe_cpu_call *c) {
  const pe_int16_rows *x = c->rounded[0];
  return (pe_cpu_work){by_tiles(x) ? x->tiles : x->rows,
                       (double)x->rows * (double)x->cols * (c->norm ? 4 : 2)};
}

/* Rounding a value costs two multiply-adds. A product of one row lets each thread read its part of
 * the weights; a 32nd of that time is less than waiting for another thread takes. A single thread
 * never waits. */
int32_t pe_cpu_rounds_most(const pe_pack *w, int threads) {
  if (threads < 2) return 0;
  return (int32_t)(cost_of(w, 1).read / threads / 32 / (2 * (double)w->cols));
}

/* Floats of the rounded inputs of a product in scratch. */
static int64_t rounded_floats(const pe_cpu_call *c) {
  int64_t n = c->rounds ? norm_floats(c) : 0;
  for (int i = 0; c->rounds && i < 2; i++)
    if (c->rounded[i] && (!i || c->rounded[1] != c->rounded[0]))
      n += floats_of(pe_int16_bytes(c->rows, c->rounded[i]->cols, c->rounded[i]->act));
  return n;
}

/* Rounds the inputs to scratch, own[0] and own[1], if this call does that. */
static void round_inputs(const pe_cpu_call *c, const pe_cpu_share *share, pe_int16_rows own[2],
                         const pe_int16_rows *x[2]) {
  x[0] = c->rounded[0], x[1] = c->rounded[1];
  if (!c->rounds) return;
  float *const lines = share->scratch, *room = lines + norm_floats(c);
  for (int i = 0; i < 2; i++) {
    const pe_int16_rows *shape = c->rounded[i];
    if (!shape) continue;
    x[i] = i && shape == c->rounded[0] ? x[0] : &own[i];
    if (x[i] != &own[i]) continue;
    pe_int16_place(c->int16, c->rows, shape->cols, shape->act, room, &own[i]);
    room += floats_of(pe_int16_bytes(c->rows, shape->cols, shape->act));
    if (!share->again) round_rows(c, &own[i], 0, c->rows, lines);
  }
}

const pe_cpu_op pe_cpu_round = {.run = round_run, .work = round_work, .scratch = norm_floats};

/* ---- linear ---------------------------------------------------------------------------------- */

/* The columns that this thread will probably multiply after this task. */
static pe_int16_columns next_columns(const pe_cpu_share *share) {
  const pe_cpu_call *c = share->then;
  if (!c) return (pe_int16_columns){0};
  const pe_cpu_share then = {
      .task = share->then_task, .tasks = share->then_tasks, .large = share->then_large};
  int64_t from, to;
  part of;
  pe_cpu_range(&then, blocks_of(c).count, &from, &to);
  if (!next_part(c, &from, to, &of)) return (pe_int16_columns){0};
  return (pe_int16_columns){c->pack, of.from, of.to};
}

static void linear_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  pe_int16_rows own[2];
  const pe_int16_rows *x[2];
  round_inputs(c, share, own, x);
  pe_int16_product p = {
      .w = c->pack, .x = x[0], .bias = c->vec[0], .out = c->out.at, .out_step = c->out.step};
  int64_t from, to;
  part of;
  if (c->args.linear.residual) p.residual = c->in[1].at, p.residual_step = c->in[1].step;
  pe_cpu_range(share, blocks_of(c).count, &from, &to);
  p.next = next_columns(share);
  while (next_part(c, &from, to, &of)) {
    p.from_tile = of.from_tile, p.to_tile = of.to_tile;
    c->int16->product(&p, of.from, of.to, share->scratch + rounded_floats(c));
  }
}

static int64_t product_scratch(const pe_cpu_call *c, int32_t rows) {
  const uint64_t one = pe_int16_scratch(c->pack, rows);
  const uint64_t other = c->pack2 ? pe_int16_scratch(c->pack2, rows) : 0;
  return floats_of(one > other ? one : other);
}

static pe_cpu_work linear_work(const pe_cpu_call *c) {
  return (pe_cpu_work){blocks_of(c).count, time_of(c->pack, c->rows)};
}

static double linear_reads(const pe_cpu_call *c) { return product_reads(c->pack, c->rows); }

static int64_t linear_scratch(const pe_cpu_call *c) {
  return rounded_floats(c) + product_scratch(c, (int32_t)c->rows);
}

const pe_cpu_op pe_cpu_packed_linear = {
    .run = linear_run, .work = linear_work, .reads = linear_reads, .scratch = linear_scratch};

/* ---- gated ----------------------------------------------------------------------------------- */

/* Columns of a strip: whole pairs of panels, and what is rounded together. */
static int64_t strip_of(const pe_cpu_call *c) {
  const int64_t least = c->result ? PE_INT16_UNIT : LEAST_STRIP;
  const int64_t columns = STRIP / (c->rows < 1 ? 1 : c->rows) / least * least;
  return columns < least ? least : columns;
}

/* Rows of a tile, columns from .. to - 1: activates gate and multiplies it with up. */
static void join_tile(const pe_cpu_call *c, pe_int16_tile t, int64_t from, int64_t to, float *gate,
                      const float *up) {
  const int64_t strip = strip_of(c);
  for (int64_t r = t.from; r < t.from + t.rows; r++) {
    float *y = gate + r * strip;
    c->prim->unary((pe_map_op)c->args.gated.activation, y, to - from, y);
    c->prim->binary(PE_MAP_MUL, y, up + r * strip, to - from,
                    c->result ? y : pe_cpu_row(&c->out, r) + from);
  }
  if (c->result)
    c->int16->quantize(c->result, gate - from, strip,
                       (pe_int16_part){t.from, t.from + t.rows, from, to});
}

static void gated_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const int64_t strip = strip_of(c);
  float *scratch = share->scratch + rounded_floats(c);
  float *up = scratch + product_scratch(c, (int32_t)c->rows), *first = up + c->rows * strip;
  pe_int16_rows own[2];
  const pe_int16_rows *x[2];
  round_inputs(c, share, own, x);
  pe_int16_product gate = {.w = c->pack, .x = x[0], .bias = c->vec[0], .out_step = strip};
  pe_int16_product other = {.w = c->pack2, .x = x[1], .bias = c->vec[1], .out_step = strip};
  int64_t from, to;
  part of;
  pe_cpu_range(share, blocks_of(c).count, &from, &to);
  const pe_int16_columns next = next_columns(share);
  while (next_part(c, &from, to, &of)) {
    gate.from_tile = other.from_tile = of.from_tile, gate.to_tile = other.to_tile = of.to_tile;
    for (int64_t col = of.from; col < of.to; col += strip) {
      const int64_t end = pe_cpu_least(col + strip, of.to);
      gate.out = first - col, other.out = up - col;
      gate.next = (pe_int16_columns){c->pack2, col, end};
      other.next =
          end < of.to ? (pe_int16_columns){c->pack, end, pe_cpu_least(end + strip, of.to)} : next;
      c->int16->product(&gate, col, end, scratch);
      c->int16->product(&other, col, end, scratch);
      for (int32_t t = of.from_tile; t < of.to_tile; t++)
        join_tile(c, pe_int16_tile_at(x[0], t), col, end, first, up);
    }
  }
}

static pe_cpu_work gated_work(const pe_cpu_call *c) {
  return (pe_cpu_work){blocks_of(c).count, time_of(c->pack, c->rows) + time_of(c->pack2, c->rows)};
}

static double gated_reads(const pe_cpu_call *c) {
  return product_reads(c->pack, c->rows) + product_reads(c->pack2, c->rows);
}

static int64_t gated_scratch(const pe_cpu_call *c) {
  return rounded_floats(c) + product_scratch(c, (int32_t)c->rows) + 2 * c->rows * strip_of(c);
}

const pe_cpu_op pe_cpu_packed_gated = {
    .run = gated_run, .work = gated_work, .reads = gated_reads, .scratch = gated_scratch};

/* ---- experts --------------------------------------------------------------------------------- */

/* Rows from .. to - 1 of the weights of one expert, for n pairs (row, rank). room: codes, results,
 * the results of a second product. */
static void expert_pairs(const pe_cpu_call *c, int32_t expert, const int32_t *pairs, int64_t n,
                         int64_t from, int64_t to, float *room) {
  const pe_expert_args *a = &c->args.expert;
  const pe_pack *w = c->pack + expert;
  const int64_t width = to - from;
  pe_int16_rows x;
  float *y = room + floats_of(pe_int16_bytes(PE_EXPERT_ROWS, a->in, w->act));
  float *up = y + PE_EXPERT_ROWS * width, *rest = up + (c->pack2 ? PE_EXPERT_ROWS * width : 0);
  rest += (FLOATS - (rest - room) % FLOATS) % FLOATS; /* to a cache line, like room */
  pe_int16_place(c->int16, (int32_t)n, a->in, w->act, room, &x);
  for (int32_t i = 0; i < n; i++)
    c->int16->quantize(&x, pe_expert_row(c, pairs[i]), 0, pe_int16_whole(&x, i, i + 1));
  pe_int16_product p = {.w = w, .x = &x, .out = y - from, .out_step = width};
  p.bias = pe_expert_bias(c, 0, expert);
  c->int16->product(&p, from, to, rest);
  if (c->pack2) {
    p.w = c->pack2 + expert, p.bias = pe_expert_bias(c, 1, expert), p.out = up - from;
    c->int16->product(&p, from, to, rest);
    pe_expert_gate(c, y, up, n * width);
  }
  pe_expert_scatter(c, pairs, n, y, from, width);
}

static void expert_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  pe_expert_each(c, share, PE_PACK_ROWS, expert_pairs);
}

static pe_cpu_work expert_work(const pe_cpu_call *c) {
  const pe_expert_args *a = &c->args.expert;
  const int64_t pairs = (int64_t)c->rows * a->chosen;
  const double experts = (double)pe_cpu_least(pairs, a->experts) * (c->pack2 ? 2 : 1);
  return (pe_cpu_work){pe_pack_panels(c->pack) * pairs, time_of(c->pack, 1) * experts};
}

static double expert_reads(const pe_cpu_call *c) {
  const pe_expert_args *a = &c->args.expert;
  const int64_t pairs = (int64_t)c->rows * a->chosen, each = (pairs + a->experts - 1) / a->experts;
  return (double)pe_cpu_least(pairs, a->experts) *
         (product_reads(c->pack, each) + (c->pack2 ? product_reads(c->pack2, each) : 0));
}

static int64_t expert_scratch(const pe_cpu_call *c) {
  const pe_expert_args *a = &c->args.expert;
  return floats_of(pe_int16_bytes(PE_EXPERT_ROWS, a->in, c->pack->act)) +
         (c->pack2 ? 2 : 1) * PE_EXPERT_ROWS * ((int64_t)a->out + PE_PACK_ROWS) + 2 * FLOATS +
         product_scratch(c, PE_EXPERT_ROWS);
}

static const pe_cpu_op expert_products = {
    .run = expert_run, .work = expert_work, .reads = expert_reads, .scratch = expert_scratch};
const pe_cpu_op pe_cpu_packed_expert = {.run = pe_expert_sort,
                                        .work = pe_expert_sort_work,
                                        .shared = pe_expert_shared,
                                        .then = &expert_products};
