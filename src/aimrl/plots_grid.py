"""Pictures of grid worlds: rewards, visits, policies, potentials against exact distances, and an animation."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from aimrl.envs.grid import MOVES, World

if TYPE_CHECKING:
    from aimrl.grid import Result

START, GOAL, BUBBLE = "#1f6fd6", "#d62728", "#3b7dd8"
COLOURS = "viridis"
STYLE: dict[Any, Any] = {"font.size": 12, "axes.titlesize": 13, "axes.labelsize": 12, "savefig.dpi": 110}


def board(ax: Axes, world: World, wall: str = "black", grid: str = "#d9d9d9") -> None:
    """The world itself: cells, walls, wind, starts and goals."""
    w, h = world.width, world.height
    lines = [((x - 0.5, -0.5), (x - 0.5, h - 0.5)) for x in range(w + 1)] + [((-0.5, y - 0.5), (w - 0.5, y - 0.5)) for y in range(h + 1)]
    ax.add_collection(LineCollection(lines, colors=grid, linewidths=0.6, zorder=1))
    segments = [((x0, y0), (x1, y1)) for x0, y0, x1, y1 in world.walls]
    ax.add_collection(LineCollection(segments, colors=wall, linewidths=4, capstyle="projecting", zorder=4, clip_on=False))
    free = {tuple(c) for c in world.xy.tolist()}
    for x, y in ((x, y) for x in range(w) for y in range(h) if (x, y) not in free):
        ax.fill_between([x - 0.5, x + 0.5], y - 0.5, y + 0.5, color="#404040", zorder=2)
    for x in sorted({int(c[0]) for c in world.xy[world.windy]}):
        for y in (h - 0.2, -0.75):
            ax.annotate(
                "", (x, y - 0.3), (x, y + 0.15), arrowprops={"arrowstyle": "-|>", "color": "#5a7fa8", "lw": 1.4}, annotation_clip=False
            )
    for states, colour, label in ((world.starts, START, "start"), (world.goals, GOAL, "goal")):
        ax.plot(*world.xy[states].T, "o", ms=15, mfc="none", mec="white", mew=4.5, zorder=5)
        ax.plot(*world.xy[states].T, "o", ms=15, mfc="none", mec=colour, mew=2.8, zorder=6, label=label)
    ax.set(xlim=(-0.6, w - 0.4), ylim=(-0.6, h - 0.4), aspect="equal")
    step = max(1, max(w, h) // 10)
    ax.set_xticks(range(0, w, step))
    ax.set_yticks(range(0, h, step))
    pad = 14 if world.windy.any() else 3
    ax.tick_params(length=0, pad=pad)
    ax.spines[:].set_visible(False)


def heat(ax: Axes, world: World, values: np.ndarray, title: str, limits: tuple[float, float] | None = None) -> Any:
    """One colour a state, walls in black; states without a value stay grey."""
    image = np.full((world.height, world.width), np.nan)
    image[world.xy[:, 1], world.xy[:, 0]] = values
    colours = mpl.colormaps[COLOURS].with_extremes(bad="#bbbbbb")
    low, high = limits or (np.nanmin(values), np.nanmax(values))
    extent = (-0.5, world.width - 0.5, -0.5, world.height - 0.5)
    drawn = ax.imshow(image, origin="lower", cmap=colours, vmin=low, vmax=high, extent=extent, interpolation="nearest", zorder=0)
    board(ax, world, grid="#ffffff40")
    ax.set_title(title, pad=18 if world.windy.any() else 8)
    return drawn


def bubbles(ax: Axes, world: World, visits: np.ndarray, title: str) -> None:
    """Discs whose area is the relative time spent in each state."""
    share = visits / max(visits.max(), 1e-12)
    ax.scatter(*world.xy.T, s=420 * (10 / max(world.width, world.height)) ** 2 * share, color=BUBBLE, alpha=0.75, lw=0, zorder=3)
    board(ax, world)
    ax.set_title(title, pad=18 if world.windy.any() else 8)


def arrows(ax: Axes, world: World, policy: np.ndarray, title: str) -> None:
    """One arrow an action, as long as it is likely."""
    for action, (dx, dy) in enumerate(MOVES):
        length = 0.48 * policy[:, action]
        keep = policy[:, action] > 0.05
        x, y = world.xy[keep].T
        ax.quiver(
            x, y, dx * length[keep], dy * length[keep], angles="xy", scale_units="xy", scale=1, width=0.006,
            headwidth=3.2, headlength=3.5, headaxislength=3.2, color="#333333", zorder=3,
        )  # fmt: skip
    board(ax, world)
    ax.set_title(title, pad=18 if world.windy.any() else 8)


def violations(world: World, potential: np.ndarray, bound: float, one_sided: bool = False) -> tuple[int, int]:
    """How many possible transitions change (one-sided: raise) the potential by over 1.01 bounds, and of how many there are.

    A goal ends the episode, so nothing leaves it.
    """
    inner = ~np.isin(np.arange(world.n_states), world.goals)
    change, count = [], []
    for target, probability in ((world.move, 1 - world.gust_prob), (world.gust, world.gust_prob)):
        possible = (probability > 0) & inner[:, None] & (target != np.arange(world.n_states)[:, None])
        pairs = np.unique(np.stack([np.nonzero(possible)[0], target[possible]], 1), axis=0)
        rise = potential[pairs[:, 1]] - potential[pairs[:, 0]]
        change.append(rise if one_sided else np.abs(rise))
        count.append(len(pairs))
    return int((np.concatenate(change) > 1.01 * bound).sum()), sum(count)


def rank_correlation(potential: np.ndarray, distance: np.ndarray) -> float:
    """Spearman's ρ between the potential and minus the distance, over states that can reach the goal."""
    from scipy.stats import spearmanr

    ok = np.isfinite(distance) & np.isfinite(potential)
    if np.ptp(potential[ok]) == 0 or np.ptp(distance[ok]) == 0:
        return float("nan")
    return float(spearmanr(potential[ok], -distance[ok])[0])  # pyright: ignore[reportArgumentType]


