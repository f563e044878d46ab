"""Sweeps: environments × rewards × agents × presets × seeds from one TOML file, on this machine's cores or on Ray.

A cell is a run folder, and what has been done is read from the folders alone: a sweep can be killed anywhere and started again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from aimrl import runs
from aimrl.config import Config, make_config
from aimrl.types import UserError, nearest

AXES = ("env", "reward", "agent", "preset", "seed")
MAX_CELLS = 100_000
MAX_SPEC = 1 << 20  # bytes
RETRIES = 3  # times a cell whose process was killed is taken up again before it counts as failed
LOCAL_TRIES = 3  # to start Ray here: a node gives up when its helpers need more than 15 s, as on a busy machine (Ray's issue 65983)
LOCK_WAIT = 120.0  # seconds for a dying process to let go of its cell
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
XLA_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"

# What an estimate rests on while no cell has finished: docs/howto/sweep.md says so, and a finished cell replaces it.
UPDATE_S, STEP_S, PROCESS_BYTES = 0.010, 0.001, 700 << 20


# --- what to run ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One training run of a sweep."""

    name: str  # its folder below the sweep's: env/reward-agent-preset/seed-N
    config: Config


@dataclass(frozen=True)
class Spec:
    """A checked SPEC.toml."""

    name: str
    out: Path
    cells: tuple[Cell, ...]


def load_spec(path: str | Path) -> Spec:
    """A sweep from a TOML file, or one clear line about what is wrong in it."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_SPEC:
            raise UserError(f"{path} is too large to be a sweep's specification")
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from None
    except (ValueError, RecursionError) as e:  # both of tomllib's errors and bad UTF-8 are ValueErrors
        raise UserError(f"{path} is not valid TOML: {_one_line(e)}") from None
    return parse_spec(data, path.stem, str(path))


def parse_spec(data: dict[str, Any], name: str = "sweep", where: str = "the specification") -> Spec:
    """A sweep from the tables of its TOML file."""
    grid, extra = _axes(data, where, ("name", "out", "cells"))
    name, out = extra.get("name", name), extra.get("out")
    if not isinstance(name, str) or not isinstance(out, str | None):
        raise UserError(f"{where}: name and out are texts")
    if "\0" in name + (out or ""):
        raise UserError(f"{where}: name and out hold no zero bytes")
    listed = extra.get("cells", [])
    if not isinstance(listed, list) or not all(isinstance(c, dict) for c in listed):
        raise UserError(f"{where}: cells is a list of tables, each begun with [[cells]]")
    groups = [grid] if "env" in grid else []
    for entry in listed:
        own, more = _axes(entry, f"{where}, [[cells]]", ("label",))
        options = _merged(grid.get("overrides", {}), own.get("overrides", {}), where)
        groups.append(grid | own | {"overrides": options, "label": more.get("label", "")})
    if not groups:
        raise UserError(f'{where} names no environment: add env = ["FetchReach-v4"]')
    if sum(math.prod(len(g.get(axis, [0])) for axis in AXES) for g in groups) > MAX_CELLS:
        raise UserError(f"{where} makes more than {MAX_CELLS:,} cells")
    found = tuple(cell for g in groups for cell in _expand(g, where))
    twice = [n for n, count in Counter(c.name for c in found).items() if count > 1]
    if twice:
        raise UserError(f"{where} names the cell {twice[0]} twice: give [[cells]] with other settings a label")
    return Spec(name, Path(out or f"runs/{_safe(name)}").expanduser().absolute(), found)


def cells(spec: Spec) -> tuple[Cell, ...]:
    """The cells in the order in which they are started."""
    return spec.cells


def _axes(table: dict[str, Any], where: str, more: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The grid's lists, steps and overrides of one table, and its other known keys."""
    plural = {f"{axis}s": axis for axis in AXES}
    grid: dict[str, Any] = {}
    other: dict[str, Any] = {}
    for key, value in table.items():
        if key in more:
            other[key] = value
        elif key in AXES or key in plural:
            axis = plural.get(key, key)
            if axis in grid:
                raise UserError(f"{where} has both {axis} and {axis}s")
            if key == "seeds" and _is_int(value):  # how many; `seed = 3` is the one seed 3
                value = range(min(value, MAX_CELLS + 1))
            grid[axis] = _values(axis, value, where)
        elif (key == "steps" and _is_int(value)) or (key == "overrides" and isinstance(value, dict)):
            grid[key] = value
        elif key in ("steps", "overrides"):
            raise UserError(f"{where}: {key} must be {'a whole number' if key == 'steps' else 'a table of options'}")
        else:
            raise UserError(nearest(key, [*AXES, *plural, "steps", "overrides", *more], f"key in {where}"))
    if not isinstance(other.get("label", ""), str):
        raise UserError(f"{where}: label is a text")
    return grid, other


