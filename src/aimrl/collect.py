"""Gathering: seeded environments, and whole episodes from them. Loads no JAX, so that it can begin before anything else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from aimrl.config import Config
from aimrl.envs import vector
from aimrl.envs.goals import unexplained
from aimrl.envs.guard import GoalObs
from aimrl.envs.vector import VectorGoalEnv
from aimrl.types import EnvTrouble, GoalSpec, UserError

_EVAL_SEEDS = 2**31  # seeds of vectors of environments for evaluation start here, those for training stay below
_WANDERING = 1  # sets the random actions' stream apart from the environments' seeds
_IDLE_NOISE = 0.2  # deviation of the actions of a policy that has learned nothing


def env_seed(seed: int, stream: str, segment: int = 0) -> int:
    """The seed of a vector of environments, whose own are drawn from it: from disjoint ranges for training and evaluation."""
    draw = int(np.random.SeedSequence([seed, segment]).generate_state(1)[0]) % _EVAL_SEEDS
    return draw + (_EVAL_SEEDS if stream == "eval" else 0)


def make_env(c: Config, env: Any, n: int, seed: int) -> VectorGoalEnv:
    """The configured environments, or those of the object given instead of a name."""
    return vector.make(env if env is not None else c.env, n, seed, c.backend, timeout_s=c.env_timeout, horizon=c.horizon or None)


def random_share(c: Config, step: int) -> float:
    """Of random actions at this step: linear from `random_start` to `random_final` over the first `random_decay` of the run."""
    progress = min(step / max(c.random_decay * c.steps, 1.0), 1.0)
    return c.random_start + progress * (c.random_final - c.random_start)


def wander(c: Config, spec: GoalSpec, step: int) -> np.ndarray:
    """The environments' actions at this step, until something is learned: random ones, and where the schedule leaves it so, small noise.

    NumPy's: the simulators needn't wait for a compiler.
    """
    rng = np.random.default_rng([c.seed, step, _WANDERING])
    if spec.discrete:
        return np.eye(spec.action_dim, dtype=np.float32)[rng.integers(spec.action_dim, size=c.num_envs)]
    action = rng.uniform(-1.0, 1.0, (c.num_envs, spec.action_dim))
    idle = rng.random((c.num_envs, 1)) >= max(c.random_before, random_share(c, step))
    return np.where(idle, np.clip(_IDLE_NOISE * rng.standard_normal(action.shape), -1.0, 1.0), action).astype(np.float32)


class HeadStart:
    """The environments with which a run so configured begins, wandering in the background before the run asks; closed unless it does.

    Only where it is known what the run will do: episodes that end on success would end elsewhere, and environments of others may mind being
    made before they are asked for.
    """

    def __init__(self, c: Config | None) -> None:
        self._config, self._env = c, None
        if c is None or c.end_on_success or not vector.well_known(c.env, c.backend, c.horizon or None):
            return
        env = make_env(c, None, c.num_envs, env_seed(c.seed, "train"))
        rounds = -(-c.learning_starts // c.round_steps)
        steps = range(0, min(rounds * c.round_steps, c.steps), c.num_envs)
        self._env = env.run_ahead(wander(c, env.spec, step) for step in steps)

    def take(self, c: Config) -> VectorGoalEnv | None:
        """The environments, if they are those of this configuration. Whoever takes them closes them."""
        deciding = ("env", "backend", "num_envs", "seed", "horizon")
        if self._env is None or any(getattr(self._config, name) != getattr(c, name) for name in deciding):
            return None
        env, self._env = self._env, None
        return env

    def __enter__(self) -> HeadStart:
        return self

    def __exit__(self, *_: object) -> None:
        if self._env is not None:
            self._env.close()


@contextlib.contextmanager
def made_before() -> Iterator[None]:
    """Around making environments that could be made when the run began: what goes wrong now is the environment's trouble."""
    try:
        yield
    except EnvTrouble:
        raise
    except UserError as e:
        raise EnvTrouble(str(e)) from e


class Collector:
    """Steps the environments and hands over whole episodes. Holds the episodes that are still running."""

    def __init__(self, env: VectorGoalEnv, end_on_success: bool):
        self.env, self.end_on_success = env, end_on_success
        n, horizon, spec = env.num_envs, env.spec.horizon, env.spec
        self.obs_log = np.zeros((n, horizon + 1, spec.obs_dim), np.float32)
        self.achieved_log = np.zeros((n, horizon + 1, spec.goal_dim), np.float32)
        self.action_log = np.zeros((n, horizon + 1, spec.action_dim), np.float32)
        self.t = np.zeros(n, int)
        self.finished: list[tuple[np.ndarray, ...]] = []
        self.obs = self._begin(env.reset(), np.ones(n, bool))

    def step(self, action: np.ndarray) -> None:
        """One step of every environment; finished episodes are put aside and new ones begun."""
        env, index, t = self.env, np.arange(self.env.num_envs), self.t
        self.action_log[index, t] = action
        result = env.step(action.argmax(-1) if env.spec.discrete else action)
        self.t = t = t + 1
        self.obs_log[index, t], self.achieved_log[index, t] = result.obs.observation, result.obs.achieved_goal
        success = np.asarray(env.task.success(result.obs.achieved_goal, result.obs.desired_goal))
        done = result.terminated | result.truncated | (success & self.end_on_success) | (t >= env.spec.horizon)
        odd = unexplained(env.task, result.terminated, result.obs.achieved_goal, result.obs.desired_goal)
        for i in np.flatnonzero(done):
            self._finish(int(i), result.obs.desired_goal[i], bool(odd[i] and not success[i]), bool(odd[i] and success[i]))
        self.obs = self._begin(env.reset(done), done) if done.any() else result.obs

    def close(self) -> None:
        """Put the running episodes aside as if cut by time, and close the environments."""
        for i in np.flatnonzero(self.t > 0):
            self._finish(int(i), self.obs.desired_goal[i], False, False)
        self.env.close()

    def take(self) -> Iterator[tuple[np.ndarray, ...]]:
        """The columns of `replay.Episodes` finished since the last call, in groups of one fixed size so that nothing is compiled twice."""
        n = self.env.num_envs
        for k in range(0, len(self.finished), n):
            group = self.finished[k : k + n]
            pad = n - len(group)
            columns = [np.stack(c) for c in zip(*group)]
            yield tuple(np.concatenate([c, np.zeros((pad, *c.shape[1:]), c.dtype)]) for c in columns)
        self.finished = []

    def _begin(self, obs: GoalObs, mask: np.ndarray) -> GoalObs:
        self.t = np.where(mask, 0, self.t)
        self.obs_log[mask, 0], self.achieved_log[mask, 0] = obs.observation[mask], obs.achieved_goal[mask]
        return obs

    def _finish(self, i: int, desired: np.ndarray, failed: bool, ended: bool) -> None:
        row = (self.obs_log[i], self.achieved_log[i], desired, self.action_log[i])
        self.finished.append((*(np.array(a, np.float32) for a in row), np.array(failed), np.array(self.t[i], np.int32), np.array(ended)))
