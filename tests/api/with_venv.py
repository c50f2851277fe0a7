"""Runs a Python program with the packages of requirements.txt: with_venv.py FOLDER PROGRAM [argument...].

The packages are installed into FOLDER on first use, and again when the list has changed. Runs at the same time wait for
each other."""
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys


def main():
    folder, program = sys.argv[1], sys.argv[2:]
    wanted = os.path.join(os.path.dirname(os.path.abspath(__file__)), "requirements.txt")
    with open(wanted, "rb") as f:
        state = hashlib.sha256(f.read() + sys.version.encode()).hexdigest()
    mark = os.path.join(folder, "installed")
    python = os.path.join(folder, "bin", "python3")
    os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
    with open(folder + ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with open(mark, encoding="ascii") as f:
                ready = f.read() == state
        except OSError:
            ready = False
        if not ready:
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, stdout=sys.stderr)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:",
                            "--no-deps", "-r", wanted], check=True, stdout=sys.stderr)
            with open(mark, "w", encoding="ascii") as f:
                f.write(state)
    os.execv(python, [python, *program])


main()
