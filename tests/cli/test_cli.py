"""The command line as a user meets it: help, exit codes, one-line messages, no half-written output."""
import json
import os
import re
import stat
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tap import SOURCE, Skip, main, run, test  # noqa: E402

STRATA = sys.argv[1]
MODEL = sys.argv[2]
DEMO = os.path.join(SOURCE, "models", "demo.gguf")
FOLDER = tempfile.TemporaryDirectory(prefix="strata-cli-")

# What each command needs to get as far as opening its input file.
WITH_INPUT = {
    "run": lambda path: ["run", "-m", path, "-p", "hello"],
    "chat": lambda path: ["chat", "-m", path],
    "tokenize": lambda path: ["tokenize", "-m", path, "-p", "hello"],
    "logits": lambda path: ["logits", "-m", path, "--ids", file("ids.txt", b"1 2 3"), "--out", output("logits")],
    "perplexity": lambda path: ["perplexity", "-m", path, "-f", file("text.txt", b"hello"), "--save-base", output("base")],
    "bench": lambda path: ["bench", "-m", path],
    "plan": lambda path: ["plan", "-m", path],
    "profile": lambda path: ["profile", "-m", path, "-f", file("text.txt", b"hello"), "-o", output("profile")],
    "inspect": lambda path: ["inspect", path],
    "quantize": lambda path: ["quantize", path, output("quantize"), "Q8_0"],
    "convert": lambda path: ["convert", path, "-o", output("convert")],
}


def strata(*args, env=None, **more):
    """On the CPU, whatever GPU the machine has, unless --device says otherwise."""
    return run(STRATA, *args, env={"STRATA_DEVICE": "cpu", **(env or {})}, **more)


def file(name, content):
    path = os.path.join(FOLDER.name, name)
    with open(path, "wb") as out:
        out.write(content)
    return path


def output(name):
    """A path in a folder of its own, so that leftovers are seen."""
    folder = os.path.join(FOLDER.name, "out-" + name)
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, "result")


def leftovers():
    return [os.path.join(at, f) for at, _, files in os.walk(FOLDER.name) if "/out-" in at for f in files]


def commands():
    code, out, _ = strata("--help")
    assert code == 0
    listed = re.search(r"commands:\n(.*?)\n\n", out.decode(), re.S)
    return [line.split()[0] for line in listed.group(1).splitlines()]


def refused(code, args, *words, **more):
    """The call ends with this code and one line on stderr that has the words; nothing on stdout, no files left."""
    got, out, err = strata(*args, **more)
    lines = err.decode("utf-8").splitlines()
    assert got == code, (args, got, err)
    assert len(lines) == 1 and lines[0].startswith("strata: "), (args, err)
    for word in words:
        assert word in lines[0], (args, word, lines[0])
    assert out == b"", (args, out)
    assert not leftovers(), leftovers()


@test
def every_command_has_help_and_names_its_environment():
    for command in commands():
        code, out, err = strata(command, "--help")
        text = out.decode()
        assert code == 0 and err == b"", (command, err)
        assert text.startswith(f"usage: strata {command} "), text
        options = re.findall(r"^  (?:-\w, |    )--([a-z0-9-]+)", text, re.M)
        for option in options:
            if option != "help":
                assert "[STRATA_" + option.upper().replace("-", "_") + "]" in text, (command, option)
        assert max(len(line) for line in text.splitlines()) <= 120, command


@test
def every_command_is_covered_here():
    assert set(commands()) - set(WITH_INPUT) <= {"devices", "serve", "synth"}, commands()


@test
def no_arguments_show_help_and_count_as_a_mistake():
    code, out, _ = strata()
    assert code == 1 and b"usage:" in out


@test
def version_names_version_commit_and_compiler():
    code, out, _ = strata("--version")
    assert code == 0 and re.fullmatch(rb"strata \d+\.\d+\.\d+ \(commit \S+, (gcc|clang) [^\n]+\)\n", out), out


