"""What the figures of robot runs show: reading run folders, grouping seeds, curves with intervals; and their pictures for print.

Reports and the live view draw the same numbers; nothing here needs JAX.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from aimrl import runs as folders
from aimrl.types import UserError

if TYPE_CHECKING:
    from aimrl.stats import Counts

Floats = NDArray[np.float64]
Measure = Literal["final", "ever", "to_goal"]
Axis = Literal["step", "wall"]
Centre = Literal["mean", "iqm"]

# Okabe and Ito's colours, told apart with every common kind of colour blindness; dashes for those who see none.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#6B6B6B")
DASHES = ("solid", "dash", "dot", "dashdot")
_MANY = 400  # points of a metric's curve: more cannot be told apart on a screen


@dataclass(frozen=True, eq=False)
class Evals:
    """The evaluations of one run, one row a step."""

    step: Floats
    wall: Floats  # seconds of training; NaN where not logged
    final: Floats  # share of episodes at the goal in their last state
    ever: Floats  # share of episodes that reached it
    to_goal: Floats  # median steps of the episodes that reached it; NaN if none did
    wins_final: Floats
    wins_ever: Floats
    episodes: Floats


@dataclass(frozen=True, eq=False)
class RunData:
    """What can be read of one run folder, checked."""

    folder: Path
    config: dict[str, Any]
    evals: Evals
    metrics: dict[str, tuple[Floats, Floats]] = field(repr=False)  # name: steps, values
    logged: tuple[int, float]  # the newest logged step and its seconds

    @property
    def env(self) -> str:
        return self.config["env"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def steps(self) -> int:
        return self.config["steps"]

    @property
    def finished(self) -> bool:
        """The last evaluation of a run is made at its last step."""
        return len(self.evals.step) > 0 and self.evals.step[-1] >= self.steps


@dataclass(frozen=True, eq=False)  # equal only to itself, so that its intervals can be kept
class Group:
    """The seeds of one method in one environment."""

    env: str
    name: str
    runs: tuple[RunData, ...]


@dataclass(frozen=True)
class Curve:
    """A centre and a 95 % interval over x; `of` says what the interval is of."""

    x: Floats
    mid: Floats
    low: Floats
    high: Floats
    of: Literal["seeds", "episodes"]


# --- reading -----------------------------------------------------------------------------------------------------------------------------


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 else math.nan


def _eval_row(record: dict[str, Any]) -> tuple[float, ...]:
    """One line of evals.jsonl as numbers; ValueError if it isn't one."""
    final, ever, first = (v if isinstance(v := record.get(k), list) else [] for k in ("success_final", "success_ever", "steps_to_goal"))
    if not _is_count(record.get("step")):
        raise ValueError("step is not a count")
    for values in (final, ever):
        if not values or any(v not in (0, 1) for v in values):
            raise ValueError("successes are not a list of 0 and 1")
    if len(final) != len(ever):
        raise ValueError("unequal numbers of episodes")
    hits = [n for n in map(_number, first) if n >= 0]
    median = float(np.median(hits)) if hits else math.nan
    n = len(final)
    return (record["step"], _number(record.get("wall_s")), sum(final) / n, sum(ever) / n, median, sum(final), sum(ever), n)


def _whole_lines(path: Path) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """A log's lines by their numbers, and what to say of the damaged ones."""
    rows, damaged = folders.read_log(path)
    return rows, [f"{path}: line {number} is damaged; left out" for number in damaged]


def read_evals(folder: Path) -> tuple[Evals, list[str]]:
    """Evaluations by step; of two at one step the later counts (a resumed run writes it again)."""
    rows, problems = _whole_lines(folder / "evals.jsonl")
    found: dict[int, tuple[float, ...]] = {}
    for number, record in rows.items():
        try:
            found[record["step"]] = _eval_row(record)
        except (ValueError, KeyError, TypeError) as e:
            problems.append(f"{folder}/evals.jsonl: line {number} is no evaluation ({e}); left out")
    table = np.array([found[s] for s in sorted(found)], float).reshape(-1, 8)
    return Evals(*table.T), problems


