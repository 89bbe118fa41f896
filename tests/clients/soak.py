"""Mixed traffic for minutes: every answer is compared, memory and handles are watched.

    make soak MINUTES=30
    python3 tests/clients/soak.py --bin build/perigee --model examples/moonlet --minutes 2 --seed 1

One server with a site folder and a disk cache. Workers ask for the answers that the model is known
to give (answers.json), streamed and whole, with and without tools, sampled ones twice with one
seed; others cancel, read slowly, send nonsense, leave in the middle, tokenize, look at status and
metrics. Meanwhile scripts, templates and policies are replaced, by good, random and broken ones,
and every few minutes the server is restarted on its disk cache, by SIGTERM or by kill -9.

It fails when an answer differs, an error of 5xx comes that is not a stated refusal, /health takes
longer than 2 s, the server dies, or when memory, open files or threads of the idle server have
grown from the first quiet moment after warming up to the last one. Of the slowest /health it also
says how much is left without the time in which the host of a virtual machine ran somebody else.
Only Python's own library.
"""

import argparse
import collections
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

GROWTH = 1.2         # of resident memory, and 32 MB on top: what an allocator keeps varies
GRACE = 32 << 20
QUIET_S = 12         # the server collects garbage when it has been idle for a while
HEALTH_S = 2.0       # far above the promise of 50 ms: this machine also runs the clients
REFUSALS = {429, 503}

POLICIES = {
    "fill": "return { name = 'mine', version = 1, schedule = function(step) step:fill() end }",
    "shortest": "return { name = 'mine', version = 1, schedule = function(step) step:decode() "
                "step:order(function(s) return s.left end) step:fill() end }",
    "stingy": "return { name = 'mine', version = 1, schedule = function(step) step:decode() "
              "local p = step:prompts()[1] if p then step:prefill(p, 3) end end }",
    "preempts": "local n = 0 return { name = 'mine', version = 1, schedule = function(step) "
                "n = n + 1 local r = step:running() "
                "if n % 50 == 0 and #r > 1 then step:preempt(r[#r]) end step:fill() end }",
    "idle": "return { name = 'mine', version = 1, schedule = function(step) end }",
    "raises": "return { name = 'mine', version = 1, schedule = function(step) error 'no' end }",
    "loops": "return { name = 'mine', version = 1, schedule = function() while true do end end }",
    "syntax": "return {",
}
HOOKS = {
    "nothing": "return { version = 1 }",
    "counts": "local n = 0 return { version = 1, done = function() n = n + 1 end }",
    "raises": "return { version = 1, request = function() error 'no' end }",
    "loops": "return { version = 1, request = function() while true do end end }",
}
NONSENSE = [b"{", b"[]", b'{"messages": 5}', b'{"messages": []}', b"\xff\xfe",
            b'{"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}',
            b'{"messages": [{"role": "user", "content": "x"}], "top_p": -1}',
            b'{"model": "none", "messages": [{"role": "user", "content": "x"}]}',
            b'{"messages": [{"role": "user", "content": "' + b"word " * 20000 + b'"}]}']


class Failed(Exception):
    pass


def stolen():
    """Seconds that the host of this virtual machine took from each processor; [] if unknown."""
    try:
        with open("/proc/stat") as f:
            lines = [line.split() for line in f if re.match(r"cpu\d", line)]
        return [int(words[8]) / os.sysconf("SC_CLK_TCK") for words in lines]
    except (OSError, IndexError, ValueError):
        return []


