"""What a sweep runs: the cells of a checked SPEC.toml."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aimrl import runs
from aimrl.config import Config, make_config
from aimrl.types import UserError, look_here, nearest

AXES = ("env", "reward", "agent", "preset", "seed")
MAX_CELLS = 100_000
MAX_SPEC = 1 << 20  # bytes


@dataclass(frozen=True)
class Cell:
    """One training run of a sweep."""

    name: str  # its folder below the sweep's: env/reward-agent-preset/seed-N
    config: Config


@dataclass(frozen=True)
class Spec:
    """A checked SPEC.toml."""

    name: str
    out: Path
    cells: tuple[Cell, ...]


def load_spec(path: str | Path) -> Spec:
    """A sweep from a TOML file, or one clear line about what is wrong in it."""
    path = Path(path)
    try:
        data = tomllib.loads(runs.read_bounded(path, MAX_SPEC, links=True).decode("utf-8"))
    except (ValueError, RecursionError) as e:  # both of tomllib's errors and bad UTF-8 are ValueErrors
        raise UserError(f"{path} is not valid TOML: {one_line(e)}") from None
    return parse_spec(data, path.stem, str(path))


def parse_spec(data: dict[str, Any], name: str = "sweep", where: str = "the specification") -> Spec:
    """A sweep from the tables of its TOML file."""
    grid, extra = _axes(data, where, ("name", "out", "cells"))
    name, out = extra.get("name", name), extra.get("out")
    if not isinstance(name, str) or not isinstance(out, str | None):
        raise UserError(f"{where}: name and out are texts")
    if "\0" in name + (out or ""):
        raise UserError(f"{where}: name and out hold no zero bytes")
    listed = extra.get("cells", [])
    if not isinstance(listed, list) or not all(isinstance(c, dict) for c in listed):
        raise UserError(f"{where}: cells is a list of tables, each begun with [[cells]]")
    groups = [grid] if "env" in grid else []
    for entry in listed:
        own, more = _axes(entry, f"{where}, [[cells]]", ("label",))
        options = _merged(grid.get("overrides", {}), own.get("overrides", {}), where)
        groups.append(grid | own | {"overrides": options, "label": more.get("label", "")})
    if not groups or any("env" not in g for g in groups):
        raise UserError(f'{where} names no environment: add env = ["FetchReach-v4"]')
    if sum(math.prod(len(g.get(axis, [0])) for axis in AXES) for g in groups) > MAX_CELLS:
        raise UserError(f"{where} makes more than {MAX_CELLS:,} cells")
    found = tuple(cell for g in groups for cell in _expand(g, where))
    twice = [n for n, count in Counter(c.name for c in found).items() if count > 1]
    if twice:
        raise UserError(f"{where} names the cell {twice[0]} twice: give [[cells]] with other settings a label")
    return Spec(name, Path(out or f"runs/{safe_name(name)}").expanduser().absolute(), found)


def _axes(table: dict[str, Any], where: str, more: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The grid's lists, steps and overrides of one table, and its other known keys."""
    plural = {f"{axis}s": axis for axis in AXES}
    grid: dict[str, Any] = {}
    other: dict[str, Any] = {}
    for key, value in table.items():
        if key in more:
            other[key] = value
        elif key in AXES or key in plural:
            axis = plural.get(key, key)
            if axis in grid:
                raise UserError(f"{where} has both {axis} and {axis}s")
            if key == "seeds" and is_int(value):  # how many; `seed = 3` is the one seed 3
                if value < 1:
                    raise UserError(f"{where}: seeds is how many, at least 1, or a list of seeds, not {value}")
                value = range(min(value, MAX_CELLS + 1))
            grid[axis] = _values(axis, value, where)
        elif (key == "steps" and is_int(value)) or (key == "overrides" and isinstance(value, dict)):
            grid[key] = value
        elif key in ("steps", "overrides"):
            raise UserError(f"{where}: {key} must be {'a whole number' if key == 'steps' else 'a table of options'}")
        else:
            raise UserError(nearest(key, [*AXES, *plural, "steps", "overrides", *more], f"key in {where}"))
    if not isinstance(other.get("label", ""), str):
        raise UserError(f"{where}: label is a text")
    return grid, other


