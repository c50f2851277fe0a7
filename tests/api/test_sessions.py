"""Conversations that outlive their place in the server, and the server: test_sessions.py STRATA MODEL."""
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
from harness import Server  # noqa: E402
from tap import main, test  # noqa: E402

DIR = tempfile.TemporaryDirectory(prefix="strata-sessions-")


def server(*more):
    return Server(exe=sys.argv[1], args=["serve", "-m", sys.argv[2], "-c", "1024", "--parallel", "1", "--session-dir", DIR.name, *more])


def talk(*texts):
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]


def ask(s, messages, count=8):
    answer = s.json("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": count})
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


LONG = "What is gimp? Say what it is for, who would use it, and which other programs of Debian do the same in another way."
OTHER = "Tell me about vlc and about nginx: which of them plays films, which of them serves pages, and how large are they?"


@test
def two_conversations_take_turns_and_are_read_once():
    with server("--session-ram", "64M") as s:
        text, cached = ask(s, talk(LONG))
        assert cached == 0
        ask(s, talk(OTHER))
        _, cached = ask(s, talk(LONG, text, "And vlc?"))
        assert cached > 20, cached
        _, cached = ask(s, talk(OTHER, "vlc.", "Really?"))
        assert cached > 20, cached
        parked = s.json("/v1/status")["machine"]["parked"]
        assert parked["in_memory"] == 1 and parked["dropped"] == 0 and parked["last_failure"] == "", parked


@test
def conversations_come_back_after_the_server_was_stopped():
    with server() as s:
        _, cached = ask(s, talk(OTHER, "vlc.", "Really?"))
        assert cached > 20, cached
        _, cached = ask(s, talk(LONG, "An editor.", "And vlc?"))
        assert cached > 20, cached


@test
def a_slot_is_saved_restored_and_erased():
    with server() as s:
        text, _ = ask(s, talk(LONG))
        saved = s.json("/slots/0?action=save", {"filename": "gimp.bin"})
        path = os.path.join(DIR.name, "saved", "gimp.bin")
        assert saved["n_saved"] > 20 and saved["n_written"] == os.path.getsize(path) and saved["timings"]["save_ms"] > 0, saved
        erased = s.json("/slots/0?action=erase", {})
        assert erased["n_erased"] == saved["n_saved"], erased
        assert s.json("/slots/0?action=erase", {})["n_erased"] == 0
        restored = s.json("/slots/0?action=restore", {"filename": "gimp.bin"})
        assert restored["n_restored"] == saved["n_saved"] and restored["n_read"] == saved["n_written"], restored
        again, cached = ask(s, talk(LONG))
        assert again == text and cached > 20, (again, text, cached)
        with open(path, "r+b") as f:
            f.seek(2000)
            f.write(b"damage")
        for name, status, word in (("gimp.bin", 400, "damaged"), ("none.bin", 404, "none.bin"), ("../x", 400, "filename"), ("", 400, "filename"),
                                   (".x", 400, "filename"), ("x" * 128, 400, "filename"), (7, 400, "filename")):
            refused = s.post("/slots/0?action=restore", {"filename": name})
            assert refused.status == status and word in json.loads(refused.body)["error"]["message"], (name, refused.status, refused.body)
            assert DIR.name.encode() not in refused.body, refused.body
        os.mkdir(os.path.join(DIR.name, "saved", "folder"))
        for action in ("save", "restore"):
            refused = s.post("/slots/0?action=" + action, {"filename": "folder"})
            assert refused.status == 400 and "not a file" in json.loads(refused.body)["error"]["message"], refused.body
        os.rmdir(os.path.join(DIR.name, "saved", "folder"))
        for query in ("", "?action=", "?action=drop"):
            assert s.post("/slots/0" + query, {"filename": "a"}).status == 400
        assert ask(s, talk(LONG))[0] == text


@test
def saved_slots_count_within_the_limit_of_the_folder_and_parked_conversations_give_way():
    with tempfile.TemporaryDirectory(prefix="strata-quota-") as folder:
        def serve(limit):
            return Server(exe=sys.argv[1], args=["serve", "-m", sys.argv[2], "-c", "1024", "--parallel", "1", "--session-dir", folder, "--session-disk", str(limit)])
        with serve(1 << 30) as s:
            ask(s, talk(LONG))
            size = s.json("/slots/0?action=save", {"filename": "a"})["n_written"]
            parked = 0
        for name in os.listdir(folder):  # the server kept the conversation when it stopped
            parked += os.path.getsize(os.path.join(folder, name)) if name.endswith(".session") else 0
        assert parked > 0
        with serve(size + size // 2 + parked) as s:
            assert s.json("/v1/status")["machine"]["parked"]["in_files"] == 1
            s.json("/slots/0?action=restore", {"filename": "a"})
            assert s.json("/slots/0?action=save", {"filename": "a"})["n_written"] == size  # takes its own place
            s.json("/slots/0?action=save", {"filename": "b"})
            refused = s.post("/slots/0?action=save", {"filename": "c"})
            message = json.loads(refused.body)["error"]["message"]
            assert refused.status == 400 and "--session-disk" in message and folder not in message, refused.body
            assert sorted(os.listdir(os.path.join(folder, "saved"))) == ["a", "b"]
            os.unlink(os.path.join(folder, "saved", "a"))
            s.json("/slots/0?action=save", {"filename": "c"})
        total = sum(os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(folder) for f in files)
        assert total <= size + size // 2 + parked, (total, size, parked)


if __name__ == "__main__":
    main()