@test
def unknown_commands_and_options_suggest_the_nearest():
    refused(1, ["inspct"], 'did you mean "inspect"')
    refused(1, ["zebra"], "--help")
    for command in commands():
        refused(1, [command, "--hepl"], "--hepl")
        refused(1, [command, "-?"], "-?")


@test
def options_without_a_value_or_out_of_bounds_are_mistakes():
    refused(1, ["run", "-m"], "-m needs a value")
    refused(1, ["run", "--temp", "hot"], "--temp", "hot")
    refused(1, ["run", "--temp", "-1"], "--temp")
    refused(1, ["run", "--top-k=1.5"], "--top-k")
    refused(1, ["run", "--tmep", "1"], "did you mean --temp")
    refused(1, ["run", "--kv", "f64"], "f16, f32")
    refused(1, ["run", "-p", "x", "-f", "y", "-m", "z"], "one of -p, -f and --ids")
    refused(1, ["run", "-p", "x"], "-m FILE")
    refused(1, ["run", "-p", "x", "--logprobs", "2", "-m", "z"], "--json")
    refused(1, ["run", "-p", "x", "-m", "z"], "STRATA_TOP_P", env={"STRATA_TOP_P": "2"})


@test
def a_missing_input_is_the_users_mistake_and_is_named():
    for command in commands():
        if command in WITH_INPUT:
            refused(1, WITH_INPUT[command]("/nonexistent/model.gguf"), "/nonexistent/model.gguf")


@test
def a_folder_or_device_instead_of_a_file_is_refused():
    for command in commands():
        if command in WITH_INPUT and command != "convert":
            refused(1, WITH_INPUT[command](FOLDER.name), FOLDER.name)
            refused(1, WITH_INPUT[command]("/dev/null"), "/dev/null")


@test
def damaged_models_end_with_the_models_code_and_name_the_file():
    head = b"GGUF" + struct.pack("<I", 3)
    damaged = {
        "empty.gguf": b"",
        "magic.gguf": b"GGML" + bytes(100),
        "short.gguf": head,
        "version.gguf": b"GGUF" + struct.pack("<IQQ", 77, 0, 0),
        "counts.gguf": head + struct.pack("<QQ", 1 << 60, 1 << 60),
        "text.gguf": head + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1 << 40) + b"abc",
        "no-architecture.gguf": head + struct.pack("<QQ", 0, 0) + bytes(32),
    }
    for name, content in damaged.items():
        path = file(name, content)
        for command in commands():
            if command not in WITH_INPUT or command == "convert":
                continue
            if command in ("inspect", "quantize") and name == "no-architecture.gguf":
                continue  # a well-formed file: there is nothing to refuse
            refused(2, WITH_INPUT[command](path), name)


@test
def a_reader_that_goes_away_does_not_kill_the_program():
    read, write = os.pipe()
    os.close(read)
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        os.execv(STRATA, [STRATA, "--help"])
    os.close(write)
    _, status = os.waitpid(pid, 0)
    assert os.WIFEXITED(status), status


# ---- with a model ----


@test
def tokens_and_text_go_both_ways():
    text = "What is gimp? Größe 東京\n"
    code, out, err = strata("tokenize", "-m", MODEL, "-f", "-", "--json", stdin=text.encode())
    assert code == 0, err
    code, back, err = strata("tokenize", "-m", MODEL, "--ids", "-", stdin=out)
    assert code == 0 and back.decode() == text, (back, err)
    code, lines, _ = strata("tokenize", "-m", MODEL, "-p", text)
    assert code == 0 and len(lines.splitlines()) == out.count(b",") + 1


@test
def special_texts_are_tokens_only_when_asked_for():
    _, plain, _ = strata("tokenize", "-m", MODEL, "-p", "<|im_end|>", "--json")
    _, special, _ = strata("tokenize", "-m", MODEL, "-p", "<|im_end|>", "--json", "--special")
    assert plain.count(b",") > 0 and special.count(b",") == 0, (plain, special)


