"""What grows with what: batches with the buffer, memory with the data, work with seeds and cores. Prints one JSON object.

    python benchmarks/growth.py > results/speed/growth.json

Wants an otherwise idle machine and takes some minutes. The learner alone is timed, at the sizes of `aimrl bench`.
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

SIZES = (10_000, 100_000, 1_000_000)  # stored transitions
SEEDS = (8, 16, 32, 64)  # of one grid program
ROUNDS = 8  # a learner's measurement: long enough for processes to run side by side


def sampling() -> dict[str, Any]:
    """Microseconds of a sampled and relabelled batch of 256, and bytes a stored transition over its raw numbers, by buffer size."""
    import jax

    from aimrl import bench

    out: dict[str, Any] = {"sample_us": {}, "memory_ratio": {}}
    for size in SIZES:
        trainer = bench._round_on(size, learning_starts=size)  # nothing is compiled beside the measurement
        seconds = bench._best(bench._sampler(trainer), 20)
        spec = trainer.spec
        raw = 4 * (spec.obs_dim + 2 * spec.goal_dim + spec.action_dim)  # an observation, two goals and an action, once
        held = sum(x.nbytes for x in jax.tree.leaves(trainer.ring))
        out["sample_us"][size] = round(1e4 * seconds, 1)
        out["memory_ratio"][size] = round(held / (size * raw), 3)
    return out


def peer_sampling() -> dict[str, Any]:
    """Microseconds of the same batch from Stable-Baselines3's hindsight buffer, full of episodes of 50 steps."""
    import gymnasium as gym
    import gymnasium_robotics
    import numpy as np
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common.vec_env import DummyVecEnv

    from aimrl import bench

    gym.register_envs(gymnasium_robotics)
    env = DummyVecEnv([lambda: gym.make(bench._ENV)])
    out = {}
    for size in SIZES:
        buffer = HerReplayBuffer(size, env.observation_space, env.action_space, env)
        buffer.ep_start[:, 0], buffer.ep_length[:, 0], buffer.full = np.arange(size) // 50 * 50, 50, True
        out[size] = round(1e6 * bench._best(lambda buffer=buffer: buffer.sample(256), 20), 1)
    return {"sb3_sample_us": out}


def updates() -> dict[str, Any]:
    """Milliseconds of a whole update by stored transitions, which take turns, and what the larger buffers cost over the smallest."""
    import statistics

    from aimrl import bench

    turns = bench._by_turns([bench._rounds(size, reward="aim") for size in SIZES], 40)
    best = [round(1e3 * min(seconds) / bench._UPDATES, 2) for seconds in turns]
    ratio = [round(statistics.median(b / a for a, b in zip(turns[0], seconds)), 3) for seconds in turns]
    return {"update_ms": dict(zip(SIZES, best)), "update_over_smallest": dict(zip(SIZES, ratio))}


def potential() -> dict[str, Any]:
    """Milliseconds of a round with more and more updates of the potential (100 of the agent's each)."""
    from aimrl import bench

    counts = (10, 20, 40, 80)
    turns = bench._by_turns([bench._rounds(SIZES[0], reward="aim", round_updates=100, potential_updates=n) for n in counts], 8)
    return {"round_ms_by_potential_updates": {n: round(1e3 * min(seconds), 1) for n, seconds in zip(counts, turns)}}


def grid() -> dict[str, Any]:
    """Milliseconds of an iteration of the room, by the number of seeds in one program."""
    from aimrl import grid as room

    def seconds(seeds: int, iterations: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            return room.run("room", "aim", "fast", seeds, 0, iterations, None, Path(folder) / "g", progress=False)["wall_s"]

    out = {}
    for seeds in SEEDS:
        seconds(seeds, 10)  # compiles
        out[seeds] = round(1e3 * (seconds(seeds, 50) - seconds(seeds, 10)) / 40, 2)
    return {"grid_ms_by_seeds": out}


def learner() -> dict[str, Any]:
    """Rounds of 100 updates a second of one process, counted while every process of the measurement is at work."""
    from aimrl import bench

    one_round = bench._rounds(SIZES[0], reward="aim", round_updates=100)
    for i in range(ROUNDS + 2):
        if i == 2:
            start = time.perf_counter()
        one_round()
    return {"rounds_per_s": ROUNDS / (time.perf_counter() - start)}


def side_by_side() -> dict[str, Any]:
    """What k learners on k cores do, one core each, over k times what one alone does."""
    cores = sorted(os.sched_getaffinity(0))
    rate = lambda k: sum(json.loads(p.communicate()[0])["rounds_per_s"] for p in [_start("learner", {c}) for c in cores[:k]])  # noqa: E731
    alone, together = rate(1), rate(len(cores))
    return {"cores": len(cores), "parallel_seeds_ratio": round(together / (len(cores) * alone), 3)}


def _start(part: str, cores: set[int] | None = None) -> subprocess.Popen[str]:
    env = os.environ | ({} if cores is None else {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    pin = None if cores is None else lambda: os.sched_setaffinity(0, cores)
    return subprocess.Popen([sys.executable, __file__, part], env=env, preexec_fn=pin, stdout=subprocess.PIPE, text=True)


PARTS = {"sampling": sampling, "updates": updates, "peer_sampling": peer_sampling, "potential": potential, "grid": grid, "learner": learner}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(PARTS[sys.argv[1]]()))
    else:
        found: dict[str, Any] = {}
        for part in ("sampling", "updates", "peer_sampling", "potential", "grid"):  # a process each: thread pools and memory as for a user
            found |= json.loads(_start(part).communicate()[0])
        from aimrl import bench, runs

        print(json.dumps(found | side_by_side() | {"processor": bench.chip(), "versions": runs.versions()}, indent=1))
