"""Speed as ratios measured side by side in one run: the learner against the machine's matrix products, the whole loop against SB3 and SBX.

Every part runs in a process of its own, on all cores and pinned to one, so that thread pools are what they would be for a user.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from aimrl.types import UserError, cores, multiplies_bfloat16, processor

UPDATE_MFLOP = 830.0  # one TD3 update at batch 256 with 3 × 256 networks: two target critics, two critics and every second time the actor
_ENV = "FetchPush-v4"
_SAME: dict[str, Any] = {"gamma": 0.95, "tau": 0.05}  # of ours and of the peers
_SIZES: dict[str, Any] = {"hidden": (256, 256, 256)} | _SAME
# The speed of a shared machine changes by a third within minutes, so rivals take turns: a ratio is the median of the ratios of each turn,
# a number of steps the median of the turns'; `…_each` has them all.
_TURNS = 5
_NARROW = "_bfloat16"  # marks what was measured with the agent's products in bfloat16; everything else, peers included, is in float32


def bench(quick: bool = False, listen: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """All measurements; `quick` shortens each (for a look, not for a claim)."""
    for package in ("stable_baselines3", "sbx", "envpool"):
        if not _installed(package):
            raise UserError(f"the benchmark compares with {package}, which is missing: in the checkout, pip install -e '.[sb3,envpool]'")
    from aimrl import runs

    def told(part: str, pinned: int | None) -> dict[str, Any]:
        """What a part found, said at once: the whole takes from half an hour to an hour, and who ends it early has what there was."""
        where = " on one core" if pinned else ""
        listen(f"{part}{where} …")
        found = _measure(part, pinned, quick)
        listen(f"{part}{where}: " + ", ".join(f"{key} {value:.4g}" for key, value in found.items()))
        return found

    out: dict[str, Any] = {"versions": runs.versions(**_peer_versions()), "cores": cores(), "processor": chip()}
    for suffix, pinned in (("", None), ("_1core", 1)):
        narrow = [_NARROW] * multiplies_bfloat16()
        loops, turns = ["loop", *("loop" + kind for kind in narrow), "sb3", "sbx"], 1 if quick else _TURNS
        measured: dict[str, list[float]] = {}
        for part in ["learner", *("learner" + kind for kind in narrow), *loops * turns, "envs"]:
            for key, value in told(part, pinned).items():
                measured.setdefault(key, []).append(value)
        each = {key: [round(v, 2) for v in values] for key, values in measured.items() if len(values) == turns}
        found = {key: statistics.median(values) for key, values in measured.items()}
        found["update_floor_ratio"] = found["update_ms"] / (UPDATE_MFLOP / found["sgemm_gflops"])
        for peer, kind in itertools.product(("sb3", "sbx"), ["", *narrow]):
            pairs = zip(each[f"steps_per_s{kind}"], each[f"{peer}_steps_per_s"])
            each[f"{peer}_ratio{kind}"] = [round(ours / theirs, 2) for ours, theirs in pairs]
            found[f"{peer}_ratio{kind}"] = statistics.median(each[f"{peer}_ratio{kind}"])
        found["env_ratio"] = found["envpool_steps_per_s"] / found["gym_steps_per_s"]
        out |= {key + suffix: value for key, value in found.items()}
        out |= {f"{key}_each{suffix}": each[key] for key in found if key in each and turns > 1}
    for part in ("sampling", "grid"):
        out |= told(part, None)
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in out.items()}


def chip() -> dict[str, str]:
    """Which kind of processor this is: no measurement of speed is kept without it."""
    return {key: value for key, value in processor().items() if key in ("model name", "cpu family", "model", "cache size")}


def _installed(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None


def _peer_versions() -> dict[str, str]:
    from importlib import metadata

    return {name: metadata.version(name) for name in ("stable-baselines3", "sbx-rl", "torch", "envpool")}


def _measure(part: str, pinned: int | None, quick: bool) -> dict[str, Any]:
    env = os.environ | {"AIMRL_BENCH_BEGAN": str(time.time())}
    if pinned:  # before any library starts its threads
        env |= {"OMP_NUM_THREADS": str(pinned), "OPENBLAS_NUM_THREADS": str(pinned), "AIMRL_BENCH_CORES": str(pinned)}
    command = [sys.executable, "-m", "aimrl.bench", part, "quick" if quick else "full"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1_800)
    except subprocess.TimeoutExpired:
        raise UserError(f"the benchmark's part '{part}' did not end within half an hour: is the machine busy?") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"the benchmark's part '{part}' failed: {last}")
    return json.loads(done.stdout.strip().splitlines()[-1])


# --- parts: each runs alone in its process ------------------------------------------------------------------------------------------------


def _seconds(f: Callable[[], Any]) -> float:
    """Of one call, after a pause: threads of a BLAS go on spinning for a while after their last product, at the cost of whoever is next."""
    time.sleep(0.1)
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def _best(f: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest of several calls, after one to warm up."""
    return min(_by_turns([f], repeats)[0])


