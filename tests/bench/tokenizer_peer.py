"""The same measurement with the `tokenizers` library, on one thread.

tokenizer_peer.py TOKENIZER TEXT NAME
"""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit(3)

path, text, name = sys.argv[1:4]
start = time.perf_counter()
t = Tokenizer.from_file(path)
load = (time.perf_counter() - start) * 1e3
t.no_truncation()
t.no_padding()
text = open(text, encoding="utf8", newline="").read()
size = len(text.encode())
speed = []
for _ in range(3):
    start = time.perf_counter()
    ids = t.encode(text, add_special_tokens=False).ids
    speed.append(size / 1e6 / (time.perf_counter() - start))
print(f"{name:<14} {load:8.1f} {speed[0]:10.1f} {max(speed[1:]):10.1f} {len(ids):10}")