class Server:
    """The process, its address, and its restarts."""

    def __init__(self, opt, folder):
        self.opt, self.folder, self.process = opt, folder, None
        self.log = os.path.join(folder, "log")
        self.down = threading.Event()
        for name in ("site/policy", "site/hooks", "site/templates", "cache"):
            os.makedirs(os.path.join(folder, name), mode=0o700)
        self.write("policy", "mine", POLICIES["fill"])
        self.start()

    def write(self, kind, name, text):
        path = os.path.join(self.folder, "site", kind, name + ".lua")
        with open(path + ".new", "w") as f:
            f.write(text)
        os.rename(path + ".new", path)

    def start(self):
        argv = [self.opt.bin, "serve", "m=" + self.opt.model, "--port", "0", "--site",
                os.path.join(self.folder, "site"), "--policy", "mine", "--cache-folder",
                os.path.join(self.folder, "cache"), "--cache-bytes", "64M", "--no-log"]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=open(self.log, "ab"))
        at = urllib.parse.urlsplit(self.process.stdout.readline().decode().strip())
        if not at.hostname:
            raise Failed("the server did not start, see %s" % self.log)
        self.host, self.port = at.hostname, at.port
        end = time.time() + 60
        while self.call("GET", "/health")[0] != 200:
            if time.time() > end:
                raise Failed("the server did not become healthy within 60 s")
            time.sleep(0.05)
        self.down.clear()

    def restart(self, how):
        self.down.set()
        self.write("policy", "mine", POLICIES["fill"])  # a server does not start with a broken one
        self.process.send_signal(how)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise Failed("the server did not end within 60 s of signal %d" % how)
        if how == signal.SIGTERM and code != 0:
            raise Failed("the server ended with %d after SIGTERM" % code)
        self.start()

    def connect(self, timeout=60):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def call(self, method, path, body=None):
        """Status and JSON, or text where it is none."""
        c = self.connect()
        try:
            c.request(method, path, body, {"content-type": "application/json"} if body else {})
            r = c.getresponse()
            data = r.read()
            try:
                return r.status, json.loads(data)
            except ValueError:
                return r.status, data.decode("utf8", "replace")
        finally:
            c.close()

    def usage(self):
        """Resident bytes, open files, threads; zeros where the system does not tell."""
        pid = self.process.pid
        try:
            pages = int(open("/proc/%d/statm" % pid).read().split()[1])
            files, threads = os.listdir("/proc/%d/fd" % pid), os.listdir("/proc/%d/task" % pid)
            return pages * os.sysconf("SC_PAGESIZE"), len(files), len(threads)
        except OSError:
            return 0, 0, 0


