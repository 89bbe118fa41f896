#!/usr/bin/env python3
"""Do the tests notice? Changes one thing at a time and runs the suites that could see it.

    make mutate N=60 SEED=1        tests/mutate.py --count 60 --seed 1 [--jobs 1] [--only PREFIX]
                                   [--work FOLDER] [--resume] [--near]

A mutant is the tree with one comparison, constant, sign, logical operator or statement changed. It
is built in a copy of the tree (incrementally) and given to the suites of NEAR, then to all others,
until one fails, dies or hangs. A mutant that no suite notices is a survivor; it is listed with its
line before and after.
A survivor that changes behaviour needs a test; one that changes only speed, memory or an equivalent
expression does not.

Not drawn, by rule: changes that do not compile, that leave the object code as it was (code of other
processors), those inside assert() or the arguments of an error message, < for <= in a clamp, those
of SAME and SPEED, which change nothing but speed or memory, and the self-tests inside policies:
they are tests.

--work keeps the copy, the times of the suites and the results (results.jsonl, one line per mutant),
--resume continues there. --near runs the suites of NEAR alone: quicker, and with more survivors.
"""
import argparse
import concurrent.futures
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time

FOLDERS = ("kernels", "runtime", "lua", "scripts")
# Generated tables, annotations, and what measures this machine.
SKIP = re.compile(r"unicode_tables|scripts/meta/|lua/embed/|scripts/ui/web|cmd/bench|cmd/doctor|"
                  r"kernels/cpu/probe")
# Objects with instructions that are compiled for the family of processors, and the flag of those
# that have them. Where it is missing, no suite can run them.
NEEDS = [(re.compile(r"_amx\.o$|/amx16_tiles\.o$"), "amx_tile"), (re.compile(r"_vnni\.o$"), "vnni"),
         (re.compile(r"_avx512\.o$"), "avx512f"), (re.compile(r"_avx2\.o$"), "avx2")]

# The suites of a folder and of the folders that depend on it; the first prefix that fits counts.
# Suites named after the file, or that include or require it, come before all of them.
TEXT = "c:tokenizer c:tokenizer_gguf c:tokenizer_trust c:tokenizer_life lua:test_tokenizer"
SERVE = "lua:test_gate lua:test_serve_parts lua:test_api lua:test_api_fields lua:test_serve"
MODELS = "lua:test_models lua:test_caches lua:test_moonlet sh:models"
PICTURES = ("lua:test_vision_lua lua:test_vision lua:test_pictures lua:test_features "
            "lua:test_eval_pictures lua:test_model_pictures")
METAL = ("metal:kernels metal:memory metal:joined metal:joined_experts metal:shortlist "
         "metal:metal_host metal:metal_batch sh:metal lua:test_doctor lua:test_tiles")
GRAMMAR = ("c:rex c:grammar c:matcher c:tokmask c:pattern c:constraint lua:test_grammar "
           "lua:test_schema lua:test_schema_objects lua:test_schema_refused "
           "lua:test_schema_relaxed lua:test_constraints lua:test_structured "
           "lua:test_parsers_grammar")
ANSWERS = ("lua:test_messages lua:test_messages_blocks lua:test_responses "
           "lua:test_responses_fields lua:test_responses_units lua:test_responses_kept "
           "lua:test_responses_disk "
           "lua:test_answer_order lua:test_stops lua:test_budget lua:test_truncate "
           "lua:test_dialects lua:test_allowed lua:test_agents")
