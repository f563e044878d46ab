"""One environment under guard: flat float32 observations, actions in [−1, 1], and faults told instead of raised.

A guard never raises: what goes wrong is written into `info`, so that one bad environment can't tear down a vector of good ones.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from aimrl.types import GoalSpec, UserError


class GoalObs(NamedTuple):
    """Flat float32 observations of all environments."""

    observation: np.ndarray
    achieved_goal: np.ndarray
    desired_goal: np.ndarray


KEYS = GoalObs._fields
FAULT = "aimrl_fault"
AUTORESETS = ("Autoreset", "AutoResetWrapper")  # wrappers that lose an episode's last observation


class GuardedEnv(gymnasium.Env):
    """A goal environment whose answers have been checked: spaces are flat, faults are notes in `info`."""

    def __init__(self, env: Any, spec: GoalSpec) -> None:
        self.env, self.busy = env, False
        self._raw = {key: env.observation_space[key] for key in KEYS}
        self.observation_space = spaces.Dict(
            {key: spaces.Box(-np.inf, np.inf, (int(np.prod(space.shape)),), np.float32) for key, space in self._raw.items()}
        )
        self._act = env.action_space
        self.action_space = spaces.Discrete(spec.action_dim) if spec.discrete else spaces.Box(-1.0, 1.0, (spec.action_dim,), np.float32)
        self._last = {key: np.zeros(space.shape or (), np.float32) for key, space in self.observation_space.items()}

    @classmethod
    def build(cls, maker: Callable[[], Any], spec: GoalSpec) -> GuardedEnv:
        if multiprocessing.parent_process() is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
        return cls(maker(), spec)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        self.busy = True
        try:
            answer = self.env.reset(seed=seed)
            if not (isinstance(answer, tuple) and len(answer) == 2):
                raise _Fault("reset didn't return (observation, info)")
            self._last = self._flat(answer[0])
            return self._last, {}
        except (Exception, SystemExit) as e:  # a closed window of its own must not end us without a word
            return self._last, {FAULT: told(e)}
        finally:
            self.busy = False

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self.busy = True
        try:
            answer = self.env.step(own_action(self._act, action))
            if not (isinstance(answer, tuple) and len(answer) == 5):
                raise _Fault("step didn't return (observation, reward, terminated, truncated, info)")
            obs, reward, terminated, truncated, _ = answer
            self._last = self._flat(obs)
            return self._last, _number(reward), _flag(terminated, "terminated"), _flag(truncated, "truncated"), {}
        except (Exception, SystemExit) as e:
            return self._last, 0.0, False, False, {FAULT: told(e)}
        finally:
            self.busy = False

    def close(self) -> None:
        self.env.close()

    def _flat(self, obs: Any) -> dict[str, np.ndarray]:
        if not isinstance(obs, dict):
            raise _Fault(f"the observation is a {type(obs).__name__}, not a dict")
        flat = {}
        for key, space in self._raw.items():
            if key not in obs:
                raise _Fault(f"the observation has no '{key}'")
            x = np.asarray(obs[key])
            if x.shape != space.shape:
                raise _Fault(f"{key} has shape {x.shape}, its space says {space.shape}")
            if not np.can_cast(x.dtype, space.dtype, "same_kind"):
                raise _Fault(f"{key} has dtype {x.dtype}, its space says {space.dtype}")
            with np.errstate(over="ignore"):  # what overflows becomes infinite, which the vector refuses by name
                flat[key] = x.astype(np.float32).ravel()
        return flat


class _Fault(Exception):
    """Something an environment did that its spaces or the Gymnasium API forbid."""


def faults(info: dict[str, Any]) -> dict[int, str]:
    """The notes that guards left in a vector's info, by environment index."""
    if FAULT not in info:
        return {}
    return {int(i): str(info[FAULT][i]) for i in np.flatnonzero(info[f"_{FAULT}"])}


def own_action(space: spaces.Space, action: Any) -> Any:
    """What policies answer, indices from 0 or flat numbers in [−1, 1], one or a batch, in the environment's own terms."""
    if isinstance(space, spaces.Discrete):
        return space.start + np.asarray(action, np.int64)
    assert isinstance(space, spaces.Box)
    unit = np.asarray(action, np.float64)  # in float32 the way to the bounds and back would cost its last digits
    unit = unit.reshape(*unit.shape[:-1], *space.shape)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    return np.clip(low + (unit + 1) * 0.5 * (high - low), low, high).astype(space.dtype)


def spec_of(env: Any, name: str) -> GoalSpec:
    """Sizes, bounds and time limit of a goal environment, or one line on why it isn't one."""
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or any(key not in space.spaces for key in KEYS):
        got = f"a Dict with {', '.join(space.spaces)}" if isinstance(space, spaces.Dict) else f"a {type(space).__name__}"
        raise UserError(f"{name} is not a goal environment: its observation space is {got}, not a Dict with {', '.join(KEYS)}")
    for key in KEYS:
        part = space[key]
        if not isinstance(part, spaces.Box) or part.dtype is None or part.dtype.kind not in "fiub":
            raise UserError(f"{name}: the space of '{key}' is a {type(part).__name__}; only Boxes of numbers can be used")
    if space["achieved_goal"].shape != space["desired_goal"].shape:
        shapes = space["achieved_goal"].shape, space["desired_goal"].shape
        raise UserError(f"{name}: achieved_goal has shape {shapes[0]} and desired_goal {shapes[1]}; they must be the same")
    act = env.action_space
    discrete = isinstance(act, spaces.Discrete)
    if not discrete:
        if not isinstance(act, spaces.Box) or act.dtype is None or act.dtype.kind != "f":
            raise UserError(f"{name}: the action space is {act}; only a Box of floats or Discrete can be used")
        if not (np.isfinite(act.low).all() and np.isfinite(act.high).all() and (act.low < act.high).all()):
            raise UserError(f"{name}: the action space {act} has no finite bounds (low < high): give it some")
    horizon = _time_limit(env)
    if horizon is None:
        raise UserError(f"{name} has no time limit: register it with max_episode_steps, wrap it in TimeLimit or pass horizon")
    obs_dim, goal_dim = (int(np.prod(space[key].shape or ())) for key in ("observation", "desired_goal"))
    action_dim = int(act.n) if isinstance(act, spaces.Discrete) else int(np.prod(act.shape or ()))
    return GoalSpec(obs_dim, goal_dim, action_dim, horizon, discrete, name, act)


def _time_limit(env: Any) -> int | None:
    """The tightest TimeLimit among the wrappers, else what the registration says."""
    limits, layer = [], env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            limits.append(int(layer._max_episode_steps))
        layer = layer.env
    if not limits and env.spec is not None and env.spec.max_episode_steps is not None:
        limits.append(int(env.spec.max_episode_steps))
    return min(limits, default=None)


def _number(x: Any) -> float:
    value = np.asarray(x)
    if value.size != 1 or value.dtype.kind not in "fiub":
        raise _Fault(f"reward is not one number but {value.dtype} of shape {value.shape}")
    return float(value.item())


def _flag(x: Any, name: str) -> bool:
    value = np.asarray(x)
    if value.size != 1 or value.dtype.kind not in "biu":
        raise _Fault(f"{name} is not a bool but {value.dtype} of shape {value.shape}")
    return bool(value.item())


def told(e: BaseException) -> str:
    text = " ".join(str(e).split())[:300]
    return text if isinstance(e, _Fault) else f"raised {type(e).__name__}: {text}"
