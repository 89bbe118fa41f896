"""Clients that behave badly against a running server (PERIGEE_URL, its process PERIGEE_PID); with
Python's own library only."""

import asyncio, json, os, random, re, select, socket, sys, time
import urllib.parse, urllib.request
from suite import run, test

URL = urllib.parse.urlsplit(os.environ["PERIGEE_URL"])
HOST, PORT, PID = URL.hostname, URL.port, int(os.environ["PERIGEE_PID"])
ANSWERS = {
    a["name"]: a
    for a in json.load(open(os.environ["PERIGEE_ANSWERS"], encoding="utf8"))
    if not a["grids"]
}


def resident():
    """Bytes of the server in memory; None where the system does not tell."""
    try:
        return int(open(f"/proc/{PID}/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return None


def get(path):
    with urllib.request.urlopen(f"{os.environ['PERIGEE_URL']}{path}", timeout=20) as r:
        return json.load(r)


def busy():
    return sum(m["batch"]["running"] + m["batch"]["waiting"] for m in get("/v1/status")["models"])


def wait_idle():
    end = time.time() + 30
    while busy():
        assert time.time() < end, f"{busy()} sequences still run"
        time.sleep(0.1)


HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\n"
)


def ask(name, **more):
    body = json.dumps({"model": "moonlet", "messages": ANSWERS[name]["messages"], **more}).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def talk(data, timeout=20):
    """Sends bytes, reads until the server closes or is silent; returns what came."""
    reader, writer = await asyncio.open_connection(HOST, PORT)
    out = b""
    try:
        writer.write(data)
        await writer.drain()
        while True:
            piece = await asyncio.wait_for(reader.read(65536), timeout)
            if not piece: break
            out += piece
    except (asyncio.TimeoutError, ConnectionError):
        pass
    writer.close()
    return out


async def whole_stream(name):
    reader, writer = await asyncio.open_connection(HOST, PORT)
    writer.write(ask(name, stream=True))
    text = ""
    while True:
        line = await asyncio.wait_for(reader.readline(), 60)
        if line.startswith(b"data: [DONE]"): break
        if line.startswith(b"data:"):
            for c in json.loads(line[5:])["choices"]: text += c["delta"].get("content") or ""
        assert line, "the stream ended early"
    writer.close()
    return text


@test
async def a_thousand_idle_connections():
    held = []
    for _ in range(1000):
        reader, writer = await asyncio.open_connection(HOST, PORT)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        held.append((reader, writer))
    for reader, _ in held:
        line = await asyncio.wait_for(reader.readline(), 20)
        assert line.startswith(b"HTTP/1.1 200"), "an idle connection was not answered"
    began = time.time()
    assert await whole_stream("hello") == ANSWERS["hello"]["text"]
    assert time.time() - began < 10
    for _, writer in held: writer.close()


@test
async def a_thousand_idle_streams():
    held = []
    for i in range(1000):                  # they wait in the queue or write; nobody reads them
        reader, writer = await asyncio.open_connection(HOST, PORT)
        writer.write(ask("hello", stream=True, max_tokens=3))
        held.append((reader, writer))
    codes = {}
    for reader, _ in held:
        code = (await asyncio.wait_for(reader.readline(), 120)).split()[1]
        codes[code] = codes.get(code, 0) + 1
    assert set(codes) <= {b"200", b"429", b"503"} and codes.get(b"200", 0) > 0, codes
    for _, writer in held: writer.close()
    wait_idle()


@test
async def a_reader_of_one_byte_a_second():
    reader, writer = await asyncio.open_connection(HOST, PORT)
    writer.write(ask("story", stream=True))
    for _ in range(3):
        assert len(await asyncio.wait_for(reader.read(1), 20)) == 1
        await asyncio.sleep(1)
    assert await whole_stream("capital") == ANSWERS["capital"]["text"]
    writer.close()
    wait_idle()


@test
async def leaving_in_the_middle():
    async def leave():
        reader, writer = await asyncio.open_connection(HOST, PORT)
        writer.write(ask("story", stream=True, max_tokens=5000, ignore_eos=True))
        await asyncio.wait_for(reader.read(300), 30)
        writer.transport.abort()
    await asyncio.gather(*(leave() for _ in range(40)))
    wait_idle()


VALID = HEAD + b"Content-Length: 2\r\n\r\n{}"
TOKENIZE = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = TOKENIZE + b"Transfer-Encoding: chunked\r\n"
SMUGGLED = {
    "two lengths": b"POST /tokenize HTTP/1.1\r\nHost: a\r\n"
                   b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a list of lengths": b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 2, 3\r\n\r\n{}",
    "length and chunks":
        TOKENIZE + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "gzip, chunked": TOKENIZE + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a bad chunk": CHUNKED + b"\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a negative chunk": CHUNKED + b"\r\n-2\r\n{}\r\n0\r\n\r\n",
    "a long chunk size": CHUNKED + b"\r\n" + b"f" * 40 + b"\r\n{}\r\n0\r\n\r\n",
    "a chunk without end": CHUNKED + b"\r\n2\r\n{}XX0\r\n\r\n",
    "space before the colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "a folded line": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    "a bare line feed": b"GET /health HTTP/1.1\nHost: localhost\n\n",
    "a bare carriage return": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
    "a zero byte": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    "a signed length": TOKENIZE + b"Content-Length: +2\r\n\r\n{}",
}


@test
async def smuggling_is_refused():
    for name, data in SMUGGLED.items():
        out = await talk(data + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", timeout=5)
        assert out.startswith(b"HTTP/1.1 400"), f"{name}: {out[:60]!r}"
        assert out.count(b"HTTP/1.1 ") == 1, f"{name}: the second request was answered"


@test
async def thousands_of_malformed_requests():
    rng = random.Random(7)

    async def one(i):
        data = bytearray(VALID)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at:at + rng.randint(1, 8)]
            elif kind == 2:
                data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))
            else:
                data[at:at] = data[rng.randrange(len(data)):][:rng.randint(1, 30)]
        reader, writer = await asyncio.open_connection(HOST, PORT)
        try:
            writer.write(bytes(data))
            writer.write_eof()
            out = await asyncio.wait_for(reader.read(100), 20)
            assert not out or out.startswith(b"HTTP/1.1 "), out
            assert not out.startswith(b"HTTP/1.1 5"), (bytes(data), out)
        except ConnectionError:
            pass
        writer.close()

    before = resident()
    for start in range(0, 4000, 50):
        await asyncio.gather(*(one(start + i) for i in range(50)))
    assert get("/health")["status"] == "ok"
    after = resident()
    if before: assert after - before < 64 << 20, f"{(after - before) >> 20} MiB more than before"


