/* Constants in a graph: ops on constants are computed at once; how constants repeat; refusals. */
#include "check.h"
#include "runtime/graph/graph.h"

static pe_weights *weights;
static pe_graph *graph;

static void open_graph(void) {
  pe_error err;
  CHECK_OK(pe_weights_open("tests/golden/qwen2", &weights, &err), err);
  if (weights) CHECK_OK(pe_graph_open(weights, &graph, &err), err);
}

static void close_graph(void) {
  pe_graph_release(graph), pe_weights_release(weights);
  graph = NULL, weights = NULL;
}

static pe_value constant(const char *name) {
  pe_error err;
  pe_param p = -1;
  pe_value v = -1;
  CHECK_OK(pe_graph_param(graph, name, &p, &err), err);
  CHECK_OK(pe_graph_constant(graph, p, &v, &err), err);
  return v;
}

/* -exp(w) * 2 + w of a vector of the file is a constant, close to what the C library computes. */
static void test_folding(void) {
  open_graph();
  pe_error err;
  pe_value w = constant("model.norm.weight"), v = w;
  CHECK_OK(pe_graph_unary(graph, PE_MAP_EXP, v, &v, &err), err);
  CHECK_OK(pe_graph_unary(graph, PE_MAP_NEG, v, &v, &err), err);
  CHECK_OK(pe_graph_binary_number(graph, PE_MAP_MUL, v, 2, false, &v, &err), err);
  CHECK_OK(pe_graph_binary(graph, PE_MAP_ADD, v, w, &v, &err), err);
  const pe_node *n = pe_graph_node(graph, v), *from = pe_graph_node(graph, w);
  CHECK_INT(n->op, PE_NODE_CONSTANT);
  CHECK_INT(n->rows, PE_EXTENT_CONST);
  CHECK_INT(n->width, from->width);
  CHECK_INT(n->inputs, 0);
  for (int i = 0; i < n->width; i++) {
    double x = from->vec[0][i], want = -exp(x) * 2 + x;
    CHECK_NEAR(n->vec[0][i], want, 1e-5 * (fabs(want) + 1));
  }
  close_graph();
}

/* Without groups all experts are one, also an odd number of them. */
static void test_route(void) {
  open_graph();
  pe_error err;
  pe_param table = -1;
  pe_value x = -1, route = -1;
  const pe_route_args args = {.kind = PE_ROUTE_SOFTMAX, .chosen = 2, .scale = 1};
  CHECK_OK(pe_graph_param(graph, "model.embed_tokens.weight", &table, &err), err);
  CHECK_OK(pe_graph_embed(graph, table, 1, &x, &err), err);
  CHECK_OK(pe_graph_slice(graph, x, false, 0, 3, &x, &err), err);
  CHECK_OK(pe_graph_route(graph, x, -1, -1, &args, &route, &err), err);
  CHECK_INT(pe_graph_node(graph, route)->args.route.groups, 1);
  close_graph();
}

/* A view of a constant is a constant of another shape that begins where the view begins. */
static void test_views(void) {
  open_graph();
  pe_error err;
  pe_value w = constant("model.norm.weight"), heads = -1, part = -1, none = -1;
  int32_t width = pe_graph_node(graph, w)->width;
  CHECK_OK(pe_graph_reshape(graph, w, 2, (int32_t[]){4, width / 4}, &heads, &err), err);
  CHECK_OK(pe_graph_slice(graph, heads, false, 1, 2, &part, &err), err);
  CHECK_INT(pe_graph_node(graph, part)->op, PE_NODE_CONSTANT);
  CHECK_INT(pe_graph_node(graph, part)->width, width / 2);
  CHECK(pe_graph_node(graph, part)->vec[0] == pe_graph_node(graph, w)->vec[0] + width / 4);
  CHECK_FAILS(pe_graph_slice(graph, heads, true, 0, 1, &none, &err), PE_EARG, err, "constant");
  close_graph();
}

/* A constant with [heads, width]: [heads] gives one value to each head, [width] is repeated for
 * each head. */
