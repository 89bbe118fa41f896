/* decoder_child.h - the program's end of one decoder child: starting it, one exchange, ending it.
 * Used by decoder.c only, on the thread that owns the child. */
#ifndef PE_DECODER_CHILD_H
#define PE_DECODER_CHILD_H

#include "runtime/buffer.h"
#include "runtime/image/wire.h"

#include <sys/types.h>

typedef struct pe_decoder_child {
  pid_t pid;  /* 0: not running */
  int socket; /* to it */
  int jobs;   /* that it has done */
} pe_decoder_child;

/* `memory`: bytes of addresses that the child may map. */
pe_status pe_decoder_child_start(pe_decoder_child *c, uint64_t memory, pe_error *err);
/* Kills it and waits. True if it had ended by itself because it could not be confined. */
bool pe_decoder_child_stop(pe_decoder_child *c);

typedef enum pe_exchange { PE_EXCHANGE_DONE, PE_EXCHANGE_DIED, PE_EXCHANGE_LATE } pe_exchange;

/* Sends the request with these descriptors (-1: none) and waits for the reply until pe_clock_ns()
 * reaches `until`. DIED also if the child says something that makes no sense. */
pe_exchange pe_decoder_child_ask(pe_decoder_child *c, const pe_wire_request *request,
                                 const int fd[2], int64_t until, pe_wire_reply *reply);

#endif
