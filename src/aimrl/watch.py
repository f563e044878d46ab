"""Following a run: in the terminal, or as a live report in the browser on this machine only. Works while it trains and after."""

from __future__ import annotations

import hashlib
import http.server
import math
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aimrl import plots, report
from aimrl.plots import RunData, percent
from aimrl.progress import human_time
from aimrl.types import UserError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

QUIET = 300.0  # seconds without a word after which we ask whether the run is still there


def watch(folder: Path, web: bool = False, port: int = 0, once: bool = False, console: Console | None = None, poll: float = 1.0) -> None:
    """Follow the run in `folder` until it ends or Ctrl-C; `once` shows where it stands; `web` serves the live report instead."""
    from rich.console import Console

    console = console or Console(highlight=False)
    read(folder)  # bad input is told before anything is drawn
    try:
        if web:
            _serve_until_interrupted(folder, port, console)
        elif once or not console.is_terminal:
            _tell(folder, console, once, poll)
        else:
            _follow(folder, console, poll)
    except KeyboardInterrupt:
        console.print("stopped watching; the run goes on" if not web else "stopped serving", markup=False)


def read(folder: Path) -> RunData:
    if not folder.is_dir():
        raise UserError(f"there is no run folder {folder}")
    return plots.read_run(folder)[0]


