/* child.h - the decoder child: what the program becomes when it is started with one hidden argument
 * (decoder.h starts it).
 *
 *   main ──► pe_child_main ──► confine ──► { receive, pe_child_work, send } until the socket closes
 *
 * Descriptor 0 is the socket, 1 and 2 are /dev/null, the environment is empty. One thread. */
#ifndef PE_CHILD_H
#define PE_CHILD_H

#include "runtime/image/wire.h"

#define PE_CHILD_ARGUMENT "--image-decoder"
enum { PE_CHILD_NOT_CONFINED = 3 }; /* an exit status: it has not looked at any picture */

/* Are these the arguments of a decoder child? */
bool pe_child_is_meant(int argc, char **argv);
int pe_child_main(int argc, char **argv); /* the exit status */

/* One job: `in` has request->size bytes, `out` the bytes of all targets. Fills the reply. */
void pe_child_work(const pe_wire_request *request, const uint8_t *in, uint8_t *out,
                   pe_wire_reply *reply);

#endif
