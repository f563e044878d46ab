"""What a run tells while it trains: a bar or plain lines on standard error, TensorBoard, W&B, and a hint when learning is stuck."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from aimrl.config import Config
from aimrl.envs import slim
from aimrl.runs import plain

Row = dict[str, Any]
HELP_PAGE = 'see "It doesn\'t learn" in the docs'


# --- words ------------------------------------------------------------------------------------------------------------------------------


def human_time(seconds: float) -> str:
    """12 s, 3 min 29 s, 2 h 5 min, 3 d 4 h."""
    if not math.isfinite(seconds):
        return "–"
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    if s < 3600:
        return f"{s // 60} min {s % 60} s" if s % 60 else f"{s // 60} min"
    if s < 48 * 3600:
        return f"{s // 3600} h {s % 3600 // 60} min"
    return f"{s // 86400} d {s % 86400 // 3600} h"


def human_bytes(count: float) -> str:
    """300 kB, 1.2 MB, 3.4 GB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def success_text(record: Row) -> str:
    """Both successes of an evaluation: what is held at the last step and what was reached at any."""
    share = lambda key: sum(record[key]) / max(len(record[key]), 1)  # noqa: E731
    return f"success {100 * share('success_final'):.0f} % held, {100 * share('success_ever'):.0f} % reached"


def notices(row: Row, gamma: float) -> dict[str, str]:
    """Signs of being stuck in one line of metrics.jsonl, each with what to look at."""
    mean, spread = abs(row.get("reward/mean", 0.0)), row.get("reward/std", 1.0)
    q, allowed = abs(row.get("agent/q", 0.0)), (mean + 4 * spread) / max(1 - gamma, 1e-6)
    violations = row.get("aim/violations", 0.0)
    found = {}
    if row.get("moved", 1.0) < 0.001:
        found["moved"] = (
            "the achieved goal moved in no stored episode, so hindsight teaches nothing: "
            "try --moved-fraction 0.5, with TD3 a larger --td3.action-cost, or aimrl doctor"
        )
    if spread < 1e-6:
        found["flat"] = (
            "the reward is the same everywhere, so there is nothing to follow: look at --potential-updates and the reward's scale"
        )
    elif q > allowed:
        found["q"] = (
            f"|Q| is {q:.3g}, more than such rewards can add up to ({allowed:.3g}), so it diverges: "
            "bound it with q_low and q_high, where the agent has them (--td3.q-low -20), or lower the learning rates"
        )
    if violations > 0.9:
        found["violations"] = (
            f"the potential breaks its bound in {violations:.0%} of transitions: "
            "more --potential-updates or a larger --aim.lipschitz-weight"
        )
    return found


# --- rates ------------------------------------------------------------------------------------------------------------------------------


