"""Each run with its command, versions and configuration."""

from __future__ import annotations

import contextlib
import json
import shlex
from pathlib import Path
from typing import Any

from aimrl import runs
from aimrl.progress import human_time
from aimrl.report.content import GridRun, Report, world_name
from aimrl.report.markup import esc
from aimrl.types import UserError

MAX_CONFIG = 20_000  # characters of one run's configuration


def run_list(report: Report) -> str:
    items = []
    for k, (group, r) in enumerate((g, r) for g in report.groups for r in g.runs):
        state = "finished" if r.finished else f"{r.logged[0]:,} of {r.steps:,} steps"
        about = f"{esc(group.env)}, {esc(group.name)}, seed {r.seed}: {state}, {human_time(r.logged[1])}"
        head = f"<strong>{esc(r.folder.name)}</strong> <span class='muted'>{about}</span>"
        items.append(_run_item(f"run-{k}", head, command(r.config, r.folder), r.config))
    for k, g in enumerate(report.grids):
        head = f"<strong>{esc(g.folder.name)}</strong> <span class='muted'>{esc(world_name(g))}, {esc(g.config.get('reward'))}</span>"
        items.append(_run_item(f"grid-{k}", head, grid_command(g), g.config))
    return f"<div class='runs'>{''.join(items)}</div>" if items else ""


def _run_item(anchor: str, head: str, line: str, config: dict[str, Any]) -> str:
    found = config.get("versions")
    facts = "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(v)}</dd></div>" for k, v in found.items()) if isinstance(found, dict) else ""
    rest = json.dumps({k: v for k, v in config.items() if k != "versions"}, indent=1, ensure_ascii=False)
    rest = rest if len(rest) <= MAX_CONFIG else rest[:MAX_CONFIG] + "\n…"
    inner = f"<p class='small muted'>Made by</p><pre><code>{esc(line)}</code></pre>"
    inner += f"<p class='small muted'>Versions</p><dl class='facts'>{facts}</dl>" if facts else ""
    inner += f"<details class='plain' id='{anchor}-c'><summary>Configuration</summary><pre><code>{esc(rest)}</code></pre></details>"
    return f"<details id='{anchor}'><summary>{head}</summary><div class='inner'>{inner}</div></details>"


def command(config: dict[str, Any], folder: Path) -> str:
    """The command line that makes this run again: what differs from the preset is spelt out."""
    from aimrl.config import Config, make_config

    reward, agent = str(config["reward"]), str(config.get("agent", "td3"))
    words = ["aimrl", "train", config["env"], "--reward", reward, "--agent", agent, "--preset", str(config.get("preset", "fast"))]
    words += ["--steps", str(config["steps"]), "--seed", str(config["seed"])]
    try:
        base = make_config(config["env"], preset=str(config.get("preset", "fast")), reward=reward, agent=agent)
    except UserError:  # a preset file that is elsewhere, or names of another version
        base = Config(config["env"])
    for name, default in vars(base).items():
        value = config.get(name, default)
        if name in ("env", "reward", "agent", "preset", "steps", "seed") or runs.plain(value) == runs.plain(default):
            continue
        if name in ("agent_options", "reward_options"):
            words += _group(agent if name == "agent_options" else _prefix(reward), value, runs.plain(default))
        else:
            words += _flag(name, value)
    return shlex.join([*words, "--out", folder.name])


def _prefix(reward: str) -> str:
    return reward.removesuffix("+r").removesuffix("-")


def _group(prefix: str, options: Any, base: dict[str, Any]) -> list[str]:
    """The options of an agent or a reward that differ from the preset's."""
    changed = {k: v for k, v in options.items() if base.get(k) != v} if isinstance(options, dict) else {}
    return [w for k, v in changed.items() for w in _flag(f"{prefix}.{k}", v)]


def _flag(name: str, value: Any) -> list[str]:
    name = name.replace("_", "-")
    if isinstance(value, bool):
        group, _, last = name.rpartition(".")
        return [f"--{name}" if value else f"--{group + '.' if group else ''}no-{last}"]
    if isinstance(value, list) and not all(isinstance(v, int) for v in value):  # a vector or rows: as JSON
        return [f"--{name}", json.dumps(value)]
    return [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]


def grid_command(g: GridRun) -> str:
    from aimrl.grid import preset_reward

    c = g.config
    words = ["aimrl", "grid", str(c.get("world", "?"))]
    for key in ("reward", "preset", "seeds", "seed", "iterations", "entropy"):
        words += [f"--{key}", str(c[key])] if c.get(key) is not None else []
    with contextlib.suppress(UserError, TypeError):  # names of another version
        preset = preset_reward(str(c.get("reward")), str(c.get("preset")))
        words += _group(_prefix(str(c.get("reward"))), c.get("reward_options"), runs.plain(vars(preset)))
    return shlex.join([*words, "--out", g.folder.name])
