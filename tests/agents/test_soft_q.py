"""Soft Q-learning against exact soft value iteration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aimrl.agents import soft_q


def test_soft_value_is_between_the_best_action_and_its_entropy_bonus():
    q = jnp.array([1.0, -2.0, 0.5, 0.9])
    for entropy in (0.01, 0.3, 2.0):
        v = float(soft_q.soft_value(q, entropy))
        assert 1.0 <= v <= 1.0 + entropy * np.log(4)
    # α log Σ exp(q/α) equals the policy's value plus its entropy.
    pi = soft_q.policy(q, 0.3)
    assert float(soft_q.soft_value(q, 0.3)) == pytest.approx(float((pi * q).sum() - 0.3 * (pi * jnp.log(pi)).sum()), rel=1e-6)


def test_the_target_bootstraps_at_time_limits_and_not_at_goals():
    q_tm1, q_t = jnp.array([0.25, 4.0]), jnp.array([2.0, 2.0])
    error = lambda terminated: float(soft_q.td_error(q_tm1, jnp.asarray(0), jnp.asarray(1.5), jnp.asarray(terminated), q_t, 0.9, 0.2))  # noqa: E731
    assert error(True) == pytest.approx(1.5 - 0.25)
    assert error(False) == pytest.approx(1.5 + 0.9 * (2.0 + 0.2 * np.log(2)) - 0.25)


def test_no_gradient_flows_through_the_target():
    def squared(q_t):
        return soft_q.td_error(jnp.ones(2), jnp.asarray(0), jnp.asarray(1.0), jnp.asarray(False), q_t, 0.9, 0.2) ** 2

    np.testing.assert_array_equal(jax.grad(squared)(jnp.array([3.0, 1.0])), 0.0)


def exact_soft_q(rewards, nexts, terminal, gamma, entropy):
    q = np.zeros_like(rewards)
    for _ in range(2000):
        v = entropy * np.log(np.exp(q / entropy).sum(1))
        q = rewards + gamma * np.where(terminal, 0.0, v[nexts])
    return q


def test_learning_converges_to_exact_soft_value_iteration():
    # Three states on a line, two actions (left, right); the right end is terminal, and its reward isn't zero.
    nexts = np.array([[0, 1], [0, 2], [1, 2]])
    terminal = np.array([[False, False], [False, True], [False, True]])
    rewards = np.array([[-0.5, 0.3], [0.2, 1.7], [-0.1, 0.4]])
    config = soft_q.SoftQConfig(hidden=(32,), gamma=0.8, entropy=0.4, learning_rate=1e-2, target_rate=0.1)
    expected = exact_soft_q(rewards, nexts, terminal, 0.8, 0.4)
    inputs = jnp.array([[-0.4], [0.1], [0.5]])
    s, a = (jnp.asarray(i.ravel()) for i in np.indices((3, 2)))
    batch = soft_q.Step(s, a, jnp.asarray(rewards.ravel(), jnp.float32), jnp.asarray(nexts.ravel()), jnp.asarray(terminal.ravel()))
    state = soft_q.create(jax.random.key(0), 1, 2, config)
    state = jax.jit(lambda state: jax.lax.fori_loop(0, 4000, lambda _, s: soft_q.update(s, inputs, batch, config)[0], state))(state)
    np.testing.assert_allclose(state.online.params(inputs), expected, atol=0.03)
    np.testing.assert_allclose(soft_q.action_probabilities(state, inputs, config), soft_q.policy(jnp.asarray(expected), 0.4), atol=0.03)
    # The wrong variant, without the entropy bonus, is told apart.
    assert np.abs(expected - exact_soft_q(rewards, nexts, terminal, 0.8, 1e-2)).max() > 0.2


def test_the_target_network_follows_at_its_rate():
    config = soft_q.SoftQConfig(hidden=(8,), target_rate=0.25)
    state = soft_q.create(jax.random.key(1), 2, 4, config)
    inputs = jnp.array([[0.3, -0.2], [0.1, 0.4]])
    batch = soft_q.Step(jnp.array([0]), jnp.array([3]), jnp.array([2.0]), jnp.array([1]), jnp.array([False]))
    new, metrics = soft_q.update(state, inputs, batch, config)
    for before, online, after in zip(state.target.weights, new.online.params.weights, new.target.weights):
        np.testing.assert_allclose(after, before + 0.25 * (online - before), rtol=1e-6)
    assert metrics["soft_q/loss"] > 0