def _read_metrics(folder: Path) -> tuple[dict[str, tuple[Floats, Floats]], tuple[int, float], list[str]]:
    rows, problems = _whole_lines(folder / "metrics.jsonl")
    rows = [r for r in rows.values() if _is_count(r.get("step"))]
    names = sorted({k for r in rows for k in r} - {"step"})
    columns: dict[str, tuple[Floats, Floats]] = {}
    for name in names:
        pairs = np.array([(r["step"], v) for r in rows if math.isfinite(v := _number(r.get(name)))], float).reshape(-1, 2)
        if len(pairs):
            columns[name] = (pairs[:, 0], pairs[:, 1])
    wall = columns.get("wall_s", (np.zeros(0), np.zeros(0)))[1]
    return columns, (rows[-1]["step"] if rows else 0, float(wall[-1]) if len(wall) else 0.0), problems


def read_run(folder: Path) -> tuple[RunData, list[str]]:
    """A run and one line for each thing wrong with it; UserError if its configuration cannot be read."""
    config = folders.read_json(folder / "config.json")
    for key, kind in (("env", str), ("reward", str), ("seed", int), ("steps", int)):
        if not isinstance(config.get(key), kind) or isinstance(config.get(key), bool):
            raise UserError(f"{folder}/config.json is not a run's: its {key} is {config.get(key)!r:.60}")
    evals, problems = read_evals(folder)
    metrics, logged, more = _read_metrics(folder)
    if len(evals.step) and evals.step[-1] >= logged[0]:
        logged = (int(evals.step[-1]), logged[1] if math.isnan(evals.wall[-1]) else float(evals.wall[-1]))
    return RunData(folder, config, evals, metrics, logged), problems + more


# --- grouping ----------------------------------------------------------------------------------------------------------------------------


def group(runs: Sequence[RunData]) -> tuple[list[Group], list[str]]:
    """Seeds of one method in one environment together; a second run of a cell is left out with a line."""
    cells: dict[tuple[str, str], dict[int, RunData]] = {}
    problems = []
    for run, name in zip(runs, folders.method_names([r.config for r in runs])):
        seeds = cells.setdefault((run.env, name), {})
        if run.seed in seeds:
            other = seeds[run.seed].folder
            problems.append(f"{run.folder}: the same cell as {other} ({run.env}, {name}, seed {run.seed}); left out")
        else:
            seeds[run.seed] = run
    keys = sorted(cells, key=lambda k: (k[0], folders.method_order(k[1])))
    groups = [Group(*k, tuple(cells[k][s] for s in sorted(cells[k]))) for k in keys]
    return groups, problems + folders.mixed_versions([r.config for r in runs])


def read(paths: Iterable[Path]) -> tuple[list[RunData], list[str]]:
    """Every readable run; one line for each thing that is wrong."""
    runs, problems = [], []
    for path in paths:
        try:
            run, lines = read_run(path)
        except UserError as e:
            problems.append(f"{e}; left out")
            continue
        runs.append(run)
        problems += lines
        if not len(run.evals.step):
            problems.append(f"{path}: no evaluations yet")
    return runs, problems


# --- curves ------------------------------------------------------------------------------------------------------------------------------


def wilson(wins: Any, n: Any, z: float = 1.96) -> tuple[Any, Any]:
    """Wilson's 95 % interval of a share: right also at 0 and 1."""
    wins, n = np.asarray(wins, float), np.asarray(n, float)
    p = wins / n
    middle, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return np.clip((middle - half) / scale, 0, 1), np.clip((middle + half) / scale, 0, 1)


def shared_steps(group: Group) -> Floats:
    """Steps at which every seed that was evaluated at all was evaluated."""
    sets = [set(r.evals.step.tolist()) for r in group.runs if len(r.evals.step)]
    return np.array(sorted(set.intersection(*sets)) if sets else [], float)


def _at(run: RunData, steps: Floats, values: Floats) -> Floats:
    return values[np.searchsorted(run.evals.step, steps)]


def _one(run: RunData, step: float, values: Floats) -> int:
    return int(_at(run, np.array([step]), values)[0])


def curve(group: Group, measure: Measure, axis: Axis = "step", centre: Centre = "mean") -> Curve:
    """Centre over seeds with a bootstrap interval; with one seed, Wilson's interval of its episodes (of the run, not of the method).

    Over wall time a point stands at the seeds' mean time of its step.
    """
    steps = shared_steps(group)
    if not len(steps):
        return Curve(*np.zeros((4, 0)), of="seeds")
    x = steps if axis == "step" else np.stack([_at(r, steps, r.evals.wall) for r in group.runs if len(r.evals.step)]).mean(0)
    return Curve(x, *_band(group, measure, centre))


