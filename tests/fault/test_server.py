"""A server whose device fails while it answers: test_server.py STRATA MODEL. The client gets an error in its own API's form, and
the server goes on."""
import json
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "api"), os.path.join(HERE, "..")]
from harness import Server, events  # noqa: E402
from tap import main, run, test  # noqa: E402

STRATA, MODEL = sys.argv[1], sys.argv[2]
ASK = [{"role": "user", "content": "What is gimp?"}]
# Without graphs every token is a few hundred launches: the long answer meets the fault, the short one ends before it.
LONG, SHORT = 40, 2


def serve(fault, split=None, patience=10000, more=()):
    device = f"sim:gfx1100:8G:nograph:patience={patience}:{fault}" + (",sim:gfx1201:8G" if split else "")
    args = ["serve", "-m", MODEL, "-c", "256", "--device", device, "--threads", "1", *more]
    return Server(exe=STRATA, args=args + (["--layer-split", split] if split else []))


def goes_on(server):
    assert server.get("/health").status == 200
    answer = server.json("/v1/chat/completions", {"messages": ASK, "temperature": 0, "max_tokens": SHORT})
    assert answer["usage"]["completion_tokens"] == SHORT, answer
    assert server.get("/health").status == 200
    return answer["choices"][0]["message"]["content"]


@test
def a_fault_is_a_500_with_the_devices_name_and_the_next_request_is_answered():
    with serve("late=1500") as s:
        before = goes_on(s)
        r = s.post("/v1/chat/completions", {"messages": ASK, "temperature": 0, "max_tokens": LONG})
        error = json.loads(r.body)["error"]
        assert r.status == 500 and "sim:0" in error["message"] and "fault" in error["message"], r.body
        assert error["type"], r.body
        assert goes_on(s) == before


@test
def a_stream_ends_with_the_error():
    with serve("lost=1500", "4,4") as s:
        r = s.post("/v1/chat/completions", {"messages": ASK, "temperature": 0, "max_tokens": LONG, "stream": True})
        found = [json.loads(data) for _, data in events(r.body) if data != "[DONE]"]
        assert any(c.get("choices") and c["choices"][0]["delta"].get("content") for c in found), r.body
        assert "sim:0" in found[-1]["error"]["message"], r.body
        goes_on(s)


@test
def the_other_api_has_its_own_form():
    with serve("late=1500") as s:
        r = s.post("/v1/messages", {"messages": ASK, "temperature": 0, "max_tokens": LONG, "model": "demo"})
        error = json.loads(r.body)
        assert r.status == 500 and error["type"] == "error" and "sim:0" in error["error"]["message"], r.body
        r = s.post("/v1/messages", {"messages": ASK, "temperature": 0, "max_tokens": LONG, "model": "demo", "stream": True})
        name, data = events(r.body)[-1]
        assert name == "error" and "sim:0" in json.loads(data)["error"]["message"], r.body
        goes_on(s)


@test
def a_device_that_stands_still_ends_the_request_and_health_answers_meanwhile():
    with serve("stuck=1500") as s:
        r = s.post("/v1/chat/completions", {"messages": ASK, "temperature": 0, "max_tokens": LONG})
        assert r.status == 500 and "no progress" in json.loads(r.body)["error"]["message"], r.body
        goes_on(s)


@test
def an_engine_whose_device_never_answers_is_ended_by_the_watchdog_and_started_again():
    with serve("stuck=1500", patience=600000, more=("--watchdog", "10")) as s:
        before = s.json("/v1/status")["machine"]["process"]["pid"]
        r = s.post("/v1/chat/completions", {"messages": ASK, "temperature": 0, "max_tokens": LONG})
        assert r.status == 500 and "no sign of life for 10 seconds" in json.loads(r.body)["error"]["message"], r.body
        s.wait_ready()
        goes_on(s)
        process = s.json("/v1/status")["machine"]["process"]
        assert process["pid"] != before and process["restarts"] == 1, process


@test
def signals_of_a_terminal_or_a_service_are_the_servers_business_not_the_engines():
    with serve("late=1000000") as s:
        pid = s.json("/v1/status")["machine"]["process"]["pid"]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        goes_on(s)
        assert s.json("/v1/status")["machine"]["process"]["pid"] == pid


@test
def a_model_that_cannot_be_loaded_ends_the_server_with_one_message():
    code, _, err = run(STRATA, "serve", "-m", MODEL, "--port", "0", "--device", "sim:gfx1100:1M")
    lines = err.decode().splitlines()
    assert code == 3 and len(lines) == 2 and lines[0].startswith("listening") and lines[1].startswith("strata: sim:0"), (code, lines)


if __name__ == "__main__":
    main()
