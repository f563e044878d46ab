"""Run folders as training leaves them, made up in milliseconds: for tests of whatever reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from aimrl.config import make_config
from aimrl.runs import FORMAT, plain


def evaluation(step: int, share: float, rng: np.random.Generator, episodes: int = 40, wall: float | None = None) -> dict[str, Any]:
    """A line of evals.jsonl: the goal is reached with probability `share` and then mostly held."""
    ever = rng.random(episodes) < share
    final = ever & (rng.random(episodes) < 0.9)
    first = np.where(ever, rng.integers(3, 20, episodes), -1)
    record = {"step": step, "episodes": episodes, "success_final": final.astype(int), "success_ever": ever.astype(int)}
    return plain(record | {"steps_to_goal": first, "return": -first.astype(float), "wall_s": step / 50 if wall is None else wall})


def metrics(step: int, rng: np.random.Generator) -> dict[str, Any]:
    row = {"aim/w1": 20 / (1 + step / 5000) + rng.random(), "aim/violations": 0.2 + 0.1 * rng.random(), "reward/mean": -1 - rng.random()}
    return row | {"agent/q": -5 - rng.random(), "agent/critic_loss": rng.random(), "moved": 0.5, "step": step, "wall_s": step / 50}


def make_run(
    folder: Path, env: str = "FetchPush-v4", reward: str = "aim", seed: int = 0, best: float = 0.9, steps: int = 20_000, **config: Any
) -> Path:
    """A finished run whose success rises towards `best`, evaluated ten times."""
    rng = np.random.default_rng([seed, len(reward), int(1000 * best)])
    folder.mkdir(parents=True)
    values = vars(
        make_config("FetchPush-v4", reward=reward if reward in ("aim", "aim+r", "sparse", "dense") else "aim", steps=steps, seed=seed)
    )
    values = plain(values) | {"env": env, "reward": reward, "format": FORMAT, "versions": {"aimrl": "0.1.0", "jax": "0.10.2"}} | config
    (folder / "config.json").write_text(json.dumps(values))
    at = range(steps // 10, steps + 1, steps // 10)
    speed = 3 / steps * (1 + 0.2 * rng.random())
    write_lines(folder / "evals.jsonl", [evaluation(s, best * (1 - np.exp(-speed * s)), rng) for s in at])
    write_lines(folder / "metrics.jsonl", [metrics(s, rng) for s in range(1000, steps + 1, 1000)])
    return folder


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