FAST = "c:int16 c:plain_fast c:packed c:fast_attention c:program "
NEAR = [
    ("kernels/cpu/op_tower", "c:tower " + PICTURES),
    ("kernels/cpu/scan", "c:sampler c:sampler_wide c:sampler_listed c:prim c:batch"),
    ("kernels/metal", METAL),
    ("kernels", FAST + MODELS + " c:kernels c:kernels_row c:prim c:quant c:device c:plan c:kv "
                                "c:memory c:tensor_math lua:test_weights lua:test_vision "
                                "lua:test_batch_models lua:test_profile sh:quant_table"),
    ("runtime/text/detok", TEXT + " c:detokenizer c:stop c:batch"),
    ("runtime/text", TEXT + " c:regex c:normalizer c:pretokenizer c:detokenizer c:stop c:unicode "
                            "lua:test_batch lua:test_patterns"),
    ("runtime/weights", MODELS + " c:safetensors c:gguf c:weights c:program c:memory "
                                 "lua:test_weights lua:test_resident c:fault"),
    ("runtime/graph/graph_tower", "c:tower " + PICTURES),
    ("runtime/graph", MODELS + " c:rope c:graph c:plan c:program c:device lua:test_vision"),
    ("runtime/cache/media", "c:media c:seq c:batch_random " + PICTURES),
    ("runtime/cache/names", "c:media c:seq c:prefix_disk c:batch_random " + PICTURES),
    ("runtime/cache", "c:kv c:seq c:prefix c:prefix_disk c:disk_thread c:prefix_failures c:media "
                      "c:memory c:batch_random "
                      "lua:test_caches lua:test_tiers lua:test_batch lua:test_core "
                      "lua:test_pictures"),
    ("runtime/device/metal", METAL),
    ("runtime/device/tower", "c:tower " + PICTURES),
    ("runtime/image", "c:image c:image_child c:image_decode lua:test_image lua:test_media "
                      "lua:test_processors"),
    ("runtime/device", MODELS + " c:device c:layout c:plan c:pool c:seq c:program c:memory "
                                "c:backend c:profile lua:test_profile lua:test_batch_models"),
    ("runtime/batch/tower_queue", "c:tower " + PICTURES),
    ("runtime/batch/constraint", "c:batch_constraint " + GRAMMAR),
    ("runtime/batch", "c:sampler c:sampler_wide c:batch c:batch_seqs c:batch_constraint c:worker "
                      "c:worker_files c:worker_view c:backend c:media c:crew "
                      "c:batch_random lua:test_batch lua:test_core lua:test_hooks lua:test_best "
                      "lua:test_engine_lines lua:test_pictures "
                      "lua:test_batch_models lua:test_callbacks lua:test_tenants sh:commands"),
    ("runtime/grammar", GRAMMAR),
    ("runtime/tensor", "c:tensor c:tensor_math lua:test_tensor lua:test_tensor_values"),
    ("runtime/inflate", "lua:test_packed lua:test_bytes"),
    ("runtime/json_tape", "lua:test_bytes lua:test_json lua:test_api_fields"),
    ("runtime", "c:base c:json c:machine c:pool c:seal c:fault c:memory c:device lua:test_json "
                "c:tokenizer "
                "c:batch c:safetensors c:prefix_disk lua:test_models sh:cli"),
    ("lua/main", "sh:cli lua:test_image lua:test_media"),
    ("lua/l_grammar", GRAMMAR),
    ("lua/l_rules", GRAMMAR),
    ("lua/l_host", "lua:test_host lua:test_bind lua:test_results lua:test_door lua:test_hooks "
                   "lua:test_best"),
    ("lua/l_decoder", "lua:test_image lua:test_media"),
    ("lua/l_image", "lua:test_image lua:test_media"),
    ("lua/l_media", PICTURES),
    ("lua/l_tower", "lua:test_graph " + PICTURES),
    ("lua/l_graph_tower", "lua:test_graph " + PICTURES),
    ("lua/l_tensor", "lua:test_tensor lua:test_tensor_values lua:test_bind lua:test_hooks"),
    ("lua/l_batch", "lua:test_results lua:test_engine_lines lua:test_batch lua:test_callbacks "
                    "lua:test_hooks lua:test_core lua:test_best lua:test_constraints"),
    ("lua/l_engine", "lua:test_results lua:test_engine_lines lua:test_graph lua:test_core "
                     "lua:test_batch "
                     "lua:test_tiers lua:test_resident lua:test_profile sh:models"),
    ("lua/l_graph", "lua:test_graph " + MODELS + " lua:test_architectures"),
    ("lua/l_plan", "lua:test_graph " + MODELS),
    ("lua/l_bytes", "lua:test_bytes lua:test_json lua:test_api_fields"),
    ("lua/job", "lua:test_bytes lua:test_jobs lua:test_tokenizer lua:test_image"),
    ("lua/l_json_read", "lua:test_bytes lua:test_json lua:test_api_fields"),
    ("lua/l_json", "lua:test_results lua:test_json lua:test_bind lua:test_bytes "
                   "lua:test_api_fields sh:cli"),
    ("lua/l_tokenizer", "lua:test_tokenizer lua:test_bind sh:commands"),
    ("lua/l_weights", MODELS + " lua:test_weights lua:test_resident"),
    ("lua", "lua:test_bind lua:test_door lua:test_host lua:test_patterns lua:test_async "
            "lua:test_callbacks lua:test_meta lua:test_sandbox lua:test_scripts sh:cli"),
    ("scripts/templates", "lua:test_limits lua:test_jinja_errors lua:test_jinja_work "
                          "lua:test_jinja_values lua:test_jinja lua:test_templates "
                          "lua:test_normalize lua:test_chat sh:render"),
    ("scripts/parsers", "lua:test_parsers lua:test_parsers_opening lua:test_parsers_shared "
                        "lua:test_stream lua:test_parsers_soup lua:test_chat "
                        "lua:test_parsers_arguments lua:test_parsers_grammar"),
    ("scripts/grammar", GRAMMAR + " sh:commands"),
    ("scripts/chat/selftest", "lua:test_templates sh:commands"),
    ("scripts/chat", "lua:test_check lua:test_content lua:test_chat lua:test_normalize "
                     "lua:test_stream "
                     "lua:test_api sh:render sh:chat"),
    ("scripts/models/vision", PICTURES),
    ("scripts/models/processors", "lua:test_processor_rules lua:test_processors " + PICTURES),
    ("scripts/models", "lua:test_graph " + MODELS + " lua:test_model_config "
                       "lua:test_architectures lua:test_configs"),
    ("scripts/engine/address", "lua:test_address lua:test_media lua:test_https"),
    ("scripts/engine/features", PICTURES),
    ("scripts/engine/media", "lua:test_media lua:test_https lua:test_api_pictures"),
    ("scripts/engine/pictures", PICTURES + " lua:test_api_pictures"),
    ("scripts/engine/vision", PICTURES),
    ("scripts/engine/run", "lua:test_eval lua:test_model_pictures lua:test_vision " + MODELS),
    ("scripts/engine", "lua:test_flight lua:test_window lua:test_request lua:test_memory "
                       "lua:test_scheduler lua:test_batch_lua lua:test_batch lua:test_best "
                       "lua:test_core lua:test_fairness lua:test_callbacks lua:test_hooks "
                       "lua:test_resident "
                       "lua:test_tiers sh:commands"),
    ("scripts/policy", "lua:test_policies lua:test_batch lua:test_fairness lua:test_scripts "
                       "lua:test_scripts_seqs lua:test_core"),
    ("scripts/hooks", SERVE + " lua:test_phases lua:test_lent lua:test_unit lua:test_attach "
                              "lua:test_watch lua:test_reload lua:test_scripts "
                              "lua:test_scripts_seqs lua:test_examples_hooks "
                              "lua:test_architectures lua:test_api_life lua:test_sandbox "
                              "lua:test_misuse"),
    ("scripts/pipeline/constraint", GRAMMAR + " lua:test_structured_load lua:test_api"),
    ("scripts/pipeline/grammars", GRAMMAR + " lua:test_structured_load"),
    ("scripts/pipeline/pictures", "lua:test_request_pictures lua:test_api_pictures"),
    ("scripts/pipeline", "lua:test_admission lua:test_pipeline_units lua:test_run "
                         "lua:test_pipeline lua:test_prompt lua:test_output lua:test_api "
                         "lua:test_api_more lua:test_api_fields lua:test_api_life "
                         "lua:test_stream lua:test_serve lua:test_api_pictures sh:chat " + ANSWERS),
    ("scripts/api/structured", "lua:test_structured lua:test_structured_load lua:test_api_fields "
                               "lua:test_dialects lua:test_messages lua:test_responses_fields"),
    ("scripts/api", "lua:test_openai lua:test_api_fields lua:test_api lua:test_api_more "
                    "lua:test_output lua:test_api_life " + ANSWERS),
    ("scripts/http/c", "lua:test_connection lua:test_http_server lua:test_curl lua:test_http "
                       "lua:test_https lua:test_http_answers lua:test_packed "
                       "lua:test_http_parse lua:test_http_limits"),
    ("scripts/http", "lua:test_sse lua:test_http_parts lua:test_connection lua:test_http_server "
                     "lua:test_limits_http lua:test_http_answers lua:test_packed "
                     "lua:test_http_parse lua:test_http lua:test_http_limits lua:test_serve"),
    ("scripts/serve", SERVE + " lua:test_app lua:test_status lua:test_serve_models "
                              "lua:test_tenants lua:test_serve_process lua:test_architectures "
                              "lua:test_fairness lua:test_api_life lua:test_config"),
    ("scripts/repl", "lua:test_repl lua:test_meta sh:cli"),
    ("scripts/cmd/chat", "lua:test_commands lua:test_limits sh:chat sh:cli"),
    ("scripts/cmd/serve", "lua:test_cmd_serve lua:test_limits sh:cli lua:test_serve_process "
                          "lua:test_serve"),
    ("scripts/cmd/check", "lua:test_commands lua:test_limits sh:commands sh:cli "
                          "lua:test_examples_hooks lua:test_parsers"),
    ("scripts/cmd", "lua:test_commands lua:test_limits sh:cli sh:commands sh:models sh:render "
                    "lua:test_lib"),
    ("scripts/lib/folder", "lua:test_responses_disk lua:test_tenants lua:test_serve_parts"),
    ("scripts/lib", "lua:test_lib lua:test_lib_units lua:test_commands lua:test_async "
                    "lua:test_batch lua:test_scripts lua:test_chat lua:test_api lua:test_serve "
                    "sh:cli "
                    "sh:commands sh:models"),
    ("scripts/ui", "lua:test_lib lua:test_graph_view lua:test_repl lua:test_tensor sh:chat sh:cli "
                   "sh:words"),
    ("scripts", "sh:cli lua:test_host lua:test_meta"),
]

