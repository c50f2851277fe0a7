"""Screenshots for docs/ as PNG files with a palette: a page has few colours, so 32 of them look the same in a third of
the bytes."""
import collections
import struct
import zlib

COLOURS = 32


def pixels(png):
    """Rows of (red, green, blue) of a PNG with 8-bit RGB or RGBA and no interlacing, as browsers write them."""
    at, packed = 8, b""
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        if kind == b"IHDR":
            width, height, _, form = struct.unpack_from(">IIBB", png, at + 8)
        elif kind == b"IDAT":
            packed += png[at + 8:at + 8 + length]
        at += length + 12
    step = {2: 3, 6: 4}[form]
    lines, above, rows = zlib.decompress(packed), bytearray(width * step), []
    for y in range(height):
        start = y * (width * step + 1)
        line = bytearray(lines[start + 1:start + 1 + width * step])
        for i in range(len(line)):
            a, b, c = (line[i - step], above[i], above[i - step]) if i >= step else (0, above[i], 0)
            # filters of PNG 1.2, section 6: none, left, up, average, and whichever of left, up, corner is nearest to a + b - c
            line[i] = line[i] + (0, a, b, (a + b) // 2, min((a, b, c), key=lambda v: abs(a + b - c - v)))[lines[start]] & 255
        rows.append([tuple(line[i:i + 3]) for i in range(0, len(line), step)])
        above = line
    return rows


def palette(count):
    """Colours for a picture with count[colour] pixels of each, and for each of its colours the number of the nearest one.
    The next colour is always the one that is farthest from those before it, seen by how often it occurs."""
    far, near, colours = dict.fromkeys(count, 1e9), {}, []
    while len(colours) < COLOURS and any(far.values()):
        new = max(far, key=lambda c: far[c] * count[c] ** 0.5)
        for colour in count:
            distance = sum((a - b) ** 2 for a, b in zip(new, colour))
            if distance < far[colour]:
                far[colour], near[colour] = distance, len(colours)
        colours.append(new)
    return colours, near


def small(png):
    """The PNG with a palette."""
    rows = pixels(png)
    colours, near = palette(collections.Counter(c for row in rows for c in row))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)
    lines = b"".join(b"\0" + bytes(near[c] for c in row) for row in rows)
    return (png[:8] + chunk(b"IHDR", header) + chunk(b"PLTE", b"".join(map(bytes, colours))) +
            chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b""))
