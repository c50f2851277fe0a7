"""64 connections for a long time: test_endurance.py STRATA MODEL SECONDS. Every kind of call of the real program, in two processes,
mixed with clients that go, bodies that are wrong and conversations that go on. Each request that a client waits for ends in a complete
answer or an error that says why, both processes keep their size, and at the end nothing is under way.

Memory: the first fifth of the time is for warming up (every path has run, kept conversations have taken what --session-ram lets them).
What a process has in the last fifth may be 5 % and 8 MiB above what it had in the second one, as medians of a value every half second: a leak of 100 bytes in
each request would be more than that in ten minutes, and the allocator's share of 64 connections' buffers is less."""
import json
import os
import random
import socket
import statistics
import struct
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
from harness import TOOL, Server, events  # noqa: E402
from tap import main, test  # noqa: E402

STRATA, MODEL, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
CLIENTS, SLOTS, QUEUE = 64, 4, 40
CHAT, COMPLETION, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
PACKAGES = ["gimp", "vlc", "nginx", "bash", "git", "python3", "apache2", "emacs", "vim", "curl"]


def question(rng):
    return f"What is {rng.choice(PACKAGES)}?" + " Say what it is for." * rng.randrange(20)


def call(rng):
    """A path and a body that the server has to answer."""
    path, stream, tokens = rng.choice([CHAT, CHAT, COMPLETION, MESSAGES, RESPONSES, RESPONSES]), rng.random() < 0.5, rng.randrange(1, 12)
    body = {"stream": stream, "temperature": rng.choice([0, 0.8, 1.5]), "seed": rng.randrange(1000)}
    if path == RESPONSES:
        body.update(input=question(rng), max_output_tokens=tokens)
        if rng.random() < 0.2:
            body["text"] = {"format": {"type": "json_object"}}
        return path, body
    body["max_tokens"] = tokens
    if path == COMPLETION:
        body["prompt"] = question(rng)
    else:
        body["messages"] = [{"role": "user", "content": question(rng)}]
    if path == MESSAGES:
        return path, body
    if rng.random() < 0.3:
        body["n"] = rng.randrange(2, 7)
    if path == CHAT and rng.random() < 0.2:
        body["tools"] = [{"type": "function", "function": TOOL}]
        body["tool_choice"] = rng.choice(["auto", "required"])
    return path, body


def complete(path, body, response):
    """Whether the answer, or each of them, has its end."""
    n = body.get("n", 1)
    if not body["stream"]:
        value = json.loads(response.body)
        if path == RESPONSES:
            return value["status"] in ("completed", "incomplete") and value["output"]
        if path == MESSAGES:
            return value["stop_reason"]
        return len(value["choices"]) == n and all(c["finish_reason"] for c in value["choices"])
    list_ = events(response.body)
    if path == MESSAGES:
        return list_[-1][0] == "message_stop"
    if path == RESPONSES:
        numbers = [json.loads(data)["sequence_number"] for _, data in list_]
        return list_[-1][0] in ("response.completed", "response.incomplete") and numbers == list(range(len(numbers)))
    ends = [c["index"] for _, data in list_[:-1] for c in json.loads(data)["choices"] if c["finish_reason"]]
    return list_[-1][1] == "[DONE]" and sorted(ends) == list(range(n))


def spoil(rng, path, body):
    """Makes a body wrong; returns the member that the refusal has to name."""
    kind = rng.randrange(5)
    if kind == 0:
        body["temperature"] = "hot"
        return "temperature"
    if kind == 1 and path in (CHAT, COMPLETION):
        body["n"] = 99
        return "n"
    if kind == 2 and path == RESPONSES:
        body["previous_response_id"] = "resp_1"
        return "previous_response_id"
    if kind == 3 and path == CHAT:
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": {"uniqueItems": True}}}
        return "response_format.json_schema.schema"
    name = {CHAT: "messages", MESSAGES: "messages", COMPLETION: "prompt", RESPONSES: "input"}[path]
    body[name] = 5
    return name


def error_of(response):
    error = json.loads(response.body)["error"]
    assert error["message"] and error["type"], response.body
    return error


