"""What might still be gained in an update: how fast 256 × 256 matrices are multiplied here, in the ways an update could ask for.

    python benchmarks/products.py > results/speed/products.json

Microseconds of a product of XLA's, by its own choice of kernels (`default`) and `without_ynnpack`: `plain`, `transposed` (as the gradient
of a layer's weights wants it) and `transposed_first` (the factor laid out anew before), and milliseconds of a whole `update` of AIM + HER +
TD3, which take turns. GFLOP/s of two chains of products, like those of the twin critics:
in `one_program`, on `two_devices` of a core each, and there with an exchange of 256 numbers after each product
(`two_devices_exchanging`). GFLOP/s of NumPy's products by how many different triples of matrices take turns (`blas_gflops`): an update's
factors come from as far away as those of dozens. Wants otherwise idle cores; `taskset -c 0` measures one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from aimrl.types import cores, processor

N, SIZE = 200, 256  # products in a chain, and their width


def _seconds(f: Callable[..., Any], *args: Any) -> float:
    """Of one product: the best of twenty chains, after one that warms up."""
    times = []
    for _ in range(21):
        began = time.perf_counter()
        jax.block_until_ready(f(*args))
        times.append(time.perf_counter() - began)
    return min(times[1:]) / N


def _one(product: Callable[..., Any], options: dict[str, Any]) -> float:
    """Microseconds of a product whose left factor changes each time, so that nothing is computed once for all."""

    def chain(x: Any, g: Any) -> Any:
        def body(x: Any, _: None) -> Any:
            d = product(x, g)
            return x.at[0, 0].set(1e-3 * (d[0, 0] + d[-1, -1])), None

        return jax.lax.scan(body, x, None, length=N)[0]

    x, g = jax.random.normal(jax.random.PRNGKey(0), (2, SIZE, SIZE))
    return round(1e6 * _seconds(jax.jit(chain, compiler_options=options), x, g), 1)


def _two(devices: int, exchange: bool = False) -> float:
    """GFLOP/s of two independent chains."""
    x, w = jax.random.normal(jax.random.PRNGKey(0), (2, 2, SIZE, SIZE))
    w = w / SIZE**0.5

    def step(x: Any, w: Any) -> Any:
        y = x @ w
        return y.at[0].set(jax.lax.pmin(y[0], "core")) if exchange else y

    def chain(xs: Any, ws: Any) -> Any:
        body = lambda xs, _: ([step(x, w) for x, w in zip(xs, ws)], None)  # noqa: E731
        return jnp.stack(jax.lax.scan(body, list(xs), None, length=N)[0])

    mesh = Mesh(np.array(jax.devices()[:devices]), ("core",))
    run = jax.shard_map(chain, mesh=mesh, in_specs=P("core"), out_specs=P("core"), check_vma=False)
    x, w = jax.device_put((x, w), NamedSharding(mesh, P("core")))
    options = {"xla_cpu_multi_thread_eigen": devices == 1}  # a device is a core
    return round(4 * SIZE**3 / _seconds(jax.jit(run, compiler_options=options), x, w) / 1e9, 1)


def _updates(kinds: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Milliseconds of an update of `aimrl bench`, compiled with each of these options: medians of turns."""
    from aimrl import bench, programs

    rounds = []
    for options in kinds.values():
        programs.quickly_compiled = lambda precision, options=options: {"xla_backend_optimization_level": 1} | options
        rounds.append(bench._rounds(reward="aim"))
        rounds[-1]()
    turns = [[bench._seconds(f) for f in rounds] for _ in range(41)]
    return {kind: round(1e3 * float(np.median(times)) / bench._UPDATES, 2) for kind, times in zip(kinds, zip(*turns))}


def _blas(triples: int) -> float:
    """GFLOP/s of the best of 30 bursts of 64 products, each of the next of so many triples of matrices."""
    a, b = np.random.default_rng(0).standard_normal((2, triples, SIZE, SIZE), np.float32)
    c, times = np.empty_like(a), []
    for _ in range(31):
        began = time.perf_counter()
        for i in range(64):
            np.matmul(a[i % triples], b[i % triples], out=c[i % triples])
        times.append(time.perf_counter() - began)
    return round(64 * 2 * SIZE**3 / min(times[1:]) / 1e9, 1)


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 2)
    out: dict[str, Any] = {"jax": jax.__version__, "numpy": np.__version__, "cores": cores(), "processor": processor().get("model name")}
    kinds: dict[str, dict[str, Any]] = {"default": {}, "without_ynnpack": {"xla_cpu_experimental_ynn_fusion_type": ""}}
    updates = _updates(kinds)
    for name, options in kinds.items():
        out[name] = {
            "plain": _one(lambda x, g: x @ g, options),
            "transposed": _one(lambda x, g: x.T @ g, options),
            "transposed_first": _one(lambda x, g: jax.lax.optimization_barrier(x.T) @ g, options),
            "update": updates[name],
        }
    out["blas_gflops"] = {n: _blas(n) for n in (1, 4, 16, 64)}
    out |= {"one_program": _two(1), "two_devices": _two(2), "two_devices_exchanging": _two(2, exchange=True)}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
