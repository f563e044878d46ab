"""The tables: Tukey's test and the hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aimrl import plots, runs
from aimrl.config import make_config
from aimrl.paper.budgets import BUDGETS, TASKS
from aimrl.paper.material import Material, Shown
from aimrl.paper.verdicts import LEARNED, Verdict, at_least, every, many
from aimrl.types import UserError

ANOVA = dict.fromkeys(TASKS, ("aim", "aim+r", "sparse", "dense"))
COLUMNS = ("Slide", "Push", "PickAndPlace", "Reach")  # of tab:anova
REACH_STEP = 2_000  # at which the paper compares Reach


def published() -> dict[str, dict[str, Any]]:
    """The paper's own tab:anova, shaped as a result of `aimrl stats`."""
    from aimrl.stats import PAPER_TABLE

    entry = lambda a, b, x: {"a": a, "b": b, "estimate": x[0], "se": x[1], "z": x[0] / x[1], "significant": x[2], "test": "wald"}  # noqa: E731
    return {
        task: {"contrasts": [entry(*pair, x) for pair, x in PAPER_TABLE[f"Fetch{task}"].items()], "separated": [], "problem": None}
        | {"environments": len(COLUMNS)}
        for task in COLUMNS
    }


def _contrast(result: Mapping[str, Any], task: str, a: str, b: str) -> dict[str, Any] | None:
    """The contrast, unless nothing was learned in this task: equal failures are no similarity."""
    entry = result.get(task, {"contrasts": []})
    rates = [x["successes"] / max(x["episodes"], 1) for x in entry.get("algorithms", {}).values()]
    found = entry["contrasts"] if not rates or max(rates) >= LEARNED else []
    return next((c for c in found if (c["a"], c["b"]) == (a, b)), None)


def similar(result: Mapping[str, Any], a: str) -> list[bool | None]:
    """By environment, whether H₀: β_a = β_dense is not rejected."""
    return [None if (c := _contrast(result, task, a, "dense")) is None else not c["significant"] for task in COLUMNS]


def higher(result: Mapping[str, Any], a: str) -> list[bool | None]:
    """By environment, whether a's odds are significantly above the sparse reward's."""
    return [None if (c := _contrast(result, task, a, "sparse")) is None else c["significant"] and c["z"] > 0 for task in COLUMNS]


def _both(result: Mapping[str, Any], test: Callable[[Mapping[str, Any], str], list[bool | None]]) -> list[bool | None]:
    return [every(pair) for pair in zip(test(result, "aim"), test(result, "aim+r"))]


def _count(verdicts: Sequence[bool | None]) -> str:
    return f"{sum(v is True for v in verdicts)} of the {sum(v is not None for v in verdicts)} tested"


def anova(material: Material) -> Shown:
    from aimrl import stats

    tables, problems = {}, []
    for task in COLUMNS:
        here = [f for f in material.folders if runs.read_json(f / "config.json")["env"] == TASKS[task]]
        if here:
            step = REACH_STEP if task == "Reach" and BUDGETS[material.budget].tasks[task].steps >= REACH_STEP else None
            try:
                found = stats.from_runs(here, step)
            except UserError as e:  # no run of this task can be used: the others still are
                problems.append(str(e))
                continue
            tables |= {task: found.envs[TASKS[task]]}
            problems += found.problems
    result = stats.analyse(stats.Table(tables, tuple(problems)))
    shown = {task: entry | {"contrasts": [c for c in entry["contrasts"] if c["b"] in ("dense", "sparse") and c["a"].startswith("aim")]}
             for task, entry in result.items()}  # fmt: skip
    text = "\n\n".join(
        ["Ours", stats.format_table(shown) if shown else "no runs", "The paper's", stats.format_table(published()).split("\nLog odds")[0]]
    )
    paper = published()
    verdicts = [
        Verdict("in three of the four environments AIM and AIM + R have odds similar to dense", at_least(3, _both(result, similar)),
                f"H₀ is not rejected for both in {_count(_both(result, similar))}; "
                f"the paper's own table has it in {_count(_both(paper, similar))}, so that there the sentence "
                + ("holds" if at_least(3, _both(paper, similar)) else "does not hold")),
        Verdict("in all four AIM and AIM + R have significantly higher odds than the sparse reward", at_least(4, _both(result, higher)),
                f"both are in {_count(_both(result, higher))}; the paper's own table has it in {_count(_both(paper, higher))}"),
    ]  # fmt: skip
    said = [f"{t}: step {e['step']:,}, {many(e['seeds'], 'seed')}" for t, e in result.items()]
    return Shown(_text_picture(text), [*said, *problems], {"result": result, "table": text}, verdicts)


