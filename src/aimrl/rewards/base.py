"""The one contract of every reward: pure `init`, `update`, `reward` on frozen configuration and explicit state."""

from __future__ import annotations

import abc
import math
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl.types import GoalSpec, Metrics, Transition


class Reward(eqx.Module):
    """A reward is its configuration; what it learns lives in the state passed in and returned.

    `update` takes a whole round: every leaf of `batches` is [updates, batch, …]. `reward` takes any leading batch shape. Both are pure and
    run under jit, scan and vmap.
    """

    task_weight: eqx.AbstractVar[float]  # weight of the environment's own reward, added to this one
    scale: eqx.AbstractVar[float]  # weight of this reward
    needs_prefix: ClassVar[bool] = False  # wants the moments of the episode so far (Transition.prefix_mean, prefix_var)

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray, spec: GoalSpec) -> Any: ...

    @abc.abstractmethod
    def update(self, state: Any, batches: Transition, key: PRNGKeyArray) -> tuple[Any, Metrics]: ...

    @abc.abstractmethod
    def reward(self, state: Any, batch: Transition) -> Float[Array, "*batch"]: ...

    def bounds(self) -> tuple[float, float]:
        """What `reward` can't leave, where it is known: lets an agent bound its targets."""
        return -math.inf, math.inf


def total_reward(reward: Reward, state: Any, batch: Transition) -> Float[Array, "*batch"]:
    """What the agent maximises: the learned reward mixed with the task's."""
    return reward.scale * reward.reward(state, batch) + reward.task_weight * batch.task_reward
