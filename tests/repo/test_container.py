"""What the image is made from is there: files, build targets, groups of packages, names of options. Nothing is built."""
import os
import re
import shlex
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tap import SOURCE, Skip, main, test  # noqa: E402


def text(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as f:
        return f.read()


def tracked(path):
    done = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "--", path], cwd=SOURCE, capture_output=True, check=False)
    if done.returncode:
        raise Skip("not a git working tree")
    return done.stdout.decode().split()


def stages():
    """Of each stage the (instruction, rest) pairs, lines joined."""
    out = []
    lines = [line for line in text("packaging", "Dockerfile").splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        word, rest = line.split(None, 1)
        if word == "FROM":
            out.append([])
        if out:
            out[-1].append((word, rest))
    return out


def of(stage, *words):
    return [rest for word, rest in stage if word in words]


BUILD, RUN = stages()


@test
def what_is_copied_is_in_the_repository_and_all_that_the_build_reads():
    copied = []
    for rest in of(BUILD, "COPY"):
        *sources, _ = shlex.split(rest)
        for source in sources:
            assert tracked(source), f"COPY {source}: not in the repository"
            copied.append(source)
    for folder in re.findall(r"subdir\('([^']+)'\)", text("meson.build")):
        assert folder.split("/")[0] in copied, f"meson.build reads {folder}"
    assert {"meson.build", "meson_options.txt", "Makefile", "scripts"} <= set(copied), copied
    for rest in of(BUILD, "COPY"):
        *sources, to = shlex.split(rest)
        for source in sources:
            wanted = os.path.dirname(source) if to.endswith("/") and "/" in source else source if not to.endswith("/") else "."
            assert os.path.normpath(to) == os.path.normpath(wanted or "."), f"COPY {rest}: to another place than it is read from"


@test
def the_build_is_the_one_of_the_makefile():
    commands = " && ".join(of(BUILD, "RUN"))
    group = re.search(r"sh scripts/deps\.sh (\w+)", commands)
    assert group and f"group_{group[1]}()" in text("scripts", "deps.sh"), commands
    target = re.search(r'make (\w+) MESON_FLAGS="-D(\w+)=', commands)
    assert target and re.search(rf"^{target[1]}:.*\n\t.*MESON_FLAGS.*scripts/portable\.sh", text("Makefile"), re.M), commands
    assert f"option('{target[2]}'" in text("meson_options.txt") and "MESON_FLAGS" in text("scripts", "portable.sh")
    folder = re.search(r"^dir=(\S+)", text("scripts", "portable.sh"), re.M)[1]
    programs = re.findall(r"executable\('([\w-]+)'", text("src", "cli", "meson.build"))
    where = dict(BUILD)["WORKDIR"]
    taken = [rest for rest in of(RUN, "COPY") if rest.startswith("--from=build ")]
    assert len(taken) == 1
    _, *sources, to = shlex.split(taken[0])
    assert sorted(sources) == sorted(f"{where}/{folder}/src/cli/{p}" for p in programs) and to == "/usr/local/bin/", taken


@test
def the_program_runs_as_nobody_in_particular_with_options_that_it_has():
    words = [word for word, _ in RUN]
    user = of(RUN, "USER")[-1]
    assert user not in ("root", "0") and words.index("USER") > max(i for i, w in enumerate(words) if w in ("RUN", "COPY"))
    assert re.search(rf"useradd .*\b{user}$", of(RUN, "RUN")[-1].strip())
    sources = text("src", "cli", "serve_options.c") + text("src", "cli", "cmd_serve.c")
    names = re.findall(r"\bSTRATA_(\w+)=", " ".join(of(RUN, "ENV")))
    assert {"HOST", "PORT"} <= set(names)
    for name in names:
        assert f'("{name.lower().replace("_", "-")}"' in sources, f"STRATA_{name} is no option of strata serve"
    assert of(RUN, "ENTRYPOINT") == ['["strata"]'] and of(RUN, "CMD") == ['["serve"]']
    port = re.search(r"STRATA_PORT=(\d+)", " ".join(of(RUN, "ENV")))[1]
    assert of(RUN, "EXPOSE") == [port]
    path = re.search(r"\$STRATA_PORT(/\w+)", of(RUN, "HEALTHCHECK")[0])[1]
    assert re.search(rf'\{{"GET", "{path}", \w+, 0, true\}}', text("src", "serve", "routes.c")), "asked without a key"
    assert '("tls-cert"' in sources and "STRATA_TLS_CERT" in of(RUN, "HEALTHCHECK")[0]


@test
def the_document_builds_this_image_and_names_its_arguments():
    said = text("docs", "server.md")
    assert "docker build -t strata -f packaging/Dockerfile ." in said
    named = set(re.findall(r"--build-arg (\w+)=", said))
    arguments = set(re.findall(r"^ARG (\w+)", text("packaging", "Dockerfile"), re.M))
    assert named == arguments, (named, arguments)
    for name in re.findall(r"-e STRATA_(\w+)=", said):
        options = "".join(text("src", "cli", f) for f in ("serve_options.c", "cmd_serve.c", "common.h", "options.h"))
        assert f'("{name.lower().replace("_", "-")}"' in options, f"STRATA_{name}"


main()
