"""Seconds from starting Python to the first finished round of updates, preset `fast`: from an empty compilation cache, and again from it.

    python benchmarks/start.py > results/speed/start.json

`launched` is when the compiled program is there and the first update begins, `round` when the first hundred are done; the 1,200 simulator
steps before them are included. Wants an otherwise idle machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ENV = "FetchPush-v4"


def once() -> None:
    """Train until the first round of updates is done, and print when things happened."""
    import jax

    from aimrl.config import make_config
    from aimrl.train import Trainer, train

    began, seen = float(os.environ["BEGAN"]), {}
    make = Trainer.__init__

    def watched(trainer: Trainer, *args: object) -> None:
        make(trainer, *args)  # pyright: ignore[reportArgumentType]
        learn = trainer.learn

        def timed(*inputs: object) -> object:
            out = learn(*inputs)  # returns when the updates are launched
            seen.setdefault("launched", time.time() - began)
            jax.block_until_ready(out)
            seen.setdefault("round", time.time() - began)
            return out

        trainer.learn = timed

    Trainer.__init__ = watched  # pyright: ignore[reportAttributeAccessIssue]
    # Learning waits for movement otherwise, which is the simulator's time.
    config = make_config(ENV, steps=2_400, moving_starts=0, eval_every=10**9, checkpoint_every=10**9)
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", stop=lambda: bool(seen))
    print(json.dumps(seen))


def main() -> None:
    from aimrl import runs

    out: dict[str, Any] = {"versions": runs.versions()}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm", "warm_again"):
            env = os.environ | {"XDG_CACHE_HOME": cache, "BEGAN": str(time.time())}
            done = subprocess.run([sys.executable, __file__, "once"], env=env, capture_output=True, text=True, check=True)
            out[name] = {k: round(v, 2) for k, v in json.loads(done.stdout.splitlines()[-1]).items()}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    once() if "once" in sys.argv else main()
