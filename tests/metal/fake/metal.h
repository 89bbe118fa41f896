/* metal.h - the objects of the fake Metal, shared by metal.c (device, memory, library) and
 * commands.c (queue, command buffers, encoders).
 *
 * The fake is stricter than Metal where a mistake could otherwise pass by luck:
 *   - commit only queues; the work is done when somebody waits for it, so a result that is read too
 *     early is not there;
 *   - what the host writes into memory between the commit and the run is noticed;
 *   - dispatches between two barriers run in a shuffled order, so a missing barrier shows;
 *   - new memory is filled with 0xcd, freed memory with 0xdd;
 *   - an encoder forgets its bindings after every dispatch.
 * Every other rule names the page of Apple's documentation that states it. */
#ifndef FAKE_METAL_H
#define FAKE_METAL_H

#include "tests/metal/exec/exec.h"
#include "tests/metal/fake/objc.h"

enum { FAKE_SLOTS = 31, FAKE_CONSTANTS = 32 };
typedef unsigned long NSUInteger;
typedef long NSInteger;
typedef struct MTLSize {
  NSUInteger width, height, depth;
} MTLSize;

typedef struct fake_text { /* NSString; NSURL: a path */
  fake_object o;
  char *text;
} fake_text;
typedef struct fake_error {
  fake_object o;
  char *text;
  NSInteger code;
} fake_error;
typedef struct fake_array { /* NSArray of one */
  fake_object o;
  id one;
} fake_array;
typedef struct fake_plain {
  fake_object o;
} fake_plain;
typedef struct fake_buffer {
  fake_object o;
  uint8_t *data;
  NSUInteger size;
  bool own;     /* its bytes are the fake's */
  bool written; /* by a kernel */
  uint64_t sum; /* of its bytes, when sums were counted this often */
  long summed;
} fake_buffer;
typedef struct fake_options {
  fake_object o;
  bool safe;
} fake_options;
typedef struct fake_values {
  fake_object o;
  uint32_t set; /* bits */
  uint32_t value[FAKE_CONSTANTS];
} fake_values;
typedef struct fake_function { /* MTLFunction and MTLComputePipelineState */
  fake_object o;
  const msl_kernel *kernel;
  uint32_t constants, value[FAKE_CONSTANTS];
} fake_function;
typedef struct fake_descriptor { /* MTLComputePipelineDescriptor, MTLBinaryArchiveDescriptor */
  fake_object o;
  id function, archives, url;
} fake_descriptor;
typedef struct fake_residency {
  fake_object o;
  id *list; /* retained */
  size_t count, cap;
  bool pending; /* changes that are not committed */
} fake_residency;

typedef struct fake_commands fake_commands;
typedef struct fake_event { /* MTLSharedEvent */
  fake_object o;
  NSUInteger value;
  struct fake_queue *queue; /* whose work signals it; not retained */
} fake_event;

typedef struct fake_queue {
  fake_object o;
  fake_commands *first, *last; /* committed, not run; retained */
  int open;                    /* command buffers that are not completed */
  fake_residency *residency;   /* retained */
} fake_queue;

typedef struct fake_dispatch {
  fake_function *pipeline;        /* retained, like the buffers */
  fake_buffer *bound[FAKE_SLOTS]; /* NULL: bytes, or nothing */
  uint64_t sum[FAKE_SLOTS];       /* of a buffer that only the host writes, at the commit; else 0 */
  msl_launch launch;
  struct fake_dispatch *next;
} fake_dispatch;

struct fake_commands {
  fake_object o;
  fake_queue *queue; /* retained */
  fake_dispatch *first, *last;
  int count; /* of dispatches */
  NSUInteger status;
  id error;
  bool encoding;
  fake_event *event; /* retained; its value after the work */
  NSUInteger value;
  fake_commands *next;
};

typedef struct fake_encoder {
  fake_object o;
  fake_commands *commands; /* retained */
  bool concurrent, ended;
  uint32_t batch; /* of the dispatches since the last barrier */
  fake_function *pipeline;
  struct {
    fake_buffer *buffer;
    NSUInteger at, size;
    uint8_t *bytes;
  } slot[FAKE_SLOTS];
} fake_encoder;

extern const fake_class fake_class_error, fake_class_buffer, fake_class_pipeline, fake_class_queue,
    fake_class_event, fake_class_commands, fake_class_encoder;

enum { FAKE_STATUS_COMMITTED = 2, FAKE_STATUS_COMPLETED = 4, FAKE_STATUS_ERROR = 5 };

/* For programs that cannot call fake_fail_at: FAKE_METAL_FAIL_AT=N counts from the first device on,
 * and anew from every device that is taken while none is open. */
void fake_fail_as_asked(void);

id fake_string(const char *text);                    /* autoreleased */
id fake_error_new(NSInteger code, const char *text); /* count 1 */
/* Sets *error, if there is one, to an autoreleased error. Returns NULL. */
id fake_fail(id *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
