#!/usr/bin/env python3
"""Draws what measure.py has measured: one picture for each series, one curve for each file that has it.

    draw.py FOLDER FILE.json...        needs matplotlib (requirements.txt)
"""
import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  after the choice of what draws

TITLES = {  # series: title, axis, logarithmic
    "context": ("Generating behind a context", "tokens before", True),
    "prompt": ("Reading a prompt", "tokens of the prompt", True),
    "window": ("Rows of a window", "rows of a pass", False),
    "experts": ("Experts in the device's memory", "percent of the experts", False),
    "clients": ("Conversations at once", "conversations", False),
}


def curves(files, series):
    for name in files:
        with open(name, encoding="utf-8") as f:
            data = json.load(f)
        got = data["series"].get(series, {}).get("points")
        if got:
            yield f"{data['model']}, {data['device']}" + (f", {data['machine']}" if data["machine"] else ""), got


def draw(folder, files, series):
    title, axis, logarithmic = TITLES[series]
    found = list(curves(files, series))
    if not found:
        return
    # Curves of different machines differ by far: each is shown beside its own first point, which the legend names.
    figure, plot = plt.subplots(figsize=(7, 3.6))
    for label, got in found:
        first = got[0]["rate"]
        plot.errorbar([p["x"] for p in got], [p["rate"] / first for p in got], [p["deviation"] / first for p in got], marker="o",
                      capsize=3, label=f"{label}: 1 is {first:.4g} tok/s")
    if logarithmic:
        plot.set_xscale("log", base=2)
        ticks = sorted({p["x"] for _, got in found for p in got})
        plot.set_xticks(ticks, [f"{t // 1024}K" if t >= 1024 else str(t) for t in ticks])
        plot.minorticks_off()
    plot.set_ylim(bottom=0)
    plot.set_title(title)
    plot.set_xlabel(axis)
    plot.set_ylabel("tok/s beside the first point")
    plot.grid(alpha=0.3)
    plot.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(pathlib.Path(folder) / f"growth-{series}.svg", metadata={"Date": None})
    plt.close(figure)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    plt.rcParams["svg.fonttype"] = "none"
    plt.rcParams["svg.hashsalt"] = "strata"  # the same numbers give the same file
    for series in TITLES:
        draw(sys.argv[1], sys.argv[2:], series)


if __name__ == "__main__":
    main()
