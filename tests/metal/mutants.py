#!/usr/bin/env python3
"""Are mistakes in the host of Metal noticed? Makes each one of a list and runs the suites.

    make test-metal runs it;  tests/metal/mutants.py [--build BUILD] [--cc CC] [--jobs N] [NAME...]

NAME is a part of a name; N mutants are tried at once.

A mutant is one file with one change: a lost barrier, a leaked object, a swapped operand. It is
compiled, linked before the library that has the right version, and run against the fake Metal: the
suites of the host, then a few models. It is noticed if either fails, dies or takes two minutes. The
last line has the three counts of every suite. BUILD must be complete (make tests)."""
import argparse
import concurrent.futures
import os
import subprocess
import sys
import tempfile

GPU, PIPELINE = "kernels/metal/gpu.c", "kernels/metal/gpu_pipeline.c"
STORE, STEP, WALK, DISPATCH, PULL, UNITS, LIST, METAL = (
    f"runtime/device/metal{x}.c"
    for x in ("_store", "_step", "_walk", "_dispatch", "_pull", "_units", "_shortlist", ""))
# name, file, what is there, what takes its place
MUTANTS = [
    ("fast mathematics", GPU, "pe_mtl_options_math(options, PE_MTL_MATH_SAFE)", "(void)0"),
    ("encoder not ended", GPU, "  pe_mtl_encoder_end(c->encoder);\n  g->objc->pop",
     "  g->objc->pop"),
    ("dropped encoder not ended", GPU, "  pe_mtl_encoder_end(c->encoder); /*", "  /*"),
    ("no wait", GPU, "  *done = wait_for(g, c, most_ms);", "  *done = true;"),
    ("no signal", GPU, "  pe_mtl_commands_signal(c->buffer, g->event, c->number);\n", ""),
    ("waits for ever", GPU, "if (most_ms <= WATCH_MS) return false;", ""),
    ("event leaked", GPU, "g->event, g->queue, g->device}", "g->queue, g->device}"),
    ("committed twice", GPU, "pe_mtl_commands_commit(c->buffer);",
     "pe_mtl_commands_commit(c->buffer), pe_mtl_commands_commit(c->buffer);"),
    ("command buffer leaked", GPU, "    pe_mtl_release(c->buffer);\n    *c", "    *c"),
    ("command buffer released twice", GPU, "    pe_mtl_release(c->buffer);\n    *c",
     "    pe_mtl_release(c->buffer), pe_mtl_release(c->buffer);\n    *c"),
    ("command buffer not retained", GPU, "pe_mtl_retain(pe_mtl_queue_commands(g->queue))",
     "pe_mtl_queue_commands(g->queue)"),
    ("no pool", GPU, "c->pool = g->objc->push();", "c->pool = NULL;"),
    ("pool never popped", GPU, "  if (c->pool) g->objc->pop(c->pool);", ""),
    ("status not looked at", GPU, "return status == PE_MTL_STATUS_COMPLETED;", "return true;"),
    ("lost device forgotten", GPU, "g->lost |= e->lost;", ""),
    ("residency not committed", GPU, "  pe_mtl_residency_commit(g->residency);\n  if (resident)",
     "  if (resident)"),
    ("buffer left in the residency set", GPU, "make_resident(g, b->object, false);", ""),
    ("buffer leaked", GPU, "  pe_mtl_release(b->object);", ""),
    ("library leaked", GPU, "{g->residency, g->library, g->event", "{g->residency, g->event"),
    ("serial queue of one", GPU, "PE_MTL_BARRIER_BUFFERS", "2"),
    ("constants not told apart", PIPELINE, "!memcmp(a->value, b->value, sizeof a->value)", "true"),
    ("constant forgotten", PIPELINE, "if (k->constants >> i & 1)",
     "if (i && k->constants >> i & 1)"),
    ("function leaked", PIPELINE, ", pe_mtl_release(function);", ";"),
    ("pages not rounded down", STORE, "((uintptr_t)p / pe_gpu_page() * pe_gpu_page())",
     "((uintptr_t)p)"),
    ("scales and biases swapped", STORE, "{m->data, m->scales, m->biases};",
     "{m->data, m->biases, m->scales};"),
    ("places of experts in the wrong order", STORE,
     "at[i * STACK_WORDS] = (uint64_t)(piece_of(&m[i], part)",
     "at[(count - 1 - i) * STACK_WORDS] = (uint64_t)(piece_of(&m[i], part)"),
    ("vectors too short", STORE, "case PE_OP_NORM: return a->norm.weights;",
     "case PE_OP_NORM: return a->norm.weights / 2;"),
    ("vectors overlap", STORE, "floats += (uint64_t)(vector_length(x, j) +",
     "floats += (uint64_t)(vector_length(x, j) / 4 +"),
    ("larger than a buffer may be", STORE, "if (end > to && (uint64_t)(end - from) > most) break;",
     ""),
    ("weights never freed", STORE, "pe_gpu_free(s->gpu, &s->range[i].buffer);", "(void)0;"),
    ("positions of one axis", STEP, "s->position, 3 * rows}", "s->position, rows}"),
    ("tables left out", STEP, "s->tables, s->table_count}", "s->tables, 0}"),
    ("step filled once", STEP, "memcpy(at, &head, sizeof head);",
     "if (at[0] == head.rows) return PE_OK;\n  memcpy(at, &head, sizeof head);"),
    ("no barriers", WALK, "o->unit[i].after > h->ordered ||", "o->unit[i].after < 0 ||"),
    ("queries of the keys", DISPATCH,
     "  bind_input(s, 3, d->unit->code[0], 0);\n", ""),
    ("third product into the second", DISPATCH,
     "d->bound[PE_SLOT_OUT3] = (pe_metal_bound){third, PE_SLOT_OUT}",
     "d->bound[PE_SLOT_OUT3] = (pe_metal_bound){d->instr[1], PE_SLOT_OUT}"),
    ("weight of the norm forgotten", DISPATCH,
     "  s->d->bound[PE_SLOT_VEC3] = (pe_metal_bound){norm, PE_SLOT_VEC0};\n", ""),
    ("the result is another input of the map", DISPATCH, "a->self = s->order->self[code]",
     "a->self = 0"),
    ("inputs of a map after another op shifted", DISPATCH, "s->d->bound[first + i] = (",
     "s->d->bound[first + (i + 1) % 4] = ("),
    ("a map after a recurrence reads its inputs", DISPATCH,
     "op == PE_OP_CONV || op == PE_OP_DELTA ? PE_SLOT_DATA :",
     "op == PE_OP_CONV || op == PE_OP_DELTA ? PE_SLOT_IN2 :"),
    ("the norm after a delta rule without its weight", DISPATCH,
     "  s->d->bound[PE_SLOT_SCALES2] = (pe_metal_bound){norm, PE_SLOT_VEC0};\n", ""),
    ("the route is written over the experts", DISPATCH,
     "  d->bound[PE_SLOT_OUT4] = (pe_metal_bound){x, PE_SLOT_OUT};\n", ""),
    ("experts choose by their own input", DISPATCH,
     "  bind_input(s, 2, d->unit->code[0], 0);\n", ""),
    ("experts choose while their logits are overwritten", UNITS,
     " && !pe_metal_code_reads(m, a, &y->out);", ";"),
    ("fourth product into the first", DISPATCH,
     "  d->bound[PE_SLOT_OUT4] = (pe_metal_bound){fourth, PE_SLOT_OUT};\n",
     "  d->bound[PE_SLOT_OUT4] = (pe_metal_bound){d->instr[0], PE_SLOT_OUT};\n"),
    ("gate of a shared expert twice", DISPATCH, "{x, PE_SLOT_DATA2 + part};",
     "{x, PE_SLOT_DATA + part};"),
    ("a concat in the wrong order", DISPATCH,
     "d->call.out_part.from = d->call.out_part.dim,", "d->call.out_part.from = 0,"),
    ("latent keys turned from their start", DISPATCH,
     "  a->rope.skip = norm->args.norm.width;\n", ""),
    ("a part without its place", DISPATCH, "return (pe_metal_part){a->from, a->count, a->dim};",
     "return (pe_metal_part){0, a->count, a->dim};"),
    ("a vector of a map after it moves with the rows", DISPATCH,
     "a->map.input[i].fixed ? 0 : x->in[i].step;", "a->map.input[i].fixed ? 1 : x->in[i].step;"),
    ("a part of a map's input forgotten", DISPATCH,
     "if (y && y->op == PE_OP_SLICE) a->part[i] = part_of(y);", ""),
    ("vectors of the decay forgotten", DISPATCH,
     "if (i == 3) s->d->bound[PE_SLOT_VEC0 + k] = (pe_metal_bound){x, PE_SLOT_VEC0 + k};", ""),
    ("a map without its function", DISPATCH, "? y->args.map.step[0].op : -1;", "? -1 : -1;"),
    ("a value with two readers is computed by one", PULL, "    *readers += inputs;\n",
     "    *readers += 1;\n    break;\n"),
    ("a barrier too late", WALK, "after > h->ordered ||", "after > h->ordered + 1 ||"),
    ("no barrier between passes", WALK, "d.pass = d.pass->then, d.barrier = true)",
     "d.pass = d.pass->then, d.barrier = false)"),
    ("scratch too short", WALK, "if (bytes > most) most = bytes;", ""),
    ("too few rows", DISPATCH, "w->step->outputs : w->step->rows,", "1 : w->step->rows,"),
    ("wrong distance of lines", DISPATCH, "out->in_step[i] = x->in[i].step;",
     "out->in_step[i] = x->in[0].step;"),
    ("vectors not announced", DISPATCH, "x->vec[i] ? 1u << i : 0;", "x->vec[i] ? 1u : 0;"),
    ("blocks without distance", DISPATCH, "if (x->cache >= 0 && w->kv) out",
     "if (x->cache < 0) out"),
    ("states without distance", DISPATCH, "if (x->state_at >= 0 && w->recur) out",
     "if (x->state_at < 0) out"),
    ("type of the cache forgotten", DISPATCH,
     "a->block = w->kv_block, a->type = (int32_t)w->kv_type;", "a->block = w->kv_block;"),
    ("areas by rows", METAL, "(p->at * a->cap + p->offset) *",
     "(p->at * m->base.step->rows + p->offset) *"),
    ("offsets in floats", METAL, "(uint64_t)x->state_at * sizeof(float)", "(uint64_t)x->state_at"),
    ("inputs moved by one", METAL, "&x->in[slot - PE_SLOT_IN0]",
     "&x->in[(slot - PE_SLOT_IN0 + 1) % PE_OP_VIEWS]"),
    ("keys and values swapped", METAL, "values ? l->values : l->keys",
     "values ? l->keys : l->values"),
    ("arguments cut off", METAL, "&d->call, sizeof d->call)", "&d->call, sizeof d->call / 2)"),
    ("second matrix not bound", METAL, "if (!(d->pass->binds >> slot & 1)) continue;",
     "if (!(d->pass->binds >> slot & 1) || slot == PE_SLOT_DATA2) continue;"),
    ("ahead of the wrong step", METAL, "&& !memcmp(m->shape.data, t->shape.data, m->shape.len))",
     ")"),
    ("nothing is ahead", METAL, "  encode_ahead(m);\n", ""),
    ("ahead never dropped", METAL, "if (c->buffer && !c->number) pe_gpu_drop(m->gpu, c);", ""),
    ("arrays not in the shape", METAL, "t->arrays.words.object,", "NULL,"),
    ("wrong group of the cache", METAL, "&m->kv[m->base.kv->graph->layer[x->cache].group]",
     "&m->kv[0]"),
    ("list of another output", LIST, "(int64_t)i * PE_SHORTLIST_WORDS", "0 * PE_SHORTLIST_WORDS"),
    ("list that is cut off", LIST, "at[0] > PE_WANTED_ROOM", "false"),
    ("list without a barrier", LIST, "if (i != SUMS) pe_commands_barrier(c);", ""),
    ("sums of another output", LIST, "(2 * (int64_t)i + k) * blocks", "k * blocks"),
    ("sums of the other scale", LIST, "(2 * (int64_t)i + k) * blocks", "(2 * (int64_t)i) * blocks"),
    ("sums that nobody makes", LIST, "? KERNELS : SUMS;", "? SUMS : SUMS;"),
    ("sums of a part of the row", LIST, "PE_SHORTLIST_BLOCK * SUM_BLOCKS * SIMDGROUPS), outputs",
     "PE_SHORTLIST_BLOCK * SUM_BLOCKS * SIMDGROUPS) - 1, outputs"),
    ("closed while it runs", METAL,
     "  finish(m);\n  forget_ahead(m);\n  pe_gpu_free", "  forget_ahead(m);\n  pe_gpu_free"),
    ("caches never freed", METAL, "pe_gpu_free(m->gpu, &m->kv[g]);", "(void)g;"),
]
MODELS = ["llama-mlx4", "qwen3_moe", "qwen3_5-mlx4", "gpt_oss-mxfp4", "phi3-longrope",
          "granitemoehybrid", "qwen3_next", "deepseek_v3-mlx4", "gemma4_text"]