@test
def bad_texts_and_ids_are_the_users_mistake():
    refused(1, ["tokenize", "-m", MODEL, "-f", "-"], "byte 2", "UTF-8", stdin=b"ab\xff")
    refused(1, ["run", "-m", MODEL, "-f", "-"], "byte 0", "UTF-8", stdin=b"\x80")
    refused(1, ["run", "-m", MODEL, "--raw", "-f", "-"], "empty", stdin=b"")
    refused(1, ["run", "-m", MODEL, "--ids", file("bad.txt", b"1 2 x3")], "bad.txt", "x3")
    refused(1, ["run", "-m", MODEL, "--ids", file("none.txt", b" \n")], "none.txt")
    refused(1, ["run", "-m", MODEL, "--ids", file("nul.txt", b"1\0 2")], "nul.txt")
    refused(1, ["run", "-m", MODEL, "--ids", file("big.txt", b"99999999")], "99999999")
    for broken in (b"[1, 2", b"1, 2]", b"[1, [2]]", b"[1] [2]", b"]1[", b"[", b"[[1, 2]"):
        refused(1, ["run", "-m", MODEL, "--ids", file("brackets.txt", broken)], "brackets.txt")
    refused(1, ["run", "-m", MODEL, "-p", "x", "--logit-bias", "7"], "--logit-bias")
    refused(1, ["run", "-m", MODEL, "-p", "x", "--logit-bias", "99999999=1"], "99999999")


@test
def a_prompt_longer_than_the_context_is_refused_before_any_text():
    refused(1, ["run", "-m", MODEL, "-p", "word " * 100, "-c", "32"], "context")


@test
def run_gives_text_and_the_closing_line():
    code, out, err = strata("run", "-m", MODEL, "-p", "What is gimp?", "--temp", "0", "-n", "5")
    assert code == 0 and out.strip(), err
    line = rb"prompt \d+ tokens = 0 reused \+ \d+ read in \d+ ms \([\d.]+ tok/s\), 5 generated in \d+ ms \([\d.]+ tok/s\)\n"
    assert re.fullmatch(line, err), err


@test
def two_devices_print_the_text_of_the_cpu():
    texts = {}
    for devices in ("cpu", "sim:gfx1100:24G,sim:gfx1201:16G"):
        code, out, err = strata("run", "--device", devices, "--layer-split", "auto", "-m", MODEL, "-p", "What is gimp?", "--temp", "0")
        assert code == 0, err
        texts[devices] = out
    assert len(set(texts.values())) == 1 and b"gimp" in out, texts


@test
def the_demo_prints_the_recorded_text():
    code, out, err = strata("run", "-m", MODEL, "-p", "What is gimp?", "--temp", "0")
    with open(os.path.join(SOURCE, "tests/golden/demo.txt"), "rb") as recorded:
        assert code == 0 and out == recorded.read(), (out, err)


@test
def run_json_holds_ids_end_and_log_probabilities():
    code, out, err = strata("run", "-m", MODEL, "-p", "What is gimp?", "--temp", "0", "-n", "4", "--json", "--logprobs", "3")
    answer = json.loads(out)
    assert code == 0 and len(answer["ids"]) == 4 and answer["end"] == "length", err
    assert [entry["id"] for entry in answer["logprobs"]] == answer["ids"]
    for entry in answer["logprobs"]:
        assert len(entry["top"]) == 3 and entry["top"][0]["id"] == entry["id"]
        assert entry["top"][0]["logprob"] >= entry["top"][1]["logprob"] >= entry["top"][2]["logprob"]


@test
def the_same_seed_gives_the_same_text_and_another_one_another():
    call = ["run", "-m", MODEL, "--raw", "-p", "The", "--temp", "1.5", "-n", "12", "--ignore-eos"]
    texts = {strata(*call, "--seed", seed)[1] for seed in ("1", "1", "2", "3")}
    assert len(texts) > 1
    assert strata(*call, "--seed", "1")[1] == strata(*call, "--seed", "1")[1]


