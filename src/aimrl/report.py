"""One self-contained HTML page about runs: curves, intervals, statistics, pictures, videos, configurations.

Everything that comes from a run folder is text to us: escaped in HTML, in the JSON of the charts and in the words Plotly draws. The page
fetches nothing, and its content security policy lets only our own two scripts run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import math
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aimrl import plots, runs
from aimrl.plots import Curve, Group, RunData, Score, duration, percent
from aimrl.types import UserError

MAX_FILE = 12 << 20  # bytes of one picture or video in the page
MAX_MEDIA = 48 << 20  # and of all of them
MAX_CONFIG = 20_000  # characters of one run's configuration
# Only files that are what their name says: the first bytes of each kind.
_KINDS = {
    ".mp4": ("video/mp4", lambda b: b[4:8] == b"ftyp"),
    ".webm": ("video/webm", lambda b: b[:4] == b"\x1aE\xdf\xa3"),
    ".gif": ("image/gif", lambda b: b[:6] in (b"GIF87a", b"GIF89a")),
    ".png": ("image/png", lambda b: b[:8] == b"\x89PNG\r\n\x1a\n"),
    ".jpg": ("image/jpeg", lambda b: b[:3] == b"\xff\xd8\xff"),
}
_CAPTIONS = {
    "potential_table": "The learned potential over the table: it should rise towards the goal (the star).",
    "potential_episode": "The learned potential along episodes beside the true distance to the goal.",
    "reward": "The learned reward over the world.",
    "visits": "Where the agent spends its time.",
    "policy": "The policy.",
    "potential": "The learned potential against the exact distance to the goal.",
    "success": "Success over training, a line a seed.",
}
_METRICS: tuple[tuple[str, str, str, str], ...] = (  # name in the log (its last part for a reward's own), title, kind of axis, meaning
    ("*/w1", "Distance to the goal, as the potential sees it", "number", "The estimate of the Wasserstein-1 distance; for AIM in steps."),
    (
        "*/violations",
        "Transitions that break the potential's bound",
        "percent",
        "Near 0: it rises by at most one step a step.",
    ),
    ("reward/mean", "Reward", "number", "Mean learned reward of a training batch."),
    ("agent/q", "Q value", "number", "Mean of the critic; a runaway here is divergence."),
    ("agent/critic_loss", "Critic loss", "number", ""),
    ("moved", "Stored episodes in which the goal's object moved", "percent", "While this is near 0, hindsight has nothing to teach."),
)
Success = Literal["final", "ever"]
_AXES: tuple[plots.Axis, ...] = ("step", "wall")
_CENTRES: tuple[plots.Centre, ...] = ("mean", "iqm")
_SUCCESS: dict[Success, str] = {"final": "held at the end", "ever": "reached"}


def esc(value: Any) -> str:
    """Text for HTML, in content and in attributes. Control characters cannot be shown and are dropped."""
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in str(value)), quote=True)


def script_json(value: Any) -> str:
    """JSON for a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- what a report is about --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Medium:
    """A picture or video as a data address."""

    kind: str  # its MIME type
    data: str
    name: str  # file name without suffix
    about: str  # the run it shows


@dataclass(frozen=True)
class GridRun:
    """A grid world's run: its numbers and pictures."""

    folder: Path
    config: dict[str, Any]
    result: dict[str, Any]


@dataclass(frozen=True)
class Report:
    groups: list[Group]
    grids: list[GridRun]
    media: dict[Path, list[Medium]]
    problems: list[str]
    title: str
    live: bool = False

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(sorted((g.name for g in self.groups), key=plots._order)))

    @property
    def runs(self) -> list[RunData]:
        return [r for g in self.groups for r in g.runs]

    def colour(self, group: Group) -> int:
        return self.methods.index(group.name)