def _values(axis: str, value: Any, where: str) -> list[Any]:
    values = list(value) if isinstance(value, list | range) else [value]
    if not values:
        raise UserError(f"{where}: {axis} is an empty list")
    for v in values:
        if axis == "seed" and (not _is_int(v) or not 0 <= v < 2**31):
            raise UserError(f"{where}: a seed is a whole number from 0 to 2³¹ − 1, not {v!r:.40}")
        if axis != "seed" and (not isinstance(v, str) or not v or "\0" in v):
            raise UserError(f"{where}: {axis} is a text or a list of texts, not {v!r:.40}")
        if axis == "reward":
            _check_reward(str(v))
        if axis == "agent":
            _check_agent(str(v))
    if len(set(values)) < len(values):
        raise UserError(f"{where}: {axis} lists a value twice")
    return values


def _check_reward(name: str) -> None:
    from importlib.metadata import entry_points

    from aimrl import rewards

    if name not in rewards.NAMES and name not in (offered := [e.name for e in entry_points(group=rewards.ENTRY_POINTS)]):
        raise UserError(nearest(name, [*rewards.NAMES, *offered], "reward"))


def _check_agent(name: str) -> None:
    from aimrl import agents

    if name not in agents.NAMES:
        raise UserError(nearest(name, agents.NAMES, "agent"))


def _merged(low: dict[str, Any], high: dict[str, Any], where: str) -> dict[str, Any]:
    """Two tables of overrides; the option dictionaries in them are merged, too."""
    out = low | high
    for key in ("agent_options", "reward_options"):
        if key in low and key in high:
            if not isinstance(low[key], dict) or not isinstance(high[key], dict):
                raise UserError(f"{where}: {key} is a table")
            out[key] = low[key] | high[key]
    return out


def _expand(group: dict[str, Any], where: str) -> Iterator[Cell]:
    options = dict(group.get("overrides", {}))
    for key in AXES:
        if key in options:
            raise UserError(f"{where}: {key} belongs to the lists, not to the overrides")
    if "steps" in group and "steps" in options:
        raise UserError(f"{where} sets steps twice")
    options |= {"steps": group["steps"]} if "steps" in group else {}
    for key in ("agent_options", "reward_options"):
        if not isinstance(options.get(key, {}), dict):
            raise UserError(f"{where}: {key} is a table")
    choices = [group.get(axis) or [_DEFAULTS[axis]] for axis in AXES]
    for env, reward, agent, preset, seed in itertools.product(*choices):
        try:
            config = make_config(env, reward=reward, agent=agent, preset=preset, seed=seed, **options)
            json.dumps(runs.plain(dataclasses.asdict(config)), allow_nan=False)  # dates are TOML, but no setting
        except (TypeError, ValueError, OverflowError, RecursionError) as e:
            raise UserError(f"{where}: impossible overrides: {_one_line(e)}") from None
        method = "-".join(_safe(part) for part in (reward, agent, Path(preset).stem, group.get("label", "")) if part)
        yield Cell(f"{_safe(env)}/{method}/seed-{seed}", config)


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Config) if f.name in AXES}


