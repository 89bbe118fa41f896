#!/usr/bin/env python3
"""Writes tests/templates/strings.json: expressions of templates on strings, lists and numbers, and
what Python makes of them.

    python3 tests/gen/strings.py > tests/templates/strings.json
"""
import json
import random

TEXTS = ["", "a", "abcabc", "aXaXa", "éaéb", "  pad  ", "a\nb\r\nc", "x,y,,z", "Ab1 cD", "日本語日本"]
PARTS = ["", "a", "c", "abc", "X", "é", " ", ",", "b", "本", "aXa"]
PLACES = [None, -7, -3, -1, 0, 1, 2, 3, 5, 6, 9]
STEPS = [None, 1, 2, -1, -2]
NUMBERS = [-7, -3, -2, -1, 0, 1, 2, 3, 7, 10, -2.5, -0.5, 0.0, 0.5, 1.5, 2.0, 1e20]
PLAIN = ["strip", "lstrip", "rstrip", "upper", "lower", "title", "capitalize", "swapcase",
         "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower", "splitlines", "split"]

rng = random.Random(3)
cases = {}


def quoted(s):
    return "'" + s.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") + "'"


def add(expression, value):
    try:
        v = value()
    except (ValueError, ZeroDivisionError, OverflowError):
        return
    if isinstance(v, str):
        cases["'[' ~ " + expression + " ~ ']'"] = "[" + v + "]"
    elif isinstance(v, (list, tuple)):
        cases["(" + expression + ") | list | tojson"] = json.dumps(list(v), ensure_ascii=False)
    elif not isinstance(v, complex):
        cases[expression] = str(v)


def searches(s):
    for p in PARTS:
        for name in ("find", "rfind", "count", "startswith", "endswith"):
            for _ in range(2):
                given = [p]
                for place in (rng.choice(PLACES), rng.choice(PLACES)):
                    if place is None:
                        break
                    given.append(place)
                if not (name == "count" and p == "" and len(given) > 1):
                    words = ", ".join([quoted(p)] + [str(n) for n in given[1:]])
                    add(f"{quoted(s)}.{name}({words})", lambda: getattr(s, name)(*given))


def changes(s):
    for p in PARTS[1:]:
        for n in (-1, 0, 1, 2):
            for name in ("split", "rsplit"):
                if rng.random() < 0.4:
                    add(f"{quoted(s)}.{name}({quoted(p)}, {n})", lambda: getattr(s, name)(p, n))
        add(f"{quoted(s)}.replace({quoted(p)}, '-')", lambda: s.replace(p, "-"))
        add(f"{quoted(s)}.replace({quoted(p)}, '', 1)", lambda: s.replace(p, "", 1))
        for name in ("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "partition",
                     "rpartition"):
            if rng.random() < 0.4:
                add(f"{quoted(s)}.{name}({quoted(p)})", lambda: getattr(s, name)(p))
    for name in PLAIN:
        add(f"{quoted(s)}.{name}()", lambda: getattr(s, name)())
    for width in (0, 1, len(s), len(s) + 1, 9, 12):
        for name in ("center", "ljust", "rjust", "zfill"):
            if rng.random() < 0.4:
                add(f"{quoted(s)}.{name}({width})", lambda: getattr(s, name)(width))


def slices(v, text):
    for a in PLACES:
        for b in PLACES:
            if rng.random() < 0.25:
                step = rng.choice(STEPS)
                words = ":".join("" if x is None else str(x) for x in (a, b, step))
                add(f"{text}[{words if step else words[:-1]}]", lambda: v[a:b:step])


def arithmetic():
    for x in NUMBERS:
        for y in NUMBERS:
            for op in ("+", "-", "*", "/", "//", "%", "<", "<=", "==", "!=", ">", ">="):
                if rng.random() < 0.35:
                    add(f"({x!r}) {op} ({y!r})", lambda: eval(f"({x!r}) {op} ({y!r})"))
            if abs(y) <= 3 and abs(x) <= 10:
                add(f"({x!r}) ** ({y!r})", lambda: x ** y)


for one in TEXTS:
    searches(one)
    changes(one)
    slices(one, quoted(one))
slices(list(range(7)), "[0, 1, 2, 3, 4, 5, 6]")
arithmetic()
print("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases.items()) + "\n]")
