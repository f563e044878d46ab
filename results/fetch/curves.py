"""Success over training, one panel a task, from the evaluations kept beside this file: python results/fetch/curves.py"""

from __future__ import annotations

from pathlib import Path

from aimrl import plots

HERE = Path(__file__).resolve().parent
TASKS = ("reach-fast", "push-fast", "pick-fast", "slide-fast")
METHODS = ("aim", "aim+r", "sparse", "dense")


def lines(task: str) -> list[plots.Line]:
    found = [plots.read(sorted((HERE / task / method).glob("seed-*")))[0] for method in METHODS]
    groups = [plots.group(runs)[0][0] for runs in found]
    return [(method, i, plots.curve(group, "final")) for i, (method, group) in enumerate(zip(METHODS, groups))]


if __name__ == "__main__":
    plots.draw_panels({task: lines(task) for task in TASKS}, HERE / "curves.png", "goal held at the end")
