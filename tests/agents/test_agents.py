"""Agents against hand-computed targets, and each on a trivial problem."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from aimrl import agents, nn
from aimrl.agents.base import Batch
from aimrl.agents.sac import squashed_gaussian
from aimrl.agents.td3 import TD3, saturation_penalty, td_target
from aimrl.types import UserError


def bandit(n_updates: int, batch: int = 64, seed: int = 0) -> Batch:
    """One-step episodes with reward −(a − x)²: the best action is x itself, within 0.6 of the centre."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-0.6, 0.6, (n_updates, batch, 1)).astype(np.float32)
    a = rng.uniform(-1, 1, x.shape).astype(np.float32)
    r = -np.square(a - x)[..., 0]
    return Batch(*map(jnp.asarray, (x, a, r, x, np.ones(r.shape, bool))))


def test_the_target_bootstraps_the_smaller_critic_unless_terminated():
    q = jnp.array([[-2.0, -5.0, 3.0], [-3.0, -4.0, 9.0]])
    y = td_target(jnp.array([-1.0, -1.0, 0.5]), jnp.array([False, True, False]), q, 0.9, high=2.0)
    np.testing.assert_allclose(y, [-1 + 0.9 * -3, -1.0, 2.0], rtol=1e-6)


def test_saturation_is_penalised_only_beyond_four_fifths_of_the_range():
    assert saturation_penalty(jnp.array([[0.8, -0.8], [0.1, 0.0]])) == 0.0
    np.testing.assert_allclose(saturation_penalty(jnp.array([[1.0, -0.9]])), (0.2**2 + 0.1**2) / 2, rtol=1e-5)


def test_the_actor_moves_once_per_delay_and_targets_with_it():
    agent = TD3(hidden=(8,), policy_delay=3, tau=0.5)
    state = agent.init(jax.random.PRNGKey(0), 1, 1)
    after, _ = jax.jit(agent.update)(state, bandit(6), jax.random.PRNGKey(1))
    count = lambda learner: int(optax.tree_utils.tree_get(learner.opt, "count"))  # noqa: E731
    assert count(after.critic) == 6
    assert count(after.actor) == 2
    one, _ = jax.jit(agent.update)(state, bandit(3), jax.random.PRNGKey(1))
    old, new, target = (
        state.critic.params.members[0].weights[0],
        one.critic.params.members[0].weights[0],
        one.target_critic.members[0].weights[0],
    )
    np.testing.assert_allclose(target, 0.5 * old + 0.5 * new, rtol=1e-5)


def test_each_batch_of_a_group_learns_from_targets_of_its_own():
    """They are computed together: were they mixed up, batches whose rewards differ would show it."""
    agent = TD3(hidden=(8,), policy_delay=2, target_noise=0.0, gamma=0.5)
    state = agent.init(jax.random.PRNGKey(0), 1, 1)
    two = bandit(2)._replace(terminated=jnp.zeros((2, 64), bool))
    two = two._replace(reward=two.reward + jnp.array([[0.0], [5.0]]))
    after, _ = jax.jit(agent.update)(state, two, jax.random.PRNGKey(1))
    critic, optimiser = state.critic, optax.adam(agent.critic_rate)
    for i in range(2):
        batch = jax.tree.map(lambda x, i=i: x[i], two)
        q = state.target_critic(jnp.concatenate([batch.next_x, jnp.tanh(state.target_actor(batch.next_x))], -1))
        y = td_target(batch.reward, batch.terminated, q, 0.5)
        grads, _ = eqx.filter_grad(agent.critic_loss, has_aux=True)(critic.params, batch, y)
        critic = nn.descend(critic, grads, optimiser)
    for mine, theirs in zip(jax.tree.leaves(critic.params), jax.tree.leaves(after.critic.params), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("critics", [1, 2, 3])
def test_the_smallest_of_as_many_critics_as_asked_for_makes_the_target(critics):
    agent = TD3(hidden=(8,), critics=critics, target_noise=0.0, gamma=0.5, critic_rate=1e-12, tau=1e-12)
    state = agent.init(jax.random.PRNGKey(0), 1, 1)
    assert len({float(m.weights[0][0, 0]) for m in state.target_critic.members}) == critics  # each begins from weights of its own
    batches = bandit(2)._replace(terminated=jnp.zeros((2, 64), bool))
    _, metrics = jax.jit(agent.update)(state, batches, jax.random.PRNGKey(1))
    x = jnp.concatenate([batches.next_x, jnp.tanh(state.target_actor(batches.next_x))], -1)
    y = batches.reward + 0.5 * jnp.stack([m(x)[..., 0] for m in state.target_critic.members]).min(0)
    errors = jnp.stack([m(jnp.concatenate([batches.x, batches.action], -1))[..., 0] for m in state.critic.params.members]) - y
    np.testing.assert_allclose(metrics["agent/critic_loss"], optax.losses.huber_loss(errors).mean((1, 2)).sum(), rtol=1e-4)


def test_the_squashed_gaussian_has_the_density_of_its_change_of_variables():
    out = jnp.tile(jnp.array([[0.3, -0.7, -0.5, 0.2]]), (5, 1))
    action, log_prob = squashed_gaussian(out, jax.random.PRNGKey(0))
    u = np.arctanh(np.asarray(action, np.float64))
    truth = stats.norm([0.3, -0.7], np.exp([-0.5, 0.2])).logpdf(u) - np.log(1 - np.tanh(u) ** 2)
    np.testing.assert_allclose(log_prob, truth.sum(-1), rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "options"), [("td3", {"layer_norm": True}), ("td3", {"huber": 0.0}), ("td3", {"critics": 1}), ("sac", {})]
)
def test_every_continuous_agent_finds_the_best_action_of_a_bandit(name, options):
    agent = agents.make(name, hidden=(32, 32), **options)
    state = agent.init(jax.random.PRNGKey(0), 1, 1)
    state, metrics = jax.jit(agent.update)(state, bandit(1500), jax.random.PRNGKey(2))
    x = jnp.linspace(-0.5, 0.5, 5)[:, None]
    np.testing.assert_allclose(agent.act(state, x), x, atol=0.12)
    assert all(np.isfinite(v) for v in metrics.values())


