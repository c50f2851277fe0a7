"""strata plan and the options that limit it. The program and the demo model are the arguments."""
import json
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tap import main, run, test  # noqa: E402

STRATA, MODEL = sys.argv[1], sys.argv[2]
PAIR = "sim:gfx1100:24G:bw=960G,sim:gfx1201:16G:bw=640G"


def strata(*args):
    code, out, err = run(STRATA, *args)
    return code, out.decode(), err.decode()


def plan(*args):
    code, out, err = strata("plan", "-m", MODEL, "--json", *args)
    assert code == 0, err
    return json.loads(out)


@test
def the_table_names_every_device_with_its_bytes_and_says_what_decides():
    code, out, err = strata("plan", "-m", MODEL, "--device", f"{PAIR},cpu", "--layer-split", "4,3,1")
    assert code == 0 and err == "", err
    lines = out.splitlines()
    for column in ("layers", "weights", "KV", "recurrent", "buffers", "rows", "scratch", "total", "available", "reserve", "taken"):
        assert column in lines[0], lines[0]
    assert lines[1].split()[:3] == ["sim:0", "gfx1100", "0..3"], lines[1]
    assert lines[2].split()[:3] == ["sim:1", "gfx1201", "4..6"], lines[2]
    assert lines[3].split()[:3] == ["cpu", "host", "7..7"], lines[3]
    assert "host memory:" in out and "page-locked" in out and "mapped file" in out, out
    assert "predicted:" in out and "decided by" in out, out


@test
def a_split_or_a_list_that_does_not_add_up_is_refused_by_what_is_wrong():
    for devices, split, code, words in (("sim:gfx1100:24G", "4,4", 1, "'4' is too much for 1 device"), (PAIR, "4,4,x", 1, "'x' is too much for 2 devices"),
                                        (PAIR, "4,3", 1, "gives 7 layers to 2 devices; the model has 8"), (PAIR, "8", 1, "has no number for sim:1"), (PAIR, "8,1", 1, "leaves no layer for sim:1"),
                                        (PAIR, "9,1", 1, "sim:0 needs 1..8 layers"), ("cpu,cpu", "4,4", 3, "cpu: named twice"),
                                        ("cpu,sim:gfx1100:24G,cpu", "auto", 3, "cpu: named twice"), ("auto,auto", "auto", 3, "auto: named twice")):
        got, _, err = strata("plan", "-m", MODEL, "--device", devices, "--layer-split", split)
        assert got == code and words in err and err.count("\n") == 1, (devices, split, got, err)


@test
def a_device_that_changes_nothing_is_left_out_with_the_time_that_the_plan_predicts():
    code, out, _ = strata("plan", "-m", MODEL, "--device", "sim:gfx1100:24G,sim:gfx1100:24G")
    seconds = out[out.index("predicted: "):].split()[1]
    assert code == 0 and f"sim:1 is left out: a token takes {seconds} ms, and no less with it" in out, out