def signature(folder: Path) -> tuple[Any, ...]:
    """Changes when a file does that a view shows."""
    paths = [folder / n for n in ("config.json", "evals.jsonl", "metrics.jsonl")]
    paths += [p for n in ("figures", "videos") if (folder / n).is_dir() for p in sorted((folder / n).iterdir())]
    found = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError:  # not there yet, or gone since the listing
            continue
        found.append((path.name, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


# --- terminal ----------------------------------------------------------------------------------------------------------------------------


def _follow(folder: Path, console: Console, poll: float) -> None:
    from rich.live import Live

    with Live(View(read(folder)), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        seen = signature(folder)
        while True:
            view = View(read(folder), _silence(folder))
            live.update(view, refresh=True)
            if view.run.finished:
                return
            for _ in range(600):  # the silence is told even when nothing changes; so is a new width
                time.sleep(poll)
                if (now := signature(folder)) != seen or not live.console.is_terminal:
                    seen = now
                    break
                live.update(View(view.run, _silence(folder)), refresh=True)


def _tell(folder: Path, console: Console, once: bool, poll: float) -> None:
    """Plain lines: where it stands, or one line for each evaluation."""
    if once:
        console.print(View(read(folder), _silence(folder)))
        return
    told = 0
    while True:
        run = read(folder)
        for i in range(told, len(run.evals.step)):
            console.print(eval_line(run, i), markup=False, soft_wrap=True)
        told = len(run.evals.step)
        if run.finished:
            return
        time.sleep(poll)


def eval_line(run: RunData, i: int) -> str:
    e = run.evals
    text = f"step {int(e.step[i]):,} of {run.steps:,}  success {percent(e.final[i])} held, {percent(e.ever[i])} reached"
    return text + (f"  {human_time(e.wall[i])}" if math.isfinite(e.wall[i]) else "")


def _silence(folder: Path) -> float:
    newest = max((mtime for *_, mtime in signature(folder)), default=0)
    return max(time.time() - newest / 1e9, 0.0)


def printable(text: Any) -> str:
    """Names come from files: nothing in them may steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


class View:
    """What the terminal shows of a run; drawn anew for whatever width there is."""

    def __init__(self, run: RunData, silence: float = 0.0):
        self.run, self.silence = run, silence

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.text import Text

        run, width = self.run, max(options.max_width, 20)
        yield Text(printable(f"{run.env}  {run.config['reward']}  seed {run.seed}"), style="bold", no_wrap=True, overflow="ellipsis")
        yield Text.assemble(*self._bar(width, options.ascii_only), no_wrap=True)
        if len(run.evals.step):
            rows = (options.max_height or 24) - 9
            yield from self._plot(width, min(max(rows, 4), 12), options.ascii_only)
        else:
            yield Text("no evaluation yet", style="dim")
        for line in self.words():
            yield Text(line, no_wrap=True, overflow="ellipsis")

    def words(self) -> list[str]:
        run, e = self.run, self.run.evals
        lines = []
        if len(e.step):
            goal = f", in {e.to_goal[-1]:.3g} steps" if math.isfinite(e.to_goal[-1]) else ""
            lines.append(f"goal held {percent(e.final[-1])}, reached {percent(e.ever[-1])}{goal} (at step {int(e.step[-1]):,})")
        speed = report.recent_speed(run)
        time_ = f"{human_time(run.logged[1])} so far" if not run.finished else f"{human_time(run.logged[1])} in all"
        left = f", {human_time((run.steps - run.logged[0]) / speed)} left" if speed and not run.finished else ""
        lines.append(f"{speed:,.0f} steps/s, {time_}{left}")
        last = {name: values[-1] for name, (_, values) in run.metrics.items()}
        shown = [
            f"{word} {last[name]:.3g}" for name, word in (("aim/w1", "W1"), ("reward/mean", "reward"), ("agent/q", "Q")) if name in last
        ]
        lines += ["  ".join(shown)] if shown else []
        if run.finished:
            lines.append("finished")
        elif self.silence > QUIET:
            lines.append(printable(f"no news for {human_time(self.silence)}; if it was stopped: aimrl train --resume --out {run.folder}"))
        return lines

    def _bar(self, width: int, ascii_only: bool) -> list[tuple[str, str]]:
        share = min(self.run.logged[0] / max(self.run.steps, 1), 1.0)
        text = f" {share:.0%}  step {self.run.logged[0]:,} of {self.run.steps:,}"
        cells = max(min(width - len(text) - 1, 40), 4)
        full = round(cells * share)
        on, off = ("#", "-") if ascii_only else ("━", "─")
        return [(on * full, "cyan"), (off * (cells - full), "dim"), (text, "")]

    def _plot(self, width: int, height: int, ascii_only: bool) -> Iterator[Any]:
        from rich.text import Text

        e = self.run.evals
        columns = min(width - 7, 100)
        x = e.step / max(self.run.steps, e.step[-1], 1)
        held, reached = (dots(x, y, columns, height) for y in (e.final, e.ever))
        for r in range(height):
            label = {0: "100 %", height - 1: "0 %"}.get(r, "")
            line = Text(f"{label:>6} ", style="dim", no_wrap=True)
            for a, b in zip(held[r], reached[r]):
                style = "cyan" if a else "yellow"
                line.append(_cell(a | b, ascii_only), style=style)
            yield line
        yield Text.assemble((" " * 7, ""), ("held", "cyan"), " and ", ("reached", "yellow"), (" over training", "dim"), no_wrap=True)


_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # a braille cell's bits, by row and column


def dots(x: np.ndarray, y: np.ndarray, columns: int, rows: int) -> np.ndarray:
    """The curve through (x, y) in [0, 1]² as bits of braille cells, rows × columns, top row first."""
    cells = np.zeros((rows, columns), int)
    fine = np.arange(2 * columns)
    inside = (fine >= round(x[0] * (2 * columns - 1))) & (fine <= round(x[-1] * (2 * columns - 1)))
    height = np.interp(fine / (2 * columns - 1), x, y)
    level = np.round((1 - np.clip(height, 0, 1)) * (4 * rows - 1)).astype(int)
    before = level[0]
    for i in fine[inside]:
        start = before if inside[max(i - 1, 0)] else level[i]
        for k in range(min(start, level[i]), max(start, level[i]) + 1):  # steep parts are filled, so that the line has no holes
            cells[k // 4, i // 2] |= _DOTS[k % 4][i % 2]
        before = level[i]
    return cells


def _cell(bits: int, ascii_only: bool) -> str:
    return ("*" if bits else " ") if ascii_only else (chr(0x2800 + int(bits)) if bits else " ")


# --- browser -----------------------------------------------------------------------------------------------------------------------------


class Server(http.server.ThreadingHTTPServer):
    """Serves one page, made anew when the run's files change, to this machine only."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0):
        self.folder, self.lock = folder, threading.Lock()
        self.seen: Any = None
        self.page, self.tag = b"", ""
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as e:
            raise UserError(f"cannot listen on port {port}: {getattr(e, 'strerror', None) or e}") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that left in the middle of the page is no error; the terminal is the user's."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def current(self) -> tuple[bytes, str]:
        with self.lock:
            now = signature(self.folder)
            if now != self.seen:
                text, _ = report.render([self.folder], live=True)
                self.page = text.encode()
                self.seen, self.tag = now, f'"{hashlib.sha256(self.page).hexdigest()[:20]}"'
            return self.page, self.tag


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 30
    server_version, sys_version = "aimrl", ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        port = self.server.server_address[1]
        # Another site's page may make a browser ask us under that site's name (DNS rebinding): only our own names are answered.
        if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            return self._send(403, b"this server answers to 127.0.0.1 only\n", "text/plain", body)
        if self.path != "/":
            return self._send(404, b"there is one page: /\n", "text/plain", body)
        try:
            page, tag = self.server.current()
        except UserError as e:
            return self._send(503, f"{e}\n".encode(), "text/plain", body)
        return self._send(200, page, "text/html", body, tag)

    def _send(self, code: int, content: bytes, kind: str, body: bool, tag: str = "") -> None:
        self.send_response(code)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content)), "Cache-Control": "no-store"}
        headers |= {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}
        headers |= {"Cross-Origin-Resource-Policy": "same-origin"} | ({"ETag": tag} if tag else {})
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the user's."""


def _serve_until_interrupted(folder: Path, port: int, console: Console) -> None:
    with Server(folder, port) as server:
        server.current()
        console.print(f"live report on {server.url} (Ctrl-C ends)", markup=False, soft_wrap=True)
        server.serve_forever()
