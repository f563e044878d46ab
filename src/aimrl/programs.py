"""Compiled programs: the compiler's options, getting one ready in the background, and keeping what was traced for the next process."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import hashlib
import json
import os
import platform
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jaxtyping import PyTree

from aimrl.types import Precision, cores


def cache_folder() -> Path:
    """Where this user's programs live that need not be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aimrl"


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, so that a second run doesn't compile again; in JAX's own folder where one is set."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)  # small programs add up


use_compilation_cache()  # everything that compiles imports this file


@functools.cache
def quickly_compiled(precision: Precision = "float32") -> dict[str, Any]:
    """Compiler options for programs whose time is that of their matrix products.

    No optimiser of loops touches those, so fewer passes are a quarter less to wait for. XLA's newer kernels (YNNPACK) share a product of
    256 × 256 float32 matrices badly between cores: without them an update takes 7 % less time on two cores, and 6 % more on one.
    """
    if jax.default_backend() != "cpu":
        return {}
    quick = {"xla_backend_optimization_level": 1}
    shared = quick | {"xla_cpu_experimental_ynn_fusion_type": ""}
    return shared if precision == "float32" and cores() > 1 and _known(shared) else quick


def _known(options: dict[str, Any]) -> bool:
    """Has this XLA these options? Experimental ones come and go."""
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


# --- ready early -------------------------------------------------------------------------------------------------------------------------

Step = Callable[..., tuple[Any, dict[str, Any]]]  # (state, …) → the next state, which has the same structure, and numbers by name


def compile_early(f: Step, *args: PyTree, options: dict[str, Any] | None = None, key: str | None = None) -> Step:
    """f for arguments like these, being compiled in the background; the first call waits for what is left of that. The state is donated.

    Under a `key`, what was traced is kept on disk, and neither this process nor the next traces it again.
    """
    shapes = jax.eval_shape(lambda *x: x, *args)
    leaves, structure = jax.tree.flatten(shapes)
    of_state = jax.tree.structure(shapes[0])
    n = of_state.num_leaves
    names: list[str] = []

    def flat(*x: Any) -> list[Any]:
        state, numbers = f(*jax.tree.unflatten(structure, x))
        names[:] = numbers
        return [*jax.tree.leaves(state), *numbers.values()]

    def compiled_program() -> Any:
        with garbage_waits():
            traced = flat if key is None else _kept(flat, names, leaves, cache_folder() / "traced" / key)
            return jax.jit(traced, donate_argnums=tuple(range(n)), compiler_options=options).lower(*leaves).compile()

    def call(*x: PyTree) -> tuple[Any, dict[str, Any]]:
        out = compiled.result()(*jax.tree.leaves(x))
        return jax.tree.unflatten(of_state, out[:n]), dict(zip(names, out[n:]))

    compiled = beside(compiled_program)
    return call


def beside(f: Callable[[], Any]) -> Future[Any]:
    """What f returns, computed in the background."""
    worker = ThreadPoolExecutor(1, "beside")
    future = worker.submit(f)
    worker.shutdown(wait=False)
    return future


