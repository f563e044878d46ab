"""Seconds from starting `aimrl train` to the first finished round of updates, preset `fast`: from an empty cache of programs, and again.

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
import threading
import time
from typing import Any

ENV = "FetchPush-v4"


def once(folder: str) -> None:
    """Train until the first round of updates is done, and print when things happened."""
    from aimrl import cli

    began = float(os.environ["BEGAN"])

    def watch() -> None:
        """Time the updates of whatever trainer the command makes, without loading anything before the command does."""
        while not hasattr(sys.modules.get("aimrl.train"), "load_run"):  # the last that its file defines
            time.sleep(0.005)
        import jax

        from aimrl.train import Trainer

        make = Trainer.__init__

        def watched(trainer: Trainer, *args: object) -> None:
            make(trainer, *args)  # pyright: ignore[reportArgumentType]
            learn = trainer.learn

            def timed(*inputs: object) -> object:
                out = learn(*inputs)  # returns when the updates are launched
                launched = time.time() - began
                jax.block_until_ready(out)
                print(json.dumps({"launched": launched, "round": time.time() - began}), flush=True)
                os._exit(0)

            trainer.learn = timed

        Trainer.__init__ = watched  # pyright: ignore[reportAttributeAccessIssue]

    threading.Thread(target=watch, daemon=True).start()
    # Learning waits for movement otherwise, which is the simulator's time.
    cli.main(["train", ENV, "--steps", "2400", "--moving-starts", "0", "--out", f"{folder}/run", "--quiet"])


def main() -> None:
    from aimrl import runs

    out: dict[str, Any] = {"versions": runs.versions()}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm", "warm_again"):
            env = os.environ | {"XDG_CACHE_HOME": cache, "BEGAN": str(time.time())}
            done = subprocess.run([sys.executable, __file__, f"{cache}/{name}"], env=env, capture_output=True, text=True, check=True)
            out[name] = {k: round(v, 2) for k, v in json.loads(done.stdout.splitlines()[-1]).items()}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    once(sys.argv[1]) if len(sys.argv) > 1 else main()
