"""The charts of a report: data for its script, and the same in words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from aimrl import plots
from aimrl.plots import Group, Score, percent
from aimrl.report.content import SUCCESS, Report, Success
from aimrl.report.markup import Chart, curve_data, esc, interval, numbers, table

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
    (
        "moved",
        "Stored transitions after which the goal's object still moves",
        "percent",
        "While this is near 0, hindsight has nothing to teach.",
    ),
)
_AXES: tuple[plots.Axis, ...] = ("step", "wall")
_CENTRES: tuple[plots.Centre, ...] = ("mean", "iqm")


def score_words(s: Score, measure: Success) -> str:
    seeds = len(s.seeds)
    episodes = [int(run.evals.episodes[-1]) for run in s.group.runs if len(run.evals.step)]
    over = f"{seeds} seeds" if s.of == "seeds" else f"{episodes[-1]} episodes of one seed"
    span = f"95 % interval {interval(s.low, s.high)}, {over}"
    return f"{s.group.name}: goal {SUCCESS[measure]} in {percent(s.value)} ({span}) at {s.step:,} steps"


def success_chart(report: Report, env: str) -> Chart | None:
    """Learning curves of one environment."""
    series, words, rows = [], [], []
    for g in (g for g in report.groups if g.env == env):
        scores = {m: plots.score(g, m) for m in SUCCESS}
        if scores["final"] is None:
            continue
        curves = {f"{m}/{a}/{c}": curve_data(plots.curve(g, m, a, c)) for m in SUCCESS for a in _AXES for c in _CENTRES}
        seeds = {f"{m}/{a}": _seed_lines(g, m, a) for m in SUCCESS for a in _AXES}
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
            reached = f"needs {c.mid[-1]:.3g} steps" if np.isfinite(c.mid[-1]) else "doesn't reach it"
            words.append(f"{g.name} {reached} at the end")
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
        for measure in SUCCESS:
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
    for measure in SUCCESS:
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


def _known(s: Score) -> tuple[float, float]:
    return (s.low, s.high) if math.isfinite(s.low) and math.isfinite(s.high) else (s.value, s.value)
