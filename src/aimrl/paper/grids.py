"""The figures of grid worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aimrl import plots
from aimrl.paper.material import GridCell, GridRun, Material, Shown
from aimrl.paper.verdicts import CONFIDENT, REACHES, UNABLE, Verdict, every, interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from aimrl.envs.grid import World

Panel = tuple[str, Callable[["Figure", "Axes", str], Any]]


def _sheet(panels: Sequence[Panel], columns: int) -> Callable[[Path], None]:
    """A picture of lettered grid-world panels."""

    def draw(path: Path) -> None:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        from aimrl import plots_grid

        rows = -(-len(panels) // columns)
        with mpl.rc_context(plots_grid.STYLE):
            figure = Figure(figsize=(4.9 * columns, 4.9 * rows), layout="constrained")
            for i, (ax, (title, one)) in enumerate(zip(figure.subplots(rows, columns, squeeze=False).ravel(), panels)):
                one(figure, ax, f"({'abcdef'[i]}) {title}" if len(panels) > 1 else title)
            figure.savefig(path)

    return draw


def _visits(run: GridRun, what: str) -> Panel:
    from aimrl import plots_grid

    title = f"{what},\n{run.iterations} iterations: success {plots.percent(run.rates.mean())}"
    return title, lambda figure, ax, text: plots_grid.bubbles(ax, run.world, run.visits.mean(0), text)


def _reward(run: GridRun, what: str) -> Panel:
    from aimrl import plots_grid

    def draw(figure: Figure, ax: Axes, text: str) -> None:
        figure.colorbar(plots_grid.heat(ax, run.world, run.reward[0], text), ax=ax, shrink=0.75)

    return f"{what},\n{run.iterations} iterations", draw


def _world(world: World, what: str) -> Panel:
    from aimrl import plots_grid

    def draw(figure: Figure, ax: Axes, text: str) -> None:
        plots_grid.board(ax, world)
        ax.set_title(text, pad=18 if world.windy.any() else 8)

    return what, draw


def _grid_data(material: Material) -> dict[str, Any]:
    numbers = lambda r: {"iterations": r.iterations, "seeds": len(r.rates), "success": r.rates, "visits": r.visits.mean(0).round(4)}  # noqa: E731
    return {f"{c.world} {c.reward} {c.iterations}": numbers(r) for c, r in material.grids.items()}


def _reaches(run: GridRun, claim: str, bound: float = REACHES) -> Verdict:
    return Verdict(claim, run.success.above(bound), f"mean success {run.success}; above {bound:g} is asked for")


def _unable(named: Mapping[str, GridRun], claim: str) -> Verdict:
    found = "; ".join(f"{name} {r.success}" for name, r in named.items())
    return Verdict(claim, every([r.success.below(UNABLE) for r in named.values()]), f"mean success {found}; below {UNABLE:g} is asked for")


def example(material: Material) -> Shown:
    """Manhattan distances against exact step distances: no training."""
    from aimrl import theory
    from aimrl.envs import grid as worlds

    def distances(name: str) -> tuple[World, np.ndarray, np.ndarray]:
        world = worlds.load(name)
        goal = int(world.goals[0])
        mdp = theory.GoalMDP(*worlds.exact_mdp(world))
        return world, np.abs(world.xy - world.xy[goal]).sum(1), theory.optimal_hitting_time(mdp)

    room, straight, steps = distances("room")
    start = int(room.starts[0])
    _, torus_straight, torus_steps = distances("torus")
    windy, _, windy_there = distances("windy")
    exact = worlds.exact_mdp(windy)  # its goal's rows are those of any other state, so that start and goal can be exchanged
    home = int(windy.starts[0])
    back = theory.optimal_hitting_time(theory.GoalMDP(exact.P, np.eye(windy.n_states)[exact.goal], home, exact.gamma))
    there, again = float(windy_there[home]), float(back[exact.goal])
    longer = int((torus_straight > torus_steps + 1e-9).sum())
    verdicts = [
        Verdict("the Manhattan distance underestimates the work between the two circles", bool(straight[start] < steps[start]),
                f"Manhattan {straight[start]}, exact optimal number of steps {steps[start]:g}", exact=True),
        Verdict("it errs in a toroidal grid world, too", longer > 0,
                f"it overestimates the exact distance to the goal from {longer} of {len(torus_steps)} states", exact=True),
        Verdict("it errs where transitions are asymmetric (windy), too", abs(there - again) > 1e-9,
                f"expected steps from start to goal {there:.2f}, back {again:.2f}; Manhattan's is the same both ways", exact=True),
    ]  # fmt: skip
    data = {"manhattan": int(straight[start]), "steps": float(steps[start]), "torus_overestimated": longer, "windy": [there, again]}
    return Shown(_sheet([_world(room, "The grid world of the examples")], 1), ["start (blue), goal (red) and walls (bold)"], data, verdicts)


ROOM_AIM, ROOM_TASK = GridCell("room", "aim", 100), GridCell("room", "sparse", 500)


def gridworld(material: Material) -> Shown:
    from aimrl import plots_grid

    aim, task = material.grids[ROOM_AIM], material.grids[ROOM_TASK]
    counted = [plots_grid.violations(aim.world, f, aim.bound or 1.0) for f in aim.potential]
    broken = interval([bad / total for bad, total in counted])
    ahead = interval(aim.rates, task.rates)
    verdicts = [
        _reaches(aim, "AIM enables the agent to reach the goal after 100 iterations"),
        _unable({"task reward": task}, "with the task reward the agent is unable to learn a policy to the goal (500 iterations)"),
        Verdict("AIM learns faster than the task reward, with a fifth of the iterations", ahead.above(0), f"difference of success {ahead}"),
        Verdict("the learned reward changes smoothly with transitions", broken.below(0.1),
                f"share of transitions that change the potential by more than its bound {broken}; below 0.1 is asked for"),
    ]  # fmt: skip
    panels = [_visits(aim, "Visits with AIM"), _reward(aim, "AIM's reward"), _visits(task, "Visits with the task reward")]
    return Shown(_sheet(panels, 3), _titles(panels), _grid_data(material), verdicts)


def _titles(panels: Sequence[Panel]) -> list[str]:
    return [title.replace("\n", " ") for title, _ in panels]


WINDY_AIM, CALM_AIM = GridCell("windy", "aim", 50), GridCell("room", "aim", 50)


def windy_gridworld(material: Material) -> Shown:
    aim, calm = material.grids[WINDY_AIM], material.grids[CALM_AIM]
    low = (aim.world.xy[:, 0] == 4) & (aim.world.xy[:, 1] <= 1)
    more = interval(aim.share[:, low].sum(1), calm.share[:, low].sum(1))
    verdicts = [
        _reaches(aim, "AIM's policy confidently reaches the goal in spite of the wind (50 iterations)", CONFIDENT),
        Verdict("the wind increases visits to the bottom two rows of column 4", more.above(0),
                f"share of an episode there, less that without wind after as many iterations: {more}"),
    ]  # fmt: skip
    panels = [_world(aim.world, "Wind in the last six columns"), _reward(aim, "AIM's reward"), _visits(aim, "Visits with AIM")]
    return Shown(_sheet(panels, 3), _titles(panels), _grid_data(material), verdicts)


TORUS_AIM, TORUS_WGAN = GridCell("torus", "aim", 100), GridCell("torus", "wgan", 100)


def edge_ratio(world: World, values: np.ndarray) -> float:
    """Mean change of the values over moves that wrap around, divided by that over all others."""
    step = np.abs(world.xy[world.move] - world.xy[:, None]).max(-1)
    change = np.abs(values[world.move] - values[:, None])
    return float(change[step > 1].mean() / max(change[step == 1].mean(), 1e-12))


def ways(world: World, visits: np.ndarray) -> np.ndarray:
    """How the time is shared between the four diagonal ways from the start to a goal opposite it on the torus."""
    turned = (world.xy - world.xy[world.starts[0]]) % (world.width, world.height)
    half = world.width // 2
    right, up = turned[:, 0] < half, turned[:, 1] < half
    inner = (turned % half != 0).all(1)  # what lies straight ahead of the start or of the goal belongs to two ways
    time = np.array([visits[inner & (right == r) & (up == u)].sum() for r in (True, False) for u in (True, False)])
    return time / max(time.sum(), 1e-12)


def toroid(material: Material) -> Shown:
    from aimrl import grid, plots_grid

    aim, wgan = material.grids[TORUS_AIM], material.grids[TORUS_WGAN]
    distance = grid.optimal_distance(aim.world)
    rank = lambda run: [plots_grid.rank_correlation(r, distance) for r in run.reward]  # noqa: E731
    edges = lambda run: interval([edge_ratio(run.world, r) for r in run.reward])  # noqa: E731
    ratio, better = edges(aim), interval(rank(aim), rank(wgan))
    least = interval([ways(aim.world, v).min() for v in aim.visits])
    verdicts = [
        _reaches(aim, "AIM's policy reaches the goal"),
        Verdict("AIM's reward is smooth across the edges of the grid", ratio.below(1.5),
                f"mean change of the reward over an edge, in those of inner moves: {ratio}, WGAN's {edges(wgan)}; below 1.5 is asked for"),
        Verdict("the policy places near equal mass on multiple trajectories", least.above(0.1),
                f"time on the least used of the four diagonal ways {least}; 0.25 is equal, above 0.1 is asked for"),
        Verdict("the WGAN reward does not respect the dynamics as AIM's does", better.above(0),
                f"rank correlation with minus the exact distance, AIM's less WGAN's: {better}"),
    ]  # fmt: skip
    panels = [_reward(aim, "AIM's reward"), _visits(aim, "Visits with AIM"), _reward(wgan, "Reward of the WGAN loss")]
    data = _grid_data(material) | {"rank_correlation": {"aim": rank(aim), "wgan": rank(wgan)}}
    return Shown(_sheet(panels, 3), _titles(panels), data, verdicts)


OTHERS = {"dense": "−L2 (DiscoRL)", "mc": "MC (DDL)", "rnd": "RND", "smirl": "SMiRL"}
EARLY_RND = GridCell("room", "rnd", 20)


def add_grid(material: Material) -> Shown:
    at = lambda reward, iterations: material.grids[GridCell("room", reward, iterations)]  # noqa: E731
    world, smirl, early = at("rnd", 100).world, at("smirl", 100), material.grids[EARLY_RND]
    x, y = world.xy.T
    outside = ~((x <= 3) & (y >= 3) & (y <= 7))
    seen, corner = interval((early.visits[:, outside] > 0.01).mean(1)), interval(smirl.share[:, (x <= 3) & (y <= 2)].sum(1))
    verdicts = [
        _unable({name: at(r, 100) for r, name in OTHERS.items()}, "no baseline reaches the goal after 100 iterations"),
        _unable({name: at(r, 500) for r, name in OTHERS.items()}, "none does with five times as many interactions"),
        Verdict("RND explores most of the larger room early on", seen.above(0.5),
                f"share of its cells visited at least once in 100 episodes after {early.iterations} iterations {seen}"),
        Verdict("SMiRL keeps the agent in the bottom left near its start", corner.above(0.5), f"share of its time there {corner}"),
    ]  # fmt: skip
    panels = [_visits(at(r, 100), f"Visits with {name}") for r, name in OTHERS.items()]
    panels += [_reward(at("mc", 100), "Reward of DDL"), _reward(at("rnd", 100), "Reward of RND")]
    return Shown(_sheet(panels, 3), _titles(panels), _grid_data(material), verdicts)