@contextlib.contextmanager
def garbage_waits() -> Iterator[None]:
    """Tracing makes objects by the hundred thousand and hardly a cycle: looking for those takes a fifth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# --- kept for the next process -----------------------------------------------------------------------------------------------------------


def _kept(flat: Callable[..., Any], names: list[str], leaves: list[Any], file: Path) -> Callable[..., Any]:
    """What `flat` traces to, from the file or, where that is missing or damaged, traced now and written there.

    A program just traced takes the way through the file's bytes, too: both are compiled from the same text.
    """
    with contextlib.suppress(Exception):
        names[:], program = _unpacked(file.read_bytes())
        return export.deserialize(program).call
    try:
        program = bytes(export.export(jax.jit(flat))(*leaves).serialize())
    except (ValueError, NotImplementedError):  # it calls Python, or code of this machine alone
        return flat
    part = file.with_name(f"{file.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a full or forbidden disk costs the next start a second
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(_packed(names, program))
            os.replace(part, file)
        finally:
            part.unlink(missing_ok=True)
    return export.deserialize(bytearray(program)).call


def _packed(names: list[str], program: bytes) -> bytes:
    body = json.dumps(names).encode() + b"\n" + program
    return hashlib.sha256(body).digest() + body


def _unpacked(data: bytes) -> tuple[list[str], bytearray]:
    digest, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("damaged")
    names, _, program = body.partition(b"\n")
    return json.loads(names), bytearray(program)


def key_of(made_of: Any, rooms: Iterable[str], *args: PyTree) -> str | None:
    """A name for the program that these rooms' code traces from these settings for such arguments; None if the settings aren't plain.

    It holds the code as it is loaded, so that a function replaced at run time is another program.
    """
    leaves, structure = jax.tree.flatten(jax.eval_shape(lambda *x: x, *args))
    packages = [f"{name} {metadata.version(name)}" for name in ("jax", "jaxlib", "equinox", "optax", "numpy")]
    where = [platform.python_version(), jax.default_backend(), *packages, *(f"{k}={v!r}" for k, v in sorted(jax.config.values.items()))]
    digest = hashlib.sha256()
    try:
        for part in (*_plain(made_of), *where, str(structure), *(f"{x.shape} {x.dtype} {x.weak_type}" for x in leaves)):
            digest.update(part.encode() + b"\0")
    except _NotPlainError:
        return None
    for part in _code(tuple(rooms)):
        digest.update(part)
    return digest.hexdigest()


class _NotPlainError(Exception):
    """A setting whose value does not tell what it does."""


def _plain(x: Any) -> Iterator[str]:
    """Settings as text: numbers, names and arrays, in containers and in classes of this package."""
    if x is None or isinstance(x, bool | int | float | str):
        yield f"{type(x).__name__} {x!r}"
    elif isinstance(x, np.ndarray | jax.Array | np.generic):
        array = np.asarray(x)
        yield f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    elif isinstance(x, tuple | list):
        yield f"{type(x).__name__} of {len(x)}"
        for item in x:
            yield from _plain(item)
    elif isinstance(x, dict):
        yield from _plain(sorted(x.items(), key=repr))
    elif dataclasses.is_dataclass(x) and not isinstance(x, type) and type(x).__module__.split(".")[0] == "aimrl":
        yield f"{type(x).__module__}.{type(x).__qualname__}"
        for field in dataclasses.fields(x):
            yield from _plain((field.name, getattr(x, field.name)))
    else:
        raise _NotPlainError


def _code(rooms: tuple[str, ...]) -> Iterator[bytes]:
    """The loaded functions and numbers of these modules and of those inside them."""
    for name, module in sorted(sys.modules.items()):
        if name in rooms or name.startswith(tuple(f"{room}." for room in rooms)):
            yield name.encode()
            yield from _members(vars(module), name)


def _members(names: dict[str, Any], home: str) -> Iterator[bytes]:
    for name, x in sorted(names.items()):
        if isinstance(x, type) and x.__module__ == home:
            yield name.encode()
            yield from _members(dict(vars(x)), home)
        elif isinstance(x, type):  # from elsewhere
            yield f"{name} {x.__module__}.{x.__qualname__}".encode()
        elif callable(x) or isinstance(x, property | classmethod | staticmethod):
            yield name.encode()
            yield from _function(x)
        elif not name.startswith("__"):
            yield name.encode()
            yield from _value(x)


def _function(f: Any) -> Iterator[bytes]:
    """The code of a function, and of functions that another kind of callable is made of."""
    if isinstance(f, types.FunctionType):
        yield from _bytecode(f.__code__)
        for held in (f.__defaults__, f.__kwdefaults__, *(f.__closure__ or ())):
            with contextlib.suppress(ValueError):  # an empty cell
                yield from _value(held.cell_contents if isinstance(held, types.CellType) else held)
        return
    yield type(f).__qualname__.encode()
    for part in ("__wrapped__", "__func__", "fget", "func", "fun", "fwd", "bwd"):
        inner = getattr(f, part, None)
        if isinstance(inner, types.FunctionType):
            yield from _function(inner)


def _bytecode(code: types.CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _bytecode(constant)
        else:
            yield repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant).encode()


def _value(x: Any) -> Iterator[bytes]:
    with contextlib.suppress(_NotPlainError):
        yield "\0".join(_plain(x)).encode()
