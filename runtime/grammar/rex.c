/* rex.c - see rex.h: making terms. Each maker brings its term into a normal form before it looks it
 * up, so that the terms which derivatives reach stay few: operands of | and & are flat, sorted and
 * unique, x y leans to the right, and sets are merged. */
#include "runtime/grammar/rex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/grammar/rex_parts.h"
#include "runtime/hash.h"

/* ---- life ------------------------------------------------------------------------------------ */

pe_term pe_rex_fail(pe_rex *r, pe_status code, const char *format, ...) {
  if (r->status == PE_OK) {
    va_list args;
    va_start(args, format);
    r->status = code, r->failure.code = code;
    vsnprintf(r->failure.text, sizeof r->failure.text, format, args);
    va_end(args);
  }
  return PE_TERM_NONE;
}

static pe_term no_memory(pe_rex *r) {
  return pe_rex_fail(r, PE_ENOMEM, "out of memory: terms of a grammar");
}

pe_status pe_rex_status(const pe_rex *r, pe_error *err) {
  if (r->status != PE_OK && err) *err = r->failure;
  return r->status;
}

pe_status pe_rex_spend(pe_rex *r, uint64_t work, pe_error *err) {
  r->work += work;
  if (r->work > PE_REX_WORK)
    pe_rex_fail(r, PE_ELIMIT, "the grammar's classes of characters take more than %d units of work",
                PE_REX_WORK);
  return pe_rex_status(r, err);
}

/* ---- looking up ------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t h, uint64_t v) { return pe_hash_u64(h ^ v) + (h << 7); }

static uint64_t hash_of(const pe_rex *r, const pe_term_node *n, const pe_term *operands) {
  uint64_t h = mix(r->seed, n->kind);
  if (operands) {
    for (uint32_t i = 0; i < n->b; i++) h = mix(h, operands[i]);
    return h;
  }
  return mix(mix(mix(h, n->a), n->b), n->c);
}

static bool has_operands(const pe_term_node *n) {
  return n->kind == PE_TERM_IS_OR || n->kind == PE_TERM_IS_AND;
}

static bool is_same(const pe_rex *r, const pe_term_node *n, const pe_term *operands, pe_term t) {
  const pe_term_node *o = &r->node[t];
  if (o->kind != n->kind || o->b != n->b) return false;
  if (operands) return !memcmp(operands, r->arg + o->a, n->b * sizeof *operands);
  return o->a == n->a && o->c == n->c;
}

static bool grow_slots(pe_rex *r) {
  const size_t slots = r->slots ? 2 * r->slots : 256;
  uint32_t *slot = pe_calloc(slots, sizeof *slot);
  if (!slot) return false;
  for (size_t t = 1; t < r->nodes; t++) {
    const pe_term_node *n = &r->node[t];
    size_t i = hash_of(r, n, has_operands(n) ? r->arg + n->a : NULL) & (slots - 1);
    while (slot[i]) i = (i + 1) & (slots - 1);
    slot[i] = (uint32_t)t;
  }
  pe_free(r->slot);
  r->slot = slot, r->slots = slots;
  return true;
}

static bool add_operands(pe_rex *r, pe_term_node *n, const pe_term *operands) {
  if (pe_grow(&r->arg, &r->arg_cap, r->args + n->b, sizeof *r->arg, NULL) != PE_OK) return false;
  n->a = (uint32_t)r->args;
  memcpy(r->arg + r->args, operands, n->b * sizeof *operands);
  r->args += n->b;
  return true;
}

/* The term of a node; its operands, if it has some, are n->b terms. */
static pe_term intern(pe_rex *r, pe_term_node n, const pe_term *operands) {
  if (r->status != PE_OK) return PE_TERM_NONE;
  if (2 * (r->nodes + 1) > r->slots && !grow_slots(r)) return no_memory(r);
  size_t i = hash_of(r, &n, operands) & (r->slots - 1);
  for (; r->slot[i]; i = (i + 1) & (r->slots - 1))
    if (is_same(r, &n, operands, r->slot[i])) return r->slot[i];
  if (r->nodes >= r->limits.terms)
    return pe_rex_fail(r, PE_ELIMIT, "the grammar needs %zu terms or more, the limit is %u",
                       r->nodes + 1, r->limits.terms);
  const size_t most = 8 * (size_t)r->limits.terms;
  if (r->args > most)
    return pe_rex_fail(r, PE_ELIMIT, "the grammar's terms have %zu operands, the limit is %zu",
                       r->args, most);
  if (pe_grow(&r->node, &r->node_cap, r->nodes + 1, sizeof *r->node, NULL) != PE_OK ||
      (operands && !add_operands(r, &n, operands)))
    return no_memory(r);
  n.first = pe_rex_first(r, &n, operands);
  if (r->status != PE_OK) return PE_TERM_NONE;
  r->node[r->nodes] = n;
  r->slot[i] = (uint32_t)r->nodes;
  return (pe_term)r->nodes++;
}

