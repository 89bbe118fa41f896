#!/usr/bin/env python3
"""Writes runtime/text/unicode_tables.h.

    python3 tests/gen/unicode_tables.py > runtime/text/unicode_tables.h

The tables are those of the `tokenizers` library, found by asking it about every character. So this
script needs the library, not a particular version of the Unicode database:

- `tokenizers` (0.23.3): classes and scripts of its pattern language, case folding of `(?i:)`,
  lower-casing, canonical and compatibility decompositions, combining classes, compositions, old
  punctuation and marks, the classes of its UnicodeScripts pre-tokenizer. Its answers are final.
- `regex` (2026.5.9): names of scripts; grapheme and conjunct breaking. Its grapheme classes were
  compared with those of the library's Precompiled normalizer over all characters: equal.
- `unicodedata2` (18.0.0): only proposes candidates (which characters may have a combining class or
  a composition).

If ../shared/cases/tokenizers/unicode.json exists, the classes are compared with it first; a
difference is an error.
"""
import json
import os
import sys

import regex
import unicodedata2 as ucd
from tokenizers import Regex, normalizers as N, pre_tokenizers as P

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, ALL))
CASES = os.path.join(os.path.dirname(__file__), "../../../shared/cases/tokenizers/unicode.json")

CATEGORIES = ("Cn Cc Cf Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So "
              "Zl Zp Zs").split()
GCB = "Other CR LF Control Extend ZWJ Regional_Indicator Prepend SpacingMark L V T LV LVT".split()
INCB = ["None", "Consonant", "Extend", "Linker"]


def matches(pattern, text=TEXT):
    """The characters of text that a one-character pattern matches, or None if it is refused."""
    try:
        split = P.Split(Regex("(?:%s)+" % pattern), "removed", invert=True)
    except BaseException:
        return None
    out = set()
    for piece, _ in split.pre_tokenize_str(text):
        out.update(map(ord, piece))
    return out


def of_regex(pattern):
    return set(map(ord, regex.findall(pattern, TEXT)))


def runs(value):
    """[(start, value)] of a function over all code points; surrogates take the value 0."""
    out, last = [], None
    for c in range(0x110000):
        v = 0 if 0xD800 <= c < 0xE000 else value(c)
        if v != last:
            out.append((c, v))
            last = v
    return out


def blocks(table_runs):
    flat, marks = [], table_runs + [(0x110000, None)]
    for (c, v), (end, _) in zip(marks, marks[1:]):
        flat += [v] * (end - c)
    return len({tuple(flat[i:i + 128]) for i in range(0, 0x110000, 128)})


def combining_classes():
    """Found by order alone: c sorts before a mark m if its class is above 0 and below that of m."""
    nfd = N.NFD()
    out = {}
    for c in ALL:
        want = ucd.combining(chr(c))
        if not want:
            continue
        # Class 0 in the library: c keeps its place before the lowest class and after the highest.
        low, high = "\u0334", "\u0345"  # classes 1 and 240
        moved = nfd.normalize_str("a" + chr(c) + low) != "a" + nfd.normalize_str(chr(c)) + low
        moved |= nfd.normalize_str("a" + high + chr(c)) != "a" + high + nfd.normalize_str(chr(c))
        if moved:
            out[c] = want
    return out


def stepped(pairs):
    """[(from, to)] as (start, count, step, delta) with step 1 or 2."""
    out = []
    for c, d in sorted(pairs):
        if out:
            start, count, step, delta = out[-1]
            gap = c - (start + (count - 1) * step)
            if d - c == delta and (gap == step or (count == 1 and gap == 2)):
                out[-1] = (start, count + 1, gap, delta)
                continue
        out.append((c, 1, 1, d - c))
    return out


def script_groups():
    """Classes of the UnicodeScripts pre-tokenizer: pieces of one text give the runs, pairs of
    characters the equal classes. A character that alone gives no piece (the space, and characters
    without a script) continues any other: class 255."""
    pre = P.UnicodeScripts()
    chars = [c for c in ALL if pre.pre_tokenize_str(chr(c))]
    group, groups, at = {}, [], 0
    for piece, _ in pre.pre_tokenize_str("".join(map(chr, chars))):
        first = chars[at]
        for i, g in enumerate(groups):
            if len(pre.pre_tokenize_str(chr(g) + chr(first))) == 1:
                break
        else:
            i = len(groups)
            groups.append(first)
        for c in chars[at:at + len(piece)]:
            group[c] = i
        at += len(piece)
    assert at == len(chars) and len(groups) < 255
    return runs(lambda c: group.get(c, 255))


