/* decoder.h - decodes pictures in confined child processes, so that a bug in a decoder costs one
 * request and not the server.
 *
 *   any thread     submit ──► queue ──► one thread per child ── socket, shared memory ──► child
 *                  next, wait ◄── finished jobs ◄──┘
 *
 * A child (child.h) is this program, started again with a hidden argument. It starts with the first
 * job. A child that dies is replaced and its job tried once more; if that one dies also, the
 * picture "could not be decoded". A child that takes longer than the time limit is killed, and its
 * job fails. After PE_DECODER_LIFE jobs a child is replaced, which bounds what it could leak.
 *
 * Pixels are shared memory: the child has written them, nobody copies them. Numbers from a child
 * are checked (wire.h), and the sizes of buffers come from the request.
 *
 * Ownership: a decoder keeps references to the bytes of its jobs. Threads: any; close when no other
 * thread uses it. `wake` runs on the decoder's threads after each finished job. */
#ifndef PE_DECODER_H
#define PE_DECODER_H

#include "runtime/buffer.h"
#include "runtime/image/wire.h"

typedef struct pe_decoder pe_decoder;
typedef void pe_decoder_wake(void *ctx); /* must not block */

enum { PE_DECODER_CHILDREN = 64, PE_DECODER_LIFE = 1000, PE_DECODER_QUEUE = 4096 };

typedef struct pe_decoder_options {
  int32_t children;       /* at most this many at once */
  pe_image_limits limits; /* of one picture */
  uint64_t bytes;         /* of one file */
  int64_t job_ns;         /* time of one job in a child */
  pe_decoder_wake *wake;  /* may be NULL */
  void *ctx;
} pe_decoder_options;

/* What holds unless something else is said: min(2, cores) children; 50 million pixels, the largest
 * cameras; 1 GB, which a progressive JPEG of that size needs; files of 32 MB; 10 s. */
pe_decoder_options pe_decoder_defaults(void);

pe_status pe_decoder_open(const pe_decoder_options *options, pe_decoder **out, pe_error *err);
void pe_decoder_close(pe_decoder *d); /* kills the children; takes; NULL is fine */

/* Queues a job and gives its number. PE_ELIMIT: the file is too large, or the queue is full.
 * Without targets the job only probes. */
pe_status pe_decoder_submit(pe_decoder *d, pe_buffer *bytes, const pe_target *target,
                            uint32_t count, uint64_t *job, pe_error *err);
/* Queues a job in which a child tries to escape (confine.h): an error if it can. */
pe_status pe_decoder_try(pe_decoder *d, uint64_t *job, pe_error *err);

typedef struct pe_decoded {
  uint64_t job;
  pe_error err; /* code PE_OK: done */
  pe_image_info info;
  uint8_t hash[PE_SHA256_BYTES];
  uint32_t count;
  pe_image image[PE_WIRE_TARGETS]; /* point into pixels */
  pe_buffer *pixels;               /* one reference, or NULL */
} pe_decoded;

void pe_decoded_free(pe_decoded *r); /* takes; {0} is fine */

/* The oldest finished job; false: none is. Gives *out. */
bool pe_decoder_next(pe_decoder *d, pe_decoded *out);
/* Blocks until this job is finished. Gives *out. PE_ENOTFOUND: no such job. */
pe_status pe_decoder_wait(pe_decoder *d, uint64_t job, pe_decoded *out, pe_error *err);
/* Nobody will ask for this job: it is dropped, now or when its child is done. */
void pe_decoder_drop(pe_decoder *d, uint64_t job);

typedef struct pe_decoder_stats {
  int32_t children;                         /* running now */
  int32_t pid[PE_DECODER_CHILDREN];         /* of those */
  uint64_t waiting, running, finished;      /* jobs, now */
  uint64_t jobs, failed, died, late, bytes; /* since the start; bytes of files */
} pe_decoder_stats;

void pe_decoder_read_stats(pe_decoder *d, pe_decoder_stats *out);

#endif