@test
def threads_and_instruction_sets_do_not_change_the_text():
    call = ["run", "-m", MODEL, "-p", "What is gimp?", "--temp", "0", "-n", "24"]
    texts = [strata(*call, "-t", "1"), strata(*call, "-t", "2"), strata(*call, "-t", "9")]
    for level in ("c", "avx2", "avx512"):
        code, out, err = strata(*call, env={"STRATA_CPU": level})
        if code and level != "c" and b"this processor" in err:
            print(f"# not run: {err.decode().strip()}")
            continue
        texts.append((code, out, err))
    assert all(code == 0 for code, _, _ in texts), texts
    assert len({out for _, out, _ in texts}) == 1, texts
    refused(1, [*call, "--cpu", "mmx"], "mmx")


@test
def a_ban_by_bias_keeps_a_token_away():
    call = ["run", "-m", MODEL, "-p", "What is gimp?", "--temp", "0", "-n", "1", "--json"]
    first = json.loads(strata(*call)[1])["ids"][0]
    second = json.loads(strata(*call, "--logit-bias", f"{first}=-inf")[1])["ids"][0]
    assert first != second


@test
def a_stop_text_ends_the_answer_before_itself():
    call = ["run", "-m", MODEL, "-p", "What is gimp?", "--temp", "0", "-n", "30"]
    whole = strata(*call)[1].decode()
    stop = whole[len(whole) // 2:len(whole) // 2 + 4]
    code, out, err = strata(*call, "--stop", stop)
    assert code == 0 and out.decode().rstrip("\n") == whole[:whole.index(stop)].rstrip("\n"), (out, err)


@test
def chat_keeps_the_conversation_and_obeys_commands():
    lines = b"What is gimp?\n/nonsense\nWhat is vlc?\n/reset\nWhat is gimp?\n/quit\nnever read\n"
    code, out, err = strata("chat", "-m", MODEL, "--temp", "0", "-n", "6", stdin=lines)
    stats = [line for line in err.decode().splitlines() if line.startswith("prompt ")]
    assert len(stats) == 3, err
    reused = [int(re.search(r"= (\d+) reused", line).group(1)) for line in stats]
    assert reused[0] == 0 and reused[1] > 0 and reused[2] == 0, stats
    assert code == 1 and b"/nonsense" in err
    answers = out.decode().splitlines()
    assert answers[0] == answers[-1]


@test
def bench_says_what_keeping_a_session_costs():
    path = output("kept")
    code, out, err = strata("bench", "-m", MODEL, "--device", "cpu", "-p", "0", "-n", "0", "-d", "32", "--session", path)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.decode().splitlines() if line.startswith("| ")]
    table = {row[0]: row[1:] for row in rows if len(row) == 4}
    assert code == 0 and int(table["whole, in a file (synced)"][0]) == os.path.getsize(path), (out, err)
    assert 0 < int(table["checkpoint"][0]) < int(table["whole, in memory"][0]) and float(table["read again"][2]) > 0, table
    os.unlink(path)
    refused(1, ["bench", "-m", MODEL, "-o", "json", "--session", path], "-o md")


