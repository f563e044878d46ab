"""Measure the paper's grid-world claims. Each cell is kept as soon as it's done, and a kept cell isn't run again.

python results/grid/measure.py run [CELL …]     train and evaluate (all cells, or those whose name contains a word given)
python results/grid/measure.py tables            summary.csv, commands.json (with each cell's version) and the tables of README.md
python results/grid/measure.py figures           the pictures
"""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from aimrl import grid, plots_grid, runs, theory
from aimrl.cli.options import prefix
from aimrl.envs import grid as worlds
from aimrl.rewards.base import Reward

HERE = Path(__file__).resolve().parent
CELLS = HERE / "cells"
REMARKS = HERE.parent / "rewards" / "README.md"
ONE_WAY = "results/grid/one-way.txt"  # a loop whose right side can only be fallen down
SEEDS = 32
REWARDS = ("aim", "aim+r", "sparse", "dense", "mc", "rnd", "smirl", "wgan", "gail", "fairl", "fairl-", "disco")
# The text of the paper as it stands: bound 1, reward f − max f without normalising, no task reward, and the penalty's weight not given.
TEXT = {"step_bound": 1.0, "lipschitz_weight": 1.0, "normalise": "none", "margin": 0.0}
# With the presets FAIRL learns nothing in either form. So that the two can be told apart: a reward that outweighs the entropy, a
# discriminator that doesn't separate states from goals at once, and a faster agent.
HOVER = {"scale": 5.0, "learning_rate": 1e-4, "q_learning_rate": 1e-2, "target_rate": 0.1, "gamma": 0.97}


@dataclasses.dataclass(frozen=True)
class Cell:
    name: str
    world: str
    reward: str
    preset: str
    iterations: int
    entropy: float | None = None
    seeds: int = SEEDS
    options: dict = dataclasses.field(default_factory=dict)

    def command(self) -> str:
        out = f"runs/{self.name}"
        reward = grid.preset_reward(self.reward, self.preset)
        if "examples" in self.options or any(not hasattr(reward, k) for k in self.options):  # too long for a flag, or none of the reward's
            options = {k: "every cell of the world" if k == "examples" else v for k, v in self.options.items()}
            asked = f"seeds={self.seeds}, iterations={self.iterations}, entropy={self.entropy}, out={out!r}, **{options}"
            return f"aimrl.grid.run({self.world!r}, {self.reward!r}, {self.preset!r}, {asked})"
        entropy = f" --entropy {self.entropy}" if self.entropy else ""
        return (
            f"aimrl grid {self.world} --reward {self.reward} --preset {self.preset} --seeds {self.seeds} --seed 0"
            f" --iterations {self.iterations}{entropy}{''.join(flag(reward, k, v) for k, v in self.options.items())} --out {out}"
        )


def flag(reward: Reward, name: str, value: object) -> str:
    """An option of a reward as typed."""
    group, name = prefix(reward), name.replace("_", "-")
    return f" --{group}.{'' if value else 'no-'}{name}" if isinstance(value, bool) else f" --{group}.{name} {value}"


def cells() -> list[Cell]:
    listed = [
        Cell("fast-room-aim", "room", "aim", "fast", 100, seeds=64),
        Cell("fast-windy-aim", "windy", "aim", "fast", 50, seeds=64),
        Cell("fast-torus-aim", "torus", "aim", "fast", 100),
        Cell("fast-torus-wgan", "torus", "wgan", "fast", 100),
    ]
    for world, iterations in (("room", 500), ("windy", 50), ("torus", 100)):
        for reward in REWARDS:
            for entropy in (0.3, 0.1):
                listed.append(Cell(f"paper-{world}-{reward}-{entropy}", world, reward, "paper", iterations, entropy))
    for form in ("shaped", "to-goal"):
        listed.append(Cell(f"paper-room-aim-{form}-0.3", "room", "aim", "paper", 100, 0.3, options={"form": form}))
    for entropy in (0.3, 0.1):
        listed.append(Cell(f"text-room-aim-{entropy}", "room", "aim", "paper", 500, entropy, options=TEXT))
    for reward in ("sparse", "dense", "mc", "rnd", "smirl", "wgan", "fairl", "fairl-"):
        listed.append(Cell(f"fast-room-{reward}", "room", reward, "fast", 500))
    for reward in ("fairl", "fairl-"):
        listed.append(Cell(f"fast-windy-{reward}", "windy", reward, "fast", 50))
        listed.append(Cell(f"hover-torus-{reward}", "torus", reward, "fast", 100, 0.05, options=HOVER))
    return listed + remarks()