def fold_groups():
    def is_cased(c):
        x = chr(c)
        return (x.upper() != x or x.lower() != x or x.casefold() != x
                or ucd.category(x) in ("Lu", "Ll", "Lt") or c == 0x345)
    cased = [c for c in ALL if is_cased(c)]
    text = "\n".join(map(chr, cased))
    pairs = []
    for c in cased:
        split = P.Split(Regex("(?i:\\x{%x})" % c), "removed", invert=True)
        group = {ord(p) for p, _ in split.pre_tokenize_str(text) if len(p) == 1}
        least = min(group | {c})
        if least != c:
            pairs.append((c, least))
    return pairs


def multi_folds(pairs):
    """(character, the characters it equals under (?i:)), all as lowest members of their groups."""
    least = dict(pairs)
    out = {}
    for c in ALL:
        full = chr(c).casefold()
        if len(full) < 2:
            continue
        split = P.Split(Regex("(?i:\\x{%x})" % c), "removed", invert=True)
        if split.pre_tokenize_str(full) == [(full, (0, len(full)))]:
            out[least.get(c, c)] = [least.get(ord(x), ord(x)) for x in full]
    return sorted(out.items())


def check(name, found):
    if not os.path.exists(CASES):
        return
    want = set()
    for a, b in json.load(open(CASES))["classes"][name]:
        want.update(range(a, b + 1))
    want -= set(range(0xD800, 0xE000))
    if want != found:
        sys.exit("%s: %d characters differ from unicode.json" % (name, len(want ^ found)))


def removed_by(normalizer):
    return {c for c in ALL if not normalizer.normalize_str(chr(c))}


def flags():
    """In order, bit 19 first. The names are PE_U_... in unicode.h."""
    punct = P.Punctuation("removed")
    digits = P.Digits(individual_digits=False)
    numeric = {c for c in ALL if len(digits.pre_tokenize_str("a" + chr(c))) == 2}
    bert = N.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True,
                            lowercase=False)
    clean = N.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False,
                             lowercase=False)
    nfd, nfkd, nfc = N.NFD(), N.NFKD(), N.NFC()
    canonical = {c for c in ALL if nfd.normalize_str(chr(c)) != chr(c)}
    compat = {c for c in ALL if nfkd.normalize_str(chr(c)) != nfd.normalize_str(chr(c))}
    seconds = {b for _, b, _ in COMPOSED} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    maybe = {c for c in ALL if nfc.normalize_str(chr(c)) != chr(c)} | seconds | set(CCC)
    out = [
        ("ALPHABETIC", matches(r"\p{Alphabetic}")),
        ("UPPERCASE", matches(r"\p{Uppercase}")),
        ("LOWERCASE", matches(r"\p{Lowercase}")),
        ("NUMERIC", numeric),
        ("OLD_PUNCT", {c for c in ALL if not punct.pre_tokenize_str(chr(c))}),
        ("OLD_MARK", removed_by(N.StripAccents())),
        ("OLD_MN", removed_by(bert)),
        ("CLEANED", removed_by(clean)),
        ("CANONICAL", canonical),
        ("COMPAT", compat),
        ("NFC_MAYBE", maybe),
        ("PICTOGRAPHIC", of_regex(r"\p{Extended_Pictographic}")),
        ("EMOJI", matches(r"\p{Emoji}")),
    ]
    for name, case in (("NUMERIC", "Digits"), ("OLD_PUNCT", "Punctuation"),
                       ("OLD_MARK", "StripAccents removes"),
                       ("CLEANED", "BertNormalizer clean_text removes")):
        check(case, dict(out)[name])
    return out