def _text_picture(text: str) -> Callable[[Path], None]:
    """A table as a picture."""

    def draw(path: Path) -> None:
        from matplotlib.figure import Figure

        lines = text.splitlines()
        size = (0.085 * max(map(len, lines)) + 0.4, 0.19 * len(lines) + 0.4)
        figure = Figure(figsize=size)
        figure.text(0.2 / size[0], 1 - 0.2 / size[1], plots.plain_text(text), family="monospace", fontsize=10, va="top", linespacing=1.3)
        figure.savefig(path, dpi=130)

    return draw


# The three tables of the appendix as printed; the learning rate is printed as 1^{-3}, meaning 10⁻³.
_COMMON = {
    "n_sampled_goal": 4, "goal_selection_strategy": "future", "buffer_size": 1_000_000, "batch_size": 256, "gamma": 0.95,
    "random_exploration": 0.3, "target_policy_noise": 0.2, "learning_rate": 1e-3, "noise_type": "normal", "noise_std": 0.2,
    "MLP size": (256, 256, 256), "learning_starts": 1_000,
}  # fmt: skip
HYPER: dict[str, dict[str, Any]] = {
    "sparse": _COMMON | {"train_freq": 10, "gradient_steps": 10, "tau": 0.05},
    "dense": _COMMON | {"train_freq": 100, "gradient_steps": 200, "policy_delay": 5, "tau": 0.05},
    "aim": _COMMON | {"gamma": 0.9, "train_freq": 100, "gradient_steps": 200, "disc_train_freq": 100, "disc_steps": 20, "tau": 0.1},
}


def preset_table(reward: str) -> dict[str, Any]:
    """The preset `paper` under the names of the paper's tables; only the rows which that reward's table has."""
    from aimrl import agents

    c = make_config(TASKS["Push"], preset="paper", reward=reward)
    agent: Any = agents.make(c.agent, **c.agent_options)
    values = {
        "n_sampled_goal": round(c.her_ratio / (1 - c.her_ratio), 6),  # k hindsight goals a transition: k / (k + 1) of a batch
        "goal_selection_strategy": c.her,
        "buffer_size": c.buffer_size,
        "batch_size": c.batch_size,
        "gamma": agent.gamma,
        "random_exploration": c.random_final,
        "target_policy_noise": agent.target_noise,
        "learning_rate": agent.critic_rate,
        "noise_type": "normal",  # TD3 has no other
        "noise_std": agent.noise,
        "MLP size": agent.hidden,
        "learning_starts": c.learning_starts,
        "train_freq": c.round_steps,
        "gradient_steps": c.round_updates,
        "policy_delay": agent.policy_delay,
        "disc_train_freq": c.round_steps,
        "disc_steps": c.potential_updates,
        "tau": agent.tau,
    }
    return {name: values[name] for name in HYPER["sparse" if reward not in ("dense", "aim", "aim+r") else reward.removesuffix("+r")]}


def _show(v: Any) -> str:
    return f"{v:,}" if isinstance(v, int) else f"{v:g}" if isinstance(v, float) else str(list(v) if isinstance(v, tuple) else v)


def hyper(reward: str, rewards: Sequence[str]) -> Callable[[Material], Shown]:
    def make(material: Material) -> Shown:
        paper, ours = HYPER[reward], {r: preset_table(r) for r in rewards}
        rows = [["Hyperparameter", "the paper's", *(f"preset paper, {r}" for r in rewards)]]
        rows += [[k, _show(v), *(_show(ours[r][k]) for r in rewards)] for k, v in paper.items()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [" | ".join(cell.ljust(w) for cell, w in zip(row, widths)) for row in rows]
        text = "\n".join([lines[0], "-+-".join("-" * w for w in widths), *lines[1:]])
        odd = [f"{k} ({r}): {_show(t[k])}" for r, t in ours.items() for k, v in paper.items() if t[k] != v]
        verdict = Verdict("the preset `paper` is this table", not odd, "; ".join(odd) or f"all {len(paper)} rows are equal", exact=True)
        notes = ["The actor's learning rate is half the critic's, as in the released code; two environments are stepped at once."]
        return Shown(_text_picture(text), notes, {"paper": paper, "ours": ours, "table": text}, [verdict])

    return make
