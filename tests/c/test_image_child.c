/* The confined decoder: the wire between program and child, and children that die, hang or try to
 * escape. This test starts itself as the child. */
#include "image_help.h"
#include "runtime/image/child.h"
#include "runtime/image/decoder.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

/* ---- the wire -------------------------------------------------------------------------------- */

static pe_wire_request request_of(pe_wire_op op) {
  return (pe_wire_request){.magic = PE_WIRE_MAGIC,
                           .end = PE_WIRE_MAGIC,
                           .op = op,
                           .job = 7,
                           .size = 10,
                           .pixels = 1000,
                           .memory = 1 << 20,
                           .count = op == PE_WIRE_DECODE,
                           .target = {{4, 3, PE_BICUBIC}}};
}

static void checks_requests(void) {
  pe_wire_request r = request_of(PE_WIRE_PROBE);
  CHECK(pe_wire_check_request(&r, 1));
  CHECK(!pe_wire_check_request(&r, 0) && !pe_wire_check_request(&r, 2));
  r = request_of(PE_WIRE_DECODE);
  CHECK(pe_wire_check_request(&r, 2) && !pe_wire_check_request(&r, 1));
#define REFUSED(change)                                                                            \
  r = request_of(PE_WIRE_DECODE), change;                                                          \
  CHECK(!pe_wire_check_request(&r, 2))
  REFUSED(r.magic++);
  REFUSED(r.end++);
  REFUSED(r.op = PE_WIRE_OPS);
  REFUSED(r.op = PE_WIRE_PROBE);
  REFUSED(r.size = 0);
  REFUSED(r.size = UINT64_MAX);
  REFUSED(r.count = 0);
  REFUSED(r.count = PE_WIRE_TARGETS + 1);
  REFUSED(r.count = 2); /* the second target is empty */
  REFUSED(r.target[0].width = 0);
  REFUSED(r.target[0].height = -1);
  REFUSED(r.target[0].width = r.target[0].height = INT32_MAX);
  REFUSED(r.target[0].filter = PE_FILTERS);
}

static void checks_replies(void) {
  const pe_wire_request r = request_of(PE_WIRE_DECODE);
  const pe_wire_reply good = {.magic = PE_WIRE_MAGIC,
                              .end = PE_WIRE_MAGIC,
                              .job = 7,
                              .format = PE_IMAGE_PNG,
                              .width = 20,
                              .height = 50,
                              .orientation = 8,
                              .alpha = 1};
  pe_wire_reply a = good;
  CHECK(pe_wire_check_reply(&r, &a));
#define LIES(change)                                                                               \
  a = good, change;                                                                                \
  CHECK(!pe_wire_check_reply(&r, &a))
  LIES(a.magic = 0);
  LIES(a.end = 0);
  LIES(a.job = 8);
  LIES(a.status = 1);
  LIES(a.status = PE_EUNSATISFIABLE - 1);
  LIES(a.format = PE_IMAGE_FORMATS);
  LIES(a.format = -1);
  LIES(a.width = 0);
  LIES(a.height = -5);
  LIES(a.width = 21); /* 1050 pixels, above the limit */
  LIES(a.orientation = 0);
  LIES(a.orientation = 9);
  LIES(a.alpha = 2);
  a = good, a.status = PE_EFORMAT;
  memset(a.text, '\n', sizeof a.text);
  CHECK(pe_wire_check_reply(&r, &a));
  CHECK_INT(strlen(a.text), PE_WIRE_TEXT - 1);
  CHECK(!strchr(a.text, '\n'));
}

/* ---- a decoder ------------------------------------------------------------------------------- */

static pe_decoder *open_with(pe_decoder_options options) {
  pe_decoder *d = NULL;
  pe_error err;
  CHECK_OK(pe_decoder_open(&options, &d, &err), err);
  return d;
}

static pe_buffer *picture(const char *name) {
  char path[200];
  snprintf(path, sizeof path, "tests/images/%s", name);
  return file_bytes(path);
}

