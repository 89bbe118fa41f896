"""What the suites in Python share: @test registers a function, `same` compares, `run` calls all of
them, or those that the command line names a part of, and prints the closing line."""

import asyncio, inspect, sys, traceback

TESTS = []


def test(f):
    TESTS.append(f)
    return f


def same(got, want):
    assert got == want, f"{got!r} is not {want!r}"


def run():
    failed, only = 0, sys.argv[1:]
    chosen = [f for f in TESTS if not only or any(name in f.__name__ for name in only)]
    for f in chosen:
        try:
            asyncio.run(f()) if inspect.iscoroutinefunction(f) else f()
        except Exception:
            failed += 1
            print(f"FAIL {f.__name__}")
            traceback.print_exc(limit=6, file=sys.stdout)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    sys.exit(failed > 0)
