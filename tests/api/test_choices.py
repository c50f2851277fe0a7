"""Several answers to one request (n): together, apart in a stream, and all or nothing when something goes wrong."""
import json
import os
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
os.environ["SCRIPTED"] = sys.argv[1]
os.environ["SCRIPTED_ARGS"] = " ".join(sys.argv[2:])
from harness import SCRIPT, THOUGHT, TOOL, Server, events  # noqa: E402
from tap import main, test  # noqa: E402

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HELLO = "Hi **there**, ünïcode 🎉!"
FOUR = {**SCRIPT, "parallel": 4}


def user(text, **more):
    return {"messages": [{"role": "user", "content": text}], **more}


def chunks(body):
    list_ = events(body)
    assert list_[-1] == (None, "[DONE]"), list_[-1]
    return [json.loads(data) for _, data in list_[:-1]]


def texts(list_, n):
    """What each answer's pieces add up to; each has to begin, to end once, and to say nothing behind its end."""
    out, ended = [""] * n, [0] * n
    for choice in (c for chunk in list_ for c in chunk["choices"]):
        i = choice["index"]
        assert not ended[i], choice
        out[i] += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
        ended[i] += choice["finish_reason"] is not None
    assert ended == [1] * n, ended
    return out


def wait_for(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def begin(s, body, path=CHAT):
    data = json.dumps(body).encode()
    sock = s.socket()
    sock.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    return sock


def requests(s):
    return s.json("/v1/status")["requests"]


@test
def all_answers_come_whole_and_their_tokens_add_up():
    with Server(FOUR) as s:
        one = s.json(CHAT, user("hello"))
        for n in (2, 4, 7):  # more than slots: the rest comes after
            answer = s.json(CHAT, user("hello", n=n))
            assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in answer["choices"]] == [(i, HELLO, "stop") for i in range(n)], answer
            usage = answer["usage"]
            assert usage["prompt_tokens"] == one["usage"]["prompt_tokens"] and usage["completion_tokens"] == n * len(HELLO.encode()), usage
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            assert "timings" not in answer and all(c["timings"]["predicted_n"] == len(HELLO.encode()) for c in answer["choices"])
            assert s.json("/v1/status")["requests"] == []
        raw = s.json(COMPLETION, {"prompt": "say hello", "n": 3, "best_of": 3, "logprobs": 1, "max_tokens": 2})
        assert [(c["index"], c["text"], c["finish_reason"], c["logprobs"]["tokens"]) for c in raw["choices"]] == [(i, "Hi", "length", ["H", "i"]) for i in range(3)], raw
        calls = s.json(CHAT, user("weather", n=2, tools=[{"type": "function", "function": TOOL}]))["choices"]
        ids = {c["message"]["tool_calls"][0]["id"] for c in calls}
        assert len(ids) == 2 and all(c["finish_reason"] == "tool_calls" for c in calls), calls
        thoughts = s.json(CHAT, user("think", n=2))
        assert all(c["message"]["content"] == "There are three." for c in thoughts["choices"]) and len(THOUGHT) > 0
        assert thoughts["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2 * s.json(CHAT, user("think"))["usage"]["completion_tokens_details"]["reasoning_tokens"]
        metrics = s.get("/metrics").body.decode()
        assert 'strata_requests_total{route="/v1/completions",code="200"} 1' in metrics, "one request, whatever it asks for"


@test
def a_stream_has_the_answers_apart():
    with Server(FOUR) as s:
        for n in (2, 4, 6):
            list_ = chunks(s.post(CHAT, user("hello", n=n, stream=True, stream_options={"include_usage": True})).body)
            assert texts(list_, n) == [HELLO] * n
            assert list_[-1]["choices"] == [] and list_[-1]["usage"]["completion_tokens"] == n * len(HELLO.encode()), list_[-1]
            assert len({c["id"] for c in list_}) == 1 and [c["choices"][0]["delta"]["role"] for c in list_[:n]] == ["assistant"] * n
        list_ = chunks(s.post(CHAT, user("slow", n=4, stream=True)).body)
        assert texts(list_, 4) == ["word " * 400] * 4
        order = [c["choices"][0]["index"] for c in list_[4:]]
        assert sum(a != b for a, b in zip(order, order[1:])) > 1000, "they are computed together"
        raw = chunks(s.post(COMPLETION, {"prompt": "say hello", "n": 3, "stream": True}).body)
        assert texts(raw, 3) == [HELLO] * 3


@test
def the_others_begin_when_the_prompt_is_read():
    with Server(FOUR) as s:
        body = s.post(CHAT, user("long read" + "x" * 200, n=3, stream=True, return_progress=True)).body
        list_ = chunks(body)
        progress = [c["prompt_progress"] for c in list_ if "prompt_progress" in c]
        assert progress[0]["processed"] == 0 and progress[-1]["processed"] == progress[-1]["total"]
        assert sum(p["processed"] == 0 for p in progress) == 1, "the prompt's progress is shown once"
        assert texts(list_, 3) == ["done"] * 3


@test
def what_is_too_many_is_refused():
    with Server(SCRIPT, args=["--queue", "2"]) as s:
        for path, body, param in [(CHAT, user("x", n=0), "n"), (CHAT, user("x", n=17), "n"), (CHAT, user("x", n="two"), "n"),
                                  (CHAT, user("x", n=4), "n"), (COMPLETION, {"prompt": "x", "n": 4}, "n"), (COMPLETION, {"prompt": "x", "n": 2, "best_of": 3}, "best_of")]:
            response = s.post(path, body)
            error = json.loads(response.body)["error"]
            assert response.status == 400 and error["param"] == param and error["message"], (body, response.body)
        sock = begin(s, user("slow", stream=True))
        wait_for("it generates", lambda: [r["stage"] for r in requests(s)] == ["generating"])
        full = s.post(CHAT, user("hello", n=3))
        assert full.status == 429 and full.getheader("Retry-After"), full.body
        sock.close()
        s.wait_idle()
        assert len(s.json(CHAT, user("hello", n=3))["choices"]) == 3
        assert s.post("/v1/messages", {**user("hello"), "max_tokens": 5, "n": 3}).status == 200, "not a member of that API"


@test
def a_client_that_goes_ends_all_its_answers():
    for script, n in ((FOUR, 4), (FOUR, 6), (SCRIPT, 3)):
        with Server(script) as s:
            for stream in (True, False):
                sock = begin(s, user("slow", n=n, stream=stream))
                slots = min(n, script.get("parallel", 1))
                wait_for("they generate", lambda: sum(r["stage"] == "generating" and r["generated_tokens"] > 3 for r in requests(s)) == slots)
                assert len(requests(s)) == n
                sock.close()
                s.wait_idle()
                assert not any(slot["is_processing"] for slot in s.json("/slots"))
                past = s.json("/v1/status")["past"][:n]
                assert all(p["finish"] == "cancelled" and p["generated_tokens"] < 1900 for p in past), past
            first = begin(s, user("slow", stream=True))
            wait_for("it generates", lambda: any(r["stage"] == "generating" for r in requests(s)))
            blockers = [begin(s, user("slow", stream=True)) for _ in range(script.get("parallel", 1) - 1)]
            wait_for("all slots are taken", lambda: sum(r["stage"] == "generating" for r in requests(s)) == script.get("parallel", 1))
            before = len(requests(s))
            waiting = begin(s, user("hello", n=n))
            wait_for("all wait", lambda: len(requests(s)) == before + n)
            waiting.close()
            wait_for("all have left", lambda: len(requests(s)) == before)
            for sock in (first, *blockers):
                sock.close()
            s.wait_idle()
            assert "strata_cancelled_total %d" % (4 + len(blockers)) in s.get("/metrics").body.decode()
            assert len(s.json(CHAT, user("hello", n=n))["choices"]) == n


@test
def a_fault_of_one_answer_is_one_of_the_request():
    for script in (FOUR, SCRIPT):
        with Server(script) as s:
            whole = s.post(CHAT, user("break", n=3))
            assert whole.status == 500 and "device failed" in json.loads(whole.body)["error"]["message"], whole.body
            s.wait_idle()
            list_ = events(s.post(CHAT, user("break", n=3, stream=True)).body)
            assert "device failed" in json.loads(list_[-1][1])["error"]["message"], list_[-1]
            assert sum("error" in json.loads(data) for _, data in list_) == 1
            s.wait_idle()
            metrics = s.get("/metrics").body.decode()
            assert 'strata_requests_total{route="/v1/chat/completions",code="500"} 2' in metrics, metrics
            assert len(s.json(CHAT, user("hello", n=3))["choices"]) == 3
    with Server({**FOUR, "context": 100}) as s:
        long = s.post(CHAT, user("x" * 200, n=3))
        assert long.status == 400 and json.loads(long.body)["error"]["code"] == "context_length_exceeded"
        assert "strata_queue_requests 0" in s.get("/metrics").body.decode(), "the room of all three is free again"


@test
def unloading_cuts_all_or_waits_for_all():
    with Server(FOUR) as s:
        result = {}
        thread = threading.Thread(target=lambda: result.update(r=s.post(CHAT, user("slow", n=6))))
        thread.start()
        wait_for("they generate", lambda: sum(r["stage"] == "generating" for r in requests(s)) == 4)
        report = s.json("/unload", {"deadline_seconds": 0})
        thread.join()
        assert result["r"].status == 503 and report["answers"]["cut"] == 6, (result["r"].body, report)
        s.wait_idle()
        thread = threading.Thread(target=lambda: result.update(r=s.post(CHAT, user("hello", n=6))))
        thread.start()
        wait_for("they are there", lambda: requests(s) or not thread.is_alive())
        report = s.json("/unload", {})
        thread.join()
        assert result["r"].status == 200 and report["answers"]["cut"] == 0, (result["r"].body, report)
        assert s.json("/v1/status")["state"] == "unloaded", "no answer came behind it and loaded the model again"


@test
def a_model_that_cannot_be_loaded_is_one_error():
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        stop = os.path.join(folder, "stop")
        with Server({**FOUR, "refuse_file": stop}) as s:
            s.json("/unload", {})
            with open(stop, "w", encoding="ascii"):
                pass
            failed = s.post(CHAT, user("hello", n=3))
            assert failed.status == 503 and json.loads(failed.body)["error"]["code"] == "load_failed", failed.body
            s.wait_idle()
            os.remove(stop)
            assert len(s.json(CHAT, user("hello", n=3))["choices"]) == 3


@test
def a_stop_ends_them_with_an_error():
    s = Server(FOUR)
    sock = begin(s, user("slow", n=6, stream=True))
    wait_for("they generate", lambda: sum(r["stage"] == "generating" for r in requests(s)) == 4)
    s.process.terminate()
    data = b""
    while piece := sock.recv(65536):
        data += piece
    assert data.count(b"the server is stopping") == 1 and b"[DONE]" not in data, data[-300:]
    assert s.process.wait(60) == 0
    assert s.stop() == 0
    sock.close()


main()
