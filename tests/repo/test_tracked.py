"""What may be committed: sizes of the tracked files, lengths of source files, and no paths of somebody's machine."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tap import SOURCE, Skip, main, test  # noqa: E402

MB = 1000 * 1000


def tracked():
    """Paths of all tracked files that exist in the working tree."""
    done = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=SOURCE, capture_output=True, check=False)
    if done.returncode:
        raise Skip("not a git working tree")
    paths = [p for p in done.stdout.decode().split("\0") if p]
    return [p for p in paths if os.path.isfile(os.path.join(SOURCE, p))]


def size(path):
    return os.path.getsize(os.path.join(SOURCE, path))


def text(path):
    with open(os.path.join(SOURCE, path), encoding="utf-8") as f:
        return f.read()


def kind(path):
    if path.startswith("models/") and path.endswith(".gguf"):
        return path
    return "fixtures" if path.endswith((".xz", ".zst")) else "everything else"


@test
def tracked_files_stay_within_their_shares():
    limits = {"models/demo.gguf": 40 * MB, "models/demo-mtp.gguf": 3.5 * MB, "fixtures": 9.2 * MB, "everything else": 6 * MB}
    totals = {}
    for path in tracked():
        totals[kind(path)] = totals.get(kind(path), 0) + size(path)
    for name, total in totals.items():
        assert name in limits, f"{name}: a model that has no share"
        assert total <= limits[name], f"{name}: {total} bytes, at most {limits[name]:.0f}"
    assert sum(totals.values()) < 56 << 20, totals


@test
def source_files_stay_short_and_say_what_they_own():
    for path in tracked():
        if re.match(r"(src|include|tests)/.*\.[ch]$", path):
            content = text(path)
            assert content.count("\n") <= 1200, f"{path}: {content.count(chr(10))} lines"
            assert content.startswith("/*"), f"{path}: the first lines do not say what the file owns"


@test
def no_file_names_a_place_on_somebodys_machine():
    for path in tracked():
        if path.endswith((".c", ".h", ".cl", ".py", ".sh", ".md", ".build", ".txt", ".inc", "Makefile")):
            found = re.search(r"/(?:work|home|Users|root)/[a-z]", text(path))
            assert not found, f"{path}: {found.group(0)}"


main()
