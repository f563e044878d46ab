"""What a run tells: lines, a bar, hints when it is stuck, and logs that never end a run."""

import io
import subprocess
import sys

import pytest

from aimrl.config import make_config
from aimrl.progress import Listeners, Meter, Screen, human_bytes, human_time, notices, scalars

CONFIG = make_config("FetchPush-v4", steps=1_000, tensorboard=False)
EVAL = {"step": 400, "success_final": [1, 0, 0, 0], "success_ever": [1, 1, 0, 0], "return": [-1.0, -2.0, -3.0, -2.0]}
HEALTHY = {"step": 400, "moved": 0.5, "reward/mean": -0.8, "reward/std": 0.4, "agent/q": -15.0, "aim/violations": 0.2}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_times_and_sizes_are_in_human_units():
    times = {0.4: "0 s", 12.3: "12 s", 209: "3 min 29 s", 180: "3 min", 7500: "2 h 5 min", 300_000: "3 d 11 h", float("nan"): "–"}
    assert [human_time(s) for s in times] == list(times.values())
    assert [human_bytes(b) for b in (12, 445_000, 1_230_000, 34e9)] == ["12 B", "445 kB", "1.23 MB", "34 GB"]


def test_rates_and_time_left_follow_the_clock():
    now = iter([10.0, 12.0, 14.0])
    meter = Meter(CONFIG, clock=lambda: next(now))
    for step, learned in ((200, False), (400, True), (600, True)):
        meter.round(step, learned)
    assert meter.rates() == (100.0, 2 * CONFIG.round_updates / 4)
    assert meter.text() == f"100 steps/s, {2 * CONFIG.round_updates / 4:,.0f} updates/s, 4 s left"


def test_elsewhere_than_on_a_terminal_there_are_plain_lines():
    stream = io.StringIO()
    screen = Screen(CONFIG, 0.95, stream)
    screen("start", {"backend": "gym", "buffer_bytes": 2_000_000})
    screen("round", {"step": 400, "learned": True})
    screen("eval", EVAL)
    assert stream.getvalue().splitlines() == ["gym simulator, replay buffer 2 MB", "step 400 of 1,000  success 25 % held, 50 % reached"]


def test_a_terminal_gets_a_bar_of_its_width_without_colours_where_none_are_wanted(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    screen = Screen(CONFIG, 0.95, stream)
    screen("round", {"step": 400, "learned": True})
    screen("eval", EVAL)
    screen.bar.refresh()
    screen.close()
    text = stream.getvalue()
    assert "40 %" in text
    assert "step 400 of 1,000" in text
    assert "\x1b[3" not in text  # a colour
    assert "\x1b[9" not in text


def test_the_bar_says_when_it_is_the_compiler_that_takes_time(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen(CONFIG, 0.95, Terminal())
    screen("learning", {"step": 400})
    assert screen.bar.tasks[0].description == "compiling the updates"
    screen("round", {"step": 400, "learned": True})
    assert screen.bar.tasks[0].description != "compiling the updates"
    screen.close()


def test_quiet_says_only_warnings_and_notices():
    stream = io.StringIO()
    screen = Screen(CONFIG, 0.95, stream, quiet=True)
    screen("metrics", HEALTHY)
    screen("eval", EVAL)
    assert stream.getvalue() == ""
    screen("metrics", HEALTHY | {"moved": 0.0})
    screen("eval", EVAL)
    assert "moved in no stored episode" in stream.getvalue()


@pytest.mark.parametrize(
    ("sign", "kind"),
    [
        ({}, None),
        ({"moved": 0.0}, "moved"),
        ({"reward/std": 0.0}, "flat"),
        ({"agent/q": -80.0}, "q"),
        ({"aim/violations": 0.95}, "violations"),
    ],
)
def test_each_sign_of_being_stuck_has_its_notice(sign, kind):
    assert list(notices(HEALTHY | sign, gamma=0.95)) == ([kind] if kind else [])


def test_the_bound_on_q_follows_the_discount():
    row = HEALTHY | {"agent/q": -80.0}  # rewards within −0.8 ± 1.6 add up to 48 at most with γ = 0.95, to 240 with 0.99
    assert "q" in notices(row, gamma=0.95)
    assert "q" not in notices(row, gamma=0.99)


def test_a_notice_comes_once_until_its_cause_has_gone():
    stream = io.StringIO()
    screen = Screen(CONFIG, 0.95, stream)
    for moved in (0.0, 0.0, 0.5, 0.0):
        screen("metrics", HEALTHY | {"moved": moved})
        screen("eval", EVAL)
    assert stream.getvalue().count("notice:") == 2


def test_a_terminal_that_went_away_does_not_end_the_run(tmp_path):
    class Gone(io.StringIO):
        tried = 0

        def write(self, text):
            self.tried += 1
            raise BrokenPipeError

    class Logger:
        def __call__(self, event, data):
            got.append((event, data["step"]))

        def close(self):
            got.append("closed")

    stream, got = Gone(), []
    with Listeners(CONFIG, tmp_path, 0.95, stream=stream) as listeners:
        listeners.loggers.append(Logger())
        listeners("metrics", HEALTHY | {"moved": 0.0})  # so that there is a notice to tell, too
        listeners("eval", EVAL)
        listeners("eval", EVAL | {"step": 800})
    assert stream.tried >= 3
    assert got == [("metrics", 400), ("eval", 400), ("eval", 800), "closed"]


def test_a_logger_that_fails_is_dropped_with_one_warning(tmp_path):
    stream = io.StringIO()
    (tmp_path / "tb").write_text("a file where the folder should be")
    config = make_config("FetchPush-v4", steps=1_000)
    with Listeners(config, tmp_path, 0.95, stream=stream) as listeners:
        listeners("metrics", HEALTHY)
        listeners("metrics", HEALTHY)
    assert stream.getvalue().count("warning: TensorBoard is off") == 1


def test_tensorboard_gets_every_scalar(tmp_path):
    config = make_config("FetchPush-v4", steps=1_000)
    with Listeners(config, tmp_path, 0.95, quiet=True) as listeners:
        listeners("resumed", {"step": 200})
        listeners("metrics", HEALTHY)
        listeners("eval", EVAL)
    (file,) = (tmp_path / "tb").glob("events*")
    written = file.read_bytes()
    assert all(name.encode() in written for name in ("eval/success_final", "reward/std", "aim/violations"))


def test_evaluations_are_plotted_as_means():
    assert scalars("eval", EVAL) == {"eval/success_final": 0.25, "eval/success_ever": 0.5, "eval/return": -2.0}
    assert scalars("checkpoint", {"step": 3}) == {}


def test_wandb_works_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = make_config("FetchPush-v4", steps=1_000, tensorboard=False, wandb=True)
    stream = io.StringIO()
    with Listeners(config, tmp_path, 0.95, quiet=True, stream=stream) as listeners:
        listeners("metrics", HEALTHY)
    assert stream.getvalue() == ""
    assert list((tmp_path / "wandb").glob("offline-run-*"))


def test_logging_to_tensorboard_does_not_load_torch_and_leaves_it_loadable(tmp_path):
    """tensorboardX imports it wherever it is installed, which took seconds of every run."""
    code = (
        "import sys; from pathlib import Path; from aimrl.progress import TensorBoard\n"
        f"board = TensorBoard(Path({str(tmp_path)!r})); board('metrics', {{'step': 1, 'agent/q': 2.0}}); board.close()\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'torch']); import torch; print(torch.ones(2).sum().item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "2.0"]
    assert list((tmp_path / "tb").glob("events*"))
