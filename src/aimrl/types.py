"""The shared nouns: errors, goal specification, transitions and metrics."""

from __future__ import annotations

import difflib
import itertools
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

if TYPE_CHECKING:  # keep `aimrl --help` fast: nothing heavy is imported here
    from jaxtyping import Array, Bool, Float, Int

Metrics = dict[str, Any]  # names like "td3/q" to scalars
Backend = Literal["auto", "envpool", "gym"]  # of simulators
BACKENDS: tuple[str, ...] = get_args(Backend)
Strategy = Literal["future", "final", "episode", "random", "none"]  # where hindsight goals come from
STRATEGIES: tuple[str, ...] = get_args(Strategy)
Precision = Literal["auto", "float32", "bfloat16"]  # of matrix products
PRECISIONS: tuple[str, ...] = get_args(Precision)


class UserError(Exception):
    """Bad input or bad usage, told in one clear line; the command line exits 2 with it."""

    def __init__(self, line: str = ""):
        super().__init__(" ".join(line.splitlines()))  # what it quotes from a file may hold line breaks


class EnvTrouble(UserError):
    """An environment's own code failed: nothing is wrong with what was learned before."""


def look_here(env: str) -> None:
    """Let `your_module:YourEnv-v0` lie in the current folder; last on the path, so that it shadows nothing."""
    if ":" in env and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def nearest(name: str, valid: Iterable[str], what: str = "name") -> str:
    """One line that rejects `name` and suggests the nearest valid ones."""
    name = " ".join(name[:100].split())  # it may come from a damaged file
    names = sorted(set(valid))
    lower = {n.lower(): n for n in names}
    close = [lower[c] for c in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(close)}?" if close else f"valid: {', '.join(names[:20])}{' …' if len(names) > 20 else ''}"
    return f"unknown {what} '{name}': {hint}"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> dict[str, str]:
    """What Linux says of the first processor; empty elsewhere."""
    try:
        with open("/proc/cpuinfo") as f:
            pairs = [line.partition(":") for line in itertools.takewhile(str.strip, f)]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in pairs}


def multiplies_bfloat16() -> bool:
    """Has the processor instructions for it? Without them bfloat16 is slower than float32."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor().get("flags", "").split())


@dataclass(frozen=True)
class GoalSpec:
    """What an agent or a reward must know of a goal environment: sizes and bounds, never the simulator."""

    obs_dim: int
    goal_dim: int
    action_dim: int  # size of a continuous action, or the number of discrete actions
    horizon: int  # the time limit of one episode in steps
    discrete: bool = False
    env_id: str = ""
    action_space: Any = field(default=None, compare=False, repr=False)  # the environment's own, where policies are to answer in its terms


class Transition(NamedTuple):
    """A batch of transitions (s, a, s′, g) as the replay hands them to rewards and agents.

    `goal` is the goal in force, hindsight or not; `desired` the one the environment asked for, whatever goal was practised. `future` is an
    achieved goal of the same episode, `future_steps` ≥ 1 steps after s. `prefix_mean` and `prefix_var` are the episode's moments of its
    achieved goals up to and including s′ (only SMiRL asks for them).
    """

    obs: Float[Array, "*batch obs"]
    action: Float[Array, "*batch act"]
    next_obs: Float[Array, "*batch obs"]
    achieved: Float[Array, "*batch goal"]
    next_achieved: Float[Array, "*batch goal"]
    goal: Float[Array, "*batch goal"]
    desired: Float[Array, "*batch goal"]
    future: Float[Array, "*batch goal"]
    future_steps: Int[Array, "*batch"]
    relabelled: Bool[Array, "*batch"]
    task_reward: Float[Array, "*batch"]
    success: Bool[Array, "*batch"]  # s′ meets `goal`
    terminated: Bool[Array, "*batch"]  # s′ ends the episode for good under `goal`: no bootstrapping
    prefix_mean: Any = None
    prefix_var: Any = None
