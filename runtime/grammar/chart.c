/* chart.c - see chart.h. */
#include "runtime/grammar/chart.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/hash.h"

/* A rule that was predicted in the row that is being made. */
typedef struct predicted {
  uint64_t number;
  uint32_t rule;
  uint32_t waiting; /* the last item that waits for it: index + 1 of `todo`; chain: `before` */
  bool empty;       /* it was completed in this very row */
} predicted;

struct pe_chart {
  pe_grammar *g;
  pe_row *row;
  size_t rows, row_cap;
  pe_item *item;
  uint32_t *leo; /* beside the items that wait: LEO_..., or the item at the end of the chain */
  size_t items, item_cap, leo_cap;
  pe_item *kernel;
  size_t kernels, kernel_cap;
  uint32_t *slot; /* hash table of rows: row + 1 */
  size_t slots;
  /* the row that is being made */
  pe_item *todo;
  uint32_t *before; /* beside them: the item before that waits for the same rule, index + 1 */
  size_t todos, todo_cap, before_cap;
  uint32_t *seen; /* hash table of todo: index + 1 */
  size_t seen_slots;
  predicted *rule;
  size_t predictions, rule_cap;
  uint32_t *rule_slot; /* hash table of rule: index + 1 */
  size_t rule_slots;
  uint32_t *lexeme; /* that may come */
  size_t lexemes, lexeme_cap;
  size_t work;
  bool complete;
};

enum { LEO_UNKNOWN = UINT32_MAX - 1 };
#define LEO_NO UINT32_MAX

static pe_status no_memory(pe_error *err) { return pe_nomem(err, "rows of a grammar"); }

static uint64_t mix(uint64_t a, uint64_t b) { return pe_hash_u64(a ^ pe_hash_u64(b) * 3); }

static uint64_t hash_item(const pe_item *i) {
  return mix((uint64_t)i->place << 32 | i->origin, i->number);
}

/* ---- life ------------------------------------------------------------------------------------ */

void pe_chart_close(pe_chart *c) {
  if (!c) return;
  pe_free(c->row), pe_free(c->item), pe_free(c->leo), pe_free(c->kernel), pe_free(c->slot);
  pe_free(c->todo), pe_free(c->before), pe_free(c->seen), pe_free(c->rule), pe_free(c->rule_slot);
  pe_free(c->lexeme);
  pe_free(c);
}

uint32_t pe_chart_rows(const pe_chart *c) { return (uint32_t)c->rows; }
const pe_row *pe_chart_row(const pe_chart *c, uint32_t row) { return &c->row[row]; }

uint64_t pe_chart_bytes(const pe_chart *c) {
  return sizeof *c + c->row_cap * sizeof *c->row + c->item_cap * sizeof *c->item +
         c->leo_cap * sizeof *c->leo + c->kernel_cap * sizeof *c->kernel +
         (c->slots + c->seen_slots + c->rule_slots) * sizeof *c->slot +
         c->todo_cap * sizeof *c->todo + c->before_cap * sizeof *c->before +
         c->rule_cap * sizeof *c->rule + c->lexeme_cap * sizeof *c->lexeme;
}

uint64_t pe_chart_used(const pe_chart *c) {
  return c->rows * sizeof *c->row + c->items * (sizeof *c->item + sizeof *c->leo) +
         c->kernels * sizeof *c->kernel;
}

/* A copy of n elements in an array with room for `cap`; NULL: no memory. */
static void *copied(const void *from, size_t n, size_t size, size_t *cap) {
  void *p = pe_alloc((n + 1) * size);
  if (p && n) memcpy(p, from, n * size);
  *cap = n + 1;
  return p;
}

pe_status pe_chart_copy(const pe_chart *from, pe_chart **out, pe_error *err) {
  pe_chart *c = pe_calloc(1, sizeof *c);
  if (!c) return no_memory(err);
  c->g = from->g;
  c->rows = from->rows, c->items = from->items, c->kernels = from->kernels;
  c->row = copied(from->row, c->rows, sizeof *c->row, &c->row_cap);
  c->item = copied(from->item, c->items, sizeof *c->item, &c->item_cap);
  c->leo = copied(from->leo, c->items, sizeof *c->leo, &c->leo_cap);
  c->kernel = copied(from->kernel, c->kernels, sizeof *c->kernel, &c->kernel_cap);
  size_t slots;
  c->slot = copied(from->slot, from->slots, sizeof *c->slot, &slots);
  c->slots = from->slots;
  if (c->row && c->item && c->leo && c->kernel && c->slot) {
    *out = c;
    return PE_OK;
  }
  pe_chart_close(c);
  return no_memory(err);
}