# (pattern, replacement): what is changed, outside of comments and strings.
C_RULES = [
    (r"(?<![<>=!\-+*/&|^])<(?![<=])(?=\s)", "<="), (r"(?<![<>\-])>(?![>=])(?=\s)", ">="),
    (r"<=(?!=)", "<"), (r"(?<![<>])>=", ">"), (r"==", "!="), (r"!=", "=="),
    (r"&&", "||"), (r"\|\|", "&&"), (r"(?<=[\w)\]] )\+(?= [\w(])", "-"),
    (r"(?<=[\w)\]] )-(?= [\w(])", "+"), (r"(?<=[\w)\]] )\*(?= [\w(])", "+"),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r"(?<![\w.])([1-9]\d{0,4})(?![\w.])", "+1"),
    (r"(?<![\w.])0(?![\w.])", "1"), (r"\+\+", "--"), (r"\bif \((?=\w)", "if (!"),
]
LUA_RULES = [
    (r"(?<![<>=~])<(?![<=])(?=\s)", "<="), (r"(?<![<>=~])>(?![>=])(?=\s)", ">="),
    (r"<=", "<"), (r">=", ">"), (r"==", "~="), (r"~=", "=="), (r"\band\b", "or"),
    (r"\bor\b", "and"), (r"\bnot ", ""), (r"(?<=[\w)\]] )\+(?= [\w(#])", "-"),
    (r"(?<=[\w)\]] )-(?= [\w(#])", "+"), (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
    (r"(?<![\w.])([1-9]\d{0,4})(?![\w.])", "+1"), (r"(?<![\w.])0(?![\w.])", "1"),
]
# A missing lock is a race, and a missing free a leak: sanitizers see them, a suite that passes does
# not tell.
C_STATEMENT = re.compile(r"^\s+(?!return\b|break\b|case\b|goto\b|static\b|const\b|typedef\b|"
                         r"pthread_mutex_lock\b|free\b)[\w>.\[\]*()-]+[^{}]*;\s*$")
C_DECLARATION = re.compile(r"^\s+[\w ]+[ *]+[\w\[\]]+(, [\w*\[\], ]+)?;\s*$")
LUA_STATEMENT = re.compile(r"^\s+(?!return\b|break\b|local\b|end\b|if\b|for\b|while\b|else|"
                           r"weights:close\(\))"
                           r"[\w.:\[\]]+[^{}]*[)\w\]\"]\s*$")
# if (a < b) a = b, if (b < a) a = b, and a < b ? a : b: the same with <=.
CLAMP = re.compile(r"if \(?(\S+) [<>]=? (\S+?)\)? (?:then )?(?:\1 = \2|\2 = \1)(?:;|\s)|"
                   r"([\w\[\]]+) [<>]=? ([\w\[\]]+) \? (?:\3 : \4|\4 : \3)(?!\w)")
# The last group may change: a larger block of zeros, more room in a new table, more user values, a
# plain search for a text without magic characters, how often a loop looks at the clock, how
# negative the result of a comparison is, a number that means true, how much of a pipe is read at
# once, room on Lua's stack beyond the 20 places that are always there, what an output holds before
# a call sets it, a size that no memory has, the step of a range of one character, how often a
# poll looks, the size of an element or an array, how much room a text has, floats that are almost
# zero, a thousandth of a duration, a pause of a millisecond, how much work a step counts as, a
# width that the next line replaces, and how much is done at a time.
SAME = [re.compile(r"calloc\((1), sizeof"),
        re.compile(r"lua_createtable\(L, ([^;]*)\);"),
        re.compile(r"pe_bind_new\(L, &\w+, sizeof \*?\w+, (\d)\)"),
        re.compile(r"lua_newuserdatauv\(L, .*, (0)\)"),
        re.compile(r'find\("[^"^$()%.\[\]*+?-]*", 1, (true)\)'),
        re.compile(r"if (\w+ % \w+ == 0) then async\.breathe\(\) end"),
        re.compile(r"(?:<|less|== \(.*\)) .* and -(1) or "),
        re.compile(r"lua_pushboolean\(L, (1)\)"),
        re.compile(r"char bytes\[(64)\];"),
        re.compile(r"bool first\[(256)\];"),
        re.compile(r"\bPE_BPE_\w+ = -(\d)"),
        re.compile(r"luaL?_checkstack\(\w+, ([^;\n]*)"),
        re.compile(r"pe_(?:value|param) [^;\n]*\b(?:v|out) = -(1)\b"),
        re.compile(r" ([<>]=?) SIZE_MAX\b"),
        re.compile(r"\{ (0x\w+), \1, (1), "),
        re.compile(r"\bPOLL_MS = (\d+)"),
        re.compile(r"calloc\([^;\n]*, (\d)\)"),
        re.compile(r"(?m)^ +(?:const |static )*[a-z]\w* (?:[^;=]*, )?\**\w+\[(\d+)\](?= =|[;,])"),
        re.compile(r"(?m)^ +(?:const |static )*[a-z]\w* \w+\[([^\]\n]+)\](?= =|[;,])"),
        re.compile(r"\bPE_\w+_(?:LABEL|TEXT) = (\d+)"),
        re.compile(r"BOOLEAN\(\w+\), \.absent = (1)"),
        re.compile(r"memset\([^;\n]*, (0), [^;\n]*float\)"),
        re.compile(r"_NS = [\d *]*\b(1000)\b"),
        re.compile(r"_NS = \d+ \* (1000)\b"),
        re.compile(r"async\.sleep\((0)\)"),
        re.compile(r"\bspend\((1)\)"),
        re.compile(r"pe_graph_draft\(g, \w+, \w+, (0)\);"),
        re.compile(r"\b(?:AHEAD|BLOCK_FLOATS|BUCKETS|CACHED|CHANNELS|ENOUGH_TILES|FIRST_CHUNK|"
                   r"GROUPS_AT_ONCE|HEAVY|LARGEST_CHUNK|LEAST_ROWS|MOST_PARTIAL|PART|"
                   r"PE_CPU_KV_ROWS|PE_EXPERT_ROWS|PE_MATCHER_COSTLY|PE_MATCHER_SOME|PER_TASK|"
                   r"PIECE|PLAIN_STRIP|"
                   r"QUERIES|ROUNDS|"
                   r"SHARED|SPIN_CHECKS|SPIN_NS|SPINS|STORE_ROWS|STRETCH|STRIP|STRIP_BYTES|"
                   r"TILE_QUERIES|WIDE_ROWS|WIDE_STRIP|WINDOWS) = ([\d <]+)")]
# Functions that change nothing but speed or memory: into how many tasks an op is split, which
# memory is requested ahead of time, where a search begins, what a sample of the logits makes it
# expect, how much memory a grammar's parts are counted as, and a self-test of instructions. Calls
# of hints are not drawn either.
SPEED = re.compile(r"(?m)^(?:(?:static )?pe_cpu_work \w+|static double \w+_reads|"
                   r"uint64_t pe_(?:chart|lexer|matcher|rex|tokmask)_bytes|static bool agrees|"
                   r"static (?:double plan|sketch draw_sketch|float bracket|double weight_near|"
                   r"double above|pe_scan_band seek|void count_sample|void weigh_sample)|"
                   r"(?:\w+ )+(?:prefetch\w*|ask_for|ask_of|take_sample|guess|"
                   r"pe_cpu_product_unit))\([^;{}]*\) \{"
                   r"(?:.*\}$|[\s\S]*?^\})|"
                   r"^.*\b(?:__builtin_prefetch|prefetch\w*|ask_for|pe_\w+_(?:forget|large_pages))"
                   r"\(.*;$")
MESSAGE = re.compile(r"\b(?:assert|static_assert|_Static_assert|pe_fail\w*|luaL_error|error)\(")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def masked(path, text):
    """The text with comments, strings, messages and preprocessor lines blanked, same length."""
    if path.endswith(".lua"):
        pattern = (r'--\[\[.*?\]\]|--[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|\[\[.*?\]\]')
    else:
        pattern = (r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|'
                   r'(?m:^[ \t]*#(?:\\\n|[^\n])*)')
    plain = re.sub(pattern, blank, text, flags=re.S)
    if path.startswith("scripts/policy/"):
        plain = re.sub(r"(?ms)^  selftest = \{.*?^  \},?$", blank, plain)
    if not path.endswith(".lua"):
        plain = SPEED.sub(blank, plain)
    plain = list(plain)
    for m in MESSAGE.finditer("".join(plain)):
        depth, at = 1, m.end()
        while depth and at < len(plain):
            depth += {"(": 1, ")": -1}.get(plain[at], 0)
            if depth and plain[at] != "\n":
                plain[at] = " "
            at += 1
    return "".join(plain)


def candidates(path, plain, text):
    """All changes of one file, as (start, end, replacement, kind)."""
    lua = path.endswith(".lua")
    found = []
    same = [m.span(m.re.groups) for pattern in SAME for m in pattern.finditer(text)]
    for pattern, value in LUA_RULES if lua else C_RULES:
        for m in re.finditer(pattern, plain):
            line = plain[plain.rfind("\n", 0, m.start()) + 1:plain.find("\n", m.end()) + 1]
            if m.group(0)[0] in "<>" and CLAMP.search(line):
                continue
            if m.group(0).startswith("if") and "free(" in line:
                continue
            if any(first <= m.start() < last for first, last in same):
                continue
            new = str(int(m.group(1)) + 1) if value == "+1" else value
            found.append((m.start(), m.end(), new, "operator"))
    at = 0
    for line in plain.split("\n"):
        whole = line.count("(") == line.count(")") and not MESSAGE.search(line)
        if whole and (LUA_STATEMENT.match(line) if lua else
                      C_STATEMENT.match(line) and not C_DECLARATION.match(line)):
            found.append((at, at + len(line), "", "statement"))
        at += len(line) + 1
    return found


def draws(seed, only):
    """Changes without end: a file by its lines of code, a kind, then any change of that kind."""
    names = subprocess.check_output(["git", "ls-files", *FOLDERS], text=True).split("\n")
    names = [n for n in names if re.search(r"\.(c|h|lua)$", n) and not SKIP.search(n)
             and n.startswith(only or "")]
    texts = {n: open(n, encoding="utf-8").read() for n in names}
    plain = {n: masked(n, texts[n]) for n in names}
    weights = [len(re.findall(r"(?m)^.*\S", plain[n])) for n in names]
    rng, seen = random.Random(seed), set()
    while True:
        path = rng.choices(names, weights)[0]
        changes = candidates(path, plain[path], texts[path])
        if not changes:
            continue
        kind = rng.choice(sorted({c[3] for c in changes}))
        change = rng.choice([c for c in changes if c[3] == kind])
        if (path, change) not in seen:
            seen.add((path, change))
            yield path, texts[path], change


def every_suite():
    names = [kind + ":" + n[5:-2] for kind in ("c", "metal")
             for n in sorted(os.listdir("tests/" + kind)) if n.startswith("test_")]
    names += ["lua:" + n[:-4] for n in sorted(os.listdir("tests/lua")) if n.startswith("test_")]
    names += ["sh:" + n[:-3] for n in sorted(os.listdir("tests/sh")) if n.endswith(".sh")]
    return [n for n in names if n != "sh:layers"]  # it reads sources, it runs nothing


def source_of(suite):
    kind, name = suite.split(":")
    places = {"c": "c/test_%s.c", "metal": "metal/test_%s.c", "lua": "lua/%s.lua", "sh": "sh/%s.sh"}
    return "tests/" + places[kind] % name


def command(suite):
    kind, name = suite.split(":")
    if kind == "metal" and not name.startswith("metal_"):  # kernels alone, on the executor
        return ["build/tests/metal_" + name]
    if kind in ("c", "metal"):
        return ["build/tests/test_" + name]
    return ["sh", source_of(suite)] if kind == "sh" else \
        ["build/perigee", "run", "tests/lua/run.lua", name + ".lua"]


def programs(suite):
    """What a suite needs of the build; sh:metal runs kernels on a Metal that checks their text."""
    fake = ["build/tests/fake-metal.so"] if "metal" in suite else []
    alone = suite.startswith("c:") or suite.startswith("metal:")
    return [command(suite)[0] if alone else "build/perigee", *fake]


def has_clock(suite):
    text = open(source_of(suite), encoding="utf-8").read()
    return suite.startswith("sh:") or suite.startswith("lua:") and '"luv"' in text


def suites_of(path, times, near_alone):
    """The suites that could notice: first those named after the file or that name it."""
    stem, ext = os.path.splitext(path)
    base = os.path.basename(stem)
    if ext == ".lua":
        module = stem[len("scripts/"):].replace("/", ".").removesuffix(".init")
        name = '"%s"' % module
        like = "lua:test_" + (module.split(".")[0] if base == "init" else base)
    else:
        name, like = '"%s.h"' % stem, "c:" + base
    first = []
    for suite in times:
        text = open(source_of(suite), encoding="utf-8").read()
        if suite == like or name in text:
            first.append(suite)
    first.sort(key=lambda s: (s != like, times[s][1]))
    near = next((s for prefix, s in NEAR if path.startswith(prefix)), "").split()
    if path.startswith("lua/"):
        near += ["lua:test_options", "lua:test_arguments", "lua:test_results", "lua:test_limits"]
    near.sort(key=lambda s: times.get(s, (0, 0))[1])
    rest = [] if near_alone else sorted(times, key=lambda s: times[s][1])
    if path.startswith("lua/") or ext == ".lua":  # suites in C know no Lua
        rest = [s for s in rest if s.startswith("lua:") or s.startswith("sh:")]
    order = list(dict.fromkeys(first + near + rest))
    return [s for s in order if s in times]


def run(tree, argv, seconds, cpu=None, collector="normal"):
    """(exit status, first failure in the output). cpu limits the processor time of each process."""
    def limit():
        if cpu:  # a mutant may also allocate or write without end
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu), int(cpu)))
            resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    env = dict(os.environ, PERIGEE_TEST_GC=collector, PERIGEE_TEST_STOP="1")
    if collector == "both":
        del env["PERIGEE_TEST_GC"]
    with tempfile.TemporaryFile() as log:
        p = subprocess.Popen(argv, cwd=tree, stdout=log, stderr=subprocess.STDOUT, env=env,
                             stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=limit)
        try:
            status = p.wait(seconds)
        except subprocess.TimeoutExpired:
            status = 124
        try:
            os.killpg(p.pid, 9)  # what the suite left running
        except ProcessLookupError:
            pass
        p.wait()
        log.seek(0)
        found = re.search(r"(?m)^.*(FAIL|rror|panic).*$", log.read().decode("utf-8", "replace"))
        return status, found.group(0).strip()[:160] if found else ""


