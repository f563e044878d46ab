"""Looking at a learned potential: over the plane of the goals, along episodes, and against the steps still to go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aimrl import runs
from aimrl.types import UserError

if TYPE_CHECKING:
    from aimrl.train import Run

Floats = NDArray[np.float32]
_PANELS = 3  # goals or episodes side by side
_CELLS = 80  # of the heat map, a side


class Episode(NamedTuple):
    """Where an episode went, from its first state to its last, and the first step at which the goal was met (−1: never)."""

    achieved: Floats  # [steps + 1, goal features]
    goal: Floats
    reached: int


def draw(run: Run, folder: Path, episodes: int = 20, goal: Sequence[float] = ()) -> dict[str, Any]:
    """Write `figures/potential_table.png`, `potential_episode.png` and `potential.json` below `folder`; returns the numbers.

    The table is drawn for `goal`, or if none is given for the goals of three episodes. Rewards without a potential (sparse, dense, …) have
    nothing to look at: the result is empty. Goals of other than 2 or 3 features have no plane to draw.
    """
    if not hasattr(run.round.reward, "potential"):
        return {}
    played = play(run, episodes)
    size = len(played[0].goal)
    if len(goal) not in (0, size) or not np.isfinite(np.asarray(goal, float)).all():
        raise UserError(f"a goal of {run.config.env} has {size} finite numbers, not {list(goal)}")
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    if size in (2, 3):
        asked = [Episode(np.zeros((0, size), np.float32), np.asarray(goal, np.float32), -1)] if len(goal) else _chosen(played)
        draw_plane(run, played, asked, figures / "potential_table.png")
    draw_episodes(run, played, figures / "potential_episode.png")
    found = measure(run, played)
    runs.write_json(figures / "potential.json", found)
    return found


def potential(run: Run, achieved: Any, goal: Any) -> NDArray[np.float64]:
    """f(s, g) of the run's reward; high at the goal."""
    achieved = np.asarray(achieved, np.float32)
    goals = np.broadcast_to(np.asarray(goal, np.float32), achieved.shape)
    return np.asarray(run.round.reward.potential(run.brain.reward, achieved, goals), float)  # pyright: ignore[reportAttributeAccessIssue]


def steps_to_go(run: Run, achieved: Any, goal: Any) -> NDArray[np.float64]:
    """(f(g, g) − f(s, g)) / bound: the steps to the goal that the potential implies, as f rises by at most `bound` a step."""
    goal = np.asarray(goal, np.float32)
    return (potential(run, goal[None], goal)[0] - potential(run, achieved, goal)) / getattr(run.round.reward, "step_bound", 1.0)


def play(run: Run, episodes: int) -> list[Episode]:
    """One episode of the deterministic policy in each of some environments, on the seeds of evaluation."""
    with run.make_eval_env(episodes) as env:
        obs = env.reset()
        goals, trail = obs.desired_goal.copy(), [obs.achieved_goal]
        length, over = np.zeros(env.num_envs, int), np.zeros(env.num_envs, bool)
        while not over.all():
            result = env.step(run.play(obs.observation, obs.desired_goal))
            length += ~over
            trail.append(result.obs.achieved_goal)
            done = result.terminated | result.truncated
            over |= done
            obs = env.reset(done) if done.any() and not over.all() else result.obs
        path = np.stack(trail, 1)
        hit = np.asarray(env.task.success(path, np.broadcast_to(goals[:, None], path.shape)))
        return [_episode(path[i, : length[i] + 1], goals[i], hit[i, 1 : length[i] + 1]) for i in range(env.num_envs)]


def _episode(achieved: Floats, goal: Floats, hit: NDArray[np.bool_]) -> Episode:
    return Episode(achieved, goal, int(hit.argmax()) + 1 if hit.any() else -1)


def measure(run: Run, played: list[Episode]) -> dict[str, Any]:
    """Rank correlations (Spearman, 1 is a perfect order) of f with what is left: −steps to go, −distance.

    Steps to go are known on the way of episodes that reach their goal. Ranks are taken over all of these states together.
    """
    way = [(e, slice(0, e.reached + 1)) for e in played if e.reached > 0]
    left = [np.arange(e.reached, -1, -1.0) for e, _ in way]
    everywhere = [(e, slice(None)) for e in played]
    gap = [np.linalg.norm(e.achieved - e.goal, axis=-1) for e in played]
    f_way, f_all = ([potential(run, e.achieved[s], e.goal) for e, s in some] for some in (way, everywhere))
    return {
        "step": run.step,
        "episodes": len(played),
        "episodes_reached": len(way),
        "spearman_steps": _rank_correlation(f_way, left),
        "spearman_distance": _rank_correlation(f_all, gap),
    }