def write(folders: Sequence[Path], out: Path, title: str | None = None) -> list[str]:
    """Write the report on run folders (or folders of them) to one file; returns one line for each thing that was wrong."""
    page, problems = render(folders, title)
    temporary = out.with_name(out.name + ".part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, out)
    except OSError as e:
        raise UserError(f"cannot write {out}: {e.strerror or e}") from None
    return problems


def render(folders: Sequence[Path], title: str | None = None, live: bool = False) -> tuple[str, list[str]]:
    """The page and the problems. `live` is for a run that is still going: there may be nothing to show yet, and the page asks for news."""
    report = gather(folders, title, live)
    if not live and not report.grids and not any(len(r.evals.step) or r.metrics for r in report.runs):
        more = f" (and {len(report.problems) - 1} more)" if len(report.problems) > 1 else ""
        raise UserError(f"nothing to report: {report.problems[0] if report.problems else 'no run folders'}{more}")
    return page(report), report.problems


def gather(folders: Sequence[Path], title: str | None = None, live: bool = False) -> Report:
    from aimrl.stats.data import find_runs

    found: list[Path] = []
    problems: list[str] = []
    for folder in map(Path, folders):
        try:
            found += find_runs([folder])
        except UserError as e:
            problems.append(str(e))
    found = list(dict.fromkeys(found))
    grids = [g for f in found if (g := _grid(f, problems)) is not None]
    grid_folders = {g.folder for g in grids}
    data, lines = plots.read(f for f in found if f not in grid_folders)
    problems += lines if not live else [line for line in lines if not line.endswith("no evaluations yet")]
    groups, lines = plots.group(data)
    problems += lines + plots.counts(groups, "ever")[1]
    media, lines = _media([g.folder for g in grids] + [r.folder for k in range(1000) for g in groups for r in g.runs[k : k + 1]])
    return Report(groups, grids, media, problems + lines, title or _title(groups, grids), live)


def _grid(folder: Path, problems: list[str]) -> GridRun | None:
    try:
        config = runs.read_json(folder / "config.json")
        if config.get("kind") != "grid":
            return None
        result = runs.read_json(folder / "result.json") if (folder / "result.json").is_file() else {}
        return GridRun(folder, config, result)
    except UserError as e:
        if "result.json" in str(e):
            problems.append(f"{e}; left out")
        return None  # plots.read says what is wrong with config.json


def _title(groups: list[Group], grids: list[GridRun]) -> str:
    if len(groups) == 1 and not grids:
        return f"{groups[0].env} with {groups[0].name}"
    if len(grids) == 1 and not groups:
        return f"{_world(grids[0])} with {grids[0].config.get('reward')}"
    envs = list(dict.fromkeys(g.env for g in groups)) + list(dict.fromkeys(_world(g) for g in grids))
    methods = len({g.name for g in groups} | {str(g.config.get("reward")) for g in grids})
    where = envs[0] if len(envs) == 1 else f"{len(envs)} environments"
    return f"{methods} method{'s' * (methods != 1)} in {where}"


def _world(grid: GridRun) -> str:
    return f"Grid world {Path(str(grid.config.get('world', '?'))).name}"


def _media(folders: Iterable[Path]) -> tuple[dict[Path, list[Medium]], list[str]]:
    """Pictures and videos of each run, first seeds first, until the page is full. Symbolic links are not followed."""
    total, full, out, problems = 0, 0, {}, []
    for folder in folders:
        out[folder] = []
        for path in _media_files(folder):
            try:
                kind, fits = _KINDS[path.suffix.lower()]
                size = path.stat().st_size
                if size > MAX_FILE:
                    problems.append(f"{path}: {size / 1e6:.0f} MB is too large for the page; left out")
                    continue
                if total + size > MAX_MEDIA:
                    full += 1
                    continue
                content = path.read_bytes()
            except OSError as e:
                problems.append(f"{path}: {e.strerror or e}; left out")
                continue
            if not fits(content):
                problems.append(f"{path}: not a {path.suffix[1:]} file; left out")
                continue
            total += len(content)
            out[folder].append(Medium(kind, base64.b64encode(content).decode(), path.stem, folder.name))
    if full:
        problems.append(f"{full} more pictures or videos would make the page too large; left out")
    return out, problems


def _media_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for name in ("videos", "figures"):
        root = folder / name
        if root.is_dir() and not root.is_symlink():
            found += [p for p in root.iterdir() if p.suffix.lower() in _KINDS and p.is_file() and not p.is_symlink()]
    order = list(_KINDS)
    found.sort(key=lambda p: (order.index(p.suffix.lower()), p.name))
    films = {p.stem for p in found if p.suffix in (".mp4", ".webm")}
    return [p for p in found if not (p.suffix == ".gif" and p.stem in films)]  # the same in fewer colours


# --- pieces of HTML ----------------------------------------------------------------------------------------------------------------------


def tag(name: str, content: str = "", **attributes: Any) -> str:
    """An element; `content` is HTML, attributes are text. `class_` and `for_` lose their underscore, other underscores become hyphens."""
    named = [(k.rstrip("_").replace("_", "-"), v) for k, v in attributes.items() if v is not None and v is not False]
    text = "".join(f" {k}" if v is True else f' {k}="{esc(v)}"' for k, v in named)
    return f"<{name}{text}>{content}</{name}>"


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table of HTML cells; the first `left` columns are text, the very first names the row."""

    def cell(i: int, content: str) -> str:
        return f'<th scope="row">{content}</th>' if i == 0 else f"<td{' class=left' if i < left else ''}>{content}</td>"

    top = "".join(f'<th scope="col"{" class=left" if i < left else ""}>{h}</th>' for i, h in enumerate(head))
    body = "".join(f"<tr>{''.join(cell(i, c) for i, c in enumerate(row))}</tr>" for row in rows)
    inner = f"<table><caption>{caption}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table">{inner}</div>'


def section(anchor: str, heading: str, *content: str) -> str:
    if not any(content):
        return ""
    return f'<section id="{anchor}" aria-labelledby="h-{anchor}"><h2 id="h-{anchor}">{heading}</h2>{"".join(content)}</section>'


def interval(low: float, high: float) -> str:
    """80–90 %."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    a, b = percent(low), percent(high)
    return a if a == b else f"{a.removesuffix(' %')}–{b}"


def numbers(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Short numbers for JSON; what is not finite is a gap."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in np.asarray(list(values), float).tolist()]


def swatch(i: int) -> str:
    dash = {"solid": "", "dash": "6 3", "dot": "2 3", "dashdot": "6 3 2 3"}[plots.DASHES[i % 4]]
    line = f'<line x1="1" y1="6" x2="23" y2="6" stroke-width="3" stroke-dasharray="{dash}" style="stroke: var(--c{i % 8})"/>'
    return f'<svg width="24" height="12" aria-hidden="true" focusable="false">{line}</svg>'


def legend(series: Sequence[tuple[int, str]]) -> str:
    """Buttons that show and hide a method in every chart: reachable by keyboard, unlike a legend inside a drawing."""
    if len(series) < 2:
        return ""
    button = lambda i, name: f'<button type="button" data-series="{i}" aria-pressed="true">{swatch(i)}{esc(name)}</button>'  # noqa: E731
    return f'<ul class="legend" aria-label="Methods shown">{"".join(f"<li>{button(i, n)}</li>" for i, n in series)}</ul>'


@dataclass(frozen=True)
class Chart:
    """A drawing's data for the script, and what says the same in words and numbers."""

    title: str
    summary: str
    y: str  # percent or number
    by: tuple[str, ...]  # which of the reader's choices select the curves
    series: list[dict[str, Any]]
    numbers: str = ""  # a table
    kind: str = "lines"
    wide: bool = False

    def html(self, anchor: str, heading: str = "h3") -> str:
        head = f'<{heading} id="{anchor}-t">{esc(self.title)}</{heading}>'
        plot = f'<div class="plot" id="{anchor}" role="img" aria-labelledby="{anchor}-t" aria-describedby="{anchor}-s"></div>'
        more = f'<details id="{anchor}-n"><summary>The numbers</summary>{self.numbers}</details>' if self.numbers else ""
        words = f'<figcaption id="{anchor}-s">{esc(self.summary)}</figcaption>'
        shown = legend([(s["i"], s["name"]) for s in self.series])
        return f'<figure class="card{" wide" if self.wide else ""}">{head}{shown}{plot}{words}{more}</figure>'

    def data(self, anchor: str) -> dict[str, Any]:
        return {"id": anchor, "kind": self.kind, "y": self.y, "by": list(self.by), "series": self.series}


def curve_data(c: Curve) -> dict[str, Any]:
    return {"x": numbers(c.x, 9), "y": numbers(c.mid), "lo": numbers(c.low), "hi": numbers(c.high)}


# --- the parts of the page ---------------------------------------------------------------------------------------------------------------


def score_words(s: Score, measure: Success) -> str:
    seeds = len(s.seeds)
    over = f"{seeds} seeds" if s.of == "seeds" else f"{int(s.group.runs[0].evals.episodes[-1])} episodes of one seed"
    span = f"95 % interval {interval(s.low, s.high)}, {over}"
    return f"{s.group.name}: goal {_SUCCESS[measure]} in {percent(s.value)} ({span}) at {s.step:,} steps"


def success_chart(report: Report, env: str) -> Chart | None:
    """Learning curves of one environment."""
    series, words, rows = [], [], []
    for g in (g for g in report.groups if g.env == env):
        scores = {m: plots.score(g, m) for m in _SUCCESS}
        if scores["final"] is None:
            continue
        curves = {f"{m}/{a}/{c}": curve_data(plots.curve(g, m, a, c)) for m in _SUCCESS for a in _AXES for c in _CENTRES}
        seeds = {f"{m}/{a}": _seed_lines(g, m, a) for m in _SUCCESS for a in _AXES}
        series.append({"i": report.colour(g), "name": g.name, "curves": curves, "seeds": seeds if len(g.runs) > 1 else {}})
        words.append(score_words(scores["final"], "final"))
        final, ever, steps = curves["final/step/mean"], curves["ever/step/mean"], plots.shared_steps(g)
        rows += [
            [esc(g.name), f"{int(x):,}", percent(f), percent(e)]
            for x, f, e in zip(steps.tolist(), final["y"], ever["y"])
            if f is not None and e is not None
        ]
    if not series:
        return None
    head = ("Method", "Steps", "Held at the end", "Reached")
    shown = table(f"Mean success in {esc(env)} by step", head, rows)
    return Chart(env, "; ".join(words) + ".", "percent", ("measure", "axis", "centre"), series, shown, wide=True)


def _seed_lines(g: Group, measure: Success, axis: plots.Axis) -> list[dict[str, Any]]:
    lines = ((r.seed, getattr(r.evals, axis), getattr(r.evals, measure)) for r in g.runs if len(r.evals.step))
    return [{"name": f"seed {seed}", "x": numbers(x, 9), "y": numbers(y)} for seed, x, y in lines]


def to_goal_chart(report: Report, env: str) -> Chart | None:
    series, words = [], []
    for g in (g for g in report.groups if g.env == env):
        c = plots.curve(g, "to_goal")
        if np.isfinite(c.mid).any():
            curves = {axis: curve_data(plots.curve(g, "to_goal", axis)) for axis in _AXES}
            series.append({"i": report.colour(g), "name": g.name, "curves": curves})
            last = c.mid[np.isfinite(c.mid)][-1]
            words.append(f"{g.name} needs {last:.3g} steps at the end")
    summary = "Median number of steps of the episodes that reach the goal; episodes that never do are not in it. "
    return Chart(env, summary + "; ".join(words) + ".", "number", ("axis",), series) if series else None


def metric_charts(report: Report, env: str) -> list[Chart]:
    charts = []
    for pattern, title, y, meaning in _METRICS:
        series, words = [], []
        for g in (g for g in report.groups if g.env == env):
            names = sorted({n for r in g.runs for n in r.metrics if n == pattern or (pattern[0] == "*" and n.endswith(pattern[1:]))})
            c = plots.metric_curve(g, names[0]) if names else None
            if c is not None:
                series.append({"i": report.colour(g), "name": g.name, "curves": {"": curve_data(c)}})
                words.append(f"{g.name} ends at {percent(c.mid[-1]) if y == 'percent' else f'{c.mid[-1]:.3g}'}")
        if series:
            charts.append(Chart(title, f"{meaning} {'; '.join(words)}.".strip(), y, (), series))
    return charts


def aggregate_chart(report: Report) -> Chart | None:
    """Success at the end of training: a bar an environment and method."""
    series, words = [], []
    for i, name in enumerate(report.methods):
        points: dict[str, list[dict[str, Any]]] = {}
        for measure in _SUCCESS:
            for centre in _CENTRES:
                scores = [s for g in report.groups if g.name == name and (s := plots.score(g, measure, centre))]
                points[f"{measure}/{centre}"] = [
                    {"label": s.group.env} | dict(zip(("y", "lo", "hi"), numbers((s.value, *_known(s))))) for s in scores
                ]
                if (measure, centre) == ("final", "mean") and scores:
                    words.append(f"{name}: " + ", ".join(f"{s.group.env} {percent(s.value)}" for s in scores))
        if points["final/mean"]:
            series.append({"i": i, "name": name, "points": points})
    if sum(len(s["points"]["final/mean"]) for s in series) < 2:
        return None
    summary = "Success at the last step all seeds share, with its 95 % interval. " + "; ".join(words) + "."
    return Chart("Success at the end of training", summary, "percent", ("measure", "centre"), series, kind="bars", wide=True)


def across_chart(report: Report) -> Chart | None:
    """One number a method over environments and seeds: the interquartile mean with its stratified bootstrap interval."""
    from aimrl import stats

    points: dict[str, dict[str, list[dict[str, Any]]]] = {}
    words = []
    for measure in _SUCCESS:
        for name, samples in plots.across(report.groups, measure).items():
            value = float(stats.pooled_iqm(*samples))
            low, high = map(float, stats.bootstrap_interval(samples, np.random.default_rng(0)))
            known = (low, high) if math.isfinite(low) else (value, value)
            row = {"label": _where(len(samples))} | dict(zip(("y", "lo", "hi"), numbers((value, *known))))
            points.setdefault(name, {})[measure] = [row]
            if measure == "final":
                words.append(f"{name} {percent(value)}" + (f" ({interval(low, high)})" if math.isfinite(low) else ""))
    several = len({g.env for g in report.groups}) > 1 or len(points) > 1
    if not several or not any(len(g.runs) > 1 for g in report.groups):
        return None
    series = [{"i": report.methods.index(name), "name": name, "points": by} for name, by in points.items()]
    about = "Interquartile mean over environments and seeds, with 95 % bootstrap intervals; seeds are drawn again within each environment. "
    return Chart("All environments together", about + "; ".join(words) + ".", "percent", ("measure",), series, kind="bars", wide=True)


def _where(environments: int) -> str:
    return f"{environments} environments" if environments > 1 else "1 environment"


def improvement(report: Report) -> str:
    """How likely a run of one method is to beat a run of another: a row a pair."""
    from aimrl import stats

    found: dict[tuple[str, str], list[str]] = {}
    words, single = [], False
    for measure in _SUCCESS:
        samples = plots.across(report.groups, measure)
        for a, b in itertools.combinations(samples, 2):
            chance = stats.probability_of_improvement(samples[a], samples[b])
            low, high = stats.improvement_interval(samples[a], samples[b], np.random.default_rng(0))
            found.setdefault((a, b), []).append(f"{_whisker(chance, low, high)}{percent(chance)} {_fine(interval(low, high))}")
            single |= math.isnan(low)
            if measure == "final" and (low > 0.5 or high < 0.5):
                words.append(f"{a} over {b}" if low > 0.5 else f"{b} over {a}")
    if not found:
        return ""
    left_out = sorted({g.name for g in report.groups} - {name for pair in found for name in pair})
    about = (
        "The chance that a run of the first method succeeds more often than a run of the second in the same environment, ties counted "
        "half, averaged over environments; 50 % is no difference. Intervals are 95 %, bootstrap over seeds"
        + ("; there is none where an environment has one seed only" if single else "")
        + f". Clear of 50 % in success held at the end: {', '.join(words) or 'none'}."
        + (f" Left out, not run in every environment: {', '.join(left_out)}." if left_out else "")
    )
    rows = [[f"{esc(a)} over {esc(b)}", *cells] for (a, b), cells in found.items()]
    shown = table("Probability of improvement", ("Pair", "Held at the end", "Reached"), rows)
    shown = shown if len(rows) <= 20 else f"<details class='plain'><summary>All {len(rows)} pairs</summary>{shown}</details>"
    return f"<h3>Probability of improvement</h3><p class='muted'>{esc(about)}</p>{shown}"


def _whisker(value: float, low: float, high: float) -> str:
    """A chance and its interval on a line from 0 to 1, with a mark at one half."""
    span = f'<line x1="{4 + 56 * low:.1f}" y1="6" x2="{4 + 56 * high:.1f}" y2="6"/>' if math.isfinite(low) else ""
    dot = f'<circle cx="{4 + 56 * value:.1f}" cy="6" r="3" style="fill: currentColor"/>'
    half = '<line x1="32" y1="0" x2="32" y2="12" stroke-dasharray="2 2" opacity="0.6"/>'
    lines = f'<g stroke="currentColor" stroke-width="1.5">{half}{span}</g>'
    return f'<span class="bar" aria-hidden="true"><svg width="64" height="12">{lines}{dot}</svg></span>'


def _fine(text: str) -> str:
    return f"<span class='muted small'>{text}</span>"


def _known(s: Score) -> tuple[float, float]:
    return (s.low, s.high) if math.isfinite(s.low) and math.isfinite(s.high) else (s.value, s.value)


def overview(report: Report) -> str:
    """A row a method and environment: what most readers came for."""
    rows = [_overview_row(report, g) for g in report.groups]
    head = ("Method", "Environment", "Seeds", "Held at the end", "Reached", "Steps to goal", "Steps to 90 %", "Mean over training", "After")
    about = (
        "Success at the last evaluation all seeds share. Intervals are 95 %: bootstrap over seeds, or Wilson's over the episodes where "
        "there is one seed. Steps to 90 % and the mean over training (the area under the curve) are of success held at the end."
    )
    return f"<p class='muted'>{about}</p>" + table("Each method in each environment", head, rows, left=2) if rows else ""


def _overview_row(report: Report, g: Group) -> list[str]:
    from aimrl import stats

    name = f"{swatch(report.colour(g))} {esc(g.name)}"
    final, ever = plots.score(g, "final"), plots.score(g, "ever")
    if final is None or ever is None:
        return [name, esc(g.env), str(len(g.runs)), *["–"] * 6]
    curves = [(r.evals.step, r.evals.final) for r in g.runs if len(r.evals.step)]
    level, goal = stats.steps_to_summary(curves)["median"], plots.curve(g, "to_goal").mid[-1]
    success = [f"{_bar(s.value, report.colour(g))}{percent(s.value)} {_fine(interval(s.low, s.high))}" for s in (final, ever)]
    return [
        name,
        esc(g.env),
        str(len(final.seeds)),
        *success,
        f"{goal:.3g}" if math.isfinite(goal) else "–",
        f"{level:,.0f}" if math.isfinite(level) else "not yet",
        percent(float(np.mean([stats.area_under_curve(*c) for c in curves]))),
        f"{final.step:,}<br>{_fine(duration(float(np.mean([r.logged[1] for r in g.runs]))))}",
    ]


def _bar(value: float, i: int) -> str:
    fill = f'<rect width="{64 * value:.1f}" height="9" rx="4" style="fill: var(--c{i % 8})"/>'
    return f'<span class="bar" aria-hidden="true"><svg width="64" height="9">{fill}</svg></span>'


def hero(report: Report) -> str:
    """One method in one environment: the number first, and something to see."""
    if len(report.groups) != 1 or report.grids:
        return ""
    g = report.groups[0]
    final, ever = plots.score(g, "final"), plots.score(g, "ever")
    run, pick = g.runs[0], hero_medium(report)
    if final is None or ever is None:
        text = "<p class='big'>…</p><p class='lead'>No evaluation yet: the first comes after "
        text += f"{_count(run.config.get('eval_every'))} steps.</p>"
    else:
        value, sign = percent(final.value).split(" ") if " " in percent(final.value) else (percent(final.value), "")
        episodes = int(sum(r.evals.episodes[-1] for r in g.runs if len(r.evals.step)))
        words = f"of {episodes:,} test episodes end at the goal, after {final.step:,} steps of practice"
        words += f" and {duration(run.logged[1])} of training." if len(g.runs) == 1 else f" (mean of {len(final.seeds)} seeds)."
        if run.config["reward"] == "aim" and not _option(run, "reward_options", "task_weight"):
            words += " No reward came from the environment: the agent made its own."
        text = f"<p class='big'>{value}<small>&nbsp;{sign}</small></p><p class='lead'>{words}</p>{_tiles(g, final, ever)}"
    seen = _figure(pick) if pick else ""
    return f'<div class="hero{"" if seen else " alone"}"><div>{text}</div>{seen}</div>'


def hero_medium(report: Report) -> Medium | None:
    """The first thing to see of a lone method: a video, an animation, or the potential."""
    if len(report.groups) != 1 or report.grids:
        return None
    media = [m for r in report.groups[0].runs for m in report.media[r.folder]]
    wanted = [m for m in media if m.kind.startswith("video")] + [m for m in media if m.kind == "image/gif"]
    return next(iter(wanted + [m for m in media if m.name.startswith("potential")]), None)


def _tiles(g: Group, final: Score, ever: Score) -> str:
    from aimrl import stats

    goal = plots.curve(g, "to_goal").mid[-1]
    level = stats.steps_to_summary([(r.evals.step, r.evals.final) for r in g.runs if len(r.evals.step)])["median"]
    of = "over seeds" if final.of == "seeds" else "over episodes"
    speed = float(np.mean([r.logged[0] / r.logged[1] for r in g.runs if r.logged[1] > 0] or [math.nan]))
    tiles = [
        ("Held at the end", percent(final.value), f"95 % interval {interval(final.low, final.high)} {of}"),
        ("Reached at any time", percent(ever.value), f"95 % interval {interval(ever.low, ever.high)} {of}"),
        ("Steps to the goal", f"{goal:.3g}" if math.isfinite(goal) else "–", "median of the episodes that reach it"),
        ("90 % held after", f"{level:,.0f} steps" if math.isfinite(level) else "not yet", "first evaluation at or above"),
        ("Speed", f"{speed:,.0f} steps/s" if math.isfinite(speed) else "–", "with learning and evaluation"),
    ]
    return "<dl class='tiles'>" + "".join(f"<div><dt>{a}</dt><dd>{b}<small>{c}</small></dd></div>" for a, b, c in tiles) + "</dl>"


def _option(run: RunData, group: str, name: str) -> Any:
    options = run.config.get(group)
    return options.get(name) if isinstance(options, dict) else None


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "some"


def statistics(report: Report) -> str:
    """The paper's mixed model in words and as its table; both successes."""
    from aimrl import stats

    parts = []
    order: tuple[Success, ...] = ("ever", "final")
    for measure in order:
        tables, _ = plots.counts(report.groups, measure)
        tables = {env: c for env, c in tables.items() if len(c.algorithms) > 1}
        if not tables:
            continue
        result = stats.analyse(stats.Table(tables))
        said = f"<h3>Goal {_SUCCESS[measure]}{' (the paper’s success)' if measure == 'ever' else ''}</h3>"
        parts.append(said + f"<blockquote>{esc(stats.sentence(result))}</blockquote>" + _contrasts(result, measure))
    if not parts:
        return ""
    about = (
        "A binomial mixed-effects model per environment with a random intercept a seed; all pairwise contrasts, Holm's adjustment inside "
        "an environment and Bonferroni's across environments. Positive log odds: the first method succeeds more often."
    )
    return f"<p>{about}</p>" + "".join(parts)


def _contrasts(result: dict[str, dict[str, Any]], measure: Success) -> str:
    pairs = list(dict.fromkeys((c["a"], c["b"]) for entry in result.values() for c in entry["contrasts"]))
    if not pairs:
        return ""
    by = {(env, c["a"], c["b"]): c for env, entry in result.items() for c in entry["contrasts"]}
    rows = [[f"{esc(a)} − {esc(b)}", *(_contrast(by.get((env, a, b))) for env in result)] for a, b in pairs]
    steps = ", ".join(f"{esc(env)} {entry['step']:,}" for env, entry in result.items())
    caption = f"Log odds ratios (standard errors) of success {_SUCCESS[measure]}; * significant at 95 %. Compared at step: {steps}."
    shown = table(caption, ("Contrast", *map(esc, result)), rows)
    return shown if len(rows) <= 20 else f"<details class='plain'><summary>All {len(rows)} contrasts</summary>{shown}</details>"


def _contrast(c: dict[str, Any] | None) -> str:
    if c is None:
        return "–"
    number = lambda v: f"{v + 0.0:.2f}".replace("-", "−") if math.isfinite(v) else ("∞" if v > 0 else "−∞")  # noqa: E731
    spread = number(c["se"]) if c["test"] == "wald" else "LR"
    p = "p &lt; 0.001" if c["p_final"] < 0.001 else f"p = {c['p_final']:.3f}"
    star = "<span class='sig'>*</span>" if c["significant"] else ""
    return f"{star}{number(c['estimate'])} ({spread}) <span class='muted small'>{p}</span>"


def grids(report: Report) -> str:
    parts = []
    for g in report.grids:
        rates, steps = _finite(g.result.get("success_rate")), _finite(g.result.get("steps_to_goal"))
        facts = [
            ("Success", percent(float(np.mean(rates))) if rates else "–", f"mean of {len(rates)} seeds"),
            ("Steps to the goal", f"{np.mean(steps):.3g}" if steps else "–", "mean of seeds"),
            ("Iterations", _count(g.result.get("iterations")), f"{_count(g.result.get('env_steps'))} steps of all seeds"),
            ("Time", duration(plots._number(g.result.get("wall_s"))), ""),
        ]
        tiles = "".join(f"<div><dt>{a}</dt><dd>{esc(b)}<small>{esc(c)}</small></dd></div>" for a, b, c in facts)
        head = f"<h3>{esc(_world(g))}, {esc(g.config.get('reward'))} <span class='muted small'>{esc(g.folder.name)}</span></h3>"
        parts.append(f"{head}<dl class='tiles'>{tiles}</dl>{_figures(report.media[g.folder])}")
    return "".join(parts)


def _finite(values: Any) -> list[float]:
    return [n for v in (values if isinstance(values, list) else [values]) if math.isfinite(n := plots._number(v))]


def pictures(report: Report) -> str:
    parts, shown = [], hero_medium(report)
    for g in report.groups:
        for r in g.runs:
            if media := [m for m in report.media[r.folder] if m is not shown]:
                note = _look_words(r.folder)
                head = f"<h3>{esc(g.env)}, {esc(g.name)}, seed {r.seed}</h3>"
                parts.append(head + (f"<p>{esc(note)}</p>" if note else "") + _figures(media))
    return "".join(parts)


def _look_words(folder: Path) -> str:
    """What look.py measured of the potential."""
    try:
        found = runs.read_json(folder / "figures" / "potential.json")
    except UserError:
        return ""
    steps, gap = plots._number(found.get("spearman_steps")), plots._number(found.get("spearman_distance"))
    said = [f"by the steps still to go with {steps:.2f}"] if math.isfinite(steps) else []
    said += [f"by closeness to the goal with {gap:.2f}"] if math.isfinite(gap) else []
    reached = f"{_count(found.get('episodes_reached'))} of {_count(found.get('episodes'))} episodes reached the goal"
    return f"Rank correlation of the potential: {' and '.join(said)} (1 is a perfect order; {reached})." if said else ""


def _figures(media: Sequence[Medium]) -> str:
    # Three panels side by side want the whole width.
    cards = [_figure(m, "card span" if m.name.startswith("potential_") else "card") for m in media]
    return f"<div class='media'>{''.join(cards)}</div>" if cards else ""


def _figure(m: Medium, kind: str = "") -> str:
    gif = m.kind == "image/gif"
    button = "<div><button type='button' hidden>Pause the animation</button></div>" if gif else ""
    return f"<figure class='{kind}{' gif' if gif else ''}'>{_show(m)}{button}<figcaption>{esc(_caption(m))}</figcaption></figure>"


def _caption(m: Medium) -> str:
    if m.name.startswith("policy-") and m.name[7:].isdigit():
        return f"The policy at step {int(m.name[7:]):,}."
    known = _CAPTIONS.get(m.name, m.name.replace("_", " ").replace("-", " "))
    return known.rstrip(".") + ", over the iterations." if m.kind == "image/gif" else known


def _show(m: Medium) -> str:
    source, label = f"data:{m.kind};base64,{m.data}", f"{_caption(m)} Run {m.about}."
    if m.kind.startswith("video"):
        return tag("video", "", src=source, controls=True, muted=True, loop=True, playsinline=True, preload="metadata", aria_label=label)
    return f'<img src="{source}" alt="{esc(label)}">'


def run_list(report: Report) -> str:
    items = []
    for k, (group, r) in enumerate((g, r) for g in report.groups for r in g.runs):
        state = "finished" if r.finished else f"{r.logged[0]:,} of {r.steps:,} steps"
        about = f"{esc(group.env)}, {esc(group.name)}, seed {r.seed}: {state}, {duration(r.logged[1])}"
        head = f"<strong>{esc(r.folder.name)}</strong> <span class='muted'>{about}</span>"
        items.append(_run_item(f"run-{k}", head, command(r.config, r.folder), r.config))
    for k, g in enumerate(report.grids):
        head = f"<strong>{esc(g.folder.name)}</strong> <span class='muted'>{esc(_world(g))}, {esc(g.config.get('reward'))}</span>"
        items.append(_run_item(f"grid-{k}", head, grid_command(g), g.config))
    return f"<div class='runs'>{''.join(items)}</div>" if items else ""


def _run_item(anchor: str, head: str, line: str, config: dict[str, Any]) -> str:
    found = config.get("versions")
    facts = "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(v)}</dd></div>" for k, v in found.items()) if isinstance(found, dict) else ""
    rest = json.dumps({k: v for k, v in config.items() if k != "versions"}, indent=1, ensure_ascii=False)
    rest = rest if len(rest) <= MAX_CONFIG else rest[:MAX_CONFIG] + "\n…"
    inner = f"<p class='small muted'>Made by</p><pre><code>{esc(line)}</code></pre>"
    inner += f"<p class='small muted'>Versions</p><dl class='facts'>{facts}</dl>" if facts else ""
    inner += f"<details class='plain' id='{anchor}-c'><summary>Configuration</summary><pre><code>{esc(rest)}</code></pre></details>"
    return f"<details id='{anchor}'><summary>{head}</summary><div class='inner'>{inner}</div></details>"


def command(config: dict[str, Any], folder: Path) -> str:
    """The command line that makes this run again: what differs from the preset is spelt out."""
    from aimrl.config import Config, make_config

    if isinstance(line := config.get("command"), str):
        return line
    reward, agent = str(config["reward"]), str(config.get("agent", "td3"))
    words = ["aimrl", "train", config["env"], "--reward", reward, "--agent", agent, "--preset", str(config.get("preset", "fast"))]
    words += ["--steps", str(config["steps"]), "--seed", str(config["seed"])]
    try:
        base = make_config(config["env"], preset=str(config.get("preset", "fast")), reward=reward)
    except UserError:  # a preset file that is elsewhere, or names of another version
        base = Config(config["env"])
    for name, default in vars(base).items():
        value = config.get(name, default)
        if name in ("env", "reward", "agent", "preset", "steps", "seed") or runs.plain(value) == runs.plain(default):
            continue
        if name in ("agent_options", "reward_options"):
            group = agent if name == "agent_options" else reward.removesuffix("+r").removesuffix("-")
            changed = {k: v for k, v in value.items() if runs.plain(default).get(k) != v} if isinstance(value, dict) else {}
            words += [w for k, v in changed.items() for w in _flag(f"{group}.{k}", v)]
        else:
            words += _flag(name, value)
    return shlex.join([*words, "--out", folder.name])


def _flag(name: str, value: Any) -> list[str]:
    name = name.replace("_", "-")
    if isinstance(value, bool):
        group, _, last = name.rpartition(".")
        return [f"--{name}" if value else f"--{group + '.' if group else ''}no-{last}"]
    return [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]


def grid_command(g: GridRun) -> str:
    c = g.config
    words = ["aimrl", "grid", str(c.get("world", "?"))]
    for key in ("reward", "preset", "seeds", "seed", "iterations"):
        words += [f"--{key}", str(c[key])] if key in c else []
    return shlex.join([*words, "--out", g.folder.name])


# --- the page ----------------------------------------------------------------------------------------------------------------------------


def page(report: Report) -> str:
    envs = list(dict.fromkeys(g.env for g in report.groups))
    charts: list[tuple[str, Chart]] = []

    def place(prefix: str, found: Iterable[Chart | None]) -> str:
        out = []
        for chart in found:
            if chart is not None:
                charts.append((f"{prefix}{len(charts)}", chart))
                out.append(chart.html(charts[-1][0]))
        return "".join(out)

    curves = place("curve", (success_chart(report, env) for env in envs))
    bars = place("bars", [aggregate_chart(report), across_chart(report)])
    to_goal = place("goal", (to_goal_chart(report, env) for env in envs))
    metrics = [(env, place("metric", metric_charts(report, env))) for env in envs]
    one = len(report.groups) == 1 and not report.grids
    inside = "".join(
        (f"<h3>{esc(env)}</h3>" if len(envs) > 1 else "") + f"<div class='grid fine'>{cards}</div>" for env, cards in metrics if cards
    )
    table_of_all = "" if one else overview(report)
    parts = [
        section("results", "Results", table_of_all, bars, improvement(report)),
        section("curves", "Learning curves", _controls(report) + f"<div class='grid'>{curves}</div>" if curves else ""),
        section("statistics", "Statistics", statistics(report)),
        section("steps", "Steps to the goal", f"<div class='grid'>{to_goal}</div>" if to_goal else ""),
        section("grids", "Grid worlds", grids(report)),
        section("pictures", "Pictures and videos", pictures(report)),
        section("inside", "What the agent learned from", _inside_words(inside), inside),
        section("runs", "Runs", run_list(report)),
    ]
    main = f"<main id='main' tabindex='-1'><div class='wrap'>{_notes(report)}{hero(report)}{''.join(parts)}</div></main>"
    body = f"{_header(report)}{_nav(parts)}{main}"
    footer = "<footer class='wrap'>Made by aimrl. This page holds everything it shows and fetches nothing.</footer>"
    data = script_json([chart.data(anchor) for anchor, chart in charts])
    scripts = "".join(f"<script>{s}</script>" for s in (_plotly(), _asset("report.js")))
    return (
        f"<!doctype html>\n<html lang='en'{' data-live=yes' if report.live else ''}><head><meta charset='utf-8'>"
        f"<meta http-equiv='Content-Security-Policy' content=\"{policy(report.live)}\">"
        "<meta name='viewport' content='width=device-width, initial-scale=1'><meta name='referrer' content='no-referrer'>"
        f"<title>{esc(report.title)} · aimrl</title><link rel='icon' href='data:,'><style>{_asset('report.css')}</style></head><body>"
        "<a class='skip' href='#main'>Skip to the results</a>"
        "<noscript><p class='wrap'>The charts need JavaScript; every number in them is also in the tables and captions.</p></noscript>"
        f"<div id='page'>{body}{footer}</div>"
        f"<script type='application/json' id='charts'>{data}</script>{scripts}</body></html>\n"
    )


def policy(live: bool = False) -> str:
    """Content security policy: only our own scripts, by their hashes; nothing is fetched, but the live page may ask its own server."""
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in (_plotly(), _asset("report.js")))
    rules = {"default-src": "'none'", "script-src": " ".join(f"'sha256-{d}'" for d in digests), "style-src": "'unsafe-inline'"}
    rules |= {"img-src": "data:", "media-src": "data:", "connect-src": "'self'" if live else "'none'"}
    return "; ".join(f"{k} {v}" for k, v in (rules | {"base-uri": "'none'", "form-action": "'none'"}).items())


