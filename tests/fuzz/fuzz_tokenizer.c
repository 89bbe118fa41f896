/* Random bytes as a tokenizer.json: an error, or a tokenizer that round-trips safely. */
#include "round_trip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pe_tokenizer *t = NULL;
  if (pe_tokenizer_read_json((const char *)data, size, &t, NULL)) return 0;
  round_trips(t);
  pe_tokenizer_release(t);
  return 0;
}
