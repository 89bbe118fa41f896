"""The same masks with the `llguidance` library, on one thread.

grammar_peer.py TOKENIZER < LINES

A line is one of `perigee grammar --jsonl` with schema and ids; so is the answer: compile_us, and
mask_us of the masks before each id and after the last, as far as ids are let through.
"""
import ctypes
import json
import sys
import time

try:
    from llguidance import LLMatcher, LLTokenizer
except ImportError:
    sys.exit(3)

tokenizer = LLTokenizer(open(sys.argv[1], encoding="utf8").read())
size = (tokenizer.vocab_size + 31) // 32 * 4
mask = ctypes.create_string_buffer(size)
place = ctypes.addressof(mask)


def timed(call):
    start = time.perf_counter()
    value = call()
    return value, (time.perf_counter() - start) * 1e6


def follow(line):
    schema = json.dumps(line["schema"])
    matcher, took = timed(
        lambda: LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema)))
    if matcher.is_error():
        return {"error": matcher.get_error()}
    answer = {"compile_us": took, "mask_us": []}
    for token in line["ids"] + [None]:
        _, took = timed(lambda: matcher.unsafe_compute_mask_ptr(place, size))
        if matcher.is_error():
            break
        answer["mask_us"].append(took)
        if token is None or not matcher.consume_token(token):
            break
    return answer


for text in sys.stdin:
    try:
        print(json.dumps(follow(json.loads(text))))
    except Exception as why:
        print(json.dumps({"error": str(why)}))