def remarks() -> list[Cell]:
    """Remarks of the paper as experiments, the three bounds, and targets that cover the world; tables in results/rewards/."""
    room = lambda name, reward="aim", **options: Cell(name, "room", reward, "fast", 100, options=options)  # noqa: E731
    listed = [Cell(f"remark-updates-{n}", "room", "aim", "paper", 100, 0.3, options={"reward_updates": n}) for n in (1, 2, 5, 10, 20, 50)]
    listed += [room("remark-no-goal-term", goal_term=False)]
    listed += [room(f"remark-form-{form}", form=form) for form in ("shaped", "to-goal")]
    listed += [room(f"remark-gaussian-{std}", target_std=std) for std in (0.05, 0.1, 0.2)]
    for reward in ("rnd", "mc", "smirl", "gail"):
        listed.append(Cell(f"remark-bonus-{reward}", "room", reward, "paper", 500, 0.3, options={"task_weight": 0.0}))
    for world, name, iterations in (("room", "room", 100), ("windy", "windy", 50), (ONE_WAY, "one-way", 50)):
        for bound in ("two-sided", "one-sided", "expected"):
            listed.append(Cell(f"bound-{name}-{bound}", world, "aim", "fast", iterations, options={"bound": bound}))
    everywhere = worlds.load("room").features().tolist()
    listed += [
        room("cover-visited", target="visited"),
        room("cover-examples", target="examples", examples=everywhere),
        room("cover-rnd", "rnd", task_weight=0.0),
        room("cover-goal"),
    ]
    return listed


def measure(cell: Cell) -> None:
    """Train one cell; keep per-seed success over iterations, and the maps of its end (and of iteration 100)."""
    world = worlds.load(cell.world)
    made, config = grid.settings(world, cell.reward, cell.preset, cell.entropy, **cell.options)
    evaluations = cell.iterations // 10
    result = grid.train(world, made, config, cell.seeds, 0, cell.iterations, evaluations)
    rates = np.array([line["success_rate"] for line in result.history], np.float32)
    iterations = np.array([line["iteration"] for line in result.history])
    about = dataclasses.asdict(cell) | {
        "command": cell.command(),
        "entropy": float(config.q.entropy),
        "step_bound": getattr(made, "step_bound", None),
        "one_sided": getattr(made, "bound", "two-sided") != "two-sided",
        "cells_seen": [line["cells_seen"] for line in result.history],
        "spread": [line["spread"] for line in result.history],
        "w1_estimate": [line.get("aim/w1") for line in result.history],
        "versions": runs.versions(),
    }
    CELLS.mkdir(exist_ok=True)
    part = CELLS / f".{cell.name}.npz"
    np.savez_compressed(
        part,
        about=json.dumps(runs.plain(about)),
        iterations=iterations,
        rates=rates,
        steps=np.array(result.steps_to_goal, np.float32),
        visits=result.visits.astype(np.float32),
        visits_over_time=np.array([f[2] for f in result.frames], np.float32),
        reward=np.asarray(result.maps.reward, np.float32),
        potential=np.asarray(result.maps.potential, np.float32),
        policy=np.asarray(result.maps.policy, np.float16),
    )
    part.rename(CELLS / f"{cell.name}.npz")
    print(f"{cell.name}: {rates[-1].mean():.3f} after {cell.iterations}, {result.wall_s:.0f} s", flush=True)


def interval(rates: np.ndarray) -> tuple[float, float, float]:
    """Mean over seeds and its 95 % bootstrap interval; seeds, not episodes, are the units."""
    rng = np.random.default_rng(0)
    means = rates[rng.integers(0, len(rates), (4000, len(rates)))].mean(1)
    return float(rates.mean()), *map(float, np.quantile(means, (0.025, 0.975)))


def load(name: str) -> tuple[dict, dict[str, np.ndarray]]:
    with np.load(CELLS / f"{name}.npz", allow_pickle=False) as f:
        data = {k: f[k] for k in f.files}
    return json.loads(str(data.pop("about"))), data