def test_the_action_cost_shrinks_a_clueless_actor():
    flat = bandit(600)._replace(reward=-jnp.ones((600, 64)))
    effort = {}
    for cost in (0.0, 5.0):
        agent = TD3(hidden=(16,), action_cost=cost)
        state, _ = jax.jit(agent.update)(agent.init(jax.random.PRNGKey(3), 1, 1), flat, jax.random.PRNGKey(4))
        effort[cost] = float(jnp.square(agent.act(state, jnp.linspace(-1, 1, 9)[:, None])).mean())
    assert effort[5.0] < 0.2 * effort[0.0]


def test_the_action_cost_weighs_the_same_for_a_reward_of_any_size():
    agent = TD3(hidden=(16,), action_cost=0.3, saturation=0.0)
    state = agent.init(jax.random.PRNGKey(3), 1, 1)
    member = state.critic.params.members[0]
    larger = eqx.tree_at(lambda m: (m.weights[-1], m.biases[-1]), member, (100 * member.weights[-1], 100 * member.biases[-1]))
    batch = jax.tree.map(lambda x: x[0], bandit(1))

    def gradient(critic):
        grads, _ = eqx.filter_grad(agent.actor_loss, has_aux=True)(state.actor.params, nn.Ensemble((critic,)), batch)
        return jnp.concatenate([g.ravel() for g in jax.tree.leaves(grads)])

    np.testing.assert_allclose(gradient(larger), 100 * gradient(member), rtol=1e-4, atol=1e-6)


def test_an_unknown_agent_or_option_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="td3"):
        agents.make("tdd3")
    with pytest.raises(UserError, match="tau"):
        agents.make("td3", taau=1)


def test_running_moments_equal_those_of_all_rows_seen():
    rng = np.random.default_rng(0)
    chunks = [rng.normal(5, 3, (n, 2)).astype(np.float32) for n in (7, 1, 40)]
    m = nn.moments(2)
    for c in chunks:
        padded = np.concatenate([c, np.full((3, 2), 1e3, np.float32)])
        m = nn.observe(m, jnp.asarray(padded), jnp.arange(len(padded)) < len(c))
    rows = np.concatenate(chunks)
    np.testing.assert_allclose(m.mean, rows.mean(0), rtol=1e-4)
    np.testing.assert_allclose(m.std(), rows.std(0), rtol=1e-4)


def test_updates_beyond_a_multiple_of_the_delay_are_not_dropped():
    td3 = agents.make("td3", hidden=(8,), policy_delay=2)
    before = td3.init(jax.random.PRNGKey(0), 2, 1)
    for n, actor_moves in ((1, 1), (4, 2), (5, 3)):
        rows = lambda d, n=n: jnp.ones((n, 4, d))  # noqa: E731
        batches = Batch(rows(2), rows(1), jnp.ones((n, 4)), rows(2), jnp.zeros((n, 4), bool))
        after, _ = td3.update(before, batches, jax.random.PRNGKey(1))
        assert int(after.critic.opt[0].count) == n
        assert int(after.actor.opt[0].count) == actor_moves


@pytest.mark.parametrize(
    ("name", "option", "value", "says"),
    [
        ("td3", "policy_delay", 0, "must be positive, not 0"),
        ("td3", "tau", -3.0, "must be positive, not -3"),
        ("td3", "critics", 0, "must be positive, not 0"),
        ("td3", "critics", 101, "must be at most 100, not 101"),
        ("sac", "tau", 1.5, "must be at most 1, not 1.5"),
        ("td3", "critic_rate", -1.0, "must be positive, not -1"),
        ("soft_q", "entropy", 0.0, "must be positive, not 0"),
        ("sac", "gamma", 1.0, "must be at least 0 and below 1, not 1"),
    ],
)
def test_options_out_of_range_are_refused(name, option, value, says):
    with pytest.raises(UserError, match=f"^option '{option}' of {name} {says}$"):
        agents.make(name, **{option: value})
    assert agents.make("sac", target_entropy=-2.0).target_entropy == -2.0


@pytest.mark.parametrize("name", agents.NAMES)
def test_an_unknown_activation_is_answered_with_the_nearest_before_anything_is_gathered(name):
    with pytest.raises(UserError, match=r"unknown activation of .* 'rely'.*relu"):
        agents.make(name, activation="rely")
