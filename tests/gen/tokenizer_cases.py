#!/usr/bin/env python3
"""Random texts full of control characters through every normalizer and pre-tokenizer, with the
answers of the `tokenizers` library (pip install tokenizers; the tests themselves do not need it).

  tokenizer_cases.py write DIR
      writes DIR/control-NAME/{tokenizer.json, cases.json} for each part
  tokenizer_cases.py compare PERIGEE [SECONDS [SEED]]
      random parts and texts against `PERIGEE tokenize`, until the time is up

The vocabulary has each character twice, alone and with the prefix "##", and no merges: so ids show
every character of the normalized text and where the pieces of the pre-tokenizer begin."""

import base64, json, os, random, struct, subprocess, sys, tempfile, time
import tokenizers

CONTROL = [
    chr(c)
    for c in (
        *range(0, 9),
        0x0E,
        0x1B,
        *range(0x1C, 0x20),
        0x7F,
        0x80,
        0x85,
        0x8F,
        0x9F,
        0xAD,
        0x200B,
        0x200C,
        0x200D,
        0x200E,
        0x2028,
        0x2029,
        0x2060,
        0xFEFF,
        0xFFFD,
        0xE000,
        0xFDD0,
        0x10FFFF,
    )
]
SPACE = list("\t\n\v\f\r \u00a0\u1680\u2003\u202f\u3000")
PLAIN = list(
    "aAbZ1_.,'-$<é\u00dfﬁİΣ\u00bd五ア한ก각\u0301\u0303\u0345\u093f\U0001f1e9\U0001f600\U0001f3fd▁²٣"
)
ALPHABET = CONTROL + SPACE + PLAIN
OUTPUT = sorted(
    set(ALPHABET)
    | set(map(chr, range(0x21, 0x7F)))
    | set("eE\u0300\u0308\u0302\u1100\u1161\u11a8sißσς⁄")
)


def text_of(rng, most=9):
    pools = rng.choice([(SPACE,), (CONTROL, SPACE), (ALPHABET,), (SPACE, PLAIN), (CONTROL, PLAIN)])
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, most)))


# ---- precompiled character maps ----


def double_array(keys):
    """A trie of {bytes: value} as the units of darts-clone."""
    root = {}
    for key, value in keys.items():
        node = root
        for byte in key:
            node = node.setdefault(byte, {})
        node[0] = value  # keys have no NUL
    units, free = {0: 0}, 1
    todo = [(0, root)]
    while todo:
        at, node = todo.pop()
        base = free
        while any((base ^ c) in units for c in node):
            base += 1
        while free in units:
            free += 1
        units[at] |= (at ^ base) << 10 | (256 if 0 in node else 0)
        for c, child in node.items():
            units[base ^ c] = 0x80000000 | child if c == 0 else c
        todo += [(base ^ c, child) for c, child in node.items() if c]
    return [units.get(i, 0) for i in range(max(units) + 256)]


def charsmap(pairs):
    strings, keys = b"", {}
    for key, to in pairs.items():
        keys[key.encode()] = len(strings)
        strings += to.encode() + b"\0"
    units = double_array(keys)
    blob = struct.pack("<I", 4 * len(units)) + struct.pack("<%dI" % len(units), *units) + strings
    return base64.b64encode(blob).decode()


def random_map(rng):
    pairs = {}
    for _ in range(rng.randint(1, 14)):
        key = "".join(rng.choice(ALPHABET) for _ in range(rng.choice([1, 1, 1, 2, 2, 3]))).replace(
            "\0", ""
        )
        if key:
            pairs[key] = "".join(
                rng.choice(ALPHABET[1:]) for _ in range(rng.choice([0, 0, 1, 1, 2, 3]))
            ).replace("\0", "")
    for c in rng.sample("\t\n\r\v ", rng.randint(0, 4)):
        pairs[c] = rng.choice(["", " ", " ", "\n", "a"])
    if rng.random() < 0.3:
        pairs["\r\n"] = rng.choice(["", " ", "\n"])
    return pairs or {"a": "b"}


# ---- parts ----


