#!/usr/bin/env python3
"""Do the tests notice? Changes one thing at a time in the sources and runs the suites that could see it.

    make mutate N=60 SEED=1        tests/mutate.py --count 60 --seed 1 [--jobs 2] [--only PREFIX]

A mutant is the tree with one comparison, constant, sign, logical operator or statement changed. Each
is built in a copy of the tree (incrementally) and given to the suites of its folder first, then to all
others, until one fails, dies or hangs. What no suite notices is a survivor: it is listed with its line,
before and after. Mutants that do not compile are replaced by others. A survivor that changes behaviour
needs a test; one that changes only speed or an equivalent expression does not.
"""
import argparse
import concurrent.futures
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading

FOLDERS = ("kernels", "runtime", "lua", "scripts")
SKIP = re.compile(r"unicode_tables|scripts/meta/|lua/embed/|scripts/ui/web|cmd/bench|cmd/doctor")
SUITE_SECONDS = 900  # ten times what the slowest suite takes on two cores: longer is a hang

# Suites that see a folder first. The rest follows in any case, so this only saves time.
NEAR = [
    ("kernels", ["c:kernels", "c:prim", "c:quant", "c:device", "lua:test_models"]),
    ("runtime/text", ["c:regex", "c:normalizer", "c:pretokenizer", "c:tokenizer", "c:tokenizer_gguf",
                      "c:detokenizer", "c:stop", "c:unicode", "lua:test_tokenizer"]),
    ("runtime/weights", ["c:weights", "c:gguf", "c:safetensors", "lua:test_weights", "sh:models"]),
    ("runtime/graph", ["c:graph", "c:plan", "c:device", "lua:test_models"]),
    ("runtime/cache", ["c:kv", "c:seq", "c:prefix", "c:prefix_disk", "lua:test_caches"]),
    ("runtime/device", ["c:device", "c:pool", "lua:test_models"]),
    ("runtime/batch", ["c:sampler", "c:batch", "c:batch_seqs", "c:worker", "c:crew", "c:batch_random",
                       "lua:test_batch", "lua:test_hooks", "lua:test_best"]),
    ("runtime/tensor", ["c:tensor", "c:tensor_math", "lua:test_tensor"]),
    ("runtime", ["c:base", "c:json", "c:machine", "c:pool", "c:memory", "lua:test_json"]),
    ("lua/l_tensor", ["lua:test_tensor"]), ("lua/l_batch", ["lua:test_batch", "lua:test_callbacks"]),
    ("lua/l_json", ["lua:test_json"]), ("lua/l_tokenizer", ["lua:test_tokenizer"]),
    ("lua", ["lua:test_bind", "lua:test_door", "lua:test_host", "sh:cli"]),
    ("scripts/templates", ["lua:test_jinja", "lua:test_templates", "sh:render"]),
    ("scripts/parsers", ["lua:test_parsers"]),
    ("scripts/chat", ["lua:test_chat", "lua:test_normalize"]),
    ("scripts/models", ["lua:test_models", "sh:models"]),
    ("scripts/engine", ["lua:test_batch", "lua:test_best", "lua:test_callbacks", "lua:test_hooks"]),
    ("scripts/policy", ["lua:test_batch", "lua:test_scripts"]),
    ("scripts/hooks", ["lua:test_scripts", "lua:test_examples_hooks"]),
    ("scripts/pipeline", ["lua:test_api", "lua:test_output", "lua:test_stream"]),
    ("scripts/api", ["lua:test_api", "lua:test_stream"]),
    ("scripts/http", ["lua:test_http"]), ("scripts/serve", ["lua:test_serve"]),
    ("scripts/repl", ["lua:test_repl"]), ("scripts/cmd", ["sh:cli", "sh:commands", "sh:chat"]),
    ("scripts/lib", ["lua:test_lib", "lua:test_async"]), ("scripts/ui", ["lua:test_lib", "sh:words"]),
]

# (pattern, replacements): what is changed, outside of comments and strings.
C_RULES = [
    (r"(?<![<>=!\-+*/&|^])<(?![<=])(?=\s)", ["<="]), (r"(?<![<>\-])>(?![>=])(?=\s)", [">="]),
    (r"<=(?!=)", ["<"]), (r"(?<![<>])>=", [">"]), (r"==", ["!="]), (r"!=", ["=="]),
    (r"&&", ["||"]), (r"\|\|", ["&&"]), (r"(?<=[\w)\]] )\+(?= [\w(])", ["-"]),
    (r"(?<=[\w)\]] )-(?= [\w(])", ["+"]), (r"(?<=[\w)\]] )\*(?= [\w(])", ["+"]),
    (r"\btrue\b", ["false"]), (r"\bfalse\b", ["true"]), (r"(?<![\w.])([1-9]\d{0,4})(?![\w.])", ["+1"]),
    (r"(?<![\w.])0(?![\w.])", ["1"]), (r"\+\+", ["--"]), (r"\bif \((?=\w)", ["if (!"]),
]
LUA_RULES = [
    (r"(?<![<>=~])<(?![<=])(?=\s)", ["<="]), (r"(?<![<>=~])>(?![>=])(?=\s)", [">="]),
    (r"<=", ["<"]), (r">=", [">"]), (r"==", ["~="]), (r"~=", ["=="]), (r"\band\b", ["or"]),
    (r"\bor\b", ["and"]), (r"\bnot ", [""]), (r"(?<=[\w)\]] )\+(?= [\w(#])", ["-"]),
    (r"(?<=[\w)\]] )-(?= [\w(#])", ["+"]), (r"\btrue\b", ["false"]), (r"\bfalse\b", ["true"]),
    (r"(?<![\w.])([1-9]\d{0,4})(?![\w.])", ["+1"]), (r"(?<![\w.])0(?![\w.])", ["1"]),
]
C_STATEMENT = re.compile(r"^\s+(?!return\b|break\b|case\b|goto\b|static\b|const\b|typedef\b)[\w>.\[\]*()-]+[^{}]*;\s*$")
LUA_STATEMENT = re.compile(r"^\s+(?!return\b|break\b|local\b|end\b|if\b|for\b|while\b|else)[\w.:\[\]]+[^{}]*[)\w\]\"]\s*$")