@test
async def health_while_a_long_prompt_is_read():
    messages = [{"role": "user", "content": "What is the capital of France? " * 800}]
    body = {"model": "moonlet", "messages": messages, "max_tokens": 1}
    slow = asyncio.create_task(talk(post(CHAT, body), 120))
    worst, n = 0.0, 0
    while not slow.done():
        began = time.time()
        out = await talk(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        worst, n = max(worst, time.time() - began), n + 1
        assert out.startswith(b"HTTP/1.1 200"), out[:60]
        await asyncio.sleep(0.01)
    assert (await slow).startswith(b"HTTP/1.1 200")
    slowest = f"the slowest after {worst * 1000:.0f} ms"
    print(f"note: /health answered {n} times while a prompt was read, {slowest}")


@test
async def a_flood():
    url, pipe = os.environ["PERIGEE_URL"] + "/health", asyncio.subprocess.PIPE
    flood = await asyncio.create_subprocess_exec("wrk", "-t1", "-c64", "-d3", url, stdout=pipe)
    assert await whole_stream("capital") == ANSWERS["capital"]["text"]  # streams go on meanwhile
    report = (await flood.communicate())[0].decode()
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", report).group(1))
    assert "Non-2xx" not in report and "Socket errors" not in report and rate > 100, report
    print(f"note: wrk, 64 connections: {rate:.0f} requests a second")


@test
async def memory_returns():
    names = [
        name
        for name, a in ANSWERS.items()
        if "<tool_call>" not in a["text"] and "</think>" not in a["text"] and "tools" not in a
    ]

    async def round_of(n):
        asked = [names[i % len(names)] for i in range(n)]
        texts = await asyncio.gather(*(whole_stream(name) for name in asked))
        for name, text in zip(asked, texts): assert text == ANSWERS[name]["text"], (name, text)
    await round_of(60)
    before = resident()
    for _ in range(5): await round_of(60)
    more = resident() - before if before else 0
    assert more < 32 << 20, f"{more >> 20} MiB more after 300 requests"


# ---- attacks: /health answers meanwhile, and the memory comes back -------------------------------

P99_MS, MAX_MS, REST_S, GROWTH = 50, 250, 10, 1.2
TRIES = 2  # of an attack: the times are those of a machine that may have other work


def loop_ms():
    """CPU time of the loop's thread: a busy machine makes /health late, but not this. Without
    it, the clock."""
    try:
        return int(open(f"/proc/{PID}/task/{PID}/schedstat").read().split()[0]) / 1e6
    except OSError:
        return time.time() * 1e3


def probe():
    """Another process (--probe), which nothing here delays: asks for /health until its stdin ends,
    then prints how long each answer took: milliseconds that the loop computed before it, or that
    passed if these are fewer."""
    taken = []
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0.003)[0]:
        clock, began = time.time(), loop_ms()
        with socket.create_connection((HOST, PORT), 20) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            out = s.recv(4096)
        taken.append(min(loop_ms() - began, (time.time() - clock) * 1e3))
        assert out.startswith(b"HTTP/1.1 200"), out[:60]
    print(json.dumps(sorted(taken)))


