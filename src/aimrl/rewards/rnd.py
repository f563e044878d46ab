"""Random network distillation (Burda et al. 2018): a bonus where a network hasn't yet learned to imitate a random one."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from aimrl import nn
from aimrl.rewards.base import Reward
from aimrl.rewards.common import Activation, Normalise, inputs, observe_goals, observe_values, scaled
from aimrl.types import GoalSpec, Metrics, Transition


class RNDState(eqx.Module):
    predictor: nn.Learner
    target: nn.MLP  # random, never trained
    moments: nn.Moments  # of achieved goals
    stats: nn.Moments  # of the error
    updates: Int[Array, ""]


class RND(Reward):
    """r = mean (p(s′) − q(s′))² / running std, q random and fixed, p trained towards it on visited states."""

    hidden: tuple[int, ...] = eqx.field(default=(64, 64), static=True)
    embedding: int = eqx.field(default=32, static=True)
    activation: Activation = eqx.field(default="tanh", static=True)
    learning_rate: float = eqx.field(default=1e-3, static=True)
    warmup: int = eqx.field(default=99, static=True)  # updates before the first bonus, as the authors ran it
    normalise: Normalise = eqx.field(default="std", static=True)
    standardise: bool = eqx.field(default=False, static=True)
    task_weight: float = eqx.field(default=1.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def init(self, key: PRNGKeyArray, spec: GoalSpec) -> RNDState:
        sizes = (spec.goal_dim, *self.hidden, self.embedding)
        predictor, target = (nn.mlp(k, sizes, self.activation) for k in jax.random.split(key))
        return RNDState(
            nn.learner(predictor, self._optimiser()), target, nn.moments(spec.goal_dim), nn.moments(1), jnp.zeros((), jnp.int32)
        )

    def error(self, net: nn.MLP, target: nn.MLP, moments: nn.Moments, x: Float[Array, "*batch g"]) -> Float[Array, "*batch"]:
        (x,) = inputs(moments, self.standardise, x)
        return jnp.square(net(x) - target(x)).mean(-1)

    def update(self, state: RNDState, batches: Transition, key: PRNGKeyArray) -> tuple[RNDState, Metrics]:
        moments = observe_goals(state.moments, batches, self.standardise)

        def loss(net: nn.MLP, batch: Transition):
            error = self.error(net, state.target, moments, batch.next_achieved)
            return error.mean(), error

        def step(learner: nn.Learner, batch: Transition):
            grads, error = eqx.filter_grad(loss, has_aux=True)(learner.params, batch)
            return nn.descend(learner, grads, self._optimiser()), error

        learner, errors = jax.lax.scan(step, state.predictor, batches)
        stats = observe_values(state.stats, errors, self.normalise)
        return RNDState(learner, state.target, moments, stats, state.updates + errors.shape[0]), {"rnd/error": errors[-1].mean()}

    def reward(self, state: RNDState, batch: Transition) -> Float[Array, "*batch"]:
        error = self.error(state.predictor.params, state.target, state.moments, batch.next_achieved)
        return jnp.where(state.updates >= self.warmup, scaled(error, state.stats, self.normalise), 0.0)

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