@lru_cache(maxsize=1024)  # a bootstrap takes a moment, and several figures show the same curve
def _band(group: Group, measure: Measure, centre: Centre) -> tuple[Floats, Floats, Floats, Literal["seeds", "episodes"]]:
    from aimrl.stats import bootstrap_interval, iqm, pooled_iqm

    runs, steps = [r for r in group.runs if len(r.evals.step)], shared_steps(group)
    y = np.stack([_at(r, steps, getattr(r.evals, measure)) for r in runs])
    low, high = np.full(len(steps), np.nan), np.full(len(steps), np.nan)
    if len(runs) == 1:
        if measure != "to_goal":
            wins = _at(runs[0], steps, getattr(runs[0].evals, f"wins_{measure}"))
            low, high = wilson(wins, _at(runs[0], steps, runs[0].evals.episodes))
        return y[0], low, high, "episodes"
    whole = ~np.isnan(y).any(0)  # no seed reached the goal: no steps to it
    if whole.any():
        statistic = pooled_iqm if centre == "iqm" else np.mean
        low[whole], high[whole] = bootstrap_interval([y[:, whole]], np.random.default_rng(0), statistic)
    return (iqm(y, axis=0) if centre == "iqm" else y.mean(0)), low, high, "seeds"


def metric_curve(group: Group, name: str) -> Curve | None:
    """Mean of a logged number over seeds with its range, thinned for a screen; None if no seed logged it."""
    columns = [r.metrics[name] for r in group.runs if name in r.metrics]
    if not columns:
        return None
    steps = np.array(sorted(set.intersection(*(set(x.tolist()) for x, _ in columns))), float)
    if not len(steps):
        return None
    y = np.stack([values[np.searchsorted(x, steps)] for x, values in columns])
    return Curve(*(_thin(v) for v in (steps, y.mean(0), y.min(0), y.max(0))), of="seeds")


