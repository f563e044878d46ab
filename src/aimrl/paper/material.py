"""What a figure or table is made from: grid runs made here, Fetch runs as a sweep."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aimrl import plots, runs, sweep
from aimrl.paper.budgets import BONUSES, BUDGETS, TASKS, Budget
from aimrl.paper.verdicts import LEARNED, Interval, Verdict, interval
from aimrl.types import UserError

if TYPE_CHECKING:
    from aimrl.envs.grid import World


@dataclass(frozen=True)
class GridCell:
    """One grid run; iterations are the paper's."""

    world: str
    reward: str
    iterations: int

    def settings(self, budget: Budget) -> dict[str, Any]:
        iterations = max(2, round(self.iterations * budget.grid_share))  # the run's animation has a frame an evaluation
        return {
            "world": self.world, "reward": self.reward, "preset": "paper", "seeds": budget.grid_seeds, "seed": 0, "iterations": iterations
        }  # fmt: skip

    def folder(self, budget: Budget, out: Path) -> Path:
        s = self.settings(budget)
        return out / "runs" / "grid" / f"{self.world}-{self.reward}-{s['iterations']}-iterations-{s['seeds']}-seeds"


@dataclass(frozen=True, eq=False)
class GridRun:
    """What a grid run left in its folder, a row a seed."""

    cell: GridCell
    world: World
    iterations: int
    rates: np.ndarray
    visits: np.ndarray
    reward: np.ndarray
    potential: np.ndarray
    bound: float | None

    @property
    def success(self) -> Interval:
        return interval(self.rates)

    @property
    def share(self) -> np.ndarray:
        """Of an episode's time, by state."""
        return self.visits / self.visits.sum(1, keepdims=True)


def run_grid(cell: GridCell, budget: Budget, out: Path, progress: bool = True) -> GridRun:
    """Train the cell, unless its folder holds a run of just these settings."""
    from aimrl import grid
    from aimrl.envs import grid as worlds

    settings, folder = cell.settings(budget), cell.folder(budget, out)
    if not _grid_done(cell, settings, folder):
        grid.run(**settings, out=folder, progress=progress)
    config = runs.read_json(folder / "config.json")
    with np.load(folder / "tables.npz", allow_pickle=False) as f:
        tables = {k: f[k].astype(float) for k in ("visits", "reward", "potential")}
    rates = np.array(runs.read_json(folder / "result.json")["success_rate"], float)
    return GridRun(cell, worlds.load(cell.world), settings["iterations"], rates, **tables, bound=config["reward_options"].get("step_bound"))


def _grid_done(cell: GridCell, settings: dict[str, Any], folder: Path) -> bool:
    """Whether the folder holds this run, made with today's settings of its preset."""
    from aimrl import grid
    from aimrl.envs import grid as worlds

    if not (folder / "result.json").is_file():
        return False
    old = runs.read_json(folder / "config.json")
    reward, config = grid.settings(worlds.load(cell.world), cell.reward, settings["preset"])
    options = {f.name: getattr(reward, f.name) for f in dataclasses.fields(reward)}
    wanted = runs.plain(settings | {"config": dataclasses.asdict(config), "reward_options": options})
    return all(old.get(k) == v for k, v in wanted.items())


def fetch_spec(item: Item, budget_name: str, out: Path) -> sweep.Spec | None:
    """The item's Fetch runs as a sweep; all items of a budget share its folder."""
    budget = BUDGETS[budget_name]
    cells = []
    for task, plan in budget.tasks.items():
        for reward in (r for r in item.fetch.get(task, ()) if plan.bonuses or r not in BONUSES):
            cell = {"env": TASKS[task], "reward": reward, "preset": budget.preset, "seed": list(plan.seeds), "steps": plan.steps}
            cells.append(cell | {"overrides": dict(plan.overrides)})
    if not cells:
        return None
    return sweep.parse_spec({"name": f"{item.name}-{budget_name}", "out": str(out / "runs" / f"fetch-{budget_name}"), "cells": cells})


@dataclass(frozen=True, eq=False)
class Curves:
    """The seeds of each method in each task."""

    groups: Mapping[tuple[str, str], plots.Group]  # task, reward

    def learned(self, task: str, *rewards: str) -> bool:
        """Whether any of the methods got anywhere at all."""
        found = [plots.curve(self.groups[task, r], "ever").mid for r in rewards if (task, r) in self.groups]
        return any(len(c) and c.max() >= LEARNED for c in found)

    def areas(self, task: str, reward: str, until: float) -> np.ndarray | None:
        from aimrl.stats import area_under_curve

        group = self.groups.get((task, reward))
        made = [r for r in group.runs if len(r.evals.step)] if group else []
        return np.array([area_under_curve(r.evals.step, r.evals.ever, until) for r in made]) if made else None

    def difference(self, task: str, a: str, b: str) -> Interval:
        """Mean success over training of a less that of b, to the last step both have; no interval where neither learned anything."""
        ends = [steps[-1] for r in (a, b) if (task, r) in self.groups and len(steps := plots.shared_steps(self.groups[task, r]))]
        if len(ends) < 2:
            return interval(None)
        found = interval(*(self.areas(task, r, min(ends)) for r in (a, b)))
        return found if self.learned(task, a, b) else dataclasses.replace(found, low=math.nan, high=math.nan)

    def final(self, task: str, reward: str) -> Interval:
        """Success at the end; no interval where the task's other methods learned nothing either, or were not run."""
        group = self.groups.get((task, reward))
        score = plots.score(group, "ever") if group else None
        if score is None:
            return interval(None)
        others = [r for t, r in self.groups if t == task and r != reward]
        found = interval(score.seeds)
        return found if self.learned(task, *others) else dataclasses.replace(found, low=math.nan, high=math.nan)


def read_curves(spec: sweep.Spec) -> tuple[Curves, list[plots.RunData], list[str]]:
    """The sweep's runs that have begun, grouped, and what is wrong with them. Runs with other settings than the cell's are left out."""
    folders, problems = [], []
    for cell in spec.cells:
        folder = spec.out / cell.name
        if (folder / "config.json").is_file():
            try:
                sweep.finished(folder, cell.config)
                folders.append(folder)
            except UserError as e:
                problems.append(f"left out: {e}")
    found, more = plots.read(folders) if folders else ([], [])
    groups, mixed = plots.group(found)
    task = {env: name for name, env in TASKS.items()}
    return Curves({(task[g.env], g.runs[0].config["reward"]): g for g in groups if g.env in task}), found, [*problems, *more, *mixed]


@dataclass(frozen=True, eq=False)
class Material:
    """What an item is made from."""

    budget: str
    grids: Mapping[GridCell, GridRun]
    curves: Curves
    folders: Sequence[Path]  # of the Fetch runs


@dataclass(frozen=True, eq=False)
class Shown:
    """A made item: how to draw it, what its panels show, its numbers, and the verdicts."""

    draw: Callable[[Path], Any]
    panels: Sequence[str]
    data: dict[str, Any]
    verdicts: Sequence[Verdict]


@dataclass(frozen=True)
class Item:
    """A figure or table of the paper."""

    name: str
    label: str
    title: str
    make: Callable[[Material], Shown]
    panels: tuple[str, ...] = ()  # the labels of its parts
    grids: tuple[GridCell, ...] = ()
    fetch: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # task: rewards

    @property
    def kind(self) -> str:
        return "figure" if self.label.startswith("fig:") else "table"