/* Submits and waits; the code of the result. */
static pe_status do_one(pe_decoder *d, pe_buffer *b, const pe_target *target, uint32_t count,
                        pe_decoded *out) {
  uint64_t job;
  *out = (pe_decoded){0};
  pe_status rc = pe_decoder_submit(d, b, target, count, &job, &out->err);
  if (!rc) rc = pe_decoder_wait(d, job, out, &out->err);
  return rc ? rc : out->err.code;
}

static int descriptors(void) {
  int n = 0;
  DIR *folder = opendir("/proc/self/fd");
  while (folder && readdir(folder)) n++;
  if (folder) closedir(folder);
  return n;
}

static void decodes(void) {
  static const char *const names[] = {"shapes.png", "exif_6.jpg", "own_alpha.webp", "la.png"};
  pe_decoder *d = open_with(pe_decoder_defaults());
  const pe_image_limits roomy = pe_decoder_defaults().limits;
  for (int i = 0; i < 4; i++) {
    pe_buffer *b = picture(names[i]);
    pe_image_info info;
    pe_image whole, want;
    pe_decoded got;
    pe_error err;
    uint8_t hash[PE_SHA256_BYTES];
    CHECK_OK(pe_image_decode(b->data, b->size, &roomy, &info, &whole, &err), err);
    pe_image_hash(&whole, hash);
    CHECK_OK(do_one(d, b, NULL, 0, &got), got.err);
    CHECK_INT(got.info.width, whole.width);
    CHECK_INT(got.info.height, whole.height);
    CHECK_INT(got.info.format, info.format);
    CHECK_INT(got.info.alpha, info.alpha);
    CHECK(!got.pixels);
    pe_decoded_free(&got);
    const pe_target target[] = {{whole.width, whole.height, PE_BICUBIC}, {33, 21, PE_LANCZOS}};
    CHECK_OK(do_one(d, b, target, 2, &got), got.err);
    CHECK_INT(got.count, 2);
    CHECK(!memcmp(hash, got.hash, sizeof hash));
    int largest;
    CHECK_INT(image_differs(&got.image[0], &whole, &largest), 0);
    CHECK_OK(pe_image_new(33, 21, &want, &err), err);
    CHECK_OK(pe_resize(&whole, PE_LANCZOS, &want, &err), err);
    CHECK_INT(image_differs(&got.image[1], &want, &largest), 0);
    pe_image_free(&want), pe_image_free(&whole);
    pe_decoded_free(&got), pe_buffer_release(b);
  }
  pe_decoder_close(d);
}

static void refuses(void) {
  pe_decoder_options o = pe_decoder_defaults();
  o.bytes = 60000, o.limits.pixels = 30000;
  pe_decoder *d = open_with(o);
  pe_decoded got;
  pe_buffer *b = picture("own_huge.png");
  CHECK_FAILS(do_one(d, b, NULL, 0, &got), PE_ELIMIT, got.err, "60000 x 60000");
  pe_buffer_release(b);
  b = picture("shapes.png");
  pe_target target = {200, 200, PE_BICUBIC};
  CHECK_FAILS(do_one(d, b, &target, 1, &got), PE_ELIMIT, got.err, "targets of 40000 pixels");
  target = (pe_target){0, 200, PE_BICUBIC};
  CHECK_FAILS(do_one(d, b, &target, 1, &got), PE_EARG, got.err, "no valid size");
  CHECK_FAILS(do_one(d, b, &target, 9, &got), PE_EARG, got.err, "at most 8 targets");
  pe_buffer_release(b);
  b = picture("decode.safetensors");
  CHECK_FAILS(do_one(d, b, NULL, 0, &got), PE_ELIMIT, got.err,
              "bytes, more than the limit of 60000");
  pe_buffer_release(b);
  b = picture("resize.json");
  CHECK_FAILS(do_one(d, b, NULL, 0, &got), PE_EFORMAT, got.err, "not a JPEG, PNG or WebP file");
  pe_buffer_release(b);
  pe_error err;
  if (pe_buffer_alloc(0, &b, &err)) abort();
  CHECK_FAILS(do_one(d, b, NULL, 0, &got), PE_EFORMAT, got.err, "empty");
  pe_buffer_release(b);
  pe_decoder_stats s;
  pe_decoder_read_stats(d, &s);
  CHECK_INT(s.died, 0);
  CHECK_INT(s.failed, 2);
  CHECK_FAILS(pe_decoder_wait(d, 99, &got, &err), PE_ENOTFOUND, err, "job number 99");
  pe_decoder_close(d);
  o.children = 0;
  CHECK_FAILS(pe_decoder_open(&o, &d, &err), PE_EARG, err, "between 1 and 64, got 0");
}

