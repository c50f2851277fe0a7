"""strata-device and strata devices: what they print and the exit codes they end with. The programs are the arguments."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tap import main, run, test  # noqa: E402

DEVICE, STRATA = sys.argv[1], sys.argv[2]
NOWHERE = ("--cuda-library", "/nonexistent/cuda", "--hip-library", "/nonexistent/hip", "--opencl-library", "/nonexistent/cl")


@test
def a_machine_without_drivers_has_a_cpu_and_a_reason_for_each_runtime():
    for command in ((DEVICE, "--list-devices"), (STRATA, "devices")):
        code, out, err = run(*command, *NOWHERE)
        text = out.decode()
        assert code == 0, err
        assert "yes  cpu" in text, text
        for runtime in ("cuda", "hip", "opencl"):
            assert f"{runtime}: /nonexistent/" in text, text


@test
def the_list_is_also_json():
    code, out, err = run(DEVICE, "--list-devices", "--json", "--device", "sim:gfx1100:2G:pci=41.00.0,cpu", *NOWHERE)
    assert code == 0, err
    found = json.loads(out)
    names = {d["name"]: d for d in found["devices"]}
    assert names["sim:0"]["used"] and names["cpu"]["used"], found
    assert names["sim:0"]["arch"] == "gfx1100" and names["sim:0"]["memory"] == 2 << 30, found
    assert names["sim:0"]["pci"] == "0000:41:00.0" and names["sim:0"]["simulated"], found
    assert [r["open"] for r in found["runtimes"] if r["name"] == "cuda"] == [False], found


@test
def a_named_device_that_cannot_be_used_is_refused_and_the_list_still_shown():
    code, out, err = run(DEVICE, "--list-devices", "--device", "cuda:0", *NOWHERE)
    assert code == 3, code
    assert b"cuda:0" in err and b"cpu" in out, (out, err)


@test
def a_list_that_names_no_device_ends_with_the_code_of_devices():
    code, _, err = run(DEVICE, "--selftest", "--device", "gpu7", *NOWHERE)
    assert code == 3 and b"gpu7" in err and b"cuda:N" in err, err
    code, _, err = run(DEVICE, "--selftest", "--device", "sim:gfx1100:frog", *NOWHERE)
    assert code == 3 and b"frog" in err, err


@test
def the_help_of_a_program_of_its_own_begins_with_its_name():
    code, out, _ = run(DEVICE, "--help")
    assert code == 0 and out.startswith(b"usage: strata-device ("), out
    code, out, _ = run(STRATA, "devices", "--help")
    assert code == 0 and out.startswith(b"usage: strata devices "), out


@test
def contradictory_calls_are_mistakes_of_the_caller():
    code, _, err = run(DEVICE)
    assert code == 1 and b"--selftest" in err, err
    code, _, err = run(DEVICE, "--list-devices", "--images")
    assert code == 1, err


@test
def images_tell_registers_local_memory_and_lanes():
    code, out, err = run(DEVICE, "--images", "--json")
    assert code == 0, err
    for kernel in json.loads(out):
        # what every supported card gives to a group, and what sm_90 does
        assert kernel["lanes"] in (32, 64) and kernel["local"] <= (232448 if kernel["arch"] == "sm_90a" else 65536), kernel
        assert kernel["arch"].startswith("sm_") or kernel["registers"] >= 0, kernel


@test
def simulated_devices_pass_the_self_test_side_by_side():
    code, out, err = run(DEVICE, "--selftest", "--seed", "5", "--device", "sim:gfx1100:1G,sim:sm_89:1G", "--check", "runtime",
                         *NOWHERE, timeout=600)
    text = out.decode()
    assert code == 0, text + err.decode()
    assert "2 devices open in one process, seed 5" in text and "copy sim:0 to sim:1" in text, text
    assert text.rstrip().endswith("all right"), text


@test
def no_device_to_test_is_said():
    code, _, err = run(DEVICE, "--selftest", "--device", "cpu", *NOWHERE)
    assert code == 1 and b"no device to test" in err, err


main()
