"""Making an item: its runs, its picture, its numbers and its caption."""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aimrl import plots, runs, sweep
from aimrl.paper.budgets import BUDGETS, OUT, Budget, check_budget
from aimrl.paper.items import find, state
from aimrl.paper.material import Curves, GridCell, GridRun, Item, Material, Shown, fetch_spec, read_curves, run_grid
from aimrl.paper.verdicts import Verdict, many
from aimrl.types import UserError


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
    folder = out / item.name
    runs.check_writable(folder)
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
    parts = [f"{many(len(grids), 'grid run')} of {many(budget.grid_seeds, 'seed')}, preset paper"] if grids else []
    if found:
        seeds, steps = len({r.seed for r in found}), sorted({int(r.steps) for r in found})
        parts.append(
            f"{many(len(found), 'run')}, preset {budget.preset}, {many(seeds, 'seed')}, {' and '.join(f'{s:,}' for s in steps)} steps"
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
    if item.fetch:
        lines.append(f"Budget {budget_name}: {BUDGETS[budget_name].words}.")
    if item.grids:
        lines.append(f"Budget {budget_name}: {BUDGETS[budget_name].grid_words}.")
        lines.append("Visits are means over seeds, rewards those of the first seed. Success is that of 100 sampled episodes a seed.")
    if item.fetch:
        lines.append("Success: the goal was reached within an episode, as in the paper. Bands: 95 % bootstrap intervals over seeds.")
        lines.append("Differences: of the mean success over training, from the first evaluation to the last that both have.")
    with contextlib.suppress(KeyError):
        lines.append(f"aimrl {about['versions']['aimrl']}, jax {about['versions']['jax']}; {about['when']}.")
    lines += ["", f"    aimrl paper {item.name} --budget {budget_name}", *(f"\nWarning: {note}" for note in notes)]
    return "\n".join(lines) + "\n"
