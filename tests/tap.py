"""Minimal test harness for meson's TAP protocol: functions marked with @test run in order and assert what they claim.

A test that needs something that is not there raises Skip with the reason. Nothing of the caller's STRATA_ environment
reaches the programs under test."""
import os
import subprocess
import sys
import traceback

SOURCE = os.environ.get("STRATA_TEST_SOURCE", os.getcwd())
BUILD = os.environ.get("STRATA_TEST_BUILD", os.path.join(SOURCE, "build"))
TESTS = []


class Skip(Exception):
    pass


def test(function):
    TESTS.append(function)
    return function


def run(*command, stdin=b"", env=None, timeout=300):
    """Runs a program; (exit code, stdout, stderr) as an int and bytes."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STRATA_")}
    clean.update(env or {})
    done = subprocess.run(command, input=stdin, capture_output=True, env=clean, timeout=timeout, check=False)
    return done.returncode, done.stdout, done.stderr


def main():
    print(f"1..{len(TESTS)}")
    failed = 0
    for number, function in enumerate(TESTS, 1):
        name = function.__name__
        try:
            function()
            print(f"ok {number} - {name}")
        except Skip as reason:
            print(f"ok {number} - {name} # SKIP {reason}")
        except Exception:  # every kind of failure is a failed test, the others still run
            failed += 1
            print(f"not ok {number} - {name}")
            for line in traceback.format_exc().splitlines():
                print(f"# {line}")
        sys.stdout.flush()
    sys.exit(1 if failed else 0)