pe_status pe_rex_open(pe_rex_limits limits, pe_rex **out, pe_error *err) {
  pe_rex *r = pe_calloc(1, sizeof *r);
  if (!r) return pe_nomem(err, "a grammar");
  r->limits = limits;
  /* Clients choose terms: they must not know where these fall in the table. */
  r->seed = pe_hash_u64((uint64_t)pe_clock_ns() ^ (uint64_t)(uintptr_t)r);
  if (pe_grow(&r->node, &r->node_cap, 3, sizeof *r->node, NULL) == PE_OK) {
    r->node[r->nodes++] = (pe_term_node){.kind = PE_TERM_IS_NONE};
    intern(r, (pe_term_node){.kind = PE_TERM_IS_EMPTY, .flags = PE_TERM_NULLABLE}, NULL);
    intern(r, (pe_term_node){.kind = PE_TERM_IS_NOT, .flags = PE_TERM_NULLABLE | PE_TERM_ALIVE},
           NULL);
  }
  if (r->nodes < 3) {
    pe_rex_close(r);
    return pe_nomem(err, "a grammar");
  }
  *out = r;
  return PE_OK;
}

void pe_rex_close(pe_rex *r) {
  if (!r) return;
  pe_free(r->node), pe_free(r->slot), pe_free(r->arg), pe_free(r->set), pe_free(r->set_slot);
  pe_free(r->first), pe_free(r->first_slot);
  pe_free(r->row_of), pe_free(r->row), pe_free(r->seen), pe_free(r->visit);
  pe_free(r);
}

uint32_t pe_rex_terms(const pe_rex *r) { return (uint32_t)r->nodes; }

uint64_t pe_rex_bytes(const pe_rex *r) {
  return sizeof *r + r->node_cap * sizeof *r->node + r->slots * sizeof *r->slot +
         r->arg_cap * sizeof *r->arg + r->set_cap * sizeof *r->set +
         r->set_slots * sizeof *r->set_slot + r->first_cap * sizeof *r->first +
         r->row_of_cap * sizeof *r->row_of + r->row_cap * sizeof *r->row +
         r->seen_cap * sizeof *r->seen + r->visit_cap * sizeof *r->visit;
}

bool pe_rex_nullable(const pe_rex *r, pe_term t) { return r->node[t].flags & PE_TERM_NULLABLE; }

/* ---- sets ------------------------------------------------------------------------------------ */

static bool is_full(const pe_byte_set *s) {
  return (s->bits[0] & s->bits[1] & s->bits[2] & s->bits[3]) == UINT64_MAX;
}

/* The slot of a set, or the free one for it. */
static size_t set_slot(const pe_rex *r, const pe_byte_set *set) {
  uint64_t h = r->seed;
  for (int k = 0; k < 4; k++) h = mix(h, set->bits[k]);
  size_t i = h & (r->set_slots - 1);
  while (r->set_slot[i] && memcmp(&r->set[r->set_slot[i] - 1], set, sizeof *set))
    i = (i + 1) & (r->set_slots - 1);
  return i;
}

