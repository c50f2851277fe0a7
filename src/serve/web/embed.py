"""Writes the page's built files as a C source: embed.py OUT FILE..."""
import hashlib
import os
import sys

TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8"}


def main(out, files):
    text = ['#include "serve/page.h"\n']
    entries = []
    for i, path in enumerate(files):
        with open(path, "rb") as f:
            data = f.read()
        rows = (",".join(str(b) for b in data[at:at + 40]) for at in range(0, len(data), 40))
        text.append(f"static const unsigned char file_{i}[] = {{{(',' + chr(10)).join(rows)}}};\n")
        kind = TYPES[os.path.splitext(path)[1]]
        tag = hashlib.sha256(data).hexdigest()[:16]
        entries.append(f'    {{"/{os.path.basename(path)}", "{kind}", "\\"{tag}\\"", file_{i}, sizeof file_{i}}},\n')
    text.append("const struct st_page_file st_page_files[] = {\n" + "".join(entries) + "};\n")
    text.append(f"const size_t st_page_file_count = {len(files)};\n")
    with open(out, "w", encoding="ascii") as f:
        f.write("\n".join(text))


main(sys.argv[1], sys.argv[2:])
