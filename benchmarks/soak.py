"""Kills `aimrl train` at random moments, resumes it, and holds the result to an uninterrupted run: bit for bit, logs without gaps.

    python benchmarks/soak.py --kills 50 --seed 0

Exits 0 when nothing differs. SIGKILL, SIGTERM and SIGINT are drawn at random; SIGKILL hits checkpoints and log lines half-written.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"  # the point environment lives there
OPTIONS = (
    "--num-envs 4 --round-steps 40 --round-updates 2 --batch-size 16 --learning-starts 80 --eval-every 400 --eval-episodes 4 "
    "--checkpoint-every 200 --buffer-size 3000 --potential-updates 2 --potential-batch 16 --td3.hidden 8 --no-tensorboard --quiet"
)
CLOCKS = ("wall_s",)  # the only things that may differ


def command(folder: Path, steps: int, resume: bool) -> list[str]:
    what = ["--resume"] if resume else ["point_env:Point-v0", *OPTIONS.split()]
    return [sys.executable, "-m", "aimrl", "train", *what, "--steps", str(steps), "--out", str(folder), *(["--quiet"] if resume else [])]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(TESTS), "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}


def run_to_the_end(folder: Path, steps: int) -> float:
    """Seconds of an uninterrupted run."""
    begun = time.monotonic()
    subprocess.run(command(folder, steps, False), env=environment(), check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


def run_with_kills(folder: Path, steps: int, kills: int, start_up: float, rng: random.Random) -> dict[str, int]:
    """Train to the end through `kills` kills; a process that ended before its kill came doesn't count."""
    done: dict[str, int] = {"SIGKILL": 0, "SIGTERM": 0, "SIGINT": 0}
    target = steps
    while True:
        resume = (folder / "config.json").is_file()
        process = subprocess.Popen(
            command(folder, target, resume), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            if sum(done.values()) < kills:
                wait_for_work(folder, process, rng.uniform(0, 0.5 * start_up))
                which = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
                process.send_signal(which)
                _, said = process.communicate(timeout=600)
                if process.returncode == 0:
                    raise SystemExit(f"the run ended after {sum(done.values())} kills: give it more --steps")
                if process.returncode not in (-which, 128 + which, -signal.SIGTERM, -signal.SIGINT):
                    raise SystemExit(f"killed by {which.name}, the run exited {process.returncode}: {said.strip()}")
                done[which.name] += 1
            else:
                _, said = process.communicate(timeout=3600)
                if process.returncode:
                    raise SystemExit(f"resuming failed with {process.returncode}: {said.strip()}")
                return done
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def wait_for_work(folder: Path, process: subprocess.Popen, more: float) -> None:
    """Until the run has written something new, and some random time longer: often in the middle of the next thing it writes."""
    before = newest(folder)
    while process.poll() is None and newest(folder) == before:
        time.sleep(0.01)
    end = time.monotonic() + more
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)


def newest(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        try:
            found = max(found, path.stat().st_mtime_ns)
        except OSError:  # gone since it was listed
            continue
    return found


def differences(a: Path, b: Path) -> list[str]:
    """What the two runs disagree on, clocks aside."""
    found = []
    for name in ("metrics.jsonl", "evals.jsonl"):
        rows = [
            [{k: v for k, v in json.loads(line).items() if k not in CLOCKS} for line in (f / name).read_text().splitlines()] for f in (a, b)
        ]
        if rows[0] != rows[1]:
            found.append(f"{name}: {len(rows[0])} and {len(rows[1])} lines, or other numbers")
    last = [max((f / "checkpoints").iterdir(), key=lambda p: int(p.name) if p.name.isdigit() else -1) for f in (a, b)]
    if last[0].name != last[1].name:
        return [*found, f"the last checkpoints are {last[0].name} and {last[1].name}"]
    for path in sorted(last[0].glob("*.safetensors")):
        if path.read_bytes() != (last[1] / path.name).read_bytes():
            found.append(f"{path.name} of step {last[0].name} differs")
    for path in (b / "checkpoints").iterdir():
        if not path.name.isdigit():
            found.append(f"{path.name} was left behind")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="how often a process is killed")
    parser.add_argument("--steps", type=int, default=0, help="environment steps of the run; enough for all kills when left out")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and signals")
    o = parser.parse_args()
    steps = o.steps or 400 + 1200 * o.kills
    with tempfile.TemporaryDirectory() as scratch:
        whole, killed = Path(scratch) / "whole", Path(scratch) / "killed"
        seconds = run_to_the_end(whole, steps)
        done = run_with_kills(killed, steps, o.kills, seconds * 400 / steps, random.Random(o.seed))
        found = differences(whole, killed)
    print(
        f"{sum(done.values())} kills ({', '.join(f'{n} {k}' for k, n in done.items())}) in {steps:,} steps: "
        + ("; ".join(found) or "no difference")
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