def against_distance(
    ax: Axes, world: World, potential: np.ndarray, distance: np.ndarray, bound: float | None, one_sided: bool = False
) -> None:
    """The learned potential of each state against its exact optimal distance; with a bound, in steps below the goal's."""
    ok = np.isfinite(distance) & np.isfinite(potential)
    rho = rank_correlation(potential, distance)
    y = (potential - potential[world.goals[0]]) / bound if bound else potential
    ax.scatter(distance[ok], y[ok], s=26, color=BUBBLE, alpha=0.75, lw=0, zorder=3, label="a state")
    title = f"Spearman ρ = {rho:.2f}"
    if bound:
        limit = np.array([0, distance[ok].max()])
        ax.plot(limit, -limit, color="#444444", lw=1.3, ls="--", label="one bound a step")
        bad, total = violations(world, potential, bound, one_sided)
        title += f"; {bad} of {total} transitions above the bound"
        ax.legend(frameon=False)
    ax.set(xlabel="exact optimal distance d♦ to the goal (steps)", ylabel="potential − goal's, in steps" if bound else "reward")
    ax.set_title(title)
    ax.grid(color="#e5e5e5", lw=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def curve(ax: Axes, history: list[dict[str, Any]], title: str) -> None:
    """Success over iterations: every seed, and their mean."""
    x = [line["iteration"] for line in history]
    rates = np.array([line["success_rate"] for line in history])
    ax.plot(x, rates, color=BUBBLE, lw=0.7, alpha=0.35)
    ax.plot(x, rates.mean(1), color=BUBBLE, lw=2.6, label=f"mean of {rates.shape[1]} seeds")
    ax.set(xlabel="iteration", ylabel="success rate", ylim=(-0.03, 1.03))
    ax.set_title(title)
    ax.legend(frameon=False)
    ax.grid(color="#e5e5e5", lw=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def picture(path: Path, size: tuple[float, float], draw: Any) -> None:
    """One figure with one axes, drawn and saved."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure, figure.add_subplot())
        figure.savefig(path)


def draw_all(folder: Path, world: World, result: Result, distance: np.ndarray, bound: float | None, one_sided: bool = False) -> None:
    """Every picture of one run: maps of its first seed, curves of all."""
    folder.mkdir(parents=True, exist_ok=True)
    policy, reward, potential = (np.asarray(m[0]) for m in result.maps)
    last = f"after {result.iterations} iterations"

    def heat_map(figure: Figure, ax: Axes) -> None:
        figure.colorbar(heat(ax, world, reward, f"Learned reward {last}"), ax=ax, shrink=0.8)

    picture(folder / "reward.png", (6.4, 5.4), heat_map)
    picture(folder / "visits.png", (5.4, 5.4), lambda _, ax: bubbles(ax, world, result.visits[0], f"State visitation {last}"))
    picture(folder / "policy.png", (5.4, 5.4), lambda _, ax: arrows(ax, world, policy, f"Policy {last}"))
    picture(folder / "potential.png", (6.4, 4.8), lambda _, ax: against_distance(ax, world, potential, distance, bound, one_sided))
    picture(folder / "success.png", (6.4, 4.2), lambda _, ax: curve(ax, result.history, "Success of the sampled policy"))
    animate(folder / "reward.gif", world, result.frames, [np.mean(line["success_rate"][0]) for line in result.history])


def animate(path: Path, world: World, frames: list[tuple[int, np.ndarray, np.ndarray]], rates: list[Any], pause: float = 0.18) -> None:
    """The reward and the visits over the iterations, as a GIF."""
    import imageio.v3 as iio

    images = [_frame(world, *frame, rate) for frame, rate in zip(frames, rates)]
    durations = [1000 * pause] * (len(images) - 1) + [1800]
    iio.imwrite(path, images, extension=".gif", duration=durations if len(images) > 1 else durations[0], loop=0)  # one frame: no list


def _frame(world: World, iteration: int, reward: np.ndarray, visits: np.ndarray, rate: float) -> np.ndarray:
    import imageio.v3 as iio

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        heat(left, world, reward, f"Learned reward, iteration {iteration}")
        bubbles(right, world, visits, f"State visitation, success {rate:.0%}")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=75)
    return iio.imread(buffer.getvalue())[..., :3]
