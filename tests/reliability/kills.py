"""Kills real `aimrl train` processes, resumes them and holds what comes of it to an uninterrupted run. Used by the tests and by soak.py."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

# EnvPool's FetchReach: its goal rule is array code, so compiled programs come from the cache and a start takes seconds, not half a minute.
STEPS = 1080
OPTIONS = (
    f"FetchReach-v4 --preset fast --num-envs 2 --round-steps 40 --round-updates 2 --batch-size 16 --learning-starts 80 --steps {STEPS} "
    "--eval-every 360 --eval-episodes 2 --checkpoint-every 240 --buffer-size 700 --potential-updates 2 --potential-batch 16 "
    "--td3.hidden 8 --no-tensorboard --quiet"
)
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MOMENTS = ("any time", "any time", "checkpoint", "log")  # of a kill: after a while, in the middle of a checkpoint, after a log has grown


def start(folder: Path) -> subprocess.Popen[str]:
    what = ["--resume", "--quiet"] if (folder / "config.json").is_file() else OPTIONS.split()
    environment = os.environ | {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "aimrl", "train", *what, "--out", str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(folder: Path) -> float:
    """Run to the end without a kill; the seconds of processor time it took."""
    used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])  # noqa: E731
    begun = used()
    process = start(folder)
    _, said = process.communicate(timeout=1800)
    assert process.returncode == 0, said
    return used() - begun


def processor_time(process: subprocess.Popen[str], begun: float) -> float:
    """Seconds a process has worked, which says how far it is on a busy machine, too; the clock's where the system doesn't tell."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return time.monotonic() - begun


def wait_for(moment: str, folder: Path, process: subprocess.Popen[str], seconds: float, rng: random.Random) -> bool:
    """Until the moment has come (True) or the process has ended."""
    size = lambda name: (folder / name).stat().st_size if (folder / name).is_file() else 0  # noqa: E731
    before = {name: size(name) for name in ("metrics.jsonl", "evals.jsonl")}
    begun, end = time.monotonic(), rng.uniform(0, 0.8 * seconds)
    while process.poll() is None:
        if moment == "any time" and processor_time(process, begun) >= end:
            return True
        if moment == "checkpoint" and any((folder / "checkpoints").glob(".part-*")):
            return True
        if moment == "log" and any(size(name) > before[name] for name in before):  # smaller: the resumed run has cut it
            return True
        before = {name: min(before[name], size(name)) for name in before}
        time.sleep(0.001)
    return False


def tear_log(folder: Path, rng: random.Random) -> None:
    """Leave a log as a write cut short would: the last line without its end, or the beginning of one more."""
    path = folder / rng.choice(("metrics.jsonl", "evals.jsonl"))
    steps = [int(p.name) for p in (folder / "checkpoints").glob("*") if p.name.isdigit()]
    text = path.read_bytes() if path.is_file() else b""
    lines = text.splitlines(keepends=True)
    if lines and json.loads(lines[-1])["step"] > max(steps, default=0):  # no checkpoint stands behind it yet
        path.write_bytes(text[: -rng.randint(1, len(lines[-1]) - 1)])
    else:
        path.write_bytes(text + b'{"step": 99999, "agent/q": 0.12345, "wall_s"'[: rng.randint(1, 40)])


def survive(folder: Path, kills: int, seconds: float, rng: random.Random) -> Counter[str]:
    """Train to the end through up to `kills` kills; what was done to it. A process that ends before its kill comes ends the run."""
    done: Counter[str] = Counter()
    while done["kills"] < kills:
        which, moment = rng.choice(SIGNALS), rng.choice(MOMENTS)
        process = start(folder)
        try:
            if not wait_for(moment, folder, process, seconds, rng):
                _, said = process.communicate()
                assert process.returncode == 0, said
                return done
            process.send_signal(which)
            _, said = process.communicate(timeout=1800)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode == 0:  # the signal came in the last round: it was done already, which counts for nothing
            return done
        # Stopped in good order, or by the system's or Python's own answer to a signal that came before training had begun.
        assert process.returncode in (-which, 128 + which, 1 if which == signal.SIGINT else -which), (
            f"{which.name}: {process.returncode}: {said}"
        )
        assert "Traceback" not in said or which == signal.SIGINT, said
        done["kills"] += 1
        done[which.name] += 1
        done[f"during {moment}"] += 1
        if which == signal.SIGKILL and any((folder / "checkpoints").glob(".part-*")):
            done["half checkpoints left"] += 1
        writing = (folder / "config.json").is_file() and not (folder / "checkpoints" / str(STEPS)).exists()  # not at its end
        if which == signal.SIGKILL and writing and rng.random() < 0.5:
            tear_log(folder, rng)
            done["log lines torn"] += 1
    finish(folder)
    return done


def differences(a: Path, b: Path) -> list[str]:
    """What two finished runs disagree on; wall_s is the only clock."""
    found = []
    for name in ("metrics.jsonl", "evals.jsonl"):
        rows = [[json.loads(line) for line in (f / name).read_text().splitlines()] for f in (a, b)]
        rows = [[{k: v for k, v in row.items() if k != "wall_s"} for row in part] for part in rows]
        if rows[0] != rows[1]:
            found.append(f"{name}: steps {[r['step'] for r in rows[0]]} and {[r['step'] for r in rows[1]]}, or other numbers")
    last = [sorted((f / "checkpoints").glob("[0-9]*"), key=lambda p: int(p.name))[-1] for f in (a, b)]
    if last[0].name != last[1].name:
        found.append(f"the last checkpoints are {last[0].name} and {last[1].name}")
    for path in sorted(last[0].glob("*.safetensors")):  # weights, moments, buffer, actions: all that a run is
        if path.read_bytes() != (last[1] / path.name).read_bytes():
            found.append(f"{path.name} of step {last[0].name} differs")
    return found + [f"{p.name} was left behind" for p in (b / "checkpoints").glob(".part-*")]
