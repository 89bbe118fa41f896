/* backend.c - see backend.h: the backends of this build. */
#include "runtime/device/backend.h"

#include <string.h>

/* The one that "auto" prefers comes first. */
static const pe_backend *const backends[] = {&pe_backend_metal, &pe_backend_cpu};
enum { BACKENDS = sizeof backends / sizeof *backends };

static pe_status unknown(const char *name, pe_error *err) {
  char names[64] = "";
  for (int i = 0; i < BACKENDS; i++) {
    if (i) strncat(names, ", ", sizeof names - strlen(names) - 1);
    strncat(names, backends[i]->name, sizeof names - strlen(names) - 1);
  }
  return pe_fail_field(err, PE_EUNSUPPORTED, "device", "device %.32s: this build has %s only", name,
                       names);
}

pe_status pe_backend_named(const char *name, const pe_backend **out, pe_error *err) {
  const bool any = !strcmp(name, "auto");
  for (int i = 0; i < BACKENDS; i++) {
    if (!any && strcmp(name, backends[i]->name)) continue;
    pe_status rc = backends[i]->available(err);
    if (!rc) *out = backends[i];
    if (!rc || !any) return rc;
  }
  return unknown(name, err);
}
