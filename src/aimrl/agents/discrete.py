"""Soft Q-learning behind the agents' contract: for goal environments with discrete actions. Its losses are those of `soft_q`."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl import nn
from aimrl.agents import soft_q
from aimrl.agents.base import Agent, Batch
from aimrl.types import Metrics


class DiscreteSoftQ(Agent):
    """Soft Q-learning on flat inputs; actions are one-hot."""

    hidden: tuple[int, ...] = eqx.field(default=(64, 64), static=True)
    learning_rate: float = eqx.field(default=1e-3, static=True)
    gamma: float = eqx.field(default=0.99, static=True)
    entropy: float = eqx.field(default=0.1, static=True)  # α: the coefficient in learning and the temperature in exploring
    tau: float = eqx.field(default=0.03, static=True)  # rate at which the target network follows, every update
    huber: bool = eqx.field(default=True, static=True)
    activation: str = eqx.field(default="relu", static=True)

    def init(self, key: PRNGKeyArray, x_dim: int, action_dim: int) -> soft_q.SoftQ:
        net = nn.mlp(key, (x_dim, *self.hidden, action_dim), self.activation)
        return soft_q.SoftQ(nn.learner(net, optax.adam(self.learning_rate)), jax.tree.map(jnp.copy, net))

    def update(self, state: soft_q.SoftQ, batches: Batch, key: PRNGKeyArray) -> tuple[soft_q.SoftQ, Metrics]:
        def step(state: soft_q.SoftQ, batch: Batch):
            grads, metrics = eqx.filter_grad(self.loss, has_aux=True)(state.online.params, state.target, batch)
            online = nn.descend(state.online, grads, optax.adam(self.learning_rate))
            return soft_q.SoftQ(online, nn.polyak(state.target, online.params, self.tau)), metrics

        state, metrics = jax.lax.scan(step, state, batches)
        return state, {k: v.mean() for k, v in metrics.items()}

    def loss(self, net: nn.MLP, target: nn.MLP, batch: Batch):
        q_tm1, q_t = net(batch.x), target(batch.next_x)
        error = jax.vmap(soft_q.td_error, (0, 0, 0, 0, 0, None, None))(
            q_tm1, batch.action.argmax(-1), batch.reward, batch.terminated, q_t, self.gamma, self.entropy
        )
        loss = optax.losses.huber_loss(error).mean() if self.huber else 0.5 * jnp.square(error).mean()
        return loss, {"agent/critic_loss": loss, "agent/q": q_tm1.mean(), "agent/q_max": q_tm1.max(), "agent/q_min": q_tm1.min()}

    def act(self, state: soft_q.SoftQ, x: Float[Array, "n x"]) -> Float[Array, "n a"]:
        q = state.online.params(x)
        return jax.nn.one_hot(q.argmax(-1), q.shape[-1])

    def explore(self, state: soft_q.SoftQ, x: Float[Array, "n x"], key: PRNGKeyArray) -> Float[Array, "n a"]:
        q = state.online.params(x)
        return jax.nn.one_hot(jax.random.categorical(key, q / self.entropy), q.shape[-1])

    def random_action(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "n a"]:
        return jax.nn.one_hot(jax.random.randint(key, shape[:-1], 0, shape[-1]), shape[-1])