def _rank_correlation(f: list[NDArray[Any]], left: list[NDArray[Any]]) -> float | None:
    """Of f with −left; None where either is constant or there is nothing."""
    from scipy.stats import spearmanr

    if not f:
        return None
    x, y = np.concatenate(f), -np.concatenate(left)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    found: Any = spearmanr(x, y)
    return float(found.statistic)


# --- pictures ----------------------------------------------------------------------------------------------------------------------------


def _chosen(played: list[Episode]) -> list[Episode]:
    """A few episodes to show, the longest ways first: there is more to see."""
    return sorted(played, key=lambda e: -float(np.linalg.norm(e.achieved[0] - e.goal)))[:_PANELS]


def draw_plane(run: Run, played: list[Episode], chosen: list[Episode], path: Path) -> None:
    """f over the first two goal features, where the episodes played, for the chosen ones' goals; a third feature is the goal's own."""
    from matplotlib.figure import Figure

    points = np.concatenate([x for e in (*played, *chosen) for x in (e.achieved[:, :2], e.goal[None, :2])])
    low, high = points.min(0), points.max(0)
    middle, half = (low + high) / 2, 0.58 * max(float((high - low).max()), 1e-3)
    axes = [np.linspace(m - half, m + half, _CELLS) for m in middle]
    plane = np.stack(np.meshgrid(*axes), -1)
    maps = []
    for e in chosen:
        cells = np.concatenate([plane, np.broadcast_to(e.goal[2:], (*plane.shape[:2], len(e.goal) - 2))], -1)
        maps.append(potential(run, cells, e.goal))
    limits = min(m.min() for m in maps), max(m.max() for m in maps)
    figure = Figure(figsize=(3.5 * len(chosen) + 1, 3.9), layout="constrained")
    panels = figure.subplots(1, len(chosen), squeeze=False)[0]
    drawn: Any = None
    for panel, e, values in zip(panels, chosen, maps):
        drawn = panel.pcolormesh(*axes, values, cmap="viridis", vmin=limits[0], vmax=limits[1], shading="gouraud", rasterized=True)
        if np.ptp(values) > 0:
            panel.contour(*axes, values, levels=8, colors="white", linewidths=0.6, alpha=0.6)
        if len(e.achieved):
            panel.plot(*e.achieved[:, :2].T, "-", color="white", lw=2.4)
            panel.plot(*e.achieved[:, :2].T, "-", color="#c1272d", lw=1.2, label="episode")
            panel.plot(*e.achieved[0, :2], "o", color="#c1272d", mec="white", ms=7, label="start")
        panel.plot(*e.goal[:2], "*", color="#ffcf33", mec="black", ms=15, label="goal")
        height = [f"at z = {e.goal[2]:.2f}"] if len(e.goal) == 3 else []
        ended = [f"reached in {e.reached} steps" if e.reached > 0 else "not reached"] if len(e.achieved) else []
        panel.set_title(", ".join(height + ended), fontsize=10)
        panel.set(aspect="equal", xlabel="goal feature x")
    panels[0].set_ylabel("goal feature y")
    figure.colorbar(drawn, ax=list(panels), label="potential f(s, g)", shrink=0.85)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)


def draw_episodes(run: Run, played: list[Episode], path: Path) -> None:
    """f along episodes, as the steps to go that it implies, beside the true ones and the distance."""
    from matplotlib.figure import Figure

    chosen = _chosen(played)
    figure = Figure(figsize=(3.5 * len(chosen) + 1, 3.6), layout="constrained")
    panels = figure.subplots(1, len(chosen), squeeze=False)[0]
    rights = []
    for panel, e in zip(panels, chosen):
        t = np.arange(len(e.achieved))
        panel.plot(t, steps_to_go(run, e.achieved, e.goal), color="#0072B2", lw=2, label="steps to go, as f implies")
        if e.reached > 0:
            panel.plot(t, np.maximum(e.reached - t, 0), "--", color="#555555", lw=1.6, label="steps to go, true")
        right = panel.twinx()
        right.plot(t, np.linalg.norm(e.achieved - e.goal, axis=-1), ":", color="#D55E00", lw=2, label="distance (right)")
        right.set_ylim(bottom=0)
        right.tick_params(axis="y", labelcolor="#B34E00")
        panel.set_title(f"reached in {e.reached} steps" if e.reached > 0 else "not reached", fontsize=10)
        panel.set(xlabel="step of the episode")
        panel.grid(alpha=0.25)
        rights.append(right)
    panels[0].set_ylabel("steps")
    rights[-1].set_ylabel("distance to the goal", color="#B34E00")
    entries = {label: handle for a in (*panels, *rights) for handle, label in zip(*a.get_legend_handles_labels())}
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
