"""`aimrl train`: options from the chosen preset, agent and reward; Ctrl-C saves."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aimrl.cli import options
from aimrl.cli.options import SHORT_Q, Help, place
from aimrl.config import Config, check, make_config
from aimrl.types import UserError

if TYPE_CHECKING:
    from aimrl.collect import HeadStart

HELP = Help(
    "train",
    "Train a policy on a goal environment.\n\n"
    "Every setting is an option; the values shown are those of the environment, preset, agent and reward typed beside --help.",
    (
        "aimrl train FetchReach-v4 --reward aim",
        "aimrl train FetchPush-v4 --steps 150000 --seed 1 --out runs/push",
        "aimrl train FetchPush-v4 --td3.tau 0.01 --aim.form shaped",
        "aimrl train your_package:YourEnv-v0       # an environment of your own",
        "aimrl train --resume --out runs/push      # go on where it was stopped",
    ),
)


@dataclass(frozen=True)
class Extra:
    """Options of the command that are no part of the configuration."""

    out: Path | None = None  # run folder; runs/ENV-REWARD-sSEED when left out
    resume: bool = False  # go on with the run in --out
    quiet: bool = field(default=False, metadata=SHORT_Q)
    json: bool = False


@dataclass(frozen=True)
class _Env:
    env: str = field(default="", metadata=place("ENV"))  # Gymnasium id of a goal environment, package:Id for one of your own


_HIDDEN = ("env", "agent_options", "reward_options")  # given by place, or as groups of options
_ASKS_ELSE = {"--resume", "-h", "--help"}  # than for a new run
_SWITCHES = ("--resume", "--quiet", "-q", "--json", "-h", "--help")


def option_class(argv: Sequence[str]) -> tuple[type, Config, dict[str, Any]]:
    """The options that the preset, reward and agent in `argv` allow, what they start from, and agent and reward under their names."""
    from aimrl import agents, rewards

    base = _base(argv)
    agent, reward = agents.make(base.agent, **base.agent_options), rewards.make(base.reward, **base.reward_options)
    groups = {"agent": (base.agent, agent), "reward": options.reward_group(base.reward, reward, argv)}
    made_of = options.columns(_Env, _Env(base.env)) + options.columns(Config, base, _HIDDEN) + options.columns(Extra)
    return options.tyro_class(Config, made_of + [options.group(*g) for g in groups.values()]), base, groups


def _base(argv: Sequence[str]) -> Config:
    """What the options change: the preset's configuration, or that of the run to go on with."""
    asks_help = "--help" in argv or "-h" in argv
    if "--resume" in argv and not asks_help:
        from aimrl import runs

        out = options.typed_value(argv, "--out")
        if out is None:
            raise UserError("--resume needs to know which run: add --out DIR")
        if not (Path(out) / "config.json").is_file():
            raise UserError(f"nothing to resume in {out}: it holds no config.json")
        config = runs.load_config(Path(out))
        runs.refuse_own(Path(out), config)
        return config
    typed = {name: options.typed_value(argv, f"--{name}") for name in ("preset", "reward", "agent")}
    chosen = {k: v for k, v in typed.items() if v is not None}
    env = options.first_positional(argv, [*_SWITCHES, *_switches(make_config("", **chosen))])
    if env is None and not asks_help:
        raise UserError("train needs an environment, for example: aimrl train FetchReach-v4 (see aimrl train --help)")
    return make_config(env or "", **chosen)


def _switches(base: Config) -> list[str]:
    """Options of the configuration, the agent and the reward that take no value."""
    from aimrl import agents, rewards

    reward = rewards.make(base.reward, **base.reward_options)
    owners = {"": base, f"{base.agent}.": agents.make(base.agent), f"{options.prefix(reward)}.": reward}
    return [
        f"--{prefix}{no}{f.name.replace('_', '-')}"
        for prefix, owner in owners.items()
        for f in dataclasses.fields(owner)
        if isinstance(getattr(owner, f.name, None), bool)
        for no in ("", "no-")
    ]


def parse(argv: Sequence[str]) -> tuple[Config, Extra]:
    """The configuration and the command's own options."""
    made, base, groups = option_class(argv)
    typed = options.parse(made, argv, HELP)
    values: dict[str, Any] = {f.name: getattr(typed, f.name) for f in dataclasses.fields(Config) if f.name not in _HIDDEN[1:]}
    for kind, (name, instance) in groups.items():
        values[f"{kind}_options"] = getattr(base, f"{kind}_options") | options.changed(getattr(typed, name), instance)
    return check(dataclasses.replace(base, **values)), Extra(**{f.name: getattr(typed, f.name) for f in dataclasses.fields(Extra)})


