/* test_metal_steps.c - steps of Metal's host against the fake: several on the GPU at once, closed
 * on the way, and encoded ahead for memory that has moved since. */
#include "fake_help.h"
#include "little_metal.h"

enum { LONG = 100 }; /* tokens */

static fake_control fake;

typedef struct walker { /* a model with a sequence */
  little l;
  pe_seq s;
  pe_run run;
} walker;

static void walker_open(walker *w) {
  pe_error err;
  CHECK_OK(open_on(&w->l, &pe_backend_metal, &err), err);
  CHECK_OK(pe_seq_open(&w->s, w->l.kv, w->l.recur, &err), err);
}

static void walker_submit(walker *w, int32_t id) {
  pe_error err;
  CHECK_OK(pe_seq_append(&w->s, &id, 1, &err), err);
  CHECK_OK(pe_seq_run(&w->s, 1, 1, &w->run, &err), err);
  CHECK_OK(pe_device_submit(w->l.device, &w->run, 1, &err), err);
}

static void walker_take(walker *w, float *logits) {
  memcpy(logits, pe_device_logits(w->l.device, 0), VOCABULARY * sizeof *logits);
  pe_seq_advance(&w->s, 1);
}

/* Two devices have steps on the GPU at once. A wait that ends before the step leaves it alone. */
static void test_in_flight(void) {
  enum { TOKENS = 6 };
  static float want[TOKENS][VOCABULARY], got[2][TOKENS][VOCABULARY];
  walker w[2];
  pe_error err;
  bool done;
  walker_open(&w[0]);
  for (int32_t i = 0; i < TOKENS; i++) {
    walker_submit(&w[0], i * 5 % VOCABULARY);
    CHECK_OK(pe_device_wait(w[0].l.device, &err), err);
    walker_take(&w[0], want[i]);
  }
  pe_seq_close(&w[0].s), little_close(&w[0].l);
  walker_open(&w[0]), walker_open(&w[1]);
  for (int32_t i = 0; i < TOKENS; i++) {
    for (int k = 0; k < 2; k++) walker_submit(&w[k], i * 5 % VOCABULARY);
    CHECK_INT(fake.in_flight(), 2);
    fake.set_late(2);
    for (int k = 0; k < 2; k++) { /* the clock has passed already */
      CHECK_OK(pe_device_proceed(w[k].l.device, 0, &done, &err), err);
      CHECK(!done);
    }
    CHECK_INT(fake.in_flight(), 2);
    for (int k = 1; k >= 0; k--) { /* the later one first */
      CHECK_OK(pe_device_wait(w[k].l.device, &err), err);
      CHECK_INT(fake.in_flight(), 0);
      walker_take(&w[k], got[k][i]);
    }
  }
  for (int k = 0; k < 2; k++) {
    CHECK(!memcmp(got[k], want, sizeof want));
    pe_seq_close(&w[k].s), little_close(&w[k].l);
  }
  CHECK_INT(fake.complaints(), 0);
  CHECK_INT(fake.living(), 0);
}

/* A device waits for its step before it lets go of the memory that the step uses. */
static void test_closed_in_flight(void) {
  walker w;
  walker_open(&w);
  walker_submit(&w, 3);
  CHECK_INT(fake.in_flight(), 1);
  pe_seq_close(&w.s), little_close(&w.l);
  CHECK_INT(fake.complaints(), 0);
  CHECK_INT(fake.living(), 0);
}

/* The next n tokens of a sequence as one step. */
static void walker_feed(walker *w, pe_seq *s, int32_t n) {
  int32_t ids[LONG];
  pe_error err;
  for (int32_t i = 0; i < n; i++) ids[i] = i * 7 % VOCABULARY;
  CHECK_OK(little_feed(&w->l, s, ids, n, NULL, &err), err);
}

/* The step of a long sequence has the dispatches of a short one's, but its block table does not fit
 * into the arrays that the commands were encoded with. */
static void test_moved(void) {
  static float want[VOCABULARY], got[VOCABULARY];
  pe_error err;
  for (int other = 0; other < 2; other++) {
    walker w;
    pe_seq s = {0};
    walker_open(&w);
    walker_feed(&w, &w.s, LONG);
    if (other) CHECK_OK(pe_seq_open(&s, w.l.kv, w.l.recur, &err), err);
    for (int i = 0; other && i < 2; i++) walker_feed(&w, &s, 1);
    walker_submit(&w, 5);
    CHECK_OK(pe_device_wait(w.l.device, &err), err);
    walker_take(&w, other ? got : want);
    pe_seq_close(&s), pe_seq_close(&w.s), little_close(&w.l);
  }
  CHECK(!memcmp(got, want, sizeof want));
  CHECK_INT(fake.complaints(), 0);
  CHECK_INT(fake.living(), 0);
}

static const check_test tests[] = {{"in_flight", test_in_flight},
                                   {"closed_in_flight", test_closed_in_flight},
                                   {"moved", test_moved}};

int main(int argc, char **argv) {
  return fake_main(&fake, "metal_steps", tests, (int)(sizeof tests / sizeof *tests), argc, argv);
}