static void cannot_escape(void) {
  pe_decoder *d = open_with(pe_decoder_defaults());
  uint64_t job;
  pe_error err;
  pe_decoded got;
  CHECK_OK(pe_decoder_try(d, &job, &err), err);
  CHECK_OK(pe_decoder_wait(d, job, &got, &err), err);
  CHECK_OK(got.err.code, got.err);
  pe_decoder_stats s;
  pe_decoder_read_stats(d, &s);
  CHECK_INT(s.died, 0);
  pe_decoder_close(d);
}

static int32_t kill_children(pe_decoder *d) { /* returns how many */
  pe_decoder_stats s;
  pe_decoder_read_stats(d, &s);
  for (int32_t i = 0; i < s.children; i++) kill(s.pid[i], SIGKILL);
  return s.children;
}

/* Children are killed while 20 pictures are being decoded: each one is decoded all the same, or
 * fails with the one message; the next picture is decoded by a new child. A picture is tried
 * twice, so each failure takes two of the kills, on however slow a machine. */
static void survives_kills(void) {
  int before = descriptors();
  pe_decoder *d = open_with(pe_decoder_defaults());
  pe_buffer *b = picture("shapes.png");
  uint64_t job[20];
  pe_error err;
  pe_decoded got;
  pe_target target = {1500, 1100, PE_LANCZOS};
  int failed = 0, killed = 0;
  for (int i = 0; i < 20; i++) CHECK_OK(pe_decoder_submit(d, b, &target, 1, &job[i], &err), err);
  for (int i = 0; i < 6 || !killed; i++) {
    usleep(3000);
    killed += kill_children(d);
  }
  for (int i = 0; i < 20; i++) {
    CHECK_OK(pe_decoder_wait(d, job[i], &got, &err), err);
    if (got.err.code) {
      failed++;
      CHECK_FAILS(got.err.code, PE_EFORMAT, got.err, "the picture could not be decoded");
    } else {
      CHECK_INT(got.image[0].width, 1500);
    }
    pe_decoded_free(&got);
  }
  CHECK(failed <= killed / 2 && failed < 20);
  CHECK_OK(do_one(d, b, &target, 1, &got), got.err);
  pe_decoded_free(&got);
  pe_decoder_stats s;
  pe_decoder_read_stats(d, &s);
  CHECK(s.died > 0 && s.jobs == 21);
  pe_buffer_release(b);
  pe_decoder_close(d);
  CHECK_INT(descriptors(), before);
}

static void *killer(void *decoder) {
  pe_decoder_stats s;
  do {
    kill_children(decoder);
    usleep(200);
    pe_decoder_read_stats(decoder, &s);
  } while (!s.jobs);
  return NULL;
}

static void gives_up(void) { /* its child is killed again and again */
  pe_decoder_options o = pe_decoder_defaults();
  o.children = 1;
  pe_decoder *d = open_with(o);
  pe_buffer *b = picture("shapes.png");
  pthread_t thread;
  pe_decoded got;
  pe_target target = {6000, 4000, PE_LANCZOS};
  CHECK(!pthread_create(&thread, NULL, killer, d));
  CHECK_FAILS(do_one(d, b, &target, 1, &got), PE_EFORMAT, got.err,
              "the picture could not be decoded");
  pthread_join(thread, NULL);
  pe_decoder_stats s;
  pe_decoder_read_stats(d, &s);
  CHECK_INT(s.died, 2);
  pe_buffer_release(b);
  pe_decoder_close(d);
}

