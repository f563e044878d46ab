"""Compiled programs: the compiler's options, getting one ready in the background, and keeping it for the next process."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import hashlib
import json
import os
import platform
import re
import sys
import types
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.backend import get_backend
from jaxtyping import PyTree

from aimrl.types import Precision, cores, processor


def cache_folder() -> Path:
    """Where this user's programs live that need not be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aimrl"


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, so that a second run doesn't compile again; in JAX's own folder where one is set."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)  # small programs add up


use_compilation_cache()  # everything that compiles imports this file


_OTHER_KERNELS = "xla_cpu_experimental_ynn_fusion_type"
_NEW_EMITTERS = "xla_cpu_use_fusion_emitters"


def quickly_compiled(precision: Precision = "float32") -> dict[str, Any]:
    """Compiler options for programs whose time is that of their matrix products.

    No optimiser of loops touches those, so fewer passes are a quarter less to wait for. XLA's newer kernels (YNNPACK) share a product of
    256 × 256 float32 matrices badly between cores: without them an update takes 7 % less time on two. On one core it takes 6 % more where
    vectors are 256 bits wide, and 5 to 15 % less where they are 512.
    """
    if jax.default_backend() != "cpu":
        return {}
    slower = precision == "float32" and (cores() > 1 or "avx512f" in processor().get("flags", "").split())
    return {"xla_backend_optimization_level": 1} | dict.fromkeys(_known().intersection([_OTHER_KERNELS] * slower), "")


def roughly_compiled() -> dict[str, Any]:
    """Compiler options for programs that run seldom: ready in a third of the time, two or three times slower."""
    if jax.default_backend() != "cpu":
        return {}
    return {"xla_backend_optimization_level": 0} | dict.fromkeys(_known().intersection([_NEW_EMITTERS]), False)


@functools.cache
def _known() -> frozenset[str]:
    """Which of the options that may come and go this XLA has."""
    options = {_OTHER_KERNELS: "", _NEW_EMITTERS: False}
    if _compiles(options):
        return frozenset(options)
    return frozenset(name for name, value in options.items() if _compiles({name: value}))


