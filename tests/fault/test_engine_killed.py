"""The engine's process is killed again and again under load: test_engine_killed.py STRATA MODEL KILLS. No request is left without an answer
or an error, and conversations go on from what was saved."""
import json
import os
import random
import signal
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "api"), os.path.join(HERE, "..")]
from harness import Server  # noqa: E402
from tap import main, test  # noqa: E402

STRATA, MODEL, KILLS = sys.argv[1], sys.argv[2], int(sys.argv[3])
TALKERS = 3
TOPICS = ["gimp, who uses it, and which other programs of Debian do the same in another way",
          "vlc, which films it plays, and what its developers say about formats that are rare",
          "nginx, which pages it serves, and how it is told about names and certificates"]


class Talker(threading.Thread):
    """Goes on with one conversation; what failed is asked again."""

    def __init__(self, server, number):
        super().__init__(daemon=True)
        self.server, self.number = server, number
        self.messages = []
        self.answers = self.errors = self.resumed = self.cold = 0
        self.wrong = []
        self.stop = False

    def turn(self):
        """True when the question was answered."""
        r = self.server.post("/v1/chat/completions", {"messages": self.messages, "temperature": 0, "max_tokens": 6})
        body = json.loads(r.body)
        if r.status in (500, 503):
            assert body["error"]["message"], body
            self.errors += 1
            return False
        assert r.status == 200, body
        self.answers += 1
        cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        if len(self.messages) > 3 and cached:
            self.resumed += 1
        elif len(self.messages) > 3:
            self.cold += 1
        self.messages.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
        return True

    def run(self):
        try:
            while not self.stop:
                if not self.messages or len(self.messages) > 8:
                    self.messages = [{"role": "user", "content": f"{self.answers}. Tell me about {TOPICS[self.number]}."}]
                else:
                    self.messages.append({"role": "user", "content": "And what else?"})
                while not self.turn() and not self.stop:
                    pass
        except Exception as e:  # shown by the test
            self.wrong.append(repr(e))


def process(server):
    return server.json("/v1/status")["machine"]["process"]


def wait_up(server):
    end = time.monotonic() + 60
    while process(server)["state"] != "up":
        assert time.monotonic() < end, server.log
        time.sleep(0.01)


@test
def no_request_is_left_without_an_answer_or_an_error_and_conversations_go_on():
    random.seed(1)
    with Server(exe=STRATA, args=["serve", "-m", MODEL, "-c", "1024", "--device", "cpu", "--threads", "1", "--save-every", "0",
                                  "--session-ram", "64M"]) as s:
        talkers = [Talker(s, i) for i in range(TALKERS)]
        for t in talkers:
            t.start()
        for _ in range(KILLS):
            before = sum(t.answers for t in talkers)
            while sum(t.answers for t in talkers) < before + 4 and not any(t.wrong for t in talkers):
                time.sleep(0.01)
            time.sleep(random.random() * 0.2)
            wait_up(s)
            os.kill(process(s)["pid"], signal.SIGKILL)
        for t in talkers:
            t.stop = True
        for t in talkers:
            t.join(120)
            assert not t.is_alive(), "a request has no answer"
        assert not any(t.wrong for t in talkers), [t.wrong for t in talkers]
        errors, resumed, cold = (sum(getattr(t, name) for t in talkers) for name in ("errors", "resumed", "cold"))
        print(f"# {KILLS} kills: {sum(t.answers for t in talkers)} answers, {errors} errors, {resumed} went on, {cold} were read again")
        status = process(s)
        assert status["restarts"] >= KILLS - 1 and errors <= KILLS * TALKERS, (status, errors)
        # A kill may come before the conversation of the turn before was saved: those turns alone are read again.
        assert cold <= KILLS and resumed > 2 * cold, (resumed, cold)


if __name__ == "__main__":
    main()
