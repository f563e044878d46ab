"""Adversarial Intrinsic Motivation: a Kantorovich potential f(s, g), learned from transitions, as a reward."""

from __future__ import annotations

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl import nn
from aimrl.rewards import targets
from aimrl.rewards.base import Reward
from aimrl.rewards.common import Activation, by_round, inputs, observe_goals
from aimrl.types import GoalSpec, Metrics, Transition, UserError

_EMBEDDING = 16  # dimensions in which the metric potential lays out the goals
_EXAMPLES = "examples must be a finite array of shape [n, goal features]"


def _rows(x: Any) -> Array | None:
    try:
        return None if x is None else jnp.asarray(x, jnp.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"aim: {_EXAMPLES}") from error


class AIMState(eqx.Module):
    potential: nn.Learner  # of (f,), or (f, u) where the bound is in expectation
    moments: nn.Moments  # of achieved goals: the potential sees standardised inputs when asked
    f_max: Float[Array, ""]  # statistics of f over the last round of updates
    f_min: Float[Array, ""]
    f_std: Float[Array, ""]
    memory: targets.Memory | None = None  # visited states, where they are the target


class AIM(Reward):
    """AIM's potential and reward (paper, section 5.2)."""

    hidden: tuple[int, ...] = eqx.field(default=(64,), static=True)
    activation: Activation = eqx.field(default="tanh", static=True)
    learning_rate: float = eqx.field(default=1e-3, static=True)
    lipschitz_weight: float = eqx.field(default=10.0, static=True)  # λ of eqn:f_loss
    step_bound: float = eqx.field(default=0.1, static=True)  # the paper's 1; 0.1 with λ = 10 is the authors' scaling of the same problem
    # two-sided: the paper's, on |f(s′) − f(s)| (undirected hops); one-sided: on f(s′) − f(s) of each transition (directed hops);
    # expected: on E[f(s′) − f(s) | s], the exact dual's (expected steps of the policy)
    bound: Literal["two-sided", "one-sided", "expected"] = eqx.field(default="two-sided", static=True)
    # free: any function of (s, g), the paper's; metric: f = −‖φ(s) − φ(g)‖ (ours), highest at the goal by construction, so that no agent
    # finds states which the potential rates above the goal
    shape: Literal["free", "metric"] = eqx.field(default="free", static=True)
    form: Literal["biased", "to-goal", "shaped"] = eqx.field(default="biased", static=True)
    normalise: Literal["none", "range", "std"] = eqx.field(default="std", static=True)
    # max, min and std of f are over targets and states (all), as in the authors' code, or over states only (visited; ours): what no
    # transition bounds yet then sets neither the bias nor the scale, and arriving for the first time is paid more than anything before
    statistics: Literal["all", "visited"] = eqx.field(default="all", static=True)
    margin: float = eqx.field(default=0.1, static=True)  # widens the normalising statistics, as the authors' code does
    target: targets.Target = eqx.field(default="gaussian", static=True)  # the distribution the agent should match
    target_std: float = eqx.field(default=0.01, static=True)  # of the Gaussian around the goal; 0 is the Dirac of the theory
    examples: Any = eqx.field(default=None, converter=_rows)  # [n, goal] states
    cell: float = eqx.field(default=0.05, static=True)  # side of the cells in which visited states count once
    cells: int = eqx.field(default=16384, static=True)  # slots for them; some collide long before all are taken
    moving_only: bool = eqx.field(default=False, static=True)  # average the penalty over transitions in which the achieved goal moved
    # The next three turn a distance into a cost; the shaped form, a difference of potentials and nothing else, goes without them.
    rest: bool = eqx.field(default=False, static=True)  # no cost while the goal is met: the continuing counterpart of ending there
    # r → r / (knee + |r|), off at 0: steep near the goal, level far from it. Where most touches of an object move it wrongly, a reward
    # that falls evenly with the distance teaches to leave it alone
    knee: float = eqx.field(default=0.0, static=True)
    worst: float = eqx.field(default=float("inf"), static=True)  # the reward is kept above −worst: f is unreliable far from all data
    goal_term: bool = eqx.field(default=True, static=True)  # −f(g, g) in the loss; off = the linear-program ablation
    standardise: bool = eqx.field(default=False, static=True)  # running standardisation of the potential's inputs
    gamma: float = eqx.field(default=0.99, static=True)  # of the shaped form only; should be the agent's (robots: 0.9 to 0.95)
    task_weight: float = eqx.field(default=0.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def __check_init__(self):
        if (self.target == "examples") != (self.examples is not None):
            raise UserError("aim: target 'examples' and the option examples go together")
        if self.examples is not None and (self.examples.ndim != 2 or not jnp.isfinite(self.examples).all() or not self.examples.size):
            raise UserError(f"aim: {_EXAMPLES}")
        if self.form == "to-goal" and self.target in ("examples", "visited"):
            raise UserError(f"aim: the to-goal form needs the goal as target, not '{self.target}'")

    def init(self, key: PRNGKeyArray, spec: GoalSpec) -> AIMState:
        if self.examples is not None and self.examples.shape[1] != spec.goal_dim:
            raise UserError(f"aim: the examples have {self.examples.shape[1]} features, the goals {spec.goal_dim}")
        sizes = (spec.goal_dim, *self.hidden, _EMBEDDING) if self.shape == "metric" else (2 * spec.goal_dim, *self.hidden, 1)
        nets = (nn.mlp(key, sizes, self.activation),)
        if self.bound == "expected":
            nets += (nn.mlp(jax.random.fold_in(key, 1), (2 * spec.goal_dim, *self.hidden, 1), self.activation),)
        memory = targets.memory(spec.goal_dim, self.cells) if self.target == "visited" else None
        zero = jnp.zeros(())
        return AIMState(nn.learner(nets, self._optimiser()), nn.moments(spec.goal_dim), zero, zero, zero, memory)

    def potential(self, state: AIMState, achieved: Float[Array, "*batch g"], goal: Float[Array, "*batch g"]) -> Float[Array, "*batch"]:
        """f_φ(s, s_g): high at the goal, falling with the number of steps to it."""
        return self._net(state.potential.params[0], state.moments, achieved, goal)

    def update(self, state: AIMState, batches: Transition, key: PRNGKeyArray) -> tuple[AIMState, Metrics]:
        moments, memory = observe_goals(state.moments, batches, self.standardise), state.memory
        if memory is not None:
            memory = targets.remember(memory, batches.next_achieved.reshape(-1, batches.next_achieved.shape[-1]), self.cell)

        def step(learner: nn.Learner, batch_and_key: tuple[Transition, PRNGKeyArray]):
            batch, key = batch_and_key
            grads, metrics = eqx.filter_grad(self.loss, has_aux=True)(learner.params, moments, memory, batch, key)
            return nn.descend(learner, grads, self._optimiser()), metrics

        n_updates = batches.goal.shape[0]
        learner, (metrics, f) = jax.lax.scan(step, state.potential, (batches, jax.random.split(key, n_updates)))
        state = AIMState(learner, moments, f.max(), f.min(), f.std(), memory)
        return state, {k: v[-1] for k, v in metrics.items()} | {"aim/f_max": state.f_max, "aim/f_std": state.f_std}

    def loss(self, nets: tuple[nn.MLP, ...], moments: nn.Moments, memory: targets.Memory | None, batch: Transition, key: PRNGKeyArray):
        """L_f = E[−f(g, g) + f(s, g)] + λ E[max(|f(s, g) − f(s′, g)| − 1, 0)²]  (eqn:f_loss).

        The state in the first mean is s′, the one the reward will be paid for; over a buffer it is the same distribution but for the ends.
        """
        target = targets.sample(self.target, batch.goal, self.target_std, self.examples, memory, key)
        f_target = self._net(nets[0], moments, target, batch.goal)
        f_t = self._net(nets[0], moments, batch.achieved, batch.goal)
        f_tp1 = self._net(nets[0], moments, batch.next_achieved, batch.goal)
        excess = (jnp.abs(f_tp1 - f_t) if self.bound == "two-sided" else f_tp1 - f_t) - self.step_bound
        penalty, fit = jnp.square(jnp.maximum(excess, 0.0)).mean(), 0.0
        if self.bound == "expected":
            u = nets[1](jnp.concatenate(inputs(moments, self.standardise, batch.achieved, batch.goal), -1))[..., 0]
            penalty, fit = self._expected_penalty(u, excess)
        penalty = penalty / self._moving_share(moments, batch)
        loss = -f_target.mean() * float(self.goal_term) + f_tp1.mean() + self.lipschitz_weight * penalty + fit
        metrics = {
            "aim/loss": loss,
            "aim/w1": (f_target.mean() - f_tp1.mean()) / self.step_bound,  # the estimate of W1 in steps
            "aim/penalty": penalty,
            "aim/violations": (excess > 0).mean(),
        }
        return loss, (metrics, f_tp1 if self.statistics == "visited" else jnp.concatenate([f_target, f_tp1]))

    def _moving_share(self, moments: nn.Moments, batch: Transition) -> Float[Array, ""] | float:
        """The share of transitions whose achieved goal changes, by more than a hundredth of its spread (of 1 if not standardised)."""
        if not self.moving_only:
            return 1.0
        change = jnp.abs(batch.next_achieved - batch.achieved) / moments.std(1e-3)
        return jnp.maximum((change > 0.01).any(-1).mean(), 0.01)

    def _expected_penalty(self, u: Float[Array, " n"], excess: Float[Array, " n"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """max(E[excess | s], 0)² = max over u ≥ 0 of 2 u E[excess | s] − u²: linear in s′, so one sample of s′ is unbiased.

        The best u is the regression of the excess on (s, g): the second value is its loss.
        """
        u_plus = jax.lax.stop_gradient(jnp.maximum(u, 0.0))
        return (2 * u_plus * excess - jnp.square(u_plus)).mean(), jnp.square(u - jax.lax.stop_gradient(excess)).mean()

    def reward(self, state: AIMState, batch: Transition) -> Float[Array, "*batch"]:
        """r̂ = f(s′, g) − b  (eqn:reward); to-goal, f(s′, g) − f(g, g); shaped, γ f(s′) − f(s), to which the paper adds r (aim+r)."""
        f_tp1 = self.potential(state, batch.next_achieved, batch.goal)
        if self.form == "biased":
            r = f_tp1 - (state.f_max + self.margin)
        elif self.form == "to-goal":
            r = f_tp1 - self.potential(state, batch.goal, batch.goal)
        else:
            r = self.gamma * f_tp1 - self.potential(state, batch.achieved, batch.goal)
        r = by_round(r, state.f_max, state.f_min, state.f_std, self.normalise, self.margin)
        if self.form == "shaped":
            return r
        r = jnp.maximum(r / (self.knee + jnp.abs(r)) if self.knee else r, -self.worst)
        return jnp.where(batch.success, 0.0, r) if self.rest else r

    def bounds(self) -> tuple[float, float]:
        if self.form == "shaped":
            return float("-inf"), float("inf")
        low = max(-1.0, -self.worst) if self.knee else -self.worst
        return low, 0.0 if self.shape == "metric" and self.form == "to-goal" else 1.0 if self.knee else float("inf")

    def _net(self, net: nn.MLP, moments: nn.Moments, achieved: Array, goal: Array) -> Array:
        achieved, goal = inputs(moments, self.standardise, achieved, goal)
        if self.shape == "metric":
            return -jnp.sqrt(jnp.square(net(achieved) - net(goal)).sum(-1) + 1e-8)  # the root's slope is infinite at 0
        return net(jnp.concatenate([achieved, goal], -1))[..., 0]

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
