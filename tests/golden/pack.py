#!/usr/bin/env python3
"""Packs the fixtures of tests/golden/data from the reference files: pack.py FIXTURES OUT (see README.md here)."""
import array
import io
import json
import math
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def without(path, prefix):
    """The file without the tensors of a prefix, the others in their order."""
    header, data = read_safetensors(path)
    entries = sorted(((n, t) for n, t in header.items() if n != "__metadata__" and not n.startswith(prefix)),
                     key=lambda e: e[1]["data_offsets"][0])
    kept, out = {}, bytearray()
    for name, t in entries:
        begin, end = t["data_offsets"]
        kept[name] = {"dtype": t["dtype"], "shape": t["shape"], "data_offsets": [len(out), len(out) + end - begin]}
        out += data[begin:end]
    text = json.dumps(kept, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(out)


def coarse(path):
    """The file with logits and residuals rounded to multiples of 2^-16, by a twenty-sixth of the tolerance of 2e-4 at most: half a megabyte
    less of bits that no test looks at."""
    header, data = read_safetensors(path)
    whole, before = bytearray(path.read_bytes()), path.stat().st_size - len(data)
    for name, t in header.items():
        if name != "__metadata__" and t["dtype"] == "F32" and ("logits" in name or ".R" in name):
            begin, end = (before + at for at in t["data_offsets"])
            whole[begin:end] = array.array("f", [round(x * 65536) / 65536 for x in array.array("f", whole[begin:end])]).tobytes()
    return bytes(whole)


def read_gguf(path):
    data, at = path.read_bytes(), 24
    sizes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def text():
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size:at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            element, count = take("i"), take("Q")
            return [value(element) for _ in range(count)]
        return take(sizes[kind])

    keys = {}
    for _ in range(struct.unpack_from("<q", data, 16)[0]):
        name, kind = text(), take("i")
        begin = at + (12 if kind == 9 else 8 if kind == 8 else 0)
        element = struct.unpack_from("<i", data, at)[0] if kind == 9 else kind
        v = value(kind)
        keys[name] = (v, kind, element, data[begin:at])
    tensors = []
    for _ in range(struct.unpack_from("<q", data, 8)[0]):
        name = text()
        ne = [take("q") for _ in range(take("I"))]
        tensors.append((name, ne, take("i"), take("Q")))
    start = -(-at // 32) * 32
    return keys, [(n, ne, data[start + o:start + o + 4 * math.prod(ne)]) for n, ne, t, o in tensors if t == 0]


def summary(gguf):
    """One line for each key and tensor of an F32 file: what it is, and the CRC-32 of its bytes (see test_convert.c)."""
    keys, tensors = read_gguf(gguf)
    lines = [f"key {n} {kind} {element} {zlib.crc32(raw):08x}" for n, (_, kind, element, raw) in keys.items()]
    for name, ne, raw in tensors:
        lines.append(f"tensor {name} {','.join(map(str, ne))} {zlib.crc32(raw):08x}")
        if name.endswith("ssm_a"):  # from exp, so the last bit is not defined: the values
            lines += [f"value {v:.9g}" for v in struct.unpack(f"<{len(raw) // 4}f", raw)]
    return "\n".join(lines) + "\n"


def tokenizer_files(gguf):
    """tokenizer.json and tokenizer_config.json as the tokenizer library would have written them for a GGUF's vocabulary."""
    k = {name: v[0] for name, v in read_gguf(gguf)[0].items()}
    tokens, types = k["tokenizer.ggml.tokens"], k["tokenizer.ggml.token_type"]
    regex = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": t, "special": types[i] == 3} for i, t in enumerate(tokens) if types[i] in (3, 4)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens) if types[i] == 1},
                  "merges": [m.split(" ") for m in k["tokenizer.ggml.merges"]]},
    }
    config = {"eos_token": tokens[k["tokenizer.ggml.eos_token_id"]], "pad_token": tokens[k["tokenizer.ggml.padding_token_id"]],
              "bos_token": None, "add_bos_token": False}
    return [("tokenizer.json", json.dumps(tokenizer, ensure_ascii=False).encode()),
            ("tokenizer_config.json", json.dumps(config, ensure_ascii=False).encode())]


def pack(path, members):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    # Weights are 16-bit and expected values 32-bit numbers: positions count modulo 4.
    command = ["xz", "--lzma2=preset=9e,lc=2,lp=2,pb=2", "-c"]
    path.write_bytes(subprocess.run(command, input=raw.getvalue(), stdout=subprocess.PIPE, check=True).stdout)
    print(path, path.stat().st_size)


def main():
    fixtures, out = Path(sys.argv[1]), Path(sys.argv[2])
    tiny, spec = fixtures / "golden" / "tiny", fixtures / "spec" / "tiny"
    members = [(n, (tiny / n).read_bytes()) for n in ("config.json", "mtp.safetensors")]
    members.append(("golden.safetensors", coarse(tiny / "golden.safetensors")))
    members.insert(1, ("model.safetensors", without(tiny / "model.safetensors", "model.visual.")))
    pack(out / "tiny-model.tar.xz", members + tokenizer_files(tiny / "tiny-f32.gguf"))
    for name in ("tiny-f32", "tiny-mtp-f32"):
        (out / (name + ".txt")).write_text(summary(tiny / (name + ".gguf")))
    quant = "tiny-qwen4exp-quant-0000{}-of-00002.gguf"
    pack(out / "spec-tiny-c.tar.xz", [(n, (spec / n).read_bytes()) for n in (quant.format(1), quant.format(2), "golden.txt")])


main()
