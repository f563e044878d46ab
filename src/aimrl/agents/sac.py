"""Soft Actor-Critic with a learned temperature: a second off-policy agent behind the same contract."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl import nn
from aimrl.agents.base import Agent, Batch
from aimrl.agents.td3 import td_target
from aimrl.types import Metrics

_LOG_STD = (-5.0, 2.0)


class SACState(eqx.Module):
    actor: nn.Learner
    critic: nn.Learner
    target_critic: nn.Ensemble
    temperature: nn.Learner  # log α


# --- losses -----------------------------------------------------------------------------------------------------------------------------


def squashed_gaussian(out: Float[Array, "n two_a"], key: PRNGKeyArray) -> tuple[Float[Array, "n a"], Float[Array, " n"]]:
    """A sample of tanh(N(μ, σ²)) and its log-density, with the change of variables written stably."""
    mean, log_std = jnp.split(out, 2, axis=-1)
    log_std = jnp.clip(log_std, *_LOG_STD)
    noise = jax.random.normal(key, mean.shape)
    u = mean + jnp.exp(log_std) * noise
    log_gauss = -0.5 * jnp.square(noise) - log_std - 0.5 * jnp.log(2 * jnp.pi)
    log_det = 2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u))  # log(1 − tanh²(u))
    return jnp.tanh(u), (log_gauss - log_det).sum(-1)


# --- the agent --------------------------------------------------------------------------------------------------------------------------


class SAC(Agent):
    """SAC on flat inputs."""

    hidden: tuple[int, ...] = eqx.field(default=(256, 256, 256), static=True)
    critic_rate: float = eqx.field(default=1e-3, static=True)
    actor_rate: float = eqx.field(default=1e-3, static=True)
    temperature_rate: float = eqx.field(default=1e-3, static=True)
    gamma: float = eqx.field(default=0.95, static=True)
    tau: float = eqx.field(default=0.02, static=True)  # rate at which the target critics follow, every update
    target_entropy: float = eqx.field(default=-1.0, static=True)  # per action dimension
    first_temperature: float = eqx.field(default=0.1, static=True)
    q_low: float = eqx.field(default=-float("inf"), static=True)
    q_high: float = eqx.field(default=float("inf"), static=True)
    layer_norm: bool = eqx.field(default=False, static=True)
    activation: str = eqx.field(default="relu", static=True)

    def init(self, key: PRNGKeyArray, x_dim: int, action_dim: int) -> SACState:
        k_actor, *k_critics = jax.random.split(key, 3)
        actor = nn.mlp(k_actor, (x_dim, *self.hidden, 2 * action_dim), self.activation)
        sizes = (x_dim + action_dim, *self.hidden, 1)
        critic = nn.Ensemble(tuple(nn.mlp(k, sizes, self.activation, self.layer_norm) for k in k_critics))
        log_alpha = jnp.log(jnp.asarray(self.first_temperature))
        return SACState(
            nn.learner(actor, optax.adam(self.actor_rate)),
            nn.learner(critic, optax.adam(self.critic_rate)),
            jax.tree.map(jnp.copy, critic),
            nn.learner(log_alpha, optax.adam(self.temperature_rate)),
        )

    def update(self, state: SACState, batches: Batch, key: PRNGKeyArray) -> tuple[SACState, Metrics]:
        state, metrics = jax.lax.scan(self._step, state, (batches, jax.random.split(key, batches.reward.shape[0])))
        return state, {k: v.mean() for k, v in metrics.items()}

    def _step(self, state: SACState, inputs: tuple[Batch, PRNGKeyArray]) -> tuple[SACState, Metrics]:
        batch, key = inputs
        k_target, k_actor = jax.random.split(key)
        alpha = jnp.exp(state.temperature.params)
        next_action, next_log_prob = squashed_gaussian(state.actor.params(batch.next_x), k_target)
        q_t = state.target_critic(jnp.concatenate([batch.next_x, next_action], -1)) - alpha * next_log_prob
        y = td_target(batch.reward, batch.terminated, q_t, self.gamma, self.q_low, self.q_high)
        grads, critic_metrics = eqx.filter_grad(self.critic_loss, has_aux=True)(state.critic.params, batch, y)
        critic = nn.descend(state.critic, grads, optax.adam(self.critic_rate))
        grads, (log_prob, actor_metrics) = eqx.filter_grad(self.actor_loss, has_aux=True)(
            state.actor.params, critic.params, alpha, batch, k_actor
        )
        actor = nn.descend(state.actor, grads, optax.adam(self.actor_rate))
        wanted = self.target_entropy * batch.action.shape[-1]
        temperature = nn.descend(state.temperature, -(log_prob.mean() + wanted), optax.adam(self.temperature_rate))
        state = SACState(actor, critic, nn.polyak(state.target_critic, critic.params, self.tau), temperature)
        return state, critic_metrics | actor_metrics | {"agent/temperature": alpha}

    def critic_loss(self, critic: nn.Ensemble, batch: Batch, y: Float[Array, " n"]):
        q = critic(jnp.concatenate([batch.x, batch.action], -1))
        loss = 0.5 * jnp.square(q - y).mean(1).sum()
        return loss, {"agent/critic_loss": loss, "agent/q": q.mean(), "agent/q_max": q.max(), "agent/q_min": q.min()}

    def actor_loss(self, actor: nn.MLP, critic: nn.Ensemble, alpha: Float[Array, ""], batch: Batch, key: PRNGKeyArray):
        action, log_prob = squashed_gaussian(actor(batch.x), key)
        q = critic(jnp.concatenate([batch.x, action], -1)).min(0)
        loss = (alpha * log_prob - q).mean()
        return loss, (log_prob, {"agent/actor_loss": loss, "agent/entropy": -log_prob.mean(), "agent/effort": jnp.square(action).mean()})

    def act(self, state: SACState, x: Float[Array, "n x"]) -> Float[Array, "n a"]:
        return jnp.tanh(jnp.split(state.actor.params(x), 2, axis=-1)[0])

    def explore(self, state: SACState, x: Float[Array, "n x"], key: PRNGKeyArray) -> Float[Array, "n a"]:
        return squashed_gaussian(state.actor.params(x), key)[0]