def normalizers(rng):
    pattern = rng.choice(
        [
            {"String": rng.choice(["\n", " ", "\t", "\r\n", "a", "  "])},
            {
                "Regex": rng.choice(
                    [r"\s", r"\s+", r"[\r\n]+", r" {2,}", r"\p{Cc}", r"[^\p{L}]", r"^\s", r"\s$"]
                )
            },
        ]
    )
    flag = lambda: rng.choice([True, False])
    return {
        "nfc": {"type": "NFC"},
        "nfd": {"type": "NFD"},
        "nfkc": {"type": "NFKC"},
        "nfkd": {"type": "NFKD"},
        "nmt": {"type": "Nmt"},
        "lowercase": {"type": "Lowercase"},
        "accents": {"type": "StripAccents"},
        "strip": {"type": "Strip", "strip_left": flag(), "strip_right": flag()},
        "bert": {
            "type": "BertNormalizer",
            "clean_text": flag(),
            "handle_chinese_chars": flag(),
            "strip_accents": rng.choice([None, True, False]),
            "lowercase": flag(),
        },
        "replace": {
            "type": "Replace",
            "pattern": pattern,
            "content": rng.choice(["", " ", "▁", "ab"]),
        },
        "prepend": {"type": "Prepend", "prepend": rng.choice(["▁", " "])},
        "bytelevel": {"type": "ByteLevel"},
        "precompiled": {"type": "Precompiled", "precompiled_charsmap": charsmap(random_map(rng))},
    }


