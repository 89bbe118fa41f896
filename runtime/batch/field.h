/* field.h - the scalar fields of a request, described once: name, type, range, default, help.
 *
 * sampler.c and batch_request.c each have a table of fields. Checks, defaults, the Lua binding,
 * the request checker of the scripts and the HTTP API's schema all walk these tables, so a new
 * parameter is one struct member, one entry, and the code that uses it.
 *
 * A value equal to the field's default is always valid, also outside the range: that is how "not
 * given" is stored (max_tokens and top_logprobs: -1). */
#ifndef PE_FIELD_H
#define PE_FIELD_H

#include "runtime/base.h"

typedef enum pe_field_type {
  PE_FIELD_NUMBER,  /* float */
  PE_FIELD_INTEGER, /* int32_t */
  PE_FIELD_LONG,    /* uint64_t: any 64 bits, there is no range */
  PE_FIELD_BOOLEAN  /* bool */
} pe_field_type;

typedef struct pe_field {
  const char *name;
  pe_field_type type;
  size_t offset;   /* in the struct that the table describes */
  double min, max; /* inclusive; infinite: no bound but being finite */
  bool above;      /* min is exclusive */
  double absent;   /* the default; outside the range where "not given" has its own meaning */
  const char *help;
} pe_field;

typedef struct pe_field_list {
  const pe_field *field;
  size_t count;
} pe_field_list;

const char *pe_field_type_name(pe_field_type type); /* "number", "integer", "integer", "boolean" */

/* Is the value in the field's range? The error names the field, the range and the value. */
pe_status pe_field_check(const pe_field *f, double value, pe_error *err);

/* All fields of a struct: fill in the defaults; check, the first field out of range is reported. */
void pe_field_set_defaults(pe_field_list list, void *self);
pe_status pe_field_check_all(pe_field_list list, const void *self, pe_error *err);

#endif