static bool grow_set_slots(pe_rex *r) {
  const size_t slots = r->set_slots ? 2 * r->set_slots : 64;
  uint32_t *slot = pe_calloc(slots, sizeof *slot);
  if (!slot) return false;
  pe_free(r->set_slot);
  r->set_slot = slot, r->set_slots = slots;
  for (uint32_t i = 0; i < r->sets; i++) slot[set_slot(r, &r->set[i])] = i + 1;
  return true;
}

pe_term pe_rex_set(pe_rex *r, const pe_byte_set *set) {
  if (!(set->bits[0] | set->bits[1] | set->bits[2] | set->bits[3])) return PE_TERM_NONE;
  if (2 * (r->sets + 1) > r->set_slots && !grow_set_slots(r)) return no_memory(r);
  uint32_t *slot = &r->set_slot[set_slot(r, set)];
  if (!*slot) {
    if (pe_grow(&r->set, &r->set_cap, r->sets + 1, sizeof *set, NULL) != PE_OK) return no_memory(r);
    r->set[r->sets++] = *set;
    *slot = (uint32_t)r->sets;
  }
  return intern(r, (pe_term_node){.kind = PE_TERM_IS_SET, .a = *slot - 1}, NULL);
}

static pe_term byte_term(pe_rex *r, uint8_t byte) {
  pe_byte_set s = {{0}};
  s.bits[byte / 64] = UINT64_C(1) << byte % 64;
  return pe_rex_set(r, &s);
}

pe_term pe_rex_word(pe_rex *r, pe_str word) {
  pe_term t = PE_TERM_EMPTY;
  for (size_t i = word.len; i-- > 0;) t = pe_rex_cat(r, byte_term(r, (uint8_t)word.at[i]), t);
  return t;
}

/* Merges all sets of a list into one: their union, or what they have in common. */
static size_t merge_sets(pe_rex *r, pe_term *list, size_t n, bool together) {
  pe_byte_set s = {{0}};
  size_t kept = 0, sets = 0;
  for (size_t i = 0; i < n; i++) {
    const pe_term_node *node = &r->node[list[i]];
    if (node->kind != PE_TERM_IS_SET) {
      list[kept++] = list[i];
      continue;
    }
    for (int k = 0; k < 4; k++) {
      const uint64_t bits = r->set[node->a].bits[k];
      s.bits[k] = !sets ? bits : together ? s.bits[k] | bits : s.bits[k] & bits;
    }
    sets++;
  }
  if (sets) list[kept++] = pe_rex_set(r, &s);
  return kept;
}

/* ---- x y, x{m,n}, rem ------------------------------------------------------------------------ */

static uint8_t flags_of(const pe_rex *r, pe_term a, pe_term b) {
  const uint8_t x = r->node[a].flags, y = r->node[b].flags;
  return (uint8_t)((x & y & PE_TERM_NULLABLE) | ((x | y) & PE_TERM_HARD));
}

static bool is_star(const pe_rex *r, pe_term t) {
  const pe_term_node *n = &r->node[t];
  return t == PE_TERM_ALL || (n->kind == PE_TERM_IS_REP && n->b == 0 && n->c == PE_REX_FOREVER);
}

/* a is not a CAT. */
static pe_term cat_one(pe_rex *r, pe_term a, pe_term b) {
  if (a == PE_TERM_NONE || b == PE_TERM_NONE) return PE_TERM_NONE;
  if (a == PE_TERM_EMPTY) return b;
  if (b == PE_TERM_EMPTY) return a;
  const pe_term_node *n = &r->node[b];
  if (is_star(r, a) && (b == a || (n->kind == PE_TERM_IS_CAT && n->a == a))) return b; /* x* x* */
  return intern(r, (pe_term_node){a, b, 0, PE_TERM_IS_CAT, flags_of(r, a, b), 0}, NULL);
}

