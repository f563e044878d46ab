"""The training configuration and its presets. Nothing heavy is imported: the command line's help is made from this file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aimrl.types import BACKENDS, PRECISIONS, STRATEGIES, Backend, Precision, Strategy, UserError, multiplies_bfloat16, nearest


@dataclass(frozen=True)
class Config:
    """Everything a training run depends on, besides the environment's code."""

    env: str  # Gymnasium id of a goal environment
    reward: str = "aim"  # aim aim+r sparse dense rnd mc smirl gail fairl fairl- disco wgan, or an installed one
    agent: str = "td3"  # td3, sac, or soft_q for discrete actions
    preset: str = "fast"  # paper, fast, or a JSON file made by `aimrl tune`
    steps: int = 200_000  # environment steps in all, over all environments, ended with the round that reaches it
    seed: int = 0
    backend: Backend = "auto"  # simulator: EnvPool where it has the task, else Gymnasium
    num_envs: int = 8  # environments stepped at once
    horizon: int = 0  # steps of an episode, for environments without a time limit (0: their own)

    round_steps: int = 200  # environment steps between rounds of updates (train_freq)
    round_updates: int = 200  # agent updates a round (gradient_steps)
    batch_size: int = 256
    learning_starts: int = 1_000  # steps before the first update
    moving_starts: int = 0  # and transitions after which the achieved goal still moves; waited for up to 25 times learning_starts
    buffer_size: int = 1_000_000  # transitions kept
    normalise_inputs: bool = False  # running standardisation of observations and goals
    precision: Precision = "float32"  # of the agent's matrix products; bfloat16 is faster on processors that have it, auto finds out

    potential_updates: int = 20  # reward updates a round (disc_steps)
    potential_batch: int = 256
    potential_window: int = 2_000  # newest transitions the reward learns from (the paper's small buffer); with moved_fraction, of each kind

    curiosity: float = 0.0  # weight of a novelty bonus (RND) on achieved goals: gets an object moved before anything else can be learned

    her: Strategy = "future"  # where hindsight goals come from
    her_ratio: float = 0.8  # share of hindsight goals in a batch: k/(k+1), k = 4
    her_redraws: int = 0  # in every second transition, redraw a future goal up to this often while the state already meets it
    moved_fraction: float = 0.0  # share of a batch from before the achieved goal moves: the rest of an episode has no goal left to teach
    spread_goals: int = 0  # draw that share this many times over, and of these so that its goals spread evenly over all reached (0: off)

    reward_scale: float = 1.0  # of all that is paid: small values leave the penalties on actions their weight
    bound_targets: bool = False  # keep Q targets within what the reward allows, where its range is known
    end_on_success: bool = True  # episodes end when the goal is reached, as in the paper
    success_terminates: bool = True  # reaching the goal is terminal in the targets
    practice: float = 0.0  # share of training episodes played for a goal that was reached before, the rarer the likelier
    random_start: float = 1.0  # probability of a random action at first
    random_final: float = 0.3  # and from random_decay on
    random_decay: float = 1 / 30  # share of the run over which it falls
    random_before: float = 1.0  # at least, until something is learned; the other actions are small noise then

    eval_every: int = 20_000  # steps between evaluations, each after the round that reaches them
    eval_episodes: int = 100
    checkpoint_every: int = 20_000  # steps between checkpoints; environments are rebuilt there, so that resuming is exact
    env_timeout: float = 60.0  # seconds before a hanging environment is given up
    tensorboard: bool = True
    wandb: bool = False

    agent_options: dict[str, Any] = field(default_factory=dict)  # fields of the agent
    reward_options: dict[str, Any] = field(default_factory=dict)  # fields of the reward


# The paper's three tables (appendix "Details of Experiments on Fetch Robot"). Two environments instead of one: a round of 100 steps is then
# two whole episodes. Inputs are raw, episodes end on success, and the penalty on saturated actions weighs 9, as in the released code: with
# the text's 1 the actor saturates all the same. The text's share of random actions holds from the first step: the released code's first
# actions are all random, and FetchReach is then learned a thousand steps later.
_UNSATURATED = {"saturation": 9.0}
_PAPER: dict[str, Any] = {"num_envs": 2, "buffer_size": 1_000_000, "eval_every": 20_000, "checkpoint_every": 20_000, "random_before": 0.0}
_PAPER_SPARSE = _PAPER | {
    "round_steps": 10,
    "round_updates": 10,
    "potential_updates": 2,
    "agent_options": {"gamma": 0.95, "tau": 0.05} | _UNSATURATED,
}
_PAPER_DENSE = _PAPER | {
    "round_steps": 100,
    "round_updates": 200,
    "potential_updates": 0,
    "agent_options": {"gamma": 0.95, "tau": 0.05, "policy_delay": 5} | _UNSATURATED,
}
_PAPER_AIM = _PAPER | {
    "round_steps": 100,
    "round_updates": 200,
    "potential_updates": 20,
    "agent_options": {"gamma": 0.9, "tau": 0.1} | _UNSATURATED,
}