class Soak:
    def __init__(self, opt):
        self.opt = opt
        self.folder = tempfile.mkdtemp(prefix="soak-")
        answers = json.load(open(os.path.join(opt.model, "answers.json"), encoding="utf8"))
        self.known = [a for a in answers if not a["grids"] and a["margin"] >= 0.05]
        self.sampled, self.lock = {}, threading.Lock()
        self.counts, self.problems, self.stop = collections.Counter(), [], threading.Event()
        self.pause = threading.Event()
        self.slowest = self.slowest_ours = 0.0
        self.server = Server(opt, self.folder)

    # ---- one request each ------------------------------------------------------------------------

    def body(self, a, **more):
        out = {"messages": a["messages"], "temperature": 0, "max_tokens": 200}
        for key in ("tools", "chat_template_kwargs"):
            if key in a:
                out[key] = a[key]
        out.update(more)
        return json.dumps(out).encode()

    def text_of(self, message):
        """Everything the answer says, in one comparable form."""
        calls = [[c["function"]["name"], json.loads(c["function"]["arguments"])]
                 for c in message.get("tool_calls") or []]
        return [message.get("content"), message.get("reasoning_content"), calls]

    def whole(self, a, **more):
        status, answer = self.server.call("POST", "/v1/chat/completions", self.body(a, **more))
        if status in REFUSALS:
            return None
        if status != 200:
            raise Failed("%s: status %d: %.300s" % (a["name"], status, answer))
        return self.text_of(answer["choices"][0]["message"])

    def stream(self, a, slow=0.0, leave_after=None):
        c = self.server.connect()
        try:
            c.request("POST", "/v1/chat/completions", self.body(a, stream=True))
            r = c.getresponse()
            if r.status in REFUSALS:
                return None
            if r.status != 200:
                raise Failed("%s: status %d: %.300s" % (a["name"], r.status, r.read()))
            content, reasoning, calls, seen = "", "", {}, 0
            while True:
                line = r.readline()
                if not line:
                    raise Failed("%s: the stream ended early" % a["name"])
                if line.startswith(b"data: [DONE]"):
                    break
                if not line.startswith(b"data:"):
                    continue
                chunk = json.loads(line[5:])
                if "error" in chunk:
                    raise Failed("%s: %s" % (a["name"], chunk["error"]))
                for choice in chunk["choices"]:
                    d = choice["delta"]
                    content += d.get("content") or ""
                    reasoning += d.get("reasoning_content") or ""
                    for t in d.get("tool_calls") or []:
                        call = calls.setdefault(t["index"], ["", ""])
                        call[0] += t["function"].get("name") or ""
                        call[1] += t["function"].get("arguments") or ""
                seen += 1
                if leave_after and seen >= leave_after:
                    return None
                if slow:
                    time.sleep(slow)
            return [content or None, reasoning or None,
                    [[n, json.loads(x)] for n, x in (calls[i] for i in sorted(calls))]]
        finally:
            c.close()

    def expect(self, a, got, how):
        """The first answer of a name is checked against the file, all others against the first."""
        if got is None:
            return
        with self.lock:
            first = self.sampled.setdefault(a["name"], got)
        if first != got:
            raise Failed("%s (%s): %r, before %r" % (a["name"], how, got, first))
        if "tools" not in a and "chat_template_kwargs" not in a and got[0] != a["text"]:
            raise Failed("%s (%s): %r is not %r" % (a["name"], how, got[0], a["text"]))

    def seeded(self, rng):
        """A sampled answer: the same again, whatever else runs."""
        a, seed = rng.choice(self.known), rng.randrange(40)
        got = self.whole(a, temperature=0.9, seed=seed, max_tokens=40)
        if got is None:
            return
        with self.lock:
            first = self.sampled.setdefault((a["name"], seed), got)
        if first != got:
            raise Failed("%s with seed %d: %r, before %r" % (a["name"], seed, got, first))

    def nonsense(self, rng):
        body = rng.choice(NONSENSE)
        status, answer = self.server.call("POST", "/v1/chat/completions", body)
        if status < 400 or status >= 500 and status not in REFUSALS:
            raise Failed("%.60r got %d: %.200s" % (body, status, answer))

    def aside(self, rng):
        path = rng.choice(["/v1/models", "/v1/status", "/metrics", "/", "/nowhere"])
        status, _ = self.server.call("GET", path)
        if status not in (200, 404):
            raise Failed("%s got %d" % (path, status))
        text = json.dumps({"content": "word " * rng.randrange(2000)})
        self.server.call("POST", "/tokenize", text)

    def one(self, rng):
        a, kind = rng.choice(self.known), rng.random()
        if kind < 0.35:
            self.expect(a, self.stream(a), "streamed")
        elif kind < 0.6:
            self.expect(a, self.whole(a), "whole")
        elif kind < 0.7:
            self.seeded(rng)
        elif kind < 0.78:
            self.stream(a, leave_after=rng.randrange(1, 6))
        elif kind < 0.84:
            self.expect(a, self.stream(a, slow=0.02), "read slowly")
        elif kind < 0.92:
            self.nonsense(rng)
        else:
            self.aside(rng)

    # ---- threads ---------------------------------------------------------------------------------

    def problem(self, text):
        with self.lock:
            self.problems.append(text)
        print("PROBLEM %s" % text, flush=True)
        self.stop.set()

    def worker(self, number):
        rng = random.Random(self.opt.seed * 1000 + number)
        while not self.stop.is_set():
            if self.pause.is_set() or self.server.down.is_set():
                time.sleep(0.05)
                continue
            port = self.server.port
            try:
                self.one(rng)
                self.counts["answers"] += 1
            except (OSError, http.client.HTTPException, ValueError) as e:
                # A connection that breaks is fine while the server restarts, and only then.
                if not self.server.down.is_set() and port == self.server.port:
                    time.sleep(0.5)
                    if not self.server.down.is_set() and port == self.server.port:
                        self.problem("%s: %s" % (type(e).__name__, e))
                self.counts["broken off"] += 1
            except Failed as e:
                if not self.server.down.is_set() and port == self.server.port:
                    self.problem(str(e))

    def health(self):
        while not self.stop.is_set():
            time.sleep(0.05)
            if self.server.down.is_set():
                continue
            began, port, before = time.time(), self.server.port, stolen()
            try:
                status, _ = self.server.call("GET", "/health")
            except (OSError, http.client.HTTPException):
                continue
            took = time.time() - began
            lost = max((b - a for a, b in zip(before, stolen())), default=0)
            if self.server.down.is_set() or port != self.server.port:
                continue
            self.counts["health"] += 1
            self.slowest = max(self.slowest, took)
            self.slowest_ours = max(self.slowest_ours, took - lost)
            if status != 200 or took > HEALTH_S:
                self.problem("/health: %d after %.2f s" % (status, took))

    def change(self, rng):
        kind = rng.random()
        if kind < 0.6:
            self.server.write("policy", "mine", rng.choice(list(POLICIES.values())))
        else:
            name = "some%d" % rng.randrange(3)
            self.server.write("hooks", name, rng.choice(list(HOOKS.values())))
        self.counts["changes"] += 1

    def quiet(self):
        """What the idle server takes."""
        self.pause.set()
        end = time.time() + 60
        while time.time() < end:
            status, s = self.server.call("GET", "/v1/status")
            if status == 200 and all(m["batch"]["running"] + m["batch"]["waiting"] == 0
                                     for m in s["models"] if m.get("batch")):
                break
            time.sleep(0.2)
        else:
            raise Failed("sequences still run after 60 s without a request")
        time.sleep(QUIET_S)
        usage = self.server.usage()
        self.pause.clear()
        return usage

    def run(self):
        rng, end = random.Random(self.opt.seed), time.time() + self.opt.minutes * 60
        threads = [threading.Thread(target=self.worker, args=(i,)) for i in range(self.opt.clients)]
        threads.append(threading.Thread(target=self.health))
        for t in threads:
            t.start()
        first, warm = None, time.time() + min(30, self.opt.minutes * 15)
        restart = time.time() + max(20, self.opt.minutes * 60 / 6)
        try:
            while time.time() < end and not self.stop.is_set():
                self.change(rng)
                time.sleep(rng.random())
                if self.server.process.poll() is not None and not self.server.down.is_set():
                    raise Failed("the server died: %d" % self.server.process.returncode)
                if time.time() > restart:
                    self.server.restart(rng.choice([signal.SIGTERM, signal.SIGKILL]))
                    self.counts["restarts"] += 1
                    restart = time.time() + max(20, self.opt.minutes * 60 / 6)
                    first, warm = None, time.time() + min(30, self.opt.minutes * 15)
                elif first is None and time.time() > warm:
                    first = self.quiet()
            if not self.stop.is_set():
                self.server.write("policy", "mine", POLICIES["fill"])
                self.compare(first, self.quiet())
        except Failed as e:
            self.problem(str(e))
        self.stop.set()
        for t in threads:
            t.join(90)
        if self.server.process.poll() is None:
            self.server.process.terminate()
            if self.server.process.wait(60) != 0:
                self.problems.append("the server ended with %d" % self.server.process.returncode)
        return self.report()

    def compare(self, first, last):
        print("idle: %d MB, %d files, %d threads" % (last[0] >> 20, last[1], last[2]))
        if first is None:
            return
        if last[0] > first[0] * GROWTH + GRACE:
            raise Failed("memory grew from %d to %d MB" % (first[0] >> 20, last[0] >> 20))
        if last[1] > first[1] + 4 or last[2] > first[2]:
            raise Failed("files and threads grew from %s to %s" % (first[1:], last[1:]))

    def report(self):
        c = self.counts
        print("%d answers, %d changes of scripts, %d restarts, %d health checks, the slowest "
              "%.0f ms (%.0f without stolen time)" %
              (c["answers"], c["changes"], c["restarts"], c["health"], 1000 * self.slowest,
               1000 * self.slowest_ours))
        if self.problems:
            print("log of the server: %s" % self.server.log)
        failed = len(self.problems)
        print("%d passed, %d failed" % (c["answers"], failed))
        return 1 if failed else 0


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--bin", default="build/perigee")
    p.add_argument("--model", default="examples/moonlet")
    p.add_argument("--minutes", type=float, default=2)
    p.add_argument("--clients", type=int, default=12)
    p.add_argument("--seed", type=int, default=int(time.time()))
    opt = p.parse_args()
    print("seed %d" % opt.seed, flush=True)
    return Soak(opt).run()


if __name__ == "__main__":
    sys.exit(main())