pe_term pe_rex_cat(pe_rex *r, pe_term a, pe_term b) {
  if (b == PE_TERM_EMPTY) return a; /* a may be long, and would be looked up part by part */
  pe_term few[32], *spine = few;
  size_t n = 0;
  for (pe_term t = a; r->node[t].kind == PE_TERM_IS_CAT; t = r->node[t].b) n++;
  if (n > sizeof few / sizeof *few && !(spine = pe_alloc(n * sizeof *spine))) return no_memory(r);
  n = 0;
  for (; r->node[a].kind == PE_TERM_IS_CAT; a = r->node[a].b) spine[n++] = r->node[a].a;
  b = cat_one(r, a, b);
  while (n > 0) b = cat_one(r, spine[--n], b);
  if (spine != few) pe_free(spine);
  return b;
}

pe_term pe_rex_repeat(pe_rex *r, pe_term a, uint32_t least, uint32_t most) {
  if (least > most) return PE_TERM_NONE;
  if (a == PE_TERM_NONE) return least ? PE_TERM_NONE : PE_TERM_EMPTY;
  if (a == PE_TERM_EMPTY || most == 0) return PE_TERM_EMPTY;
  if (pe_rex_nullable(r, a)) least = 0;
  if (is_star(r, a) || (least == 1 && most == 1)) return a;
  const pe_term_node *n = &r->node[a];
  if (n->kind == PE_TERM_IS_REP && n->b == 0 && n->c == 1) { /* (x?){m,n} */
    a = n->a, n = &r->node[a];
    if (most == 1 && least == 0)
      return intern(r,
                    (pe_term_node){a, 0, 1, PE_TERM_IS_REP,
                                   (uint8_t)(PE_TERM_NULLABLE | (n->flags & PE_TERM_HARD)), 0},
                    NULL);
  }
  if (least == 0 && most == PE_REX_FOREVER && n->kind == PE_TERM_IS_SET && is_full(&r->set[n->a]))
    return PE_TERM_ALL;
  const uint8_t flags = (uint8_t)((n->flags & PE_TERM_HARD) | (least == 0 ? PE_TERM_NULLABLE : 0));
  return intern(r, (pe_term_node){a, least, most, PE_TERM_IS_REP, flags, 0}, NULL);
}

/* Whether at most `most` digits make a multiple. With k digits all numbers from 0 to 10^k - 1 can
 * be added, so the distance to the next multiple must be below 10^k, which it is once the divisor
 * is not above that. */
static bool can_divide(uint64_t divisor, uint64_t rest, uint32_t most) {
  for (uint64_t numbers = 1;; numbers *= 10) {
    if ((divisor - rest * numbers % divisor) % divisor < numbers) return true;
    if (most-- == 0) return false;
  }
}

pe_term pe_rex_remainder(pe_rex *r, uint32_t divisor, uint32_t rest, uint32_t most) {
  if (!can_divide(divisor, rest, most)) return PE_TERM_NONE;
  for (uint8_t d = '0'; !r->frozen && d <= '9'; d++) byte_term(r, d); /* digits are classes */
  const uint8_t flags = rest == 0 ? PE_TERM_NULLABLE : 0;
  return intern(r, (pe_term_node){divisor, rest, most, PE_TERM_IS_REM, flags, 0}, NULL);
}

/* ---- x | y, x & y, not x --------------------------------------------------------------------- */

static int by_number(const void *a, const void *b) {
  const pe_term x = *(const pe_term *)a, y = *(const pe_term *)b;
  return (x > y) - (x < y);
}

/* Sorted, each once. */
static size_t sort_unique(pe_term *list, size_t n) {
  size_t kept = 0;
  qsort(list, n, sizeof *list, by_number);
  for (size_t i = 0; i < n; i++)
    if (kept == 0 || list[kept - 1] != list[i]) list[kept++] = list[i];
  return kept;
}

/* Operands of operands of the same kind; gives a new list, with room for one more. */
static pe_term *flatten(pe_rex *r, pe_term_kind kind, const pe_term *list, size_t *n) {
  size_t total = 0;
  for (size_t i = 0; i < *n; i++) total += r->node[list[i]].kind == kind ? r->node[list[i]].b : 1;
  pe_term *out = pe_alloc((total + 1) * sizeof *out);
  if (!out) {
    no_memory(r);
    return NULL;
  }
  total = 0;
  for (size_t i = 0; i < *n; i++) {
    const pe_term_node *node = &r->node[list[i]];
    if (node->kind != kind) {
      out[total++] = list[i];
      continue;
    }
    memcpy(out + total, r->arg + node->a, node->b * sizeof *out);
    total += node->b;
  }
  *n = total;
  return out;
}

