"""64 connections at once for a while: test_load.py SCRIPTED SECONDS [-- PROGRAM argument...]. Every request that a client
waits for ends in a complete answer or a 429, whatever slow and broken clients do beside it, and the server's memory
afterwards is what it was before.

With -- the rest of the line starts the server (a real model, say); it has to take --port."""
import json
import os
import random
import socket
import struct
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
os.environ["SCRIPTED"] = sys.argv[1]
SECONDS = float(sys.argv[2])
COMMAND = sys.argv[sys.argv.index("--") + 1:] if "--" in sys.argv else None
from harness import Server, events  # noqa: E402
from tap import main, test  # noqa: E402

CLIENTS = 64
SCRIPT = {"answers": [{"match": "story", "text": "Once upon a time there was a layer of chalk. ", "repeat": 4, "token_us": 10}]}


class Counts:
    def __init__(self):
        self.lock = threading.Lock()
        self.values = {}

    def add(self, name):
        with self.lock:
            self.values[name] = self.values.get(name, 0) + 1


def complete(path, stream, body):
    """Whether the answer has its proper end."""
    if not stream:
        value = json.loads(body)
        return bool(value.get("stop_reason") if path.endswith("messages") else value["choices"][0]["finish_reason"])
    last = events(body)[-1]
    return last == (None, "[DONE]") or last[0] == "message_stop"


def ask(server, rng, counts):
    path = rng.choice(["/v1/chat/completions", "/v1/messages"])
    stream = rng.random() < 0.5
    response = server.post(path, {"messages": [{"role": "user", "content": f"tell a story about {rng.randrange(50)}"}],
                                  "max_tokens": 8 if COMMAND else 400, "stream": stream})
    if response.status == 429:
        assert response.getheader("Retry-After") and json.loads(response.body)["error"]["message"]
        counts.add("429")
        time.sleep(0.05)
    else:
        assert response.status == 200, (response.status, response.body)
        assert complete(path, stream, response.body), response.body[-200:]
        counts.add("complete")


def misbehave(server, rng, counts):
    """A client that leaves, reads slowly, or sends rubbish."""
    kind = rng.choice(["leave", "reset", "slow", "rubbish", "bad body"])
    body = json.dumps({"messages": [{"role": "user", "content": "story"}], "stream": True, "max_tokens": 400}).encode()
    if kind == "bad body":
        body = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 400)))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with server.socket() as sock:
        try:
            if kind == "rubbish":
                sock.sendall(bytes(rng.randrange(256) for _ in range(500)) + b"\r\n\r\n")
            else:
                sock.sendall(head + body)
            if kind == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif kind == "leave":
                sock.recv(100)
            elif kind == "slow":
                for _ in range(20):
                    sock.recv(10)
                    time.sleep(0.01)
        except OSError:
            pass
    counts.add(kind)


def load(server, seconds, counts, failures):
    end = time.monotonic() + seconds

    def work(seed):
        rng = random.Random(seed)
        while time.monotonic() < end and not failures:
            try:
                if seed % 8 == 0:
                    misbehave(server, rng, counts)
                else:
                    ask(server, rng, counts)
            except Exception as e:  # reported by the test
                failures.append(repr(e))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def start():
    return Server(SCRIPT, args=["--quiet"]) if COMMAND is None else Server(exe=COMMAND[0], args=[*COMMAND[1:], "--quiet"])


@test
def everyone_gets_an_answer_or_a_429_and_memory_stays():
    with start() as s:
        failures = []
        load(s, max(6, SECONDS / 4), Counts(), failures)  # every path has run once, buffers have their size
        s.wait_idle(120)
        before = s.resident()
        counts = Counts()
        load(s, SECONDS, counts, failures)
        assert not failures, failures[:3]
        s.wait_idle(120)
        time.sleep(2)  # the sweep of closed connections is once a second
        after = s.resident()
        got = counts.values
        print(f"# {got}; memory {before} before, {after} after ({100 * (after - before) / before:+.2f} %)")
        assert got.get("complete", 0) >= CLIENTS and got.get("429", 0) > 0, got
        # A sanitizer keeps freed memory for a while and its own notes about every thread: it finds leaks in its own way.
        assert s.sanitized or after <= 1.05 * before, (before, after)
        assert s.json("/v1/status")["connections"] <= 2
        assert s.stop() == 0


main()