def _thin(values: Floats, most: int = _MANY) -> Floats:
    """Means of equal runs of values, so that at most `most` are left."""
    size = -(-len(values) // most)
    return np.array([values[i : i + size].mean() for i in range(0, len(values), size)]) if size > 1 else values


@dataclass(frozen=True)
class Score:
    """One method in one environment at the last step all its seeds share."""

    group: Group
    step: int
    seeds: Floats  # success of each
    value: float  # mean
    low: float
    high: float
    of: Literal["seeds", "episodes"]


def score(group: Group, measure: Literal["final", "ever"], centre: Centre = "mean") -> Score | None:
    c = curve(group, measure, centre=centre)
    if not len(c.x):
        return None
    each = np.array([_at(r, c.x[-1:], getattr(r.evals, measure))[0] for r in group.runs if len(r.evals.step)])
    return Score(group, int(c.x[-1]), each, float(c.mid[-1]), float(c.low[-1]), float(c.high[-1]), c.of)


def last_shared(groups: Sequence[Group]) -> tuple[dict[str, int], list[str]]:
    """By environment, the last step at which all its runs were evaluated, so that methods are compared after equal practice."""
    last, problems = {}, []
    for env in sorted({g.env for g in groups}):
        here = [set(r.evals.step.tolist()) for g in groups if g.env == env for r in g.runs if len(r.evals.step)]
        shared = set.intersection(*here) if here else set()
        if here and not shared:
            problems.append(f"{env}: no step at which all {len(here)} runs were evaluated; nothing is tested there")
        if shared:
            last[env] = int(max(shared))
    return last, problems


def counts(groups: Sequence[Group], measure: Literal["final", "ever"]) -> tuple[dict[str, Counts], list[str]]:
    """Successes for the mixed model, by environment, at the last step that all its runs share."""
    from aimrl import stats

    last, problems = last_shared(groups)
    tables = {}
    for env, step in last.items():
        here = [(g.name, r) for g in groups if g.env == env for r in g.runs if len(r.evals.step)]
        pairs = {(n, str(r.seed)): (getattr(r.evals, f"wins_{measure}"), r.evals.episodes, r) for n, r in here}
        tables[env] = stats.counts({k: (_one(r, step, wins), _one(r, step, n)) for k, (wins, n, r) in pairs.items()}, step)
    return tables, problems


def across(groups: Sequence[Group], measure: Literal["final", "ever"]) -> dict[str, list[Floats]]:
    """The seeds' successes of each method that ran in every environment, a sample an environment, at the last step all runs share."""
    last, _ = last_shared(groups)
    found: dict[str, dict[str, Floats]] = {}
    for g in groups:
        made = [r for r in g.runs if len(r.evals.step)]
        if made and g.env in last:
            step = np.array([last[g.env]], float)
            found.setdefault(g.name, {})[g.env] = np.array([_at(r, step, getattr(r.evals, measure))[0] for r in made])
    everywhere = sorted((name for name, by in found.items() if len(by) == len(last)), key=folders.method_order)
    return {name: [found[name][env] for env in last] for name in everywhere}


# --- words -------------------------------------------------------------------------------------------------------------------------------


def percent(share: float) -> str:
    """85 %; one decimal only where it says more than "almost"."""
    if not math.isfinite(share):
        return "–"
    text, fine = f"{100 * share:.0f}", f"{100 * share:.1f}"
    return f"{text} %" if text not in ("0", "100") or fine in ("0.0", "100.0") else f"{fine} %"


# --- pictures for print ------------------------------------------------------------------------------------------------------------------


Line = tuple[str, int, Curve]  # a name, the number of its colour, and what to draw


def draw_curves(groups: Sequence[Group], path: Path, measure: Literal["final", "ever"] = "final", axis: Axis = "step") -> Path:
    """Learning curves as a picture file (the suffix chooses the format): a panel an environment, a colour a method."""
    envs = sorted({g.env for g in groups})
    if not envs:
        raise UserError("no runs to draw")
    names = sorted({g.name for g in groups}, key=folders.method_order)
    panels = {env: [(g.name, names.index(g.name), curve(g, measure, axis)) for g in groups if g.env == env] for env in envs}
    return draw_panels(panels, path, "goal held at the end" if measure == "final" else "goal reached", axis)


def draw_panels(panels: Mapping[str, Sequence[Line]], path: Path, y: str, axis: Axis = "step", empty: str = "not run") -> Path:
    """Panels of curves of shares by their titles: four stand two by two, as in the paper; a method has the same colour in all."""
    from matplotlib.figure import Figure

    wide = len(panels) if len(panels) < 4 else 2 if len(panels) == 4 else 3
    tall = -(-len(panels) // wide)
    figure = Figure(figsize=((4.6 if wide > 1 else 6.4) * wide + 0.4, 3.4 * tall + 0.6), layout="constrained")
    places, handles = figure.subplots(tall, wide, squeeze=False).ravel(), {}
    for i, (panel, (title, lines)) in enumerate(zip(places, panels.items())):
        panel.set_title(plain_text(title), fontsize=11)
        for name, j, c in lines:
            if len(c.x):
                colour, dash = COLOURS[j % len(COLOURS)], ("-", "--", ":", "-.")[j % 4]
                (handles[j, name],) = panel.plot(c.x, c.mid, dash, color=colour, lw=1.9, marker="o" if len(c.x) < 4 else "")
                panel.fill_between(c.x, c.low, c.high, color=colour, alpha=0.16, lw=0)
        if not panel.lines:
            panel.text(0.5, 0.5, empty, transform=panel.transAxes, ha="center", va="center", color="#555555")
            panel.set(xticks=[])
        panel.set(ylim=(-0.03, 1.03), ylabel=y if i % wide == 0 else "", xlabel=_x_title(axis) if panel.lines else "")
        panel.xaxis.set_major_formatter(lambda v, _: f"{v / 1e6:g} M" if v >= 1e6 else f"{v / 1e3:g} k" if v >= 1e3 else f"{v:g}")
        panel.yaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f} %")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in places[len(panels) :]:
        panel.set_axis_off()
    if handles:
        order = sorted(handles)
        names = [plain_text(name) for _, name in order]
        columns = min(len(names), 2 if wide == 1 else 4)
        figure.legend([handles[k] for k in order], names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _x_title(axis: Axis) -> str:
    return "environment steps" if axis == "step" else "seconds of training"


def plain_text(text: str) -> str:
    """A name for matplotlib without its mathematics: $ starts a formula there, and a broken one raises."""
    return text.replace("$", r"\$")
