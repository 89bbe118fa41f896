#!/usr/bin/env python3
"""Seeds one mistake at a time into Metal's kernels and says whether the tests notice.

    python3 tests/metal/mutants_kernels.py [--build build] [--jobs N] [NAME...]

N mistakes are tried at once; CXX and CC as for make.

Every mistake is a replacement in one file, which must be found exactly once. The kernels that
include the file are rewritten and compiled for the checker, linked with the others, and one test is
run. Unnoticed mistakes are listed; exit 1 if there is one. Needs: make test-metal's programs.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

CXX = os.environ.get("CXX", "g++").split()
CC = os.environ.get("CC", "gcc").split()
ARGUMENTS = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
ARGUMENTS.add_argument("--build", default=os.environ.get("BUILD", "build"))
ARGUMENTS.add_argument("--jobs", type=int, default=1)
ARGUMENTS.add_argument("names", nargs="*")
OPTIONS = ARGUMENTS.parse_args()
BUILD = OPTIONS.build
FOLDER = "kernels/metal"
FLAGS = "-std=c++17 -w -fsigned-char -ffp-contract=off -fno-exceptions -fno-rtti -fPIC".split()

STATE_ROW = (" + (active ? of_head : 0u);\n"
             "  device float *state = states + state_at(call, segment) + (size_t)row * (size_t)n;\n"
             "  float s[STATE_LANES];\n  state_load(state, ")
# name, file, what is there, what takes its place, suite, test
MUTANTS = [
    # barriers and races
    ("norm: no barrier after the parts", "norm.metal",
     "if (lane == 0u) parts[simdgroup] = v;\n  threadgroup_barrier(mem_flags::mem_threadgroup);",
     "if (lane == 0u) parts[simdgroup] = v;", "kernels", "norm"),
    ("norm: no barrier before the parts", "norm.metal",
     "  threadgroup_barrier(mem_flags::mem_threadgroup);  // the parts", "  // the parts",
     "kernels", "norm"),
    ("norm: a barrier of the wrong memory", "norm.metal",
     "if (lane == 0u) parts[simdgroup] = v;\n  threadgroup_barrier(mem_flags::mem_threadgroup);",
     "if (lane == 0u) parts[simdgroup] = v;\n  threadgroup_barrier(mem_flags::mem_device);",
     "kernels", "norm"),
    ("norm: all lanes write one part", "norm.metal", "if (lane == 0u) parts[simdgroup] = v;",
     "parts[0] = v;", "kernels", "norm"),
    ("norm: parts that were not written", "norm.metal", "i < simdgroups; i++) sum",
     "i <= simdgroups; i++) sum", "kernels", "norm"),
    ("norm: a barrier that some lanes reach", "norm.metal",
     "if (lane == 0u) parts[simdgroup] = v;\n  threadgroup_barrier(mem_flags::mem_threadgroup);",
     "if (lane == 0u) parts[simdgroup] = v;\n"
     "  if (lane < 16u) threadgroup_barrier(mem_flags::mem_threadgroup);", "kernels", "norm"),
    ("norm: lanes that return early", "norm.metal", "  float mean = 0.0f, squares = 0.0f;",
     "  if (first >= width) return;\n  float mean = 0.0f, squares = 0.0f;", "kernels", "norm"),
    ("expert_sort: no barrier before the prefix", "expert.metal",
     "first[e] = count;\n  }\n  threadgroup_barrier(mem_flags::mem_threadgroup);",
     "first[e] = count;\n  }", "kernels", "experts"),
    ("expert_total: weights of another row", "expert.metal",
     "device const int *weights = chosen + line_at(row, call.in_step[1])",
     "device const int *weights = chosen + line_at(0, call.in_step[1])", "joined_experts",
     "totals"),
    ("expert_total: a bias of another expert", "expert.metal",
     "sums[c] += bias[line_at((int)expert, args.out) + columns[c]]",
     "sums[c] += bias[columns[c]]", "joined_experts", "totals"),
    ("expert_total: every lane stores", "expert.metal",
     "if (!stores(c, lane % PARTS) || column >= (uint)args.out) continue;",
     "if (column >= (uint)args.out) continue;", "joined_experts", "totals"),
    ("expert_total: the bias of the product is forgotten", "expert.metal",
     "if (has_vec(call, 1)) sums[c] += bias2[columns[c]];", "sums[c] += 0.0f;", "joined_experts",
     "totals"),
    ("expert_total: the product of another row", "expert.metal",
     "input.x[0] = from + line_at(row, after.step[i]);", "input.x[0] = from;", "joined_experts",
     "totals"),
    ("a map after it: lines of another row", "common.metal",
     "in[line_at(row, after.step[i]) +", "in[line_at(0, after.step[i]) +", "joined",
     "after a product"),
    ("joined: the fourth begins a group early", "linear.metal",
     "const uint fourth = third + ((uint)call.mat3.rows + width - 1u) / width;",
     "const uint fourth = third + (uint)call.mat3.rows / width;", "joined", "joined"),
    ("shared expert: the line of another row", "expert.metal",
     "input.x[0] = in + line_at(row, call.in_step[0]);", "input.x[0] = in;", "joined_experts",
     "shared"),
    ("shared expert: one chosen expert less", "expert.metal",
     "const bool shared = rank == args.chosen;", "const bool shared = rank + 1 >= args.chosen;",
     "joined_experts", "shared"),
    ("shared expert: a bias of another expert", "expert.metal",
     "const size_t at = line_at(expert, args.out) + column[0];", "const size_t at = column[0];",
     "joined_experts", "shared"),
    ("shared expert: as wide as the others", "expert.metal",
     "const int width = shared ? call.mat3.rows : args.out;", "const int width = args.out;",
     "joined_experts", "shared"),
    ("shared expert: every lane stores", "expert.metal",
     "if (lane % PARTS == 0u && first < (uint)width) y[first]", "if (first < (uint)width) y[first]",
     "joined_experts", "shared"),
    ("store: values normalized without their weight", "store.metal",
     "v *= from.weight[i] + call.norm.offset;", "v *= 1.0f;", "memory", "norm of values"),
    ("expert_linear: a map of the first expert", "expert.metal", "row, at + (int)column, y, 0.0f)",
     "row, (int)column, y, 0.0f)", "joined_experts", "maps"),
    ("latent: what is turned is normalized too", "rope.metal",
     "if (p.first < args.norm.width)", "if (args.norm.width != 0)", "memory", "latent"),
    ("latent: the norm of the whole key", "rope.metal",
     "norm_factor(args.norm, args.norm.width, x, lane)",
     "norm_factor(args.norm, args.dim, x, lane)", "memory", "latent"),
    ("heads: not where a concat would put them", "linear.metal",
     "part_at(call.out_part, (int)group.z * args.out) + column] =",
     "(size_t)((int)group.z * args.out) + column] =", "kernels", "heads"),
    ("rope: not where a concat would put it", "position.metal",
     "out + line_at(row, call.out_step) + part_at(call.out_part, at), lane);",
     "out + line_at(row, call.out_step) + at, lane);", "kernels", "rope"),
    ("a part: heads without distance", "common.metal", "p.from + j / p.count * p.dim +",
     "p.from + j / p.count * p.count +", "kernels", "rope"),
    ("a part: of the first input", "map.metal", "part_at(call.part[i], at_column)",
     "part_at(call.part[0], at_column)", "kernels", "map"),
    ("a part: heads that are not sliced", "linear.metal",
     "part_at(call.part[0], (int)group.z * args.in)", "(size_t)((int)group.z * args.in)",
     "kernels", "heads"),
    ("a part: transposed heads that are not sliced", "linear.metal",
     "part_at(call.part[0], (int)at.z * args.in)", "(size_t)((int)at.z * args.in)", "kernels",
     "heads"),
    ("a part: groups of a norm that are not sliced", "norm.metal", "part_at(call.part[0], (int)at)",
     "at", "kernels", "norm"),
    ("concat: heads of another input", "common.metal",
     "p.at += head * args.width[p.input];", "p.at += head * args.width[0];", "kernels", "copies"),
    ("conv: the step of the first of several inputs", "recur.metal",
     "in[line_at(r, call.in_step[p.input])]", "in[line_at(r, call.in_step[0])]", "memory", "conv"),
    ("delta: norms race with the rows that use them", "recur.metal",
     "n, lane);\n  }\n  threadgroup_barrier(mem_flags::mem_threadgroup);\n",
     "n, lane);\n  }\n", "memory", "delta"),
    ("delta: norms before the chunk is there", "recur.metal",
     "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  if (before.norms[0]",
     "  if (before.norms[0]", "memory", "delta"),
    ("delta: keys normalized as queries", "recur.metal",
     "norm_before(before.norm[i / rows], x", "norm_before(before.norm[0], x", "memory", "delta"),
    ("delta: the scale of a norm is forgotten", "recur.metal", "x[i] * factor * norm.scale",
     "x[i] * factor", "memory", "delta"),
    ("delta: the decay of another channel", "recur.metal",
     "const int column = (int)(head * factors + i % factors);",
     "const int column = (int)(head * factors);", "memory", "delta"),
    ("delta: beta of another head", "recur.metal",
     "in.vec2, in.vec3, (int)head)", "in.vec2, in.vec3, 0)", "memory", "delta"),
    ("delta_norm: the norm before the head is there", "recur.metal",
     "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    for (uint i = simdgroup; i < rows;",
     "    for (uint i = simdgroup; i < rows;", "memory", "delta"),
    ("delta_norm: the weights of the first head", "recur.metal",
     "weight[w + j] + call.norm.offset", "weight[j] + call.norm.offset", "memory", "delta"),
    ("delta_norm: a map of the first head", "recur.metal",
     "(int)(head * width + j), x * call.norm.scale", "(int)j, x * call.norm.scale", "memory",
     "delta"),
    ("delta_norm: a row of the state that is not written", "recur.metal",
     "      state_store(state + (size_t)v * (size_t)n, n, lane, s);\n", "", "memory", "delta"),
    ("delta: a vector as a line", "recur.metal",
     "map.input[i].fixed != 0 ? vec[at] : x[part_at(part, at)];", "x[part_at(part, at)];",
     "memory", "delta"),
    ("a map after it: the function is forgotten", "common.metal",
     "registers[i] = after.function[i] < 0 ? x : unary(after.function[i], x);", "registers[i] = x;",
     "joined", "after a norm"),
    ("a map after it: the result and the product swapped", "common.metal",
     "i == after.self ? result : product;", "i == after.self ? product : result;",
     "joined_experts", "totals"),
    ("norm: a map of another group", "norm.metal", "(int)(at + i), v * args.scale",
     "(int)i, v * args.scale", "joined", "after a norm"),
    ("attention: a map of another head", "attention.metal",
     "map3, first + r, start + i,", "map3, first + r, i,", "memory", "attention of decode"),
    ("attention: parts are joined without their map", "attention.metal",
     "mapped(after, map0, map1, map2, map3, row, column, mixed * kept / sum, 0.0f)",
     "mixed * kept / sum", "memory", "attention of decode"),
    ("ssm: a map of another row", "recur.metal",
     "mapped(after, map0, map1, map2, map3, r, (int)row, y, 0.0f)",
     "mapped(after, map0, map1, map2, map3, first, (int)row, y, 0.0f)", "memory", "ssm"),
    ("conv: a map before the activation", "recur.metal",
     "    if (args.activation >= 0) y = unary(args.activation, y);\n"
     "    out[line_at(r, call.out_step) + at.x] =\n"
     "        mapped(after, map0, map1, map2, map3, r, (int)at.x, y, 0.0f);",
     "    y = mapped(after, map0, map1, map2, map3, r, (int)at.x, y, 0.0f);\n"
     "    if (args.activation >= 0) y = unary(args.activation, y);\n"
     "    out[line_at(r, call.out_step) + at.x] = y;", "memory", "conv"),
    ("expert_gated: without its norm", "expert.metal",
     "  if (NORM != 0u) norm_input<R>(call.norm, weight, lane, input);\n", "", "joined_experts",
     "norm inside"),
    ("store: values before the keys were read", "store.metal",
     "  if (value == 0u) return;\n  threadgroup_barrier(mem_flags::mem_threadgroup);",
     "  if (value == 0u) return;", "memory", "store"),
    ("attention: weights overwritten too early", "attend.metal",
     "  simdgroup_barrier(mem_flags::mem_threadgroup);  // the weights", "  // the weights",
     "memory", "attention of decode"),
    ("attention: weights read too early", "attend.metal",
     "= weight;\n  }\n  simdgroup_barrier(mem_flags::mem_threadgroup);", "= weight;\n  }",
     "memory", "attention of decode"),
    ("route: scores without a barrier", "choose.metal",
     "x[i];\n  simdgroup_barrier(mem_flags::mem_threadgroup);", "x[i];", "kernels", "route"),
    ("route: an expert is taken twice", "choose.metal", "taken |= 1u << (uint)(best / 32);",
     "taken |= 0u;", "kernels", "route"),
    ("route: a group that was dropped", "choose.metal", "c.each = each, c.kept = kept;", "",
     "kernels", "route"),
    ("experts that choose: no barrier", "expert.metal",
     "factor);\n    threadgroup_barrier(mem_flags::mem_threadgroup);", "factor);",
     "joined_experts", "routes"),
    ("experts that choose: every group writes", "expert.metal",
     "group.x == 0u && rank == 0 && simdgroup == 0u && k", "k", "joined_experts", "routes"),
    ("experts that choose: the logits of another row", "expert.metal",
     "logits + line_at(row, call.in_step[2])", "logits", "joined_experts", "routes"),
    ("lanes: a sum in half of them", "common.metal",
     "for (ushort d = 1; d < 32; d *= 2) v += simd_shuffle_xor(v, d);",
     "for (ushort d = 1; d < 16; d *= 2) v += simd_shuffle_xor(v, d);", "kernels", "norm"),
    # bounds
    ("linear: columns after the last are read", "product.metal",
     "columns[c] = min(first + (uint)c, out - 1u);", "columns[c] = first + (uint)c;", "kernels",
     "linear in place"),
    ("linear: columns after the last are stored", "linear.metal",
     "row + r >= rows || column >= (uint)to.width) continue;\n"
     "      to.out[line_at(row + r, to.step) + column] =\n          mapped",
     "row + r >= rows) continue;\n      to.out[line_at(row + r, to.step) + column] =\n"
     "          mapped", "kernels", "linear in place"),
    ("linear: rows after the last are read", "linear.metal",
     "input.x[r] = in + line_at(min(row + r, call.rows - 1), call.in_step[0]);",
     "input.x[r] = in + line_at(row + r, call.in_step[0]);", "kernels", "linear in place"),
    ("product: the last block is whole", "product.metal",
     "k < min(in, (block + 1u) * BLOCK); k += 8u", "k < (block + 1u) * BLOCK; k += 8u", "kernels",
     "heads"),
    ("weights: a byte after the codes", "weight.metal", "if (shift + bits > 8u)", "if (true)",
     "kernels", "embed"),
    ("embed: eight values at the end of a row", "embed.metal",
     "for (uint i = 0; i < min(8u, cols - k); i++) y[k + i] =",
     "for (uint i = 0; i < 8u; i++) y[k + i] =", "kernels", "embed"),
    ("copy: one thread too many", "copy.metal", "if ((int)at.x >= args.heads * args.count) return;",
     "if ((int)at.x > args.heads * args.count) return;", "kernels", "copies"),
    ("attention: keys of invisible blocks", "attend.metal",
     "max(seen.from, min(t, seen.to - 1))", "t", "memory", "attention of decode"),
    # order and arithmetic
    ("product: eight rows in another order", "product.metal",
     "for (uint k = block * BLOCK; k < min(in, (block + 1u) * BLOCK); k += 8u) {",
     "for (uint p = 0; p < BLOCK; p += 8u) {\n"
     "      const uint k = block * BLOCK + (R == 8 ? BLOCK - 8u - p : p);\n"
     "      if (k >= in) continue;", "kernels", "linear in place,rows of linear"),
    ("wide: a stage is overwritten while it is read", "product.metal",
     "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    if (s + 1u < steps)",
     "    if (s + 1u < steps)", "kernels", "rows of linear"),
    ("wide: the last steps are left out", "product.metal",
     "/ (PARTS * BLOCK) * 4u;", "/ (PARTS * BLOCK) * 4u - 3u;", "kernels", "gated"),
    ("wide: the blocks of another part", "product.metal",
     "return (s / 4u * PARTS + part) * BLOCK + s % 4u * 8u;",
     "return (s / 4u * PARTS + (part + 1u) % PARTS) * BLOCK + s % 4u * 8u;", "kernels",
     "rows of linear"),
    ("joined: the second begins a group early", "linear.metal",
     "const uint second = ((uint)call.mat.rows + width - 1u) / width;",
     "const uint second = (uint)call.mat.rows / width;", "joined", "joined"),
    ("joined: the bias of another", "linear.metal",
     "joined_to(call, 2u, out3,", "joined_to(call, 1u, out3,", "joined", "joined"),
    ("a norm inside adds in another order", "common.metal",
     "for (int i = 32 * g + (int)lane; i < width; i += 32 * simdgroups) part",
     "for (int i = 32 * (simdgroups - 1 - g) + (int)lane; i < width; i += 32 * simdgroups) part",
     "joined", "norm inside,joined norms"),
    ("a norm inside forgets its offset", "product.metal",
     "v[i] *= input.weight[k + i] + input.offset;", "v[i] *= input.weight[k + i];", "joined",
     "norm inside"),
    ("rope_store: a head too few is turned", "store.metal",
     "if (group.x < heads) {", "if (group.x + 1u < heads) {", "memory", "rope and store"),
    ("attention: parts are not joined in order", "attention.metal",
     "for (int part = seen.from / PE_ATTENTION_PART; part * PE_ATTENTION_PART < seen.to; part++) {",
     "for (int part = (seen.to - 1) / PE_ATTENTION_PART; part >= seen.from / PE_ATTENTION_PART;\n"
     "       part--) {",
     "memory", "attention of decode"),
    ("attention: one part less", "attention.metal",
     "part * PE_ATTENTION_PART < to;\n       part++)",
     "(part + 1) * PE_ATTENTION_PART < to;\n       part++)", "memory", "attention of decode"),
    ("attention: the window is one too wide", "attention.metal", "index - args.window + 1 : 0",
     "index - args.window : 0", "memory", "attention of decode"),
    ("attention: the sink is forgotten", "attend.metal",
     "sum = join(sum, kept, 1.0f, factor);", "", "memory", "attention of decode"),
    ("delta: the state is not decayed", "recur.metal",
     "s[i] *= decay[channel ? j : 0u];", "", "memory", "delta"),
    ("delta: a chunk is overwritten while it is read", "recur.metal",
     "  threadgroup_barrier(mem_flags::mem_threadgroup);  // the chunk before has been read\n"
     "  chunk_copy(in.queries", "  chunk_copy(in.queries", "memory", "delta"),
    ("ssm: a chunk is read before it is there", "recur.metal",
     "precise::exp(-precise::exp(log_a[head]) * dt);\n    }\n"
     "    threadgroup_barrier(mem_flags::mem_threadgroup);",
     "precise::exp(-precise::exp(log_a[head]) * dt);\n    }", "memory", "ssm"),
    ("ssm: rows of a state that there are not", "recur.metal",
     "const bool active = of_head < (uint)args.dim;", "const bool active = true;", "memory", "ssm"),
    ("delta: a row that another simdgroup stores", "recur.metal",
     "args.value" + STATE_ROW + "active ? n : 0u", "args.value" + STATE_ROW + "n", "memory",
     "delta"),
    ("conv: the oldest input is kept", "recur.metal",
     "for (int t = 0; t < before; t++) past[t] = past[t + 1];", "", "memory", "conv"),
    ("shortlist: a sum goes on after the line", "shortlist.metal",
     "at < args.vocabulary && v >= low", "v >= low", "shortlist", "sums"),
    ("shortlist: sums of the first scale", "shortlist.metal", ".sums[group.z]", ".sums[0]",
     "shortlist", "sums"),
    ("shortlist: lanes added in another order", "shortlist.metal",
     "ushort d = 8; d > 0; d /= 2", "ushort d = 1; d < 16; d *= 2", "shortlist", "sums"),
    ("shortlist: a weight below the lowest", "shortlist.metal",
     "rest > 0.0f ? of_rank(rank_of(low) + 1) : low", "low", "shortlist", "far_sums"),
    ("shortlist: weights without fma", "shortlist.metal",
     "fma(d, factor, magic - shifted)", "d * factor + (magic - shifted)", "shortlist", "sums"),
    ("shortlist: neighbours in one lane", "shortlist.metal",
     "int i = (int)(lane % 16u); i < PE_SHORTLIST_BLOCK; i += 16",
     "int i = 32 * (int)(lane % 16u); i < 32 * (int)(lane % 16u) + 32; i++", "shortlist", "sums"),
    ("shortlist: sums of the first output", "shortlist.metal",
     "line_at(row * 2 + (int)group.z", "line_at((int)group.z", "shortlist", "sums"),
    ("shortlist: a block too few", "shortlist.metal", "first >= args.blocks ||",
     "first + 1 >= args.blocks ||", "shortlist", "sums"),
    ("rope: the wrong sign", "rope.metal", "-(v * sine)", "v * sine", "kernels", "rope"),
    ("Q6_K: the wrong plane", "weight.metal", "two_bits(b + 128, j) << 4",
     "two_bits(b + 128, i) << 4", "kernels", "embed"),
    ("KV: a short group is filled with what follows", "store.metal", "x[min(i, width - 1u)]",
     "x[i]", "memory", "store"),
    ("expert_sort: 40 KB for a threadgroup", "args.h", "PE_SORT_EXPERTS = 1024,",
     "PE_SORT_EXPERTS = 5120,", "kernels", "experts"),
    ("table: a group too few", "table.c",
     "return (uint32_t)((n + each - 1) / each);", "return (uint32_t)(n > each ? n / each : 1);",
     "kernels", "map"),
]


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, errors="replace", **more)


def includes(path, seen=None):
    """The files of kernels/metal that `path` includes, over others too."""
    seen = set() if seen is None else seen
    with open(path) as f:
        for name in re.findall(r'#include "(kernels/metal/[^"]+)"', f.read()):
            if name not in seen:
                seen.add(name)
                includes(name, seen)
    return seen


def kernels():
    names = sorted(f for f in os.listdir(FOLDER) if f.endswith(".metal"))
    return [f for f in names if "kernel void" in open(f"{FOLDER}/{f}").read()]


def compile_kernel(name, overlay):
    """One kernel file for the checker, with the changed file before ours."""
    stem = name[: -len(".metal")]
    source = f"{overlay}/{FOLDER}/{name}"
    source = source if os.path.exists(source) else f"{FOLDER}/{name}"
    done = run(CXX + ["-E", "-x", "c++", "-nostdinc", "-D__METAL_VERSION__=310",
                      "-Itests/metal/stub", f"-I{overlay}", "-I.", source])
    done = run([f"{BUILD}/perigee", "run", "tests/metal/mslx.lua", "host", stem],
               input=done.stdout)
    if done.returncode:
        return None, done.stderr
    with open(f"{overlay}/{stem}.cpp", "w") as f:
        f.write(done.stdout)
    out = f"{overlay}/{stem}.o"
    done = run(CXX + FLAGS + ["-O1", "-g", "-fsanitize=thread", "-I.", "-c",
                              f"{overlay}/{stem}.cpp", "-o", out])
    return (None, done.stderr) if done.returncode else (out, "")


def link(overlay, changed, suite):
    objects = []
    for name in kernels():
        stem = name[: -len(".metal")]
        objects.append(changed.get(name, f"{BUILD}/metal/check/{stem}.o"))
    objects += [f"{BUILD}/metal/host/{n}.o" for n in ("init", "exec", "check")]
    if "table.c" in changed:
        objects.append(changed["table.c"])
    test = f"{overlay}/test"
    flags = "-std=gnu11 -w -O1 -ffp-contract=off -I. -Itests/c -Itests/metal -DCHECKED".split()
    libraries = run(["pkg-config", "--libs", "libpcre2-8", "libutf8proc", "libwebp"]).stdout.split()
    done = run(CC + flags + ["-o", test, f"tests/metal/test_{suite}.c"] + objects +
               [f"{BUILD}/libperigee.a"] + libraries + ["-lm", "-lpthread", "-ldl", "-lrt"])
    return (None, done.stderr) if done.returncode else (test, "")


def check(mutant):
    """What noticed the mistake, or None."""
    _, file, old, new, suite, tests = mutant
    text = open(f"{FOLDER}/{file}").read()
    if text.count(old) != 1:
        raise SystemExit(f"{mutant[0]}: found {text.count(old)} times in {file}, not once")
    with tempfile.TemporaryDirectory() as overlay:
        os.makedirs(f"{overlay}/{FOLDER}")
        with open(f"{overlay}/{FOLDER}/{file}", "w") as f:
            f.write(text.replace(old, new))
        changed = {}
        if file == "table.c":
            changed[file] = f"{overlay}/table.o"
            run(CC + ["-std=c11", "-w", "-I.", "-c", f"{overlay}/{FOLDER}/{file}", "-o",
                      changed[file]])
        for name in kernels():
            if file == name or f"{FOLDER}/{file}" in includes(f"{FOLDER}/{name}"):
                changed[name], why = compile_kernel(name, overlay)
                if not changed[name]:
                    return "does not compile: " + why.strip().split("\n")[0]
        test, why = link(overlay, changed, suite)
        if not test:
            raise SystemExit(f"{mutant[0]}: does not link: {why[:300]}")
        for name in tests.split(","):
            try:
                done = run([test, name], timeout=120)
            except subprocess.TimeoutExpired:
                return "does not end"
            if done.returncode:
                lines = done.stdout.strip().split("\n") or [""]
                return lines[0].strip() if lines[0] else f"exit {done.returncode}"
    return None


def main():
    names, unnoticed = OPTIONS.names, []
    wanted = [m for m in MUTANTS if not names or any(n in m[0] for n in names)]
    with concurrent.futures.ThreadPoolExecutor(OPTIONS.jobs) as pool:
        for mutant, found in zip(wanted, pool.map(check, wanted)):
            print(f"{'noticed' if found else 'UNNOTICED':9} {mutant[0]}: {(found or '')[:140]}",
                  flush=True)
            if not found:
                unnoticed.append(mutant[0])
    passed = len(wanted) - len(unnoticed)
    print(f"metal mutants: {passed} passed, {len(unnoticed)} failed, 0 skipped")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