@test
def the_json_form_adds_up():
    p = plan("--device", PAIR, "--layer-split", "5,3", "--kv", "q4", "--prefill", "64", "-c", "1000")
    assert (p["context"], p["kv"], p["prefill"]) == (1000, "q4", 64), p
    first, last = p["stages"]
    assert (first["first_layer"], first["last_layer"], last["first_layer"], last["last_layer"]) == (0, 4, 5, 7), p
    for s in p["stages"]:
        parts = [s[k] for k in ("weights", "buffers", "rows", "scratch")] + [s["kv"] + s["recurrent"]]
        assert sum((n + 255) // 256 * 256 for n in parts) == s["total"], s
        m = s["memory"]
        assert m["free"] == m["total"] - m["taken"] and m["available"] == m["free"] - m["reserve"], m
    between = p["host"]["between_stages"]
    assert between > 0 and p["host"]["page_locked"] == first["page_locked"] + last["page_locked"] + between, p
    assert p["host"]["file"] == os.path.getsize(MODEL), p
    time = sum(s["token"][k] for s in p["stages"] for k in ("memory_seconds", "launch_seconds", "link_seconds"))
    assert abs(time - p["seconds_per_token"]) < 1e-6 * time, p
    # what a simulated device states is what it is predicted with
    assert abs(first["token"]["memory_seconds"] - first["token"]["bytes_read"] / 960e9) < 1e-12, p
    assert first["token"]["memory_rate"] == first["token"]["expert_rate"] == 960e9, p


@test
def a_model_larger_than_the_card_adds_up():
    with tempfile.TemporaryDirectory() as folder:
        full = os.path.join(folder, "full.gguf")
        code, _, err = strata("synth", "-o", full, "--header-only")
        assert code == 0, err
        call = ("-m", full, "--device", "sim:gfx1100:12G", "--ram-limit", "32G")
        code, table, err = strata("plan", *call)
        assert code == 0, err
        code, out, err = strata("plan", "--json", *call)
        assert code == 0, err
    p = json.loads(out)
    s, = p["stages"]
    cache, host = s["expert_cache"], p["host"]
    parts = [s[k] for k in ("weights", "slots", "prompts", "buffers", "experts", "rows", "scratch")]
    parts.append(s["kv"] + s["recurrent"])
    assert sum((n + 255) // 256 * 256 for n in parts) == s["total"] <= s["memory"]["available"], s
    # To the byte: not one more expert fits.
    slot = cache["all"] // (48 * 512)
    assert s["slots"] == cache["slots"] and s["memory"]["available"] - s["total"] < slot, s
    assert cache["slots"] % slot == 0 and abs(cache["hit"] - cache["slots"] / cache["all"]) < 1e-9, cache
    assert cache["all"] - cache["slots"] <= cache["arena"] + cache["in_file"], cache
    assert host["total"] <= 32 << 30 and host["expert_arena"] == cache["arena"], host
    sums = ("page_locked", "between_stages", "kv", "recurrent", "buffers", "workers", "passes", "kept", "expert_arena", "expert_work")
    assert sum(host[k] for k in sums) == host["total"], host
    names, row = table.splitlines()[0].split()[1:], table.splitlines()[1].split()[2:]
    mib = dict(zip(names, row))
    columns = ("weights", "slots", "prompts", "KV", "recurrent", "buffers", "experts", "rows", "scratch")
    assert abs(sum(float(mib[c]) for c in columns) - float(mib["total"])) < 0.5, table
    line = next(x for x in table.splitlines() if x.startswith("host memory:"))
    numbers = [float(x) for x in re.findall(r"[0-9]+\.[0-9]", line.split(", of ")[0])]
    assert abs(sum(numbers[1:]) - numbers[0]) < 0.8, line
    token = s["token"]
    time = sum(token[k] for k in ("memory_seconds", "miss_seconds", "launch_seconds", "link_seconds"))
    assert abs(time - p["seconds_per_token"]) < 1e-6 * time and token["launch_seconds"] > 0, p
    # The CPU and the link are done at the same time, in every layer, and the host's part comes on top.
    missed = (1 - cache["hit"]) * token["expert_bytes"] / cache["layers"]
    alone = cache["cpu_seconds"] + missed / cache["cpu_rate"]
    over = (alone - cache["link_seconds"]) / (1 / cache["cpu_rate"] + 1 / cache["link_rate"])
    both = alone if over < 0 else cache["link_seconds"] + min(over, missed) / cache["link_rate"]
    wanted = cache["layers"] * (cache["answer_seconds"] + both)
    assert cache["layers"] == 48 and abs(token["miss_seconds"] - wanted) < 1e-6 * wanted, (p, wanted)
    # The card reads what is in its slots and all that is no expert.
    read = token["bytes_read"] - (1 - cache["hit"]) * token["expert_bytes"]
    assert abs(token["memory_seconds"] - read / token["memory_rate"]) < 1e-6 * token["memory_seconds"], p


@test
def a_limit_holds_to_the_byte_and_a_refusal_has_both_numbers():
    fixed = ("--device", "sim:gfx1100:24G", "--prefill", "64", "-c", "500", "--expert-cache", "100%")
    p = plan(*fixed)
    total, host = p["stages"][0]["total"], p["host"]["total"]
    assert plan(*fixed, "--vram-limit", str(total), "--ram-limit", str(host))["stages"][0]["total"] == total
    for command in (("plan",), ("run", "-p", "x", "-n", "1")):
        call = (*command, "-m", MODEL, *fixed)
        code, out, err = strata(*call, "--vram-limit", f"sim:0={total - 1}")
        assert code == 3 and out == "" and err.count("\n") == 1, err
        assert "sim:0" in err and f"{total} bytes" in err and f"{total - 1} may" in err, err
        code, out, err = strata(*call, "--ram-limit", str(host - 1))
        assert code == 3 and f"{host} bytes" in err and f"{host - 1} may" in err, err


@test
def a_reserve_stays_free_on_every_device_and_a_limit_is_what_it_leaves():
    p = plan("--device", "sim:gfx1100:24G,sim:sm_89:8G", "--layer-split", "4,4", "--vram-reserve", "2G")
    for stage, memory in zip(p["stages"], (24, 8)):
        assert stage["memory"]["reserve"] == 2 << 30 and stage["memory"]["available"] == (memory - 2) << 30, stage


@test
def chunks_are_automatic_or_exactly_as_said():
    assert plan("--device", "sim:gfx1100:24G")["prefill"] == 8192
    assert plan("--device", "sim:gfx1100:24G", "--prefill", "auto", "-c", "700")["prefill"] == 700
    assert plan("--device", "sim:gfx1100:24G", "--prefill", "48")["prefill"] == 48
    for wrong in ("0", "9000", "many"):
        code, _, err = strata("plan", "-m", MODEL, "--prefill", wrong)
        assert code == 1 and "--prefill" in err, err


@test
def every_type_of_keys_and_values_is_counted_and_works_on_a_device():
    size, text = {}, {}
    for kv in ("f32", "f16", "int8", "q4"):
        size[kv] = plan("--device", "sim:gfx1100:24G", "--kv", kv, "-c", "512")["stages"][0]["kv"]
        for device in ("cpu", "sim:gfx1100:24G"):
            call = ("run", "-m", MODEL, "-p", "What is gimp?", "--temp", "0", "-n", "6", "-c", "128", "--kv", kv)
            code, text[kv, device], err = strata(*call, "--device", device)
            assert code == 0, err
        assert text[kv, "cpu"] == text[kv, "sim:gfx1100:24G"], (kv, text)
    # An element takes 4, 2, 1 + 4/64 and 1/2 + 4/32 bytes; index keys stay floats.
    elements = (size["f32"] - size["f16"]) // 2
    index = size["f32"] - 4 * elements
    assert index > 0 and size["int8"] == index + elements * 17 // 16 and size["q4"] == index + elements * 5 // 8, size


@test
def a_slow_device_is_left_out_by_name():
    p = plan("--device", "sim:gfx1030:8G:bw=100G,sim:gfx1100:8G:bw=960G")
    assert [s["name"] for s in p["stages"]] == ["sim:1"], p
    assert len(p["left_out"]) == 1 and p["left_out"][0].startswith("sim:0 is left out: a token takes"), p


@test
def without_a_list_every_gpu_and_the_cpu_are_looked_at():
    code, out, err = strata("devices", "--json")
    assert code == 0, err
    used = {d["name"] for d in json.loads(out)["devices"] if d["used"]}
    for more in ((), ("--device", "auto")):
        names = [s["name"] for s in plan(*more)["stages"]]
        assert names and set(names) <= used | {"cpu"}, (names, used)
        assert used != {"cpu"} or names == ["cpu"], (names, used)


@test
def the_start_says_where_the_model_lies_and_the_text_is_that_of_the_cpu():
    call = ("run", "-m", MODEL, "-p", "What is gimp?", "--temp", "0", "-n", "12", "-c", "256")
    code, want, err = strata(*call, "--device", "cpu")
    assert code == 0 and "layers" not in err, err
    code, out, err = strata(*call, "--device", PAIR, "--layer-split", "auto")
    assert code == 0 and out == want, (out, want, err)
    assert "sim:0 (gfx1100): layers 0..7" in err and "predicted:" in err and "sim:1 is left out" in err, err
    code, out, err = strata(*call, "--device", PAIR, "--layer-split", "3,5", "--json")
    assert code == 0 and json.loads(out)["text"] + "\n" == want and "layers" not in err, (out, err)


@test
def a_device_list_that_cannot_be_used_ends_with_the_code_of_devices():
    for wrong, word in (("gpu7", "gpu7"), ("sim:gfx1100:frog", "frog"), ("sim:gfx1100:images=sm_80", "gfx1100"),
                        ("sim:gfx1100:lacks=st_qsa_heads", "st_qsa_heads")):
        for command in ("plan", "bench"):
            code, out, err = strata(command, "-m", MODEL, "--device", wrong)
            assert code == 3 and out == "" and word in err and err.count("\n") == 1, (wrong, code, err)


main()
