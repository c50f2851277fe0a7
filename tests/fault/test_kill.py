"""kill -9 of a whole server at random moments, also in the middle of saves: test_kill.py STRATA MODEL [ROUNDS [SEED]]. No
conversation that was saved before is lost or half there, and the next server goes on with it.

Every state of the conversation is known beforehand: the turns are fixed, and a state that was saved and restored gives the bits
of one that was not (docs/architecture.md), so the number of tokens names the state and a question shows that it is the right one."""
import http.client
import os
import random
import shutil
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "api"), os.path.join(HERE, "..")]
from harness import Server  # noqa: E402
from tap import main, test  # noqa: E402

STRATA, MODEL = sys.argv[1], sys.argv[2]
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 6
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1 << 30)
TURNS = [("What is gimp? Say in one line what it is for and who would use it.", "An image editor."),
         ("And what is vlc, which of the two is the larger one?", "A media player."),
         ("Which packages of Debian serve pages?", "nginx and apache2."),
         ("Name one more.", "lighttpd.")]
OTHER = "Tell me about nginx and its modules: which of them would a small site need, and how large are they together?"


def messages(turns, question=None):
    said = [m for user, answer in TURNS[:turns] for m in ({"role": "user", "content": user}, {"role": "assistant", "content": answer})]
    return said[:-1] if question is None else said + [{"role": "user", "content": question}]


def ask(s, said, count=6):
    answer = s.json("/v1/chat/completions", {"messages": said, "temperature": 0, "max_tokens": count})
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def slot(s, action, name):
    return s.json(f"/slots/0?action={action}", {"filename": name})


def probe(s):
    """What the state that the server holds answers to a question that follows it."""
    return ask(s, messages(s.turn, "Thanks. Which one is the oldest?"))[0]


def start(folder):
    # Memory for a single conversation: the other one is always on its way to a file.
    s = Server(exe=STRATA, args=["serve", "-m", MODEL, "-c", "512", "--threads", "1", "--parallel", "1", "--session-dir", folder, "--session-ram", "3M"])
    s.turn = 0
    return s


def kill(s):
    """The server and what it started, as the system does when it runs out of memory or power."""
    with open(f"/proc/{s.process.pid}/task/{s.process.pid}/children", encoding="ascii") as f:
        children = [int(pid) for pid in f.read().split()]
    s.process.kill()
    for pid in children:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            pass
    s.process.wait()
    s.reader.join(10)
    s.dir.cleanup()


def temporary(folder):
    return [name for name in os.listdir(os.path.join(folder, "saved")) if ".strata-part." in name]


class Talk:
    """The conversation's states: tokens[k] and answers[k] after k turns, and which of them the slot holds for certain."""

    def __init__(self, folder):
        self.folder, self.tokens, self.answers = folder, {}, {}
        s = start(folder)
        for k in range(1, len(TURNS) + 1):
            s.turn = k
            ask(s, messages(k))
            self.tokens[k] = slot(s, "save", "talk")["n_saved"]
            self.answers[k] = probe(s)
            assert slot(s, "restore", "talk")["n_restored"] == self.tokens[k]
        slot(s, "save", "kept")
        self.saved = self.saving = len(TURNS)
        kill(s)

    def check(self, s):
        """The slots hold what they held, or the whole of what was being saved; the conversation goes on from there."""
        held = slot(s, "restore", "kept")
        assert held["n_restored"] == self.tokens[len(TURNS)], held
        s.turn = len(TURNS)
        assert probe(s) == self.answers[s.turn]
        held = slot(s, "restore", "talk")
        found = [k for k in {self.saved, self.saving} if self.tokens[k] == held["n_restored"]]
        assert found, (held, self.saved, self.saving, self.tokens)
        new, s.turn = found[0] != self.saved, found[0]
        self.saved = self.saving = found[0]
        assert probe(s) == self.answers[s.turn], (s.turn, self.answers)
        assert slot(s, "restore", "talk")["n_restored"] == self.tokens[s.turn]
        parked = s.json("/v1/status")["machine"]["parked"]
        assert parked["last_failure"] == "" and parked["dropped"] == 0, parked
        assert len(temporary(self.folder)) <= 1
        return new

    def go_on(self, s, armed, during):
        """Turns and saves until the server is killed; armed is set when the clock of the kill shall run."""
        while True:
            following = s.turn % len(TURNS) + 1
            if following == 1:
                slot(s, "erase", "none")
            if during != "save":
                armed.set()
            ask(s, [{"role": "user", "content": OTHER}], 2)
            if s.turn % len(TURNS):
                slot(s, "restore", "talk")
            ask(s, messages(following))
            self.saving = following
            armed.set()
            slot(s, "save", "talk")
            self.saved = s.turn = following


@test
def a_server_that_is_killed_at_any_moment_loses_no_saved_conversation():
    print(f"# {ROUNDS} rounds, seed {SEED}", flush=True)
    chance, folder = random.Random(SEED), tempfile.mkdtemp(prefix="strata-kill-")
    talk = Talk(folder)
    killed, new = 0, 0
    for i in range(ROUNDS):
        s = start(folder)
        new += talk.check(s)
        before = s.json("/slots/0?action=save", {"filename": "talk"})["timings"]["save_ms"] / 1e3
        assert not temporary(folder), temporary(folder)
        during = "save" if i % 2 else "anything"
        delay, armed = chance.uniform(0, 1.5 * before if during == "save" else 2), threading.Event()

        def strike():
            armed.wait(120)
            time.sleep(delay)
            kill(s)

        striker = threading.Thread(target=strike)
        striker.start()
        try:
            talk.go_on(s, armed, during)
        except (OSError, http.client.HTTPException):
            killed += 1
        finally:
            armed.set()
            striker.join()
    s = start(folder)
    new += talk.check(s)
    code = s.stop()
    assert code == 0 and killed == ROUNDS, (code, killed)
    print(f"# killed {killed} times; {new} times the file that was being written was there, whole")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
