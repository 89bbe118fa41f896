/* l_graph.h - what bindings need of each other's objects. */
#ifndef PE_L_GRAPH_H
#define PE_L_GRAPH_H

#include "lua/bind.h"
#include "runtime/graph/graph.h"
#include "runtime/text/tokenizer.h"

const pe_weights *pe_bind_weights(lua_State *L, int arg);     /* a perigee.Weights, or raises */
pe_graph *pe_bind_graph(lua_State *L, int arg);               /* a perigee.Graph, or raises */
pe_tokenizer *pe_bind_tokenizer(lua_State *L, int arg); /* a perigee.Tokenizer, or raises */

#endif