def masked(path, text):
    """The text with comments, strings and preprocessor lines blanked, of the same length."""
    if path.endswith(".lua"):
        pattern = r'--\[\[.*?\]\]|--[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|\[\[.*?\]\]'
    else:
        pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(?m:^[ \t]*#(?:\\\n|[^\n])*)'
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.S)


def candidates(path, text):
    """All changes of one file, as (start, end, replacement, kind)."""
    plain, lua = masked(path, text), path.endswith(".lua")
    found = []
    for pattern, values in LUA_RULES if lua else C_RULES:
        for m in re.finditer(pattern, plain):
            for value in values:
                new = str(int(m.group(1)) + 1) if value == "+1" else value
                found.append((m.start(), m.end(), new, "operator"))
    at = 0
    for line in plain.split("\n"):
        whole = text[at:at + len(line)]
        if (LUA_STATEMENT if lua else C_STATEMENT).match(line) and line.count("(") == line.count(")"):
            found.append((at, at + len(line), "", "statement"))
        at += len(whole) + 1
    return found


def sources(only):
    names = subprocess.check_output(["git", "ls-files", *FOLDERS], text=True).split("\n")
    return [n for n in names if re.search(r"\.(c|h|lua)$", n) and not SKIP.search(n)
            and n.startswith(only or "")]


def draw(rng, names, texts):
    """One change: a file by its number of lines, then any of its changes."""
    while True:
        path = rng.choices(names, [texts[n].count("\n") for n in names])[0]
        changes = candidates(path, texts[path])
        if changes:
            kinds = sorted({c[3] for c in changes})
            kind = rng.choice(kinds)
            return (path, *rng.choice([c for c in changes if c[3] == kind]))


def suites_of(path):
    """Every suite, the near ones first."""
    near = next((s for prefix, s in NEAR if path.startswith(prefix)), [])
    every = ["c:" + n[5:-2] for n in sorted(os.listdir("tests/c")) if n.startswith("test_")]
    every += ["lua:" + n[:-4] for n in sorted(os.listdir("tests/lua")) if n.startswith("test_")]
    every += ["sh:" + n[:-3] for n in sorted(os.listdir("tests/sh")) if n.endswith(".sh")]
    return near + [s for s in every if s not in near and s != "sh:layers"]


def command(suite):
    kind, name = suite.split(":")
    if kind == "c":
        return ["build/tests/test_" + name]
    if kind == "sh":
        return ["sh", "tests/sh/%s.sh" % name]
    return ["build/perigee", "run", "tests/lua/run.lua", name]


def run(tree, argv, seconds):
    with tempfile.TemporaryFile() as log:
        p = subprocess.Popen(argv, cwd=tree, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                             start_new_session=True)
        try:
            return p.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, 9)
            p.wait()
            return 124


def judge(tree, path, text, change):
    """The suite that noticed, None for a survivor, "" when it does not compile."""
    start, end, new, _ = change
    target = os.path.join(tree, path)
    try:
        with open(target, "w") as f:
            f.write(text[:start] + new + text[end:])
        if run(tree, ["make", "-s", "all", "tests"], 600) != 0:
            return ""
        for suite in suites_of(path):
            if run(tree, command(suite), SUITE_SECONDS) != 0:
                return suite
        return None
    finally:
        with open(target, "w") as f:
            f.write(text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--count", type=int, default=60)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    p.add_argument("--only", help="files whose path begins so")
    o = p.parse_args()
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    names = sources(o.only)
    texts = {n: open(n, encoding="utf-8").read() for n in names}
    rng, lock = random.Random(o.seed), threading.Lock()
    trees, survivors, noticed = [], [], 0
    folder = tempfile.mkdtemp(prefix="mutate-")
    for i in range(o.jobs):
        tree = os.path.join(folder, str(i))
        subprocess.check_call(["git", "clone", "-q", ".", tree])
        if os.path.isdir("../shared"):
            os.symlink(os.path.abspath("../shared"), os.path.join(folder, "shared")) if i == 0 else None
        if run(tree, ["make", "-s", "all", "tests"], 3600) != 0:
            sys.exit("mutate: the unchanged tree does not build")
        trees.append(tree)

    def one(_):
        nonlocal noticed
        while True:
            with lock:
                path, *change = draw(rng, names, texts)
                tree = trees.pop()
            try:
                verdict = judge(tree, path, texts[path], change)
            finally:
                with lock:
                    trees.append(tree)
            if verdict == "":
                continue
            text, (start, end, new, kind) = texts[path], change
            line = text.count("\n", 0, start) + 1
            first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
            before = text[first:last].strip()
            after = (text[first:start] + new + text[end:last]).strip()
            with lock:
                where = "%s:%d: %s" % (path, line, kind)
                if verdict:
                    noticed += 1
                    print("noticed  %s (%s)" % (where, verdict), flush=True)
                else:
                    survivors.append(where)
                    print("SURVIVED %s\n  - %s\n  + %s" % (where, before, after), flush=True)
            return

    try:
        with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
            list(pool.map(one, range(o.count)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("%d of %d mutants noticed, %d survived" % (noticed, o.count, len(survivors)))
    return 0 if noticed >= 0.9 * o.count else 1


if __name__ == "__main__":
    sys.exit(main())
