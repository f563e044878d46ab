"""Off-policy agents behind one contract; loaded when asked for."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from aimrl.agents.base import Agent, Batch
from aimrl.nn import ACTIVATIONS
from aimrl.types import UserError, nearest

__all__ = ["NAMES", "Agent", "Batch", "make"]

_CLASSES = {"td3": ("aimrl.agents.td3", "TD3"), "sac": ("aimrl.agents.sac", "SAC"), "soft_q": ("aimrl.agents.discrete", "DiscreteSoftQ")}
NAMES = tuple(_CLASSES)
_POSITIVE = (
    "critic_rate",
    "actor_rate",
    "temperature_rate",
    "learning_rate",
    "first_temperature",
    "policy_delay",
    "critics",
    "tau",
    "entropy",
)
_FREE = ("q_low", "q_high", "target_entropy")  # everything else that is a number is not negative


def make(name: str, **options: Any) -> Agent:
    """An agent by name; options are its fields."""
    if name not in _CLASSES:
        raise UserError(nearest(name, NAMES, "agent"))
    module, cls = _CLASSES[name]
    agent = getattr(importlib.import_module(module), cls)
    fields = {f.name for f in dataclasses.fields(agent)}
    for key in options:
        if key not in fields:
            raise UserError(nearest(key, fields, f"option of {name}"))
    defaults = {f.name: f.default for f in dataclasses.fields(agent)}
    made = agent(**{k: of_kind(v, defaults[k], f"option '{k}' of {name}") for k, v in options.items()})
    for key, value in ((f, getattr(made, f)) for f in fields - {*_FREE}):
        if isinstance(value, int | float) and (value < 0 or (value == 0 and key in _POSITIVE)):
            raise UserError(f"option '{key}' of {name} must {'be positive' if key in _POSITIVE else 'not be negative'}, not {value:g}")
    if made.activation not in ACTIVATIONS:
        raise UserError(nearest(made.activation, ACTIVATIONS, f"activation of {name}"))
    if made.gamma >= 1:
        raise UserError(f"option 'gamma' of {name} must be at least 0 and below 1, not {made.gamma:g}")
    for key, most in (("tau", 1), ("critics", 100)):
        if getattr(made, key, 0) > most:
            raise UserError(f"option '{key}' of {name} must be at most {most}, not {getattr(made, key):g}")
    return made


def of_kind(value: Any, default: Any, where: str) -> Any:
    """The value as its field's default has it: lists (from JSON, TOML) become tuples, "inf" a number."""
    if isinstance(value, list):
        value = tuple(value)
    if type(default) is float and (type(value) is int or value in ("inf", "-inf")):  # infinities are texts in JSON
        value = float(value)
    if isinstance(default, tuple):
        wrong = not (isinstance(value, tuple) and value and all(type(n) is int and n > 0 for n in value))
    else:
        wrong = type(default) in (bool, int, float, str) and (type(value) is not type(default) or value != value)
    if wrong:
        raise UserError(f"{where} takes a {type(default).__name__}, not {value!r:.80}")
    return value