def _header(report: Report) -> str:
    runs_, envs = len(report.runs) + len(report.grids), len({g.env for g in report.groups})
    said = [f"{runs_} run{'s' * (runs_ != 1)}"]
    said += [f"{envs} environments"] if envs > 1 else []
    total = sum(r.logged[0] for r in report.runs)
    said += [f"{total:,} environment steps", f"{duration(sum(r.logged[1] for r in report.runs))} of training"] if total else []
    live = ""
    if report.live and report.runs:
        r = report.runs[0]
        left = (r.steps - r.logged[0]) / speed if (speed := recent_speed(r)) else math.nan
        words = (
            "finished"
            if r.finished
            else f"live: step {r.logged[0]:,} of {r.steps:,}" + (f", {duration(left)} left" if math.isfinite(left) else "")
        )
        live = f"<p class='live{'' if r.finished else ' going'}' role='status'>{words}</p>"
        live += f"<progress class='progress' aria-label='Training' max='{max(r.steps, 1)}' value='{min(r.logged[0], r.steps)}'></progress>"
    head = f"<p class='eyebrow'>aimrl report</p><h1>{esc(report.title)}</h1><p class='muted'>{' · '.join(said)}</p>"
    return f"<header class='top wrap'>{head}{live}</header>"


def recent_speed(run: RunData) -> float:
    """Steps a second over the last logged stretch; 0 if not known yet."""
    steps, wall = run.metrics.get("wall_s", (np.zeros(0), np.zeros(0)))
    if len(steps) < 2:
        return run.logged[0] / run.logged[1] if run.logged[1] > 0 else 0.0
    k = max(len(steps) - 20, 0)
    return float((steps[-1] - steps[k]) / (wall[-1] - wall[k])) if wall[-1] > wall[k] else 0.0


