"""Conversations in any order of going on, editing a turn, asking again, hanging up, slots saved and restored, unloading, stops and
kill -9 of the engine's process and of the whole server, with drafts: test_interleaved.py STRATA MODEL [STEPS [SEED]]. Every answer is
that of a server without drafts which reads the whole conversation anew; both compute with FP32 activations, so texts can part only where
two tokens are equally probable within what the order of sums may change."""
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "api"), os.path.join(HERE, "..")]
from harness import Server  # noqa: E402
from tap import main, test  # noqa: E402

STRATA, MODEL = sys.argv[1], sys.argv[2]
STEPS = int(sys.argv[3]) if len(sys.argv) > 3 else 40
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else 1
CONTEXT, TALKS, EQUAL = 512, 3, 1e-3
SLOTS = ("one", "two")
QUESTIONS = ["What is gimp?", "Which packages of Debian serve pages?", "And vlc, is it larger than the other one?", "Name one more.",
             "Who would use it, and what for?", "Tell me about nginx and its modules.", "Why?", "Which of them is the oldest one?",
             "Say in one line what a package is and what it is for.", "Is there a way to do the same without a window?"]


def serve(folder, *more):
    return Server(exe=STRATA, args=["serve", "-m", MODEL, "-c", str(CONTEXT), "--threads", "1", "--fp32", "--kv", "f32", "--session-dir", folder,
                                    *more])


def children(s):
    with open(f"/proc/{s.process.pid}/task/{s.process.pid}/children", encoding="ascii") as f:
        return [int(pid) for pid in f.read().split()]


