"""Twin Delayed DDPG with the paper's changes: Huber loss and a penalty on saturated actions."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from aimrl import nn
from aimrl.agents.base import Agent, Batch
from aimrl.types import Metrics


class TD3State(eqx.Module):
    actor: nn.Learner
    critic: nn.Learner
    target_actor: nn.MLP
    target_critic: nn.Ensemble


# --- losses -----------------------------------------------------------------------------------------------------------------------------


def td_target(
    r_t: Float[Array, " n"],
    terminated_t: Bool[Array, " n"],
    q_t: Float[Array, "critics n"],
    gamma: float,
    low: float = -jnp.inf,
    high: float = jnp.inf,
) -> Float[Array, " n"]:
    """y = r + γ (1 − done) min_i Q_i(s′, a′), kept within what the reward allows."""
    return jnp.clip(r_t + gamma * jnp.where(terminated_t, 0.0, q_t.min(0)), low, high)


def saturation_penalty(action: Float[Array, "n a"], threshold: float = 0.8) -> Float[Array, ""]:
    """L_a = mean max(|π(s)| − 0.8, 0)²  (appendix "Details of Experiments on Fetch Robot")."""
    return jnp.square(jnp.maximum(jnp.abs(action) - threshold, 0.0)).mean()


# --- the agent --------------------------------------------------------------------------------------------------------------------------


class TD3(Agent):
    """TD3 on flat inputs. Defaults are the paper's table for the sparse reward."""

    hidden: tuple[int, ...] = eqx.field(default=(256, 256, 256), static=True)
    critic_rate: float = eqx.field(default=1e-3, static=True)
    actor_rate: float = eqx.field(default=5e-4, static=True)  # the released code halves the critic's rate
    gamma: float = eqx.field(default=0.95, static=True)
    tau: float = eqx.field(default=0.05, static=True)  # rate at which the target networks follow
    policy_delay: int = eqx.field(default=2, static=True)  # critic updates per actor and target update
    critics: int = eqx.field(default=2, static=True)  # the smallest is believed; one alone is DDPG's: cheaper, where targets are bounded
    target_noise: float = eqx.field(default=0.2, static=True)
    target_noise_clip: float = eqx.field(default=0.5, static=True)
    noise: float = eqx.field(default=0.2, static=True)  # Gaussian exploration noise
    huber: float = eqx.field(default=1.0, static=True)  # where the Huber loss turns linear; 0 is the squared loss
    saturation: float = eqx.field(default=1.0, static=True)  # weight of the penalty on actions beyond 80 % of their range
    action_cost: float = eqx.field(
        default=0.0, static=True
    )  # weight of mean a², in units of the mean |Q|: keeps a clueless actor from drifting
    q_low: float = eqx.field(default=-float("inf"), static=True)  # bounds of the targets, where the reward has any
    q_high: float = eqx.field(default=float("inf"), static=True)
    layer_norm: bool = eqx.field(default=False, static=True)  # in the critics
    activation: str = eqx.field(default="relu", static=True)

    def init(self, key: PRNGKeyArray, x_dim: int, action_dim: int) -> TD3State:
        k_actor, *k_critics = jax.random.split(key, 1 + self.critics)
        actor = nn.mlp(k_actor, (x_dim, *self.hidden, action_dim), self.activation)
        sizes = (x_dim + action_dim, *self.hidden, 1)
        critic = nn.Ensemble(tuple(nn.mlp(k, sizes, self.activation, self.layer_norm) for k in k_critics))
        copy = lambda tree: jax.tree.map(jnp.copy, tree)  # noqa: E731  donated buffers must not be shared
        return TD3State(
            nn.learner(actor, optax.adam(self.actor_rate)), nn.learner(critic, optax.adam(self.critic_rate)), copy(actor), copy(critic)
        )

    def update(self, state: TD3State, batches: Batch, key: PRNGKeyArray) -> tuple[TD3State, Metrics]:
        """Groups of `policy_delay` critic updates, each followed by one actor and target update; the last may be shorter."""
        groups, left = divmod(batches.reward.shape[0], self.policy_delay)
        noise = self.target_noise * jax.random.normal(key, batches.action.shape)
        inputs = batches, jnp.clip(noise, -self.target_noise_clip, self.target_noise_clip)
        metrics: Metrics = {}
        if groups:
            grouped = jax.tree.map(lambda x: x[: len(x) - left].reshape(groups, self.policy_delay, *x.shape[1:]), inputs)
            state, found = jax.lax.scan(self._group, state, grouped)
            metrics = {k: v.mean() for k, v in found.items()}
        if left:
            state, found = self._group(state, jax.tree.map(lambda x: x[-left:], inputs))
            metrics = metrics or found
        return state, metrics

    def _group(self, state: TD3State, inputs: tuple[Batch, Float[Array, "updates n a"]]) -> tuple[TD3State, Metrics]:
        batches, _ = inputs
        optimiser = optax.adam(self.critic_rate)
        # The target networks stand still within a group: one large product instead of several.
        together = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), inputs)
        targets = self._target(state, *together).reshape(batches.reward.shape)

        def critic_step(critic: nn.Learner, inputs: tuple[Batch, Float[Array, " n"]]):
            batch, y = inputs
            grads, metrics = eqx.filter_grad(self.critic_loss, has_aux=True)(critic.params, batch, y)
            return nn.descend(critic, grads, optimiser), metrics

        critic, critic_metrics = jax.lax.scan(critic_step, state.critic, (batches, targets))
        last = jax.tree.map(lambda x: x[-1], batches)
        grads, actor_metrics = eqx.filter_grad(self.actor_loss, has_aux=True)(state.actor.params, critic.params, last)
        actor = nn.descend(state.actor, grads, optax.adam(self.actor_rate))
        state = TD3State(
            actor, critic, nn.polyak(state.target_actor, actor.params, self.tau), nn.polyak(state.target_critic, critic.params, self.tau)
        )
        return state, {k: v.mean() for k, v in critic_metrics.items()} | actor_metrics

    def _target(self, state: TD3State, batch: Batch, noise: Float[Array, "n a"]) -> Float[Array, " n"]:
        action = jnp.clip(jnp.tanh(state.target_actor(batch.next_x)) + noise, -1.0, 1.0)
        q = state.target_critic(jnp.concatenate([batch.next_x, action], -1))
        return td_target(batch.reward, batch.terminated, q, self.gamma, self.q_low, self.q_high)

    def critic_loss(self, critic: nn.Ensemble, batch: Batch, y: Float[Array, " n"]):
        q = critic(jnp.concatenate([batch.x, batch.action], -1))
        error = q - y
        loss = (optax.losses.huber_loss(error, delta=self.huber) if self.huber else 0.5 * jnp.square(error)).mean(1).sum()
        return loss, {"agent/critic_loss": loss, "agent/q": q.mean(), "agent/q_max": q.max(), "agent/q_min": q.min()}

    def actor_loss(self, actor: nn.MLP, critic: nn.Ensemble, batch: Batch):
        action = jnp.tanh(actor(batch.x))
        q = critic.members[0](jnp.concatenate([batch.x, action], -1))[..., 0]
        penalty = saturation_penalty(action)
        effort = jnp.square(action).mean()
        cost = self.action_cost * jax.lax.stop_gradient(jnp.abs(q).mean())  # one weight fits rewards of any size
        loss = -q.mean() + self.saturation * penalty + cost * effort
        return loss, {"agent/actor_loss": loss, "agent/saturation": penalty, "agent/effort": effort}

    def act(self, state: TD3State, x: Float[Array, "n x"]) -> Float[Array, "n a"]:
        return jnp.tanh(state.actor.params(x))

    def explore(self, state: TD3State, x: Float[Array, "n x"], key: PRNGKeyArray) -> Float[Array, "n a"]:
        action = self.act(state, x)
        return jnp.clip(action + self.noise * jax.random.normal(key, action.shape), -1.0, 1.0)
