"""Soft Q-learning for discrete actions (Haarnoja et al. 2017): losses, update, act, create, config."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from aimrl import nn
from aimrl.types import Metrics

Scalar = float | Float[Array, ""]


class Step(NamedTuple):
    """A batch of one-step transitions between rows of a table of inputs."""

    row_tm1: Int[Array, "*batch"]
    a_tm1: Int[Array, "*batch"]
    r_t: Float[Array, "*batch"]
    row_t: Int[Array, "*batch"]
    terminated_t: Bool[Array, "*batch"]  # reached the goal: no bootstrapping; a time limit bootstraps


def soft_value(q: Float[Array, "*batch a"], entropy: Scalar) -> Float[Array, "*batch"]:
    """V(s) = α log Σ_a exp(Q(s, a) / α)."""
    return entropy * jax.nn.logsumexp(q / entropy, axis=-1)


def policy(q: Float[Array, "*batch a"], entropy: Scalar) -> Float[Array, "*batch a"]:
    """π(a | s) ∝ exp(Q(s, a) / α)."""
    return jax.nn.softmax(q / entropy, axis=-1)


def td_error(
    q_tm1: Float[Array, " a"],
    a_tm1: Int[Array, ""],
    r_t: Float[Array, ""],
    terminated_t: Bool[Array, ""],
    q_t: Float[Array, " a"],
    gamma: Scalar,
    entropy: Scalar,
) -> Float[Array, ""]:
    """r + γ V(s′) − Q(s, a), V soft, for one transition."""
    target = r_t + gamma * jnp.where(terminated_t, 0.0, soft_value(q_t, entropy))
    return jax.lax.stop_gradient(target) - q_tm1[a_tm1]


def loss(net: nn.MLP, target: nn.MLP, inputs: Float[Array, "rows d"], batch: Step, config: SoftQConfig):
    """Mean squared (or Huber) soft TD error.

    The networks run once on every row of `inputs`, then the batch reads the tables: with a few hundred states a batch
    of thousands costs no more than one of a hundred, and gradients are the same.
    """
    q, q_target = net(inputs), target(inputs)
    error = jax.vmap(td_error, (0, 0, 0, 0, 0, None, None))(
        q[batch.row_tm1], batch.a_tm1, batch.r_t, batch.terminated_t, q_target[batch.row_t], config.gamma, config.entropy
    )
    value = optax.huber_loss(error).mean() if config.huber else 0.5 * jnp.square(error).mean()
    return value, {"soft_q/loss": value, "soft_q/q": q.mean(), "soft_q/td": jnp.abs(error).mean()}


def update(state: SoftQ, inputs: Float[Array, "rows d"], batch: Step, config: SoftQConfig) -> tuple[SoftQ, Metrics]:
    """One gradient step, then the target network follows."""
    grads, metrics = eqx.filter_grad(loss, has_aux=True)(state.online.params, state.target, inputs, batch, config)
    online = nn.descend(state.online, grads, config.optimiser())
    return SoftQ(online, nn.polyak(state.target, online.params, config.target_rate)), metrics


def action_probabilities(state: SoftQ, inputs: Float[Array, "rows d"], config: SoftQConfig) -> Float[Array, "rows a"]:
    """The policy's table: a row of probabilities for every row of inputs."""
    return policy(state.online.params(inputs), config.entropy)


def create(key: PRNGKeyArray, n_inputs: int, n_actions: int, config: SoftQConfig) -> SoftQ:
    net = nn.mlp(key, (n_inputs, *config.hidden, n_actions), config.activation)
    return SoftQ(nn.learner(net, config.optimiser()), net)


class SoftQ(eqx.Module):
    online: nn.Learner
    target: nn.MLP


class SoftQConfig(eqx.Module):
    """Numbers may be arrays, so that one compiled program serves every value; what shapes the program is static."""

    hidden: tuple[int, ...] = eqx.field(default=(64, 64), static=True)
    activation: str = eqx.field(default="relu", static=True)
    huber: bool = eqx.field(default=False, static=True)
    gamma: Scalar = 0.99
    entropy: Scalar = 0.1  # α: the coefficient in learning and the temperature in acting
    learning_rate: Scalar = 1e-3
    target_rate: Scalar = 3e-2  # Polyak rate of the target network

    def optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
