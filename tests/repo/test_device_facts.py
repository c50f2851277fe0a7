"""Nothing is known about "the GPU" in general: no vendor's name outside the files that own it, and no variable that outlives
a function could hold a fact about a device."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tap import BUILD, SOURCE, Skip, main, test  # noqa: E402

# Files that may name vendors: their own runtimes, the image chooser, the kernels' dialect, and the command line.
OWNERS = re.compile(r"src/runtime/(cuda|hip|hip_functions|opencl|opencl_functions|images)\.[ch]$|src/kernel/gpu/|src/cli/|src/serve/")
VENDOR = re.compile(
    r"\b(cuda|nvidia|geforce|h[12]00|amd|radeon|rocm|hip|hsa|kfd|intel|opencl|pocl|sm_\d+a?|gfx[0-9a-f]{3,4}|compute_\d+)\b"
    r"|__NVPTX__|__AMDGCN__|__CUDA|__HIP", re.I)
# Which simulated work-item a thread is running: the place of the kernels' own "who am I", not a fact about a device.
WORK_ITEMS = {"st_item_now"}
# Object files of the parts that must not hold facts about devices in variables.
OBJECTS = re.compile(r"(meson-generated_\.\._)?src_(runtime|engine|model|kernel)_")


def code(path):
    """The file without comments."""
    with open(os.path.join(SOURCE, path), encoding="utf-8") as f:
        text = f.read()
    return re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)


def sources():
    for base, _, files in os.walk(os.path.join(SOURCE, "src")):
        for name in sorted(files):
            if name.endswith((".c", ".h")):
                yield os.path.relpath(os.path.join(base, name), SOURCE)


@test
def comments_of_the_parts_above_runtimes_name_no_vendor():
    """Runtimes may show names of devices as examples; the language of the kernels has a vendor-free name."""
    for path in sources():
        if OWNERS.match(path) or path.startswith("src/runtime/"):
            continue
        with open(os.path.join(SOURCE, path), encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                found = VENDOR.search(re.sub(r"OpenCL C\b|__OPENCL_C_VERSION__", "", line))
                assert not found, f"{path}:{number}: {found.group(0)}"


@test
def vendors_are_named_only_where_they_are_known():
    for path in sources():
        if OWNERS.match(path):
            continue
        for number, line in enumerate(code(path).splitlines(), 1):
            found = VENDOR.search(line)
            assert not found, f"{path}:{number}: {found.group(0)}"


@test
def no_variable_outlives_its_function():
    library = os.path.join(BUILD, "libstrata-core.a")
    try:
        done = subprocess.run(["nm", "-A", "-f", "sysv", library], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Skip("no nm") from None
    if done.returncode:
        raise Skip("no built library")
    seen = 0
    for line in done.stdout.splitlines():
        head, _, rest = line.partition("|")
        fields = [f.strip() for f in rest.split("|")]
        places = head.split(":")
        if len(fields) < 6 or len(places) < 3 or not OBJECTS.match(os.path.basename(places[-2])):
            continue
        seen += 1
        section, name = fields[5], places[-1].strip()
        writable = re.match(r"\.(data|bss|tdata|tbss)\b", section) and not section.startswith(".data.rel.ro")
        instrumented = name in WORK_ITEMS or name.startswith(("__", ".L", "DW."))
        assert instrumented or not writable, f"{os.path.basename(places[-2])}: {name} in {section}"
    assert seen > 100, "the library's symbols were not read"


main()
