#!/usr/bin/env python3
"""Counts subtests in meson test logs: count.py [--passed N] [--failed N] LABEL=testlog.json...

Each line of a log is one test program; its TAP lines ("ok", "not ok") are the subtests. A program that printed none,
crashed, ran out of time or returned an error without a "not ok" counts as one. The last line of output is
"N passed, N failed"; the exit status is 0 only when something passed and nothing failed."""
import argparse
import json
import os
import re
import sys

LINE = re.compile(r"^(not ok|ok)\b(.*)$")


def count(test):
    """(passed, failed, skipped) of one program."""
    passed = failed = skipped = 0
    for line in (test.get("stdout") or "").splitlines():
        match = LINE.match(line)
        if not match:
            continue
        if re.search(r"#\s*skip", match.group(2), re.IGNORECASE):
            skipped += 1
        elif match.group(1) == "ok":
            passed += 1
        else:
            failed += 1
    good = test["result"] in ("OK", "SKIP", "EXPECTEDFAIL")
    if test["result"] == "SKIP" and not passed and not failed:
        skipped = max(skipped, 1)
    elif good and not passed and not failed and not skipped:
        passed = 1
    elif not good and not failed:
        failed = 1
    return passed, failed, skipped


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--passed", type=int, default=0)
    parser.add_argument("--failed", type=int, default=0)
    parser.add_argument("logs", nargs="*")
    args = parser.parse_args()
    total = [args.passed, args.failed, 0]
    for item in args.logs:
        label, _, path = item.partition("=")
        if not os.path.exists(path):
            print(f"{label}: no test log at {path}")
            total[1] += 1
            continue
        with open(path, encoding="utf-8", errors="replace") as log:
            for line in log:
                test = json.loads(line)
                one = count(test)
                total = [a + b for a, b in zip(total, one)]
                if one[1]:
                    print(f"failed in {label}: {test['name']} ({test['result']})")
    if total[2]:
        print(f"skipped: {total[2]}")
    print(f"{total[0]} passed, {total[1]} failed")
    return 0 if total[0] and not total[1] else 1


if __name__ == "__main__":
    sys.exit(main())
