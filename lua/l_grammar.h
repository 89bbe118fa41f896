/* l_grammar.h - grammars between l_grammar.c and l_rules.c. */
#ifndef PE_L_GRAMMAR_H
#define PE_L_GRAMMAR_H

#include "lua/bind.h"
#include "runtime/grammar/tokmask.h"
#include "runtime/grammar/grammar.h"

/* [] -> [grammar] or [nil, err]; takes *g, which is NULL then, if rc is PE_OK. */
int pe_grammar_push(lua_State *L, pe_status rc, pe_grammar **g, const pe_error *err);
/* The grammar at arg, borrowed; raises for anything else. */
pe_grammar *pe_bind_grammar(lua_State *L, int arg);
/* [] -> [mask]; retains m. */
int pe_tokmask_push(lua_State *L, pe_tokmask *m);
/* Creates the class of builders. */
void pe_rules_class(lua_State *L);
int pe_rules_l_builder(lua_State *L); /* perigee.grammar.builder */

#endif