def tables() -> None:
    """One row a cell and moment; potentials and distances for those that have them."""
    rows = []
    for cell in [c for c in cells() if c not in remarks()]:
        if not (CELLS / f"{cell.name}.npz").exists():
            continue
        about, data = load(cell.name)
        world = worlds.load(cell.world)
        distance = grid.optimal_distance(world)
        for moment in sorted({10, 50, 100, cell.iterations} & set(data["iterations"].tolist())):
            rates = data["rates"][list(data["iterations"]).index(moment)]
            mean, low, high = interval(rates)
            row = {
                "cell": cell.name, "world": cell.world, "reward": cell.reward, "preset": cell.preset, "entropy": about["entropy"],
                "seeds": cell.seeds, "iterations": moment, "q_updates": 10 * moment, "success": mean, "low": low, "high": high,
                "seeds_at_95": float((rates >= 0.95).mean()), "seeds_at_0": float((rates == 0).mean()),
            }  # fmt: skip
            if moment == cell.iterations:
                steps = data["steps"][np.isfinite(data["steps"])]
                rho = [r for r in (plots_grid.rank_correlation(p, distance) for p in data["potential"]) if np.isfinite(r)]
                row |= {"steps_to_goal": float(steps.mean()) if len(steps) else None, "spearman": float(np.mean(rho)) if rho else None}
                row |= mass(cell.world, world, data["visits"].mean(0)) | beside_goal(distance, data["visits"])
                if about["step_bound"]:
                    row |= distances(world, data, about)
            rows.append({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    keys = list(dict.fromkeys(k for row in rows for k in row))
    with open(HERE / "summary.csv", "w", newline="") as f:
        writer = csv.DictWriter(f, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    kept = [c for c in cells() if (CELLS / f"{c.name}.npz").exists()]
    commands = {c.name: {"command": c.command(), "git": load(c.name)[0]["versions"].get("git")} for c in kept}
    runs.write_json(HERE / "commands.json", commands)
    put(HERE / "README.md", markdown(rows))
    put(REMARKS, remark_tables())
    print(f"{len(rows)} rows, {len(commands)} cells")


def markdown(rows: list[dict]) -> str:
    """Success, where the time goes, and the potentials, as tables for README.md."""
    share = lambda r, k: "" if r.get(k) is None else f"{100 * r[k]:.1f} %"  # noqa: E731
    number = lambda r, k: "" if r.get(k) is None else f"{r[k]:.2f}" if abs(r[k]) < 1e4 else "∞" if np.isinf(r[k]) else f"{r[k]:.0e}"  # noqa: E731
    rate = lambda r: "" if r is None else f"{share(r, 'success')} [{100 * r['low']:.1f}, {100 * r['high']:.1f}]"  # noqa: E731
    by_cell: dict[str, dict[int, dict]] = {}
    for row in rows:
        by_cell.setdefault(row["cell"], {})[row["iterations"]] = row
    lines = [
        "| cell | seeds | at 50 iterations | at 100 | at 500 | seeds ≥ 95 % at the end | steps to goal |",
        "| --- " + "| ---: " * 6 + "|",
    ]
    for name, at in by_cell.items():
        end = at[max(at)]
        moments = " | ".join(rate(at.get(m)) for m in (50, 100, 500))
        lines.append(f"| {name} | {end['seeds']} | {moments} | {share(end, 'seeds_at_95')} | {number(end, 'steps_to_goal')} |")
    ends = {name: at[max(at)] for name, at in by_cell.items()}
    lines += ["", 'Share of an episode\'s time by place, undiscounted, at the end; "cells seen" counts those outside the inner room.', ""]
    lines += ["| cell | inner room | bottom left | cells seen | bottom two rows of column 4 |", "| --- " + "| ---: " * 4 + "|"]
    places = ("in_room", "bottom_left", "outer_cells_seen", "column4_bottom2")
    lines += [f"| {n} | " + " | ".join(share(r, k) for k in places) + " |" for n, r in ends.items() if r["world"] != "torus"]
    lines += [
        "",
        "FAIRL and its negative form: distance from the goal (steps of the best policy) over an episode's time, and the share of it",
        "",
    ]
    lines[-2] += " spent one or two steps from the goal; the task reward beside them. `hover`: settings in `measure.py`."
    lines += ["| cell | success | mean distance | one or two steps away |", "| --- | ---: | ---: | ---: |"]
    shown = {n: r for n, r in ends.items() if r["reward"] in ("fairl", "fairl-") or n.endswith("-sparse-0.3")}
    lines += [f"| {n} | {rate(r)} | {number(r, 'goal_distance')} | {share(r, 'beside_goal')} |" for n, r in shown.items()]
    lines += ["", "Torus: how evenly the time spreads over the four ways (entropy over log 4; the least visited way, 25 % at best).", ""]
    lines += ["| cell | evenness | least visited way |", "| --- | ---: | ---: |"]
    lines += [f"| {n} | {number(r, 'torus_entropy')} | {share(r, 'torus_least')} |" for n, r in ends.items() if r["world"] == "torus"]
    lines += [
        "",
        "Potentials: rank correlation with the exact optimal step distance (mean over seeds); the estimate of W1 and the exact",
        "",
    ]
    lines[-2] += " distances of the learned policy (medians over eight seeds); share of transitions beyond the step bound."
    lines += ["| cell | rank correlation | AIM's estimate | w1_hop | w1_eq4 | w1_dual | beyond the bound |", "| --- " + "| ---: " * 6 + "|"]
    exact = ("spearman", "w1_aim", "w1_hop", "w1_eq4", "w1_dual")
    potentials = {n: r for n, r in ends.items() if r.get("spearman") is not None and r["reward"] in ("aim", "aim+r", "wgan", "mc")}
    lines += [f"| {n} | " + " | ".join(number(r, k) for k in exact) + f" | {share(r, 'violations')} |" for n, r in potentials.items()]
    return "\n".join(lines) + "\n"


def kept_remarks() -> dict[str, dict]:
    """What the tables of remarks show of each kept cell, at its end."""
    rows = {}
    for cell in [c for c in cells() if c.name == "fast-room-aim"] + remarks():
        if not (CELLS / f"{cell.name}.npz").exists():
            continue
        about, data = load(cell.name)
        world = worlds.load(cell.world)
        distance = grid.optimal_distance(world)
        mean, low, high = interval(data["rates"][-1])
        rho = [r for r in (plots_grid.rank_correlation(p, distance) for p in data["potential"]) if np.isfinite(r)]
        row = {"success": f"{100 * mean:.1f} % [{100 * low:.1f}, {100 * high:.1f}]", "rho": f"{np.mean(rho):.2f}" if rho else ""}
        if about["step_bound"]:
            row |= {
                k: f"{v:.1f}" if np.isfinite(v) and v < 1e4 else "∞" if np.isinf(v) else f"{v:.0e}"
                for k, v in distances(world, data, about).items()
            }
        row |= {
            "to_90": with_error(first_at(data["rates"], data["iterations"], 0.9), 1),
            "spread": with_error(grid.spread(data["visits"].astype(float)), 3),
            "over_time": f"{np.mean(about['spread']):.2f}",
            "seen": f"{100 * about['cells_seen'][-1]:.0f} %",
        }
        rows[cell.name] = row
    return rows


def first_at(rates: np.ndarray, iterations: np.ndarray, least: float) -> np.ndarray:
    """The iteration of each seed's first evaluation with that success; one evaluation after the last where there is none."""
    late = iterations[-1] + iterations[-1] - iterations[-2]
    return np.where((rates >= least).any(0), iterations[np.argmax(rates >= least, axis=0)], late)


def with_error(values: np.ndarray, digits: int) -> str:
    """Mean over seeds ± its standard error."""
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1) / np.sqrt(len(values)):.{digits}f}"


def p_value(p: float) -> str:
    return f"p = {p:.2f}" if p >= 0.01 else "p < 0.01"


def bounds_compared() -> str:
    """One-sided against two-sided bounds: when seeds reach 90 %, and success in the windy room at iteration 30."""
    data = {(w, b): load(f"bound-{w}-{b}-sided")[1] for w in ("room", "windy", "one-way") for b in ("one", "two")}
    first = {key: first_at(d["rates"], d["iterations"], 0.9) for key, d in data.items()}
    p = {w: stats.mannwhitneyu(first[w, "one"], first[w, "two"]).pvalue for w in ("room", "windy", "one-way")}
    one, two = (data["windy", b]["rates"][2] for b in ("one", "two"))
    assert data["windy", "one"]["iterations"][2] == 30
    return (
        "One-sided against two-sided (Mann-Whitney over seeds, uncorrected): iterations to 90 % "
        + ", ".join(f"{w} {p_value(v)}" for w, v in p.items())
        + f"; success in windy at iteration 30 {100 * one.mean():.0f} % against {100 * two.mean():.0f} %, "
        + f"{p_value(stats.mannwhitneyu(one, two).pvalue)}."
    )


def covers_compared() -> str:
    """Targets that cover the room against RND: means and ranks of the spread at the end."""
    spread = {n: grid.spread(load(f"cover-{n}")[1]["visits"].astype(float)) for n in ("visited", "examples", "rnd")}
    rnd = spread.pop("rnd")
    texts = [
        f"{n} against rnd: means {p_value(stats.ttest_ind(s, rnd, equal_var=False).pvalue)} (Welch), "
        f"ranks {p_value(stats.mannwhitneyu(s, rnd).pvalue)} (Mann-Whitney; medians {np.median(s):.3f} and {np.median(rnd):.3f}, "
        f"lowest seeds {s.min():.2f} and {rnd.min():.2f})"
        for n, s in spread.items()
    ]
    return f"Spread at the end, uncorrected: {'; '.join(texts)}."


def as_critic(name: str) -> str:
    """Success if the agent climbs f itself instead of learning Q from it: greedily, and sampled as the agent samples."""
    about, data = load(name)
    world = worlds.load(about["world"])
    rates: dict[str, list[float]] = {"Q, sampled": [], "f, greedy": [], "f, sampled": []}
    for potential, learned in zip(data["potential"].astype(float), data["policy"].astype(float)):
        ahead = (1 - world.gust_prob) * potential[world.move] + world.gust_prob * potential[world.gust]
        logits = ahead / np.ptp(potential) / about["entropy"]
        soft = np.exp(logits - logits.max(1, keepdims=True))
        for key, policy in (("Q, sampled", learned), ("f, greedy", ahead == ahead.max(1, keepdims=True)), ("f, sampled", soft)):
            rates[key].append(arrives(world, policy / policy.sum(1, keepdims=True)))
    return "; ".join(f"{key} {100 * np.mean(v):.0f} % (best seed {100 * np.max(v):.0f} %)" for key, v in rates.items())


def arrives(world: worlds.World, policy: np.ndarray) -> float:
    """The exact chance that an episode under a policy reaches the goal within the time limit."""
    chain = np.zeros((world.n_states, world.n_states))
    for target, probability in ((world.move, 1 - world.gust_prob), (world.gust, world.gust_prob)):
        np.add.at(chain, (np.arange(world.n_states)[:, None], target), policy * probability)
    chain[world.goals] = np.eye(world.n_states)[world.goals]
    return float((np.linalg.matrix_power(chain, world.limit)[world.starts][:, world.goals]).sum(1).mean())


def at_random(world: worlds.World) -> np.ndarray:
    """Expected visits of an episode under the uniform policy."""
    moves = np.zeros((world.n_states, world.n_states))
    for target, probability in ((world.move, 1 - world.gust_prob), (world.gust, world.gust_prob)):
        np.add.at(moves, (np.arange(world.n_states)[:, None], target), probability / 4)
    moves[world.goals] = 0.0
    here = np.bincount(world.starts, minlength=world.n_states) / len(world.starts)
    total = here.copy()
    for _ in range(world.limit):
        here = here @ moves
        total += here
    return total


def remark_tables() -> str:
    rows = kept_remarks()

    def table(head: str, keys: tuple[str, ...], prefix: str, rename=lambda n: n) -> list[str]:
        lines = [f"| {head} |", "| --- " + "| ---: " * len(keys) + "|"]
        return (
            lines
            + [f"| {rename(n)} | " + " | ".join(r.get(k, "") for k in keys) + " |" for n, r in rows.items() if n.startswith(prefix)]
            + [""]
        )

    word = lambda prefix: lambda n: n.removeprefix(prefix)  # noqa: E731
    estimate = ("success", "rho", "w1_aim", "w1_hop", "w1_eq4", "w1_dual")
    lines = ["Potential updates an iteration (room, preset `paper`, entropy 0.3, 100 iterations):", ""]
    lines += table(
        "updates | success | rank correlation | AIM's estimate | w1_hop | w1_eq4 | w1_dual",
        estimate,
        "remark-updates-",
        word("remark-updates-"),
    )
    lines += ["One thing changed at a time (room, preset `fast`, 100 iterations; `fast-room-aim` is the preset itself, with 64 seeds):", ""]
    changed = {n for n in rows if n.startswith(("remark-no", "remark-form", "remark-gaussian", "fast-room-aim"))}
    lines += ["| changed | success | rank correlation |", "| --- | ---: | ---: |"]
    lines += [f"| {word('remark-')(n)} | {rows[n]['success']} | {rows[n]['rho']} |" for n in rows if n in changed] + [""]
    lines += ["Bonuses without the task reward (room, preset `paper`, entropy 0.3, 500 iterations):", ""]
    lines += table("bonus | success | cells seen", ("success", "seen"), "remark-bonus-", word("remark-bonus-"))
    lines += ["The three bounds (preset `fast`; room 100 iterations, windy and the one-way loop 50). Iterations to 90 %: each", ""]
    lines[-2] += " seed's first evaluation with that success, one in 10 (none counts as 10 after the last); mean ± standard error."
    lines += table(
        "world and bound | success | iterations to 90 % | rank correlation | AIM's estimate | w1_hop | w1_eq4 | w1_dual",
        ("success", "to_90", *estimate[1:]),
        "bound-",
        word("bound-"),
    )
    lines += [bounds_compared(), ""]
    lines += [
        "How evenly an agent covers the room: entropy of its visits over that of an even spread, after 100 iterations (mean ± standard",
        "",
    ]
    lines[-2] += " error over seeds) and on average over them; share of the cells that 100 episodes enter (preset `fast`)."
    lines += table("target | spread at the end | on average | cells seen", ("spread", "over_time", "seen"), "cover-", word("cover-"))
    lines.insert(-1, f"| uniform random actions (exact) | {grid.spread(at_random(worlds.load('room'))):.2f} | | |")
    lines += [covers_compared(), ""]
    critics = [n for n in ("fast-room-aim", "paper-room-aim-0.3", "fast-windy-aim", "fast-torus-aim") if (CELLS / f"{n}.npz").exists()]
    lines += [
        "f in the critic's place: the agent climbs f one step ahead instead of learning Q (exact chance to arrive, mean of seeds).",
        "",
    ]
    lines += ["| cell | chance to arrive |", "| --- | --- |"] + [f"| {n} | {as_critic(n)} |" for n in critics]
    return "\n".join(lines) + "\n"


def put(page: Path, tables: str) -> None:
    """Replace what stands between a page's two marks."""
    head, rest = page.read_text(encoding="utf-8").split("<!-- tables -->")
    _, tail = rest.split("<!-- /tables -->")
    page.write_text(f"{head}<!-- tables -->\n\n{tables}\n<!-- /tables -->{tail}", encoding="utf-8")


def mass(name: str, world: worlds.World, visits: np.ndarray) -> dict[str, float]:
    """Where an episode's time goes, undiscounted."""
    share, (x, y) = visits / visits.sum(), world.xy.T
    if name == "torus":
        # Quadrants around the start: every shortest path leaves by one of four diagonal ways, and they are alike.
        dx, dy = (x - 2) % 10, (y - 2) % 10
        ways = [
            share[(h(dx)) & (v(dy))].sum()
            for h in (lambda d: (d > 0) & (d < 5), lambda d: d > 5)
            for v in (lambda d: (d > 0) & (d < 5), lambda d: d > 5)
        ]
        ways = np.array(ways) / max(sum(ways), 1e-12)
        return {"torus_entropy": float(-(ways * np.log(np.maximum(ways, 1e-12))).sum() / np.log(4)), "torus_least": float(ways.min())}
    inside = (x <= 3) & (y >= 3) & (y <= 7)
    return {
        "in_room": float(share[inside].sum()),
        "bottom_left": float(share[(x <= 3) & (y <= 2)].sum()),
        "outer_cells_seen": float((visits[~inside] > 0.01).mean()),
        "column4_bottom2": float(share[(x == 4) & (y <= 1)].sum()),
    }


def beside_goal(distance: np.ndarray, visits: np.ndarray) -> dict[str, float]:
    """Mean distance from the goal, in steps of the best policy, over an episode's time; the share spent one or two steps from it."""
    share = visits / visits.sum(1, keepdims=True)
    return {
        "goal_distance": float((share * distance).sum(1).mean()),
        "beside_goal": float(share[:, (distance > 0) & (distance < 2.5)].sum(1).mean()),
    }


def distances(world: worlds.World, data: dict[str, np.ndarray], about: dict) -> dict[str, float]:
    """AIM's estimate of W1 at the end, (f(g) − Σ ρ f) / bound under the exact ρ, against the exact distances; bound violations."""
    mdp = theory.GoalMDP(*worlds.exact_mdp(world))
    keep: dict[str, list[float]] = {"w1_aim": [], "w1_hop": [], "w1_eq4": [], "w1_dual": [], "violations": []}
    for potential, policy in list(zip(data["potential"].astype(float), data["policy"].astype(float)))[:8]:
        chain = theory.induced_chain(mdp, policy / policy.sum(1, keepdims=True))
        rho = theory.visitation(chain)
        keep["w1_aim"].append((potential[mdp.goal] * rho.sum() - (rho * potential).sum()) / about["step_bound"])
        keep["w1_hop"].append(theory.w1_hop(chain))
        keep["w1_eq4"].append(theory.w1_eq4(chain))
        # A policy that all but never arrives has distances beyond the program's precision: there the primal sum, which equals it.
        never = theory.hitting_time(chain).max() > 1e6
        keep["w1_dual"].append(theory.w1_primal(chain) if never else theory.w1_dual(chain)[0])
        bad, total = plots_grid.violations(world, potential, about["step_bound"], about.get("one_sided", False))
        keep["violations"].append(bad / total)
    return {k: float(np.median(v)) for k, v in keep.items()}


def panels(path: Path, drawings: list, columns: int, colour_bars: bool = True) -> None:
    """A picture of several boards; each drawing takes a figure and an axes."""
    rows = -(-len(drawings) // columns)
    with mpl.rc_context(plots_grid.STYLE):
        figure = Figure(figsize=(4.6 * columns, 4.5 * rows), layout="constrained")
        for ax, draw in zip(np.atleast_1d(figure.subplots(rows, columns)).ravel(), drawings):
            draw(figure, ax)
        figure.savefig(path, dpi=85)


def visits(name: str, title: str, mean: bool = True):
    def draw(figure, ax):
        about, data = load(name)
        plots_grid.bubbles(ax, worlds.load(about["world"]), data["visits"].mean(0) if mean else data["visits"][0], title)

    return draw


def reward(name: str, title: str):
    def draw(figure, ax):
        about, data = load(name)
        figure.colorbar(plots_grid.heat(ax, worlds.load(about["world"]), data["reward"][0], title), ax=ax, shrink=0.75)

    return draw


def policy(name: str, title: str):
    def draw(figure, ax):
        about, data = load(name)
        plots_grid.arrows(ax, worlds.load(about["world"]), data["policy"][0].astype(float), title)

    return draw


def scatter(name: str, title: str):
    def draw(figure, ax):
        about, data = load(name)
        world = worlds.load(about["world"])
        plots_grid.against_distance(
            ax, world, data["potential"][0], grid.optimal_distance(world), about["step_bound"], about.get("one_sided", False)
        )
        ax.set_title(f"{title}: {ax.get_title()}", fontsize=10.5)

    return draw


def bounds(name: str, which: str, title: str):
    """The best potential under one of the bounds, for the chain of a learned policy with one random action in five."""

    def draw(figure, ax):
        about, data = load(name)
        world = worlds.load(about["world"])
        mdp = theory.GoalMDP(*worlds.exact_mdp(world))
        policy = data["policy"][0].astype(float)
        policy = 0.8 * policy / policy.sum(1, keepdims=True) + 0.2 / 4  # every move can happen, or most distances were infinite
        chain = theory.induced_chain(mdp, policy)
        value, f = {
            "dual": lambda: theory.w1_dual(chain),
            "eq4": lambda: (theory.w1_eq4(chain), theory.eq4_potential(chain)),
            "hop": lambda: (theory.w1_hop(chain), -theory.hop_distance(chain)),
        }[which]()
        figure.colorbar(plots_grid.heat(ax, world, np.asarray(f, float), f"{title}: {value:.1f}"), ax=ax, shrink=0.75)

    return draw


def curves(names: dict[str, str], title: str):
    def draw(figure, ax):
        for i, (name, label) in enumerate(names.items()):
            _, data = load(name)
            bands = np.array([interval(r) for r in data["rates"]])
            (line,) = ax.plot(data["iterations"], bands[:, 0], lw=2, label=label, color=f"C{i % 10}", ls="-:"[i // 10])  # ten colours
            ax.fill_between(data["iterations"], bands[:, 1], bands[:, 2], color=line.get_color(), alpha=0.2, lw=0)
        ax.set(xlabel="iteration", ylabel="success rate", ylim=(-0.03, 1.03))
        ax.set_title(title)
        ax.grid(color="#e5e5e5", lw=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=9)

    return draw


def figures() -> None:
    """The paper's grid-world figures, from the kept cells."""
    kept = {p.stem for p in CELLS.glob("*.npz")}

    def make(path: str, needed: list[str], drawings: list, columns: int) -> None:
        missing = [n for n in needed if n not in kept]
        if missing:
            print(f"{path}: waits for {', '.join(missing)}")
            return
        panels(HERE / path, drawings, columns)

    make(
        "room.png",
        ["fast-room-aim", "paper-room-sparse-0.3"],
        [
            visits("fast-room-aim", "Visits with AIM, 100 iterations"),
            reward("fast-room-aim", "AIM's learned reward"),
            visits("paper-room-sparse-0.3", "Visits, task reward, 500 iterations"),
        ],
        3,
    )
    make(
        "windy.png",
        ["fast-windy-aim"],
        [
            reward("fast-windy-aim", "Windy: AIM's reward, 50 iterations"),
            visits("fast-windy-aim", "Visits, 50 iterations"),
            policy("fast-windy-aim", "Policy"),
        ],
        3,
    )
    make(
        "torus.png",
        ["fast-torus-aim", "fast-torus-wgan"],
        [
            reward("fast-torus-aim", "Torus: AIM's reward"),
            visits("fast-torus-aim", "Visits with AIM"),
            reward("fast-torus-wgan", "Gradient penalty (WGAN) reward"),
            visits("fast-torus-wgan", "Visits with WGAN"),
        ],
        4,
    )
    compared = {"dense": "−L2", "mc": "MC (DDL)", "rnd": "RND", "smirl": "SMiRL"}
    make(
        "baselines.png",
        [f"paper-room-{r}-0.3" for r in compared],
        [visits(f"paper-room-{r}-0.3", f"Visits with {label}, 500 it.") for r, label in compared.items()]
        + [reward(f"paper-room-{r}-0.3", f"{label}: reward") for r, label in compared.items()],
        4,
    )
    named = {"hop": "every transition (w1_hop)", "eq4": "E|f(s) − f(s′)| ≤ 1 (w1_eq4)", "dual": "the exact dual (w1_dual)"}
    make("bounds.png", ["fast-windy-aim"], [bounds("fast-windy-aim", k, label) for k, label in named.items()], 3)
    distance = {"fast-room-aim": "AIM", "paper-room-wgan-0.3": "WGAN", "paper-room-mc-0.3": "MC"}
    make("distance.png", list(distance), [scatter(n, label) for n, label in distance.items()], 3)
    for entropy in (0.3, 0.1):
        names = {f"paper-room-{r}-{entropy}": r for r in REWARDS if f"paper-room-{r}-{entropy}" in kept}
        names |= {n: label for n, label in {"fast-room-aim": "aim, preset fast"}.items() if n in kept}
        make(f"curves-{entropy}.png", list(names), [curves(names, f"Room, preset paper, entropy {entropy}")], 1)


if __name__ == "__main__":
    task, words = sys.argv[1], sys.argv[2:]
    if task == "run":
        for cell in cells():
            if (not words or any(w in cell.name for w in words)) and not (CELLS / f"{cell.name}.npz").exists():
                measure(cell)
    elif task == "tables":
        tables()
    elif task == "figures":
        figures()