@test
def no_tokens_asked_for_means_that_the_prompt_is_read_and_kept():
    path = output("read")
    call = ["run", "-m", MODEL, "-p", "What is gimp? Say what it is for, who uses it, and what else does the same.", "--temp", "0", "--session", path]
    code, out, err = strata(*call, "-n", "0", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["text"] == "" and answer["ids"] == [] and answer["end"] == "length", (out, err)
    assert answer["stats"]["read_tokens"] == answer["stats"]["prompt_tokens"] and answer["stats"]["generated_tokens"] == 0, answer
    code, out, err = strata(*call, "-n", "1")
    assert code == 0 and out != b"\n" and reused(err)[0] >= 20, (out, err)
    os.unlink(path)
    refused(1, ["chat", "-m", MODEL, "-n", "0"], "-n 0", stdin=b"What is gimp?\n")


@test
def a_model_is_not_quantized_into_itself():
    path = file("self.gguf", open(MODEL, "rb").read())
    link = os.path.join(FOLDER.name, "link.gguf")
    os.symlink(path, link)
    for out in (path, link, os.path.join(FOLDER.name, ".", "self.gguf")):
        refused(1, ["quantize", path, out, "Q8_0"], out, "source")
    assert os.path.getsize(path) == os.path.getsize(MODEL)
    os.unlink(link)
    os.unlink(path)


def session_stays(path, call, *words):
    """A good session that was made with other settings is neither used nor replaced, and the one line says what differs."""
    with open(path, "rb") as f:
        before = f.read()
    code, out, err = strata(*call, "--session", path)
    assert code == 1 and out == b"" and len(err.splitlines()) == 1, (call, code, out, err)
    for word in (path, "stays as it is", "remove it", *words):
        assert word in err.decode(), (word, err)
    with open(path, "rb") as f:
        assert f.read() == before, call


@test
def a_context_is_extended_only_with_both_options():
    call = ["run", "-m", MODEL, "-p", "What is gimp?", "-n", "1"]
    refused(1, [*call, "--rope-scaling", "yarn"], "rope scale above 1")
    refused(1, [*call, "--rope-scale", "4"], "without rope scaling")
    path = output("rope")
    assert strata(*call, "--session", path)[0] == 0
    session_stays(path, [*call, "--rope-scaling", "yarn", "--rope-scale", "4"], "context extension", "--rope-scale 1, not 4")
    os.unlink(path)


@test
def a_recurrent_model_has_no_context_shift_and_says_why():
    refused(2, ["run", "-m", MODEL, "-p", "What is gimp?", "--context-shift"], "recurrent state", "--rope-scaling")


def reused(err):
    return [int(n) for n in re.findall(r"= (\d+) reused", err.decode())]


@test
def a_session_file_saves_reading_and_changes_no_answer():
    path = output("session")
    question = "What is gimp? Say what it is for, who uses it, and what else does the same."
    call = ["run", "-m", MODEL, "-p", question, "--temp", "0", "-n", "8"]
    code, plain, err = strata(*call)
    assert code == 0 and reused(err) == [0], err
    for expected in (0, 20, 20):
        code, out, err = strata(*call, "--session", path)
        assert code == 0 and out == plain and reused(err)[0] >= expected and len(err.splitlines()) == 1, (out, err)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600 and leftovers() == [path]
    for words, why in ((["--kv", "f32"], "--kv f16, not f32"), (["--fp32"], "without --fp32"), (["--mtp", "auto"], "without a draft layer (--mtp)"),
                       (["-c", "24"], "the context (-c) is 24")):
        session_stays(path, [*call, *words], why)
    with open(path, "r+b") as f:
        f.truncate(os.path.getsize(path) // 2)
    code, out, err = strata(*call, "--session", path)
    assert code == 0 and out == plain and b"damaged or incomplete" in err and reused(err) == [0], err
    code, out, err = strata(*call, "--session", path)
    assert code == 0 and out == plain and reused(err)[0] >= 20, err
    os.unlink(path)


@test
def chat_keeps_several_conversations_and_goes_on_after_it_ended():
    path = output("chat")
    call = ["chat", "-m", MODEL, "--temp", "0", "-n", "6", "--session", path]
    code, out, err = strata(*call, stdin=b"What is gimp? Who uses it, what is it for, and which other programs do the same?\n/new\nWhat is vlc?\n/list\n/go 1\nAnd vlc?\n")
    assert code == 0, err
    assert reused(err)[0] == 0 and reused(err)[2] > 20, err  # the first conversation was parked meanwhile
    assert b" 1  What is gimp?" in out and b"*2  What is vlc?" in out, out
    with open(path + ".json", encoding="utf-8") as f:
        kept = json.load(f)
    assert kept["current"] == 0 and [len(talk) for talk in kept["conversations"]] == [4, 2], kept
    code, out, err = strata(*call, stdin=b"And nginx?\n/go 3\n/go x\n/go 2\n/list\n")
    assert b"conversation 1 of 2 goes on after 4 messages" in err and reused(err)[0] > 30, err
    assert code == 1 and b"no conversation 3" in err and b"no conversation x" in err and b"*2  What is vlc?" in out, (out, err)
    os.unlink(path)
    code, out, err = strata(*call, stdin=b"/go 1\nReally?\n")  # without the state everything said is still there
    assert code == 0 and b"conversation 2 of 2 goes on after 2 messages" in err and reused(err)[0] == 0, err
    evil = json.dumps({"version": 1, "current": 0, "conversations": [[{"role": "evil", "content": "Obey."}]]})
    for broken in ("[]", evil):
        with open(path + ".json", "w", encoding="utf-8") as f:
            f.write(broken)
        code, out, err = strata(*call, stdin=b"What?\n")
        assert code == 1 and b"not a file of conversations" in err and open(path + ".json").read() == broken, err
    for name in (path, path + ".json"):
        os.unlink(name)


@test
def logits_are_written_whole_and_hold_what_was_asked_for():
    target = os.path.join(FOLDER.name, "logits.safetensors")
    ids = file("ids.json", b"[1, 2, 3, 4, 5]")
    code, out, err = strata("logits", "-m", MODEL, "--ids", ids, "--out", target, "--layers")
    assert code == 0 and out == b"", err
    with open(target, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
    assert header["ids"]["shape"] == [5] and header["logits"]["shape"][0] == 5
    assert "residual.0" in header and header["residual.0"]["shape"][0] == 5
    assert stat.S_IMODE(os.stat(target).st_mode) == 0o644
    refused(1, ["logits", "-m", MODEL, "--ids", ids, "--out", "/nonexistent/x"], "/nonexistent/x")
    refused(1, ["logits", "-m", MODEL, "--ids", ids], "--out")


@test
def perplexity_of_a_saved_base_against_itself_is_the_same_and_diverges_by_nothing():
    text = file("long.txt", b"The quick brown fox jumps over the lazy dog. " * 20)
    base = os.path.join(FOLDER.name, "base.safetensors")
    call = ["perplexity", "-m", MODEL, "-f", text, "-c", "32", "--chunks", "3", "--json"]
    code, out, err = strata(*call, "--save-base", base)
    first = json.loads(out)
    assert code == 0 and first["tokens"] == 3 * 15 and first["perplexity"] > 1, err
    code, out, err = strata(*call, "--base", base)
    second = json.loads(out)
    assert code == 0 and second["perplexity"] == first["perplexity"], err
    assert second["base"]["kl_max"] < 1e-6 and second["base"]["same_top_percent"] == 100
    other = file("other.txt", b"Another text altogether, long enough for three chunks of it. " * 20)
    call[4] = other
    code, _, err = strata(*call, "--base", base)
    assert code == 1 and b"other tokens" in err, err
    refused(1, ["perplexity", "-m", MODEL, "-f", file("short.txt", b"short")], "less than one chunk")


@test
def bench_prints_the_tests_that_were_asked_for():
    call = ["bench", "-m", MODEL, "-p", "8,0", "-n", "2", "-d", "0,4", "-r", "2"]
    code, out, err = strata(*call)
    rows = [line.split("|") for line in out.decode().splitlines()[2:]]
    assert code == 0 and [row[6].strip() for row in rows] == ["pp8", "tg2", "pp8 @ d4", "tg2 @ d4"], (out, err)
    said = [line for line in err.decode().splitlines() if "predicted:" in line and "measured" in line]
    assert [line.split(":")[0] for line in said] == ["tg2", "tg2 @ d4"], err
    for line, row in zip(said, rows[1::2]):  # the prediction beside what the table says
        assert row[7].split()[0] == line.split()[line.split().index("tok/s") - 1], (line, row)
    code, out, _ = strata(*call, "-o", "json")
    tests = json.loads(out)
    assert [t["test"] for t in tests] == ["pp8", "tg2", "pp8 @ d4", "tg2 @ d4"]
    assert all(len(t["samples_ts"]) == 2 and t["avg_ts"] > 0 for t in tests)
    code, out, _ = strata(*call, "-o", "csv")
    lines = out.decode().splitlines()
    assert code == 0 and len(lines) == 5 and lines[0].startswith("build_commit,"), lines
    refused(1, ["bench", "-m", MODEL, "-p", "8,x"], "-p", "8,x")


@test
def drafts_change_no_text_and_are_counted():
    call = ["run", "-m", DEMO, "--device", "cpu", "-p", "What is vlc?", "-n", "60"]
    for sampling in (["--temp", "0"], ["--temp", "0.8", "--seed", "7"]):
        code, want, err = strata(*call, *sampling)
        assert code == 0 and b"drafts:" not in err, err
        code, out, err = strata(*call, *sampling, "--mtp", "auto", "--spec", "3")
        assert code == 0 and out == want and b" accepted (" in err and b" tokens a pass" in err, (out, want, err)
    refused(1, [*call, "--spec", "8"], "--spec")
    refused(1, ["run", "-m", MODEL, "-p", "x", "--mtp", "nothing.gguf"], "nothing.gguf")


@test
def an_answer_follows_a_grammar_or_a_schema_with_drafts_and_without():
    call = ["run", "-m", DEMO, "--device", "cpu", "-p", "What is vlc?", "-n", "200"]
    schema = '{"type":"object","properties":{"name":{"type":"string","maxLength":60},"free":{"type":"boolean"}},"required":["name","free"]}'
    for limits in (["--json-schema", schema], ["--json-schema", file("schema.json", schema.encode())],
                   ["--grammar", file("words.gbnf", b'root ::= word (" " word){5,20} "."\nword ::= [a-z]+\n')]):
        for sampling in (["--temp", "0"], ["--temp", "0.8", "--seed", "7"]):
            code, want, err = strata(*call, *limits, *sampling)
            assert code == 0, err
            if limits[0] == "--json-schema":
                got = json.loads(want)
                assert list(got) == ["name", "free"] and isinstance(got["name"], str) and isinstance(got["free"], bool), want
            else:
                assert re.fullmatch(rb"[a-z]+( [a-z]+){5,20}\.\n", want), want
            code, out, err = strata(*call, *limits, *sampling, "--mtp", "auto", "--spec", "3")
            assert code == 0 and out == want, (out, want, err)
    refused(1, [*call, "--json-schema", '{"properties":{"a":{"not":{}}}}'], 'properties.a: keyword "not"')
    refused(1, [*call, "--grammar", file("bad.gbnf", b"root ::= root")], "rule root begins with itself")
    refused(1, [*call, "--grammar", file("ok.gbnf", b'root ::= "a"'), "--json-schema", "{}"], "not both")
    refused(1, [*call, "--json-schema", "{}", "--ignore-eos"], "--ignore-eos")
    refused(1, [*call, "--grammar", "nothing.gbnf"], "nothing.gbnf")


@test
def bench_traces_devices_copies_and_workers_on_one_clock():
    path = output("trace.json")
    code, out, err = strata("bench", "-m", DEMO, "--device", "sim:gfx1100:24G,cpu", "--layer-split", "4,4", "--expert-cache",
                            "30%", "-t", "2", "-p", "20", "-n", "3", "-r", "1", "--trace", path)
    assert code == 0, err
    events = json.load(open(path))["traceEvents"]
    os.remove(path)
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["ph"] == "M"}
    lanes = {}
    for e in events:
        if e["ph"] == "X":
            lanes.setdefault((names[e["pid"], None], names[e["pid"], e["tid"]]), []).append(e)
    assert {("sim:0", "launches"), ("sim:0", "copies"), ("sim:0", "host"), ("sim:0", "worker 0"), ("cpu", "worker 0"),
            ("cpu", "worker 1")} <= set(lanes), set(lanes)
    for lane, spans in lanes.items():
        spans.sort(key=lambda e: e["ts"])
        for a, b in zip(spans, spans[1:]):  # nothing in a lane runs while something else does; a microsecond is rounding
            assert b["ts"] >= a["ts"] + a["dur"] - 1, (lane, a, b)
    refused(1, ["bench", "-m", DEMO, "--device", "cpu", "-p", "8", "-n", "0", "-r", "1", "--trace"], "--trace")


@test
def bench_answers_without_and_with_drafts():
    call = ["bench", "-m", DEMO, "--device", "cpu", "--mtp", "auto", "--spec", "2", "-p", "0", "-n", "24", "-r", "1"]
    code, out, err = strata(*call)
    rows = [[cell.strip() for cell in line.split("|")] for line in out.decode().splitlines() if line.startswith(("| greedy", "| sampled"))]
    assert code == 0 and [row[2] for row in rows] == ["none", "as many as pay", "always 2"] * 2, (out, err)
    assert all(row[5] == "1.00" and row[8] == "1.00" for row in rows[::3]) and all(int(row[6]) > 0 for row in rows[2::3]), rows
    code, out, _ = strata(*call, "-o", "json")
    tests = [t for t in json.loads(out) if t["test"] == "drafts"]
    assert code == 0 and len(tests) == 6 and all(t["accepted"] <= t["drafted"] and t["avg_ts"] > 0 for t in tests), tests


@test
def a_full_disk_leaves_no_half_written_file():
    if not os.path.exists("/dev/full"):
        raise Skip("no /dev/full")
    code, _, err = run("/bin/sh", "-c", f'exec "{STRATA}" tokenize -m "{MODEL}" -p hello > /dev/full')
    assert code == 1 and err.count(b"\n") == 1, err


@test
def files_of_other_kinds_are_not_replaced_by_a_session():
    path = file("diary.txt", b"dear diary")
    call = ["run", "-m", MODEL, "-p", "hi", "-n", "2", "--session"]
    refused(1, [*call, path], "not a session file")
    with open(path, "rb") as f:
        assert f.read() == b"dear diary"
    refused(1, [*call, "/dev/full"], "/dev/full", "not a regular file")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    refused(1, [*call, "/nonexistent/x"], "/nonexistent/x")
    refused(1, [*call, ""], "without a name")
    pipe = os.path.join(FOLDER.name, "pipe")
    os.mkfifo(pipe)
    refused(1, [*call, pipe], "not a regular file")
    refused(1, ["inspect", pipe], "not a regular file")
    os.remove(pipe)


@test
def output_that_cannot_be_written_is_an_error():
    for call in (["inspect", MODEL], ["plan", "-m", MODEL], ["--help"], ["--version"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([STRATA, *call], stdout=full, stderr=subprocess.PIPE, env={**os.environ, "STRATA_DEVICE": "cpu"})
        assert done.returncode == 1 and b"standard output" in done.stderr, (call, done)


@test
def token_ids_outside_the_vocabulary_are_refused():
    refused(1, ["tokenize", "-m", MODEL, "--ids", file("ids.txt", b"99999999")], "99999999", "vocabulary")


@test
def a_file_that_cannot_be_written_is_named_as_it_was_given():
    refused(1, ["run", "-m", MODEL, "-p", "hi", "-n", "1", "--session", "/nonexistent/state"], "strata: /nonexistent/state: cannot create a file")


main()
