/* l_tensor.h - perigee.tensor: shared by its files.
 *
 * A Lua tensor is a pe_tensor in a perigee.Tensor object. Positions and axes count from 1, negative
 * ones from the end. Results that own their bytes report them to the collector; views own nothing.
 * Every error here is a mistake of the script, so it raises. l_tensor.c has the class, its fields
 * and printing, l_tensor_make.c creates tensors, l_tensor_view.c and l_tensor_math.c have the other
 * methods. The lists below become the class's table of methods. */
#ifndef PE_L_TENSOR_H
#define PE_L_TENSOR_H

#include "lua/bind.h"
#include "runtime/tensor/tensor.h"

extern const pe_class pe_tensor_class;

/* clang-format off */
#define PE_TENSOR_VIEW_METHODS(X)                                                                  \
  X(rows) X(slice) X(select) X(view) X(reshape) X(flatten) X(t) X(permute) X(swap) X(expand)       \
  X(squeeze) X(unsqueeze) X(contiguous) X(copy) X(to) X(fill) X(write) X(take)

#define PE_TENSOR_UNARY_METHODS(X)                                                                 \
  X(neg, PE_NEG) X(abs, PE_ABS) X(sign, PE_SIGN) X(square, PE_SQUARE) X(relu, PE_RELU)             \
  X(floor, PE_FLOOR) X(ceil, PE_CEIL) X(round, PE_ROUND) X(exp, PE_EXP) X(log, PE_LOG)             \
  X(sqrt, PE_SQRT) X(rsqrt, PE_RSQRT) X(sin, PE_SIN) X(cos, PE_COS) X(tanh, PE_TANH) X(erf, PE_ERF)\
  X(sigmoid, PE_SIGMOID) X(silu, PE_SILU) X(gelu, PE_GELU) X(gelu_tanh, PE_GELU_TANH)              \
  X(logical_not, PE_NOT) X(isnan, PE_ISNAN) X(isinf, PE_ISINF) X(isfinite, PE_ISFINITE)

#define PE_TENSOR_BINARY_METHODS(X)                                                                \
  X(add, PE_ADD) X(sub, PE_SUB) X(mul, PE_MUL) X(div, PE_DIV) X(idiv, PE_IDIV) X(mod, PE_MOD)      \
  X(pow, PE_POW) X(minimum, PE_MINIMUM) X(maximum, PE_MAXIMUM) X(eq, PE_EQ) X(ne, PE_NE)           \
  X(lt, PE_LT) X(le, PE_LE) X(gt, PE_GT) X(ge, PE_GE) X(logical_and, PE_AND) X(logical_or, PE_OR)

#define PE_TENSOR_REDUCE_METHODS(X)                                                                \
  X(sum, PE_SUM) X(mean, PE_MEAN) X(prod, PE_PROD) X(max, PE_MAX) X(min, PE_MIN) X(any, PE_ANY)    \
  X(all, PE_ALL) X(argmax, PE_ARGMAX) X(argmin, PE_ARGMIN) X(var, PE_VAR) X(std, PE_STD)           \
  X(norm, PE_NORM)

#define PE_TENSOR_OTHER_MATH(X)                                                                    \
  X(clamp) X(where) X(matmul) X(softmax) X(log_softmax) X(cumsum) X(sort) X(argsort) X(topk)       \
  X(equal) X(close_to)
/* clang-format on */

#define PE_DECLARE(name, ...) int pe_tensor_l_##name(lua_State *L);
PE_TENSOR_VIEW_METHODS(PE_DECLARE)
PE_TENSOR_UNARY_METHODS(PE_DECLARE)
PE_TENSOR_BINARY_METHODS(PE_DECLARE)
PE_TENSOR_REDUCE_METHODS(PE_DECLARE)
PE_TENSOR_OTHER_MATH(PE_DECLARE)
#undef PE_DECLARE

extern const luaL_Reg pe_tensor_functions[]; /* of perigee.tensor */
int pe_tensor_l_call(lua_State *L);          /* perigee.tensor(value, options) */

/* perigee.tensor.concat and stack: [parts, axis] -> [tensor] */
int pe_tensor_l_concat(lua_State *L);
int pe_tensor_l_stack(lua_State *L);

pe_tensor *pe_tensor_arg(lua_State *L, int arg);
/* [] -> [object, not yet open]; fill it, then call pe_tensor_give. Creating it may run finalizers,
 * which may close a tensor: check tensor arguments (again) after it. */
pe_tensor *pe_tensor_slot(lua_State *L);
/* Raise if rc is a failure, else open the object and return 1. The tensor owns its bytes, or is a
 * view. */
int pe_tensor_give(lua_State *L, pe_tensor *slot, pe_status rc, const pe_error *err);
int pe_tensor_give_view(lua_State *L, pe_tensor *slot, pe_status rc, const pe_error *err);

/* A tensor or number; a number is replaced on the stack by a tensor. `like` is the dtype of the
 * other operand. */
const pe_tensor *pe_tensor_operand(lua_State *L, int arg, pe_dtype like);
pe_number pe_tensor_number_arg(lua_State *L, int arg); /* a number or boolean */
void pe_tensor_push_number(lua_State *L, pe_number n, pe_dtype dtype);
int pe_tensor_axis_arg(lua_State *L, int arg, int rank, int absent); /* counts from 0 */
/* Counts from 0; `what` names the axis in errors. */
int64_t pe_tensor_position(lua_State *L, int arg, int64_t given, int64_t len, const char *what);
int pe_tensor_shape_arg(lua_State *L, int arg, int64_t *shape); /* a list; returns the rank */
pe_dtype pe_tensor_dtype_arg(lua_State *L, int arg, const char *name, size_t len);
/* A tensor, or a list of integers, which is replaced on the stack by a tensor. */
const pe_tensor *pe_tensor_positions_arg(lua_State *L, int arg);

#endif