/* ---- rows by their kernel -------------------------------------------------------------------- */

static uint64_t hash_kernel(const pe_item *k, size_t n) { return pe_hash(k, n * sizeof *k); }

static size_t slot_of(const pe_chart *c, size_t row) {
  const pe_row *r = &c->row[row];
  size_t i = hash_kernel(c->kernel + r->kernel, r->kernels) & (c->slots - 1);
  while (c->slot[i] && c->slot[i] != row + 1) i = (i + 1) & (c->slots - 1);
  return i;
}

static bool grow_slots(pe_chart *c) {
  const size_t slots = c->slots ? 2 * c->slots : 64;
  uint32_t *slot = pe_calloc(slots, sizeof *slot);
  if (!slot) return false;
  pe_free(c->slot);
  c->slot = slot, c->slots = slots;
  for (size_t r = 0; r < c->rows; r++) c->slot[slot_of(c, r)] = (uint32_t)r + 1;
  return true;
}

static uint32_t find_row(const pe_chart *c, const pe_item *k, size_t n) {
  size_t i = hash_kernel(k, n) & (c->slots - 1);
  for (; c->slot[i]; i = (i + 1) & (c->slots - 1)) {
    const pe_row *r = &c->row[c->slot[i] - 1];
    if (r->kernels == n && !memcmp(c->kernel + r->kernel, k, n * sizeof *k)) return c->slot[i] - 1;
  }
  return PE_CHART_NONE;
}

/* ---- dropping rows --------------------------------------------------------------------------- */

/* Items began in their own row or in older ones. */
static void mark_needed(const pe_chart *c, uint32_t *keep) {
  for (size_t r = c->rows; r-- > 0;) {
    if (!keep[r]) continue;
    const pe_row *row = &c->row[r];
    for (uint32_t i = 0; i < row->waiting + row->scanning; i++)
      keep[c->item[row->first + i].origin] = 1;
    for (uint32_t i = 0; i < row->kernels; i++) keep[c->kernel[row->kernel + i].origin] = 1;
  }
}

/* Moves items to the front of their array, which they never overtake. */
static void move_items(pe_item *all, size_t *n, uint32_t from, uint32_t count,
                       const uint32_t *number) {
  for (uint32_t i = 0; i < count; i++) {
    pe_item item = all[from + i];
    item.origin = number[item.origin];
    all[(*n)++] = item;
  }
}

static void move_row(pe_chart *c, pe_row r, const uint32_t *number) {
  const uint32_t items = r.waiting + r.scanning;
  pe_row *to = &c->row[c->rows++];
  *to = r;
  to->first = (uint32_t)c->items, to->kernel = (uint32_t)c->kernels;
  for (uint32_t i = 0; i < items; i++)
    c->leo[c->items + i] = i < r.waiting ? LEO_UNKNOWN : LEO_NO; /* items are numbered anew */
  move_items(c->item, &c->items, r.first, items, number);
  move_items(c->kernel, &c->kernels, r.kernel, r.kernels, number);
}

void pe_chart_compact(pe_chart *c, uint32_t *row) {
  const size_t rows = c->rows;
  uint32_t kept = 0;
  mark_needed(c, row);
  row[PE_CHART_FIRST] = 0; /* it stays, and keeps its number; of others 0 means that they go */
  for (size_t r = 1; r < rows; r++)
    if (row[r]) row[r] = ++kept;
  c->rows = c->items = c->kernels = 0;
  for (size_t r = 0; r < rows; r++)
    if (r == PE_CHART_FIRST || row[r]) move_row(c, c->row[r], row);
  memset(c->slot, 0, c->slots * sizeof *c->slot);
  for (size_t r = 0; r < c->rows; r++) c->slot[slot_of(c, r)] = (uint32_t)r + 1;
}

/* ---- making a row ---------------------------------------------------------------------------- */

