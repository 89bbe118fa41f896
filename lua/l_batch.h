/* l_batch.h - between the l_batch*.c files: requests and draws from Lua tables, events and counters
 * as Lua tables.
 *
 * Lists that a request points to live in userdata on the Lua stack, so a refusal that raises leaks
 * nothing; the batch copies them, and they are dropped with the stack. */
#ifndef PE_L_BATCH_H
#define PE_L_BATCH_H

#include "lua/bind.h"
#include "runtime/batch/worker.h"

/* [... request at arg] -> [..., lists]: a wrong type raises, a number out of range is an error.
 * Gives out->media, which the caller releases. */
pe_status pe_l_batch_request(lua_State *L, int arg, const pe_plan *plan, pe_request *out,
                             pe_error *err);
/* perigee.batch.fields: [] -> [list] of the scalar fields of a request. */
int pe_l_batch_fields(lua_State *L);
/* [..., list] -> [..., list, userdata]: a list of ids. `what` names it in errors. */
pe_ids_view pe_l_batch_ids(lua_State *L, int list, const char *what);
/* [... map at arg] -> [..., userdata]: {[id] = bias}. */
pe_bias_view pe_l_batch_bias(lua_State *L, int arg);
/* [... options at arg] -> [..., lists]: {bias, banned, force}, each optional. */
pe_draw pe_l_batch_draw(lua_State *L, int arg);

/* The crew of the batch at arg, borrowed; NULL: not an open batch. */
pe_crew *pe_l_batch_crew(lua_State *L, int arg);

/* [list] -> [list] */
void pe_l_batch_append_events(lua_State *L, const pe_event *event, int32_t count);
/* [] -> [list] */
void pe_l_batch_push_sequences(lua_State *L, const pe_seq_info *seq, int32_t count);
/* [... {[id] = table} at index] -> [..., list]: fills these tables; sequences without one are left
 * out. */
void pe_l_batch_refill_sequences(lua_State *L, int tables, const pe_seq_info *seq, int32_t count);
void pe_l_batch_push_stats(lua_State *L, const pe_batch_stats *s);              /* [] -> [table] */
void pe_l_batch_push_trace(lua_State *L, const pe_trace *trace, int32_t count); /* [] -> [list] */

#endif
