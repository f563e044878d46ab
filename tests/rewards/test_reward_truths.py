"""Each baseline against what it must equal by derivation."""

import dataclasses
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from reward_batches import SPEC, pairs_batch, random_batch, repeat_update

from aimrl import nn
from aimrl.rewards.common import by_round, scaled
from aimrl.rewards.dense import Dense
from aimrl.rewards.disco import Disco
from aimrl.rewards.fairl import FAIRL
from aimrl.rewards.gail import GAIL
from aimrl.rewards.mc import MC
from aimrl.rewards.rnd import RND
from aimrl.rewards.smirl import SMiRL
from aimrl.rewards.wgan import WGAN
from aimrl.types import GoalSpec

KEY = jax.random.key(0)


def test_dense_divides_by_the_largest_distance_ever_seen():
    batches = random_batch(0, (3, 10))
    distance = np.linalg.norm(np.asarray(batches.next_achieved - batches.goal), axis=-1)
    reward = Dense(normalise=True)
    state, _ = reward.update(reward.init(KEY, SPEC), batches, KEY)
    nearer = batches._replace(goal=batches.next_achieved)
    state, _ = reward.update(state, nearer, KEY)  # a round of small distances doesn't forget the largest
    np.testing.assert_allclose(reward.reward(state, batches), -distance / distance.max(), rtol=1e-5)


def chain_round(length, features):
    """Every ordered pair of one walk down a chain, a step at a time."""
    pairs = np.array([(i, j) for i, j in itertools.product(range(length), repeat=2) if j > i])
    a, after_a, b = features[pairs[:, 0]], features[pairs[:, 0] + 1], features[pairs[:, 1]]
    return pairs, pairs_batch(a, after_a, b, future=b, future_steps=pairs[:, 1] - pairs[:, 0])


def test_mc_on_a_chain_equals_the_true_step_count_and_one_direction_knows_nothing_of_the_way_back():
    features = np.linspace(-0.5, 0.5, 10)[:, None] + 0.1
    pairs, batches = chain_round(10, features)
    spec = GoalSpec(1, 1, 1, horizon=25)
    steps = {}
    for both in (True, False):
        reward = MC(both_directions=both, learning_rate=3e-3, unit="step")
        state, _ = repeat_update(reward, reward.init(KEY, spec), batches, 2000)
        there = reward.steps(state, batches.achieved[0], batches.future[0])
        np.testing.assert_allclose(there, pairs[:, 1] - pairs[:, 0], atol=0.3)
        left = pairs[:, 1] - pairs[:, 0] - 1  # from s′; a goal met at s′ is no pair of the regression
        np.testing.assert_allclose(reward.reward(state, batches)[0][left > 0], -left[left > 0], atol=0.3)
        steps[both] = reward.steps(state, batches.future[0], batches.achieved[0])
    np.testing.assert_allclose(steps[True], pairs[:, 1] - pairs[:, 0], atol=0.3)
    assert np.abs(steps[False] - (pairs[:, 1] - pairs[:, 0])).max() > 2


def test_mc_learns_the_mean_of_the_behaviour_not_the_shortest_way():
    one_hot = np.eye(3)
    a, after_a, b = one_hot[[0, 0]], one_hot[[1, 1]], one_hot[[2, 2]]
    reward = MC(hidden=(), learning_rate=1e-2)
    batches = pairs_batch(a, after_a, b, future=b, future_steps=[2, 6])
    state, _ = repeat_update(reward, reward.init(KEY, GoalSpec(3, 3, 1, horizon=10)), batches, 1500)
    np.testing.assert_allclose(reward.steps(state, batches.achieved, batches.future), 4.0, atol=1e-2)
    np.testing.assert_allclose(reward.reward(state, pairs_batch(b, a, b)), -0.4, atol=1e-3)  # at s′ = a, in units of the horizon


