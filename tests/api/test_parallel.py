"""Several clients of one model at once: test_parallel.py STRATA MODEL."""
import json
import os
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
from harness import Server, events  # noqa: E402
from tap import main, test  # noqa: E402

CHAT = "/v1/chat/completions"
PACKAGES = ["gimp", "vlc", "nginx", "bash", "git", "python3", "apache2", "emacs"]


def server(*more):
    return Server(exe=sys.argv[1], args=["serve", "-m", sys.argv[2], "-c", "512", "--threads", "1", *more])


def request(i, **more):
    sampling = {"temperature": 0} if i % 2 else {"temperature": 0.9, "seed": i}
    text = f"What is {PACKAGES[i]}? " + "Say what it is for. " * (i % 3 * 8)
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 12 + i, **sampling, **more}


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


def together(s, count, **more):
    answers = [None] * count
    def ask(i):
        answers[i] = s.json(CHAT, request(i, **more))
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return answers


@test
def eight_clients_at_once_get_the_answers_that_they_would_get_alone():
    with server("--parallel", "1") as s:
        want = [text_of(s.json(CHAT, request(i))) for i in range(8)]
    for more in (("--parallel", "8"), ("--parallel", "3", "--spec", "3")):
        with server(*more) as s:
            slots = int(more[1])
            assert len(s.json("/slots")) == slots and s.json("/props")["total_slots"] == slots
            count = 0
            for _ in range(2):  # the second time the slots hold conversations
                got = together(s, 8)
                assert [text_of(a) for a in got] == want, (got, want)
                count += sum(a["usage"]["completion_tokens"] for a in got)
            totals = s.json("/v1/status")["totals"]
            assert totals["generated_tokens"] == count, (totals, count)


@test
def an_answer_that_is_cancelled_leaves_the_others_alone():
    with server("--parallel", "4") as s:
        want = text_of(s.json(CHAT, request(1, max_tokens=60)))
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(s.json(CHAT, request(1, max_tokens=60)))) for _ in range(2)]
        data = json.dumps(request(2, max_tokens=400, stream=True, ignore_eos=True)).encode()
        sock = s.socket()
        sock.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
        for t in threads:
            t.start()
        end = time.monotonic() + 60
        while not any(r["stage"] == "generating" and r["stream"] and r["generated_tokens"] > 2 for r in s.json("/v1/status")["requests"]):
            assert time.monotonic() < end
            time.sleep(0.005)
        sock.close()
        for t in threads:
            t.join()
        assert [text_of(a) for a in answers] == [want, want], (answers, want)
        s.wait_idle()
        assert any(p["finish"] == "cancelled" for p in s.json("/v1/status")["past"])


@test
def answers_to_one_request_are_those_of_seeds_one_after_the_other():
    hot = {"temperature": 2, "max_tokens": 16}
    with server("--parallel", "1") as s:
        want = [text_of(s.json(CHAT, request(3, **hot, seed=40 + i))) for i in range(5)]
        assert len(set(want)) > 1, want
    for slots in ("1", "4"):
        with server("--parallel", slots) as s:
            answer = s.json(CHAT, request(3, **hot, seed=40, n=5))
            assert [c["message"]["content"] for c in answer["choices"]] == want, (answer, want)
            assert answer["usage"]["completion_tokens"] == sum(c["timings"]["predicted_n"] for c in answer["choices"])
            cold = s.json(CHAT, request(3, temperature=0, max_tokens=16, n=3))["choices"]
            assert len({c["message"]["content"] for c in cold}) == 1, "nothing is drawn: all are the same"


@test
def what_one_slot_has_read_another_need_not():
    long = request(4, temperature=0, max_tokens=12)
    long["messages"][0]["content"] += " It is a package among many." * 20
    with server("--parallel", "1") as s:
        want = s.json(CHAT, long)
    count = want["usage"]["prompt_tokens"]
    assert count > 100, count
    for more in ((), ("--spec", "3")):
        with server("--parallel", "4", *more) as s:
            choices = s.json(CHAT, {**long, "n": 4})["choices"]
            assert [c["message"]["content"] for c in choices] == [text_of(want)] * 4, choices
            assert choices[0]["timings"]["prompt_n"] == count, "the first one reads it"
            assert all(c["timings"]["prompt_n"] < 40 and c["timings"]["cache_n"] > count - 40 for c in choices[1:]), choices


@test
def a_conversation_goes_on_in_the_slot_that_holds_it():
    with server("--parallel", "3") as s:
        first = [s.json(CHAT, request(i)) for i in (1, 4, 7)]
        for i, answer in zip((7, 1, 4), (first[2], first[0], first[1])):
            more = request(i)
            more["messages"] += [{"role": "assistant", "content": text_of(answer)}, {"role": "user", "content": "And what else?"}]
            again = s.json(CHAT, more)["usage"]
            assert again["prompt_tokens_details"]["cached_tokens"] >= again["prompt_tokens"] // 3, again


@test
def each_slot_is_saved_and_restored_and_one_at_work_is_not_touched():
    with tempfile.TemporaryDirectory(prefix="strata-slots-") as folder, server("--parallel", "2", "--session-dir", folder) as s:
        for i in (0, 5):
            s.json(CHAT, request(i))
        saved = [s.json(f"/slots/{k}?action=save", {"filename": f"s{k}.bin"}) for k in range(2)]
        assert [a["id_slot"] for a in saved] == [0, 1] and all(a["n_saved"] > 10 for a in saved), saved
        assert s.json("/slots/1?action=restore", {"filename": "s0.bin"})["n_restored"] == saved[0]["n_saved"]
        assert s.json("/slots/0?action=erase", {})["n_erased"] == saved[0]["n_saved"]
        assert s.post("/slots/2?action=erase", {}).status == 404
        done = {}
        reader = threading.Thread(target=lambda: done.update(r=s.post(CHAT, request(3, max_tokens=300, stream=True, ignore_eos=True))))
        reader.start()
        end = time.monotonic() + 60
        while not any(slot["is_processing"] for slot in s.json("/slots")):
            assert time.monotonic() < end
            time.sleep(0.005)
        busy = [slot["id"] for slot in s.json("/slots") if slot["is_processing"]]
        refused = s.post(f"/slots/{busy[0]}?action=erase", {})
        assert refused.status == 409 and "slot" in json.loads(refused.body)["error"]["message"], refused.body
        reader.join()
        assert events(done["r"].body)[-1][1] == "[DONE]"


if __name__ == "__main__":
    main()
