"""The figures of Fetch tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aimrl import plots
from aimrl.paper.budgets import BONUSES, LABELS, TASKS
from aimrl.paper.material import Curves, Material, Shown
from aimrl.paper.verdicts import CLOSE, LEARNED, Interval, Verdict, at_least, every, negate


def _draw_curves(curves: Curves, fetch: Mapping[str, tuple[str, ...]]) -> Callable[[Path], Any]:
    """Two by two panels in the paper's order, a method in the same colour in all."""
    shown = [r for r in LABELS if any(r in rewards for rewards in fetch.values())]
    lines = lambda task: [  # noqa: E731
        (LABELS[r], j, plots.curve(curves.groups[task, r], "ever")) for j, r in enumerate(shown) if (task, r) in curves.groups
    ]
    panels = {f"({letter}) {task}": lines(task) for letter, task in zip("abcd", TASKS)}
    return lambda path: plots.draw_panels(panels, path, "goal reached", empty="not run at this budget")


def _curve_data(curves: Curves) -> dict[str, Any]:
    rows = lambda g: {str(r.seed): {"step": r.evals.step, "reached": r.evals.ever} for r in g.runs}  # noqa: E731
    return {f"{task} {reward}": rows(g) for (task, reward), g in curves.groups.items()}


def _curve_panels(curves: Curves) -> list[str]:
    lines = []
    for task in TASKS:
        groups = {r: curves.groups[task, r] for r in LABELS if (task, r) in curves.groups}
        here = {r: begun for r, g in groups.items() if (begun := [run for run in g.runs if len(run.evals.step)])}
        step = next(iter(plots.last_shared([*groups.values()])[0].values()), None)
        if step is None:
            lines.append(f"{task}: {'no step at which all runs were evaluated' if here else 'not run at this budget'}")
            continue
        means = {r: np.mean([run.evals.ever[run.evals.step == step][0] for run in begun]) for r, begun in here.items()}
        lines.append(f"{task} at step {step:,}: " + ", ".join(f"{LABELS[r]} {plots.percent(float(m))}" for r, m in means.items()))
    return lines


def _compare(claim: str, wanted: int, parts: Mapping[str, tuple[Interval, bool | None]]) -> Verdict:
    return Verdict(claim, at_least(wanted, [v for _, v in parts.values()]), "; ".join(f"{k} {i}" for k, (i, _) in parts.items()))


FETCH = {task: ("aim", "sparse", "dense", *BONUSES) + (("smirl",) if task == "Reach" else ()) for task in TASKS}


def fetch(material: Material) -> Shown:
    c = material.curves

    def faster(a: str, b: str, tasks: Sequence[str] = tuple(TASKS)) -> dict[str, tuple[Interval, bool | None]]:
        return {f"{t}, {LABELS[a]} less {LABELS[b]}:": (d := c.difference(t, a, b), d.above(0)) for t in tasks}

    def alike(pairs: Sequence[tuple[str, str]], tasks: Sequence[str] = tuple(TASKS)) -> dict[str, tuple[Interval, bool | None]]:
        return {f"{t}, {LABELS[a]} less {LABELS[b]}:": (d := c.difference(t, a, b), d.within(CLOSE)) for t in tasks for a, b in pairs}

    def fails(rewards: Sequence[str], task: str) -> dict[str, tuple[Interval, bool | None]]:
        return {f"{task}, {LABELS[r]} ends at": (d := c.final(task, r), d.below(LEARNED)) for r in rewards}

    beaten = {r: faster(r, "sparse") for r in BONUSES}
    not_all = {LABELS[r]: negate(every([v for _, v in parts.values()])) for r, parts in beaten.items()}
    unlike = {
        f"{t}, {LABELS['gail']} less {LABELS['aim']}:": (d := c.difference(t, "gail", "aim"), d.below(0)) for t in TASKS if t != "Slide"
    }
    verdicts = [
        _compare("AIM speeds up learning against the sparse reward in three of the four domains", 3, faster("aim", "sparse")),
        _compare(f"it is close (within {CLOSE:g}) to the dense reward in three of the four", 3, alike([("aim", "dense")])),
        _compare("in Slide AIM, R and −L2 lead to similar learning", 2, alike([("aim", "sparse"), ("aim", "dense")], ["Slide"])),
        _compare("the other baselines compare well to AIM in Reach", 3, alike([(r, "aim") for r in BONUSES], ["Reach"])),
        Verdict("no other baseline outperforms R + HER in all domains", every(list(not_all.values())),
                "; ".join(f"{k} {i}" for parts in beaten.values() for k, (i, _) in parts.items())),
        _compare("RND helps in Push and leads to worse results in Pick and Place", 2,
                 faster("rnd", "sparse", ["Push"]) | faster("sparse", "rnd", ["PickAndPlace"])),
        _compare("MC helps in Pick and Place and slows learning in Push", 2,
                 faster("mc", "sparse", ["PickAndPlace"]) | faster("sparse", "mc", ["Push"])),
        _compare("RND and MC fail in Slide", 2, fails(("rnd", "mc"), "Slide")),
        _compare("GAIL works as well as AIM in Slide and underperforms elsewhere", 4, alike([("gail", "aim")], ["Slide"]) | unlike),
        _compare("SMiRL does not accomplish Reach", 1, fails(("smirl",), "Reach")),
    ]  # fmt: skip
    return Shown(_draw_curves(c, FETCH), _curve_panels(c), _curve_data(c), verdicts)


APP_FETCH = dict.fromkeys(TASKS, ("aim", "aim+r"))


def app_fetch(material: Material) -> Shown:
    c = material.curves
    parts = {f"{t}, AIM + R less AIM:": (d := c.difference(t, "aim+r", "aim"), d.above(0)) for t in TASKS}
    claim = "the task reward beside AIM's accelerates learning even further (in three of the four domains at least)"
    return Shown(_draw_curves(c, APP_FETCH), _curve_panels(c), _curve_data(c), [_compare(claim, 3, parts)])