static bool grow_seen(pe_chart *c) {
  const size_t slots = c->seen_slots ? 2 * c->seen_slots : 64;
  uint32_t *seen = pe_calloc(slots, sizeof *seen);
  if (!seen) return false;
  for (size_t t = 0; t < c->todos; t++) {
    size_t i = hash_item(&c->todo[t]) & (slots - 1);
    while (seen[i]) i = (i + 1) & (slots - 1);
    seen[i] = (uint32_t)t + 1;
  }
  pe_free(c->seen);
  c->seen = seen, c->seen_slots = slots;
  return true;
}

static pe_status add(pe_chart *c, pe_item item, pe_error *err) {
  if (++c->work > PE_CHART_WORK)
    return pe_fail(err, PE_ELIMIT, "the grammar needs more than %d items for one byte",
                   PE_CHART_WORK);
  if (2 * (c->todos + 1) > c->seen_slots && !grow_seen(c)) return no_memory(err);
  size_t i = hash_item(&item) & (c->seen_slots - 1);
  for (; c->seen[i]; i = (i + 1) & (c->seen_slots - 1)) {
    const pe_item *t = &c->todo[c->seen[i] - 1];
    if (t->place == item.place && t->origin == item.origin && t->number == item.number)
      return PE_OK;
  }
  pe_status rc = pe_grow(&c->todo, &c->todo_cap, c->todos + 1, sizeof *c->todo, err);
  if (!rc) rc = pe_grow(&c->before, &c->before_cap, c->todos + 1, sizeof *c->before, err);
  if (rc) return rc;
  c->todo[c->todos] = item, c->before[c->todos] = 0;
  c->seen[i] = (uint32_t)++c->todos;
  return PE_OK;
}

static pe_item moved(pe_item i) { return (pe_item){i.place + 1, i.origin, i.number}; }

/* ---- predicting ------------------------------------------------------------------------------ */

static size_t rule_slot_of(const pe_chart *c, uint32_t rule, uint64_t number) {
  size_t i = mix(rule, number) & (c->rule_slots - 1);
  for (; c->rule_slot[i]; i = (i + 1) & (c->rule_slots - 1)) {
    const predicted *p = &c->rule[c->rule_slot[i] - 1];
    if (p->rule == rule && p->number == number) break;
  }
  return i;
}

static bool grow_rules(pe_chart *c) {
  const size_t slots = c->rule_slots ? 2 * c->rule_slots : 64;
  uint32_t *slot = pe_calloc(slots, sizeof *slot);
  if (!slot) return false;
  pe_free(c->rule_slot);
  c->rule_slot = slot, c->rule_slots = slots;
  for (size_t p = 0; p < c->predictions; p++)
    slot[rule_slot_of(c, c->rule[p].rule, c->rule[p].number)] = (uint32_t)p + 1;
  return true;
}

static pe_status begin_rule(pe_chart *c, uint32_t rule, uint64_t number, pe_error *err) {
  const pe_grammar *g = c->g;
  pe_status rc = PE_OK;
  for (uint32_t a = g->first_alt[rule]; !rc && a < g->first_alt[rule + 1]; a++)
    if (pe_grammar_is_open(g, &g->alt[a], number))
      rc = add(c, (pe_item){g->alt[a].place, (uint32_t)c->rows, number}, err);
  return rc;
}

static pe_status predict(pe_chart *c, size_t t, uint32_t rule, pe_error *err) {
  const pe_item item = c->todo[t];
  const uint64_t number = pe_grammar_changed(c->g, item.place, item.number);
  if (2 * (c->predictions + 1) > c->rule_slots && !grow_rules(c)) return no_memory(err);
  const size_t i = rule_slot_of(c, rule, number);
  if (c->rule_slot[i]) {
    predicted *p = &c->rule[c->rule_slot[i] - 1];
    c->before[t] = p->waiting, p->waiting = (uint32_t)t + 1;
    return p->empty ? add(c, moved(item), err) : PE_OK;
  }
  pe_status rc = pe_grow(&c->rule, &c->rule_cap, c->predictions + 1, sizeof *c->rule, err);
  if (rc) return rc;
  c->rule[c->predictions++] = (predicted){number, rule, (uint32_t)t + 1, false};
  c->rule_slot[i] = (uint32_t)c->predictions;
  return begin_rule(c, rule, number, err);
}

/* ---- completing ------------------------------------------------------------------------------ */

