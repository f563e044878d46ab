"""One cell: whether its folder is finished, training it to its end, and how far it is."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aimrl import runs
from aimrl.config import Config
from aimrl.sweep.spec import is_int, one_line
from aimrl.types import UserError

LOCK_WAIT = 120.0  # seconds for a dying process to let go of its cell


def finished(folder: Path, config: Config) -> bool:
    """Whether a cell needs no more work: its last evaluation is of its last step, and a checkpoint or the note `done.json` says the same.

    The note outlives checkpoints that were removed to save space. A folder of another configuration is refused.
    """
    if not (folder / "config.json").is_file():
        return False
    runs.prepare(folder, config, {}, resume=True)
    evaluated = [e["step"] for e in runs.read_lines(folder / "evals.jsonl") if is_int(e.get("step"))]
    if not evaluated or evaluated[-1] < config.steps:
        return False
    return max(runs.checkpoint_steps(folder), default=-1) >= evaluated[-1] or evaluated[-1] == _noted(folder)


def _noted(folder: Path) -> int | None:
    with contextlib.suppress(UserError):
        step = runs.read_json(folder / "done.json").get("step")
        return step if is_int(step) else None
    return None


def run_cell(config: Config, folder: Path, stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Train one cell to its end from where its folder stands; the outcome is `finished`, `stopped` or `failed` with a reason.

    `attempts.jsonl` keeps one line for each begin and each end. The cell's lock makes sure that a second process, begun because the first
    was believed dead, waits until it is.
    """
    try:
        with runs.locked(folder / ".lock", f"{folder} is still in use by another process", LOCK_WAIT):
            return _run_locked(config, folder, stop)
    except Exception as e:
        return {"state": "failed", "reason": one_line(e)}


def _run_locked(config: Config, folder: Path, stop: Callable[[], bool]) -> dict[str, Any]:
    begun = (folder / "config.json").is_file()
    if finished(folder, config):
        _note_done(folder)
        return {"state": "finished"}
    steps = runs.checkpoint_steps(folder)
    if _noted(folder) is not None and not steps:
        raise UserError(f"{folder} ended at step {_noted(folder)} and its checkpoints are gone: it can't go on to step {config.steps}")
    from aimrl.train import train

    log = folder / "attempts.jsonl"
    _drop_half_line(log)
    runs.append_line(log, {"event": "began", "step": steps[-1] if steps else 0, "host": os.uname().nodename, "pid": os.getpid()})
    try:
        with _loggers(config, folder) as listen:
            train(config, folder, resume=begun, listen=listen, stop=stop)
    except Exception as e:
        runs.append_line(log, {"event": "failed", "reason": one_line(e)})
        raise
    state = "finished" if finished(folder, config) else "stopped"
    if state == "finished":
        _note_done(folder)
    runs.append_line(log, {"event": state, "step": runs.checkpoint_steps(folder)[-1]})
    return {"state": state}


def _loggers(config: Config, folder: Path) -> contextlib.AbstractContextManager[Callable[[str, dict[str, Any]], None]]:
    """TensorBoard and W&B as the configuration asks for them, as in a run of its own."""
    if not config.tensorboard and not config.wandb:
        return contextlib.nullcontext(lambda event, data: None)
    from aimrl import agents
    from aimrl.progress import Listeners

    return Listeners(config, folder, agents.make(config.agent, **config.agent_options).gamma, quiet=True)


def _note_done(folder: Path) -> None:
    if _noted(folder) != (last := runs.read_lines(folder / "evals.jsonl")[-1])["step"]:
        runs.write_json(folder / "done.json", {"step": last["step"], "wall_s": last.get("wall_s"), "success": success_of(last)})


def _drop_half_line(path: Path) -> None:
    """A process killed while writing leaves half a line, which would swallow the next one."""
    if path.is_file() and not (text := path.read_bytes()).endswith(b"\n") and text:
        os.truncate(path, text.rfind(b"\n") + 1)


def success_of(record: dict[str, Any] | None) -> float | None:
    values = (record or {}).get("success_final")
    return sum(values) / len(values) if isinstance(values, list) and values else None


def config_from(values: dict[str, Any]) -> Config:
    """A configuration from its JSON, where the infinities among the options are words."""
    number = {"inf": math.inf, "-inf": -math.inf}
    revive = lambda options: {k: number.get(v, v) if isinstance(v, str) else v for k, v in options.items()}  # noqa: E731
    revived: dict[str, Any] = values | {key: revive(values[key]) for key in ("agent_options", "reward_options")}
    return Config(**revived)


def position(folder: Path) -> tuple[int, float | None]:
    """The newest step a run's logs know of, and the success of its last evaluation."""
    last = last_row(folder / "evals.jsonl")
    steps = [row["step"] for row in (last, last_row(folder / "metrics.jsonl")) if row and is_int(row.get("step"))]
    return max(steps, default=0), success_of(last)


def last_row(path: Path, tail: int = 1 << 16) -> dict[str, Any] | None:
    """The last whole line of a log, without reading all of it."""
    with contextlib.suppress(OSError, ValueError, RecursionError), open(path, "rb") as f:
        f.seek(max(os.fstat(f.fileno()).st_size - tail, 0))
        lines = f.read().split(b"\n")
        row = json.loads(lines[-2]) if len(lines) > 1 else None
        return row if isinstance(row, dict) else None
    return None
