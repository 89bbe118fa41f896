"""Scripts replaced and killed while 50 requests stream, and a server killed for good (PERIGEE_BIN,
PERIGEE_ANSWERS)."""

import asyncio, json, os, signal, subprocess, tempfile, time
import urllib.parse, urllib.request
from suite import run, test

BIN, MODEL = os.environ["PERIGEE_BIN"], os.path.dirname(os.environ["PERIGEE_ANSWERS"])
ANSWERS = {
    a["name"]: a
    for a in json.load(open(os.environ["PERIGEE_ANSWERS"], encoding="utf8"))
    if not a["grids"]
}
NAMES = [
    n for n in ANSWERS if "tools" not in ANSWERS[n] and "chat_template_kwargs" not in ANSWERS[n]
]


class Server:
    def __init__(self, *args):
        self.process = subprocess.Popen(
            [BIN, "serve", f"moonlet={MODEL}", "--port", "0", *args],
            stdout=subprocess.PIPE,
            stderr=open(os.environ["PERIGEE_LOG"], "a"),
            text=True,
        )
        self.url = self.process.stdout.readline().strip()
        while True:
            try:
                if self.get("/health"): break
            except urllib.error.HTTPError: time.sleep(0.05)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=20) as r: return json.load(r)

    def ask(self, messages, **more):
        body = json.dumps({"model": "moonlet", "messages": messages, **more}).encode()
        kind = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + "/v1/chat/completions", body, kind)
        with urllib.request.urlopen(request, timeout=60) as r:
            return json.load(r)

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(30)

    async def stream(self, name):
        at = urllib.parse.urlsplit(self.url)
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        messages = ANSWERS[name]["messages"]
        body = json.dumps({"model": "moonlet", "messages": messages, "stream": True}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        text = ""
        while True:
            line = await asyncio.wait_for(reader.readline(), 60)
            assert line, f"{name}: the stream ended early"
            if line.startswith(b"data: [DONE]"): break
            if line.startswith(b"data:"):
                for c in json.loads(line[5:])["choices"]: text += c["delta"].get("content") or ""
        writer.close()
        assert text == ANSWERS[name]["text"], f"{name}: {text!r} is not {ANSWERS[name]['text']!r}"


async def fifty(server, meanwhile):
    """50 streams, three rounds of them, while files change under the server."""
    stop = asyncio.Event()

    async def change():
        while not stop.is_set():
            meanwhile()
            await asyncio.sleep(0.15)
    changing = asyncio.create_task(change())
    for _ in range(3):
        await asyncio.gather(*(server.stream(NAMES[i % len(NAMES)]) for i in range(50)))
    stop.set()
    await changing


BROKEN = {
    "syntax error": "return function(step) this is no Lua",
    "exception": "return { name = 'mine', schedule = function() error { odd = true } end }",
    "endless loop": "return { name = 'mine', schedule = function() while true do end end }",
    "deep recursion": "local function f(x) return 1 + f(x + 1) end\n"
                      "return { name = 'mine', schedule = function() f(1) end }",
    "memory hog": "return { name = 'mine', schedule = function() local t = {} "
                  "while true do t[#t + 1] = ('x'):rep(100000) .. #t end end }",
    "nonsense": "return { name = 'mine', schedule = function(step) "
                "step:give(99999, 5) return 7 end }",
    "loads forever": "while true do end",
}
GOOD = "return { name = 'mine', schedule = function(step) step:fill() end }"


@test
def the_policy_is_killed():
    for name, text in BROKEN.items():
        with tempfile.TemporaryDirectory() as site:
            os.makedirs(site + "/policy")
            path = site + "/policy/mine.lua"
            open(path, "w").write(GOOD)
            server = Server("--site", site, "--policy", "mine")
            texts = [text, GOOD + "\n-- again", text + "\n"]
            count = [0]

            def change():
                open(path, "w").write(texts[count[0] % len(texts)])
                count[0] += 1
            try:
                asyncio.run(fifty(server, change))
                assert server.get("/health")["status"] == "ok"
            except AssertionError as e:
                raise AssertionError(f"{name}: {e}")
            finally:
                server.end()


@test
def templates_are_replaced():
    source = open(MODEL + "/chat_template.jinja", encoding="utf8").read()
    with tempfile.TemporaryDirectory() as site:
        os.makedirs(site + "/templates")
        path = site + "/templates/moonlet.jinja"
        server = Server("--site", site)
        texts = [
            source,
            "{# changed #}" + source,
            "{% for x in %}",
            source + "{{ raise_exception('no') if false }}",
        ]
        count = [0]

        def change():
            open(path, "w", encoding="utf8").write(texts[count[0] % len(texts)])
            count[0] += 1
        try:
            asyncio.run(fifty(server, change))
            assert server.get("/v1/status")["scripts"]["version"] > 1
        finally:
            server.end()


@test
def kill_and_restart_with_a_disk_cache():
    with tempfile.TemporaryDirectory() as folder:
        messages = [{"role": "user", "content": "What is the capital of Spain? " * 60}]
        server = Server("--cache-folder", folder)
        first = server.ask(messages, max_tokens=8)
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, first["usage"]
        end = time.time() + 10
        while not any(os.scandir(folder)) and time.time() < end: time.sleep(0.1)
        time.sleep(1)
        server.end(signal.SIGKILL)
        server = Server("--cache-folder", folder)
        try:
            again = server.ask(messages, max_tokens=8)
            assert again["choices"][0]["message"] == first["choices"][0]["message"], (again, first)
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, again["usage"]
        finally:
            server.end()


@test
def term_drains():
    server = Server()

    async def run():
        streams = [asyncio.create_task(server.stream("story")) for _ in range(8)]
        await asyncio.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*streams)
    asyncio.run(run())
    assert server.process.wait(30) == 0, server.process.returncode


run()
