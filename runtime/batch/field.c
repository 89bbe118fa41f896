/* field.c - see field.h. */
#include "runtime/batch/field.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *pe_field_type_name(pe_field_type type) {
  static const char *const names[] = {"number", "integer", "integer", "boolean"};
  return names[type];
}

/* "between 0 and 1", "above 0 and at most 1", "0 or more", "above 0", "finite". */
static void describe_range(const pe_field *f, double value, char *out, size_t size) {
  if (isfinite(f->max))
    snprintf(out, size, f->above ? "above %.9g and at most %.9g" : "between %.9g and %.9g", f->min,
             f->max);
  else if (isfinite(f->min) && isfinite(value))
    snprintf(out, size, f->above ? "above %.9g" : "%.9g or more", f->min);
  else
    snprintf(out, size, "finite");
}

pe_status pe_field_check(const pe_field *f, double value, pe_error *err) {
  bool low = f->above ? value > f->min : value >= f->min;
  if (isfinite(value) && low && value <= f->max) return PE_OK;
  char range[80];
  describe_range(f, value, range, sizeof range);
  return pe_fail_field(err, PE_EARG, f->name, "%s must be %s, got %.9g", f->name, range, value);
}

void pe_field_set_defaults(pe_field_list list, void *self) {
  for (size_t i = 0; i < list.count; i++) {
    const pe_field *f = &list.field[i];
    void *at = (char *)self + f->offset;
    switch (f->type) {
    case PE_FIELD_NUMBER: memcpy(at, &(float){(float)f->absent}, sizeof(float)); break;
    case PE_FIELD_INTEGER: memcpy(at, &(int32_t){(int32_t)f->absent}, sizeof(int32_t)); break;
    case PE_FIELD_LONG: memcpy(at, &(uint64_t){(uint64_t)f->absent}, sizeof(uint64_t)); break;
    case PE_FIELD_BOOLEAN: memcpy(at, &(bool){f->absent != 0}, sizeof(bool)); break;
    }
  }
}

static pe_status check_member(const pe_field *f, const void *at, pe_error *err) {
  float number;
  int32_t integer;
  switch (f->type) {
  case PE_FIELD_NUMBER:
    memcpy(&number, at, sizeof number);
    return number == (float)f->absent ? PE_OK : pe_field_check(f, (double)number, err);
  case PE_FIELD_INTEGER:
    memcpy(&integer, at, sizeof integer);
    return integer == (int32_t)f->absent ? PE_OK : pe_field_check(f, integer, err);
  default: return PE_OK;
  }
}

pe_status pe_field_check_all(pe_field_list list, const void *self, pe_error *err) {
  pe_status rc = PE_OK;
  for (size_t i = 0; !rc && i < list.count; i++)
    rc = check_member(&list.field[i], (const char *)self + list.field[i].offset, err);
  return rc;
}
