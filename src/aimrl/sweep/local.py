"""Cells in processes of this machine, one core each."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aimrl import runs
from aimrl.config import Config
from aimrl.sweep.board import Board
from aimrl.sweep.cell import config_from, run_cell
from aimrl.sweep.spec import Cell, Outcomes, Spec
from aimrl.types import UserError

RETRIES = 3  # times a cell whose process was killed is taken up again before it counts as failed
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
XLA_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


class Interrupts:
    """Counts Ctrl-C and SIGTERM instead of dying from them; outside the main thread Python's own behaviour stays."""

    def __init__(self) -> None:
        self.count = 0
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
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


def on_this_machine(spec: Spec, todo: list[Cell], jobs: int, interrupts: Interrupts, board: Board) -> Outcomes:
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
                    ended = "stopped" if interrupts.count else "failed"  # what we kill goes on from its checkpoint
                    yield child.cell, outcome | ({"state": ended} if outcome["state"] == "killed" else {})
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


def main(arguments: list[str] | None = None) -> int:
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