def limits(times, suite, collector):
    """A hang: ten times the time of the unchanged tree, and a minute, as machines are busy. Forced
    collection takes up to 13 times as long as the normal one that was measured."""
    wall, cpu = times[suite]
    slow = 20 if collector == "both" else 1
    return slow * 10 * wall + 60, slow * 5 * cpu + 5


def same(a, b):
    with open(a, "rb") as f, open(b, "rb") as g:
        return f.read() == g.read()


def prepare(work, i):
    """A copy of the tree with its build."""
    tree = os.path.join(work, str(i), "tree")
    if not os.path.isdir(tree):
        skip = shutil.ignore_patterns("san-*", ".git")
        shutil.copytree(".", tree, symlinks=True, ignore=skip)
        shared = os.path.join(work, str(i), "shared")
        if os.path.isdir("../shared") and not os.path.exists(shared):
            os.symlink(os.path.abspath("../shared"), shared)
    # A kept copy may hold an interrupted change, or be older than the tree.
    kept = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], text=True)
    for name in kept.split("\n"):
        copy = os.path.join(tree, name)
        if os.path.isfile(name) and not (os.path.isfile(copy) and same(name, copy)):
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy(name, copy)
    measured = os.path.exists(os.path.join(work, "times.json"))
    status, why = run(tree, ["make", "-s", "all"] + ([] if measured else ["tests"]), 3600)
    if status != 0:
        sys.exit("mutate: the unchanged tree does not build: " + why)
    shutil.copy(os.path.join(tree, "build/perigee"), os.path.join(tree, "../perigee"))
    with open(os.path.join(tree, "../load.lua"), "w") as f:
        f.write("os.exit(loadfile(arg[1]) and 0 or 1)\n")
    return tree


