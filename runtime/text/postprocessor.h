/* postprocessor.h - the `post_processor` of a tokenizer.json, for a single text: the ids to put
 * before and after it when special tokens are wanted.
 *
 * TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel (which changes offsets only) and
 * Sequence, whose later members wrap the result of the earlier ones. An unknown kind is an error
 * that names it.
 *
 * Threads: immutable after reading. */
#ifndef PE_POSTPROCESSOR_H
#define PE_POSTPROCESSOR_H

#include "runtime/json.h"
#include "runtime/text/ids.h"

typedef struct pe_postprocessor {
  pe_ids before, after;
} pe_postprocessor; /* {0} adds nothing */

/* v NULL or JSON null: adds nothing. The tree may be freed afterwards. *p must be freed even if
 * this fails. */
pe_status pe_postprocessor_read(const pe_json_value *v, pe_postprocessor *p, pe_error *err);
void pe_postprocessor_free(pe_postprocessor *p);

#endif
