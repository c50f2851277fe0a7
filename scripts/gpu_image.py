#!/usr/bin/env python3
"""Compiles one OpenCL C file for one GPU architecture into a compressed image.

    gpu_image.py --arch sm_80|gfx1100|gfx11-generic|opencl --source FILE.cl --out FILE.zst --depfile FILE.d [--headers FILE]

sm_*: PTX text, with .reqntid written into every entry and local memory above 48 KB turned into dynamic local memory; from sm_90
on an entry waits for the kernels before it, so that it may be launched while they run (overlapped);
gfx*: an AMD code object; opencl: the source text itself with its includes put in, for a driver to compile; of its kernels
only those count that are asked for with -DST_WANTS_<name>. It is packed with --headers as its dictionary, the text that
most sources have in common.
The compilers are taken from --clang and --zstd. Nothing but those and Python's own library is needed.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

# Lowest PTX version that the target and the instructions used (sm_75: mma, 6.5) allow, so that older drivers load the image.
PTX_VERSIONS = {'sm_75': '65', 'sm_80': '70', 'sm_86': '71', 'sm_89': '78', 'sm_90': '78', 'sm_90a': '80'}
STATIC_LOCAL_LIMIT = 48 * 1024

COMMON = ['-x', 'cl', '-cl-std=CL3.0', '-Xclang', '-finclude-default-header', '-O3', '-cl-uniform-work-group-size',
          '-ffp-contract=off', '-cl-fp32-correctly-rounded-divide-sqrt', '-Wall', '-Wextra', '-Werror',
          '-Wno-unused-function', '-Wno-unused-command-line-argument']


def fail(text):
    sys.exit('gpu_image.py: ' + text)


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        fail('%s\n%s' % (' '.join(command), done.stdout))
    if done.stdout.strip():
        sys.stderr.write(done.stdout)


def group_sizes(ir):
    """Kernel name -> (x, y, z, groups of a unit or None) from the metadata of the LLVM module; every kernel must state its size."""
    nodes = dict(re.findall(r'^!(\d+) = !\{(i32 \d+, i32 \d+, i32 \d+)\}$', ir, re.M))
    sizes = {}
    for line in ir.splitlines():
        if not line.startswith('define') or '!kernel_arg_addr_space' not in line:
            continue
        name = re.search(r'@"?([\w$.]+)"?\(', line).group(1)
        node = re.search(r'!reqd_work_group_size !(\d+)', line)
        if not node:
            fail('kernel %s has no reqd_work_group_size' % name)
        sizes[name] = tuple(int(n) for n in re.findall(r'i32 (\d+)', nodes[node.group(1)]))
        hint = re.search(r'!work_group_size_hint !(\d+)', line)
        groups = [int(n) for n in re.findall(r'i32 (\d+)', nodes[hint.group(1)])][2] if hint else None
        sizes[name] += (groups,)
    if not sizes:
        fail('no kernel in the module')
    return sizes


def overlapped(piece):
    """The entry as one that may start while the kernel ahead of it runs: it lets the next one start and waits until the one ahead is
    complete, first of all, unless the source has a wait of its own (st_await_earlier). Loads must not be of the kind that may
    take bytes from before the wait."""
    piece = piece.replace('ld.global.nc', 'ld.global')
    if 'griddepcontrol.wait;' in piece:
        return piece
    first = re.search(r'^\{\n(\s*\.(reg|local|shared|loc|pragma)[^\n]*\n|\s*\n)*', piece, re.M).end()
    return piece[:first] + '\tgriddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;\n' + piece[first:]


def finish_ptx(text, arch, version, sizes):
    """Checks the head, adds .reqntid, moves large local arrays to dynamic local memory, and makes entries overlapped."""
    wanted = '%s.%s' % (version[:-1], version[-1])
    head = re.search(r'^\.version (\S+)\n\.target ([^\n]+)\n', text, re.M)
    if not head or head.group(1) != wanted or head.group(2).split(',')[0].strip() != arch:
        fail('the compiler wrote %s instead of .version %s, .target %s'
             % (repr(head.group(0)) if head else 'no head', wanted, arch))
    text = re.sub(r'^(\s*//.*)?\n', '', text, flags=re.M)
    text = re.sub(r'[ \t]+//[^\n]*$', '', text, flags=re.M)
    seen = set()
    out = []
    arrays = []  # module-scope declarations of dynamic local memory
    pieces = re.split(r'(^\.visible \.entry .*?^\}\n)', text, flags=re.M | re.S)
    for piece in pieces:
        entry = re.match(r'\.visible \.entry ([\w$]+)\(', piece)
        if not entry:
            out.append(piece)
            continue
        name = entry.group(1)
        if name not in sizes:
            fail('PTX entry %s is not a kernel of the source' % name)
        seen.add(name)
        brace = re.search(r'^\{', piece, re.M)
        if not brace:
            fail('PTX entry %s has no body' % name)
        lines = '.reqntid %d, %d, %d\n' % sizes[name][:3]
        if sizes[name][3]:
            lines += '.minnctapersm %d\n' % sizes[name][3]
        piece = piece[:brace.start()] + lines + piece[brace.start():]
        shared = re.findall(r'^[ \t]*\.shared \.align (\d+) \.b8 ([\w$]+)\[(\d+)\];\n', piece, re.M)
        total = sum(int(size) for _, _, size in shared)
        if total > STATIC_LOCAL_LIMIT:
            if len(shared) != 1:
                fail('kernel %s: local memory above %d bytes must be one array' % (name, STATIC_LOCAL_LIMIT))
            align, array, size = shared[0]
            piece = re.sub(r'^[ \t]*\.shared \.align \d+ \.b8 ' + re.escape(array) + r'\[\d+\];\n', '', piece, flags=re.M)
            # The loader reads this line: how much dynamic local memory a launch of the entry asks for.
            arrays.append('// dynamic_local %s %s\n.extern .shared .align %s .b8 %s[];\n' % (name, size, align, array))
        out.append(overlapped(piece) if int(re.match(r'sm_(\d+)', arch).group(1)) >= 90 else piece)
    if seen != set(sizes):
        fail('kernels without a PTX entry: %s' % ', '.join(sorted(set(sizes) - seen)))
    text = ''.join(out)
    # Local arrays that the compiler left at module scope count for every kernel that names them.
    for size in re.findall(r'^\.(?:visible |weak )?shared [^\n]*\[(\d+)\];', text, re.M):
        if int(size) > STATIC_LOCAL_LIMIT:
            fail('a local array of %s bytes stands at module scope' % size)
    at = re.search(r'^\.address_size 64\n', text, re.M)
    if not at:
        fail('no .address_size 64')
    return text[:at.end()] + ''.join(arrays) + text[at.end():]


def build_nvidia(options, work):
    version = PTX_VERSIONS.get(options.arch)
    if not version:
        fail('unknown architecture %s' % options.arch)
    empty = os.path.join(work, 'no-toolkit')
    os.mkdir(empty)
    ir = os.path.join(work, 'module.ll')
    ptx = os.path.join(work, 'module.ptx')
    target = ['--target=nvptx64-nvidia-cuda', '-march=' + options.arch, '-Xclang',
              '-cl-ext=+__opencl_c_program_scope_global_variables', '--cuda-feature=+ptx' + version,
              '--cuda-path=' + empty]
    run([options.clang] + COMMON + target + ['-I', os.path.dirname(options.source), '-S', '-emit-llvm', '-MD', '-MF',
                                             options.depfile, '-MT', options.out, options.source, '-o', ir])
    run([options.clang, '-x', 'ir', '-O3', '-Xclang', '-disable-llvm-passes', '-Wno-unused-command-line-argument',
         '-Wno-override-module'] + target + ['-S', ir, '-o', ptx])
    with open(ir) as f:
        sizes = group_sizes(f.read())
    with open(ptx) as f:
        text = finish_ptx(f.read(), options.arch, version, sizes)
    return text.encode() + b'\0'


def build_amd(options, work):
    image = os.path.join(work, 'module.co')
    # clang 19 warns about version 6 in a way that cannot be silenced; warnings of the source count in the exact targets.
    generic = options.arch.endswith('-generic')
    version = ['-mcode-object-version=6', '-Wno-error', '-w'] if generic else ['-mcode-object-version=5']
    run([options.clang] + [flag for flag in COMMON if not (generic and flag == '-Werror')] + version +
        ['--target=amdgcn-amd-amdhsa', '-mcpu=' + options.arch, '-nogpulib', '-fuse-ld=lld-19', '-I',
         os.path.dirname(options.source), '-MD', '-MF', options.depfile, '-MT', options.out, options.source, '-o', image])
    with open(image, 'rb') as f:
        return f.read()


def on_request(text):
    """Puts every kernel of a source file between #ifdef and #endif, because some drivers take minutes for a whole file. A
    kernel is written out, from KERNEL(...) to the brace in the first column, or it is one line, MACRO(st_name, ...)."""
    wanted = r'#ifdef ST_WANTS_\2\n\1\n#endif'
    return re.sub(r'^([A-Z_0-9]+\((st_\w+)(?:, \w+)*\))$', wanted,
                  re.sub(r'^(KERNEL\(\w+\)\s(st_\w+)\(.*?^\})$', wanted, text, flags=re.M | re.S), flags=re.M)


def build_source(options):
    """Puts #include "..." lines in place: each header once, of data (.inc) the part whose name was defined on the line
    before."""
    read = []

    def expand(path, part):
        path = os.path.realpath(path)
        if path in read and not path.endswith('.inc'):
            return ''
        read.append(path)
        with open(path) as f:
            text = f.read()
        if path.endswith('.inc'):
            return re.search(r'^#ifdef %s\n(.*?)^#endif' % part, text, re.M | re.S).group(1)
        return re.sub(r'^(#define (\w+)\n)?\s*#\s*include\s+"([^"]+)".*\n',
                      lambda m: (m[1] or '') + expand(os.path.join(os.path.dirname(path), m[3]), m[2]),
                      on_request(text) if path.endswith('.cl') else text, flags=re.M)

    # Drivers that compile with clang define the macros of their target, but their OpenCL C is not ours for that target.
    text = '#undef __NVPTX__\n#undef __AMDGCN__\n#pragma OPENCL FP_CONTRACT OFF\n' + expand(options.source, None)
    with open(options.depfile, 'w') as f:
        f.write('%s: %s\n' % (options.out, ' '.join(sorted(set(read)))))
    return text.encode() + b'\0'


def main():
    parser = argparse.ArgumentParser()
    for name in ('arch', 'source', 'out', 'depfile'):
        parser.add_argument('--' + name, required=True)
    parser.add_argument('--headers')
    parser.add_argument('--clang', default='clang-19')
    parser.add_argument('--zstd', default='zstd')
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        if options.arch == 'opencl':
            image = build_source(options)
        elif options.arch.startswith('sm_'):
            image = build_nvidia(options, work)
        elif options.arch.startswith('gfx'):
            image = build_amd(options, work)
        else:
            fail('unknown architecture %s' % options.arch)
        raw = os.path.join(work, 'image')
        with open(raw, 'wb') as f:
            f.write(image)
        dictionary = ['-D', options.headers] if options.arch == 'opencl' and options.headers else []
        run([options.zstd, '-q', '-19', '--no-progress'] + dictionary + ['-f', raw, '-o', options.out])


main()