async def watch(work):
    """What probe() says while work goes on, and the result of work."""
    pipe = asyncio.subprocess.PIPE
    other = await asyncio.create_subprocess_exec(
        sys.executable, os.path.abspath(__file__), "--probe", stdin=pipe, stdout=pipe
    )
    await other.stdout.readline()
    try:
        result = await asyncio.ensure_future(work())
        await asyncio.sleep(0.2)
    finally:
        other.stdin.close()
        out = (await other.communicate())[0]
    return json.loads(out), result


async def attack(name, work, again=None, rest=4):
    """Runs work; checks the limits of /health, and that the memory is back after REST_S at rest.
    again: runs it once before, because the caches of its sequences stay."""
    if again: await again()
    await asyncio.sleep(rest)                              # the collection at rest
    wait_idle()
    before = resident()
    for _ in range(TRIES):
        taken, result = await watch(work)
        p99, worst, peak = taken[int(len(taken) * 0.99)], taken[-1], resident()
        if p99 < P99_MS and worst < MAX_MS: break
        await asyncio.sleep(rest)
    end = time.time() + REST_S
    while before and resident() > before * GROWTH and time.time() < end: await asyncio.sleep(0.25)
    after = resident()
    memory = f", memory {before >> 20}, {peak >> 20}, {after >> 20} MiB" if before else ""
    print(f"note: {name}: /health {len(taken)} times, p99 {p99:.0f}, worst {worst:.0f} ms{memory}")
    late = f"{name}: the loop computed for {worst:.0f} ms before /health was answered"
    assert worst < MAX_MS, late
    few = len(taken) < 100 and worst < 2 * P99_MS
    assert p99 < P99_MS or few, f"{name}: p99 of /health is {p99:.0f} ms"
    if before:
        grown = f"{name}: {after >> 20} MiB after {REST_S} s at rest, {before >> 20} before"
        assert after <= before * GROWTH, grown
    return result


def post(path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % path.encode()
    return head + b"Content-Length: %d\r\n\r\n" % len(data) + data


CHAT, MIB = "/v1/chat/completions", 1 << 20


def question(**more):
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **more}


def calls(arguments):
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]}]


