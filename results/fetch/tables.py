"""Write the tables of README.md from the evaluations kept beside it: python results/fetch/tables.py

`tables.py runs/paper/runs/fetch-desk` first copies the configuration and evaluations of the finished runs of that sweep here.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
STEPS = {  # which evaluations are shown
    "reach-fast": (1_200, 2_000, 3_200, 4_000),
    "reach-paper": (2_000, 3_000, 4_000),
    "push-fast": (40_000, 60_000, 80_000, 100_000, 120_000, 140_000, 160_000),
    "pick-fast": (60_000, 80_000, 100_000, 140_000, 160_000, 180_000, 200_000),
    "slide-fast": (20_000, 30_000, 60_000, 80_000, 100_000, 120_000, 140_000, 160_000, 180_000, 200_000),
    "hand-fast": (10_000, 20_000, 30_000, 40_000),
    "maze-fast": (20_000, 40_000),
    "push-unscaled": (60_000, 80_000, 100_000, 120_000, 140_000, 200_000),
    "pick-unscaled": (60_000, 100_000, 140_000, 180_000, 220_000, 260_000),
    "slide-unscaled": (40_000, 80_000, 100_000),
    "reach-unscaled": (1_200, 2_000, 3_200, 4_000),
    "push-before-practice": (40_000, 60_000, 80_000, 100_000, 120_000),
    "reach-before-practice": (1_200, 2_000, 4_000),
}


FOLDERS = {
    "FetchReach-v4": "reach-fast",
    "FetchPush-v4": "push-fast",
    "FetchPickAndPlace-v4": "pick-fast",
    "FetchSlide-v4": "slide-fast",
    "HandReach-v3": "hand-fast",
    "PointMaze_UMaze-v3": "maze-fast",
}


def collect(sweep: Path) -> None:
    for done in sorted(sweep.glob("*/*-td3-fast/seed-*/done.json")):
        run = done.parent
        target = HERE / FOLDERS[run.parent.parent.name] / run.parent.name.removesuffix("-td3-fast") / run.name
        target.mkdir(parents=True, exist_ok=True)
        for name in ("config.json", "evals.jsonl"):
            shutil.copy(run / name, target / name)


def evaluations(cell: Path) -> dict[int, tuple[float, float]]:
    """Step → shares of episodes in which the goal was held at the end, and reached at any time."""
    lines = [json.loads(line) for line in (cell / "evals.jsonl").read_text(encoding="utf-8").splitlines()]
    return {line["step"]: (float(np.mean(line["success_final"])), float(np.mean(line["success_ever"]))) for line in lines}


def spread(values: list[float], seeds: int) -> str:
    if not values:
        return ""
    mean, low, high = (f"{100 * v:.0f}" for v in (np.mean(values), min(values), max(values)))
    return (f"{mean} %" if low == high else f"{mean} % ({low}–{high})") + (f", {len(values)} of {seeds}" if len(values) < seeds else "")


def first_at(cell: dict[int, tuple[float, float]], share: float) -> str:
    steps = [step for step, (held, _) in cell.items() if held >= share]
    return f"{min(steps):,}" if steps else f"> {max(cell):,}"


def table(name: str) -> str:
    folder, steps = HERE / name, STEPS[name]
    head = ["reward", "seeds", *(f"{s:,} steps" for s in steps), "reached", "steps to 90 % held, by seed"]
    lines = [f"| {' | '.join(head)} |", "| --- " + "| ---: " * (len(head) - 1) + "|"]
    for reward in sorted(p for p in folder.iterdir() if p.is_dir()):
        cells = [evaluations(c) for c in sorted(reward.glob("seed-*"))]
        held = [spread([c[s][0] for c in cells if s in c], len(cells)) for s in steps]
        last = max(s for s in steps if all(s in c for c in cells))
        reached = f"{spread([c[last][1] for c in cells], len(cells))} at {last:,}"
        first = ", ".join(first_at(c, 0.9) for c in cells)
        lines.append(f"| {reward.name} | {len(cells)} | {' | '.join(held)} | {reached} | {first} |")
    return "\n".join(lines)


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        collect(Path(folder))
    page = (HERE / "README.md").read_text(encoding="utf-8")
    for name in (n for n in STEPS if (HERE / n).is_dir()):
        head, rest = page.split(f"<!-- {name} -->")
        _, tail = rest.split(f"<!-- /{name} -->")
        page = f"{head}<!-- {name} -->\n{table(name)}\n<!-- /{name} -->{tail}"
    (HERE / "README.md").write_text(page, encoding="utf-8")
