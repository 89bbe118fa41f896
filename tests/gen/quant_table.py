#!/usr/bin/env python3
"""Writes the tables that the decoding of weights is tested against, with the packages `gguf` and
`mlx`.

    python3 tests/gen/quant_table.py            writes tests/data/{quant.safetensors,digests.txt}
    python3 tests/gen/quant_table.py --check    compares the files with what it would write; exit 1
                                                if they differ

Needs numpy, gguf and mlx (on Linux: pip install numpy gguf 'mlx[cpu]'). quant.safetensors has
random blocks of every layout with their values. digests.txt has a CRC of the float32 values of
every quantized tensor in ../shared/golden and ../shared/golden-gguf, and one per file for all its
plain tensors; it is not written if ../shared is missing.
"""
import glob, json, os, struct, sys, zlib

import numpy as np

import gguf
import mlx.core as mx
from gguf.quants import dequantize

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "data")
SHARED = os.path.join(HERE, "..", "..", "..", "shared")
GGUF_TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
# Offsets of the half-precision numbers of a block, which random bytes could turn into NaN.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
          "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
NAMES = {np.dtype(np.uint8): "U8", np.dtype(np.uint32): "U32", np.dtype(np.float32): "F32",
         np.dtype(np.float16): "F16", np.dtype(np.uint16): "BF16"}


def write_safetensors(tensors):
    """The bytes of a file; uint16 arrays are bf16."""
    header, blobs, at = {}, [], 0
    for name, array in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape),
                        "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def gguf_cases(rng, out):
    for name in GGUF_TYPES:
        kind = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = 512 // values
        data = rng.integers(0, 256, (2 * blocks, size), dtype=np.uint8)
        for at in HALVES[name]:
            half = rng.normal(0, 0.02, 2 * blocks).astype(np.float16)
            half[0], half[1] = np.float16(6e-8), np.float16(-60000)  # smallest, large negative
            data[:, at:at + 2] = half.view(np.uint8).reshape(-1, 2)
        if name == "MXFP4":
            data[:4, 0] = (0, 1, 2, 254)
        data = data.reshape(2, -1)
        out[f"{name}.data"] = data
        with np.errstate(over="ignore", invalid="ignore"):
            out[f"{name}.expected"] = dequantize(data, kind)


def bf16(x):
    """Rounded to bf16, as uint16."""
    n = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((n + 0x7fff + (n >> 16 & 1)) >> 16).astype(np.uint16)


def wide(x):
    """float32 of f16, f32 or (uint16) bf16."""
    if x.dtype != np.uint16:
        return x.astype(np.float32)
    return (x.astype(np.uint32) << 16).view(np.float32)


def affine(words, scales, biases, group, bits):
    return np.array(mx.dequantize(mx.array(words), mx.array(wide(scales)), mx.array(wide(biases)),
                                  group_size=group, bits=bits, mode="affine"))


