"""The sweep itself: every cell that isn't finished, by one of the two engines."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

from aimrl.runs import locked
from aimrl.sweep.board import Board
from aimrl.sweep.cell import finished
from aimrl.sweep.cluster import on_ray
from aimrl.sweep.local import Interrupts, on_this_machine
from aimrl.sweep.spec import Spec, one_line
from aimrl.types import UserError, cores


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
    with locked(spec.out / ".sweep.lock", f"another sweep is running in {spec.out}"), Interrupts() as interrupts:
        todo = []
        for cell in spec.cells:
            try:
                if finished(spec.out / cell.name, cell.config):
                    summary.skipped.append(cell.name)
                else:
                    todo.append(cell)
            except UserError as e:
                summary.failed[cell.name] = one_line(e)
        # Ray's threads print to standard output, which is for results.
        aside = contextlib.redirect_stdout(sys.stderr if ray else sys.stdout)
        with Board(spec, len(todo), progress, stream or sys.stderr) as board, aside:
            here = lambda: on_this_machine(spec, todo, jobs or cores(), interrupts, board)  # noqa: E731
            engine = on_ray(spec, todo, jobs, ray, interrupts, board) if ray else here()
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