/* What is left of the operands of |: `none` goes, and `empty` where another one is nullable. */
static size_t reduce_or(pe_rex *r, pe_term *list, size_t n) {
  bool nullable = false;
  size_t kept = 0;
  n = sort_unique(list, merge_sets(r, list, n, true));
  for (size_t i = 0; i < n; i++)
    if (list[i] != PE_TERM_EMPTY && pe_rex_nullable(r, list[i])) nullable = true;
  for (size_t i = 0; i < n; i++) {
    if (list[i] == PE_TERM_ALL) return list[0] = PE_TERM_ALL, 1;
    if (list[i] != PE_TERM_NONE && !(list[i] == PE_TERM_EMPTY && nullable)) list[kept++] = list[i];
  }
  return kept;
}

/* The same for &: `none`, `empty` and complements decide. */
static size_t reduce_and(pe_rex *r, pe_term *list, size_t n) {
  bool nullable = true, empty = false;
  size_t kept = 0;
  n = sort_unique(list, merge_sets(r, list, n, false));
  for (size_t i = 0; i < n; i++) {
    const pe_term_node *node = &r->node[list[i]];
    const pe_term *other =
        node->kind == PE_TERM_IS_NOT ? bsearch(&node->a, list, n, sizeof *list, by_number) : NULL;
    if (list[i] == PE_TERM_NONE || other) return list[0] = PE_TERM_NONE, 1;
    nullable = nullable && (node->flags & PE_TERM_NULLABLE), empty |= list[i] == PE_TERM_EMPTY;
    if (list[i] != PE_TERM_ALL) list[kept++] = list[i];
  }
  if (empty) return list[0] = nullable ? PE_TERM_EMPTY : PE_TERM_NONE, 1;
  return kept;
}

static pe_term combine(pe_rex *r, pe_term_kind kind, const pe_term *operands, size_t n) {
  pe_term *list = flatten(r, kind, operands, &n);
  if (!list) return PE_TERM_NONE;
  const bool is_or = kind == PE_TERM_IS_OR;
  n = is_or ? reduce_or(r, list, n) : reduce_and(r, list, n);
  pe_term out = n ? list[0] : is_or ? PE_TERM_NONE : PE_TERM_ALL;
  if (n > 1) {
    uint8_t any = 0, all = PE_TERM_NULLABLE;
    for (size_t i = 0; i < n; i++) any |= r->node[list[i]].flags, all &= r->node[list[i]].flags;
    const uint8_t flags =
        (uint8_t)(is_or ? any & (PE_TERM_NULLABLE | PE_TERM_HARD) : all | PE_TERM_HARD);
    out = intern(r, (pe_term_node){0, (uint32_t)n, 0, (uint8_t)kind, flags, 0}, list);
  }
  pe_free(list);
  return out;
}

pe_term pe_rex_or(pe_rex *r, const pe_term *list, size_t n) {
  return n == 1 ? list[0] : combine(r, PE_TERM_IS_OR, list, n);
}

pe_term pe_rex_and(pe_rex *r, const pe_term *list, size_t n) {
  return n == 1 ? list[0] : combine(r, PE_TERM_IS_AND, list, n);
}

pe_term pe_rex_not(pe_rex *r, pe_term a) {
  if (r->status != PE_OK) return PE_TERM_NONE; /* not `all` */
  const pe_term_node *n = &r->node[a];
  if (n->kind == PE_TERM_IS_NOT) return n->a;
  const uint8_t flags =
      (uint8_t)(PE_TERM_HARD | (n->flags & PE_TERM_NULLABLE ? 0 : PE_TERM_NULLABLE));
  return intern(r, (pe_term_node){.a = a, .kind = PE_TERM_IS_NOT, .flags = flags}, NULL);
}