class Meter:
    """Steps and updates a second over the last moments, and the time left."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic):
        self.config, self.clock = config, clock
        self.step = self.updates = 0
        self.seen: deque[tuple[float, int, int]] = deque(maxlen=100)

    def round(self, step: int, learned: bool) -> None:
        self.step = step
        self.updates += self.config.round_updates if learned else 0
        now = self.clock()
        self.seen.append((now, step, self.updates))
        while len(self.seen) > 2 and now - self.seen[0][0] > 60:
            self.seen.popleft()

    def rates(self) -> tuple[float, float]:
        if len(self.seen) < 2:
            return 0.0, 0.0
        (t0, s0, u0), (t1, s1, u1) = self.seen[0], self.seen[-1]
        seconds = max(t1 - t0, 1e-9)
        return (s1 - s0) / seconds, (u1 - u0) / seconds

    def text(self) -> str:
        steps, updates = self.rates()
        if not steps:
            return ""
        left = self.config.steps - self.step
        return f"{steps:,.0f} steps/s, {updates:,.0f} updates/s" + (f", {human_time(left / steps)} left" if left > 0 else "")


# --- where it goes ----------------------------------------------------------------------------------------------------------------------


class Screen:
    """Progress for a person: a bar that redraws itself on a terminal, lines elsewhere. Never fails because the terminal went away."""

    def __init__(self, config: Config, gamma: float, stream: TextIO | None = None, quiet: bool = False):
        self.config, self.gamma, self.quiet = config, gamma, quiet
        self.stream = stream if stream is not None else sys.stderr
        self.meter = Meter(config)
        self.last_metrics: Row = {}
        self.told: set[str] = set()
        self.success = ""
        self.bar: Any = None
        if not quiet and self.stream.isatty() and os.environ.get("TERM") != "dumb":
            self.bar = self._make_bar()

    def __call__(self, event: str, data: Row) -> None:
        if event == "round":
            self.meter.round(data["step"], data["learned"])
            self._redraw()
        elif event == "learning":
            self._redraw("compiling the updates")  # seconds in which nothing else is told
        elif event == "metrics":
            self.last_metrics = data
        elif event == "eval":
            self.success, self.meter.step = success_text(data), data["step"]  # the round of this evaluation is told after it
            words = [f"step {data['step']:,} of {self.config.steps:,}", self.success, self.meter.text() if self.bar is None else ""]
            self.say("  ".join(w for w in words if w))
            self._hint()
        elif event == "start":
            self.say(f"{data['backend']} simulator, replay buffer {human_bytes(data['buffer_bytes'])}")
        elif event == "resumed":
            self.say(f"going on from step {data['step']:,}")

    def say(self, text: str, always: bool = False) -> None:
        if self.quiet and not always:
            return
        with suppress(OSError, ValueError):
            if self.bar is not None:
                self.bar.console.print(text, highlight=False, markup=False)
            else:
                print(text, file=self.stream, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            with suppress(OSError, ValueError):
                self.bar.stop()
            self.bar = None

    def _hint(self) -> None:
        """Each kind of trouble is told when it appears, and again only after it had gone."""
        found = notices(self.last_metrics, self.gamma)
        for kind in sorted(found.keys() - self.told):
            self.say(f"notice: {found[kind]} ({HELP_PAGE})", always=True)
        self.told = set(found)

    def _make_bar(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        console = Console(file=self.stream)  # rich heeds NO_COLOR and asks for the width at every drawing
        words = TextColumn("{task.percentage:>3.0f} %, {task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
        bar = Progress(words, BarColumn(bar_width=None, table_column=Column(ratio=1)), console=console, expand=True, transient=True)
        self.task = bar.add_task("starting", total=self.config.steps)
        bar.start()
        return bar

    def _redraw(self, doing: str = "") -> None:
        if self.bar is not None:
            with suppress(OSError, ValueError):
                text = doing or ", ".join(w for w in (self.meter.text(), self.success.split(",")[0]) if w) or "filling the buffer"
                self.bar.update(self.task, completed=self.meter.step, description=text)


class TensorBoard:
    """Scalars in RUN/tb."""

    def __init__(self, folder: Path):
        self.folder, self.writer, self.purge = folder / "tb", None, None

    def __call__(self, event: str, data: Row) -> None:
        if event == "resumed":
            self.purge = data["step"] + 1  # TensorBoard then hides what a run that went on rewrites
        found = scalars(event, data)
        if not found:
            return
        if self.writer is None:
            with slim.without("torch"):  # imported for tensors that nobody logs here: seconds, wherever it is installed
                from tensorboardX import SummaryWriter

            # Flushed here, where a full disk can be answered, and not by its thread, which would end in a traceback.
            self.writer = SummaryWriter(str(self.folder), purge_step=self.purge, flush_secs=10**6)
        for name, value in found.items():
            self.writer.add_scalar(name, value, data["step"])
        self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            try:
                self.writer.close()
            except OSError:  # a full disk; tensorboardX would meet it again as Python exits, with a traceback
                for writer in (self.writer.all_writers or {}).values():
                    events: Any = writer.event_writer  # pyright: ignore[reportAttributeAccessIssue]
                    events._closed = True
                    events._worker.stop()  # or its thread goes on writing
                raise


class WandB:
    """The same scalars at Weights & Biases; kept in RUN/wandb for `wandb sync` where nobody is logged in (or WANDB_MODE says so)."""

    def __init__(self, config: Config, folder: Path):
        import dataclasses

        import wandb

        mode: Any = os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")
        values = plain(dataclasses.asdict(config))
        self.run = wandb.init(
            project="aimrl", dir=str(folder), name=folder.name, config=values, mode=mode, settings=wandb.Settings(silent=True)
        )

    def __call__(self, event: str, data: Row) -> None:
        if found := scalars(event, data):
            self.run.log(found, step=data["step"])

    def close(self) -> None:
        self.run.finish()


def scalars(event: str, data: Row) -> dict[str, float]:
    """The numbers of an event, by the names they are plotted under."""
    if event == "metrics":
        return {k: float(v) for k, v in data.items() if k != "step"}
    if event == "eval":
        mean = lambda key: sum(data[key]) / max(len(data[key]), 1)  # noqa: E731
        return {f"eval/{key}": mean(key) for key in ("success_final", "success_ever", "return")}
    return {}


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Was Ctrl-C pressed or SIGTERM sent? The first is only noted, so that a round can end and be saved; then the old handlers are back."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: Any) -> None:
        asked.append(number)
        restore()

    def restore() -> None:
        for s, handler in before.items():
            signal.signal(s, handler)

    taken = [signal.SIGINT] + [signal.SIGTERM] * (signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)  # a program's own stays
    before = {s: signal.signal(s, note) for s in taken}
    try:
        yield lambda: bool(asked)
    finally:
        restore()


class Listeners:
    """All of them as one listener; a logger that fails is dropped with a warning, the run goes on."""

    def __init__(self, config: Config, folder: Path, gamma: float, quiet: bool = False, stream: TextIO | None = None):
        self.config, self.folder = config, folder
        self.screen = Screen(config, gamma, stream, quiet)
        self.loggers: list[Any] = []
        makers = {"TensorBoard": (config.tensorboard, lambda: TensorBoard(folder)), "W&B": (config.wandb, lambda: WandB(config, folder))}
        self.makers = {name: make for name, (wanted, make) in makers.items() if wanted}

    def say_what(self) -> None:
        c = self.config
        self.screen.say(f"{c.env}, reward {c.reward}, agent {c.agent}, preset {c.preset}, seed {c.seed}, into {self.folder}")

    def __call__(self, event: str, data: Row) -> None:
        self.screen(event, data)
        for name, make in self.makers.items():  # made at the first event: the folder exists by then
            self._guard(name, lambda make=make: self.loggers.append(make()))
        self.makers = {}
        for logger in list(self.loggers):
            if not self._guard(type(logger).__name__, lambda logger=logger: logger(event, data)):
                self.loggers.remove(logger)

    def close(self) -> None:
        self.screen.close()
        for logger in self.loggers:
            self._guard(type(logger).__name__, logger.close)
        self.loggers = []

    def __enter__(self) -> Listeners:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _guard(self, name: str, call: Callable[[], Any]) -> bool:
        try:
            call()
            return True
        except Exception as e:
            why = f"{e.name} is not installed: pip install {e.name}" if isinstance(e, ModuleNotFoundError) else f"{type(e).__name__}: {e}"
            self.screen.say(f"warning: {name} is off: {why}", always=True)
            return False