def _compiles(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


# --- ready early -------------------------------------------------------------------------------------------------------------------------

Step = Callable[..., tuple[Any, dict[str, Any]]]  # (state, …) → the next state, which has the same structure, and numbers by name


def compile_early(
    f: Step,
    *args: PyTree,
    options: dict[str, Any] | None = None,
    key: str | None = None,
    makes: PyTree | None = None,
    expected: Expected | None = None,
) -> Step:
    """f for arguments like these, being compiled in the background; the first call waits for what is left of that.

    The state is donated, unless f makes something else: something like `makes`. Under a `key`, which must say what f does, the program is
    kept on disk, and the next process neither traces nor compiles it, nor waits for what it had `expected`.
    """
    shapes = jax.eval_shape(lambda *x: x, *args)
    leaves, structure = jax.tree.flatten(shapes)
    of_state = jax.tree.structure(shapes[0] if makes is None else makes)
    n = of_state.num_leaves
    donated = tuple(range(n)) if makes is None else ()
    names: list[str] = []
    file = None if key is None else _kept_in() / _here(key, options)
    loading = None if file is None or expected is None else expected.take(file.name)

    def flat(*x: Any) -> list[Any]:
        state, numbers = f(*jax.tree.unflatten(structure, x))
        names[:] = numbers
        return [*jax.tree.leaves(state), *numbers.values()]

    def get_ready() -> _Program:
        kept = loading.result() if loading is not None else None if file is None else _load(file)
        if kept is not None:
            names[:], loaded = kept
            return loaded
        if file is not None:
            flat.__name__ = f"kept_{uuid.uuid4().hex}"  # found in no cache of JAX's: what comes from there can't be written again
        with garbage_waits():
            jitted = jax.jit(flat, donate_argnums=donated, keep_unused=True, compiler_options=options)
            return _Compiled(jitted.lower(*leaves).compile(), flat.__name__)

    def keep(ready: Future[_Program]) -> None:
        """After whoever waited was served."""
        if file is not None and ready.exception() is None:
            ready.result().keep(file, names)

    def call(*x: PyTree) -> tuple[Any, dict[str, Any]]:
        out = ready.result()(jax.tree.leaves(x))
        return jax.tree.unflatten(of_state, out[:n]), dict(zip(names, out[n:]))

    ready = beside(get_ready)
    ready.add_done_callback(keep)
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


_KEPT = 500  # programs at most, of a tenth to half a megabyte; the one not asked for the longest goes first


class _Program(Protocol):
    """Takes and returns flat lists of arrays."""

    def __call__(self, x: list[Any], /) -> list[Any]: ...

    def keep(self, file: Path, names: list[str]) -> None: ...


@dataclass(frozen=True)
class _Compiled:
    """Compiled by this process, under a name of its own."""

    program: jax.stages.Compiled
    name: str

    def __call__(self, x: list[Any], /) -> list[Any]:
        return self.program(*x)

    def keep(self, file: Path, names: list[str]) -> None:
        """Write it, unless it calls Python, which lives in this process alone. Where that fails, the next start takes seconds more."""
        part = file.with_name(f"{file.name}.{os.getpid()}")
        with contextlib.suppress(Exception):  # no backend, JAX or disk is bound to take it
            executable = self.program.runtime_executable()
            if executable is None or _CALLS_BACK.search(self.program.as_text() or ""):
                return
            data = _packed(names, executable.serialize())
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                part.write_bytes(data)
                os.replace(part, file)
            finally:
                part.unlink(missing_ok=True)
            for old in sorted(file.parent.iterdir(), key=lambda p: p.stat().st_mtime)[:-_KEPT]:
                old.unlink(missing_ok=True)
            for copy in Path(str(jax.config.values["jax_compilation_cache_dir"])).glob(f"jit_{self.name}-*"):  # JAX's, never asked for
                copy.unlink(missing_ok=True)


_CALLS_BACK = re.compile(r'custom_call_target="[^"]*callback')


@dataclass(frozen=True)
class _Loaded:
    """Compiled by an earlier process."""

    execute: Callable[[list[Any]], list[Any]]

    def __call__(self, x: list[Any], /) -> list[Any]:
        return self.execute([v if isinstance(v, jax.Array) else jax.device_put(v) for v in x])

    def keep(self, file: Path, names: list[str]) -> None:
        """It is; so it isn't thrown away before others."""
        with contextlib.suppress(OSError):
            os.utime(file)


class Expected:
    """The programs that were needed the last time somebody asked for this, being loaded before anyone asks.

    A wrong guess costs a moment of an idle core.
    """

    def __init__(self, what: str) -> None:
        self._note = cache_folder() / "expected" / hashlib.sha256(what.encode()).hexdigest()
        self._noted: list[str] = []
        with contextlib.suppress(OSError, ValueError):
            self._noted = [name for name in self._note.read_text().split() if re.fullmatch("[0-9a-f]{64}", name)][:8]
        self._loading = {name: beside(functools.partial(_load, _kept_in() / name)) for name in self._noted}
        self._taken: list[str] = []

    def take(self, name: str) -> Future[tuple[list[str], _Loaded] | None] | None:
        self._taken.append(name)
        return self._loading.pop(name, None)

    def note(self) -> None:
        """What was taken is expected next time."""
        self._loading = {}
        if sorted(self._taken) != sorted(self._noted):
            with contextlib.suppress(OSError):
                self._note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._note.write_text("\n".join(self._taken))


def _kept_in() -> Path:
    return cache_folder() / "compiled"


def _load(file: Path) -> tuple[list[str], _Loaded] | None:
    """The program in the file with its numbers' names; None if it is missing, damaged, another user's, or not for this JAX."""
    with contextlib.suppress(Exception):
        if not hasattr(os, "getuid") or file.stat().st_uid == os.getuid():  # it will be run
            names, program = _unpacked(file.read_bytes())
            return names, _Loaded(get_backend().deserialize_executable(program, (_device(),)).execute)
    return None


def _device() -> Any:
    asked = jax.config.values["jax_default_device"]  # a device, or the name of a platform
    return jax.local_devices(backend=asked)[0] if isinstance(asked, str) else asked or jax.local_devices()[0]


def _here(key: str, options: dict[str, Any] | None) -> str:
    """The file of a program's key: where machines share a home, or a run has fewer cores, compiled code is another."""
    chip = processor().get("flags") or processor().get("Features") or platform.node()
    where = (platform.machine(), chip, cores(), _device().device_kind, os.environ.get("XLA_FLAGS"), sorted((options or {}).items()))
    return hashlib.sha256(f"{key} {where}".encode()).hexdigest()


def _packed(names: list[str], program: bytes) -> bytes:
    body = zlib.compress(json.dumps(names).encode() + b"\n" + program, 1)
    return hashlib.sha256(body).digest() + body


def _unpacked(data: bytes) -> tuple[list[str], bytes]:
    digest, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("damaged")
    names, _, program = zlib.decompress(body).partition(b"\n")
    return json.loads(names), program


def key_of(made_of: Any, code: str, *args: PyTree) -> str | None:
    """A name for the program that this code traces from these settings for such arguments; None if the settings aren't plain."""
    leaves, structure = jax.tree.flatten(jax.eval_shape(lambda *x: x, *args))
    packages = [f"{name} {metadata.version(name)}" for name in ("jax", "jaxlib", "equinox", "optax", "numpy")]
    where = [platform.python_version(), jax.default_backend(), *packages, *(f"{k}={v!r}" for k, v in sorted(jax.config.values.items()))]
    digest = hashlib.sha256(code.encode())
    try:
        for part in (*_plain(made_of), *where, str(structure), *(f"{x.shape} {x.dtype} {x.weak_type}" for x in leaves)):
            digest.update(part.encode() + b"\0")
    except _NotPlainError:
        return None
    return digest.hexdigest()


def code_of(rooms: Iterable[str]) -> str:
    """A digest of these rooms' code as it is loaded, so that a function replaced at run time is another program."""
    digest = hashlib.sha256()
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
    if isinstance(x, dict):  # perhaps of functions
        x = tuple(item for pair in sorted(x.items(), key=lambda pair: repr(pair[0])) for item in pair)
    if isinstance(x, tuple | list):
        yield f"{type(x).__name__} of {len(x)}".encode()
        for item in x:
            yield from _value(item)
    elif isinstance(x, types.FunctionType) or hasattr(x, "__wrapped__"):
        yield f"{x.__module__}.{x.__qualname__}".encode()  # those of a library have its version in the key
        yield from _function(x)
    else:
        with contextlib.suppress(_NotPlainError):
            yield "\0".join(_plain(x)).encode()