@pytest.mark.parametrize("floor", [1e-2, 0.5])
def test_smirl_equals_the_gaussian_log_density_of_the_episode_so_far(floor):
    batch = random_batch(7, (40,))
    std = np.sqrt(np.maximum(np.asarray(batch.prefix_var), floor))
    truth = scipy.stats.norm.logpdf(batch.next_achieved, batch.prefix_mean, std).sum(-1)
    reward = SMiRL(variance_floor=floor)
    np.testing.assert_allclose(reward.reward(reward.init(KEY, SPEC), batch), truth, rtol=1e-4, atol=1e-4)
    unfloored = scipy.stats.norm.logpdf(batch.next_achieved, batch.prefix_mean, np.sqrt(batch.prefix_var)).sum(-1)
    binds = (np.asarray(batch.prefix_var) < floor).any(-1)
    assert binds.any()
    np.testing.assert_array_equal(np.abs(unfloored - truth) > 1e-6, binds)  # the floor matters where it binds, and only there
    stuck = batch._replace(prefix_mean=batch.next_achieved, prefix_var=jnp.zeros((40, 3)))  # an agent that never moved
    np.testing.assert_allclose(reward.reward(reward.init(KEY, SPEC), stuck), -1.5 * math.log(2 * math.pi * floor), rtol=1e-5)


def test_disco_is_the_log_density_of_a_normal_around_the_goal_and_dense_is_not():
    batch = random_batch(8, (30,))
    x = np.asarray(batch.next_achieved - batch.goal, np.float64)
    full = [[0.3, 0.1, 0.0], [0.1, 0.2, 0.05], [0.0, 0.05, 0.4]]
    for covariance, sigma in [(0.2, 0.2 * np.eye(3)), ([0.1, 0.2, 0.3], np.diag([0.1, 0.2, 0.3])), (np.array(full), full)]:
        truth = scipy.stats.multivariate_normal(np.zeros(3), sigma).logpdf(x)
        reward = Disco(covariance=covariance, constant=True)
        np.testing.assert_allclose(reward.reward(reward.init(KEY, SPEC), batch), truth, rtol=1e-4, atol=1e-4)
        without = Disco(covariance=covariance)
        shift = truth - np.asarray(without.reward(without.init(KEY, SPEC), batch))
        np.testing.assert_allclose(shift, shift[0], atol=1e-3)
        assert (np.asarray(without.reward(without.init(KEY, SPEC), batch)) <= 0).all()
    squared, norm = Disco(), Dense()
    ratio = squared.reward(squared.init(KEY, SPEC), batch) / norm.reward(norm.init(KEY, SPEC), batch)
    np.testing.assert_allclose(ratio, np.linalg.norm(x, axis=-1) / 2, rtol=1e-4)  # squared, not the distance itself


def test_rnd_error_falls_with_visits_and_stays_where_nobody_went():
    rng = np.random.default_rng(0)
    often, never = rng.normal(0.3, 0.05, (64, 2)), rng.normal(-0.4, 0.05, (64, 2))
    reward = RND(normalise="none", warmup=0)
    batches = pairs_batch(never, often, never)  # the first state and the goal aren't visits

    def value(state, x):
        return float(reward.reward(state, pairs_batch(often + never - x, x, x)).mean())

    state = reward.init(KEY, GoalSpec(2, 2, 1, 50))
    errors = [value(state, often)]
    for _ in range(3):
        state, _ = repeat_update(reward, state, batches, 100)
        errors.append(value(state, often))
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < errors[0] / 100
    assert value(state, never) > 20 * errors[3]


def test_rnd_pays_nothing_until_the_warm_up_is_over_and_divides_by_the_running_deviation():
    batches = random_batch(9, (1, 32))
    reward = RND(warmup=99)
    state, _ = repeat_update(reward, reward.init(KEY, SPEC), batches, 98)
    assert (reward.reward(state, batches) == 0).all()
    state, _ = repeat_update(reward, state, batches, 1)
    value = reward.reward(state, batches)
    assert (value > 0).all()
    plain = RND(warmup=99, normalise="none").reward(state, batches)
    np.testing.assert_allclose(value, plain / float(state.stats.std(1e-8)[0]), rtol=1e-5)
    assert int(state.updates) == 99


