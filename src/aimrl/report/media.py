"""What there is to see: the opening of a report on one method, grid worlds, pictures and videos."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aimrl import plots, runs
from aimrl.plots import Group, RunData, Score, percent
from aimrl.progress import human_time
from aimrl.report.content import Medium, Report, world_name
from aimrl.report.markup import count_words, esc, interval, tag
from aimrl.types import UserError

_CAPTIONS = {
    "potential_table": "The learned potential over the table: it should rise towards the goal (the star).",
    "potential_episode": "The learned potential along episodes beside the true distance to the goal.",
    "reward": "The learned reward over the world.",
    "visits": "Where the agent spends its time.",
    "policy": "The policy.",
    "potential": "The learned potential against the exact distance to the goal.",
    "success": "Success over training, a line a seed.",
}


def hero(report: Report) -> str:
    """One method in one environment: the number first, and something to see."""
    if len(report.groups) != 1 or report.grids:
        return ""
    g = report.groups[0]
    final, ever = plots.score(g, "final"), plots.score(g, "ever")
    run, pick = g.runs[0], hero_medium(report)
    if final is None or ever is None:
        text = "<p class='big'>…</p><p class='lead'>No evaluation yet: the first comes after "
        text += f"{count_words(run.config.get('eval_every'))} steps.</p>"
    else:
        value, sign = percent(final.value).split(" ") if " " in percent(final.value) else (percent(final.value), "")
        episodes = int(sum(r.evals.episodes[-1] for r in g.runs if len(r.evals.step)))
        words = f"of {episodes:,} test episodes end at the goal, after {final.step:,} steps of practice"
        words += f" and {human_time(run.logged[1])} of training." if len(g.runs) == 1 else f" (mean of {len(final.seeds)} seeds)."
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


def grids(report: Report) -> str:
    parts = []
    for g in report.grids:
        rates, steps = _finite(g.result.get("success_rate")), _finite(g.result.get("steps_to_goal"))
        facts = [
            ("Success", percent(float(np.mean(rates))) if rates else "–", f"mean of {len(rates)} seeds"),
            ("Steps to the goal", f"{np.mean(steps):.3g}" if steps else "–", "mean of seeds"),
            ("Iterations", count_words(g.result.get("iterations")), f"{count_words(g.result.get('env_steps'))} steps of each seed"),
            ("Time", human_time(plots._number(g.result.get("wall_s"))), ""),
        ]
        tiles = "".join(f"<div><dt>{a}</dt><dd>{esc(b)}<small>{esc(c)}</small></dd></div>" for a, b, c in facts)
        head = f"<h3>{esc(world_name(g))}, {esc(g.config.get('reward'))} <span class='muted small'>{esc(g.folder.name)}</span></h3>"
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
    reached = f"{count_words(found.get('episodes_reached'))} of {count_words(found.get('episodes'))} episodes reached the goal"
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
