"""Minutes until a task is held at the end of 90 of 100 episodes: aimrl's preset `fast` with AIM alone, Stable-Baselines3 and SBX.

    python benchmarks/solve.py --minutes 60 > results/speed/solve.json
    python benchmarks/solve.py --who aimrl --env FetchPickAndPlace-v4 --held 0.8 --minutes 40

The peers learn from the sparse reward with the settings the RL Zoo publishes for this task (TQC + HER, batch 2048, 3 × 512 networks, one
update a step) and with the sizes of `aimrl bench` (TD3 + HER, batch 256, 3 × 256, Gaussian noise of 0.2). Whoever isn't there after
`--minutes` of training has "not reached" it; the peers' evaluations aren't counted, ours are. Wants an otherwise idle machine, for hours,
and uses the cores the process is given (`taskset -c 0` for one).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

EPISODES = 100
WHO = ["aimrl", "sb3-zoo", "sbx-zoo", "sb3-td3", "sbx-td3"]


def _seen(step: int, minutes: float, held: float) -> dict[str, float]:
    print(f"{step:,} steps, {minutes:.1f} min: {held:.0%}", file=sys.stderr)
    return {"step": step, "minutes": minutes, "held": held}


def aimrl(task: str, solved: float, minutes: float, seed: int) -> dict[str, Any]:
    """Preset `fast`, AIM alone, from the start of the process's training, compiling and evaluations included."""
    from aimrl.config import make_config
    from aimrl.train import train

    curve: list[dict[str, float]] = []
    began = time.monotonic()

    def listen(event: str, data: dict[str, Any]) -> None:
        if event == "eval":
            held = sum(data["success_final"]) / len(data["success_final"])
            curve.append(_seen(data["step"], (time.monotonic() - began) / 60, held))

    over = lambda: (bool(curve) and curve[-1]["held"] >= solved) or time.monotonic() - began > 60 * minutes  # noqa: E731
    config = make_config(task, reward="aim", seed=seed, steps=10**6, eval_every=10_000, tensorboard=False)
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", listen=listen, stop=over)
    return {"curve": curve}


def peer(package: str, settings: str, task: str, solved: float, minutes: float, seed: int) -> dict[str, Any]:
    """A peer's agent with its own hindsight buffer and the task's sparse reward, evaluated every two minutes."""
    import gymnasium as gym
    import gymnasium_robotics
    import numpy as np
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.noise import NormalActionNoise

    if package == "sb3":
        from sb3_contrib import TQC
        from stable_baselines3 import TD3
    else:
        from sbx import TD3, TQC  # pyright: ignore[reportAssignmentType]
    gym.register_envs(gymnasium_robotics)
    zoo = settings == "zoo"
    width = 512 if zoo else 256
    test = gym.make(task)
    noise: dict[str, Any] = {} if zoo else {"action_noise": NormalActionNoise(np.zeros(4), np.full(4, 0.2))}  # TD3 there has none
    model = (TQC if zoo else TD3)(
        "MultiInputPolicy",
        gym.make(task),
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"goal_selection_strategy": "future", "n_sampled_goal": 4},
        batch_size=2048 if zoo else 256,
        gamma=0.95,
        tau=0.05,
        learning_rate=1e-3,
        learning_starts=1_000,
        train_freq=1,
        gradient_steps=1,
        **noise,
        policy_kwargs={"net_arch": [width] * 3} | ({"n_critics": 2} if zoo else {}),
        seed=seed,
    )
    curve: list[dict[str, float]] = []

    def held() -> float:
        count = 0
        for episode in range(EPISODES):
            obs, _ = test.reset(seed=episode)
            over, info = False, {}
            while not over:
                obs, _, terminated, truncated, info = test.step(model.predict(obs, deterministic=True)[0])
                over = terminated or truncated
            count += bool(info["is_success"])
        return count / EPISODES

    class Clock(BaseCallback):
        began, evaluating, due = time.monotonic(), 0.0, 2.0

        def _on_step(self) -> bool:
            spent = (time.monotonic() - self.began - self.evaluating) / 60
            if spent < self.due:
                return True
            before = time.monotonic()
            curve.append(_seen(self.num_timesteps, spent, held()))
            self.evaluating += time.monotonic() - before
            self.due += 2.0
            return curve[-1]["held"] < solved and spent < minutes

    model.learn(10**7, callback=Clock())
    return {"curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(description="Minutes until a task is held in 90 of 100 episodes, or in the share that --held says")
    parser.add_argument("--env", default="FetchPush-v4", help="the task; the peers' settings are those for Fetch")
    parser.add_argument("--held", type=float, default=0.9, help="the share of episodes that ends the race")
    parser.add_argument("--minutes", type=float, default=60.0, help="of training, each")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--who", nargs="+", choices=WHO, default=WHO)
    asked = parser.parse_args()
    from aimrl import bench, runs

    versions = runs.versions(**{name: metadata.version(name) for name in ("stable-baselines3", "sb3-contrib", "sbx-rl", "torch")})
    out: dict[str, Any] = {
        "versions": versions,
        "cores": len(os.sched_getaffinity(0)),
        "processor": bench.chip(),
        "seed": asked.seed,
        "env": asked.env,
    }
    race = asked.env, asked.held, asked.minutes, asked.seed
    for who in asked.who:
        package, _, settings = who.partition("-")
        found = aimrl(*race) if package == "aimrl" else peer(package, settings, *race)
        first = next((p["minutes"] for p in found["curve"] if p["held"] >= asked.held), None)
        out[who] = {f"minutes_to_{100 * asked.held:g}": first if first is not None else f"not reached in {asked.minutes:g}"} | found
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
