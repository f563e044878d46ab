"""How much of the paper's protocol is run, and the paper's names of tasks and methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aimrl.types import UserError, nearest

if TYPE_CHECKING:
    pass

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
class Budget:
    """How much of the paper's protocol is run."""

    words: str
    preset: str  # of the Fetch runs; the grid's is always the paper's
    seeds: tuple[int, ...]
    steps: Mapping[str, int]  # of the tasks that are run
    grid_seeds: int
    grid_share: float = 1.0  # of the paper's grid iterations
    bonus_share: float = 1.0  # of the steps for the rewards with a bonus, but on Reach
    overrides: Mapping[str, Any] = field(default_factory=dict)
    reach_overrides: Mapping[str, Any] = field(default_factory=dict)
    decides: bool = True  # whether its data can tell anything about the paper's statements


BUDGETS = {
    "smoke": Budget(
        "about a minute: does it run? Reach only, 1 seed, 800 steps, small networks; grids 2 seeds, a twenty-fifth of the iterations",
        "fast", (0,), {"Reach": 800}, 2, 0.04,
        overrides={
            "eval_every": 400, "eval_episodes": 10, "checkpoint_every": 800, "round_steps": 200, "round_updates": 10, "batch_size": 32,
            "learning_starts": 200, "buffer_size": 1000, "agent_options": {"hidden": (32, 32)}, "tensorboard": False,
        },
        decides=False,
    ),
    "desk": Budget(
        "preset fast, 3 seeds on which nothing was tuned: Push 100,000 steps, PickAndPlace 140,000, Slide 40,000, Reach 4,000,"
        " RND, MC and GAIL a third of that but on Reach; grids in full with 8 seeds",
        "fast", (11, 12, 13), {"Reach": 4_000, "PickAndPlace": 140_000, "Push": 100_000, "Slide": 40_000}, 8, bonus_share=1 / 3,
        overrides={"eval_every": 20_000}, reach_overrides={"eval_every": 1_000},
    ),
    "full": Budget(
        "the paper's protocol: preset paper, 6 seeds, 1,000,000 steps (Reach 30,000); grids with 32 seeds",
        "paper", tuple(range(6)), dict.fromkeys(TASKS, 1_000_000) | {"Reach": 30_000}, 32,
    ),
}  # fmt: skip


def check_budget(name: str) -> Budget:
    if name not in BUDGETS:
        raise UserError(nearest(name, BUDGETS, "budget"))
    return BUDGETS[name]