def affine_cases(rng, out):
    kinds = {"f16": lambda x: x.astype(np.float16), "bf16": bf16,
             "f32": lambda x: x.astype(np.float32)}
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            kind = ("f16", "bf16", "f32")[(bits + group // 32) % 3] if bits != 4 else None
            for k in [kind] if kind else list(kinds):
                cols = 3 * group if group < 128 else 256
                words = rng.integers(0, 2**32, (2, cols * bits // 32), dtype=np.uint32)
                scales = kinds[k](rng.normal(0, 0.1, (2, cols // group)))  # of both signs
                biases = kinds[k](rng.normal(0, 1, (2, cols // group)))
                name = f"affine-{bits}-{group}-{k}"
                out[f"{name}.data"] = words
                out[f"{name}.scales"], out[f"{name}.biases"] = scales, biases
                out[f"{name}.expected"] = affine(words, scales, biases, group, bits)


def float_format(words, scales, group, bits, mode, **more):
    return np.array(mx.dequantize(mx.array(words), mx.array(scales), group_size=group, bits=bits,
                                  mode=mode, dtype=mx.float32, **more))


def float_cases(rng, out):
    for mode, bits, group in (("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)):
        words = rng.integers(0, 2**32, (4, 128 * bits // 32), dtype=np.uint32)
        scales = rng.integers(110, 140, (4, 128 // group), dtype=np.uint8)
        scales[0, :4] = (0, 1, 254, 255)
        name = f"{mode}-{bits}-{group}-u8"
        out[f"{name}.data"], out[f"{name}.scales"] = words, scales
        out[f"{name}.expected"] = float_format(words, scales, group, bits, mode)
    g = np.array([0.37], dtype=np.float32)
    scales = rng.integers(1, 0x7e, (4, 8), dtype=np.uint8)
    words = rng.integers(0, 2**32, (4, 16), dtype=np.uint32)
    out["nvfp4-4-16-global.data"], out["nvfp4-4-16-global.scales"] = words, scales
    out["nvfp4-4-16-global.global_scale"] = g
    out["nvfp4-4-16-global.expected"] = float_format(words, scales, 16, 4, "nvfp4",
                                                     global_scale=mx.array(g[0]))


def crc(array):
    return zlib.crc32(np.ascontiguousarray(array, dtype=np.float32).tobytes())


class Digests:
    def __init__(self):
        self.lines = []

    def file(self, path, quantized, plain):
        """quantized, plain: name -> float32 array with its logical shape."""
        for name in sorted(quantized):
            a = quantized[name]
            rows, columns = a.size // a.shape[-1], a.shape[-1]
            self.lines.append(f"{path}\t{name}\t{rows}\t{columns}\t{crc(a):08x}")
        total = 0
        for name in sorted(plain):
            values = np.ascontiguousarray(plain[name], dtype=np.float32)
            total = zlib.crc32(values.tobytes(), total)
        self.lines.append(f"{path}\t*\t{len(plain)}\t0\t{total:08x}")


def numpy32(array):
    return np.array(array.astype(mx.float32))


def mlx_directory(path):
    """(quantized, plain) of a model directory, decoded by mlx."""
    quantized, plain, tensors = {}, {}, {}
    config = json.load(open(os.path.join(path, "config.json")))
    rules = config.get("quantization") or {}
    for shard in sorted(glob.glob(os.path.join(path, "model*.safetensors"))):
        tensors.update(mx.load(shard))
    for name, a in tensors.items():
        stem = name.removesuffix(".weight")
        if name.endswith(".weight") and stem + ".scales" in tensors:
            rule = rules.get(stem, {k: v for k, v in rules.items()
                                    if k in ("group_size", "bits", "mode")})
            scales, mode = tensors[stem + ".scales"], rule.get("mode", "affine")
            if mode == "affine":
                q = mx.dequantize(a, scales.astype(mx.float32),
                                  tensors[stem + ".biases"].astype(mx.float32),
                                  group_size=rule["group_size"], bits=rule["bits"], mode=mode)
            else:
                q = mx.dequantize(a, scales, group_size=rule["group_size"], bits=rule["bits"],
                                  mode=mode, dtype=mx.float32)
            quantized[name] = np.array(q)
        elif name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            words = a.view(mx.uint32).reshape(*a.shape[:-2], -1)
            q = mx.dequantize(words, tensors[stem + "_scales"], group_size=32, bits=4, mode="mxfp4",
                              dtype=mx.float32)
            quantized[stem] = np.array(q)
        elif not (name.endswith((".scales", ".biases"))
                  and name.rsplit(".", 1)[0] + ".weight" in tensors
                  or name.endswith("_scales")
                  and name.removesuffix("_scales") + "_blocks" in tensors):
            plain[name] = numpy32(a)
    return quantized, plain


def gguf_file(path):
    quantized, plain = {}, {}
    for t in gguf.GGUFReader(path).tensors:
        shape = [int(n) for n in reversed(t.shape)]
        values = dequantize(t.data, t.tensor_type).reshape(shape)
        (quantized if t.tensor_type.name in GGUF_TYPES else plain)[t.name] = values
    return quantized, plain


def digests():
    d = Digests()
    for config in sorted(glob.glob(os.path.join(SHARED, "golden", "*", "config.json"))):
        folder = os.path.dirname(config)
        d.file("golden/" + os.path.basename(folder), *mlx_directory(folder))
    for path in sorted(glob.glob(os.path.join(SHARED, "golden-gguf", "*.gguf"))):
        d.file("golden-gguf/" + os.path.basename(path), *gguf_file(path))
    head = ("# file, tensor (* = all plain ones, by name), rows (or how many), columns, "
            "CRC-32 of the float32 values\n")
    return head + "\n".join(d.lines) + "\n"


def main():
    rng, tensors = np.random.default_rng(20240607), {}
    gguf_cases(rng, tensors)
    affine_cases(rng, tensors)
    float_cases(rng, tensors)
    files = {"quant.safetensors": write_safetensors(tensors)}
    if os.path.isdir(os.path.join(SHARED, "golden")):
        files["digests.txt"] = digests().encode()
    bad = 0
    for name, data in files.items():
        path = os.path.join(DATA, name)
        if "--check" not in sys.argv:
            open(path, "wb").write(data)
        elif open(path, "rb").read() != data:
            bad = 1
            print(f"{name}: differs from the packages' result", file=sys.stderr)
    sys.exit(bad)


main()