def _paper(reward: str) -> dict[str, Any]:
    if reward in ("aim", "aim+r", "wgan", "fairl", "fairl-"):
        return _PAPER_AIM
    return _PAPER_DENSE if reward == "dense" else _PAPER_SPARSE


def _fast(reward: str) -> dict[str, Any]:
    """Ours: one setting for every task; how it was found is in results/speed/README.md."""
    values: dict[str, Any] = {
        "num_envs": 8,
        "round_steps": 400,
        "round_updates": 100,
        "batch_size": 512,
        "learning_starts": 1_200,
        "moving_starts": 500,
        "normalise_inputs": True,
        "precision": "auto",
        "potential_updates": 20,
        "potential_window": 10_000,
        "her_redraws": 3,
        "moved_fraction": 0.5,
        "spread_goals": 4,
        "practice": 0.5,
        "reward_scale": 0.3,
        "bound_targets": True,
        "end_on_success": False,
        "success_terminates": False,
        "eval_every": 20_000,
        "checkpoint_every": 20_000,
        "agent_options": {"hidden": (256, 256), "gamma": 0.95, "tau": 0.05, "action_cost": 0.05},
    }
    if reward in ("aim", "aim+r"):
        values["reward_options"] = {
            "shape": "metric",
            "form": "to-goal",
            "normalise": "none",
            "standardise": True,
            "lipschitz_weight": 100.0,
            "moving_only": True,
            "rest": True,
            "knee": 0.05,
        }
    return values


PRESETS = {"paper": _paper, "fast": _fast}
_TD3_ONLY = ("action_cost", "policy_delay", "saturation")  # options in the presets that other agents don't have
_REACH = {"eval_every": 2_000, "checkpoint_every": 10_000, "steps": 30_000}
_REACH |= {"end_on_success": False}  # the released code cuts episodes of the other tasks only


def make_config(env: str, *, preset: str = "fast", reward: str = "aim", **overrides: Any) -> Config:
    """A preset's configuration with overrides; option dictionaries are merged, unknown fields answered with the nearest."""
    values: dict[str, Any] = {"steps": 1_000_000} if preset == "paper" else {}
    of_task = _REACH if env.startswith("FetchReach") else {}
    values |= preset_values(preset, reward) | of_task if preset in PRESETS else of_task | preset_values(preset, reward)
    if preset in PRESETS and (overrides.get("agent") or "td3") != "td3":
        values["agent_options"] = {k: v for k, v in values.get("agent_options", {}).items() if k not in _TD3_ONLY}
        values.pop("reward_scale", None)  # chosen for TD3's penalties on actions
    names = {f.name for f in dataclasses.fields(Config)}
    for key, value in overrides.items():
        if key not in names:
            raise UserError(nearest(key, names, "option"))
        if key in ("agent_options", "reward_options"):
            values[key] = values.get(key, {}) | value
        elif value is not None:
            values[key] = value
    return check(Config(env=env, preset=preset, reward=reward, **values))


def settled_here(c: Config) -> Config:
    """The configuration with what depends on the machine decided for this one."""
    here = "bfloat16" if multiplies_bfloat16() else "float32"
    return dataclasses.replace(c, precision=here) if c.precision == "auto" else c


