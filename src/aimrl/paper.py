"""Every figure and table of the paper by its label: what it takes, whether it has been made, and making it again with our numbers.

An item names the runs it needs; grid worlds run here, Fetch tasks as a sweep. Items share runs, and a finished run is never made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aimrl import plots, runs, sweep
from aimrl.config import make_config
from aimrl.types import UserError, nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from aimrl.envs.grid import World

OUT = Path("runs/paper")
TASKS = {
    "Reach": "FetchReach-v4",
    "PickAndPlace": "FetchPickAndPlace-v4",
    "Push": "FetchPush-v4",
    "Slide": "FetchSlide-v4",
}  # as in fig:fetch
LABELS = {"aim": "AIM + HER", "aim+r": "AIM + R + HER", "sparse": "R + HER", "dense": "−L2 + HER", "rnd": "RND + R + HER"}
LABELS |= {"mc": "MC + R + HER", "gail": "GAIL + R + HER", "smirl": "SMiRL + R + HER"}
GRID_S, GRID_BEGIN_S = 0.003, 25.0  # core-seconds of a seed's iteration, and to compile and draw a grid run: for estimates
FETCH_BEGIN_S = 30.0  # to start and compile a Fetch run
# What the words of the paper are taken to mean.
REACHES, CONFIDENT, UNABLE = 0.5, 0.9, 0.1  # mean success: "reaches the goal", "confidently", "unable" (at most)
CLOSE = 0.1  # two methods are alike when their mean success over training differs by less
LEARNED = 0.15  # below this best success nothing has been learned that could be compared
MIN_SEEDS = 3  # a bootstrap over fewer says nothing


# --- budgets ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """How much of the paper's protocol is run."""

    words: str
    preset: str  # of the Fetch runs; the grid's is always the paper's
    seeds: int
    steps: int
    reach_steps: int
    grid_seeds: int
    grid_share: float = 1.0  # of the paper's grid iterations
    tasks: tuple[str, ...] = tuple(TASKS)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    reach_overrides: Mapping[str, Any] = field(default_factory=dict)
    decides: bool = True  # whether its data can tell anything about the paper's statements


BUDGETS = {
    "smoke": Budget(
        "about a minute: does it run? Reach only, 1 seed, 800 steps, small networks; grids 2 seeds, a twenty-fifth of the iterations",
        "fast", 1, 800, 800, 2, 0.04, ("Reach",),
        {
            "eval_every": 400, "eval_episodes": 10, "checkpoint_every": 800, "round_steps": 200, "round_updates": 10, "batch_size": 32,
            "learning_starts": 200, "buffer_size": 1000, "agent_options": {"hidden": (32, 32)}, "tensorboard": False,
        },
        decides=False,
    ),
    "desk": Budget(
        "two cores, an hour or two: preset fast, 3 seeds, 60,000 steps (Reach 10,000); grids in full with 8 seeds",
        "fast", 3, 60_000, 10_000, 8, overrides={"eval_every": 10_000, "eval_episodes": 50}, reach_overrides={"eval_every": 2_000},
    ),
    "full": Budget(
        "the paper's protocol: preset paper, 6 seeds, 1,000,000 steps (Reach 30,000); grids with 32 seeds",
        "paper", 6, 1_000_000, 30_000, 32,
    ),
}  # fmt: skip


# --- statements -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """A statement of the paper, whether the data bear it out (None: they can't tell), and the numbers."""

    claim: str
    holds: bool | None
    evidence: str
    exact: bool = False  # computed, not sampled: decided at every budget


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, or a difference of two, with its bootstrap interval; without enough seeds there is none."""

    mid: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        if math.isnan(self.mid):
            return "no data"
        return (
            f"{self.mid:.2f} ("
            + ("" if math.isnan(self.low) else f"95 % {self.low:.2f} … {self.high:.2f}, ")
            + f"{_many(self.seeds, 'seed')})"
        )

    def above(self, bound: float) -> bool | None:
        return True if self.low > bound else False if self.high <= bound else None

    def below(self, bound: float) -> bool | None:
        return True if self.high < bound else False if self.low >= bound else None

    def within(self, margin: float) -> bool | None:
        return True if self.low > -margin and self.high < margin else False if self.low >= margin or self.high <= -margin else None


def interval(x: Sequence[float] | np.ndarray | None, minus: Sequence[float] | np.ndarray | None = ()) -> Interval:
    """Mean of x, less the mean of `minus` where given; seeds are resampled, episodes are not."""
    from aimrl.stats import bootstrap_interval

    samples = [np.asarray(s, float) for s in (x, minus) if s is not None and len(s)]
    if x is None or not len(x) or minus is None:
        return Interval(math.nan, math.nan, math.nan, 0)

    def mean(first: np.ndarray, *second: np.ndarray, axis: int = 0) -> Any:
        return first.mean(axis) - sum(s.mean(axis) for s in second)

    mid, least = float(mean(*samples)), min(map(len, samples))
    low, high = bootstrap_interval(samples, np.random.default_rng(0), mean) if least >= MIN_SEEDS else (math.nan, math.nan)
    return Interval(mid, float(low), float(high), least)


def _many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def at_least(n: int, verdicts: Sequence[bool | None]) -> bool | None:
    """Whether n of the verdicts are true, as far as that is known."""
    yes, unknown = sum(v is True for v in verdicts), sum(v is None for v in verdicts)
    return True if yes >= n else False if yes + unknown < n else None


def every(verdicts: Sequence[bool | None]) -> bool | None:
    return at_least(len(verdicts), verdicts)


def negate(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict


# --- runs -------------------------------------------------------------------------------------------------------------------------------


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
    for task, rewards in item.fetch.items():
        if task in budget.tasks:
            reach = task == "Reach"
            steps = budget.reach_steps if reach else budget.steps
            options = {**budget.overrides, **(budget.reach_overrides if reach else {})}
            cell = {"env": TASKS[task], "reward": list(rewards), "preset": budget.preset, "seeds": budget.seeds, "steps": steps}
            cells.append(cell | {"overrides": options})
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
    """The sweep's runs that have begun, grouped, and what is wrong with them."""
    found, problems = plots.read([spec.out / c.name for c in spec.cells if (spec.out / c.name / "config.json").is_file()])
    groups, more = plots.group(found)
    task = {env: name for name, env in TASKS.items()}
    return Curves({(task[g.env], g.runs[0].config["reward"]): g for g in groups if g.env in task}), found, problems + more