class Stopper:
    """The first Ctrl-C, SIGTERM or SIGHUP asks for an end after the round; the second ends at once."""

    SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

    def __init__(self) -> None:
        self.signal = 0

    def __call__(self) -> bool:
        return bool(self.signal)

    def __enter__(self) -> Stopper:
        self.before = {s: signal.signal(s, self._ask) for s in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for s, handler in self.before.items():
            signal.signal(s, handler)

    def _ask(self, number: int, frame: Any) -> None:
        self.signal = number
        for s in self.SIGNALS:
            signal.signal(s, self._quit)
        with contextlib.suppress(OSError):  # not print: the signal may have come in the middle of one
            os.write(2, b"\nstopping after this round and saving; once more to quit at once\n")

    def _quit(self, number: int, frame: Any) -> None:
        """Leave nothing behind: workers that would complain of their lost parent, a hidden cursor."""
        import multiprocessing

        for worker in multiprocessing.active_children():
            worker.kill()
        if os.isatty(2):
            with contextlib.suppress(OSError):
                os.write(2, b"\033[?25h\n")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _guessed(argv: Sequence[str]) -> Config | None:
    """What `argv` seems to say of a run's first steps, before all that knows its options is loaded; None if it can't be told."""
    if _ASKS_ELSE & set(argv):
        return None
    from aimrl.envs import vector

    numbers = ("steps", "seed", "num_envs", "learning_starts", "round_steps", "horizon")
    asked = {name: options.typed_value(argv, f"--{name.replace('_', '-')}") for name in ("preset", "reward", "agent", "backend", *numbers)}
    try:
        typed: dict[str, Any] = {name: int(value) if name in numbers else value for name, value in asked.items() if value is not None}
        return make_config(next(word for word in argv if vector.runs_in_envpool(word)), **typed)
    except (StopIteration, UserError, ValueError):
        return None


def run(argv: Sequence[str]) -> int:
    """Train, or go on training, as `argv` says; the simulators begin while everything else is being loaded."""
    from aimrl.collect import HeadStart

    with HeadStart(_guessed(argv)) as head:
        return _run(argv, head)


def _without(argv: Sequence[str], *names: str) -> list[str]:
    """What is typed but for these options and their values."""
    values = {i + 1 for i, word in enumerate(argv) if word in names}
    return [word for i, word in enumerate(argv) if i not in values and word.partition("=")[0] not in names]


def _run(argv: Sequence[str], head: HeadStart) -> int:
    from aimrl import programs

    expected = None if _ASKS_ELSE & set(argv) else programs.Expected(" ".join(_without(argv, "--out", "--seed")))
    config, extra = parse(argv)
    from aimrl import runs
    from aimrl.agents import make as make_agent
    from aimrl.envs import doctor
    from aimrl.progress import Listeners
    from aimrl.train import train

    folder = extra.out or runs.default_folder(config)
    if extra.resume or (folder / "config.json").exists() or folder.is_file():  # refused here before anything is built
        runs.prepare(folder, config, {}, extra.resume)
        if (done := runs.checkpoint_steps(folder)) and done[-1] >= config.steps and runs.last_evaluated(folder) >= done[-1]:
            return _report(folder, config, extra, done[-1], 0)
    gamma = make_agent(config.agent, **config.agent_options).gamma
    with Listeners(config, folder, gamma, extra.quiet) as listeners, Stopper() as stopper:
        if not extra.resume:
            doctor.look_first(config.env, config, listeners.screen.say)
        listeners.say_what()
        step = train(config, folder, resume=extra.resume, listen=listeners, stop=stopper, head=head, expected=expected).step
    return _report(folder, config, extra, step, stopper.signal if step < config.steps else 0)


def _report(folder: Path, config: Config, extra: Extra, step: int, stopped_by: int) -> int:
    """The last words on standard output, and the exit code."""
    import json

    from aimrl import runs
    from aimrl.progress import human_time, success_text

    last = (runs.read_lines(folder / "evals.jsonl") or [{}])[-1]
    if extra.json:
        state = {"folder": str(folder), "step": step, "evaluated": last.get("step"), "finished": step >= config.steps}
        print(json.dumps(runs.plain(last | state)))
    elif stopped_by:
        print(f"stopped at step {step:,} of {config.steps:,} and saved; go on with: aimrl train --resume --out {folder}")
    else:
        spent = f" after {human_time(last['wall_s'])}" if "wall_s" in last else ""
        print(f"done: {step:,} steps{spent}, {success_text(last) if last else 'no evaluation'}; results in {folder}")
    return 128 + stopped_by if stopped_by else 0
