"""Seconds from starting `aimrl train` to the first finished round of updates, preset `fast`: from an empty cache of programs, and again.

    python benchmarks/start.py > results/speed/start.json
    python benchmarks/start.py square:Square-v0               # another environment, here one in the current folder

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


def once(env: str, folder: str) -> None:
    """Train until the first round of updates is done, and print when things happened."""
    from aimrl import cli

    began = float(os.environ["BEGAN"])

    def watch() -> None:
        """Time the updates that the command gets ready, without loading anything before the command does.

        What makes a round must stay as it is: a program of replaced code is another program, and would be traced anew.
        """
        while not hasattr(sys.modules.get("aimrl.programs"), "key_of"):
            time.sleep(0.002)
        import jax

        from aimrl import programs

        compile_early = programs.compile_early

        def watched(f: programs.Step, *args: Any, **options: Any) -> programs.Step:
            early = compile_early(f, *args, **options)

            def timed(*inputs: Any) -> Any:
                out = early(*inputs)  # returns when the updates are launched
                launched = time.time() - began
                jax.block_until_ready(out)
                print(json.dumps({"launched": launched, "round": time.time() - began}), flush=True)
                for thread in threading.enumerate():
                    if thread.name.startswith("beside"):  # writes what was compiled, for the next start
                        thread.join()
                os._exit(0)

            return timed if f.__name__ == "learn" else early

        programs.compile_early = watched

    threading.Thread(target=watch, daemon=True).start()
    # Learning waits for movement otherwise, which is the simulator's time.
    cli.main(["train", env, "--steps", "2400", "--moving-starts", "0", "--out", f"{folder}/run", "--quiet"])


def main(task: str) -> None:
    from aimrl import bench, runs

    out: dict[str, Any] = {"versions": runs.versions(), "processor": bench.chip(), "env": task}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm", "warm_again"):
            env = os.environ | {"XDG_CACHE_HOME": cache, "BEGAN": str(time.time())}
            done = subprocess.run([sys.executable, __file__, task, f"{cache}/{name}"], env=env, capture_output=True, text=True, check=True)
            out[name] = {k: round(v, 2) for k, v in json.loads(done.stdout.splitlines()[-1]).items()}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    once(*sys.argv[1:]) if len(sys.argv) > 2 else main(*sys.argv[1:] or ["FetchPush-v4"])
