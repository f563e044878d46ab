"""Every reward of the paper by name: `make("aim", step_bound=1.0)`. Importing this file loads no array library."""

from __future__ import annotations

import contextlib
import importlib
import math
import typing
from dataclasses import fields, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from aimrl.types import UserError, nearest

if TYPE_CHECKING:
    from aimrl.rewards.base import Reward

ENTRY_POINTS = "aimrl.rewards"  # the group under which another package offers a reward of its own by name

_BUILT_IN: dict[str, tuple[str, str, dict[str, Any]]] = {  # name → file, class, the options the name stands for
    "aim": ("aim", "AIM", {}),
    "aim+r": ("aim", "AIM", {"task_weight": 1.0}),
    "sparse": ("sparse", "Sparse", {}),
    "dense": ("dense", "Dense", {}),
    "rnd": ("rnd", "RND", {}),
    "mc": ("mc", "MC", {}),
    "smirl": ("smirl", "SMiRL", {}),
    "gail": ("gail", "GAIL", {}),
    "fairl": ("fairl", "FAIRL", {}),
    "fairl-": ("fairl", "FAIRL", {"negative": True}),
    "disco": ("disco", "Disco", {}),
    "wgan": ("wgan", "WGAN", {}),
}
NAMES = tuple(_BUILT_IN)
_POSITIVE = ("learning_rate", "step_bound", "cell", "cells", "embedding", "covariance", "variance_floor", "clip")
_FREE = ("task_weight", "scale")  # everything else that is a number is not negative
_ENDLESS = ("worst", "clip")  # infinity: no limit


def make(reward: str | Reward, **options: Any) -> Reward:
    """A reward from its name, or a Reward object as it is; options are the fields of its class."""
    from aimrl.rewards.base import Reward

    if isinstance(reward, Reward):
        name = type(reward).__name__
        return _in_range(replace(reward, **_checked(type(reward), options, name)) if options else reward, name)
    if not isinstance(reward, str):
        raise UserError(f"a reward is a name or a Reward object, not {reward!r}")
    cls, preset = _find(reward)
    if not (isinstance(cls, type) and issubclass(cls, Reward)):
        raise UserError(f"entry point '{reward}' of group {ENTRY_POINTS} is not a subclass of aimrl.rewards.base.Reward")
    checked = _checked(cls, options, reward)
    try:
        made = cls(**preset | checked)
    except TypeError as error:  # a required option is missing
        raise UserError(f"reward '{reward}': {error}") from error
    return _in_range(made, reward)


def _find(name: str) -> tuple[Any, dict[str, Any]]:
    if name in _BUILT_IN:
        module, cls, preset = _BUILT_IN[name]
        return getattr(importlib.import_module(f"aimrl.rewards.{module}"), cls), preset
    offered = {e.name: e for e in entry_points(group=ENTRY_POINTS)}
    if name in offered:
        try:
            return offered[name].load(), {}
        except (ImportError, AttributeError) as error:
            raise UserError(f"entry point '{name}' of group {ENTRY_POINTS} can't be loaded: {error}") from error
    raise UserError(nearest(name, known(), "reward"))


def known() -> list[str]:
    """The names that `make` takes: our own and those other packages offer."""
    return [*NAMES, *(e.name for e in entry_points(group=ENTRY_POINTS))]


def _checked(cls: type[Reward], options: dict[str, Any], name: str) -> dict[str, Any]:
    """Options with known names and values of the right kind."""
    known = [f.name for f in fields(cls) if f.init]
    for key in options:
        if key not in known:
            raise UserError(nearest(key, known, f"option of reward '{name}'"))
    hints = typing.get_type_hints(cls)
    return {key: _value(value, hints[key], f"option '{key}' of reward '{name}'") for key, value in options.items()}


def _value(value: Any, kind: Any, where: str) -> Any:
    """The value as its field declares it: lists (from JSON, TOML) become tuples and whole numbers floats where a float is declared."""
    if typing.get_origin(kind) is Literal:
        if value not in typing.get_args(kind):
            raise UserError(nearest(str(value), map(str, typing.get_args(kind)), f"value of {where}"))
        return value
    if isinstance(value, list):
        value = tuple(value)
    if kind is float and (type(value) is int or value in ("inf", "-inf")):  # infinities are texts in JSON
        with contextlib.suppress(OverflowError):
            value = float(value)
    if kind == tuple[int, ...]:
        wrong = not (isinstance(value, tuple) and value and all(type(n) is int and n > 0 for n in value))
    else:
        wrong = kind in (bool, int, float, str) and (type(value) is not kind or value != value)  # NaN is the one float unequal to itself
    if wrong:
        raise UserError(f"{where} takes a {getattr(kind, '__name__', kind)}, not {value!r:.80}")
    return value


def _in_range(reward: Reward, name: str) -> Reward:
    """A reward of ours whose numbers mean something; what another package's options mean is its own business."""
    ours = type(reward).__module__.startswith(f"{__name__}.")
    for key, value in ((f.name, getattr(reward, f.name)) for f in fields(reward) if ours):
        if not isinstance(value, int | float):
            continue
        refused = {
            "be positive": value <= 0 and key in _POSITIVE,
            "not be negative": value < 0 and key not in _FREE,
            "be finite": abs(value) == math.inf and key not in _ENDLESS,
            "be below 0.5": key == "smoothing" and value >= 0.5,
            "be at most 1": key == "gamma" and value > 1,
        }
        for rule in (rule for rule, broken in refused.items() if broken):
            raise UserError(f"option '{key}' of reward '{name}' must {rule}, not {value}")
    return reward