def pretokenizers(rng):
    flag = lambda: rng.choice([True, False])
    behavior = rng.choice(
        ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    )
    pattern = rng.choice(
        [
            {"String": rng.choice(["\n", " ", "\t", "a"])},
            {
                "Regex": rng.choice(
                    [
                        r"\s",
                        r"\s+",
                        r"[\r\n]+",
                        r"\p{Cc}",
                        r"\s+(?!\S)|\s",
                        r"\w+|[^\w\s]+",
                        r"\p{Z}+",
                        r"[^\r\n\p{L}\p{N}]?\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+",
                        r"[[:space:]]+",
                        r"\S+",
                        r".",
                    ]
                )
            },
        ]
    )
    return {
        "whitespace": {"type": "Whitespace"},
        "whitespacesplit": {"type": "WhitespaceSplit"},
        "bertpre": {"type": "BertPreTokenizer"},
        "scripts": {"type": "UnicodeScripts"},
        "digits": {"type": "Digits", "individual_digits": flag()},
        "punctuation": {"type": "Punctuation", "behavior": behavior},
        "delimiter": {
            "type": "CharDelimiterSplit",
            "delimiter": rng.choice(["\n", " ", "\t", "a"]),
        },
        "metaspace": {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": rng.choice(["always", "first", "never"]),
            "split": flag(),
        },
        "split": {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": flag()},
        "bytelevelpre": {
            "type": "ByteLevel",
            "add_prefix_space": flag(),
            "trim_offsets": True,
            "use_regex": flag(),
        },
    }


def tokenizer(normalizer, pre, unigram=False):
    chars = OUTPUT
    if (pre or {}).get("type") == "ByteLevel" or (normalizer or {}).get("type") == "ByteLevel":
        chars = sorted(set(tokenizers.pre_tokenizers.ByteLevel.alphabet()) | set(OUTPUT))
    vocab = {"<unk>": 0}
    for c in chars:
        for token in (c, "##" + c):
            vocab.setdefault(token, len(vocab))
    model = {
        "type": "BPE",
        "vocab": vocab,
        "merges": [],
        "unk_token": "<unk>",
        "continuing_subword_prefix": "##",
        "end_of_word_suffix": None,
        "dropout": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    if unigram:
        model = {
            "type": "Unigram",
            "unk_id": 0,
            "byte_fallback": False,
            "vocab": [["<unk>", 0.0]] + [[c, -float(i % 7 + 1)] for i, c in enumerate(chars)],
        }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre,
        "post_processor": None,
        "decoder": None,
        "model": model,
    }


def parts(rng):
    """{name: tokenizer.json}: each part alone, and some of them together."""
    ns, ps = normalizers(rng), pretokenizers(rng)
    out = {name: tokenizer(n, None) for name, n in ns.items()}
    out.update({name: tokenizer(None, p) for name, p in ps.items()})
    out["unigram"] = tokenizer(ns["precompiled"], ps["metaspace"], True)
    for i in range(1, 4):
        two, pre = rng.sample(sorted(ns), 2), rng.sample(sorted(ps), 2)
        while "bytelevelpre" in pre or "bytelevel" in two:  # few parts make sense after these
            two, pre = rng.sample(sorted(ns), 2), rng.sample(sorted(ps), 2)
        out["sequence%d" % i] = tokenizer(
            {"type": "Sequence", "normalizers": [ns[n] for n in two]},
            {"type": "Sequence", "pretokenizers": [ps[p] for p in pre]},
        )
    first = {
        **ps["metaspace"],
        "prepend_scheme": "first",
    }  # sees where the first character came from
    out["first"] = tokenizer(
        {"type": "Sequence", "normalizers": [ns[n] for n in rng.sample(sorted(ns), 2)]}, first, True
    )
    return out


def answers(definition, texts):
    t = tokenizers.Tokenizer.from_str(json.dumps(definition))
    out = []
    for text in texts:
        try:
            out.append(t.encode(text, add_special_tokens=False).ids)
        except BaseException as e:  # the library panics on some texts
            if isinstance(e, KeyboardInterrupt):
                raise
            out.append(None)
    return t, out


def firsts():
    """Parts that move or remove the start of the text, before Metaspace's "first"."""
    pre = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    maps = {"\t": "", "\n": " ", "\r\n": "", "a": "", "\u0301": "b"}
    parts = {
        "map": {"type": "Precompiled", "precompiled_charsmap": charsmap(maps)},
        "nfkd": {"type": "NFKD"},
        "strip": {"type": "Strip", "strip_left": True, "strip_right": False},
        "nmt": {"type": "Nmt"},
        "replace": {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": "ab"},
    }
    return {"first-" + name: tokenizer(part, pre, True) for name, part in parts.items()}


def write(folder):
    rng = random.Random(12)
    for name, definition in sorted({**parts(rng), **firsts()}.items()):
        if "precompiled" in name:  # a map as published ones have it, and random keys
            pairs = {
                **random_map(rng),
                "\t": " ",
                "\n": " ",
                "\r": " ",
                "\r\n": " ",
                "\u00a0": " ",
                "\x0b": "",
                "ﬁ": "fi",
            }
            definition["normalizer"]["precompiled_charsmap"] = charsmap(pairs)
        texts = [c for c in "\t\n\r\v\f\x1c\x85"] + [
            "\t\n",
            "\n\t",
            "\r\n",
            "\n\r",
            "\r\n\t",
            "a\t\nb",
            " \n",
            "\n ",
            "\n\n",
            "\u0345\u0301a",
            "\u0301\u0345a",
            "\u3000\u3000",
            "  ",
            "aaa",
        ]
        texts += [text_of(rng) for _ in range(120)]
        t, ids = answers(definition, texts)
        rows = []
        for text, row in zip(texts, ids):
            if row is None:
                continue
            rows.append(
                {
                    "kind": "control",
                    "text": text,
                    "ids": row,
                    "ids_special": row,
                    "decoded": t.decode(row, skip_special_tokens=False),
                    "decoded_skip": t.decode(row),
                }
            )
        os.makedirs(f"{folder}/control-{name}", exist_ok=True)
        with open(f"{folder}/control-{name}/tokenizer.json", "w") as f:
            json.dump(definition, f, ensure_ascii=True, separators=(",", ":"))
        with open(f"{folder}/control-{name}/cases.json", "w") as f:
            f.write(
                "[\n"
                + ",\n".join(json.dumps(r, ensure_ascii=True, separators=(",", ":")) for r in rows)
                + "\n]\n"
            )


def compare(perigee, seconds, seed):
    rng, end = random.Random(seed), time.time() + seconds
    asked = wrong = 0
    seen = {}
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/tokenizer.json"
        while time.time() < end:
            for name, definition in parts(rng).items():
                texts = [text_of(rng) for _ in range(150)]
                _, want = answers(definition, texts)
                with open(path, "w") as f:
                    json.dump(definition, f)
                lines = "".join(
                    json.dumps({"text": t, "add_special": False, "parse_special": True}) + "\n"
                    for t in texts
                )
                got = subprocess.run(
                    [perigee, "tokenize", path, "--jsonl"],
                    input=lines,
                    capture_output=True,
                    text=True,
                )
                rows = [json.loads(l) for l in got.stdout.splitlines()]
                if len(rows) != len(texts):
                    rows = [{"error": got.stderr.strip()[:300]}] * len(texts)
                for text, ids, row in zip(texts, want, rows):
                    if ids is None:
                        continue
                    asked += 1
                    if row.get("ids") == ids:
                        continue
                    wrong += 1
                    if seen.setdefault(name, 0) < 3:
                        seen[name] += 1
                        print(
                            name,
                            json.dumps(
                                {
                                    k: v
                                    for k, v in definition.items()
                                    if k in ("normalizer", "pre_tokenizer")
                                }
                            )[:300],
                        )
                        print("   ", ascii(text), "got", row.get("ids") or row, "want", ids)
    print(f"{asked} texts, {wrong} wrong", seen)
    return wrong == 0


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "write":
        write(sys.argv[2])
    elif len(sys.argv) > 2 and sys.argv[1] == "compare":
        seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 60
        sys.exit(
            not compare(
                sys.argv[2], seconds, int(sys.argv[4]) if len(sys.argv) > 4 else time.time_ns()
            )
        )
    else:
        sys.exit(__doc__)
