"""Found first on PYTHONPATH, this puts a stand-in for `aimrl.train` into every Python process: same files, same resuming, no learning.

So the tests of sweeps and searches start real processes, kill them and read real run folders, without a compiler in each of them.
"""

import os
import sys
import time
import types


def train(config, folder, *, resume=False, listen=lambda event, data: None, stop=lambda: False):
    import numpy as np

    from aimrl import runs
    from aimrl.types import UserError

    if config.env == "Broken-v0":
        raise UserError("unknown environment 'Broken-v0'")
    if "STANDIN_BREAKS" in os.environ:
        raise UserError("the arm is broken")
    runs.prepare(folder, config, {}, resume)
    steps = runs.checkpoint_steps(folder) if resume else []
    step = steps[-1] if steps else 0
    total = runs.load_tree(folder, step, "brain", {"sum": np.zeros((), np.int64)})["sum"] if steps else np.zeros((), np.int64)
    runs.cut_log(folder / "evals.jsonl", step if steps else -1)
    rate = config.agent_options.get("critic_rate", 1e-3)
    while step < config.steps:
        time.sleep(float(os.environ.get("STANDIN_ROUND_S", "0.01")))
        step += config.round_steps
        total = total + step * (config.seed + 1)  # any lost or repeated round shows in the sum
        if "Suicidal" in config.env and step == 300 and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), 9)
        good = int(10 * min(1.0, step / config.steps) / (1 + abs(np.log10(rate / 1e-3))))
        row = {"step": step, "episodes": 10, "success_final": [1] * good + [0] * (10 - good), "wall_s": step / 100, "sum": int(total)}
        runs.append_line(folder / "evals.jsonl", row)
        listen("eval", row)
        halt = stop()
        if halt or step >= config.steps or step % config.checkpoint_every == 0:
            runs.save_checkpoint(folder, step, {"brain": {"sum": total}}, {"rows": 0})
        if halt:
            break
        gate = os.environ.get("STANDIN_GATE")  # a file to wait for half-way, so that a test can kill what is surely at work
        while gate and step == 400 and not os.path.exists(gate):
            time.sleep(0.05)


module = types.ModuleType("aimrl.train")
module.train = train
sys.modules["aimrl.train"] = module