def sh(command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **more)


def fails(command, env):
    try:
        # what it says is not kept: one that never ends may say gigabytes
        return subprocess.run(command, env=env, timeout=120, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode != 0
    except subprocess.TimeoutExpired:
        return True


class Mutator:
    def __init__(self, build, cc):
        self.build, self.cc = build, cc
        self.env = dict(os.environ, BUILD=build, PERIGEE_METAL=f"{build}/tests/fake-metal.so",
                        FAKE_METAL_MOST_BYTES="4194304", PERIGEE_TEST_GC="normal")
        # without the flags of the make that runs us: it would warn about its jobs
        own = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        flags = sh(["make", "-s", "print-flags", f"BUILD={build}"], env=own).stdout
        flags = flags.strip().split("\n")
        self.compile, self.host, self.steps, self.batch, self.program = (
            line.split() for line in flags)

    def noticed(self, mutant):
        name, path, old, new = mutant
        text = open(path, encoding="utf-8").read()
        if text.count(old) != 1:
            return f"{text.count(old)} places fit"
        with tempfile.TemporaryDirectory() as work:
            return self.noticed_there(work, path, text.replace(old, new))

    def noticed_there(self, work, path, text):
        source, object_, exe = (f"{work}/{x}" for x in ("mutant.c", "mutant.o", "mutant"))
        with open(source, "w", encoding="utf-8") as f:
            f.write(text)
        made = sh(self.cc.split() + self.compile + ["-Wno-error", "-c", "-o", object_, source])
        if made.returncode:
            return made.stdout
        models = [[exe, "run", "tests/metal/room.lua"]]
        models += [[exe, "run", "tests/lua/run.lua", "test_models", model] for model in MODELS]
        for arguments, run in (
                (self.host, [[exe, "model"], [exe]]), (self.steps, [[exe]]),
                (self.batch, [[exe, "lists"], [exe, "parameters"], [exe, "internal"]]),
                (self.program, models)):
            linked = sh(self.cc.split() + ["-o", exe, object_] + arguments)
            if linked.returncode:
                return linked.stdout
            if any(fails(command, self.env) for command in run):
                return None
        return "not noticed"


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument("--build", default="build")
    ask.add_argument("--cc", default=os.environ.get("CC", "cc"))
    ask.add_argument("--jobs", type=int, default=1)
    ask.add_argument("names", nargs="*")
    o = ask.parse_args()
    passed = failed = 0
    mutator = Mutator(o.build, o.cc)
    wanted = [m for m in MUTANTS if not o.names or any(n in m[0] for n in o.names)]
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        for mutant, why in zip(wanted, pool.map(mutator.noticed, wanted)):
            passed, failed = passed + (why is None), failed + (why is not None)
            if why is not None:
                print(f"FAIL mutants/{mutant[0]} ({mutant[1]}): {why}", flush=True)
    print(f"mutants: {passed} passed, {failed} failed, 0 skipped")
    sys.exit(failed != 0)


main()
