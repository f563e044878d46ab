"""Off-policy agents behind one contract; loaded when asked for."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from aimrl.agents.base import Agent, Batch
from aimrl.types import UserError, nearest

__all__ = ["NAMES", "Agent", "Batch", "make"]

_CLASSES = {"td3": ("aimrl.agents.td3", "TD3"), "sac": ("aimrl.agents.sac", "SAC"), "soft_q": ("aimrl.agents.discrete", "DiscreteSoftQ")}
NAMES = tuple(_CLASSES)


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
    return agent(**{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})
