/* Random bytes as a safetensors file: an error, or tensors that lie inside it. */
#include "runtime/weights/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pe_buffer *buf;
  pe_safetensors *s;
  pe_error err;
  if (pe_buffer_alloc(size, &buf, &err)) return 0;
  if (size) memcpy(buf->data, data, size);
  if (!pe_safetensors_read(buf, &s, &err)) {
    for (size_t i = 0; i < s->count; i++)
      if (s->tensor[i].at > size || s->tensor[i].bytes > size - s->tensor[i].at) abort();
    pe_safetensors_close(s);
  }
  pe_buffer_release(buf);
  return 0;
}