def measure(work, tree):
    """The time each suite takes on the unchanged tree. A suite that fails there is left out."""
    path = os.path.join(work, "times.json")
    times = json.load(open(path)) if os.path.exists(path) else {}
    for suite in every_suite():
        if suite in times:
            continue
        run(tree, ["make", "-s", *programs(suite)], 900)
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
        status, why = run(tree, command(suite), 900, 600)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if status != 0:
            print("mutate: %s fails on the unchanged tree: %s" % (suite, why), flush=True)
        times[suite] = (round(time.time() - begin, 2), round(cpu, 2)) if status == 0 else None
        with open(path, "w") as f:
            json.dump(times, f)
    return {s: t for s, t in times.items() if t}


CHECKSUM = "build/kernels/cpu/host.o"  # it has a checksum of the kernels


def stripped(content):
    """An object without the places of its lines, which every change moves; None: it has none."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = os.path.join(folder, "before.o"), os.path.join(folder, "after.o")
        with open(before, "wb") as f:
            f.write(content)
        try:  # not to a pipe: objcopy writes nothing there
            subprocess.check_call(["objcopy", "-g", before, after], stderr=subprocess.DEVNULL)
            with open(after, "rb") as f:
                return f.read() or None
        except (OSError, subprocess.CalledProcessError):
            return None


def unchanged(objects):
    """Whether a change left all code that this machine can run as it was."""
    flags = ""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            flags = f.read()
    for name, (_, content) in objects.items():
        if name.endswith(CHECKSUM) or any(p.search(name) and f not in flags for p, f in NEEDS):
            continue
        with open(name, "rb") as f:
            now = f.read()
        before = None if now == content else stripped(content)
        if now != content and (before is None or stripped(now) != before):
            return False
    return True


def keep(tree, path, obj):
    """The objects that a change may rebuild, so that undoing it compiles nothing."""
    if path.endswith(".lua"):
        return {}
    names = [obj, CHECKSUM]
    if path.endswith(".h"):
        names = [os.path.join(folder, n) for top in ("kernels", "runtime", "lua")
                 for folder, _, files in os.walk(os.path.join(tree, "build", top))
                 for n in files if n.endswith(".o")]
    files = [os.path.join(tree, n) for n in names]
    return {n: (os.stat(n).st_mtime_ns, open(n, "rb").read()) for n in files if os.path.exists(n)}


def restore(target, text, objects):
    """Undoes a change. Its source is older than the old objects, these newer than the library."""
    with open(target, "w") as f:
        f.write(text)
    if objects:
        os.utime(target, (0, 0))
    for name, (written, content) in objects.items():
        if not os.path.exists(name) or os.stat(name).st_mtime_ns != written:
            with open(name, "wb") as f:
                f.write(content)


def judge(tree, path, text, change, times, near_alone):
    """(suite that noticed or None, its failure); ("", why) for a change to draw again."""
    start, end, new, _ = change
    target, obj = os.path.join(tree, path), "build/%s.o" % os.path.splitext(path)[0]
    objects = keep(tree, path, obj)
    try:
        with open(target, "w") as f:
            f.write(text[:start] + new + text[end:])
        if path.endswith(".lua") and run(tree, ["../perigee", "run", "../load.lua", path], 60)[0]:
            return "", "does not compile"
        if not path.endswith(".lua"):
            wanted = [obj] if path.endswith(".c") else ["all"]
            if run(tree, ["make", "-s", *wanted], 900)[0] != 0:
                return "", "does not compile"
            if unchanged(objects):
                return "", "same code"
        suites = suites_of(path, times, near_alone)
        for i, suite in enumerate(suites):
            # What the first suite needs, then what all others need: make itself takes a while.
            if i < 2:
                these = suites[:1] if i == 0 else suites
                wanted = sorted({p for s in these for p in programs(s)})
                if run(tree, ["make", "-s", *wanted], 900)[0] != 0:
                    return "", "does not compile"
            # Forced collection is slow; the nearest suites call what was changed.
            collector = "both" if path.startswith("lua/") and i < 2 else "normal"
            status, why = run(tree, command(suite), *limits(times, suite, collector), collector)
            # Suites with servers and clocks may fail on a busy machine: once does not count.
            if status not in (0, 124) and has_clock(suite):
                status, why = run(tree, command(suite), *limits(times, suite, collector), collector)
            if status != 0:
                return suite, why or "exit %d" % status
        return None, ""
    finally:
        restore(target, text, objects)


def describe(path, text, change):
    start, end, new, kind = change
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    return {"where": "%s:%d: %s" % (path, text.count("\n", 0, start) + 1, kind),
            "before": text[first:last].strip(),
            "after": (text[first:start] + new + text[end:last]).strip()}


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--count", type=int, default=60)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--only", help="files whose path begins so")
    p.add_argument("--work", help="a folder to keep, for --resume")
    p.add_argument("--resume", action="store_true", help="continue with the results in --work")
    p.add_argument("--near", action="store_true", help="only the suites that NEAR names")
    o = p.parse_args()
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    work = os.path.abspath(o.work) if o.work else tempfile.mkdtemp(prefix="mutate-")
    results, known = os.path.join(work, "results.jsonl"), {}
    os.makedirs(work, exist_ok=True)
    if o.resume and os.path.exists(results):
        known = {r["where"] + r["after"]: r for r in map(json.loads, open(results))}
    trees = [prepare(work, i) for i in range(o.jobs)]
    times = measure(work, trees[0])
    source, lock, judged = draws(o.seed, o.only), threading.Lock(), []

    def one(_):
        while True:
            with lock:
                path, text, change = next(source)
                tree = trees.pop()
            r = describe(path, text, change)
            try:
                old = known.get(r["where"] + r["after"])
                if not old:
                    r["suite"], r["why"] = judge(tree, path, text, change, times, o.near)
            finally:
                with lock:
                    trees.append(tree)
            with lock:
                if old:
                    r = old
                else:
                    with open(results, "a") as f:
                        f.write(json.dumps(dict(r, seed=o.seed)) + "\n")
                if r["suite"] == "":
                    continue
                judged.append(r)
                if r["suite"]:
                    print("noticed  %(where)s (%(suite)s: %(why)s)" % r, flush=True)
                else:
                    print("SURVIVED %(where)s\n  - %(before)s\n  + %(after)s" % r, flush=True)
                return

    pool = concurrent.futures.ThreadPoolExecutor(o.jobs)
    try:
        list(pool.map(one, range(o.count)))
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt waits for the mutants in work
        if not o.work:
            shutil.rmtree(work, ignore_errors=True)
    noticed = sum(r["suite"] is not None for r in judged)
    print("%d of %d mutants noticed (%.0f %%), %d survived" %
          (noticed, o.count, 100 * noticed / max(o.count, 1), o.count - noticed))
    return 0 if noticed >= 0.9 * o.count else 1


if __name__ == "__main__":
    sys.exit(main())
