#!/usr/bin/env python3
"""Measures how speed grows or falls with context, window, experts on the device and clients; draw.py makes pictures of it.

    measure.py STRATA MODEL.gguf OUT.json [--device LIST] [-t N] [--only context,prompt,window,experts,clients]
               [--contexts N,...] [--prompts N,...] [--windows N,...] [--shares N,...] [--clients N,...] [-n N] [-r N]

Every number is one run of "strata bench"; nothing is computed from others. A series that the machine cannot have (a context
that does not fit, experts without a device) stands in OUT.json with the message instead of numbers. OUT.json is written
after each series, so that what was measured stays when the rest is cut off.
"""
import argparse
import json
import re
import subprocess
import sys


def numbers(text):
    return [int(v) for v in text.split(",")]


def bench(a, *more):
    """The results of a call, as strata bench prints them with -o json."""
    call = [a.strata, "bench", "-m", a.model, "--device", a.device, "-o", "json", *a.threads, *map(str, more)]
    print(" ".join(call), file=sys.stderr, flush=True)
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout)


def points(results, x):
    return [{"x": x(t), "rate": t["avg_ts"], "deviation": t["stddev_ts"]} for t in results]


def context(a):
    """Tokens generated behind so many others."""
    return points(bench(a, "-p", 0, "-n", a.generate, "-r", a.repetitions, "-d", ",".join(map(str, a.contexts))), lambda t: t["n_depth"])


def prompt(a):
    """Prompts of so many tokens, from the first to the last."""
    return points(bench(a, "-n", 0, "-r", a.repetitions, "-p", ",".join(map(str, a.prompts))), lambda t: t["n_prompt"])


def window(a):
    """Passes of so many rows: tokens per second if all rows count."""
    return points(bench(a, "-n", 0, "-r", 10 * a.repetitions, "-p", ",".join(map(str, a.windows))), lambda t: t["n_prompt"])


def experts(a):
    """Tokens generated with so many percent of the experts in the device's memory."""
    if a.device == "cpu":
        raise RuntimeError("the CPU keeps all experts in host memory")
    out = []
    for share in a.shares:
        out += points(bench(a, "-p", 0, "-n", a.generate, "-r", a.repetitions, "--expert-cache", f"{share}%"), lambda t, s=share: s)
    return out


def clients(a):
    """Tokens per second of so many conversations at once, all together. The table is Markdown only."""
    call = [a.strata, "bench", "-m", a.model, "--device", a.device, *a.threads, "-p", "0", "-n", str(a.generate), "-r",
            str(a.repetitions), "--clients", ",".join(map(str, a.clients))]
    print(" ".join(call), file=sys.stderr, flush=True)
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    rows = re.findall(r"^\| (\d+) \| \d+ \| ([\d.]+) \|", done.stdout, re.M)
    return [{"x": int(n), "rate": float(rate), "deviation": 0} for n, rate in rows]


SERIES = {"context": context, "prompt": prompt, "window": window, "experts": experts, "clients": clients}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("strata")
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--device", default="cpu")
    p.add_argument("-t", "--threads", default="")
    p.add_argument("--only", default=",".join(SERIES))
    p.add_argument("--contexts", type=numbers, default=[1024, 4096, 16384, 65536, 131072, 262112])
    p.add_argument("--prompts", type=numbers, default=[1024, 8192, 32768, 131072])
    p.add_argument("--windows", type=numbers, default=[1, 2, 3, 4, 5, 6, 7, 8])
    p.add_argument("--shares", type=numbers, default=[0, 10, 25, 50, 75, 100])
    p.add_argument("--clients", type=numbers, default=[1, 2, 4, 8, 16])
    p.add_argument("-n", "--generate", type=int, default=32)
    p.add_argument("-r", "--repetitions", type=int, default=1)
    p.add_argument("--machine", default="", help="a line about the machine, for the pictures")
    a = p.parse_args()
    a.threads = ["-t", a.threads] if a.threads else []
    out = {"machine": a.machine, "device": a.device, "model": a.model.rsplit("/", 1)[-1], "series": {}}
    for name in a.only.split(","):
        try:
            out["series"][name] = {"points": SERIES[name](a)}
        except RuntimeError as e:
            out["series"][name] = {"failed": str(e)}
            print(f"{name}: {e}", file=sys.stderr, flush=True)
        with open(a.out, "w", encoding="utf-8") as f:
            json.dump(out, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