class Tester:
    def __init__(self, chance, folder):
        self.chance, self.folder = chance, folder
        self.plain = serve(os.path.join(folder, "plain"), "--parallel", "1", "--save-every", "86400")
        self.server = None
        self.talks = [[] for _ in range(TALKS)]  # messages, an answer at the end of each
        self.saved = set()  # names of slots' files
        self.counts = {}
        self.asked = self.cached = self.near = 0
        self.start()

    def close(self):
        self.plain.stop()
        assert self.server.stop() == 0, self.server.log

    def start(self):
        # Memory for about one conversation: others are parked in files.
        self.server = serve(os.path.join(self.folder, "kept"), "--parallel", "2", "--session-ram", "6M", "--save-every", "0", "--mtp", "auto",
                            "--spec", "3")

    def body(self, messages, count):
        return {"messages": messages, "temperature": 0, "max_tokens": count}

    def truth(self, messages, count):
        """The tokens of an answer after a cold read, each with its distance to the next probable one."""
        self.plain.json("/slots/0?action=erase", {})
        a = self.plain.json("/v1/chat/completions", {**self.body(messages, count), "logprobs": True, "top_logprobs": 2})
        assert a["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, a["usage"]
        entries = a["choices"][0]["logprobs"]["content"]
        return a["choices"][0]["message"]["content"], [(e["token"], e["top_logprobs"][0]["logprob"] - e["top_logprobs"][1]["logprob"])
                                                       for e in entries]

    def compare(self, text, messages, count, part=False):
        """part: only the beginning of the answer is there."""
        want, tokens = self.truth(messages, count)
        if text == want or (part and want.startswith(text)):
            return
        at = 0
        for token, distance in tokens:
            if not text.startswith(token, at):
                assert distance < EQUAL, (text, want, token, distance, messages)
                self.near += 1
                return
            at += len(token)
        raise AssertionError((text, want, messages))

    def ask(self, messages, count):
        """An answer; asked again while the engine comes back. None: the context is full."""
        for _ in range(200):
            r = self.server.post("/v1/chat/completions", self.body(messages, count))
            if r.status not in (500, 503):
                break
            time.sleep(0.05)
        answer = json.loads(r.body)
        if r.status == 400 and answer["error"].get("code") == "context_length_exceeded":
            return None
        assert r.status == 200, (r.status, r.body)
        self.asked += 1
        self.cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["message"]["content"]

    def go_on(self, i, messages):
        """The conversation becomes messages and their answer, or begins anew."""
        count = self.chance.randint(1, 9)
        text = self.ask(messages, count)
        if text is None:
            self.talks[i] = []
            return
        self.compare(text, messages, count)
        self.talks[i] = [*messages, {"role": "assistant", "content": text}]

    def question(self):
        return {"role": "user", "content": self.chance.choice(QUESTIONS)}

    # ---- steps ----

    def append(self, i):
        self.go_on(i, [*self.talks[i], self.question()])

    def edit(self, i):
        k = self.chance.randrange(len(self.talks[i]) // 2 + 1)
        self.go_on(i, [*self.talks[i][:2 * k], self.question()])

    def regenerate(self, i):
        if self.talks[i]:
            self.go_on(i, self.talks[i][:-1])

    def hang_up(self, i):
        """The client leaves in the middle of the answer; what it saw may become a part of the conversation."""
        messages, seen, most = [*self.talks[i], self.question()], "", self.chance.randint(0, 4)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        connection.request("POST", "/v1/chat/completions", json.dumps({**self.body(messages, 40), "stream": True}),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status == 200:
            for line in response:
                if line.startswith(b"data: {") and most > 0:
                    data = json.loads(line[6:])
                    assert "error" not in data, data
                    seen += data["choices"][0]["delta"].get("content") or "" if data["choices"] else ""
                    most -= 1
                if most == 0:
                    break
        connection.close()
        if response.status == 200 and seen:
            self.compare(seen, messages, 40, part=True)
            self.talks[i] = [*messages, {"role": "assistant", "content": seen}]

    def slot(self, action, name="none"):
        self.server.wait_idle()
        at = self.chance.randrange(2)
        for _ in range(200):
            r = self.server.post(f"/slots/{at}?action={action}", {"filename": name})
            if r.status not in (500, 503):
                return r
            time.sleep(0.05)
        raise AssertionError((r.status, r.body))

    def save(self, _):
        name = self.chance.choice(SLOTS)
        r = self.slot("save", name)
        assert r.status == 200, (r.status, r.body)
        self.saved.add(name)

    def restore(self, _):
        name = self.chance.choice(SLOTS)
        r = self.slot("restore", name)
        assert r.status == (200 if name in self.saved else 404), (r.status, r.body)

    def erase(self, _):
        r = self.slot("erase")
        assert r.status == 200, (r.status, r.body)

    def unload(self, _):
        r = self.server.post("/unload", {})
        assert r.status == 200 and json.loads(r.body)["problem"] is None, r.body

    def kill_engine(self, _):
        for pid in children(self.server):
            os.kill(pid, signal.SIGKILL)

    def kill_server(self, _):
        engines = children(self.server)
        self.server.process.kill()
        for pid in engines:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.server.process.wait()
        self.server.reader.join(10)
        self.server.dir.cleanup()
        self.start()

    def restart(self, _):
        assert self.server.stop() == 0, self.server.log
        self.start()

    def step(self):
        weights = {"append": 8, "edit": 5, "regenerate": 4, "hang_up": 4, "save": 3, "restore": 3, "erase": 1, "unload": 1, "kill_engine": 2,
                   "kill_server": 2, "restart": 1}
        name = self.chance.choices(list(weights), list(weights.values()))[0]
        self.counts[name] = self.counts.get(name, 0) + 1
        getattr(self, name)(self.chance.randrange(TALKS))


@test
def answers_are_those_of_a_cold_read_whatever_happened_before():
    print(f"# {STEPS} steps, seed {SEED}", flush=True)
    with tempfile.TemporaryDirectory(prefix="strata-interleaved-") as folder:
        t = Tester(random.Random(SEED), folder)
        try:
            for _ in range(STEPS):
                t.step()
            for i in range(TALKS):
                t.append(i)
            parked = t.server.json("/v1/status")["machine"]["parked"]
            assert parked["last_failure"] == "", parked
        finally:
            t.close()
        print(f"# {t.counts}; {t.asked} answers, {t.cached} tokens were not read again, {t.near} times two tokens were equally probable")
        # How much is kept depends on what was in files when a kill came; something always is.
        assert t.cached > 0 and t.near <= 1 + t.asked // 50, (t.cached, t.asked, t.near)


if __name__ == "__main__":
    main()