def _nav(parts: Sequence[str]) -> str:
    names = {"results": "Results", "curves": "Curves", "statistics": "Statistics", "steps": "Steps to goal", "grids": "Grid worlds"}
    names |= {"pictures": "Pictures", "inside": "Inside", "runs": "Runs"}
    links = "".join(f"<li><a href='#{k}'>{v}</a></li>" for k, v in names.items() if any(p.startswith(f'<section id="{k}"') for p in parts))
    return f"<nav aria-label='Sections'><ul class='wrap'>{links}</ul></nav>"


def _notes(report: Report) -> str:
    if not report.problems:
        return ""
    lines = "".join(f"<li>{esc(p)}</li>" for p in report.problems)
    return f"<aside class='note' aria-labelledby='notes'><h2 id='notes'>Worth knowing</h2><ul>{lines}</ul></aside>"


def _controls(report: Report) -> str:
    several = any(len(g.runs) > 1 for g in report.groups)

    def radios(name: str, legend: str, choices: dict[str, str]) -> str:
        inputs = "".join(
            f"<label><input type='radio' name='{name}' value='{v}'{' checked' if k == 0 else ''}>{words}</label>"
            for k, (v, words) in enumerate(choices.items())
        )
        return f"<fieldset><legend>{legend}</legend>{inputs}</fieldset>"

    found = radios("measure", "Goal", {"final": "held at the end", "ever": "reached at any time"})
    found += radios("axis", "Over", {"step": "steps", "wall": "time"})
    if several:
        found += radios("centre", "Centre", {"mean": "mean", "iqm": "interquartile mean"})
        found += "<fieldset><legend class='hidden'>Seeds</legend><label><input type='checkbox' name='seeds'>each seed</label></fieldset>"
    alone = "95 % intervals over the test episodes of the one seed: they say nothing about other seeds"
    band = "bootstrap 95 % intervals over seeds" if several else alone
    about = f"<p class='muted'>Share of test episodes, played without exploration. Bands are {band}.</p>"
    return f"{about}<form class='controls' aria-label='What the curves show'>{found}</form>"


def _inside_words(inside: str) -> str:
    return (
        "<p class='muted'>Numbers logged while training: means over seeds, bands from the lowest to the highest seed.</p>" if inside else ""
    )


@cache
def _asset(name: str) -> str:
    return (resources.files("aimrl") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8").replace("</script", "<\\/script")
