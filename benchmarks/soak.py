"""The long checks of docs/reliability.md: training killed at random moments, and every parser fed mutated files.

    python benchmarks/soak.py --kills 50 --inputs 100000 --seed 0

Exits 0 when every killed run equals the uninterrupted one to the bit and no parser answered with anything but a clear line.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HARNESS = Path(__file__).resolve().parents[1] / "tests" / "reliability"
sys.path.insert(0, str(HARNESS))

import kills  # noqa: E402


def kill_anywhere(wanted: int, seed: int) -> bool:
    """Runs of some nine kills each, until `wanted` processes were killed; each is held to the same uninterrupted run."""
    done: Counter[str] = Counter()
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        kills.finish(whole)  # the first one compiles
        seconds = kills.finish(Path(scratch) / "again")
        found = kills.differences(whole, Path(scratch) / "again")
        while done["kills"] < wanted and not found:
            folder = Path(scratch) / f"killed-{done['runs']}"
            done += kills.survive(folder, min(rng.randint(6, 12), wanted - done["kills"]), seconds, rng)
            done["runs"] += 1
            found = [f"run {done['runs']}: {line}" for line in kills.differences(whole, folder)]
            print(f"{done['runs']} runs, {done['kills']} kills: {'; '.join(found) or 'no difference'}", flush=True)
    print("kills: " + ", ".join(f"{n} {what}" for what, n in done.items()), flush=True)
    return not found and done["kills"] >= wanted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="how many processes are killed (0: none)")
    parser.add_argument("--inputs", type=int, default=100_000, help="how many files are fed to parsers (0: none)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments, the signals and the files")
    o = parser.parse_args()
    begun, good = time.monotonic(), True
    if o.inputs:
        good &= subprocess.run([sys.executable, HARNESS / "fuzzing.py", "--inputs", str(o.inputs), "--seed", str(o.seed)]).returncode == 0
    if o.kills:
        good &= kill_anywhere(o.kills, o.seed)
    print(f"{'all good' if good else 'FAILED'} after {time.monotonic() - begun:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