static void has_a_time_limit(void) {
  pe_decoder_options o = pe_decoder_defaults();
  o.children = 1, o.job_ns = 1000000;
  pe_decoder *d = open_with(o);
  pe_buffer *b = picture("shapes.png");
  pe_decoded got;
  pe_target target = {7000, 7000, PE_LANCZOS};
  CHECK_FAILS(do_one(d, b, &target, 1, &got), PE_ELIMIT, got.err, "took longer than 0.001 s");
  pe_decoder_stats s;
  pe_decoder_read_stats(d, &s);
  CHECK_INT(s.late, 1);
  CHECK_INT(s.died, 0);
  CHECK_INT(s.children, 0);
  pe_buffer_release(b);
  pe_decoder_close(d);
}

static int woken;
static void wake(void *ctx) {
  (void)ctx;
  __atomic_fetch_add(&woken, 1, __ATOMIC_RELAXED);
}

static void drops_and_closes(void) { /* with jobs in every state */
  int before = descriptors();
  pe_decoder_options o = pe_decoder_defaults();
  o.wake = wake;
  pe_decoder *d = open_with(o);
  pe_buffer *b = picture("shapes.png");
  uint64_t job[30];
  pe_error err;
  pe_decoded got;
  pe_target target = {600, 400, PE_BICUBIC};
  for (int i = 0; i < 30; i++) CHECK_OK(pe_decoder_submit(d, b, &target, 1, &job[i], &err), err);
  pe_decoder_drop(d, job[0]), pe_decoder_drop(d, job[29]);
  CHECK_OK(pe_decoder_wait(d, job[3], &got, &err), err);
  pe_decoded_free(&got);
  CHECK_FAILS(pe_decoder_wait(d, job[29], &got, &err), PE_ENOTFOUND, err, "no picture");
  CHECK_OK(pe_decoder_wait(d, job[4], &got, &err), err);
  pe_decoded_free(&got);
  CHECK(pe_decoder_next(d, &got)); /* 1 or 2 were finished before 4 */
  pe_decoded_free(&got);
  CHECK(__atomic_load_n(&woken, __ATOMIC_RELAXED) >= 3);
  pe_buffer_release(b);
  pe_decoder_close(d);
  CHECK_INT(descriptors(), before);
}

/* Jobs that wait, and those whose results nobody took, are bounded; one that finds no memory is
 * refused. */
static void is_bounded(void) {
  pe_decoder_options o = pe_decoder_defaults();
  o.children = 1;
  pe_decoder *d = open_with(o);
  pe_buffer *b = picture("shapes.png");
  uint64_t job = 0;
  pe_error err;
  pe_decoded got;
  pe_decoder_stats s;
  pe_alloc_fail_at(1);
  pe_status rc = pe_decoder_submit(d, b, NULL, 0, &job, &err);
  pe_alloc_fail_at(0);
  CHECK_FAILS(rc, PE_ENOMEM, err, "picture");
  for (int i = 0; i < 4096; i++) CHECK_OK(pe_decoder_submit(d, b, NULL, 0, &job, &err), err);
  do {
    usleep(1000);
    pe_decoder_read_stats(d, &s);
  } while (s.waiting + s.running);
  CHECK_INT(s.finished, 4096);
  CHECK_FAILS(pe_decoder_submit(d, b, NULL, 0, &job, &err), PE_ELIMIT, err,
              "4096 pictures are waiting to be decoded already");
  CHECK(pe_decoder_next(d, &got));
  pe_decoded_free(&got);
  CHECK_OK(pe_decoder_submit(d, b, NULL, 0, &job, &err), err);
  pe_buffer_release(b);
  pe_decoder_close(d);
}

static const check_test tests[] = {
    {"requests are checked", checks_requests},
    {"replies are checked", checks_replies},
    {"a child decodes", decodes},
    {"refused files", refuses},
    {"a child cannot escape", cannot_escape},
    {"children are killed while 20 pictures wait", survives_kills},
    {"a picture whose child dies twice", gives_up},
    {"a time limit", has_a_time_limit},
    {"jobs are dropped, a decoder closes", drops_and_closes},
    {"jobs are bounded", is_bounded},
};

int main(int argc, char **argv) {
  if (pe_child_is_meant(argc, argv)) return pe_child_main(argc, argv);
  return check_main("test_image_child", tests, (int)(sizeof tests / sizeof *tests), argc, argv);
}
