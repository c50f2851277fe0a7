"""Loading when a model is needed, unloading when somebody asks or nobody does: test_unload.py SCRIPTED [--two]."""
import json
import os
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
from harness import SCRIPT, Server, events  # noqa: E402
from tap import main, test  # noqa: E402

os.environ["SCRIPTED"] = sys.argv[1]
os.environ["SCRIPTED_ARGS"] = " ".join(sys.argv[2:])
TWO = "--two" in sys.argv
SLOW = [{"match": "slow answer", "text": "word ", "repeat": 60, "token_us": 2000}]


def server(*args, **script):
    return Server({**SCRIPT, "answers": SLOW + SCRIPT["answers"], **script}, args)


def ask(s, text, **more):
    return s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})


def answered(s):
    r = ask(s, "hello")
    assert r.status == 200 and "there" in json.loads(r.body)["choices"][0]["message"]["content"], r.body


def state(s):
    return s.json("/v1/status")["state"]


def wait_for(what, seconds=30):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


def in_background(s, *texts, **more):
    """Asks for all of them, one after the other came in; the list of answers fills in that order or another."""
    got, threads = [], []
    for i, text in enumerate(texts):
        threads.append(threading.Thread(target=lambda t=text: got.append((t, ask(s, t, **more)))))
        threads[-1].start()
        wait_for(lambda n=i: len(s.json("/v1/status")["requests"]) > n or got)
    wait_for(lambda: any(r["stage"] == "generating" for r in s.json("/v1/status")["requests"]))
    return got, threads


@test
def unload_gives_back_says_what_and_the_next_request_loads():
    with server() as s:
        answered(s)
        done = s.json("/unload", {})
        assert done["state"] == "unloaded" and done["problem"] is None, done
        assert done["answers"] == {"waited_for": 0, "cut": 0} and done["seconds"] >= 0, done
        assert done["freed"] == [{"name": "script", "bytes": 700 << 20, "driver_bytes": 0}], done
        assert done["conversations"] == {"files": 0, "bytes": 0}, done
        assert state(s) == "unloaded" and json.loads(s.get("/health").body) == {"status": "unloaded"}
        if TWO:
            process = s.json("/v1/status")["machine"]["process"]
            assert process["state"] == "none" and process["pid"] == 0 and process["failures_in_a_row"] == 0, process
        answered(s)
        assert state(s) == "ready"
        assert s.json("/v1/status")["loading"] | {"last_failure": ""} == {
            "loads": 2, "unloads": 1, "on_demand": False, "idle_unload_seconds": 0, "last_failure": ""}


@test
def unload_twice_and_load_twice_are_no_mistakes():
    with server() as s:
        s.json("/unload", {})
        again = s.json("/unload", {})
        assert again["state"] == "unloaded" and again["freed"] is None, again
        loaded = s.json("/load", {})
        assert loaded["state"] == "ready" and loaded["seconds"] >= 0, loaded
        assert s.json("/load", {})["state"] == "ready"
        assert s.json("/v1/status")["loading"]["loads"] == 2
        answered(s)


@test
def texts_need_no_loaded_model():
    with server() as s:
        s.json("/unload", {})
        assert s.json("/tokenize", {"content": "abc"})["tokens"] == [97, 98, 99]
        assert s.json("/v1/models")["data"] and s.json("/props")["total_slots"] == 1
        assert state(s) == "unloaded"


@test
def unload_waits_for_answers_under_way_and_those_before_it():
    with server() as s:
        got, threads = in_background(s, "slow answer", "hello")
        done = s.json("/unload", {})
        for t in threads:
            t.join()
        assert done["answers"] == {"waited_for": 2, "cut": 0}, done
        assert [r.status for _, r in got] == [200, 200], got
        assert len(json.loads(dict(got)["slow answer"].body)["choices"][0]["message"]["content"]) == 300