/* The rule began in the row that is being made: it is empty. */
static pe_status complete_here(pe_chart *c, uint32_t rule, uint64_t number, pe_error *err) {
  const size_t i = rule_slot_of(c, rule, number);
  pe_status rc = PE_OK;
  predicted *p = &c->rule[c->rule_slot[i] - 1];
  if (p->empty) return PE_OK;
  p->empty = true;
  for (uint32_t w = p->waiting; !rc && w; w = c->before[w - 1])
    rc = add(c, moved(c->todo[w - 1]), err);
  return rc;
}

/* The rule and number that an item waits for. */
static uint32_t rule_after(const pe_chart *c, const pe_item *i, uint64_t *number) {
  *number = pe_grammar_changed(c->g, i->place, i->number);
  return pe_code_index(c->g->code[i->place]);
}

static int by_rule(uint32_t r, uint64_t n, uint32_t rule, uint64_t number) {
  return r != rule ? (r > rule) - (r < rule) : (n > number) - (n < number);
}

/* The items of a row that wait for a rule: from the first one, *n of them. */
static uint32_t find_waiting(const pe_chart *c, uint32_t row, uint32_t rule, uint64_t number,
                             uint32_t *n) {
  const pe_row *r = &c->row[row];
  uint32_t low = r->first, high = r->first + r->waiting, end = high;
  uint64_t v;
  while (low < high) {
    const uint32_t mid = low + (high - low) / 2, x = rule_after(c, &c->item[mid], &v);
    if (by_rule(x, v, rule, number) < 0)
      low = mid + 1;
    else
      high = mid;
  }
  *n = 0;
  while (low + *n < end) {
    const uint32_t x = rule_after(c, &c->item[low + *n], &v);
    if (x != rule || v != number) break;
    ++*n;
  }
  return low;
}

/* The next link of a chain: the single item that waits for what `item` completes, if nothing is
 * after it; LEO_NO: the chain ends. */
static uint32_t next_link(const pe_chart *c, uint32_t item) {
  const pe_item *i = &c->item[item];
  uint32_t n;
  const uint32_t rule = pe_code_index(c->g->code[i->place + 1]);
  const uint32_t w = find_waiting(c, i->origin, rule, i->number, &n);
  return n == 1 && pe_code_kind(c->g->code[c->item[w].place + 1]) == PE_IS_END ? w : LEO_NO;
}

/* Follows a chain to its end, or to an item that knows it: *last. False: it goes in a circle, which
 * happens within one row only, since items of another one are older. */
static bool follow_chain(const pe_chart *c, uint32_t item, uint32_t *last, uint32_t *end) {
  uint32_t here = 0, at = item; /* links since the chain came to a row */
  for (; c->leo[at] == LEO_UNKNOWN; here++) {
    const pe_row *row = &c->row[c->item[at].origin];
    const uint32_t next = next_link(c, at);
    if (next == LEO_NO) return *last = *end = at, true;
    if (at >= row->first + row->waiting) here = 0; /* it leads to an older row */
    if (here > row->waiting) return false;
    at = next;
  }
  return *last = at, *end = c->leo[at], true;
}

/* The end of the chain that begins with an item, which waits alone and is the last of its
 * alternative. Remembered for all items on the way. */
static uint32_t chain_end(pe_chart *c, uint32_t item) {
  uint32_t last, end;
  if (!follow_chain(c, item, &last, &end)) return c->leo[item] = item;
  for (uint32_t at = item; c->leo[at] == LEO_UNKNOWN; at = next_link(c, at)) {
    c->leo[at] = end;
    if (at == last) break;
  }
  return end;
}

static pe_status complete(pe_chart *c, uint32_t origin, uint32_t rule, uint64_t number,
                          pe_error *err) {
  uint32_t n;
  pe_status rc = PE_OK;
  uint32_t w = find_waiting(c, origin, rule, number, &n);
  if (n == 1 && pe_code_kind(c->g->code[c->item[w].place + 1]) == PE_IS_END) w = chain_end(c, w);
  for (uint32_t i = 0; !rc && i < n; i++) rc = add(c, moved(c->item[w + i]), err);
  return rc;
}

/* ---- the row --------------------------------------------------------------------------------- */

