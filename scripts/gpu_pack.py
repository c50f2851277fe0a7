#!/usr/bin/env python3
"""Writes the table of embedded GPU images: an assembler file that includes them and a C file that lists them.

    gpu_pack.py OUT.S OUT.c DIRECTORY HEADERS.zst MODULE.ARCH.zst...

HEADERS.zst: the dictionary of the sources for OpenCL devices.
"""
import os
import sys

ENCODING_KIND = (('sm_', 'ST_IMAGE_PTX'), ('gfx', 'ST_IMAGE_ELF'), ('opencl', 'ST_IMAGE_SOURCE'))

out_asm, out_c, directory = sys.argv[1:4]
asm = ['/* Embedded GPU images; written by scripts/gpu_pack.py. */', '.section .note.GNU-stack,"",%progbits',
       '.section .rodata']
declarations = []
rows = []
for number, name in enumerate(sys.argv[4:]):
    path = os.path.abspath(os.path.join(directory, name))
    asm += ['.balign 16', '.globl st_image_%d' % number, '.hidden st_image_%d' % number, 'st_image_%d:' % number,
            '.incbin "%s"' % path.replace('\\', '\\\\').replace('"', '\\"')]
    declarations.append('extern const uint8_t st_image_%d[] __attribute__((visibility("hidden")));' % number)
    if number == 0:
        headers = '{"opencl", "headers", ST_IMAGE_SOURCE, st_image_0, %d, NULL}' % os.path.getsize(path)
        continue
    module, arch = os.path.basename(name)[:-len('.zst')].split('.', 1)
    kind = next(kind for prefix, kind in ENCODING_KIND if arch.startswith(prefix))
    rows.append('    {"%s", "%s", %s, st_image_%d, %d, %s},'
                % (arch, module, kind, number, os.path.getsize(path), '&headers' if arch == 'opencl' else 'NULL'))
with open(out_asm, 'w') as f:
    f.write('\n'.join(asm) + '\n')
with open(out_c, 'w') as f:
    f.write('/* The embedded GPU images; written by scripts/gpu_pack.py. */\n#include "runtime/images.h"\n\n')
    f.write('\n'.join(declarations))
    f.write('\n\nstatic const struct st_image headers = %s;' % headers)
    f.write('\nstatic const struct st_image list[] = {\n%s\n    {0},\n};\n' % '\n'.join(rows))
    f.write('const struct st_image_set st_images_builtin = {list, %d};\n' % len(rows))
