"""Packages without the parts that nobody asked for.

Importing EnvPool loads all of its families, with one of those all of Matplotlib, and with any of them JAX, for a face that isn't used here.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "envpool"


class _Hollow:
    """Finds a family's package but leaves it empty, so that its `registration` is read and nothing else."""

    def __init__(self) -> None:
        self.left_empty: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{NAME}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        folders = (spec and spec.submodule_search_locations) or []
        if spec is None or not any((Path(folder) / "registration.py").is_file() for folder in folders):
            return None
        self.left_empty.append(name)
        spec.loader = self  # pyright: ignore[reportAttributeAccessIssue]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        return None


def envpool() -> Any:
    """The package, with every task registered and each family's code loaded when one of its tasks is made."""
    if NAME in sys.modules:
        return importlib.import_module("envpool")  # which waits, where another thread is at it
    finder = _Hollow()
    sys.meta_path.insert(0, finder)  # pyright: ignore[reportArgumentType]
    try:
        importlib.import_module("envpool")
    except Exception:  # a version whose registrations need more; what is wrong with EnvPool itself is raised again below
        for name in [n for n in sys.modules if n == NAME or n.startswith(f"{NAME}.")]:
            del sys.modules[name]
    finally:
        sys.meta_path.remove(finder)  # pyright: ignore[reportArgumentType]
        for name in finder.left_empty:  # whoever asks for it next gets the real one
            sys.modules.pop(name, None)
    return importlib.import_module("envpool")


@contextlib.contextmanager
def without(package: str) -> Iterator[None]:
    """As if a package were not installed, unless it is loaded already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # pyright: ignore[reportArgumentType]  what Python itself takes for "not to be found"
    try:
        yield
    finally:
        del sys.modules[package]


@contextlib.contextmanager
def family() -> Iterator[None]:
    """Around loading a family of EnvPool's: without JAX, unless that is there already, when whoever loaded it may want both together."""
    with contextlib.nullcontext() if "jax" in sys.modules else without(f"{NAME}.python.lax"):
        yield
