"""Starts the scripted server (or another) on a free loopback port and talks to it with the standard library only."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

CALL = "<tool_call>\n<function={}>\n<parameter=city>\n{}\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
TOOL = {"name": "get_weather", "description": "weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}
THOUGHT = "<think>\nFirst I count the layers.\n</think>\n\nThere are three."

SCRIPT = {
    "answers": [
        {"match": "weather in two", "text": "Let me look.\n" + CALL.format("get_weather", "Paris") + "\n" + CALL.format("get_weather", "Rome")},
        {"match": "weather", "text": "<think>\nA tool helps.\n</think>\n\n" + CALL.format("get_weather", "Paris")},
        {"match": "noon in Paris", "text": "It is sunny in Paris."},
        {"match": "think", "text": THOUGHT},
        {"match": "hello", "text": "Hi **there**, ünïcode 🎉!"},
        {"match": "slow", "text": "word ", "repeat": 400, "token_us": 2000},
        {"match": "endless", "text": "0123456789abcdef", "repeat": 200000},
        {"match": "long read", "text": "done", "read_us": 20000},
        {"match": "break", "text": "this will not end well", "fail_after": 5},
    ]
}


class Server:
    """with Server(script) as s: s.port, s.get(...), s.post(...)"""

    def __init__(self, script=None, args=(), exe=None, wait=True):
        self.dir = tempfile.TemporaryDirectory(prefix="strata-api-")
        command = [exe or os.environ["SCRIPTED"]]
        if exe is None:
            path = os.path.join(self.dir.name, "script.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(script or SCRIPT, f)
            command += ["--script", path]
            command += ["--port", "0", *os.environ.get("SCRIPTED_ARGS", "").split(), *args]
        else:
            command += [*args, "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                        env={**{k: v for k, v in os.environ.items() if not k.startswith("STRATA_")},
                                             "STRATA_DEVICE": "cpu"})
        self.log = []
        self.port = 0
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))
            found = re.match(r"listening on https?://.*:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if not self.port:
            self.process.wait(30)
            raise RuntimeError("no server: " + "\n".join(self.log))
        if wait:
            self.wait_ready()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))

    def wait_ready(self, seconds=120):
        end = time.monotonic() + seconds
        while self.get("/health").status != 200:
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError("the server does not get ready: " + "\n".join(self.log))
            time.sleep(0.02)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            response.body = response.read()
            return response
        finally:
            connection.close()

    def get(self, path, headers=None):
        return self.request("GET", path, headers=headers)

    def post(self, path, value, headers=None):
        body = value if isinstance(value, (bytes, str)) else json.dumps(value)
        if isinstance(body, str):
            body = body.encode("utf-8")
        return self.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})

    def json(self, path, value=None, headers=None):
        response = self.get(path, headers) if value is None else self.post(path, value, headers)
        if response.status != 200:
            raise AssertionError(f"{path}: {response.status} {response.body!r}")
        return json.loads(response.body)

    @property
    def sanitized(self):
        """Whether the program carries a sanitizer, whose memory is not the server's."""
        with open(f"/proc/{self.process.pid}/exe", "rb") as f:
            program = f.read()
        return b"__asan_init" in program or b"__tsan_init" in program

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)

    def resident(self):
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def wait_idle(self, seconds=60):
        """Until no request waits or is computed."""
        end = time.monotonic() + seconds
        while self.json("/v1/status")["requests"]:
            if time.monotonic() > end:
                raise AssertionError("a request is still there: " + json.dumps(self.json("/v1/status")["requests"]))
            time.sleep(0.01)

    def stop(self):
        """Asks the server to stop; returns its exit code. What a sanitizer found is an error here."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self.reader.join(10)
        self.dir.cleanup()
        found = [line for line in self.log if "Sanitizer" in line or "runtime error" in line]
        if found:
            raise AssertionError("\n".join(self.log[self.log.index(found[0]):][:40]))
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        code = self.stop()
        if kind is None and code != 0:
            raise AssertionError(f"the server ended with {code}: " + "\n".join(self.log[-20:]))


def events(response_bytes):
    """The (event, data) pairs of a stream."""
    out = []
    for block in response_bytes.decode("utf-8").split("\n\n"):
        name, data = None, []
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data.append(line[6:])
        if data:
            out.append((name, "\n".join(data)))
    return out