static pe_status advance(pe_chart *c, size_t t, pe_error *err) {
  const pe_item item = c->todo[t];
  const pe_code code = c->g->code[item.place];
  const uint32_t index = pe_code_index(code);
  switch (pe_code_kind(code)) {
  case PE_IS_RULE: return predict(c, t, index, err);
  case PE_IS_LEXEME: return c->g->nullable[index] ? add(c, moved(item), err) : PE_OK;
  case PE_IS_END:
    if (index == 0) return c->complete = true, PE_OK;
    return item.origin == c->rows ? complete_here(c, index, item.number, err)
                                  : complete(c, item.origin, index, item.number, err);
  default: return PE_OK;
  }
}

static int compare_u64(uint64_t a, uint64_t b) { return (a > b) - (a < b); }

static int by_item(const void *a, const void *b) {
  const pe_item *x = a, *y = b;
  int k = compare_u64(x->place, y->place);
  if (!k) k = compare_u64(x->origin, y->origin);
  return k ? k : compare_u64(x->number, y->number);
}

/* Writes the items that wait for rules, in order: by prediction, which are sorted first. */
static int by_prediction(const void *a, const void *b) {
  const predicted *x = a, *y = b;
  return by_rule(x->rule, x->number, y->rule, y->number);
}

static void write_waiting(pe_chart *c, pe_row *r) {
  if (c->predictions) qsort(c->rule, c->predictions, sizeof *c->rule, by_prediction);
  for (size_t p = 0; p < c->predictions; p++)
    for (uint32_t w = c->rule[p].waiting; w; w = c->before[w - 1]) {
      c->leo[c->items] = LEO_UNKNOWN;
      c->item[c->items++] = c->todo[w - 1];
      r->waiting++;
    }
}

typedef struct scanned { /* an item before a lexeme or token, to be sorted by it */
  pe_item item;
  pe_code code;
} scanned;

static int by_code(const void *a, const void *b) {
  return compare_u64(((const scanned *)a)->code, ((const scanned *)b)->code);
}

static pe_status write_scanning(pe_chart *c, pe_row *r, pe_error *err) {
  scanned few[64], *list = few;
  size_t n = 0;
  if (c->todos > sizeof few / sizeof *few && !(list = pe_alloc(c->todos * sizeof *list)))
    return no_memory(err);
  for (size_t t = 0; t < c->todos; t++) {
    const pe_code code = c->g->code[c->todo[t].place];
    const uint32_t kind = pe_code_kind(code);
    if (kind == PE_IS_LEXEME || kind == PE_IS_TOKEN) list[n++] = (scanned){c->todo[t], code};
  }
  qsort(list, n, sizeof *list, by_code);
  c->lexemes = 0;
  for (size_t i = 0; i < n; i++) {
    c->leo[c->items] = LEO_NO;
    c->item[c->items++] = list[i].item;
    if (pe_code_kind(list[i].code) == PE_IS_TOKEN)
      r->has_token = true;
    else if (i == 0 || list[i - 1].code != list[i].code)
      c->lexeme[c->lexemes++] = pe_code_index(list[i].code);
  }
  r->scanning = (uint32_t)n;
  if (list != few) pe_free(list);
  return PE_OK;
}

static pe_status make_room(pe_chart *c, size_t kernels, pe_error *err) {
  if (2 * (c->rows + 1) > c->slots && !grow_slots(c)) return no_memory(err);
  pe_status rc = pe_grow(&c->row, &c->row_cap, c->rows + 1, sizeof *c->row, err);
  const size_t items = c->items + c->todos;
  if (!rc) rc = pe_grow(&c->item, &c->item_cap, items + 1, sizeof *c->item, err);
  if (!rc) rc = pe_grow(&c->leo, &c->leo_cap, items + 1, sizeof *c->leo, err);
  if (!rc)
    rc = pe_grow(&c->kernel, &c->kernel_cap, c->kernels + kernels + 1, sizeof *c->kernel, err);
  if (!rc) rc = pe_grow(&c->lexeme, &c->lexeme_cap, c->todos + 1, sizeof *c->lexeme, err);
  return rc;
}