def compositions():
    nfc = N.NFC()
    out = []
    for c in ALL:
        parts = ucd.decomposition(chr(c)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            a, b = (int(x, 16) for x in parts)
            if nfc.normalize_str(chr(a) + chr(b)) == chr(c):
                out.append((a, b, c))
    return sorted(out)


def fill(items, width=100):
    """Lines of at most `width` columns."""
    lines, line = [], "   "
    for item in items:
        if len(line) + 1 + len(item) > width:
            lines.append(line)
            line = "   "
        line += " " + item
    return lines + [line]


def table(head, items):
    print("static const %s[] = {" % head)
    print("\n".join(fill([item + "," for item in items])))
    print("};\n")


COMPOSED = compositions()
CCC = combining_classes()


def main():
    category = {}
    for i, name in enumerate(CATEGORIES[1:], 1):
        found = matches(r"\p{%s}" % name) or set()
        for c in found:
            category[c] = i
    # \w inside brackets is Alphabetic, M, Nd and Pc; a bare \w has six more characters of Latin-1.
    derived = matches(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]")
    assert derived == matches(r"[\w]")
    assert derived | {0xB2, 0xB3, 0xB9, 0xBC, 0xBD, 0xBE} == matches(r"\w")
    check(r"regex \w", derived)
    for name in "L N M P S".split():
        check(r"regex \p{%s}" % name, {c for c, i in category.items() if CATEGORIES[i][0] == name})
    gcb, incb = {}, {}
    for i, name in enumerate(GCB[1:], 1):
        for c in of_regex(r"\p{GCB=%s}" % name):
            gcb[c] = i
    for i, name in enumerate(INCB[1:], 1):
        for c in of_regex(r"\p{InCB=%s}" % name):
            incb[c] = i
    bits = flags()

    def word(c):
        w = category.get(c, 0) | gcb.get(c, 0) << 5 | CCC.get(c, 0) << 9 | incb.get(c, 0) << 17
        for i, (_, members) in enumerate(bits):
            w |= (c in members) << (19 + i)
        return w

    assert 19 + len(bits) <= 32
    kinds = runs(word)
    words = sorted({w for _, w in kinds})
    index = {w: i for i, w in enumerate(words)}
    assert len(words) <= 256, len(words)

    names = []
    for name, value in regex._regex_core.PROPERTIES["SCRIPT"][1].items():
        names.append((value, name))
    scripts, script_of, aliases = [], {}, []
    for value in sorted({v for v, _ in names}):
        own = sorted((n for v, n in names if v == value), key=lambda n: (-len(n), n))
        known = [n for n in own if n not in ("ZZZZ", "UNKNOWN")
                 and matches(r"\p{%s}" % n, "a") is not None]
        if not known:
            continue
        found = matches(r"\p{%s}" % known[0])
        if not found:
            continue
        scripts.append(known[0])
        for c in found:
            script_of[c] = len(scripts)
        for n in known:
            aliases.append((n.lower(), len(scripts)))
    assert len(scripts) < 255

    lower = N.Lowercase()
    pairs, double = [], []
    for c in ALL:
        s = lower.normalize_str(chr(c))
        if len(s) == 1 and ord(s) != c:
            pairs.append((c, ord(s)))
        elif len(s) != 1:
            double.append((c, s))
    assert double == [(0x130, "i\u0307")], double
    folds = fold_groups()
    multi = multi_folds(folds)
    assert max(len(f) for _, f in multi) <= 3

    print("""\
/* unicode_tables.h - generated by tests/gen/unicode_tables.py; do not edit. For unicode.c only. */
#ifndef PE_UNICODE_TABLES_H
#define PE_UNICODE_TABLES_H

#include "runtime/text/unicode.h"

typedef struct pe_unicode_pair {
  int32_t first, second, composed;
} pe_unicode_pair;
""")
    print("/* The info words that occur, each once; unicode.h names the bits. */")
    table("uint32_t words", ["0x%xu" % w for w in words])
    print("enum { BLOCKS = %d }; /* distinct blocks of 128 characters */\n" % blocks(kinds))
    print("/* Runs of characters with one info word: start << 8 | index into words. */")
    table("uint32_t kinds", ["0x%xu" % (c << 8 | index[w]) for c, w in kinds])
    print("/* Scripts of the pattern language: start << 8 | script, 0 for none; their names. */")
    script_runs = runs(lambda c: script_of.get(c, 0))
    table("uint32_t script_runs", ["0x%xu" % (c << 8 | v) for c, v in script_runs])
    table("struct { const char *name; uint8_t script; } script_names",
          ['{"%s", %d}' % a for a in sorted(aliases)])
    print("/* Classes of the UnicodeScripts pre-tokenizer: start << 8 | class; 255: any. */")
    table("uint32_t split_runs", ["0x%xu" % (c << 8 | v) for c, v in script_groups()])
    print("/* start, count, step, delta: lower case (except U+0130), and the lowest character\n"
          " * that (?i:) treats as equal. */")
    for name, what in (("lowers", pairs), ("folds", folds)):
        table("pe_unicode_shift " + name, ["{%d, %d, %d, %d}" % s for s in stepped(what)])
    print("/* Characters that equal two or three others under (?i:), all folded. */")
    table("struct { int32_t cp, to[3]; } multi_folds",
          ["{%d, {%s}}" % (c, ", ".join(map(str, f))) for c, f in multi])
    print("/* first, second, composed; Hangul is computed. */")
    table("pe_unicode_pair composed", ["{%d, %d, %d}" % p for p in COMPOSED])
    print("#endif")
    names = [n for n, _ in bits]
    sys.stderr.write("%d kinds, %d runs, flags %s\n" % (len(words), len(kinds), names))


main()
