"""The model is unloaded again and again under load: test_unloaded.py STRATA MODEL ROUNDS. Nothing is lost, conversations go on from
disk, and every device gets back what it gave, to the byte."""
import os
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "api"), os.path.join(HERE, "..")]
from harness import Server  # noqa: E402
from tap import main, test  # noqa: E402

STRATA, MODEL, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
TOPICS = ["gimp, who uses it, and which other programs of Debian do the same in another way",
          "vlc, which films it plays, and what its developers say about formats that are rare"]


class Talker(threading.Thread):
    def __init__(self, server, topic):
        super().__init__(daemon=True)
        self.server, self.topic = server, topic
        self.answers, self.wrong, self.stop = 0, [], False

    def run(self):
        try:
            while not self.stop:
                self.talk()
        except Exception as e:  # shown by the test
            self.wrong.append(repr(e))

    def talk(self):
        messages = [{"role": "user", "content": f"{self.answers}. Tell me about {self.topic}."}]
        while not self.stop and len(messages) < 9:
            body = self.server.json("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 3})
            cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
            if len(messages) > 1 and not cached:
                self.wrong.append(f"turn {len(messages)} was read again")
            self.answers += 1
            messages += [{"role": "assistant", "content": body["choices"][0]["message"]["content"]},
                         {"role": "user", "content": "And what else?"}]


def wait_for(what, seconds=300):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


@test
def unload_under_load_loses_nothing_and_gives_back_every_byte():
    with Server(exe=STRATA, args=["serve", "-m", MODEL, "-c", "512", "--device", "cpu,sim:gfx1100:8G,sim:gfx1201:8G", "--layer-split", "6,1,1",
                                  "--threads", "1", "--session-ram", "64M"]) as s:
        talkers = [Talker(s, topic) for topic in TOPICS]
        for t in talkers:
            t.start()
        first = memory = None
        for i in range(ROUNDS):
            before = sum(t.answers for t in talkers)
            wait_for(lambda n=before: sum(t.answers for t in talkers) > n + 1 or any(t.wrong for t in talkers))
            done = s.json("/unload", {"deadline_seconds": 600})
            assert done["problem"] is None and done["answers"]["cut"] == 0 and done["conversations"]["files"] > 0, done
            freed = {d["name"]: d["bytes"] for d in done["freed"]}
            first = first or freed
            assert set(freed) == {"sim:0", "sim:1"} and all(freed.values()) and freed == first, (first, freed)
            if i == ROUNDS // 2:
                memory = s.resident()
        for t in talkers:
            t.stop = True
        for t in talkers:
            t.join(300)
            assert not t.is_alive() and not t.wrong, t.wrong
        assert s.sanitized or s.resident() < memory + (8 << 20), (memory, s.resident())
        last = s.json("/unload", {})
        process = s.json("/v1/status")["machine"]["process"]
        assert last["state"] == "unloaded" and process["pid"] == 0 and process["restarts"] == 0, (last, process)
        print(f"# {ROUNDS} times, {sum(t.answers for t in talkers)} answers, {sum(first.values())} bytes each time")


if __name__ == "__main__":
    main()
