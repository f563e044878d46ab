"""aimrl: reach goals when the only signal is "not there yet"."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from aimrl.config import Config, make_config
    from aimrl.train import Run
    from aimrl.types import UserError

    def train(env: Any, **options: Any) -> Run: ...


__all__ = ["Config", "Run", "UserError", "load", "make_config", "train"]

_HOMES = {"Config": "aimrl.config", "make_config": "aimrl.config", "Run": "aimrl.train", "UserError": "aimrl.types"}
_ROOMS = {"train": "aimrl.train", "sb3": "aimrl.sb3"}  # `train` also answers to calls: see the end of train.py


def __getattr__(name: str) -> Any:
    """Names are fetched when asked for: importing aimrl loads nothing heavy."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(_ROOMS[name])
    raise AttributeError(f"module 'aimrl' has no attribute '{name}'")


def train_named(
    env: Any,
    *,
    reward: Any = "aim",
    preset: str = "fast",
    out: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """What `aimrl.train("FetchPush-v4", reward="aim", preset="fast", steps=300_000, seed=0)` calls: train and return the Run.

    `env` is a Gymnasium id, an environment object or a function that makes one; `reward` a name or a Reward; `out` the run folder, named
    as by the command line when left out; `overrides` are fields of Config, `agent_options={"tau": 0.01}` and `reward_options` among them.
    """
    from aimrl import agents, runs
    from aimrl.config import make_config
    from aimrl.envs import doctor
    from aimrl.progress import Listeners, ctrl_c
    from aimrl.train import train
    from aimrl.types import UserError

    named = env if isinstance(env, str) else _name(env)
    config = make_config(named, preset=preset, reward=reward if isinstance(reward, str) else type(reward).__name__.lower(), **overrides)
    if not isinstance(reward, str):
        from aimrl.wrapper import options_of

        if overrides.get("reward_options"):
            raise UserError("a Reward object has its options already: leave reward_options out")
        config = dataclasses.replace(config, reward_options=options_of(reward))
    if resume and out is None:
        raise UserError("resume=True needs to know which run: give its folder as out=…")
    folder = Path(out) if out is not None else runs.default_folder(config)
    objects: dict[str, Any] = {"env": None if isinstance(env, str) else env, "reward": None if isinstance(reward, str) else reward}
    with Listeners(config, folder, agents.make(config.agent, **config.agent_options).gamma, quiet) as listeners, ctrl_c() as pressed:
        if not resume:
            doctor.look_first(env, config, listeners.screen.say)
        listeners.say_what()
        run = train(config, folder, resume=resume, listen=listeners, stop=pressed, **objects)
    if pressed() and run.step < config.steps:
        raise KeyboardInterrupt(f"stopped at step {run.step} and saved; go on with resume=True and out={str(folder)!r}")
    return run


def load(folder: str | Path, step: int | None = None, *, env: Any = None, reward: Any = None) -> Run:
    """A trained Run from its folder; `env` and `reward` as given to `train`, where they were objects."""
    from aimrl.train import load_run

    return load_run(Path(folder), step, env, reward)


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else getattr(env, "__name__", type(getattr(env, "unwrapped", env)).__name__)