def preset_values(preset: str, reward: str) -> dict[str, Any]:
    if preset in PRESETS:
        return dict(PRESETS[preset](reward))
    path = Path(preset)
    if path.suffix != ".json":
        raise UserError(nearest(preset, PRESETS, "preset"))
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"the preset {preset} is not a plain file")
        with open(path, "rb") as f:
            text = f.read(MAX_PRESET + 1)
        if len(text) > MAX_PRESET:
            raise UserError(f"the preset file {preset} is too large")
        data = json.loads(text.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise UserError(f"cannot read the preset file {preset}: {str(e)[:200]}") from None
    names = {f.name for f in dataclasses.fields(Config)} - {"env", "reward", "preset", "seed"}
    for key in data if isinstance(data, dict) else [preset]:
        if key not in names:
            raise UserError(nearest(str(key)[:100], names, f"option in {preset}"))
    for key in ("agent_options", "reward_options"):
        if not isinstance(data.get(key, {}), dict):
            raise UserError(f"{preset}: {key} must be a table of options")
    return data


_POSITIVE = ("steps", "num_envs", "round_steps", "round_updates", "batch_size", "buffer_size", "potential_batch", "potential_window")
_POSITIVE += ("eval_every", "eval_episodes", "checkpoint_every", "env_timeout", "reward_scale")
# Beyond these a mistake or a stranger's file is more likely than a wish. What has no number here stays below 2³¹.
_LARGEST = {"steps": 2**31 - 2**20, "num_envs": 10_000, "round_steps": 2**20, "round_updates": 2**20, "potential_updates": 2**20}
_LARGEST |= {"eval_episodes": 2**20, "her_redraws": 1_000, "spread_goals": 100, "env_timeout": 1e6}
MAX_PRESET = 1 << 20  # bytes
MAX_LOG = 32 << 20  # bytes: some 50 million steps; parsed, hostile lines take 25 times their size
_EPISODE = 20  # bytes of an evaluated episode in evals.jsonl, at most
_SHARES = ("her_ratio", "moved_fraction", "practice", "random_start", "random_final", "random_decay", "random_before")


def _check_options(options: Any, where: str) -> None:
    """Option dictionaries are text to numbers, texts or short lists of them; what each option takes is its owner's to say."""
    if not isinstance(options, dict) or not all(isinstance(k, str) for k in options):
        raise UserError(f"{where} must be a table of options, not {options!r:.80}")
    for key, value in options.items():
        items = value if isinstance(value, list | tuple) else [value]
        rows = bool(items) and all(isinstance(item, list | tuple) for item in items)  # as of example states
        if len(items) > (most := 2**16 if rows else 64):
            raise UserError(f"{where}: {key[:80]} has {len(items)} entries; at most {most} are taken")
        for item in items:
            if isinstance(item, int) and not -(2**31) < item < 2**31:
                raise UserError(f"{where}: {key[:80]} can't be {item!r:.40}")


def check(c: Config) -> Config:
    """The configuration itself, or one clear line about what is impossible in it."""
    if not isinstance(c.env, str):
        raise UserError(f"env must be text, not {c.env!r:.80}")
    for name in ("agent_options", "reward_options"):
        _check_options(getattr(c, name), name)
    for f in dataclasses.fields(Config):
        value, default = getattr(c, f.name), f.default
        if isinstance(default, bool) != isinstance(value, bool) and f.default is not dataclasses.MISSING:
            raise UserError(f"{f.name} must be {type(default).__name__}, not {value!r:.80}")
        if isinstance(default, int | float) and not isinstance(default, bool) and not isinstance(value, int | float):
            raise UserError(f"{f.name} must be a number, not {value!r:.80}")
        most = _LARGEST.get(f.name) or 2**31
        if isinstance(value, int | float) and not -most < value < most:  # also NaN
            raise UserError(f"{f.name} can't be {value!r:.40}: it must be below {most:,}")
        if isinstance(default, int) and not isinstance(default, bool) and value != int(value):
            raise UserError(f"{f.name} must be a whole number, not {value!r:.80}")
        if isinstance(default, str) and not isinstance(value, str):
            raise UserError(f"{f.name} must be text, not {value!r:.80}")
        if type(value) is float and type(default) is int:  # 1e5 is a fine way to write a hundred thousand
            c = dataclasses.replace(c, **{f.name: int(value)})
    for name in _POSITIVE:
        if not getattr(c, name) > 0:
            raise UserError(f"{name} must be positive, not {getattr(c, name)}")
    for name in _SHARES:
        if not 0 <= getattr(c, name) <= 1:
            raise UserError(f"{name} must lie between 0 and 1, not {getattr(c, name)}")
    evaluations = c.steps // c.eval_every
    if evaluations * c.eval_episodes * _EPISODE > MAX_LOG:
        raise UserError(
            f"{evaluations:,} evaluations of {c.eval_episodes:,} episodes would make evals.jsonl larger than its readers take "
            f"({MAX_LOG >> 20} MiB): evaluate less often (--eval-every), or fewer episodes (--eval-episodes)"
        )
    for name in ("seed", "horizon", "learning_starts", "moving_starts", "potential_updates", "her_redraws", "spread_goals", "curiosity"):
        if getattr(c, name) < 0:
            raise UserError(f"{name} must not be negative, it is {getattr(c, name)}")
    if c.round_steps % c.num_envs:
        raise UserError(f"round_steps ({c.round_steps}) must be a multiple of num_envs ({c.num_envs})")
    learns = "curiosity" if c.curiosity else "dense.normalise" if c.reward == "dense" and c.reward_options.get("normalise") else ""
    if learns and not c.potential_updates:
        raise UserError(f"{learns} learns in the updates of the reward, of which this configuration has none: add --potential-updates 2")
    named = ((c.her, STRATEGIES, "hindsight strategy"), (c.backend, BACKENDS, "backend"), (c.precision, PRECISIONS, "precision"))
    for value, valid, what in named:
        if value not in valid:
            raise UserError(nearest(value, valid, what))
    return c
