"""Device memory is given back and taken again while the server runs: test_vram.py STRATA MODEL."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "api"), os.path.join(HERE, "..")]
from harness import Server  # noqa: E402
from tap import main, test  # noqa: E402

STRATA, MODEL = sys.argv[1], sys.argv[2]
ASK = [{"role": "user", "content": "What is gimp? Say what it is for, who would use it, and which other programs of Debian do the same in another way."}]
MIB = 1 << 20


def server(*more):
    return Server(exe=STRATA, args=["serve", "-m", MODEL, "-c", "512", "--parallel", "1", "--device", "cpu,sim:gfx1100:560M", "--layer-split", "4,4",
                                    "--prefill", "64", "--threads", "1", *more])


def ask(s, messages):
    body = s.json("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 4})
    return body["choices"][0]["message"]["content"], body["usage"]["prompt_tokens_details"]["cached_tokens"]


def on_device(stages):
    return next(stage for stage in stages if stage["device"] == "sim:0")


@test
def a_reserve_moves_experts_off_the_device_and_back_and_conversations_go_on():
    with server("--vram-elastic") as s:
        text, _ = ask(s, ASK)
        before = on_device(s.json("/v1/status")["machine"]["stages"])
        assert before["reserve_bytes"] == 512 * MIB and not before["experts_outside"], before
        given = s.json("/v1/vram", {"reserve_mib": 544})
        now = on_device(given["stages"])
        assert given["state"] == "ready" and given["reserve_mib"] == 544 and given["problem"] is None, given
        assert given["freed"] == [{"name": "sim:0", "bytes": before["bytes"], "driver_bytes": given["freed"][0]["driver_bytes"]}], given
        assert now["reserve_bytes"] == 544 * MIB and now["bytes"] <= 16 * MIB < before["bytes"] and now["experts_outside"], now
        assert s.json("/v1/status")["vram"] == {"elastic": True, "reserve_mib": 544}
        again, cached = ask(s, ASK)
        assert again == text and cached > 20, (text, again, cached)
        assert s.json("/v1/vram", {"reserve_mib": 0})["state"] == "ready"
        assert on_device(s.json("/v1/status")["machine"]["stages"])["bytes"] == before["bytes"]
        again, cached = ask(s, ASK)
        assert again == text and cached > 20, (text, again, cached)


@test
def a_reserve_with_which_the_model_does_not_fit_is_refused_and_it_goes_on_as_before():
    with server("--vram-elastic") as s:
        text, _ = ask(s, ASK)
        r = s.post("/v1/vram", {"reserve_mib": 550})
        error = json.loads(r.body)["error"]
        assert r.status == 409 and error["code"] == "does_not_fit" and "sim:0" in error["message"], r.body
        assert s.get("/health").status == 200 and s.json("/v1/status")["vram"]["reserve_mib"] == 0
        again, cached = ask(s, ASK)
        assert again == text and cached > 20, (text, again, cached)


@test
def the_reserve_of_an_unloaded_model_holds_when_it_is_loaded():
    with server("--vram-elastic") as s:
        s.json("/unload", {})
        assert s.json("/v1/vram", {"reserve_mib": 544})["state"] == "unloaded"
        ask(s, ASK)
        assert on_device(s.json("/v1/status")["machine"]["stages"])["reserve_bytes"] == 544 * MIB


@test
def without_the_option_or_a_number_it_is_refused():
    with server() as s:
        r = s.post("/v1/vram", {"reserve_mib": 1})
        assert r.status == 501 and "--vram-elastic" in json.loads(r.body)["error"]["message"], r.body
    with server("--vram-elastic") as s:
        for body in ({}, {"reserve_mib": -1}, {"reserve_mib": "all"}):
            r = s.post("/v1/vram", body)
            assert r.status == 400 and json.loads(r.body)["error"]["param"] == "reserve_mib", r.body


if __name__ == "__main__":
    main()
