"""Reads a Mach-O executable for macOS and checks what make check-macos promises: it is for arm64,
needs libSystem alone, and is signed, since arm64 Macs start nothing that is not.

  python3 tests/macho.py FILE     the last line is "N passed, N failed"
"""

import struct
import sys

MAGIC_64, CPU_ARM64, EXECUTE = 0xFEEDFACF, 0x0100000C, 2
SYMTAB, LOAD_DYLIB, WEAK_DYLIB, REEXPORT_DYLIB = 0x2, 0xC, 0x80000018, 0x8000001F
CODE_SIGNATURE, BUILD_VERSION, MAIN = 0x1D, 0x32, 0x80000028
PLATFORM_MACOS = 1
LIBRARY = "/usr/lib/libSystem.B.dylib"
SIGNATURE_MAGIC = 0xFADE0CC0
PIE, TWO_LEVEL = 0x200000, 0x80


def text_at(data, at):
    return data[at : data.index(b"\0", at)].decode()


def commands(data):
    """The load commands: (command, offset) each."""
    count, at = struct.unpack_from("<I", data, 16)[0], 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, at)
        yield command, at
        at += size


def libraries(data):
    loads = (LOAD_DYLIB, WEAK_DYLIB, REEXPORT_DYLIB)
    return [text_at(data, at + struct.unpack_from("<I", data, at + 8)[0])
            for command, at in commands(data) if command in loads]


def undefined(data):
    """The symbols that the executable needs: (name, number of the library) each."""
    for command, at in commands(data):
        if command != SYMTAB:
            continue
        symbols, count, strings, _ = struct.unpack_from("<IIII", data, at + 8)
        for i in range(count):
            name, kind, _, desc, _ = struct.unpack_from("<IBBHQ", data, symbols + 16 * i)
            debugging, type_bits = kind & 0xE0, kind & 0x0E
            if not debugging and type_bits == 0:
                yield text_at(data, strings + name), desc >> 8


def signature(data):
    """Is there one, and does it start as signatures do?"""
    for command, at in commands(data):
        if command == CODE_SIGNATURE:
            start, size = struct.unpack_from("<II", data, at + 8)
            return size > 0 and struct.unpack_from(">I", data, start)[0] == SIGNATURE_MAGIC
    return False


def platform(data):
    for command, at in commands(data):
        if command == BUILD_VERSION:
            kind, least = struct.unpack_from("<II", data, at + 8)
            return kind, f"{least >> 16}.{least >> 8 & 255}"
    return None, "?"


def main(path):
    with open(path, "rb") as file:
        data = file.read()
    magic, cpu, _, kind = struct.unpack_from("<IIII", data, 0)
    flags = struct.unpack_from("<I", data, 24)[0]
    if magic != MAGIC_64:
        print(f"{path}: magic number {magic:#x}, not {MAGIC_64:#x}\n0 passed, 1 failed")
        return 1
    needs, (system, least) = list(undefined(data)), platform(data)
    foreign = [name for name, library in needs if library != 1]
    names = {name for name, _ in needs}
    checks = [
        (f"an executable for arm64: processor {cpu:#x}, kind {kind}",
         cpu == CPU_ARM64 and kind == EXECUTE),
        (f"for macOS: platform {system}, {least} or later", system == PLATFORM_MACOS),
        (f"position independent, symbols bound to libraries: flags {flags:#x}",
         flags & PIE and flags & TWO_LEVEL),
        ("an entry point", any(command == MAIN for command, _ in commands(data))),
        (f"libraries: {' '.join(libraries(data))}", libraries(data) == [LIBRARY]),
        (f"{len(needs)} symbols from libSystem; from elsewhere: {' '.join(foreign) or 'none'}",
         needs and not foreign),
        ("pictures are decoded in a sandbox: needs sandbox_init", "_sandbox_init" in names),
        ("a code signature", signature(data)),
    ]
    for what, holds in checks:
        print(f"{'ok  ' if holds else 'FAIL'} {what}")
    failed = sum(not holds for _, holds in checks)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