# --- what an item shows -----------------------------------------------------------------------------------------------------------------


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


Panel = tuple[str, Callable[["Figure", "Axes", str], Any]]


def _sheet(panels: Sequence[Panel], columns: int) -> Callable[[Path], None]:
    """A picture of lettered grid-world panels."""

    def draw(path: Path) -> None:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        from aimrl import plots_grid

        rows = -(-len(panels) // columns)
        with mpl.rc_context(plots_grid.STYLE):
            figure = Figure(figsize=(4.9 * columns, 4.9 * rows), layout="constrained")
            for i, (ax, (title, one)) in enumerate(zip(figure.subplots(rows, columns, squeeze=False).ravel(), panels)):
                one(figure, ax, f"({'abcdef'[i]}) {title}" if len(panels) > 1 else title)
            figure.savefig(path)

    return draw


def _visits(run: GridRun, what: str) -> Panel:
    from aimrl import plots_grid

    title = f"{what},\n{run.iterations} iterations: success {plots.percent(run.rates.mean())}"
    return title, lambda figure, ax, text: plots_grid.bubbles(ax, run.world, run.visits.mean(0), text)


def _reward(run: GridRun, what: str) -> Panel:
    from aimrl import plots_grid

    def draw(figure: Figure, ax: Axes, text: str) -> None:
        figure.colorbar(plots_grid.heat(ax, run.world, run.reward[0], text), ax=ax, shrink=0.75)

    return f"{what},\n{run.iterations} iterations", draw


def _world(world: World, what: str) -> Panel:
    from aimrl import plots_grid

    def draw(figure: Figure, ax: Axes, text: str) -> None:
        plots_grid.board(ax, world)
        ax.set_title(text, pad=18 if world.windy.any() else 8)

    return what, draw


def _grid_data(material: Material) -> dict[str, Any]:
    numbers = lambda r: {"iterations": r.iterations, "seeds": len(r.rates), "success": r.rates, "visits": r.visits.mean(0).round(4)}  # noqa: E731
    return {f"{c.world} {c.reward} {c.iterations}": numbers(r) for c, r in material.grids.items()}


def _reaches(run: GridRun, claim: str, bound: float = REACHES) -> Verdict:
    return Verdict(claim, run.success.above(bound), f"mean success {run.success}; above {bound:g} is asked for")


def _unable(named: Mapping[str, GridRun], claim: str) -> Verdict:
    found = "; ".join(f"{name} {r.success}" for name, r in named.items())
    return Verdict(claim, every([r.success.below(UNABLE) for r in named.values()]), f"mean success {found}; below {UNABLE:g} is asked for")


def _example(material: Material) -> Shown:
    """Manhattan distances against exact step distances: no training."""
    from aimrl import theory
    from aimrl.envs import grid as worlds

    def distances(name: str) -> tuple[World, np.ndarray, np.ndarray]:
        world = worlds.load(name)
        goal = int(world.goals[0])
        mdp = theory.GoalMDP(*worlds.exact_mdp(world))
        return world, np.abs(world.xy - world.xy[goal]).sum(1), theory.optimal_hitting_time(mdp)

    room, straight, steps = distances("room")
    start = int(room.starts[0])
    _, torus_straight, torus_steps = distances("torus")
    windy, _, windy_there = distances("windy")
    exact = worlds.exact_mdp(windy)  # its goal's rows are those of any other state, so that start and goal can be exchanged
    home = int(windy.starts[0])
    back = theory.optimal_hitting_time(theory.GoalMDP(exact.P, np.eye(windy.n_states)[exact.goal], home, exact.gamma))
    there, again = float(windy_there[home]), float(back[exact.goal])
    longer = int((torus_straight > torus_steps + 1e-9).sum())
    verdicts = [
        Verdict("the Manhattan distance underestimates the work between the two circles", bool(straight[start] < steps[start]),
                f"Manhattan {straight[start]}, exact optimal number of steps {steps[start]:g}", exact=True),
        Verdict("it errs in a toroidal grid world, too", longer > 0,
                f"it overestimates the exact distance to the goal from {longer} of {len(torus_steps)} states", exact=True),
        Verdict("it errs where transitions are asymmetric (windy), too", abs(there - again) > 1e-9,
                f"expected steps from start to goal {there:.2f}, back {again:.2f}; Manhattan's is the same both ways", exact=True),
    ]  # fmt: skip
    data = {"manhattan": int(straight[start]), "steps": float(steps[start]), "torus_overestimated": longer, "windy": [there, again]}
    return Shown(_sheet([_world(room, "The grid world of the examples")], 1), ["start (blue), goal (red) and walls (bold)"], data, verdicts)


ROOM_AIM, ROOM_TASK = GridCell("room", "aim", 100), GridCell("room", "sparse", 500)


def _gridworld(material: Material) -> Shown:
    from aimrl import plots_grid

    aim, task = material.grids[ROOM_AIM], material.grids[ROOM_TASK]
    counted = [plots_grid.violations(aim.world, f, aim.bound or 1.0) for f in aim.potential]
    broken = interval([bad / total for bad, total in counted])
    ahead = interval(aim.rates, task.rates)
    verdicts = [
        _reaches(aim, "AIM enables the agent to reach the goal after 100 iterations"),
        _unable({"task reward": task}, "with the task reward the agent is unable to learn a policy to the goal (500 iterations)"),
        Verdict("AIM learns faster than the task reward, with a fifth of the iterations", ahead.above(0), f"difference of success {ahead}"),
        Verdict("the learned reward changes smoothly with transitions", broken.below(0.1),
                f"share of transitions that change the potential by more than its bound {broken}; below 0.1 is asked for"),
    ]  # fmt: skip
    panels = [_visits(aim, "Visits with AIM"), _reward(aim, "AIM's reward"), _visits(task, "Visits with the task reward")]
    return Shown(_sheet(panels, 3), _titles(panels), _grid_data(material), verdicts)


def _titles(panels: Sequence[Panel]) -> list[str]:
    return [title.replace("\n", " ") for title, _ in panels]


WINDY_AIM, CALM_AIM = GridCell("windy", "aim", 50), GridCell("room", "aim", 50)


def _windy(material: Material) -> Shown:
    aim, calm = material.grids[WINDY_AIM], material.grids[CALM_AIM]
    low = (aim.world.xy[:, 0] == 4) & (aim.world.xy[:, 1] <= 1)
    more = interval(aim.share[:, low].sum(1), calm.share[:, low].sum(1))
    verdicts = [
        _reaches(aim, "AIM's policy confidently reaches the goal in spite of the wind (50 iterations)", CONFIDENT),
        Verdict("the wind increases visits to the bottom two rows of column 4", more.above(0),
                f"share of an episode there, less that without wind after as many iterations: {more}"),
    ]  # fmt: skip
    panels = [_world(aim.world, "Wind in the last six columns"), _reward(aim, "AIM's reward"), _visits(aim, "Visits with AIM")]
    return Shown(_sheet(panels, 3), _titles(panels), _grid_data(material), verdicts)


TORUS_AIM, TORUS_WGAN = GridCell("torus", "aim", 100), GridCell("torus", "wgan", 100)


def edge_ratio(world: World, values: np.ndarray) -> float:
    """Mean change of the values over moves that wrap around, divided by that over all others."""
    step = np.abs(world.xy[world.move] - world.xy[:, None]).max(-1)
    change = np.abs(values[world.move] - values[:, None])
    return float(change[step > 1].mean() / max(change[step == 1].mean(), 1e-12))


def ways(world: World, visits: np.ndarray) -> np.ndarray:
    """How the time is shared between the four diagonal ways from the start to a goal opposite it on the torus."""
    turned = (world.xy - world.xy[world.starts[0]]) % (world.width, world.height)
    half = world.width // 2
    right, up = turned[:, 0] < half, turned[:, 1] < half
    inner = (turned % half != 0).all(1)  # what lies straight ahead of the start or of the goal belongs to two ways
    time = np.array([visits[inner & (right == r) & (up == u)].sum() for r in (True, False) for u in (True, False)])
    return time / max(time.sum(), 1e-12)


def _toroid(material: Material) -> Shown:
    from aimrl import grid, plots_grid

    aim, wgan = material.grids[TORUS_AIM], material.grids[TORUS_WGAN]
    distance = grid.optimal_distance(aim.world)
    rank = lambda run: [plots_grid.rank_correlation(r, distance) for r in run.reward]  # noqa: E731
    edges = lambda run: interval([edge_ratio(run.world, r) for r in run.reward])  # noqa: E731
    ratio, better = edges(aim), interval(rank(aim), rank(wgan))
    least = interval([ways(aim.world, v).min() for v in aim.visits])
    verdicts = [
        _reaches(aim, "AIM's policy reaches the goal"),
        Verdict("AIM's reward is smooth across the edges of the grid", ratio.below(1.5),
                f"mean change of the reward over an edge, in those of inner moves: {ratio}, WGAN's {edges(wgan)}; below 1.5 is asked for"),
        Verdict("the policy places near equal mass on multiple trajectories", least.above(0.1),
                f"time on the least used of the four diagonal ways {least}; 0.25 is equal, above 0.1 is asked for"),
        Verdict("the WGAN reward does not respect the dynamics as AIM's does", better.above(0),
                f"rank correlation with minus the exact distance, AIM's less WGAN's: {better}"),
    ]  # fmt: skip
    panels = [_reward(aim, "AIM's reward"), _visits(aim, "Visits with AIM"), _reward(wgan, "Reward of the WGAN loss")]
    data = _grid_data(material) | {"rank_correlation": {"aim": rank(aim), "wgan": rank(wgan)}}
    return Shown(_sheet(panels, 3), _titles(panels), data, verdicts)


OTHERS = {"dense": "−L2 (DiscoRL)", "mc": "MC (DDL)", "rnd": "RND", "smirl": "SMiRL"}
EARLY_RND = GridCell("room", "rnd", 20)


def _add_grid(material: Material) -> Shown:
    at = lambda reward, iterations: material.grids[GridCell("room", reward, iterations)]  # noqa: E731
    world, smirl, early = at("rnd", 100).world, at("smirl", 100), material.grids[EARLY_RND]
    x, y = world.xy.T
    outside = ~((x <= 3) & (y >= 3) & (y <= 7))
    seen, corner = interval((early.visits[:, outside] > 0.01).mean(1)), interval(smirl.share[:, (x <= 3) & (y <= 2)].sum(1))
    verdicts = [
        _unable({name: at(r, 100) for r, name in OTHERS.items()}, "no baseline reaches the goal after 100 iterations"),
        _unable({name: at(r, 500) for r, name in OTHERS.items()}, "none does with five times as many interactions"),
        Verdict("RND explores most of the larger room early on", seen.above(0.5),
                f"share of its cells visited at least once in 100 episodes after {early.iterations} iterations {seen}"),
        Verdict("SMiRL keeps the agent in the bottom left near its start", corner.above(0.5), f"share of its time there {corner}"),
    ]  # fmt: skip
    panels = [_visits(at(r, 100), f"Visits with {name}") for r, name in OTHERS.items()]
    panels += [_reward(at("mc", 100), "Reward of DDL"), _reward(at("rnd", 100), "Reward of RND")]
    return Shown(_sheet(panels, 3), _titles(panels), _grid_data(material), verdicts)


# --- Fetch ------------------------------------------------------------------------------------------------------------------------------


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
        scores = [(r, s) for r in LABELS if (task, r) in curves.groups and (s := plots.score(curves.groups[task, r], "ever"))]
        at = f" at step {scores[0][1].step:,}" if scores else ""
        lines.append(f"{task}{at}: " + (", ".join(f"{LABELS[r]} {plots.percent(s.value)}" for r, s in scores) or "not run at this budget"))
    return lines


def _compare(claim: str, wanted: int, parts: Mapping[str, tuple[Interval, bool | None]]) -> Verdict:
    return Verdict(claim, at_least(wanted, [v for _, v in parts.values()]), "; ".join(f"{k} {i}" for k, (i, _) in parts.items()))


BASELINES = ("rnd", "mc", "gail")
FETCH = {task: ("aim", "sparse", "dense", *BASELINES) + (("smirl",) if task == "Reach" else ()) for task in TASKS}


def _fetch(material: Material) -> Shown:
    c = material.curves

    def faster(a: str, b: str, tasks: Sequence[str] = tuple(TASKS)) -> dict[str, tuple[Interval, bool | None]]:
        return {f"{t}, {LABELS[a]} less {LABELS[b]}:": (d := c.difference(t, a, b), d.above(0)) for t in tasks}

    def alike(pairs: Sequence[tuple[str, str]], tasks: Sequence[str] = tuple(TASKS)) -> dict[str, tuple[Interval, bool | None]]:
        return {f"{t}, {LABELS[a]} less {LABELS[b]}:": (d := c.difference(t, a, b), d.within(CLOSE)) for t in tasks for a, b in pairs}

    def fails(rewards: Sequence[str], task: str) -> dict[str, tuple[Interval, bool | None]]:
        return {f"{task}, {LABELS[r]} ends at": (d := c.final(task, r), d.below(LEARNED)) for r in rewards}

    beaten = {r: faster(r, "sparse") for r in BASELINES}
    not_all = {LABELS[r]: negate(every([v for _, v in parts.values()])) for r, parts in beaten.items()}
    unlike = {
        f"{t}, {LABELS['gail']} less {LABELS['aim']}:": (d := c.difference(t, "gail", "aim"), d.below(0)) for t in TASKS if t != "Slide"
    }
    verdicts = [
        _compare("AIM speeds up learning against the sparse reward in three of the four domains", 3, faster("aim", "sparse")),
        _compare(f"it is close (within {CLOSE:g}) to the dense reward in three of the four", 3, alike([("aim", "dense")])),
        _compare("in Slide AIM, R and −L2 lead to similar learning", 2, alike([("aim", "sparse"), ("aim", "dense")], ["Slide"])),
        _compare("the other baselines compare well to AIM in Reach", 3, alike([(r, "aim") for r in BASELINES], ["Reach"])),
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


def _app_fetch(material: Material) -> Shown:
    c = material.curves
    parts = {f"{t}, AIM + R less AIM:": (d := c.difference(t, "aim+r", "aim"), d.above(0)) for t in TASKS}
    claim = "the task reward beside AIM's accelerates learning even further (in three of the four domains at least)"
    return Shown(_draw_curves(c, APP_FETCH), _curve_panels(c), _curve_data(c), [_compare(claim, 3, parts)])


# --- tables -----------------------------------------------------------------------------------------------------------------------------

ANOVA = dict.fromkeys(TASKS, ("aim", "aim+r", "sparse", "dense"))
COLUMNS = ("Slide", "Push", "PickAndPlace", "Reach")  # of tab:anova
REACH_STEP = 2_000  # at which the paper compares Reach


def published() -> dict[str, dict[str, Any]]:
    """The paper's own tab:anova, shaped as a result of `aimrl stats`."""
    from aimrl.stats import PAPER_TABLE

    entry = lambda a, b, x: {"a": a, "b": b, "estimate": x[0], "se": x[1], "z": x[0] / x[1], "significant": x[2], "test": "wald"}  # noqa: E731
    return {
        task: {"contrasts": [entry(*pair, x) for pair, x in PAPER_TABLE[f"Fetch{task}"].items()], "separated": [], "problem": None}
        | {"environments": len(COLUMNS)}
        for task in COLUMNS
    }


def _contrast(result: Mapping[str, Any], task: str, a: str, b: str) -> dict[str, Any] | None:
    """The contrast, unless nothing was learned in this task: equal failures are no similarity."""
    entry = result.get(task, {"contrasts": []})
    rates = [x["successes"] / max(x["episodes"], 1) for x in entry.get("algorithms", {}).values()]
    found = entry["contrasts"] if not rates or max(rates) >= LEARNED else []
    return next((c for c in found if (c["a"], c["b"]) == (a, b)), None)


def similar(result: Mapping[str, Any], a: str) -> list[bool | None]:
    """By environment, whether H₀: β_a = β_dense is not rejected."""
    return [None if (c := _contrast(result, task, a, "dense")) is None else not c["significant"] for task in COLUMNS]


def higher(result: Mapping[str, Any], a: str) -> list[bool | None]:
    """By environment, whether a's odds are significantly above the sparse reward's."""
    return [None if (c := _contrast(result, task, a, "sparse")) is None else c["significant"] and c["z"] > 0 for task in COLUMNS]


def _both(result: Mapping[str, Any], test: Callable[[Mapping[str, Any], str], list[bool | None]]) -> list[bool | None]:
    return [every(pair) for pair in zip(test(result, "aim"), test(result, "aim+r"))]


def _count(verdicts: Sequence[bool | None]) -> str:
    return f"{sum(v is True for v in verdicts)} of the {sum(v is not None for v in verdicts)} tested"


def _anova(material: Material) -> Shown:
    from aimrl import stats

    tables, problems = {}, []
    for task in COLUMNS:
        here = [f for f in material.folders if runs.read_json(f / "config.json")["env"] == TASKS[task]]
        if here:
            step = REACH_STEP if task == "Reach" and BUDGETS[material.budget].reach_steps >= REACH_STEP else None
            try:
                found = stats.from_runs(here, step)
            except UserError as e:  # no run of this task can be used: the others still are
                problems.append(str(e))
                continue
            tables |= {task: found.envs[TASKS[task]]}
            problems += found.problems
    result = stats.analyse(stats.Table(tables, tuple(problems)))
    shown = {task: entry | {"contrasts": [c for c in entry["contrasts"] if c["b"] in ("dense", "sparse") and c["a"].startswith("aim")]}
             for task, entry in result.items()}  # fmt: skip
    text = "\n\n".join(
        ["Ours", stats.format_table(shown) if shown else "no runs", "The paper's", stats.format_table(published()).split("\nLog odds")[0]]
    )
    paper = published()
    verdicts = [
        Verdict("in three of the four environments AIM and AIM + R have odds similar to dense", at_least(3, _both(result, similar)),
                f"H₀ is not rejected for both in {_count(_both(result, similar))}; "
                f"the paper's own table has it in {_count(_both(paper, similar))}, so that there the sentence "
                + ("holds" if at_least(3, _both(paper, similar)) else "does not hold")),
        Verdict("in all four AIM and AIM + R have significantly higher odds than the sparse reward", at_least(4, _both(result, higher)),
                f"both are in {_count(_both(result, higher))}; the paper's own table has it in {_count(_both(paper, higher))}"),
    ]  # fmt: skip
    said = [f"{t}: step {e['step']:,}, {_many(e['seeds'], 'seed')}" for t, e in result.items()]
    return Shown(_text_picture(text), [*said, *problems], {"result": result, "table": text}, verdicts)


def _text_picture(text: str) -> Callable[[Path], None]:
    """A table as a picture."""

    def draw(path: Path) -> None:
        from matplotlib.figure import Figure

        lines = text.splitlines()
        size = (0.085 * max(map(len, lines)) + 0.4, 0.19 * len(lines) + 0.4)
        figure = Figure(figsize=size)
        figure.text(0.2 / size[0], 1 - 0.2 / size[1], plots.plain_text(text), family="monospace", fontsize=10, va="top", linespacing=1.3)
        figure.savefig(path, dpi=130)

    return draw


# The three tables of the appendix as printed; the learning rate is printed as 1^{-3}, meaning 10⁻³.
_COMMON = {
    "n_sampled_goal": 4, "goal_selection_strategy": "future", "buffer_size": 1_000_000, "batch_size": 256, "gamma": 0.95,
    "random_exploration": 0.3, "target_policy_noise": 0.2, "learning_rate": 1e-3, "noise_type": "normal", "noise_std": 0.2,
    "MLP size": (256, 256, 256), "learning_starts": 1_000,
}  # fmt: skip
HYPER: dict[str, dict[str, Any]] = {
    "sparse": _COMMON | {"train_freq": 10, "gradient_steps": 10, "tau": 0.05},
    "dense": _COMMON | {"train_freq": 100, "gradient_steps": 200, "policy_delay": 5, "tau": 0.05},
    "aim": _COMMON | {"gamma": 0.9, "train_freq": 100, "gradient_steps": 200, "disc_train_freq": 100, "disc_steps": 20, "tau": 0.1},
}


def preset_table(reward: str) -> dict[str, Any]:
    """The preset `paper` under the names of the paper's tables; only the rows which that reward's table has."""
    from aimrl import agents

    c = make_config(TASKS["Push"], preset="paper", reward=reward)
    agent: Any = agents.make(c.agent, **c.agent_options)
    values = {
        "n_sampled_goal": round(c.her_ratio / (1 - c.her_ratio), 6),  # k hindsight goals a transition: k / (k + 1) of a batch
        "goal_selection_strategy": c.her,
        "buffer_size": c.buffer_size,
        "batch_size": c.batch_size,
        "gamma": agent.gamma,
        "random_exploration": c.random_final,
        "target_policy_noise": agent.target_noise,
        "learning_rate": agent.critic_rate,
        "noise_type": "normal",  # TD3 has no other
        "noise_std": agent.noise,
        "MLP size": agent.hidden,
        "learning_starts": c.learning_starts,
        "train_freq": c.round_steps,
        "gradient_steps": c.round_updates,
        "policy_delay": agent.policy_delay,
        "disc_train_freq": c.round_steps,
        "disc_steps": c.potential_updates,
        "tau": agent.tau,
    }
    return {name: values[name] for name in HYPER["sparse" if reward not in ("dense", "aim", "aim+r") else reward.removesuffix("+r")]}


def _show(v: Any) -> str:
    return f"{v:,}" if isinstance(v, int) else f"{v:g}" if isinstance(v, float) else str(list(v) if isinstance(v, tuple) else v)


def _hyper(reward: str, rewards: Sequence[str]) -> Callable[[Material], Shown]:
    def make(material: Material) -> Shown:
        paper, ours = HYPER[reward], {r: preset_table(r) for r in rewards}
        rows = [["Hyperparameter", "the paper's", *(f"preset paper, {r}" for r in rewards)]]
        rows += [[k, _show(v), *(_show(ours[r][k]) for r in rewards)] for k, v in paper.items()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [" | ".join(cell.ljust(w) for cell, w in zip(row, widths)) for row in rows]
        text = "\n".join([lines[0], "-+-".join("-" * w for w in widths), *lines[1:]])
        odd = [f"{k} ({r}): {_show(t[k])}" for r, t in ours.items() for k, v in paper.items() if t[k] != v]
        verdict = Verdict("the preset `paper` is this table", not odd, "; ".join(odd) or f"all {len(paper)} rows are equal", exact=True)
        notes = ["The actor's learning rate is half the critic's, as in the released code; two environments are stepped at once."]
        return Shown(_text_picture(text), notes, {"paper": paper, "ours": ours, "table": text}, [verdict])

    return make


ITEMS = {
    item.name: item
    for item in (
        Item("example", "fig:example", "Grid world example: distances and walls", _example),
        Item("gridworld", "fig:gridworld", "The room: visits and reward with AIM, visits with the task reward", _gridworld,
             ("fig:grid_policy", "fig:reward", "fig:task_policy"), (ROOM_AIM, ROOM_TASK)),
        Item("fetch", "fig:fetch", "AIM with HER on the Fetch tasks against the other rewards", _fetch,
             ("fig:reach", "fig:pick", "fig:push", "fig:slide"), fetch=FETCH),
        Item("windy_gridworld", "fig:windy_gridworld", "The windy room: reward and visits", _windy,
             ("fig:windy_grid", "fig:windy_reward", "fig:windy_policy"), (WINDY_AIM, CALM_AIM)),
        Item("toroid", "fig:toroid", "The torus: AIM's reward and visits, the WGAN reward", _toroid,
             ("fig:r_toroid", "fig:p_toroid", "fig:r_gnorm"), (TORUS_AIM, TORUS_WGAN)),
        Item("add_grid", "fig:add_grid", "The room with the other rewards", _add_grid,
             ("fig:grid_disco", "fig:grid_ddl", "fig:grid_rnd", "fig:grid_smirl", "fig:grid_rew_ddl", "fig:grid_rew_rnd"),
             (*(GridCell("room", r, n) for r in OTHERS for n in (100, 500)), EARLY_RND)),
        Item("app_fetch", "fig:app_fetch", "AIM with and without the task reward on the Fetch tasks", _app_fetch,
             ("fig:app_reach", "fig:app_pick", "fig:app_push", "fig:app_slide"), fetch=APP_FETCH),
        Item("anova", "tab:anova", "Tukey's test on the Fetch tasks", _anova, fetch=ANOVA),
        Item("hyper_r", "tab:hyper_r", "Hyperparameters of TD3 and HER (R + HER)", _hyper("sparse", ["sparse"])),
        Item("hyper_dense", "tab:hyper_dense", "Hyperparameters of dense + HER", _hyper("dense", ["dense"])),
        Item("hyper_aim", "tab:hyper_aim", "Hyperparameters of AIM + HER and AIM + R + HER", _hyper("aim", ["aim", "aim+r"])),
    )
}  # fmt: skip


# --- listing and making -----------------------------------------------------------------------------------------------------------------


def find(name: str) -> Item:
    """An item by its name or label; a panel's label leads to its figure."""
    known = {
        key: item for item in ITEMS.values() for key in (item.name, item.label, *item.panels, *(p.partition(":")[2] for p in item.panels))
    }
    known |= ITEMS  # where a panel and a figure share a name, the figure
    if name not in known:
        raise UserError(nearest(name, ITEMS, "figure or table") + " (aimrl paper lists all)")
    return known[name]


def cost(item: Item, budget_name: str) -> dict[str, Any]:
    """How many runs an item takes at a budget, and an estimate of the core-hours, nothing being there yet."""
    budget, spec = BUDGETS[budget_name], fetch_spec(item, budget_name, OUT)
    cells = spec.cells if spec else ()
    seconds = sum(GRID_BEGIN_S + GRID_S * (s := c.settings(budget))["seeds"] * s["iterations"] for c in item.grids)
    seconds += sum(FETCH_BEGIN_S + c.config.steps * sweep.assumed_seconds_per_step(c.config) for c in cells)
    return {"runs": len(cells) + len(item.grids), "core_hours": round(seconds / 3600, 2)}


def state(item: Item, out: Path = OUT) -> dict[str, Any]:
    """Whether the item has been made: at which budget, when, from what, and how its statements came out."""
    path = out / item.name / "data.json"
    if not path.is_file():
        return {"made": False}
    try:
        data = runs.read_json(path)
        found = {key: data[key] for key in ("budget", "when", "from")}
        return {"made": True, **found, "verdicts": [v["verdict"] for v in data["verdicts"]]}
    except (UserError, KeyError, TypeError) as e:
        return {"made": False, "problem": f"{path} can't be read: {e}"}


def listing(out: Path = OUT) -> list[dict[str, Any]]:
    """Every figure and table with its command, budgets and state."""
    where = "" if out == OUT else f" --out {out}"
    return [
        {
            "name": item.name, "label": item.label, "kind": item.kind, "title": item.title, "panels": item.panels,
            "command": f"aimrl paper {item.name} --budget desk{where}",
            "budgets": {b: cost(item, b) for b in BUDGETS}, "state": state(item, out),
        }
        for item in ITEMS.values()
    ]  # fmt: skip


def listing_text(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        s = row["state"]
        made = f"made at budget {s['budget']} on {s['when']} from {s['from']}" if s["made"] else s.get("problem", "not made")
        needs = ", ".join(f"{b} {c['runs']} runs, {c['core_hours']:,.2f} core-hours" for b, c in row["budgets"].items() if c["runs"])
        lines += [f"{row['label']}: {row['title']}", f"    {row['command']}", f"    {needs or 'no training'}", f"    {made}"]
        if s["made"]:
            lines.append("    statements: " + ", ".join(f"{s['verdicts'].count(v)} {v}" for v in dict.fromkeys(s["verdicts"])))
    lines += ["", "Budgets:", *(f"    {name:<6} {b.words}" for name, b in BUDGETS.items())]
    return "\n".join([*lines, "Core-hours are estimates; figures and tables of one budget share their runs."])


def check_budget(name: str) -> Budget:
    if name not in BUDGETS:
        raise UserError(nearest(name, BUDGETS, "budget"))
    return BUDGETS[name]


@dataclass(frozen=True)
class Outcome:
    """How a reproduction ended."""

    folder: Path
    verdicts: Sequence[dict[str, Any]] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  # runs, with their reasons
    stopped: bool = False

    def text(self) -> str:
        lines = [f"{v['verdict']}: {v['claim']} ({v['evidence']})" for v in self.verdicts]
        lines += [f"failed: {name}: {why}" for name, why in self.failed.items()]
        return "\n".join([*lines, "stopped; the same command goes on" if self.stopped else f"made: {self.folder / 'figure.png'}"])


def reproduce(
    name: str, budget_name: str = "desk", out: Path = OUT, jobs: int | None = None, ray: str | None = None, progress: bool = True
) -> Outcome:
    """Run what the item needs and isn't there yet; then write its figure.png, caption.md and data.json."""
    item, budget = find(name), check_budget(budget_name)
    folder = _folder(out / item.name)
    _keep_better(item, budget_name, out)
    grids = {}
    for i, cell in enumerate(item.grids):
        if progress:
            print(f"[{i + 1}/{len(item.grids)}] {cell.folder(budget, out).name}", file=sys.stderr, flush=True)
        grids[cell] = run_grid(cell, budget, out, progress)
    curves, found, problems, failed = Curves({}), [], [], {}
    if spec := fetch_spec(item, budget_name, out):
        summary = sweep.run(spec, jobs, ray, progress)
        if summary.stopped:
            return Outcome(folder, failed=summary.failed, stopped=True)
        failed = summary.failed
        curves, found, problems = read_curves(spec)
        if not any(len(r.evals.step) for r in found):
            raise UserError(f"no run of {item.name} got to an evaluation: {next(iter(failed.values()), 'see ' + str(spec.out))}")
    shown = item.make(Material(budget_name, grids, curves, [r.folder for r in found if len(r.evals.step)]))
    verdicts = [_judged(v, budget_name) for v in shown.verdicts]
    origin = _origin(item, budget, grids, found)
    (folder / "data.json").unlink(missing_ok=True)  # it says that the other two belong together
    shown.draw(folder / "figure.png")
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"name": item.name, "label": item.label, "budget": budget_name, "when": when, "from": origin, "versions": runs.versions()}
    notes = [*problems, *(f"{cell} failed: {why}" for cell, why in failed.items())]
    (folder / "caption.md").write_text(_caption(item, budget_name, shown, verdicts, about, notes), encoding="utf-8")
    runs.write_json(folder / "data.json", about | {"verdicts": verdicts, "notes": notes, "panels": shown.panels, "data": shown.data})
    return Outcome(folder, verdicts, failed)


def _folder(folder: Path) -> Path:
    """The item's folder, before anything is run for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as e:
        raise UserError(f"cannot write to {folder}: {e.strerror or e}") from None
    return folder


def _keep_better(item: Item, budget_name: str, out: Path) -> None:
    """A smoke must not take the place of what took days."""
    order, old = list(BUDGETS), state(item, out).get("budget")
    if old in order and order.index(old) > order.index(budget_name):
        raise UserError(f"{out / item.name} holds what was made at budget {old}: choose another --out for budget {budget_name}")


def _judged(v: Verdict, budget_name: str) -> dict[str, Any]:
    """A verdict in words; only the full budget speaks of the paper's own protocol."""
    holds = v.holds if v.exact or BUDGETS[budget_name].decides else None
    where = "" if v.exact or budget_name == "full" else " at this budget"
    words = "not decided at this budget" if holds is None else f"{'holds' if holds else 'does not hold'}{where}"
    return {"claim": v.claim, "verdict": words, "holds": holds, "evidence": v.evidence}


def _origin(item: Item, budget: Budget, grids: Mapping[GridCell, GridRun], found: Sequence[plots.RunData]) -> str:
    parts = [f"{_many(len(grids), 'grid run')} of {_many(budget.grid_seeds, 'seed')}, preset paper"] if grids else []
    if found:
        seeds, steps = len({r.seed for r in found}), sorted({int(r.steps) for r in found})
        parts.append(
            f"{_many(len(found), 'run')}, preset {budget.preset}, {_many(seeds, 'seed')}, {' and '.join(f'{s:,}' for s in steps)} steps"
        )
    return "; ".join(parts) or "presets and exact computation, no training"


def _caption(
    item: Item, budget_name: str, shown: Shown, verdicts: Sequence[Mapping[str, Any]], about: Mapping[str, Any], notes: Sequence[str]
) -> str:
    letters = [f"({c}) " for c in "abcdef"] if len(shown.panels) > 1 and item.kind == "figure" else [""] * len(shown.panels)
    lines = [f"# {item.label}: {item.title}", "", *(f"- {letter}{panel}" for letter, panel in zip(letters, shown.panels))]
    if "table" in shown.data:
        lines += ["", "```", shown.data["table"], "```"]
    lines += ["", "## Do the paper's statements hold?", ""]
    lines += [f"- **{v['verdict']}**: {v['claim']}.\n  {v['evidence'][:1].upper()}{v['evidence'][1:]}." for v in verdicts]
    lines += ["", "## How it was made", "", f"From {about['from']}."]
    if item.grids or item.fetch:
        lines.append(f"Budget {budget_name}: {BUDGETS[budget_name].words}.")
    if item.grids:
        lines.append("Visits are means over seeds, rewards those of the first seed. Success is that of 100 sampled episodes a seed.")
    if item.fetch:
        lines.append("Success: the goal was reached within an episode, as in the paper. Bands: 95 % bootstrap intervals over seeds.")
        lines.append("Differences: of the mean success over training, from the first evaluation to the last that both have.")
    with contextlib.suppress(KeyError):
        lines.append(f"aimrl {about['versions']['aimrl']}, jax {about['versions']['jax']}; {about['when']}.")
    lines += ["", f"    aimrl paper {item.name} --budget {budget_name}", *(f"\nWarning: {note}" for note in notes)]
    return "\n".join(lines) + "\n"
