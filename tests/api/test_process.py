"""The engine in a process of its own, over a script instead of a model: test_process.py SCRIPTED. Whatever becomes of that
process, every request gets an answer or an error that says what is known, and the next one is answered."""
import json
import os
import signal
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
from harness import SCRIPT, Server, events  # noqa: E402
from tap import main, test  # noqa: E402

os.environ["SCRIPTED"] = sys.argv[1]
FAULTS = [{"match": "abort", "text": "abcdefgh", "abort_after": 3}, {"match": "hang", "text": "abcdefgh", "hang_after": 3},
          {"match": "first slow", "text": "word ", "repeat": 100, "token_us": 2000}]


def server(*args, **script):
    return Server({**SCRIPT, "answers": FAULTS + SCRIPT["answers"], **script}, ["--two", *args])


def ask(s, text, **more):
    return s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})


def answered(s):
    r = ask(s, "hello")
    assert r.status == 200 and "there" in json.loads(r.body)["choices"][0]["message"]["content"], r.body


def process(s):
    return s.json("/v1/status")["machine"]["process"]


def wait_for(what, seconds=30):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


@test
def a_process_that_dies_ends_its_answer_with_what_is_known_and_the_next_one_is_answered():
    with server() as s:
        answered(s)
        r = ask(s, "abort")
        message = json.loads(r.body)["error"]["message"]
        assert r.status == 500 and "signal 6" in message and "fault at address 0x1000" in message, r.body
        answered(s)
        now = process(s)
        assert now["restarts"] == 1 and now["failures_in_a_row"] == 0 and "signal 6" in now["last_failure"], now
        assert now["state"] == "up" and now["watchdog_seconds"] == 150, now


@test
def a_stream_ends_with_the_error():
    with server() as s:
        r = ask(s, "abort", stream=True)
        found = [json.loads(data) for _, data in events(r.body)]
        text = "".join(c["choices"][0]["delta"].get("content") or "" for c in found if c.get("choices"))
        assert text == "abc" and "signal 6" in found[-1]["error"]["message"], r.body
        answered(s)


@test
def several_answers_and_responses_end_with_one_error():
    with server(parallel=2) as s:
        for i, stream in enumerate((False, True)):
            several = ask(s, "abort", n=3, stream=stream)
            response = s.post("/v1/responses", {"input": "abort", "stream": stream})
            if stream:
                found = [json.loads(data) for _, data in events(several.body)]
                assert [("error" in e) for e in found].count(True) == 1 and "signal 6" in found[-1]["error"]["message"], several.body
                last = json.loads(events(response.body)[-1][1])
                assert last["type"] == "response.failed" and "signal 6" in last["response"]["error"]["message"], last
            else:
                assert several.status == response.status == 500 and b"signal 6" in several.body and b"signal 6" in response.body
            s.wait_idle()
            again = json.loads(ask(s, "hello", n=3).body)
            assert len(again["choices"]) == 3 and process(s)["restarts"] == 2 * (i + 1), (again, process(s))


@test
def a_process_that_stands_still_is_ended_and_started_again():
    with server("--watchdog", "1") as s:
        before = process(s)["pid"]
        r = ask(s, "hang")
        assert r.status == 500 and "no sign of life for 1 seconds" in json.loads(r.body)["error"]["message"], r.body
        answered(s)
        assert process(s)["pid"] != before


@test
def a_quiet_server_is_not_taken_for_one_that_stands_still():
    with server("--watchdog", "1") as s:
        before = process(s)["pid"]
        time.sleep(2)
        answered(s)
        assert process(s)["pid"] == before


@test
def answers_that_wait_are_computed_by_the_next_process():
    with server() as s:
        got = {}

        def one(name, text):
            got[name] = ask(s, text)

        slow = threading.Thread(target=one, args=("slow", "first slow"))
        slow.start()
        wait_for(lambda: any(r["stage"] == "generating" for r in s.json("/v1/status")["requests"]))
        waiting = threading.Thread(target=one, args=("waiting", "hello"))
        waiting.start()
        wait_for(lambda: len(s.json("/v1/status")["requests"]) == 2)
        os.kill(process(s)["pid"], signal.SIGKILL)
        slow.join()
        waiting.join()
        assert got["slow"].status == 500 and "signal 9" in json.loads(got["slow"].body)["error"]["message"], got["slow"].body
        assert got["waiting"].status == 200, got["waiting"].body


@test
def all_answers_under_way_end_when_their_process_does():
    with server(parallel=4) as s:
        got = []
        clients = [threading.Thread(target=lambda: got.append(ask(s, "first slow"))) for _ in range(4)]
        for c in clients:
            c.start()
        wait_for(lambda: sum(r["stage"] == "generating" for r in s.json("/v1/status")["requests"]) == 4)
        os.kill(process(s)["pid"], signal.SIGKILL)
        for c in clients:
            c.join()
        assert [r.status for r in got] == [500] * 4, [r.body for r in got]
        answered(s)


@test
def health_tells_that_the_engine_is_started_again_and_a_request_waits_for_it():
    with server(load_ms=1000) as s:
        os.kill(process(s)["pid"], signal.SIGKILL)
        wait_for(lambda: s.get("/health").status == 503)
        assert json.loads(s.get("/health").body)["status"] == "loading"
        answered(s)
        assert s.get("/health").status == 200


@test
def after_failures_in_a_row_requests_are_refused_with_the_reason_until_it_works_again():
    with server() as s:
        refuse = os.path.join(s.dir.name, "refuse")
        with open(os.path.join(s.dir.name, "script.json"), encoding="utf-8") as f:
            script = json.load(f)
        with open(os.path.join(s.dir.name, "script.json"), "w", encoding="utf-8") as f:
            json.dump({**script, "refuse_file": refuse}, f)
        with open(refuse, "w", encoding="utf-8"):
            pass
        os.kill(process(s)["pid"], signal.SIGKILL)
        wait_for(lambda: json.loads(s.get("/health").body)["status"] == "failed")
        assert "there is no device" in json.loads(s.get("/health").body)["error"]["message"]
        r = ask(s, "hello")
        assert r.status == 503 and "there is no device" in json.loads(r.body)["error"]["message"], r.body
        assert r.getheader("Retry-After") == "1"
        os.unlink(refuse)
        wait_for(lambda: s.get("/health").status == 200)
        answered(s)
        assert process(s)["failures_in_a_row"] == 0


@test
def the_process_has_no_descriptors_but_the_standard_ones_and_its_socket():
    with server() as s:
        with s.socket():  # a connection that is open while the process starts
            before = process(s)["pid"]
            os.kill(before, signal.SIGKILL)
            wait_for(lambda: process(s)["pid"] != before)
            answered(s)
        folder = f"/proc/{process(s)['pid']}/fd"
        sockets = [name for name in os.listdir(folder) if os.readlink(os.path.join(folder, name)).startswith("socket:")]
        assert sockets == ["3"], sockets


@test
def the_process_ends_with_the_server_even_if_that_is_killed():
    s = server()
    try:
        pid = process(s)["pid"]
        s.process.kill()
        wait_for(lambda: not os.path.exists(f"/proc/{pid}/exe") or not os.path.exists(f"/proc/{pid}") or
                 open(f"/proc/{pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()[0] == "Z")
    finally:
        s.process.wait()
        s.stop()


if __name__ == "__main__":
    main()
