"""What is shown of a running sweep."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, TextIO

from aimrl import runs
from aimrl.sweep.cell import position
from aimrl.sweep.spec import Cell, Spec


class Board:
    """The cells at work: a live table on a terminal, else a line for each event."""

    def __init__(self, spec: Spec, total: int, progress: bool, stream: TextIO):
        self.spec, self.total, self.progress, self.stream = spec, total, progress, stream
        self.states: Counter[str] = Counter()
        self.live: Any = None
        self.next, self.start = 0.0, time.monotonic()

    def __enter__(self) -> Board:
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
        table.add_column("cell", overflow="fold")  # the seed, at its end, is what tells cells apart
        for head in ("", "step", "success"):
            table.add_column(head, justify="right" if head else "left", no_wrap=True)
        for cell in at_work[:20]:
            step, success = position(self.spec.out / cell.name)
            bar = ProgressBar(total=cell.config.steps, completed=step, width=12)
            table.add_row(Text(cell.name), bar, f"{step:,}", _percent(success))
        if len(at_work) > 20:
            table.add_row(f"and {len(at_work) - 20} more")
        return table


def _percent(success: float | None) -> str:
    return "–" if success is None else f"{success:.0%}"
