"""The page as a whole."""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

from aimrl.plots import RunData
from aimrl.progress import human_time
from aimrl.report.charts import across_chart, aggregate_chart, metric_charts, success_chart, to_goal_chart
from aimrl.report.commands import run_list
from aimrl.report.content import Report, gather
from aimrl.report.markup import Chart, esc, script_json, section
from aimrl.report.media import grids, hero, pictures
from aimrl.report.tables import improvement, overview, statistics
from aimrl.types import UserError


def write(folders: Sequence[Path], out: Path, title: str | None = None) -> list[str]:
    """Write the report on run folders (or folders of them) to one file; returns one line for each thing that was wrong."""
    if out.is_dir():
        raise UserError(f"{out} is a folder: give the report a file's name, such as {out / 'report.html'}")
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
    said += [f"{total:,} environment steps", f"{human_time(sum(r.logged[1] for r in report.runs))} of training"] if total else []
    live = ""
    if report.live and report.runs:
        r = report.runs[0]
        left = (r.steps - r.logged[0]) / speed if (speed := recent_speed(r)) else math.nan
        words = (
            "finished"
            if r.finished
            else f"live: step {r.logged[0]:,} of {r.steps:,}" + (f", {human_time(left)} left" if math.isfinite(left) else "")
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