static void test_repetition(void) {
  open_graph();
  pe_error err;
  pe_param table = -1;
  pe_value x = -1, y = -1, w = constant("model.norm.weight"), few = -1, half = -1;
  CHECK_OK(pe_graph_param(graph, "model.embed_tokens.weight", &table, &err), err);
  CHECK_OK(pe_graph_embed(graph, table, 1, &x, &err), err);
  int32_t width = pe_graph_node(graph, x)->width;
  CHECK_OK(pe_graph_reshape(graph, x, 2, (int32_t[]){4, width / 4}, &x, &err), err);
  CHECK_OK(pe_graph_slice(graph, w, false, 0, 4, &few, &err), err);
  CHECK_OK(pe_graph_binary(graph, PE_MAP_MUL, few, x, &y, &err), err);
  CHECK_INT(pe_graph_node(graph, y)->op, PE_OP_MAP);
  CHECK_INT(pe_graph_node(graph, y)->rows, PE_EXTENT_ALL);
  CHECK_INT(pe_graph_node(graph, y)->args.map.input[0].repeat, width / 4);
  CHECK_OK(pe_graph_slice(graph, w, false, 0, width / 4, &few, &err), err);
  CHECK_OK(pe_graph_binary(graph, PE_MAP_MUL, x, few, &y, &err), err);
  CHECK_INT(pe_graph_node(graph, y)->args.map.input[1].repeat, 0);
  CHECK_OK(pe_graph_slice(graph, w, false, 0, width / 2, &half, &err), err);
  CHECK_FAILS(pe_graph_binary(graph, PE_MAP_MUL, x, half, &y, &err), PE_ESHAPE, err,
              "do not fit together");
  close_graph();
}

/* Errors about a view name the value it shows. */
static void test_names(void) {
  open_graph();
  pe_error err;
  pe_param table = -1;
  pe_value x = -1, v = -1, none = -1;
  CHECK_OK(pe_graph_param(graph, "model.embed_tokens.weight", &table, &err), err);
  CHECK_OK(pe_graph_embed(graph, table, 1, &x, &err), err);
  CHECK_OK(pe_graph_name(graph, x, "words", &err), err);
  int32_t width = pe_graph_node(graph, x)->width;
  CHECK_OK(pe_graph_reshape(graph, x, 2, (int32_t[]){2, width / 2}, &v, &err), err);
  CHECK_FAILS(pe_graph_slice(graph, v, false, 1, 2, &none, &err), PE_ESHAPE, err,
              "words: a slice of 2 from position 2 does not fit: the dimension is 2");
  CHECK_FAILS(pe_graph_reshape(graph, v, 1, (int32_t[]){width + 1}, &none, &err), PE_ESHAPE, err,
              "words has");
  close_graph();
}

/* The widest value there can be, in other shapes; none is computed. */
static void test_widest(void) {
  enum { WIDEST = 1 << 28 };
  open_graph();
  pe_error err;
  pe_value x = -1, v = -1, none = -1;
  CHECK_OK(pe_graph_patches(graph, WIDEST, &x, &err), err);
  CHECK_OK(pe_graph_reshape(graph, x, 3, (int32_t[]){WIDEST, 1, 1}, &v, &err), err);
  CHECK_FAILS(pe_graph_reshape(graph, x, 2, (int32_t[]){WIDEST, 2}, &none, &err), PE_ESHAPE, err,
              "has 268435456 values per row and cannot be reshaped to 536870912");
  CHECK_FAILS(pe_graph_patches(graph, WIDEST + 1, &none, &err), PE_ESHAPE, err,
              "a value can have 268435456 floats per row, got 268435457 or more");
  close_graph();
}

static const check_test tests[] = {
    {"maps of constants", test_folding},      {"views of constants", test_views},
    {"constants and heads", test_repetition}, {"names in errors", test_names},
    {"experts without groups", test_route},   {"the widest value", test_widest},
};
CHECK_MAIN("graph", tests)