P, Q = np.array([8, 2, 6, 4]) / 20, np.array([2, 5, 6, 7]) / 20  # densities of hindsight and of asked-for goals


def discriminator_round():
    """Goals in exactly these proportions, as one-hot features: a network without hidden layers is a table over goals."""

    def draws(p):
        return np.eye(4)[np.repeat(np.arange(4), np.round(20 * p).astype(int))]

    return pairs_batch(draws(P), np.zeros((20, 4)), draws(Q), future=draws(P), desired=draws(Q))


def every_goal():
    """Arrivals at the state of `discriminator_round` from another one, for each goal."""
    return pairs_batch(np.eye(4), np.zeros((4, 4)), np.eye(4))


def optimum(reward):
    state, _ = repeat_update(reward, reward.init(KEY, GoalSpec(4, 4, 1, 50)), discriminator_round(), 2500)
    return state, np.asarray(reward.logit(state, jnp.zeros((4, 4)), jnp.eye(4)))


def test_gail_at_its_optimum_equals_the_density_ratio_and_smoothing_or_penalty_moves_it():
    table = {"hidden": (), "learning_rate": 1e-2}
    reward = GAIL(**table, smoothing=0.0, gradient_weight=0.0)
    state, h = optimum(reward)
    np.testing.assert_allclose(h, np.log(P / Q), atol=2e-3)
    value = reward.reward(state, every_goal())[0]
    np.testing.assert_allclose(value, np.log(P / (P + Q)), atol=2e-3)  # log D
    _, smooth = optimum(GAIL(**table, smoothing=0.1, gradient_weight=0.0))
    np.testing.assert_allclose(smooth, np.log((0.9 * P + 0.1 * Q) / (0.9 * Q + 0.1 * P)), atol=2e-3)
    assert np.abs(smooth - np.log(P / Q)).max() > 0.2
    _, penalised = optimum(GAIL(**table, smoothing=0.0, gradient_weight=5.0))
    assert np.abs(penalised - np.log(P / Q)).max() > 0.2


def test_gail_sees_the_pair_of_state_and_goal_not_the_goal_alone():
    # Both goals are asked for and found equally often; only together with the state do they tell hindsight from the rest.
    state = np.array([[0.0], [1.0], [0.0], [1.0]])
    found, asked = state, np.array([[0.0], [0.0], [1.0], [1.0]])
    reward = GAIL(smoothing=0.0, gradient_weight=0.0, learning_rate=1e-2)
    batches = pairs_batch(1 - state, state, asked, future=found, desired=asked)
    learned, _ = repeat_update(reward, reward.init(KEY, GoalSpec(1, 1, 1, 50)), batches, 1500)
    learned, _ = repeat_update(dataclasses.replace(reward, learning_rate=3e-4), learned, batches, 1500)  # Adam's last steps were too long
    state = jnp.asarray(state, jnp.float32)
    ratio = jax.nn.sigmoid(reward.logit(learned, state, state))
    np.testing.assert_allclose(ratio, 2 / 3, atol=0.02)  # density ½ against ¼
    assert (reward.logit(learned, state, 1 - state) < -3).all()  # never found


