"""How much of the paper's protocol is run, and the paper's names of tasks and methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aimrl.types import UserError, nearest

OUT = Path("runs/paper")
TASKS = {
    "Reach": "FetchReach-v4",
    "PickAndPlace": "FetchPickAndPlace-v4",
    "Push": "FetchPush-v4",
    "Slide": "FetchSlide-v4",
}  # as in fig:fetch
LABELS = {"aim": "AIM + HER", "aim+r": "AIM + R + HER", "sparse": "R + HER", "dense": "−L2 + HER", "rnd": "RND + R + HER"}
BONUSES = ("rnd", "mc", "gail")
LABELS |= {"mc": "MC + R + HER", "gail": "GAIL + R + HER", "smirl": "SMiRL + R + HER"}


@dataclass(frozen=True)
class TaskBudget:
    """How much of one Fetch task is run."""

    steps: int
    seeds: tuple[int, ...]
    bonuses: bool = True  # whether the rewards with a bonus are run
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """How much of the paper's protocol is run."""

    words: str  # of the Fetch runs
    preset: str  # of the Fetch runs; the grid's is always the paper's
    tasks: Mapping[str, TaskBudget]
    grid_seeds: int
    grid_share: float = 1.0  # of the paper's grid iterations
    decides: bool = True  # whether its data can tell anything about the paper's statements

    @property
    def grid_words(self) -> str:
        return f"{self.grid_seeds} seeds, {self.grid_share:.0%} of the paper's iterations"

    @property
    def all_words(self) -> str:
        return f"Fetch: {self.words}; grids: {self.grid_words}"


_SMALL = {
    "eval_every": 400, "eval_episodes": 10, "checkpoint_every": 800, "round_steps": 200, "round_updates": 10, "batch_size": 32,
    "learning_starts": 200, "buffer_size": 1000, "agent_options": {"hidden": (32, 32)}, "tensorboard": False,
}  # fmt: skip
_UNTUNED = (11, 12, 13)  # seeds on which nothing was tuned
_SPARING = {"eval_every": 20_000, "precision": "float32"}  # the same on every machine


BUDGETS = {
    "smoke": Budget(
        "does it run? Reach only, 1 seed, 800 steps, small networks",
        "fast", {"Reach": TaskBudget(800, (0,), overrides=_SMALL)}, 2, 0.04, decides=False,
    ),
    "desk": Budget(
        "preset fast, seeds on which nothing was tuned: Reach 4,000 steps, 6 seeds; Push and PickAndPlace 100,000, Slide 30,000, 3 seeds,"
        " RND, MC and GAIL on Reach only",
        "fast",
        {
            "Reach": TaskBudget(4_000, (*_UNTUNED, 14, 15, 16), overrides=_SPARING | {"eval_every": 1_000}),
            "PickAndPlace": TaskBudget(100_000, _UNTUNED, False, _SPARING),
            "Push": TaskBudget(100_000, _UNTUNED, False, _SPARING),
            "Slide": TaskBudget(30_000, _UNTUNED, False, _SPARING),
        },
        8,
    ),
    "full": Budget(
        "the paper's protocol: preset paper, 6 seeds, 1,000,000 steps (Reach 30,000)",
        "paper", {task: TaskBudget(30_000 if task == "Reach" else 1_000_000, tuple(range(6))) for task in TASKS}, 32,
    ),
}  # fmt: skip


def check_budget(name: str) -> Budget:
    if name not in BUDGETS:
        raise UserError(nearest(name, BUDGETS, "budget"))
    return BUDGETS[name]