def _safe(text: str) -> str:
    """A folder name that leads nowhere else."""
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", text).lstrip(".")[:100] or "_"


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _one_line(e: BaseException) -> str:
    text = " ".join(str(e).split())
    return (text if isinstance(e, UserError) else f"{type(e).__name__}: {text}" if text else type(e).__name__)[:400]


# --- what has been done -----------------------------------------------------------------------------------------------------------------


def finished(folder: Path, config: Config) -> bool:
    """Whether a cell needs no more work: its last evaluation is of its last step, and a checkpoint or the note `done.json` says the same.

    The note outlives checkpoints that were removed to save space. A folder of another configuration is refused.
    """
    if not (folder / "config.json").is_file():
        return False
    runs.prepare(folder, config, {}, resume=True)
    evaluated = [e["step"] for e in runs.read_lines(folder / "evals.jsonl") if _is_int(e.get("step"))]
    if not evaluated or evaluated[-1] < config.steps:
        return False
    return evaluated[-1] in runs.checkpoint_steps(folder) or evaluated[-1] == _noted(folder)


def _noted(folder: Path) -> int | None:
    with contextlib.suppress(UserError):
        step = runs.read_json(folder / "done.json").get("step")
        return step if _is_int(step) else None
    return None


@contextlib.contextmanager
def locked(path: Path, refusal: str, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a file's lock; it goes with the process that holds it, however that ends. Waits on a monotonic clock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as e:
        raise UserError(f"cannot write to {path.parent}: {e.strerror or e}") from None
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise UserError(refusal) from None
            time.sleep(0.1)
        yield
    finally:
        os.close(handle)


# --- one cell ---------------------------------------------------------------------------------------------------------------------------


def run_cell(config: Config, folder: Path, stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Train one cell to its end from where its folder stands; the outcome is `finished`, `stopped` or `failed` with a reason.

    `attempts.jsonl` keeps one line for each begin and each end. The cell's lock makes sure that a second process, begun because the first
    was believed dead, waits until it is.
    """
    try:
        with locked(folder / ".lock", f"{folder} is still in use by another process", LOCK_WAIT):
            return _run_locked(config, folder, stop)
    except Exception as e:
        return {"state": "failed", "reason": _one_line(e)}


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
        runs.append_line(log, {"event": "failed", "reason": _one_line(e)})
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
        runs.write_json(folder / "done.json", {"step": last["step"], "wall_s": last.get("wall_s"), "success": _success(last)})


def _drop_half_line(path: Path) -> None:
    """A process killed while writing leaves half a line, which would swallow the next one."""
    if path.is_file() and not (text := path.read_bytes()).endswith(b"\n") and text:
        os.truncate(path, text.rfind(b"\n") + 1)


def _success(record: dict[str, Any] | None) -> float | None:
    values = (record or {}).get("success_final")
    return sum(values) / len(values) if isinstance(values, list) and values else None


# --- running --------------------------------------------------------------------------------------------------------------------------


@dataclass
class Summary:
    """How a sweep ended. Cells by name."""

    finished: list[str] = field(default_factory=list)  # in this call
    skipped: list[str] = field(default_factory=list)  # were finished before
    failed: dict[str, str] = field(default_factory=dict)  # with their one-line reasons
    stopped: list[str] = field(default_factory=list)  # to be resumed
    wall_s: float = 0.0

    def text(self) -> str:
        head = (
            f"{len(self.finished)} finished, {len(self.skipped)} finished before, {len(self.failed)} failed, {len(self.stopped)} to resume"
        )
        return "\n".join([head, *(f"failed: {name}: {why}" for name, why in self.failed.items())])


def run(spec: Spec, jobs: int | None = None, ray: str | None = None, progress: bool = True, stream: TextIO | None = None) -> Summary:
    """Run every cell that isn't finished, each in a process of its own on one core; on a Ray cluster if `ray` is "local" or an address.

    Ctrl-C or SIGTERM lets the running cells save and leaves the rest for the next call; a second one kills them.
    """
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs must be at least 1, not {jobs}")
    began, summary = time.monotonic(), Summary()
    with locked(spec.out / ".sweep.lock", f"another sweep is running in {spec.out}"), _Interrupts() as interrupts:
        todo = []
        for cell in spec.cells:
            try:
                if finished(spec.out / cell.name, cell.config):
                    summary.skipped.append(cell.name)
                else:
                    todo.append(cell)
            except UserError as e:
                summary.failed[cell.name] = _one_line(e)
        aside = contextlib.redirect_stdout(
            sys.stderr if ray else sys.stdout
        )  # Ray's threads print to standard output, which is for results
        with _Board(spec, len(todo), progress, stream or sys.stderr) as board, aside:
            engine = _on_ray(spec, todo, jobs, ray, interrupts, board) if ray else _locally(spec, todo, jobs or _cores(), interrupts, board)
            for cell, outcome in engine if todo else ():
                board.ended(cell, outcome)
                if outcome["state"] == "failed":
                    summary.failed[cell.name] = outcome["reason"]
                else:
                    (summary.finished if outcome["state"] == "finished" else summary.stopped).append(cell.name)
    ended = {*summary.finished, *summary.failed, *summary.stopped}
    summary.stopped += [c.name for c in todo if c.name not in ended]
    summary.wall_s = time.monotonic() - began
    return summary


Outcomes = Iterator[tuple[Cell, dict[str, Any]]]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Interrupts:
    """Counts Ctrl-C and SIGTERM instead of dying from them; outside the main thread Python's own behaviour stays."""

    def __init__(self) -> None:
        self.count = 0
        self._old: dict[int, Any] = {}

    def __enter__(self) -> _Interrupts:
        self.listen()
        return self

    def listen(self) -> None:
        """Again after Ray, which puts in a handler of its own."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                old = signal.signal(number, self._add)
                self._old.setdefault(number, old)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _add(self, *_: Any) -> None:
        self.count += 1


def one_thread() -> dict[str, str]:
    """Environment variables that keep a process on one core; JAX reads them as it is imported."""
    flags = os.environ.get("XLA_FLAGS", "")
    flags = flags if "multi_thread_eigen" in flags else f"{flags} {XLA_ONE_THREAD}".strip()
    return ONE_THREAD | {"XLA_FLAGS": flags, "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}


@dataclass
class _Child:
    process: subprocess.Popen
    cell: Cell
    tries: int = 0


def _locally(spec: Spec, todo: list[Cell], jobs: int, interrupts: _Interrupts, board: _Board) -> Outcomes:
    waiting, children, told = deque((cell, 0) for cell in todo), list[_Child](), 0
    try:
        while children or (waiting and not interrupts.count):
            while waiting and len(children) < jobs and not interrupts.count:
                cell, tries = waiting.popleft()
                try:
                    children.append(_Child(_start(spec.out / cell.name, cell.config), cell, tries))
                    board.began(cell)
                except OSError as e:
                    yield cell, {"state": "failed", "reason": f"cannot start a process for it: {e.strerror or e}"}
            for child in [c for c in children if c.process.poll() is not None]:
                children.remove(child)
                outcome = _outcome(spec.out / child.cell.name, child.process.returncode)
                if outcome["state"] == "killed" and child.tries < RETRIES and not interrupts.count:
                    waiting.appendleft((child.cell, child.tries + 1))
                    board.say(f"{child.cell.name} {outcome['reason']}; taken up again")
                else:
                    yield child.cell, outcome | ({"state": "failed"} if outcome["state"] == "killed" else {})
            if interrupts.count > told:
                told = interrupts.count
                board.say("stopping: the running cells save what they have" if told == 1 else "killing the running cells")
                for child in children:
                    child.process.send_signal(signal.SIGTERM if told == 1 else signal.SIGKILL)
            board.refresh([c.cell for c in children])
            time.sleep(0.1)
    finally:  # also when the caller gives up on this generator
        for child in children:
            child.process.terminate()


def _start(folder: Path, config: Config) -> subprocess.Popen:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "outcome.json").unlink(missing_ok=True)
    runs.write_json(folder / "cell.json", dataclasses.asdict(config))
    command = [sys.executable, "-m", "aimrl.sweep", "--cell", str(folder), "--parent", str(os.getpid())]
    with open(folder / "worker.log", "ab") as log:
        # A session of its own: Ctrl-C in the terminal reaches the sweep alone, which then asks its cells to save.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | one_thread(), start_new_session=True
        )


def _outcome(folder: Path, code: int) -> dict[str, Any]:
    if code < 0:
        return {"state": "killed", "reason": f"was killed by {signal.Signals(-code).name}"}
    with contextlib.suppress(UserError):
        data = runs.read_json(folder / "outcome.json")
        if data.get("state") in ("finished", "stopped", "failed"):
            return {"state": data["state"], "reason": str(data.get("reason", ""))}
    return {"state": "failed", "reason": f"its process ended with exit code {code}: see {folder / 'worker.log'}"}


def _main(arguments: list[str] | None = None) -> int:
    """The process of one cell: `python -m aimrl.sweep --cell FOLDER --parent PID`."""
    parser = argparse.ArgumentParser(prog="python -m aimrl.sweep")
    parser.add_argument("--cell", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    a = parser.parse_args(arguments)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: asked.append(signum))
    config = config_from(runs.read_json(a.cell / "cell.json"))
    # Without its sweep a cell saves and ends: whoever starts the sweep again must not find a stray process at work.
    outcome = run_cell(config, a.cell, lambda: bool(asked) or os.getppid() != a.parent)
    runs.write_json(a.cell / "outcome.json", outcome)
    return 0


def config_from(values: dict[str, Any]) -> Config:
    """A configuration from its JSON, where the infinities among the options are words."""
    number = {"inf": math.inf, "-inf": -math.inf}
    revive = lambda options: {k: number.get(v, v) if isinstance(v, str) else v for k, v in options.items()}  # noqa: E731
    revived: dict[str, Any] = values | {key: revive(values[key]) for key in ("agent_options", "reward_options")}
    return Config(**revived)


# --- Ray --------------------------------------------------------------------------------------------------------------------------------


def _on_ray(spec: Spec, todo: list[Cell], jobs: int | None, address: str, interrupts: _Interrupts, board: _Board) -> Outcomes:
    """The same cells as Ray tasks. Ray runs a task again when its worker or its node dies; the cell goes on from its checkpoint."""
    ray, ours = _connect(address, jobs)
    interrupts.listen()
    stop_file = spec.out / ".stop"  # seen by every node: the folder is on storage they share
    stop_file.unlink(missing_ok=True)
    # max_calls: a fresh process for every cell, as on one machine.
    task = ray.remote(num_cpus=1, max_retries=RETRIES, max_calls=1, runtime_env={"env_vars": one_thread()})(_ray_cell)
    waiting, pending = deque(todo), dict[Any, Cell]()
    limit = len(todo) if jobs is None else jobs
    try:
        while pending or (waiting and not interrupts.count):
            while waiting and len(pending) < limit and not interrupts.count:
                cell = waiting.popleft()
                pending[task.remote(dataclasses.asdict(cell.config), str(spec.out / cell.name), str(stop_file))] = cell
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=0.5)
            for ref in ready:
                cell = pending.pop(ref)
                try:
                    yield cell, ray.get(ref)
                except ray.exceptions.RayError as e:
                    yield cell, {"state": "failed", "reason": _one_line(e)}
            if interrupts.count == 1 and not stop_file.exists():
                board.say("stopping: the running cells save what they have")
                stop_file.touch()
            elif interrupts.count > 1:
                break
            board.refresh(list(pending.values()))
    finally:
        for ref in pending:
            ray.cancel(ref, force=True)
        stop_file.unlink(missing_ok=True)
        if ours:
            ray.shutdown()


def _connect(address: str, jobs: int | None) -> tuple[Any, bool]:
    """Ray itself, connected, and whether it is ours to shut down."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_worker_niceness", "0")  # a cell is the work itself: Ray's 15 would starve it beside anything else
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a task without GPUs leaves CUDA's variables alone
    try:
        import ray
    except ImportError:
        raise UserError("--ray needs Ray: pip install 'aimrl[ray]'") from None
    if ray.is_initialized():
        return ray, False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == "local":
        small = {"include_dashboard": False, "object_store_memory": 100 << 20, "_node_ip_address": "127.0.0.1"}
        options, tries = {"address": "local", "num_cpus": jobs or _cores(), **small, **quiet}, LOCAL_TRIES
    else:
        options, tries = {"address": address, **quiet}, 1
    for left in reversed(range(tries)):
        try:
            ray.init(**options)
            break
        except Exception as e:  # Ray raises bare ones, too
            ray.shutdown()
            if not left:
                raise UserError(f"cannot reach Ray at {address}: {_one_line(e)}") from None
    return ray, True


def _ray_cell(config: dict[str, Any], folder: str, stop_file: str) -> dict[str, Any]:
    return run_cell(Config(**config), Path(folder), lambda: os.path.exists(stop_file))


# --- what is shown ----------------------------------------------------------------------------------------------------------------------


class _Board:
    """The cells at work: a live table on a terminal, else a line for each event."""

    def __init__(self, spec: Spec, total: int, progress: bool, stream: TextIO):
        self.spec, self.total, self.progress, self.stream = spec, total, progress, stream
        self.states: Counter[str] = Counter()
        self.live: Any = None
        self.next, self.start = 0.0, time.monotonic()
        self.known: set[str] = set()

    def __enter__(self) -> _Board:
        if self.progress and self.stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(self._table([]), console=Console(file=self.stream), auto_refresh=False)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def say(self, text: str) -> None:
        if self.live is not None:
            self.live.console.print(text, markup=False, highlight=False)
        elif self.progress:
            print(text, file=self.stream, flush=True)

    def began(self, cell: Cell) -> None:
        steps = runs.checkpoint_steps(self.spec.out / cell.name)
        if self.live is None:
            self.say(f"{cell.name} resumes at step {steps[-1]:,}" if steps else f"{cell.name} begins")

    def ended(self, cell: Cell, outcome: dict[str, Any]) -> None:
        self.states[outcome["state"]] += 1
        step, success = position(self.spec.out / cell.name)
        detail = outcome["reason"] if outcome["state"] == "failed" else f"step {step:,}, success {_percent(success)}"
        self.say(f"[{sum(self.states.values())}/{self.total}] {cell.name} {outcome['state']}: {detail}")

    def refresh(self, at_work: Iterable[Cell]) -> None:
        if self.live is not None and time.monotonic() >= self.next:
            self.next = time.monotonic() + 1.0
            self.live.update(self._table(list(at_work)), refresh=True)

    def _table(self, at_work: list[Cell]) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        counts = ", ".join(f"{n} {state}" for state, n in sorted(self.states.items())) or "none ended yet"
        minutes = (time.monotonic() - self.start) / 60
        table = Table(title=Text(f"{self.spec.name}: {self.total} cells to run, {counts}, {minutes:.0f} min"), title_justify="left")
        for head in ("cell", "", "step", "success"):
            table.add_column(head, justify="right" if head in ("step", "success") else "left")
        for cell in at_work[:20]:
            step, success = position(self.spec.out / cell.name)
            bar = ProgressBar(total=cell.config.steps, completed=step, width=20)
            table.add_row(Text(cell.name), bar, f"{step:,}", _percent(success))
        if len(at_work) > 20:
            table.add_row(f"and {len(at_work) - 20} more")
        return table


def position(folder: Path) -> tuple[int, float | None]:
    """The newest step a run's logs know of, and the success of its last evaluation."""
    last = _last_row(folder / "evals.jsonl")
    steps = [row["step"] for row in (last, _last_row(folder / "metrics.jsonl")) if row and _is_int(row.get("step"))]
    return max(steps, default=0), _success(last)


def _last_row(path: Path, tail: int = 1 << 16) -> dict[str, Any] | None:
    """The last whole line of a log, without reading all of it."""
    with contextlib.suppress(OSError, ValueError, RecursionError), open(path, "rb") as f:
        f.seek(max(os.fstat(f.fileno()).st_size - tail, 0))
        lines = f.read().split(b"\n")
        row = json.loads(lines[-2]) if len(lines) > 1 else None
        return row if isinstance(row, dict) else None
    return None


def _percent(success: float | None) -> str:
    return "–" if success is None else f"{success:.0%}"


# --- the dry run ------------------------------------------------------------------------------------------------------------------------


def dry_run(spec: Spec, jobs: int | None = None) -> dict[str, Any]:
    """What a sweep would do: its cells with their states, core-hours, hours, memory and disk. Each environment is made once."""
    jobs = jobs or _cores()
    rows, speeds = [], measured_speeds(spec)
    specs = {key: _probe(*key) for key in {(c.config.env, c.config.backend) for c in spec.cells}}
    for cell in spec.cells:
        c, folder = cell.config, spec.out / cell.name
        try:
            state = "finished" if finished(folder, c) else "resumes" if runs.checkpoint_steps(folder) else "new"
        except UserError as e:
            state = f"will fail: {e}"
        found = specs[c.env, c.backend]
        if isinstance(found, str):
            state = f"will fail: {found}"
        left = 0 if state == "finished" or state.startswith("will") else max(c.steps - position(folder)[0], 0)
        speed = speeds.get(_kind(c)) or 1 / assumed_seconds_per_step(c)
        buffer = 0 if isinstance(found, str) else _buffer_bytes(c, found)
        rows.append({"cell": cell.name, "state": state, "steps_left": left, "steps_per_s": round(speed, 1), "measured": _kind(c) in speeds})
        rows[-1] |= {"core_hours": left / speed / 3600, "memory_bytes": PROCESS_BYTES + 2 * buffer, "disk_bytes": 2 * buffer}
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
    rule = f"{UPDATE_S * 1000:g} ms an update and {STEP_S * 1000:g} ms an environment step assumed"
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
        last = _last_row(spec.out / cell.name / "evals.jsonl") or {}
        step, wall = last.get("step"), last.get("wall_s")
        if isinstance(step, int) and isinstance(wall, int | float) and step > 0 and wall > 0:
            found.setdefault(_kind(cell.config), []).append(step / wall)
    return {kind: len(v) / sum(1 / x for x in v) for kind, v in found.items()}


def _kind(c: Config) -> str:
    return json.dumps(runs.plain(dataclasses.asdict(c) | {"seed": 0}), sort_keys=True)


def assumed_seconds_per_step(c: Config) -> float:
    """Stated costs of an update and of a step, before anything was measured."""
    return STEP_S + UPDATE_S * c.round_updates / c.round_steps


def _probe(env: str, backend: Any) -> Any:
    """Sizes of an environment, or the line that says why it can't be made."""
    from aimrl.envs import vector

    try:
        with vector.make(env, 1, 0, backend) as made:
            return made.spec
    except UserError as e:
        return _one_line(e)


def _buffer_bytes(c: Config, spec: Any) -> int:
    from aimrl import replay, rewards

    return replay.bytes_needed(spec, min(c.buffer_size, c.steps + c.round_steps), rewards.make(c.reward, **c.reward_options).needs_prefix)


if __name__ == "__main__":
    sys.exit(_main())
