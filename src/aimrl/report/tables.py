"""The tables of a report: an overview, the paper's statistics, comparisons between methods."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from aimrl import plots
from aimrl.plots import Group, percent
from aimrl.progress import human_time
from aimrl.report.content import SUCCESS, Report, Success
from aimrl.report.markup import bar, esc, fine, interval, swatch, table, whisker


def improvement(report: Report) -> str:
    """How likely a run of one method is to beat a run of another: a row a pair."""
    from aimrl import stats

    found: dict[tuple[str, str], list[str]] = {}
    words, single = [], False
    for measure in SUCCESS:
        samples = plots.across(report.groups, measure)
        for a, b in itertools.combinations(samples, 2):
            chance = stats.probability_of_improvement(samples[a], samples[b])
            low, high = stats.improvement_interval(samples[a], samples[b], np.random.default_rng(0))
            found.setdefault((a, b), []).append(f"{whisker(chance, low, high)}{percent(chance)} {fine(interval(low, high))}")
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
    success = [f"{bar(s.value, report.colour(g))}{percent(s.value)} {fine(interval(s.low, s.high))}" for s in (final, ever)]
    return [
        name,
        esc(g.env),
        str(len(final.seeds)),
        *success,
        f"{goal:.3g}" if math.isfinite(goal) else "–",
        f"{level:,.0f}" if math.isfinite(level) else "not yet",
        percent(float(np.mean([stats.area_under_curve(*c) for c in curves]))),
        f"{final.step:,}<br>{fine(human_time(float(np.mean([r.logged[1] for r in g.runs]))))}",
    ]


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
        said = f"<h3>Goal {SUCCESS[measure]}{' (the paper’s success)' if measure == 'ever' else ''}</h3>"
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
    caption = f"Log odds ratios (standard errors) of success {SUCCESS[measure]}; * significant at 95 %. Compared at step: {steps}."
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