def ask(s, rng, count):
    path, body = call(rng)
    response = s.post(path, body)
    if response.status == 429:
        error_of(response)
        assert response.getheader("Retry-After")
        count("429")
        time.sleep(rng.random())  # as clients do that read Retry-After
        return
    assert response.status == 200, (path, body, response.status, response.body)
    assert complete(path, body, response), (path, body, response.body[-300:])
    count("n" if "n" in body else path.rsplit("/", 1)[1] + (" stream" if body["stream"] else ""))


def ask_wrongly(s, rng, count):
    path, body = call(rng)
    member = spoil(rng, path, body)
    response = s.post(path, body)
    error = error_of(response)
    if response.status == 429:
        count("429")
        return
    assert response.status == 400 and (path == MESSAGES or error["param"] == member), (path, body, response.status, response.body)
    count("refused")


def leave(s, rng, count):
    """A client that goes: at once, in the middle of its answer, or with a reset."""
    path, body = call(rng)
    body.update(stream=True)
    body["max_output_tokens" if path == RESPONSES else "max_tokens"] = 400
    data = json.dumps(body).encode()
    with s.socket() as sock:
        sock.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        if rng.random() < 0.7:
            sock.recv(rng.randrange(1, 4000))
        if rng.random() < 0.3:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    count("left")
    time.sleep(rng.random())


def talk(s, rng, count):
    """A conversation of a few turns; what was said before is sent along."""
    items = []
    for _ in range(3):
        items.append({"role": "user", "content": question(rng)})
        response = s.post(RESPONSES, {"input": items, "max_output_tokens": 12, "temperature": 0})
        if response.status == 429:
            error_of(response)
            count("429")
            time.sleep(rng.random())
            return
        assert response.status == 200, (response.status, response.body)
        items += json.loads(response.body)["output"]
    count("talk")


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def work(s, seed, end, count, failures):
    rng = random.Random(seed)
    while time.monotonic() < end and not failures:
        try:
            rng.choices([ask, ask_wrongly, leave, talk], [70, 10, 15, 5])[0](s, rng, count)
        except Exception as why:  # reported by the test
            failures.append(repr(why))


def assert_idle(s):
    s.wait_idle(120)
    assert not any(slot["is_processing"] for slot in s.json("/slots"))
    metrics = s.get("/metrics").body.decode()
    assert "strata_queue_requests 0" in metrics and "strata_running_requests 0" in metrics, metrics
    end = time.monotonic() + 20
    while s.json("/v1/status")["connections"] > 1:
        assert time.monotonic() < end, "connections stay open"
        time.sleep(0.2)


@test
def sixty_four_connections_all_get_what_they_are_owed():
    args = ["serve", "-m", MODEL, "-c", "1024", "--parallel", str(SLOTS), "--queue", str(QUEUE), "--quiet", "--save-every", "5"]
    with Server(exe=STRATA, args=args) as s:
        engine = s.json("/v1/status")["machine"]["process"]["pid"]
        sizes, counts, lock, failures = {"server": [], "engine": []}, {}, threading.Lock(), []

        def count(name):
            with lock:
                counts[name] = counts.get(name, 0) + 1
        begin = time.monotonic()
        threads = [threading.Thread(target=work, args=(s, i, begin + SECONDS, count, failures)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            for name, pid in (("server", s.process.pid), ("engine", engine)):
                sizes[name].append(resident(pid))
            time.sleep(0.5)
        print(f"# {counts}")
        assert not failures, failures[:3]
        wanted = {"n", "completions", "completions stream", "messages", "messages stream", "responses", "responses stream", "refused", "left", "talk", "429"}
        assert wanted <= set(counts), wanted - set(counts)
        assert_idle(s)
        process = s.json("/v1/status")["machine"]["process"]
        assert process["pid"] == engine and process["restarts"] == 0, process
        for name, list_ in sizes.items():
            fifth = len(list_) // 5
            early, late = statistics.median(list_[fifth:2 * fifth]), statistics.median(list_[-fifth:])
            print(f"# {name}: {early / 2**20:.1f} MiB early, {late / 2**20:.1f} MiB late ({100 * (late - early) / early:+.2f} %)")
            assert s.sanitized or late <= 1.05 * early + (8 << 20), (name, early, late)
        assert s.stop() == 0


main()