@test
def at_its_deadline_answers_are_cut_with_an_error_that_says_so():
    with server() as s:
        got, threads = in_background(s, "slow answer", "hello")
        done = s.json("/unload", {"deadline_seconds": 0})
        for t in threads:
            t.join()
        assert done["answers"] == {"waited_for": 0, "cut": 2}, done
        for _, r in got:
            assert r.status == 503 and "unloaded" in json.loads(r.body)["error"]["message"], r.body
        answered(s)


@test
def a_stream_that_is_cut_ends_with_the_error():
    with server() as s:
        got, threads = in_background(s, "slow answer", stream=True)
        s.json("/unload", {"deadline_seconds": 0})
        threads[0].join()
        last = json.loads(events(got[0][1].body)[-1][1])
        assert "unloaded" in last["error"]["message"], got[0][1].body


@test
def a_request_behind_an_unload_waits_and_is_answered():
    with server(load_ms=300) as s:
        got, threads = in_background(s, "slow answer")
        results = []
        unload = threading.Thread(target=lambda: results.append(s.json("/unload", {})))
        unload.start()
        time.sleep(0.05)
        answered(s)
        unload.join()
        threads[0].join()
        assert results[0]["answers"]["waited_for"] == 1 and got[0][1].status == 200, (results, got)
        assert s.json("/v1/status")["loading"]["loads"] == 2


@test
def with_load_on_demand_the_first_request_loads_and_a_stream_hears_signs_of_life():
    with server("--load-on-demand", "--keepalive", "0.1", load_ms=600) as s:
        assert state(s) == "unloaded" and s.json("/v1/status")["loading"]["loads"] == 0
        r = ask(s, "hello", stream=True)
        assert r.body.startswith(b":") or b"\n: " in r.body or b"\n:" in r.body, r.body[:200]
        assert state(s) == "ready"


@test
def after_idle_time_the_model_is_unloaded_and_comes_back():
    with server("--idle-unload", "1") as s:
        answered(s)
        wait_for(lambda: state(s) == "unloaded")
        answered(s)
        wait_for(lambda: state(s) == "unloaded")
        assert s.json("/v1/status")["loading"]["unloads"] == 2


@test
def a_load_that_fails_is_an_error_of_its_request_and_is_tried_again():
    with server() as s:
        s.json("/unload", {})
        refuse, path = os.path.join(s.dir.name, "refuse"), os.path.join(s.dir.name, "script.json")
        with open(path, encoding="utf-8") as f:
            script = json.load(f)
        with open(path, "w", encoding="utf-8") as f:
            json.dump({**script, "refuse_file": refuse}, f)
        if not TWO:
            return  # the script is read by the process that is started next
        with open(refuse, "w", encoding="utf-8"):
            pass
        for path in ("/load", "/v1/chat/completions"):
            r = s.post(path, {"messages": [{"role": "user", "content": "hello"}]})
            assert r.status == 503 and "there is no device" in json.loads(r.body)["error"]["message"], r.body
        health = json.loads(s.get("/health").body)
        assert health["status"] == "failed" and "there is no device" in health["error"]["message"], health
        os.unlink(refuse)
        answered(s)
        assert s.get("/health").status == 200


@test
def a_wrong_deadline_is_a_400():
    with server() as s:
        for value in (-1, "soon", 1e9):
            r = s.post("/unload", {"deadline_seconds": value})
            assert r.status == 400 and json.loads(r.body)["error"]["param"] == "deadline_seconds", r.body
        assert state(s) == "ready"


@test
def unload_under_load_loses_nothing():
    with server(parallel=3) as s:
        stop, wrong, count = [], [], [0]

        def client():
            while not stop:
                r = ask(s, "hello")
                count[0] += 1
                if r.status != 200:
                    wrong.append(r.body)

        clients = [threading.Thread(target=client) for _ in range(4)]
        for c in clients:
            c.start()
        for _ in range(20):
            assert s.json("/unload", {})["problem"] is None
        wait_for(lambda: count[0] >= 20, 120)
        stop.append(True)
        for c in clients:
            c.join()
        assert not wrong, wrong[:1]
        assert s.json("/v1/status")["loading"]["unloads"] >= 2


if __name__ == "__main__":
    main()
