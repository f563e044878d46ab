"""Networks, optimiser steps and running moments: written once, used by every reward and agent."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from aimrl import programs  # noqa: F401  whoever makes networks compiles: with the cache on disk
from aimrl.types import Precision

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": jax.nn.relu, "tanh": jnp.tanh, "swish": jax.nn.swish, "elu": jax.nn.elu}


class MLP(eqx.Module):
    """A plain multi-layer perceptron on batches: weights are [in, out] so that a layer is one matrix product."""

    weights: tuple[Float[Array, "i o"], ...]
    biases: tuple[Float[Array, " o"], ...]
    gains: tuple[Float[Array, " o"], ...]  # layer normalisation after each hidden layer; empty when off
    activation: str = eqx.field(static=True)
    precision: Precision = eqx.field(default="float32", static=True)  # of the products in wide layers

    def __call__(self, x: Float[Array, "*batch i"]) -> Float[Array, "*batch o"]:
        act = ACTIVATIONS[self.activation]
        for i, (w, b) in enumerate(zip(self.weights[:-1], self.biases[:-1])):
            x = (_rounded_product(x, w) if self.precision == "bfloat16" and w.shape[0] >= _WIDE else x @ w) + b
            if self.gains:
                x = _layer_norm(x) * self.gains[i]
            x = act(x)
        return x @ self.weights[-1] + self.biases[-1]


_WIDE = 128  # inputs of a layer whose time is that of its product; narrower ones gain nothing


@jax.custom_vjp
def _rounded_product(x: Float[Array, "*batch i"], w: Float[Array, "i o"]) -> Float[Array, "*batch o"]:
    """x @ w of numbers rounded to bfloat16, summed in float32; its gradients' products are rounded the same way."""
    return _forward(x, w)[0]


def _forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
    x, w = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
    return jnp.matmul(x, w, preferred_element_type=jnp.float32), (x, w)


def _backward(factors: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    (x, w), g = factors, g.astype(jnp.bfloat16)
    rows = lambda a: a.reshape(-1, a.shape[-1])  # noqa: E731
    dx = jnp.matmul(g, _laid_out_transposed(w), preferred_element_type=jnp.float32)
    return dx, jnp.matmul(_laid_out_transposed(rows(x)), rows(g), preferred_element_type=jnp.float32)


def _laid_out_transposed(a: Float[Array, "n m"]) -> Float[Array, "m n"]:
    """aᵀ in memory: of products in bfloat16, XLA on CPU computes in float32 those that read a factor against its layout.

    The barrier keeps the transposition apart from the product; the reshaping gives the result the usual layout before XLA looks.
    """
    return jax.lax.optimization_barrier(a.T.reshape(-1)).reshape(a.shape[::-1])


_rounded_product.defvjp(_forward, _backward)


def in_precision(tree: PyTree, precision: Precision) -> PyTree:
    """The same networks (and their optimisers' moments, which have their shape) multiplying in this precision."""
    set_one = lambda net: dataclasses.replace(net, precision=precision) if isinstance(net, MLP) else net  # noqa: E731
    return jax.tree.map(set_one, tree, is_leaf=lambda x: isinstance(x, MLP))


def _layer_norm(x: Float[Array, "*batch o"]) -> Float[Array, "*batch o"]:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)


def mlp(key: PRNGKeyArray, sizes: Sequence[int], activation: str = "relu", layer_norm: bool = False, last_scale: float = 1.0) -> MLP:
    """An MLP with PyTorch's default initialisation (uniform ±1/√fan_in), which the paper's code base assumes."""
    layers = list(itertools.pairwise(sizes))
    ends = list(itertools.accumulate((n_in + 1) * n_out for n_in, n_out in layers))
    drawn = jax.random.uniform(key, (ends[-1],), minval=-1.0, maxval=1.0)  # at once: each call is a program of its own to compile
    weights, biases = [], []
    for i, ((n_in, n_out), part) in enumerate(zip(layers, jnp.split(drawn, ends[:-1]))):
        bound = n_in**-0.5 * (last_scale if i == len(layers) - 1 else 1.0)
        layer = bound * part.reshape(n_in + 1, n_out)
        weights.append(layer[:-1])
        biases.append(layer[-1])
    gains = tuple(jnp.ones((n,)) for n in sizes[1:-1]) if layer_norm else ()
    return MLP(tuple(weights), tuple(biases), gains, activation)


class Ensemble(eqx.Module):
    """Independent copies of a network on the same input (twin critics); their outputs are stacked in front."""

    members: tuple[MLP, ...]

    def __call__(self, x: Float[Array, "*batch i"]) -> Float[Array, "members *batch"]:
        # Separate products, not one batched product: XLA's CPU kernels are faster on plain matrices.
        return jnp.stack([m(x)[..., 0] for m in self.members])


def polyak(target: PyTree, online: PyTree, rate: Float[Array, ""] | float) -> PyTree:
    """target ← (1 − rate) · target + rate · online."""
    return jax.tree.map(lambda t, o: t + rate * (o - t), target, online)


class Learner(eqx.Module):
    """Parameters with their optimiser's state."""

    params: Any
    opt: Any


def learner(params: PyTree, optimiser: optax.GradientTransformation) -> Learner:
    return Learner(params, optimiser.init(eqx.filter(params, eqx.is_array)))


def descend(state: Learner, grads: PyTree, optimiser: optax.GradientTransformation) -> Learner:
    """One optimiser step."""
    updates, opt = optimiser.update(grads, state.opt, eqx.filter(state.params, eqx.is_array))
    return Learner(eqx.apply_updates(state.params, updates), opt)


class Moments(eqx.Module):
    """Running mean and variance of features (Chan's parallel update), for standardising inputs."""

    count: Float[Array, ""]
    mean: Float[Array, " d"]
    m2: Float[Array, " d"]

    def std(self, floor: float = 1e-2) -> Float[Array, " d"]:
        """Standard deviation with a floor, so that constant features don't explode; 1 before any data."""
        var = self.m2 / jnp.maximum(self.count, 1.0)
        return jnp.where(self.count > 1, jnp.maximum(jnp.sqrt(var), floor), 1.0)

    def normalise(self, x: Float[Array, "*batch d"], clip: float = 5.0) -> Float[Array, "*batch d"]:
        return jnp.clip((x - self.mean) / self.std(), -clip, clip)


def moments(dim: int) -> Moments:
    return Moments(jnp.zeros(()), jnp.zeros((dim,)), jnp.zeros((dim,)))


def observe(m: Moments, x: Float[Array, "n d"], valid: Bool[Array, " n"] | None = None) -> Moments:
    """Fold a batch of rows (only the valid ones) into running moments."""
    w = jnp.ones(x.shape[0]) if valid is None else valid.astype(x.dtype)
    n = w.sum()
    safe = jnp.maximum(n, 1.0)
    mean = (w[:, None] * x).sum(0) / safe
    m2 = (w[:, None] * jnp.square(x - mean)).sum(0)
    total = jnp.maximum(m.count + n, 1.0)
    delta = mean - m.mean
    return Moments(m.count + n, m.mean + delta * n / total, m.m2 + m2 + jnp.square(delta) * m.count * n / total)