def large_bodies():
    yield "31 MB of escapes", b'{"x":"' + b"\\u0041" * (5 * MIB) + b'"}', 400
    yield "31 MB of spaces", b" " * (31 * MIB) + b"{}", 400
    yield "a number of 30 MB", b'{"x":' + b"9" * (30 * MIB) + b"}", 400
    for size, code in (30, 413), (7, 400):                 # MiB; limits.text is 8
        n, of = size * MIB, f"of {size} MB"
        yield f"a text {of}", question(messages=[{"role": "user", "content": "a" * n}]), code
        yield f"arguments {of}", question(messages=calls(json.dumps({"a": "x" * n}))), code
        tool = {"name": "f", "description": "\u00e9\"\\" * (n // 4)}
        tools = [{"type": "function", "function": tool}]
        if size == 7: yield f"a description {of}", question(tools=tools), code
        variables = {"x": "a" * n}
        yield f"a variable {of}", question(chat_template_kwargs=variables), code - (size == 7) * 200
        texts = [{"role": "user", "content": "x" * (n // 9000)}] * 9000
        yield f"9,000 messages {of}", question(messages=texts), code
    yield "44,000 keys", question(**{f"k{i}": 1 for i in range(44000)}), 200
    for n, code in (90000, 400), (9900, 200):
        yield f"{n:,} parts", question(messages=[{"role": "user", "content": ["a"] * n}]), code
    words = {"x": ["a"] * 90000}
    yield "90,000 words in a variable", question(chat_template_kwargs=words), 200
    url = {"url": "data:image/png;base64," + "QUJD" * (7 * MIB)}
    content = [{"type": "image_url", "image_url": url}]
    yield "a picture of 30 MB", question(messages=[{"role": "user", "content": content}]), 400


@test
async def large_bodies_arrive():
    for name, body, code in large_bodies():
        data = post(CHAT, body)
        work = lambda: asyncio.gather(*(talk(data, 120) for _ in range(2)))
        results = await attack(name, work, rest=1)
        for out in results: assert out.split()[1] == b"%d" % code, (name, out[:300])


@test
async def bodies_that_never_end():
    data = post(CHAT, b" " * (32 * MIB - 1))[:-1]

    async def hold():
        held = [await asyncio.open_connection(HOST, PORT) for _ in range(3)]
        for _, writer in held:
            writer.write(data)
            await writer.drain()
        await asyncio.sleep(1)
        for _, writer in held: writer.close()
    await attack("three bodies that never end", hold)


@test
async def pipelined_requests():
    flood = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1500

    async def one():
        reader, writer = await asyncio.open_connection(HOST, PORT)
        writer.write(flood)
        end = time.time() + 5
        try:
            while time.time() < end and await asyncio.wait_for(reader.read(65536), 2): pass
        except asyncio.TimeoutError:
            pass                                           # all are answered
        writer.close()
    work = lambda: asyncio.gather(*(one() for _ in range(30)))
    await attack("30 connections of 1,500 pipelined requests", work)


@test
async def texts_to_tokenize():
    data = post("/tokenize", {"content": "\n" * (12 * MIB)})
    short = post("/tokenize", {"content": "ab " * 40000})
    times = []

    async def work():
        long = [asyncio.create_task(talk(data, 120)) for _ in range(6)]
        leaving = [await asyncio.open_connection(HOST, PORT) for _ in range(4)]
        for _, writer in leaving: writer.write(data)
        for _ in range(3):
            began = time.time()
            out = await talk(short, 120)
            assert out.startswith(b"HTTP/1.1 200"), out[:100]
            times.append(time.time() - began)
        for _, writer in leaving: writer.transport.abort()  # their work is dropped
        return await asyncio.gather(*long)
    for out in await attack("ten texts of 12 MB to tokenize", work):
        assert b"more than 400000 tokens" in out or out.split()[1] in (b"413", b"503"), out[:300]
    print(f"note: a text of 120 KB took {max(times):.1f} s meanwhile")


@test
async def logprobs_of_many_answers():
    body = question(n=16, max_tokens=80, ignore_eos=True, logprobs=True, top_logprobs=20)

    async def work():
        return await talk(post(CHAT, body), 120)
    out = await attack("16 answers with 20 logprobs per token", work, again=work)
    answer = json.loads(out.split(b"\r\n\r\n", 1)[1])
    assert [len(c["logprobs"]["content"]) for c in answer["choices"]] == [80] * 16


@test
async def an_echoed_prompt_with_logprobs():
    body = {"prompt": [70] * 3000, "n": 4, "max_tokens": 1, "ignore_eos": True}
    body.update(echo=True, logprobs=20)

    async def work():
        return await talk(post("/v1/completions", body), 120)
    out = await attack("an echoed prompt of 3,000 tokens", work, again=work)
    answer = json.loads(out.split(b"\r\n\r\n", 1)[1])
    assert [len(c["logprobs"]["tokens"]) for c in answer["choices"]] == [3001] * 4


@test
async def streams_that_nobody_reads():
    more = {"ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    data = ask("story", stream=True, max_tokens=300, **more)

    async def work():
        held = []
        for _ in range(10):
            reader, writer = await asyncio.open_connection(HOST, PORT, limit=1024)
            writer.write(data)
            reader._transport.pause_reading()
            held.append(writer)
        await asyncio.sleep(5)
        for writer in held: writer.transport.abort()
    await attack("ten streams that nobody reads", work, again=work)


if sys.argv[1:] == ["--probe"]:
    sys.exit(probe())
run()
