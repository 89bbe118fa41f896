/* The layout of a step: block tables lie one after another, none padded to the longest. */
#include "little.h"
#include "runtime/device/layout.h"

enum { SEQUENCES = 5 };

static void test_tables_are_not_padded(void) {
  pe_error err = {0};
  little l;
  pe_seq s[SEQUENCES];
  pe_run runs[SEQUENCES];
  pe_layout layout = {0};
  static const int32_t ids[100] = {1, 2, 3};
  int32_t entries = 0;
  CHECK_OK(little_open(&l, DENSE | WINDOWED,
                       &(pe_kv_options){.block = 2, .tokens = 400, .sequences = SEQUENCES}, &err),
           err);
  for (int i = 0; i < SEQUENCES; i++) {
    int32_t n = i == 2 ? 100 : i + 1;
    CHECK_OK(pe_seq_open(&s[i], l.kv, l.recur, &err), err);
    CHECK_OK(pe_seq_append(&s[i], ids, n, &err), err);
    CHECK_OK(pe_seq_run(&s[i], n, 1, &runs[i], &err), err);
    for (int32_t g = 0; g < l.kv->graph->group_count; g++) entries += s[i].tables.count[g];
  }
  CHECK_OK(pe_layout_step(&layout, l.kv, runs, SEQUENCES, &err), err);
  CHECK_INT(layout.tables.len / sizeof(int32_t), entries);
  for (int i = 0; i < SEQUENCES; i++)
    for (int32_t g = 0; g < layout.step.groups; g++) {
      const int32_t *table =
          layout.step.tables + layout.step.table_at[layout.step.segment[i].table + g];
      CHECK(!memcmp(table, s[i].tables.table[g], (size_t)s[i].tables.count[g] * sizeof *table));
    }
  pe_layout_free(&layout);
  for (int i = 0; i < SEQUENCES; i++) pe_seq_close(&s[i]);
  little_close(&l);
}

static const check_test tests[] = {{"tables are not padded", test_tables_are_not_padded}};
CHECK_MAIN("layout", tests)
