#!/usr/bin/env python3
"""Writes the small pictures of tests/images that no other program made: kinds of PNG that tests/c
and tests/lua decode. Needs only Python's standard library: pictures.py FOLDER."""
import os, struct, sys, zlib

folder = sys.argv[1]
W, H = 7, 5


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(name, width, height, bits, kind, rows, more=b"", interlace=0):
    """rows: bytes of each row, unfiltered; more: chunks before the data."""
    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, interlace)
    data = zlib.compress(b"".join(b"\0" + r for r in rows), 9)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + chunk(b"IDAT", data) +
                chunk(b"IEND", b""))


def value(x, y, c):
    """The 8-bit value of a pixel; tests compute the same."""
    return (x * 31 + y * 17 + c * 73) % 256


def row8(y, channels):
    return bytes(value(x, y, c) for x in range(W) for c in range(channels))


def row16(y, channels):  # the low byte must not matter
    return b"".join(bytes((value(x, y, c), 255 - x)) for x in range(W) for c in range(channels))


rows = range(H)
png("own_rgb8.png", W, H, 8, 2, [row8(y, 3) for y in rows])
png("own_rgb16.png", W, H, 16, 2, [row16(y, 3) for y in rows])
png("own_rgba16.png", W, H, 16, 6, [row16(y, 4) for y in rows])
png("own_gray16.png", W, H, 16, 0, [row16(y, 1) for y in rows])
png("own_gray1.png", 12, 2, 1, 0, [b"\xa5\xf0", b"\x0f\x50"])
png("own_key.png", W, H, 8, 2, [row8(y, 3) for y in rows],
    chunk(b"tRNS", struct.pack(">HHH", value(3, 2, 0), value(3, 2, 1), value(3, 2, 2))))
tiff = b"MM\0*" + struct.pack(">I", 8) + struct.pack(">H", 1) + struct.pack(
    ">HHIHH", 0x0112, 3, 1, 6, 0) + b"\0\0\0\0"
png("own_turned.png", W, H, 8, 2, [row8(y, 3) for y in rows], chunk(b"eXIf", tiff))
png("own_1x1.png", 1, 1, 8, 2, [b"\x0a\x14\x1e"])
png("own_tall.png", 1, 10000, 8, 0, [bytes((y % 251,)) for y in range(10000)])
png("own_huge.png", 60000, 60000, 8, 2, [b"\0" * 30])  # a bomb: 10.8 GB by its header
# Adam7: seven small pictures.
passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
          (0, 1, 1, 2)]
lines = []
for x0, y0, dx, dy in passes:
    for y in range(y0, H, dy):
        if x0 < W:
            lines.append(bytes(value(x, y, c) for x in range(x0, W, dx) for c in range(3)))
png("own_interlaced.png", W, H, 8, 2, lines, interlace=1)
