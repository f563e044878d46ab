"""Cells as tasks of Ray, on this machine or on a cluster."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from pathlib import Path
from typing import Any

from aimrl.config import Config
from aimrl.sweep.board import Board
from aimrl.sweep.cell import run_cell
from aimrl.sweep.local import RETRIES, Interrupts, one_thread
from aimrl.sweep.spec import Cell, Outcomes, Spec, one_line
from aimrl.types import UserError, cores

LOCAL_TRIES = 3  # to start Ray here: a node gives up when its helpers need more than 15 s, as on a busy machine (Ray's issue 65983)


def on_ray(spec: Spec, todo: list[Cell], jobs: int | None, address: str, interrupts: Interrupts, board: Board) -> Outcomes:
    """The same cells as Ray tasks. Ray runs a task again when its worker or its node dies; the cell goes on from its checkpoint."""
    ray, ours = connect(address, jobs)
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
                    yield cell, {"state": "failed", "reason": one_line(e)}
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


def connect(address: str, jobs: int | None) -> tuple[Any, bool]:
    """Ray itself, connected, and whether it is ours to shut down."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_worker_niceness", "0")  # a cell is the work itself: Ray's 15 would starve it beside anything else
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a task without GPUs leaves CUDA's variables alone
    try:
        import ray
    except ImportError:
        raise UserError("--ray needs Ray: in the checkout, pip install -e '.[ray]'") from None
    if ray.is_initialized():
        return ray, False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == "local":
        small = {"include_dashboard": False, "object_store_memory": 100 << 20, "_node_ip_address": "127.0.0.1"}
        options, tries = {"address": "local", "num_cpus": jobs or cores(), **small, **quiet}, LOCAL_TRIES
    else:
        options, tries = {"address": address, **quiet}, 1
    for left in reversed(range(tries)):
        try:
            ray.init(**options)
            break
        except Exception as e:  # Ray raises bare ones, too
            ray.shutdown()
            if not left:
                raise UserError(f"cannot reach Ray at {address}: {one_line(e)}") from None
    return ray, True


def _ray_cell(config: dict[str, Any], folder: str, stop_file: str) -> dict[str, Any]:
    if os.path.exists(stop_file):  # it was waiting for a core
        return {"state": "stopped"}
    return run_cell(Config(**config), Path(folder), lambda: os.path.exists(stop_file))