def _values(axis: str, value: Any, where: str) -> list[Any]:
    values = list(value) if isinstance(value, list | range) else [value]
    if not values:
        raise UserError(f"{where}: {axis} is an empty list")
    for v in values:
        if axis == "seed" and (not is_int(v) or not 0 <= v < 2**31):
            raise UserError(f"{where}: a seed is a whole number from 0 to 2³¹ − 1, not {v!r:.40}")
        if axis != "seed" and (not isinstance(v, str) or not v or "\0" in v):
            raise UserError(f"{where}: {axis} is a text or a list of texts, not {v!r:.40}")
        if axis == "reward":
            _check_reward(str(v))
        if axis == "agent":
            _check_agent(str(v))
    if len(set(values)) < len(values):
        raise UserError(f"{where}: {axis} lists a value twice")
    return values


def _check_reward(name: str) -> None:
    from aimrl import rewards

    if name not in (valid := rewards.known()):
        raise UserError(nearest(name, valid, "reward"))


def _check_agent(name: str) -> None:
    from aimrl import agents

    if name not in agents.NAMES:
        raise UserError(nearest(name, agents.NAMES, "agent"))


def check(spec: Spec, names: bool = True) -> None:
    """Before any process is started: options of agents and rewards, and the names of environments."""
    from aimrl.envs import vector

    distinct = {repr((c.agent, c.agent_options, c.reward, c.reward_options)): c for c in (cell.config for cell in spec.cells)}
    for config in distinct.values():
        check_options(config)
    for env in sorted({cell.config.env for cell in spec.cells}) if names else ():
        look_here(env)
        vector.check_name(env)


def check_options(config: Config) -> None:
    """Options that the agent or the reward doesn't have are told before anything is started."""
    from aimrl import agents, rewards

    agents.make(config.agent, **config.agent_options)
    rewards.make(config.reward, **config.reward_options)


def _merged(low: dict[str, Any], high: dict[str, Any], where: str) -> dict[str, Any]:
    """Two tables of overrides; the option dictionaries in them are merged, too."""
    out = low | high
    for key in ("agent_options", "reward_options"):
        if key in low and key in high:
            if not isinstance(low[key], dict) or not isinstance(high[key], dict):
                raise UserError(f"{where}: {key} is a table")
            out[key] = low[key] | high[key]
    return out


def _expand(group: dict[str, Any], where: str) -> Iterator[Cell]:
    options = dict(group.get("overrides", {}))
    for key in AXES:
        if key in options:
            raise UserError(f"{where}: {key} belongs to the lists, not to the overrides")
    if "steps" in group and "steps" in options:
        raise UserError(f"{where} sets steps twice")
    options |= {"steps": group["steps"]} if "steps" in group else {}
    for key in ("agent_options", "reward_options"):
        if not isinstance(options.get(key, {}), dict):
            raise UserError(f"{where}: {key} is a table")
    choices = [group.get(axis) or [_DEFAULTS[axis]] for axis in AXES]
    for env, reward, agent, preset, seed in itertools.product(*choices):
        try:
            config = make_config(env, reward=reward, agent=agent, preset=preset, seed=seed, **options)
            json.dumps(runs.plain(dataclasses.asdict(config)), allow_nan=False)  # dates are TOML, but no setting
        except (TypeError, ValueError, OverflowError, RecursionError) as e:
            raise UserError(f"{where}: impossible overrides: {one_line(e)}") from None
        method = "-".join(safe_name(part) for part in (reward, config.agent, Path(preset).stem, group.get("label", "")) if part)
        yield Cell(f"{safe_name(env)}/{method}/seed-{seed}", config)


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Config) if f.name in AXES} | {"agent": None}  # the preset's


def safe_name(text: str) -> str:
    """A folder name that leads nowhere else."""
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", text).lstrip(".")[:100] or "_"


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def one_line(e: BaseException) -> str:
    text = " ".join(str(e).split())
    return (text if isinstance(e, UserError) else f"{type(e).__name__}: {text}" if text else type(e).__name__)[:400]


Outcomes = Iterator[tuple[Cell, dict[str, Any]]]