def test_fairl_has_the_sign_of_the_forward_kl_and_its_negative_form_never_pays():
    reward, negative = FAIRL(hidden=(), learning_rate=1e-2, smoothing=0.0, gradient_weight=0.0), FAIRL(negative=True)
    state, _ = optimum(reward)
    value = np.asarray(reward.reward(state, every_goal())[0])
    kl = (P * np.log(P / Q)).sum()
    np.testing.assert_allclose((Q * value).sum(), -kl, atol=5e-3)  # the wrong sign h eʰ would give +KL
    h = jnp.linspace(-15, 15, 3001)
    r, r_negative = reward.from_logit(h), negative.from_logit(h)
    assert (jnp.sign(r) == -jnp.sign(h)).all()  # it pays where the agent is too often, which is all around a goal it hovers beside
    np.testing.assert_allclose(r.max(), 1 / math.e, rtol=1e-5)
    np.testing.assert_allclose(h[jnp.argmax(r)], -1.0, atol=0.02)
    assert (r_negative <= 1e-6).all()
    np.testing.assert_allclose(r_negative, r - 1 / math.e, rtol=1e-5, atol=1e-6)
    assert reward.from_logit(jnp.float32(50.0)) == reward.from_logit(jnp.float32(10.0))  # clipped
    assert FAIRL(clip=1.0).from_logit(jnp.float32(50.0)) == pytest.approx(-math.e)


def test_wgan_estimates_the_euclidean_distance_and_never_looks_at_transitions():
    rng = np.random.default_rng(0)
    x, goal = rng.uniform(-0.5, 0.1, (128, 1)), np.full((128, 1), 0.4)
    reward = WGAN(target_std=0.0, learning_rate=3e-3)
    batches = pairs_batch(x[::-1], x, goal)
    key = jax.random.key(1)  # f begins by rising towards the goal; on a line, one that begins by falling is held at a slope of −1
    state, metrics = repeat_update(reward, reward.init(key, GoalSpec(1, 1, 1, 50)), batches, 1500)
    assert metrics["wgan/w1"] == pytest.approx(np.abs(x - goal).mean(), rel=0.1)
    slope = jax.vmap(jax.grad(lambda z: reward.potential(state, z, jnp.array([0.4]))))(jnp.linspace(-0.5, 0.4, 20)[:, None])
    np.testing.assert_allclose(slope, 1.0, atol=0.2)
    both = np.concatenate([x, goal])
    paid = (x - both.max() - 0.1) / (2 * (both.std() + 0.1))  # f rises by 1 a unit and its largest value is at the goal
    np.testing.assert_allclose(reward.reward(state, batches)[0], paid[:, 0], atol=0.1)
    jumps = batches._replace(achieved=batches.achieved[:, ::-1])  # another world with the same states: the same potential
    other, _ = repeat_update(reward, reward.init(key, GoalSpec(1, 1, 1, 50)), jumps, 20)
    same, _ = repeat_update(reward, reward.init(key, GoalSpec(1, 1, 1, 50)), batches, 20)
    assert eqx.tree_equal(other.potential.params, same.potential.params)


def test_wgan_pays_the_potential_below_its_largest_value_over_the_spread_of_the_last_round():
    batch = random_batch(1, (20,))
    state = WGAN().init(KEY, SPEC)
    state = eqx.tree_at(lambda s: (s.f_max, s.f_min, s.f_std), state, (jnp.float32(0.8), jnp.float32(-0.4), jnp.float32(0.3)))
    truth = WGAN().potential(state, batch.next_achieved, batch.goal) - 0.9
    for normalise, divisor in {"none": 1.0, "range": 1.4, "std": 0.8}.items():
        reward = WGAN(normalise=normalise, margin=0.1)  # pyright: ignore[reportArgumentType]
        np.testing.assert_allclose(reward.reward(state, batch), truth / divisor, rtol=1e-5)


def test_the_rounding_errors_of_a_constant_are_not_taken_for_its_spread():
    values = 7.0 + 1e-6 * jnp.arange(64.0)
    stats = nn.observe(nn.moments(1), values[:, None])
    assert float(jnp.abs(scaled(values, stats, "std")).max()) < 200
    np.testing.assert_allclose(scaled(values, stats, "none"), values)


@pytest.mark.parametrize("how", ["range", "std"])
def test_a_flat_potential_without_margin_pays_finite_rewards(how):
    zero = jnp.zeros(())
    assert np.isfinite(by_round(jnp.ones(4), zero, zero, zero, how, 0.0)).all()
