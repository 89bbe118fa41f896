/* packs.c - see packs.h. */
#include "runtime/weights/packs.h"

#include <pthread.h>
#include <string.h>

typedef struct entry {
  pe_quant_matrix first; /* of which it was made; its addresses are those of the mapped file */
  int32_t count, refs;
  uint64_t at, bytes; /* in memory */
  pe_pack *pack;      /* [count] */
  pe_buffer *memory;  /* shared with other entries */
} entry;

/* Packs share buffers, since most are smaller than a large page (2 MB): 32 of these lose little at
 * their ends, and what is not used takes no memory. */
enum { SHARED = 64 << 20 };

typedef struct pe_packs {
  pthread_mutex_t lock;
  entry *list;
  size_t count, cap;
  pe_buffer *room; /* the buffer that the next pack goes to; NULL: none yet */
  uint64_t used;   /* bytes of it */
} pe_packs;

/* ---- the list -------------------------------------------------------------------------------- */

static bool same(const pe_quant_matrix *a, const pe_quant_matrix *b) {
  return a->data == b->data && a->rows == b->rows && a->cols == b->cols &&
         a->row_bytes == b->row_bytes && a->scales == b->scales && a->global == b->global;
}

/* The packs of w, made at the first call; NULL: out of memory. Programs of one model may be opened
 * by several threads at once. */
static pe_packs *packs_of(pe_weights *w) {
  static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&making);
  if (!w->packs && (w->packs = pe_calloc(1, sizeof *w->packs)))
    pthread_mutex_init(&w->packs->lock, NULL);
  pe_packs *p = w->packs;
  pthread_mutex_unlock(&making);
  return p;
}

static entry *find(pe_packs *p, const pe_quant_matrix *m, int32_t count) {
  for (size_t i = 0; i < p->count; i++)
    if (p->list[i].count == count && same(&p->list[i].first, m)) return &p->list[i];
  return NULL;
}

static void free_entry(entry *e) {
  if (e->memory) pe_buffer_discard(e->memory, e->at, e->bytes);
  pe_buffer_release(e->memory);
  pe_free(e->pack);
}

/* Gives e its bytes. */
static pe_status place(pe_packs *p, entry *e, pe_error *err) {
  if (!p->room || p->room->size - p->used < e->bytes) {
    pe_buffer *room;
    pe_status rc = pe_buffer_reserve(e->bytes > SHARED ? e->bytes : SHARED, &room, err);
    if (rc) return rc;
    pe_buffer_large_pages(room);
    pe_buffer_release(p->room);
    p->room = room, p->used = 0;
  }
  e->memory = pe_buffer_retain(p->room), e->at = p->used;
  p->used += e->bytes;
  return PE_OK;
}

/* ---- packing --------------------------------------------------------------------------------- */

typedef struct packing {
  const pe_pack *pack;
  const pe_quant_matrix *m;
  int64_t panels; /* of one matrix */
  int32_t count;
} packing;

static void pack_task(void *ctx, int task, int tasks) {
  const packing *p = ctx;
  const int64_t all = p->panels * p->count;
  int64_t from = all * task / tasks, to = all * (task + 1) / tasks;
  while (from < to) {
    const int64_t i = from / p->panels, first = from % p->panels;
    const int64_t n = p->panels - first < to - from ? p->panels - first : to - from;
    pe_pack_fill(&p->pack[i], &p->m[i], first, first + n);
    from += n;
  }
}

static pe_status make(pe_packs *packs, entry *e, const pe_quant_matrix *m, int32_t count,
                      pe_pool *pool, pe_error *err) {
  const uint64_t each = pe_pack_bytes(m);
  *e = (entry){.first = *m, .count = count, .refs = 1, .bytes = each * (uint64_t)count};
  e->pack = pe_calloc((size_t)count, sizeof *e->pack);
  if (!e->pack) return pe_nomem(err, "packed weights");
  pe_status rc = place(packs, e, err);
  if (rc) return rc;
  for (int32_t i = 0; i < count; i++) {
    pe_pack_describe(&m[i], &e->pack[i]);
    e->pack[i].data = e->memory->data + e->at + each * (uint64_t)i;
  }
  packing p = {e->pack, m, pe_pack_panels(e->pack), count};
  const int64_t all = p.panels * count, most = (int64_t)pe_pool_threads(pool) * 8;
  pe_pool_run(pool, pack_task, &p, (int)(all < most ? all : most));
  return PE_OK;
}

/* Drops the pages of what was packed. */
static void forget(const pe_weights *w, const pe_quant_matrix *m, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    pe_weights_forget(w, m[i].data, (uint64_t)m[i].rows * m[i].row_bytes);
    if (m[i].scales) pe_weights_forget(w, m[i].scales, (uint64_t)m[i].rows * m[i].scale_bytes);
    if (m[i].biases) pe_weights_forget(w, m[i].biases, (uint64_t)m[i].rows * m[i].scale_bytes);
  }
}

pe_status pe_packs_take(pe_weights *w, const pe_quant_matrix *m, int32_t count, pe_pool *pool,
                        const pe_pack **out, pe_error *err) {
  pe_packs *p = packs_of(w);
  if (!p) return pe_nomem(err, "packed weights");
  pe_status rc = PE_OK;
  pthread_mutex_lock(&p->lock);
  entry *e = find(p, m, count);
  if (e) {
    e->refs++;
  } else {
    entry made = {0};
    rc = pe_grow(&p->list, &p->cap, p->count + 1, sizeof *p->list, err);
    if (!rc) rc = make(p, &made, m, count, pool, err);
    if (!rc) rc = pe_weights_intact(w, err); /* a lost file would leave zeros in the pack */
    if (rc) {
      free_entry(&made);
    } else {
      forget(w, m, count);
      e = &p->list[p->count++];
      *e = made;
    }
  }
  if (!rc) *out = e->pack;
  pthread_mutex_unlock(&p->lock);
  return rc;
}

void pe_packs_give(pe_weights *w, const pe_pack *pack) {
  pe_packs *p = w->packs;
  if (!pack) return;
  pthread_mutex_lock(&p->lock);
  for (size_t i = 0; i < p->count; i++)
    if (p->list[i].pack == pack && !--p->list[i].refs) {
      free_entry(&p->list[i]);
      p->list[i] = p->list[--p->count];
      break;
    }
  pthread_mutex_unlock(&p->lock);
}

uint64_t pe_packs_bytes(pe_weights *w) {
  uint64_t bytes = 0;
  pe_packs *p = packs_of(w);
  if (!p) return 0;
  pthread_mutex_lock(&p->lock);
  for (size_t i = 0; i < p->count; i++) bytes += p->list[i].bytes;
  pthread_mutex_unlock(&p->lock);
  return bytes;
}

void pe_packs_close(pe_weights *w) {
  pe_packs *p = w->packs;
  if (!p) return;
  for (size_t i = 0; i < p->count; i++) free_entry(&p->list[i]);
  pe_buffer_release(p->room);
  pthread_mutex_destroy(&p->lock);
  pe_free(p->list), pe_free(p);
  w->packs = NULL;
}