/* Writes the row that is closed; its kernel is the first `kernels` of todo. */
static pe_status write_row(pe_chart *c, size_t kernels, uint32_t *out, pe_error *err) {
  pe_status rc = make_room(c, kernels, err);
  if (rc) return rc;
  const size_t first = c->items;
  pe_row *r = &c->row[c->rows];
  *r = (pe_row){.first = (uint32_t)first,
                .kernel = (uint32_t)c->kernels,
                .kernels = (uint32_t)kernels,
                .complete = c->complete};
  write_waiting(c, r);
  rc = write_scanning(c, r, err);
  if (!rc) {
    r->start = pe_lexer_start(c->g->lexer, c->lexeme, c->lexemes);
    rc = pe_lexer_status(c->g->lexer, err);
  }
  *out = PE_CHART_NONE;
  if (rc || (!r->complete && !r->has_token && !c->lexemes)) { /* a dead end */
    c->items = first;
    return rc;
  }
  memcpy(c->kernel + c->kernels, c->todo, kernels * sizeof *c->todo);
  c->kernels += kernels;
  c->slot[slot_of(c, c->rows)] = (uint32_t)c->rows + 1;
  *out = (uint32_t)c->rows++;
  return PE_OK;
}

static void clear(pe_chart *c) {
  if (c->todos) memset(c->seen, 0, c->seen_slots * sizeof *c->seen);
  if (c->predictions) memset(c->rule_slot, 0, c->rule_slots * sizeof *c->rule_slot);
  c->todos = c->predictions = c->work = 0;
  c->complete = false;
}

/* The row whose kernel is all of todo. */
static pe_status close_row(pe_chart *c, uint32_t *row, pe_error *err) {
  const size_t kernels = c->todos;
  pe_status rc = PE_OK;
  for (size_t t = 0; !rc && t < c->todos; t++) rc = advance(c, t, err);
  return rc ? rc : write_row(c, kernels, row, err);
}

/* ---- from outside ---------------------------------------------------------------------------- */

pe_status pe_chart_open(pe_grammar *g, pe_chart **out, pe_error *err) {
  pe_chart *c = pe_calloc(1, sizeof *c);
  if (!c) return no_memory(err);
  c->g = g;
  uint32_t row;
  pe_status rc = add(c, (pe_item){0, 0, 0}, err);
  if (!rc) rc = close_row(c, &row, err);
  if (!rc && row == PE_CHART_NONE) rc = pe_fail(err, PE_EUNSATISFIABLE, "no text fits the grammar");
  if (rc)
    pe_chart_close(c);
  else
    *out = c;
  return rc;
}

/* Items of a row that wait for a lexeme or token. */
static pe_status scan_one(pe_chart *c, const pe_row *r, pe_code code, pe_error *err) {
  uint32_t low = r->first + r->waiting, end = low + r->scanning, high = end;
  pe_status rc = PE_OK;
  while (low < high) {
    const uint32_t mid = low + (high - low) / 2;
    if (c->g->code[c->item[mid].place] < code)
      low = mid + 1;
    else
      high = mid;
  }
  for (; !rc && low < end && c->g->code[c->item[low].place] == code; low++)
    rc = add(c, moved(c->item[low]), err);
  return rc;
}

pe_status pe_chart_scan(pe_chart *c, const pe_chart_end *scan, size_t n, uint32_t *row,
                        pe_error *err) {
  pe_status rc = PE_OK;
  *row = PE_CHART_NONE;
  clear(c);
  for (size_t s = 0; s < n; s++)
    for (size_t i = 0; !rc && i < scan[s].n; i++)
      rc = scan_one(c, &c->row[scan[s].row], pe_code_of(scan[s].kind, scan[s].index[i]), err);
  if (rc || !c->todos) return rc;
  qsort(c->todo, c->todos, sizeof *c->todo, by_item);
  *row = find_row(c, c->todo, c->todos);
  if (*row != PE_CHART_NONE) return PE_OK;
  memset(c->seen, 0, c->seen_slots * sizeof *c->seen); /* todo has moved */
  const size_t kernels = c->todos;
  c->todos = 0;
  for (size_t i = 0; !rc && i < kernels; i++) rc = add(c, c->todo[i], err);
  return rc ? rc : close_row(c, row, err);
}

void pe_chart_tokens(const pe_chart *c, uint32_t row, void (*f)(void *to, int32_t id), void *to) {
  const pe_row *r = &c->row[row];
  for (uint32_t i = r->first + r->waiting; i < r->first + r->waiting + r->scanning; i++) {
    const pe_code code = c->g->code[c->item[i].place];
    if (pe_code_kind(code) == PE_IS_TOKEN) f(to, (int32_t)pe_code_index(code));
  }
}
