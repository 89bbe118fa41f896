/* test_media.c - the pictures of a prompt: their runs, their names, and the words of their rows. */
#include "check.h"
#include "runtime/cache/media.h"

enum { WIDTH = 3, P = 99 };

static pe_buffer *features_of(int32_t rows) {
  pe_buffer *b = NULL;
  pe_error err;
  CHECK_OK(pe_buffer_alloc((uint64_t)rows * WIDTH * sizeof(float), &b, &err), err);
  for (int32_t i = 0; i < rows * WIDTH; i++) ((float *)(void *)b->data)[i] = (float)i;
  return b;
}

static pe_media_item item_of(int32_t at, int32_t tokens, bool whole, pe_buffer *b) {
  pe_media_item m = {.at = at, .tokens = tokens, .whole = whole, .planes = 1};
  m.plane[0].buffer = b;
  m.hash[5] = (uint8_t)at;
  return m;
}

static void test_runs(void) {
  static const int32_t prompt[] = {1, P, P, P, 7, P, P, 2, P, P, 3};
  pe_buffer *a = features_of(5), *b = features_of(2);
  pe_media_item item[2] = {item_of(1, 5, false, a), item_of(8, 2, true, b)};
  pe_media *m = NULL;
  pe_error err;
  pe_media_spec s = {.prompt = prompt, .tokens = 11, .item = item, .items = 2, .width = WIDTH};
  CHECK_OK(pe_media_open(&s, &m, &err), err);
  pe_buffer_release(a), pe_buffer_release(b); /* it has its own references */
  CHECK_INT(m->runs, 3);
  CHECK_INT(m->run[1].at, 5);
  CHECK_INT(m->run[1].count, 2);
  CHECK_INT(m->run[1].line, 3);
  CHECK_INT(m->run[2].item, 1);
  CHECK_INT(m->longest, 2);
  CHECK_INT(m->bytes, 7 * WIDTH * 4);
  CHECK_NEAR(pe_media_feature(m, &m->run[1], 0, 6)[1], 4 * WIDTH + 1, 0);
  CHECK_INT(pe_media_next(m, 0), 0);
  CHECK_INT(pe_media_next(m, 4), 1);
  CHECK_INT(pe_media_next(m, 9), 2);
  CHECK_INT(pe_media_next(m, 10), 3);
  for (int32_t end = 0; end <= 12; end++) CHECK(!!pe_media_cut(m, end) == (end == 9));
  int32_t word[6];
  memcpy(word, prompt + 2, sizeof word);
  pe_media_words(m, (const int32_t[]){-5, -6}, 2, 6, word);
  static const int32_t want[] = {-5, -5, 7, -5, -5, 2};
  for (int i = 0; i < 6; i++) CHECK_INT(word[i], want[i]);
  CHECK_INT(pe_media_position(m, 1, 4), 4);
  pe_media_release(m);
}

static void test_refusals(void) {
  static const int32_t prompt[] = {1, P, P, P, 7, P};
  int32_t position[18] = {0};
  pe_buffer *a = features_of(4);
  const struct {
    pe_media_item item[2];
    const char *why;
  } cases[] = {
      {{item_of(6, 1, false, a), item_of(1, 1, false, a)},
       "at must be between 1 and the prompt's 6"},
      {{item_of(1, 0, false, a), item_of(1, 1, false, a)}, "tokens must be 1 or more, got 0"},
      {{item_of(1, 3, false, a), item_of(3, 1, false, a)}, "media[2] starts at token 4, inside"},
      {{item_of(1, 3, false, a), item_of(4, 2, false, a)},
       "media[2] has 2 tokens, but the prompt "
       "has 1 placeholders (id 7) from token 5"},
      {{item_of(1, 5, false, a), item_of(5, 1, false, a)}, "need 60 bytes, got 48"},
  };
  pe_media *m = NULL;
  pe_error err;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pe_media_spec s = {
        .prompt = prompt, .tokens = 6, .item = cases[i].item, .items = 2, .width = WIDTH};
    pe_status rc = pe_media_open(&s, &m, &err);
    CHECK(rc != PE_OK && strstr(err.text, cases[i].why));
  }
  position[7] = -1;
  pe_media_spec s = {.prompt = prompt, .tokens = 6, .position = position};
  CHECK_FAILS(pe_media_open(&s, &m, &err), PE_EARG, err, "positions[2][2] must be 0 or more");
  position[7] = 0, s.delta = -7;
  CHECK_FAILS(pe_media_open(&s, &m, &err), PE_EARG, err, "rope_delta must be between -6 and");
  pe_buffer_release(a);
}

/* All pictures of a prompt have as many planes of features as the first. */
static void test_planes(void) {
  static const int32_t prompt[] = {1, P, P, 7, P};
  pe_buffer *a = features_of(2);
  pe_media_item item[2] = {item_of(1, 2, false, a), item_of(4, 1, false, a)};
  item[1].planes = 2, item[1].plane[1].buffer = a;
  pe_media *m = NULL;
  pe_error err;
  pe_media_spec s = {.prompt = prompt, .tokens = 5, .item = item, .items = 2, .width = WIDTH};
  CHECK_FAILS(pe_media_open(&s, &m, &err), PE_EARG, err,
              "media[2] has 2 planes of features, media[1] has 1");
  s.items = 1;
  CHECK_OK(pe_media_open(&s, &m, &err), err);
  CHECK_INT(m->planes, 1);
  pe_media_release(m);
  s.item = &item[1];
  CHECK_OK(pe_media_open(&s, &m, &err), err);
  CHECK_INT(m->planes, 2);
  CHECK_INT(m->bytes, 2 * WIDTH * 4);
  pe_media_release(m), pe_buffer_release(a);
}

