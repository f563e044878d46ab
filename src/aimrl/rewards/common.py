"""What several rewards share: checked and standardised inputs, running scale of the output, gradient norms, missing fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl import nn
from aimrl.types import Transition, UserError

Activation = Literal["relu", "tanh", "swish", "elu"]  # the keys of nn.ACTIVATIONS, as choices
Normalise = Literal["none", "std"]  # "std": divide by the running standard deviation; never centred, because the sign of a reward matters


def needs(name: str, batch: Transition, *fields: str) -> None:
    """Reject, before any arithmetic, batches without the parts of an episode that a reward learns from."""
    missing = [f for f in fields if getattr(batch, f) is None]
    if missing:
        raise UserError(f"reward '{name}' needs whole episodes, but the batch has no {', '.join(missing)}")


def fits(dim: int, goals: Float[Array, "*batch g"]) -> None:
    """Reject goals of another environment than the one a reward's state was made for."""
    if goals.shape[-1] != dim:
        raise UserError(f"the reward was made for goals of {dim} features, but the batch has {goals.shape[-1]}")


def inputs(moments: nn.Moments, standardise: bool, *goals: Float[Array, "..."]) -> list[Float[Array, "..."]]:
    """Goals as a network sees them."""
    for x in goals:
        fits(moments.mean.shape[-1], x)
    return [moments.normalise(x) for x in goals] if standardise else list(goals)


def observe_goals(moments: nn.Moments, batches: Transition, standardise: bool) -> nn.Moments:
    """Running moments of achieved goals, kept only when inputs are standardised."""
    x = batches.next_achieved
    fits(moments.mean.shape[-1], x)
    return nn.observe(moments, x.reshape(-1, x.shape[-1])) if standardise else moments


def observe_values(stats: nn.Moments, values: Float[Array, "*batch"], normalise: Normalise) -> nn.Moments:
    """Running moments of a reward's raw values, kept only when it is normalised."""
    return nn.observe(stats, values.reshape(-1, 1)) if normalise == "std" else stats


def scaled(values: Float[Array, "*batch"], stats: nn.Moments, normalise: Normalise) -> Float[Array, "*batch"]:
    """Divided by what was seen of their spread; a small reward is a legitimate one, but a constant's rounding errors are no spread."""
    spread = jnp.maximum(stats.std(floor=1e-8)[0], 1e-2 * jnp.abs(stats.mean[0]))
    return values / spread if normalise == "std" else values


FLAT = 1e-6  # a potential that spreads less is flat: its reward isn't divided by that


def by_round(r: Array, f_max: Array, f_min: Array, f_std: Array, how: Literal["none", "range", "std"], margin: float) -> Array:
    """A potential's reward divided by the spread of the potential over the last round of updates, as the authors' code does."""
    if how == "range":  # their grid worlds
        return r / jnp.maximum(f_max - f_min + 2 * margin, FLAT)
    if how == "std":  # their robots
        return r / jnp.maximum(2 * (f_std + margin), FLAT)
    return r


def gradient_penalty(f: Callable[..., Array], x: Float[Array, "n d"], y: Float[Array, "n d"], key: PRNGKeyArray, *given: Array) -> Array:
    """E[(‖∇f(z, ·)‖ − 1)²] at points z on the lines between pairs of samples (Gulrajani et al. 2017)."""
    z = x + jax.random.uniform(key, (x.shape[0], 1)) * (y - x)
    squared = jnp.square(jax.vmap(jax.grad(f))(z, *given)).sum(-1)
    return jnp.square(jnp.sqrt(squared + 1e-12) - 1.0).mean()  # the root has no gradient at 0
