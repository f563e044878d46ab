"""The dry run: what a sweep would take."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from aimrl import runs
from aimrl.config import Config
from aimrl.sweep.cell import finished, last_row, position
from aimrl.sweep.spec import Spec, check_options, one_line
from aimrl.types import UserError, cores, look_here

# What an estimate rests on while no cell has finished: docs/howto/sweep.md says so, and a finished cell replaces it.
UPDATE_S, STEP_S, BEGIN_S, PROCESS_BYTES = 0.010, 0.001, 20.0, 700 << 20


def dry_run(spec: Spec, jobs: int | None = None) -> dict[str, Any]:
    """What a sweep would do: its cells with their states, core-hours, hours, memory and disk. Each environment is made once."""
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs must be at least 1, not {jobs}")
    jobs = jobs or cores()
    rows, speeds = [], measured_speeds(spec)
    specs = {key: _probe(*key) for key in {_world(c.config) for c in spec.cells}}
    for cell in spec.cells:
        c, folder = cell.config, spec.out / cell.name
        found, buffer = specs[_world(c)], 0
        try:
            check_options(c)
            state = "finished" if finished(folder, c) else "resumes" if runs.checkpoint_steps(folder) else "new"
            buffer = 0 if isinstance(found, str) else _buffer_bytes(c, found)
        except UserError as e:
            state = f"will fail: {e}"
        if isinstance(found, str):
            state = f"will fail: {found}"
        left = 0 if state == "finished" or state.startswith("will") else max(c.steps - position(folder)[0], 0)
        seconds = left / speeds[_kind(c)] if _kind(c) in speeds else assumed_seconds(c, left, getattr(found, "horizon", 50))
        rows.append({"cell": cell.name, "state": state, "steps_left": left, "core_hours": seconds / 3600, "measured": _kind(c) in speeds})
        rows[-1] |= {"memory_bytes": PROCESS_BYTES + 2 * buffer, "disk_bytes": 2 * buffer}
    at_once = sorted((r["memory_bytes"] for r in rows if r["steps_left"]), reverse=True)[:jobs]
    total = sum(r["core_hours"] for r in rows)
    longest = max((r["core_hours"] for r in rows), default=0.0)
    disk = sum(r["disk_bytes"] for r in rows)
    return {
        "name": spec.name,
        "out": str(spec.out),
        "jobs": jobs,
        "cells": rows,
        "core_hours": total,
        "hours": max(total / jobs, longest),
        "memory_bytes": sum(at_once),
        "disk_bytes": disk,
        "basis": basis(rows),
    }


def basis(rows: list[dict[str, Any]]) -> str:
    """What the estimate rests on, in words."""
    known = sum(r["measured"] for r in rows)
    rule = f"{UPDATE_S * 1000:g} ms an update, {STEP_S * 1000:g} ms an environment step and {BEGIN_S:g} s to start assumed"
    if known == len(rows):
        return "speeds measured in this sweep's own cells"
    return f"speeds of {known} of {len(rows)} cells from like cells of this sweep, {rule} for the others" if known else rule


def dry_run_text(report: dict[str, Any]) -> str:
    """A dry run as lines for people."""
    lines = [f"{r['cell']}: {r['state']}, {r['steps_left']:,} steps, {r['core_hours']:.2f} core-hours" for r in report["cells"]]
    gib = lambda n: f"{n / 2**30:.1f} GiB"  # noqa: E731
    lines.append(f"{len(report['cells'])} cells in {report['out']}: {report['core_hours']:.2f} core-hours, about {report['hours']:.2f} h ")
    lines[-1] += f"with {report['jobs']} at once, {gib(report['memory_bytes'])} of memory, up to {gib(report['disk_bytes'])} of disk"
    return "\n".join([*lines, f"Estimated: {report['basis']}."])


def measured_speeds(spec: Spec) -> dict[str, float]:
    """Steps a second of this sweep's cells so far, by everything but the seed."""
    found: dict[str, list[float]] = {}
    for cell in spec.cells:
        last = last_row(spec.out / cell.name / "evals.jsonl") or {}
        step, wall = last.get("step"), last.get("wall_s")
        if isinstance(step, int) and isinstance(wall, int | float) and step > 0 and wall > 0:
            found.setdefault(_kind(cell.config), []).append(step / wall)
    return {kind: len(v) / sum(1 / x for x in v) for kind, v in found.items()}


def _kind(c: Config) -> str:
    return json.dumps(runs.plain(dataclasses.asdict(c) | {"seed": 0}), sort_keys=True)


def assumed_seconds(c: Config, steps: int, horizon: int = 50) -> float:
    """Stated costs of starting, of updates and of steps, those of evaluations included, before anything was measured."""
    played = steps + -(-steps // c.eval_every) * c.eval_episodes * horizon
    return (BEGIN_S if steps else 0.0) + played * STEP_S + steps * UPDATE_S * c.round_updates / c.round_steps


def _world(c: Config) -> tuple[str, str, int, float]:
    return c.env, c.backend, c.horizon, c.env_timeout


def _probe(env: str, backend: Any, horizon: int, timeout_s: float) -> Any:
    """Sizes of an environment, or the line that says why it can't be made."""
    from aimrl.envs import vector

    look_here(env)
    try:
        with vector.make(env, 1, 0, backend, horizon=horizon or None, timeout_s=timeout_s) as made:
            return made.spec
    except UserError as e:
        return one_line(e)


def _buffer_bytes(c: Config, spec: Any) -> int:
    from aimrl import replay, rewards
    from aimrl.train import capacity

    return replay.bytes_needed(spec, capacity(c, spec), rewards.make(c.reward, **c.reward_options).needs_prefix)
