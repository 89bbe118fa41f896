"""One measurement of mlx-lm for tests/bench/mlx.lua: a model of a given shape with random 4-bit
weights (groups of 64), bf16 activations, run as mlx-lm's own generation does.

  python3 mlx_peer.py CONFIG TEST N SECONDS

CONFIG: config.json as text. TEST and N: decode and its depth, batch and its sequences, or prefill
and its tokens. Prints tokens per second and the device.
"""

import importlib
import json
import sys
import time

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

CHUNK = 512  # of a prompt before decode; its time is not measured


def make(config):
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.set_dtype(mx.bfloat16)
    nn.quantize(model, group_size=64, bits=4)
    mx.eval(model.parameters())
    return model


def tokens(rows, count, vocabulary):
    return mx.random.randint(0, vocabulary, (rows, count))


def fill(model, cache, ids):
    """Tokens into the cache; no logits are computed."""
    for at in range(0, ids.shape[1], CHUNK):
        model(ids[:, at : at + CHUNK], cache=cache)
        mx.eval([c.state for c in cache])


def next_token(model, cache, ids):
    return mx.argmax(model(ids, cache=cache)[:, -1], axis=-1)[:, None]


def decode(model, vocabulary, rows, depth, seconds):
    """The next step is queued before the token of the last one is looked at."""
    cache = make_prompt_cache(model)
    fill(model, cache, tokens(rows, max(depth, 1), vocabulary))
    token = next_token(model, cache, tokens(rows, 1, vocabulary))
    mx.eval(token)
    started, count = time.perf_counter(), 0
    while count < 4 or (count < 64 and time.perf_counter() - started < seconds):
        following = next_token(model, cache, token)
        mx.async_eval(following)
        mx.eval(token)
        token, count = following, count + 1
    mx.eval(token)
    return rows * count / (time.perf_counter() - started)


def prefill(model, vocabulary, count, seconds):
    """The best of up to three prompts, after one that only warms up."""
    best, spent = 0.0, 0.0
    for i in range(4):
        cache, ids = make_prompt_cache(model), tokens(1, count, vocabulary)
        mx.eval(ids)
        started = time.perf_counter()
        model(ids[:, :-1], cache=cache)
        mx.eval([c.state for c in cache])
        mx.eval(next_token(model, cache, ids[:, -1:]))
        took = time.perf_counter() - started
        best, spent = max(best, count / took if i else 0.0), spent + took
        if i and spent > seconds:
            break
    return best


def main(config, test, n, seconds):
    model, vocabulary = make(config), config["vocab_size"]
    if test == "prefill":
        rate = prefill(model, vocabulary, n, seconds)
    elif test == "batch":
        rate = decode(model, vocabulary, n, 16, seconds)
    else:
        rate = decode(model, vocabulary, 1, n, seconds)
    print(json.dumps({"tokens_per_s": rate, "device": str(mx.default_device())}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
