/* l_graph.h - graphs, plans and weights of other bindings. */
#ifndef PE_L_GRAPH_H
#define PE_L_GRAPH_H

#include "lua/bind.h"
#include "runtime/device/backend.h"
#include "runtime/graph/graph.h"
#include "runtime/text/tokenizer.h"

/* The object at this argument; raises if it is of another class or closed. */
pe_weights *pe_bind_weights(lua_State *L, int arg);
pe_graph *pe_bind_graph(lua_State *L, int arg);
/* The option "precision"; absent: exact. */
pe_precision pe_bind_precision(lua_State *L, int arg);
/* The backend that the option "device" names; absent: "auto". */
pe_status pe_bind_device(lua_State *L, int arg, const pe_backend **out, pe_error *err);
pe_tokenizer *pe_bind_tokenizer(lua_State *L, int arg);
/* Reads the values named in the option "taps"; returns their number. Raises if there are more than
 * `most` or a name is unknown. */
int pe_bind_taps(lua_State *L, int arg, const pe_graph *g, pe_value *out, int most);

/* ---- between the l_graph*.c files and l_plan.c ----------------------------------------------- */

extern const pe_class pe_plan_class;
int pe_graph_l_plan(lua_State *L); /* the method Graph:plan */
/* Methods for towers (l_graph_tower.c). */
int pe_graph_l_permute(lua_State *L);
int pe_graph_l_layer_norm(lua_State *L);
int pe_graph_l_patches(lua_State *L);
int pe_graph_l_lookup(lua_State *L);
int pe_graph_l_merge(lua_State *L);
int pe_graph_l_region_attention(lua_State *L);
/* [] -> [table]: name, op, shape and weight of a value; steps of a map; scale and window of an
 * attention. */
void pe_graph_push_value(lua_State *L, const pe_graph *g, pe_value v);
void pe_graph_set_steps(lua_State *L, const pe_map_args *m); /* [table] -> [table with steps] */

#endif
