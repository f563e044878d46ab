"""Networks; products in bfloat16."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aimrl import nn, runs, types
from aimrl.cli import training
from aimrl.config import make_config
from aimrl.types import UserError


def _network_and_gradients(precision: str, activation: str):
    net = nn.in_precision(nn.mlp(jax.random.PRNGKey(0), (8, 256, 128, 1), activation), precision)
    x = jax.random.normal(jax.random.PRNGKey(1), (3, 16, 8))
    grads, dx = jax.grad(lambda net, x: jnp.sin(net(x)).sum(), argnums=(0, 1))(net, x)
    return net, x, net(x), (*grads.weights, dx)


def test_a_network_in_bfloat16_rounds_the_factors_of_its_wide_products_and_sums_in_float32():
    net, x, y, _ = _network_and_gradients("bfloat16", "relu")
    rounded = lambda a: np.asarray(jnp.asarray(a, jnp.bfloat16), np.float64)  # noqa: E731
    h = np.maximum(np.asarray(x @ net.weights[0] + net.biases[0]), 0.0)
    h = np.maximum(rounded(h) @ rounded(net.weights[1]) + net.biases[1], 0.0)
    truth = rounded(h) @ rounded(net.weights[2]) + net.biases[2]
    exact_last = h @ np.asarray(net.weights[2], np.float64) + net.biases[2]
    np.testing.assert_allclose(y, exact_last, rtol=1e-4, atol=1e-5)  # the last layer answers in full
    assert np.abs(y - truth).max() > 1e-4


def test_its_gradients_are_those_of_float32_but_for_the_rounding():
    *_, y, rounded = _network_and_gradients("bfloat16", "tanh")
    *_, z, full = _network_and_gradients("float32", "tanh")
    assert 0 < np.abs(y - z).max() < 0.02
    for a, b in zip(rounded, full, strict=True):
        assert 0 < np.linalg.norm(a - b) < 0.01 * np.linalg.norm(b)


def _factors_of_wide_products() -> list[str]:
    """The types of the factors of all wide products in two layers' gradients, as XLA computes them."""
    net = nn.in_precision(nn.mlp(jax.random.PRNGKey(0), (256, 256, 256, 1)), "bfloat16")
    program = jax.jit(jax.grad(lambda net, x: net(x).sum())).lower(net, jnp.ones((64, 256))).compile().as_text()
    found = []
    for block in program.split("\n\n"):  # a computation each: names are its own
        types_of = dict(re.findall(r"(%[\w.\-]+) = (\w+)\[", block))
        found += [types_of[name] for pair in re.findall(r"\[\d\d+,\d\d+\]\S* dot\((%\S+), (%[^)]+)\)", block) for name in pair]
    return found


def test_no_product_in_bfloat16_is_computed_in_float32(monkeypatch):
    """Once those of the gradients were: a transposed factor has another layout, and XLA then widens both; a run in bfloat16 was slower
    than one in float32 on a processor whose instructions for it are the fastest."""
    assert _factors_of_wide_products() == 2 * ["bf16"] * 5  # two layers forwards, two of weights, one of inputs
    monkeypatch.setattr(nn, "_laid_out_transposed", lambda a: a.T)
    assert sorted(_factors_of_wide_products()) == 2 * ["bf16"] * 2 + 2 * ["f32"] * 3


def test_the_moments_of_the_optimiser_keep_the_shape_of_their_network():
    import optax

    optimiser = optax.adam(1e-3)
    state = nn.in_precision(nn.learner(nn.mlp(jax.random.PRNGKey(0), (4, 256, 1)), optimiser), "bfloat16")
    stepped = nn.descend(state, jax.tree.map(jnp.ones_like, state.params), optimiser)
    assert jax.tree.structure(stepped) == jax.tree.structure(state)
    assert stepped.params.precision == "bfloat16"


@pytest.mark.parametrize(("able", "precision"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_settled_by_the_processor_when_a_run_begins(monkeypatch, tmp_path, able, precision):
    monkeypatch.setattr("aimrl.config.multiplies_bfloat16", lambda: able)
    assert runs.settled(make_config("FetchPush-v4"), tmp_path).precision == precision
    assert runs.settled(make_config("FetchPush-v4", precision="float32"), tmp_path).precision == "float32"
    typed, _ = training.parse(["FetchPush-v4", "--preset", "paper", "--precision", "auto"])
    assert runs.settled(typed, tmp_path).precision == precision
    runs.prepare(tmp_path / "run", typed, {}, resume=False)
    assert runs.load_config(tmp_path / "run").precision == precision


def test_the_processor_is_asked_by_its_flags(monkeypatch):
    import io

    for flags, able in (("fpu avx512_bf16 sse", True), ("fpu amx_bf16", True), ("fpu avx512f", False)):
        monkeypatch.setattr("builtins.open", lambda *_, flags=flags: io.StringIO(f"processor: 0\nflags\t\t: {flags}\n"))
        assert types.multiplies_bfloat16() is able
        assert types.processor() == {"processor": "0", "flags": flags}
    two = "model name: one\n\nmodel name: other\n"
    monkeypatch.setattr("builtins.open", lambda *_: io.StringIO(two))
    assert types.processor() == {"model name": "one"}
    monkeypatch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    assert types.multiplies_bfloat16() is False


def test_an_unknown_precision_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="unknown precision 'float23': did you mean float32"):
        make_config("FetchPush-v4", precision="float23")
