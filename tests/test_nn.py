"""Programs that are compiled while something else goes on."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aimrl import nn


def test_a_program_compiled_early_is_traced_once_and_not_by_the_caller():
    traced = []

    def double(x):
        traced.append(threading.current_thread())
        return {"twice": 2 * x["x"]}

    early = nn.compile_early(jax.jit(double), {"x": jnp.arange(3.0)})
    np.testing.assert_array_equal(early({"x": jnp.array([1.0, 2.0, 5.0])})["twice"], [2, 4, 10])
    np.testing.assert_array_equal(early({"x": jnp.array([0.0, 0.0, 1.0])})["twice"], [0, 0, 2])
    assert len(traced) == 1
    assert traced[0] is not threading.current_thread()


def test_its_failure_is_the_first_callers():
    def wrong(x):
        raise ValueError("not today")

    early = nn.compile_early(jax.jit(wrong), jnp.zeros(2))
    with pytest.raises(ValueError, match="not today"):
        early(jnp.zeros(2))


def test_a_donated_argument_is_given_up():
    early, x = nn.compile_early(jax.jit(lambda x: x + 1, donate_argnums=0), jnp.zeros(4)), jnp.ones(4)
    np.testing.assert_array_equal(early(x), 2 * np.ones(4))
    assert x.is_deleted()