def _by_turns(rivals: list[Callable[[], Any]], repeats: int) -> list[tuple[float, ...]]:
    """Seconds of each of several that take turns, so that none has the machine's better moments to itself."""
    for f in rivals:
        f()
    turns = [[_seconds(f) for f in rivals] for _ in range(repeats)]
    return list(zip(*turns))


_PRODUCTS = 40  # timed at a time: about as long as a few updates


def _products() -> Callable[[], None]:
    """Float32 products of 256 × 256 matrices by NumPy's BLAS: the best of many such bursts is the machine's own limit."""
    import numpy as np

    a, b = np.random.default_rng(0).standard_normal((2, 256, 256), np.float32)
    out = np.empty_like(a)

    def products() -> None:
        for _ in range(_PRODUCTS):
            np.matmul(a, b, out=out)

    return products


def _gflops(seconds: float) -> float:
    return _PRODUCTS * 2 * 256**3 / seconds / 1e9


def _round_on(transitions: int, **options: Any):
    """A trainer of the paper's sizes whose buffer holds `transitions`, without a simulator."""
    import tempfile
    from pathlib import Path

    import jax
    import numpy as np

    from aimrl import replay
    from aimrl.config import make_config
    from aimrl.envs import vector
    from aimrl.train import Trainer

    settings = {"steps": transitions, "buffer_size": transitions, "round_updates": 100, "potential_updates": 10, "agent_options": _SIZES}
    config = make_config(_ENV, preset="paper", **(settings | options))
    with vector.make(_ENV, 1, 0) as env:
        trainer = Trainer(config, Path(tempfile.gettempdir()), env.spec, env.task, None, None, lambda event, data: None)
    spec, rng, n = trainer.spec, np.random.default_rng(0), 200
    length = np.full(n, spec.horizon, np.int32)
    store = jax.jit(trainer.round.store, donate_argnums=0)  # the trainer's own takes as many episodes as it has environments
    for _ in range(-(-transitions // (n * spec.horizon))):
        shape = (n, spec.horizon + 1)
        walk = np.cumsum(rng.normal(0, 0.02, (*shape, spec.goal_dim)), 1).astype(np.float32)
        episodes = replay.Episodes(
            rng.standard_normal((*shape, spec.obs_dim), np.float32),
            walk,
            walk[:, -1] + 0.1,
            rng.uniform(-1, 1, (*shape, spec.action_dim)).astype(np.float32),
            np.zeros(n, bool),
            length,
        )
        (trainer.ring, inputs), _ = store((trainer.ring, trainer.brain.inputs), episodes)
        trainer.brain = dataclasses.replace(trainer.brain, inputs=inputs)
    jax.block_until_ready(trainer.ring)
    return trainer


def _rounds(stored: int = 100_000, **options: Any) -> Callable[[], None]:
    """A round of updates of a trainer with these options and so many stored transitions, to be timed."""
    import jax
    import numpy as np

    trainer = _round_on(stored, **({"round_updates": _UPDATES, "potential_updates": _UPDATES // 10} | options))

    def one_round() -> None:
        trainer.brain, metrics = trainer.learn(trainer.brain, trainer.ring, trainer.root, np.uint32(0))
        jax.block_until_ready((trainer.brain, metrics))

    return one_round


_UPDATES = 20  # of a timed round: as short as a burst of products, so that both find the machine's quiet moments


def _learner(quick: bool) -> dict[str, Any]:
    """Milliseconds an update of the whole AIM + HER + TD3 round, the same round without AIM, and the machine's products, by turns."""
    rivals = [_products(), _rounds(reward="aim"), _rounds(reward="sparse", potential_updates=0)]
    products, aim, sparse = _by_turns(rivals, 10 if quick else 50)
    ms = {"update_ms": 1e3 * min(aim) / _UPDATES, "update_ms_sparse": 1e3 * min(sparse) / _UPDATES}
    share = statistics.median(a / s for a, s in zip(aim, sparse)) - 1  # of neighbours: the best of each may lie minutes apart
    return {"sgemm_gflops": _gflops(min(products)), **ms, "aim_share": share}


def _narrow_learner(quick: bool) -> dict[str, Any]:
    return {"update_ms" + _NARROW: 1e3 * _best(_rounds(reward="aim", precision="bfloat16"), 10 if quick else 50) / _UPDATES}


def _loop(quick: bool, precision: str = "float32") -> dict[str, Any]:
    """Environment steps a second of the whole training loop, AIM included, one update a step, after compilation."""
    import tempfile
    from pathlib import Path

    from aimrl.config import make_config
    from aimrl.train import train

    steps = 800 if quick else 3_000
    options = {"num_envs": 10, "round_steps": 100, "round_updates": 100, "potential_updates": 10, "agent_options": _SIZES}
    options |= {"learning_starts": 200, "eval_every": 10**9, "checkpoint_every": 10**9, "precision": precision}
    config = make_config(_ENV, preset="paper", steps=steps + 500, **options)
    clock: dict[int, float] = {}
    learned: list[int] = []  # steps after which there were updates
    with tempfile.TemporaryDirectory() as folder:

        def listen(event: str, data: dict[str, Any]) -> None:
            if event == "round":
                clock[data["step"]] = time.time()
                if data["learned"]:
                    learned.append(data["step"])

        train(config, Path(folder) / "run", listen=listen, stop=lambda: max(clock) > steps)  # stopped: nothing is evaluated
    last = max(clock)
    # Updates run behind the scenes until the next round acts on what they made: the first are surely done when the second are begun.
    first_update_s = clock[learned[1]] - float(os.environ["AIMRL_BENCH_BEGAN"])
    return {"steps_per_s": (last - 500) / (clock[last] - clock[500]), "first_update_s": first_update_s}


def _narrow_loop(quick: bool) -> dict[str, Any]:
    return {"steps_per_s" + _NARROW: _loop(quick, "bfloat16")["steps_per_s"]}


def _peer(name: str) -> Callable[[bool], dict[str, Any]]:
    def measure(quick: bool) -> dict[str, Any]:
        """Environment steps a second of the peer's TD3 + HER with the same sizes, one update a step."""
        import gymnasium as gym
        import gymnasium_robotics
        from stable_baselines3 import HerReplayBuffer
        from stable_baselines3.common.callbacks import BaseCallback

        if name == "sb3":
            from stable_baselines3 import TD3
        else:
            from sbx import TD3  # pyright: ignore[reportAssignmentType]
        pinned = int(os.environ.get("AIMRL_BENCH_CORES", "0"))
        if pinned:
            import torch

            torch.set_num_threads(pinned)
        gym.register_envs(gymnasium_robotics)
        clock: dict[int, float] = {}

        class Clock(BaseCallback):
            def _on_step(self) -> bool:
                clock[self.num_timesteps] = time.perf_counter()
                return True

        model = TD3(
            "MultiInputPolicy",
            gym.make(_ENV),
            replay_buffer_class=HerReplayBuffer,
            batch_size=256,
            **_SAME,
            learning_rate=1e-3,
            learning_starts=100,
            train_freq=1,
            gradient_steps=1,
            policy_kwargs={"net_arch": [256, 256, 256]},
            seed=0,
        )
        n = 500 if quick else 1_500
        model.learn(n, callback=Clock())
        return {f"{name}_steps_per_s": (n - 250) / (clock[n] - clock[250])}

    return measure


def _envs(quick: bool) -> dict[str, Any]:
    """Simulator steps a second, EnvPool against gymnasium-robotics."""
    import numpy as np

    from aimrl.envs import vector

    out = {}
    for backend in ("envpool", "gym"):
        n = 10 if backend == "envpool" else (int(os.environ.get("AIMRL_BENCH_CORES", "0")) or cores())
        with vector.make(_ENV, n, 0, backend) as env:
            rng = np.random.default_rng(0)
            env.reset()
            steps, start = 0, time.perf_counter()
            while time.perf_counter() - start < (2 if quick else 6):
                result = env.step(rng.uniform(-1, 1, (n, 4)).astype(np.float32))
                done = result.terminated | result.truncated
                if done.any():
                    env.reset(done)
                steps += n
            out[f"{backend}_steps_per_s"] = steps / (time.perf_counter() - start)
    return out


def _sampling(quick: bool) -> dict[str, Any]:
    """Microseconds to sample and relabel one batch of 256 from buffers of 10⁴ and 10⁶ transitions."""
    out = {}
    for name, size in (("sample_us_1e4", 10_000), ("sample_us_1e6", 1_000_000)):
        trainer = _round_on(size, learning_starts=size)  # no updates, so that none are compiled beside the measurement
        out[name] = 1e6 * _best(_sampler(trainer), 5 if quick else 20) / 100
    return out


def _sampler(trainer: Any) -> Callable[[], Any]:
    """Draws a hundred batches, other ones at each call: the same rows once more would come from the processor's cache."""
    import jax

    from aimrl import replay

    how, judge = trainer.round.how, trainer.round.judge
    draw = jax.jit(lambda ring, key: replay.sample(ring, key, (100, 256), how, judge))
    keys = itertools.cycle(jax.block_until_ready(list(jax.random.split(jax.random.PRNGKey(1), 64))))
    return lambda: jax.block_until_ready(draw(trainer.ring, next(keys)))


def _grid(quick: bool) -> dict[str, Any]:
    """Milliseconds of one seed's iteration in the room with 32 seeds in one program, from the difference of two lengths."""
    import tempfile
    from pathlib import Path

    from aimrl import grid

    times = {}
    longer = 40 if quick else 60
    for iterations in (20, 20, longer):  # the first call compiles
        with tempfile.TemporaryDirectory() as folder:
            result = grid.run("room", "aim", "fast", 32, 0, iterations, None, Path(folder) / "g", progress=False)
            times[iterations] = result["wall_s"]
    return {"grid_ms_per_seed_iteration": 1e3 * (times[longer] - times[20]) / ((longer - 20) * 32)}


_PARTS = {"learner": _learner, "loop": _loop, "sb3": _peer("sb3"), "sbx": _peer("sbx"), "envs": _envs, "sampling": _sampling, "grid": _grid}
_PARTS |= {"learner" + _NARROW: _narrow_learner, "loop" + _NARROW: _narrow_loop}


if __name__ == "__main__":
    pinned = int(os.environ.get("AIMRL_BENCH_CORES", "0"))
    if pinned and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:pinned]))
    print(json.dumps(_PARTS[sys.argv[1]](sys.argv[2] == "quick")))
