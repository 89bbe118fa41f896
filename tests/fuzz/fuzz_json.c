/* Random bytes through the JSON reader and the tree, which must agree whether the text is JSON. */
#include <stdlib.h>

#include "runtime/json.h"
#include "runtime/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pe_json r;
  pe_json_token t;
  pe_status rc;
  pe_json_open(&r, (const char *)data, size, 0);
  do {
    rc = pe_json_next(&r, &t, NULL);
    if (!rc && t.type == PE_JSON_STRING && pe_utf8_valid(t.str.at, t.str.len) != t.str.len) abort();
  } while (!rc && t.type != PE_JSON_END);
  pe_json_close(&r);
  pe_arena a = {0};
  pe_json_value *v = NULL;
  pe_error err;
  if (pe_json_parse((const char *)data, size, &a, &v, &err) != rc) abort();
  pe_arena_free(&a);
  return 0;
}
