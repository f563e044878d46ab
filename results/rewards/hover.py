"""How far from the goal FAIRL's policies stay: python results/rewards/hover.py, after `aimrl sweep results/rewards/ends.toml`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from aimrl import load, runs
from aimrl.envs import vector

HERE = Path(__file__).resolve().parent
EPISODES, STEPS = 40, 50


def distances(folder: Path) -> np.ndarray:
    """Metres to the goal at the start, and in the second half of every episode, `[steps, episodes]`; nothing ends an episode here."""
    run, found = load(folder), []
    with vector.make("FetchReach-v4", EPISODES, 2**31) as env:
        obs = env.reset()
        for _ in range(STEPS):
            found.append(np.linalg.norm(obs.achieved_goal - obs.desired_goal, axis=-1))
            obs = env.step(run.policy(obs.observation, obs.desired_goal)).obs
    return np.stack([found[0], *found[STEPS // 2 :]])


def main() -> None:
    rows = []
    for reward in ("fairl", "fairl-"):
        folders = sorted(Path(f"runs/ends/FetchReach-v4/{reward}-td3-fast").glob("seed-*"))
        d = np.stack([distances(folder) for folder in folders])  # [seeds, steps, episodes]
        start, late = d[:, 0], d[:, 1:]
        shares = {"on_goal": (late < 0.05).mean(), "within_15_cm": (late < 0.15).mean()}
        rows.append(
            {"reward": reward, "seeds": len(folders), "start_cm": round(100 * float(np.median(start)), 1)}
            | {"median_cm_by_seed": [round(100 * float(np.median(x)), 1) for x in late]}
            | {k: round(float(v), 3) for k, v in shares.items()}
        )
        print(rows[-1], flush=True)
    about = {"episodes": EPISODES, "steps": f"{STEPS // 2 + 1} to {STEPS}", "versions": runs.versions()}
    (HERE / "hover.json").write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
