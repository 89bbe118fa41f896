/* Any bytes as a tokenizer.json; what loads must encode and decode without harm, streamed as whole. */
#include "round_trip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pe_tokenizer *t = NULL;
  if (pe_tokenizer_read((const char *)data, size, &t, NULL)) return 0;
  round_trips(t);
  pe_tokenizer_release(t);
  return 0;
}