/* Other content, size, kind or positions give another name. */
static void test_names(void) {
  static const int32_t prompt[] = {1, P, P, 2, P, P, 3};
  int32_t position[21], word = 0, other = 0;
  pe_buffer *a = features_of(2);
  pe_media_item item[2] = {item_of(1, 2, false, a), item_of(4, 2, false, a)};
  item[1].hash[5] = item[0].hash[5];
  pe_media *m = NULL;
  pe_names *names = NULL;
  pe_error err;
  for (int i = 0; i < 21; i++) position[i] = i % 7;
  pe_media_spec s = {.prompt = prompt,
                     .tokens = 7,
                     .item = item,
                     .items = 2,
                     .width = WIDTH,
                     .position = position};
  CHECK_OK(pe_names_open(&names, &err), err);
  CHECK_OK(pe_media_open(&s, &m, &err), err);
  CHECK(!memcmp(&m->name[0], &m->name[1], sizeof *m->name)); /* the same picture elsewhere */
  CHECK_OK(pe_names_put(names, &m->name[0], &word, &err), err);
  CHECK_OK(pe_names_put(names, &m->name[1], &other, &err), err);
  CHECK(word < 0 && word == other);
  pe_media_release(m);
  position[7 + 6] = 9; /* what follows the second one is elsewhere */
  CHECK_OK(pe_media_open(&s, &m, &err), err);
  CHECK(memcmp(&m->name[0], &m->name[1], sizeof *m->name));
  pe_media_release(m);
  pe_names_release(names, word);
  CHECK_INT(pe_names_count(names), 1);
  pe_names_release(names, word);
  CHECK_INT(pe_names_count(names), 0);
  pe_names_close(names), pe_buffer_release(a);
}

/* Names with the same bits get different words, and a word from a file only if it is free. */
static void test_collisions(void) {
  pe_name a = {.tokens = 4, .whole = 1}, b = a, c = a;
  int32_t word[3];
  uint8_t bytes[PE_NAME_BYTES];
  pe_names *names = NULL;
  pe_error err;
  b.hash[31] = 1, c.whole = 0;
  CHECK_OK(pe_names_open(&names, &err), err);
  CHECK_OK(pe_names_put(names, &a, &word[0], &err), err);
  CHECK_OK(pe_names_put(names, &b, &word[1], &err), err);
  CHECK_OK(pe_names_put(names, &c, &word[2], &err), err);
  CHECK(word[0] != word[1] && word[0] != word[2] && word[1] != word[2]);
  CHECK(!memcmp(pe_names_find(names, word[1]), &b, sizeof b));
  CHECK_FAILS(pe_names_claim(names, word[0], &b, &err), PE_ENOTFOUND, err, "another picture");
  CHECK_FAILS(pe_names_claim(names, word[2], &a, &err), PE_ENOTFOUND, err, "another picture");
  CHECK_FAILS(pe_names_claim(names, 5, &a, &err), PE_ENOTFOUND, err, "another picture");
  CHECK_OK(pe_names_claim(names, word[0], &a, &err), err);
  const int32_t words[] = {1, word[0], word[0], word[1], 2, word[0]};
  pe_names_retain_all(names, words, 6), pe_names_release_all(names, words, 6);
  CHECK_INT(pe_names_count(names), 3);
  pe_name_write(word[1], &b, bytes);
  memset(&a, 0, sizeof a);
  CHECK_INT(pe_name_read(bytes, &a), word[1]);
  CHECK(!memcmp(&a, &b, sizeof a));
  static const int32_t joined[] = {INT32_MIN | 1 << 30, INT32_MIN | 1 << 30, INT32_MIN, INT32_MIN};
  CHECK(pe_word_joined(joined, 1) && !pe_word_joined(joined, 2) && !pe_word_joined(joined, 3));
  pe_names_close(names);
}

/* More names than the table has chains: each is found, and goes when its last reference does. */
static void test_many(void) {
  enum { MANY = 3000 };
  int32_t word[MANY];
  pe_names *names = NULL;
  pe_error err;
  CHECK_OK(pe_names_open(&names, &err), err);
  for (int i = 0; i < MANY; i++) {
    const pe_name name = {.hash = {(uint8_t)i, (uint8_t)(i >> 8)}, .tokens = i};
    CHECK_OK(pe_names_put(names, &name, &word[i], &err), err);
  }
  CHECK_INT(pe_names_count(names), MANY);
  for (int i = 0; i < MANY; i++) {
    const pe_name *name = pe_names_find(names, word[i]);
    CHECK(name && name->tokens == i);
  }
  for (int i = 0; i < MANY; i++) pe_names_release(names, word[i]);
  CHECK_INT(pe_names_count(names), 0);
  pe_names_close(names);
}

/* A word has the same bits of its name in every process: files have words. */
static void test_word(void) {
  pe_name name = {.hash = {0x21, 0x43, 0x65, 0xff}, .layout = {1, 2, 4, 0x10}, .whole = 1};
  int32_t word = 0;
  pe_names *names = NULL;
  pe_error err;
  CHECK_OK(pe_names_open(&names, &err), err);
  CHECK_OK(pe_names_put(names, &name, &word, &err), err);
  CHECK_INT((uint32_t)word, 0xef614120);
  name.whole = 0;
  CHECK_OK(pe_names_put(names, &name, &word, &err), err);
  CHECK_INT((uint32_t)word, 0xaf614120);
  pe_names_close(names);
}

static const check_test tests[] = {
    {"runs", test_runs},      {"refusals", test_refusals},     {"planes", test_planes},
    {"names", test_names},    {"collisions", test_collisions}, {"word", test_word},
    {"many names", test_many}};
CHECK_MAIN("media", tests)
