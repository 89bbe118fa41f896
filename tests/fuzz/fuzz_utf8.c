/* UTF-8 character by character: never reads past the end, always advances, and agrees with
 * pe_utf8_valid and pe_utf8_put. */
#include <stdlib.h>
#include <string.h>

#include "runtime/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!size) return 0;
  const char *at = (const char *)data, *end = at + size;
  size_t broken = size;
  while (at < end) {
    int32_t cp;
    int n = pe_utf8_next(at, end, &cp);
    if (n < 1 || n > end - at) abort();
    if (cp < 0 && broken == size) broken = (size_t)(at - (const char *)data);
    char back[4];
    if (cp >= 0 && (pe_utf8_put(back, cp) != n || memcmp(back, at, (size_t)n))) abort();
    at += n;
  }
  if (pe_utf8_valid((const char *)data, size) != broken) abort();
  return 0;
}
