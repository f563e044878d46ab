"""A learned reward beside a loop that isn't ours: the Gymnasium wrapper, and what it shares with the Stable-Baselines3 buffer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Float, PRNGKeyArray

from aimrl import replay, rewards, runs
from aimrl.config import preset_values
from aimrl.envs import guard, vector
from aimrl.envs.goals import GoalTask, task_of, unexplained
from aimrl.envs.judging import make_ends, make_judge
from aimrl.rewards.base import Reward, total_reward
from aimrl.types import STRATEGIES, GoalSpec, Metrics, Transition, UserError, nearest


@dataclass(frozen=True)
class Schedule:
    """When and from what a reward learns.

    The paper's 20 updates a round leave AIM's potential untaught in the thousand steps in which SB3 learns FetchReach; hence 100.
    """

    update_every: int = 100  # steps between rounds of updates
    updates: int = 100  # updates a round
    update_batch: int = 256
    window: int = 2_000  # the newest transitions, from which it learns

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value, least = getattr(self, f.name), int(f.name != "updates")
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"{f.name} must be a whole number of at least {least}, not {value!r}")


def make_reward(reward: str | Reward, options: Mapping[str, Any] | None = None) -> Reward:
    """A reward as foreign loops get it, from the wrapper and the buffer alike: AIM by name has the settings of preset `fast`, but one.

    The paper's free potential can pay for overshooting the goal. Far from the goal the reward doesn't level off as in `fast`: that pays
    where batches come from before an object moves; on Reach with SB3's TD3 it fell behind.
    """
    preset = preset_values("fast", reward).get("reward_options", {}) if isinstance(reward, str) else {}
    if "knee" in preset:
        preset = preset | {"knee": 0.0, "worst": 2.0}
    return rewards.make(reward, **preset | dict(options or {}))


def hindsight(task: GoalTask, **options: Any) -> replay.Hindsight:
    """Hindsight that ends episodes where the environment does, or at every success if asked."""
    known = [f.name for f in dataclasses.fields(replay.Hindsight) if f.name != "ends"]
    for key in options:
        if key not in known:
            raise UserError(nearest(key, known, "option of hindsight"))
    fields: dict[str, Any] = {"success_terminates": False, "ends": make_ends(task)} | options
    how = replay.Hindsight(**fields)
    if how.strategy not in STRATEGIES:
        raise UserError(nearest(str(how.strategy), STRATEGIES, "hindsight strategy"))
    for name in ("ratio", "moved_fraction"):
        if not 0 <= getattr(how, name) <= 1:
            raise UserError(f"hindsight {name} must lie between 0 and 1, not {getattr(how, name)}")
    return how


def examine(env: gymnasium.Env, horizon: int | None = None) -> tuple[GoalSpec, GoalTask]:
    """Sizes and goal task of an environment, found on a copy: probing must not touch the stream of the one that is trained on."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if type(layer).__name__ in guard.AUTORESETS:
            raise UserError(f"the wrapper {type(layer).__name__} resets by itself: put it around the learned reward, not inside")
        layer = layer.env
    copy = vector.make_single(env, horizon=horizon)
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    spec, task = guard.spec_of(copy, name), task_of(copy, name)
    if task.jittable:
        copy.close()
    return spec, task


def flat_action(action: Any, space: spaces.Space, n: int) -> Float[np.ndarray, "n act"]:
    """Actions as rewards see them: flat floats, or one indicator a discrete action."""
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n), dtype=np.float32)[np.asarray(action).reshape(n) - int(space.start)]
    return np.asarray(action, np.float32).reshape(n, -1)


State = tuple[np.ndarray, np.ndarray, np.ndarray]  # observation, achieved and desired goal, a row a lane


class Running:
    """The episodes that are still being played, one a lane; finished ones are handed over whole."""

    def __init__(self, spec: GoalSpec, lanes: int):
        self.spec, self.t = spec, np.zeros(lanes, np.int32)
        self.obs = np.zeros((lanes, spec.horizon + 1, spec.obs_dim), np.float32)
        self.achieved = np.zeros((lanes, spec.horizon + 1, spec.goal_dim), np.float32)
        self.action = np.zeros((lanes, spec.horizon + 1, spec.action_dim), np.float32)
        self.desired = np.zeros((lanes, spec.goal_dim), np.float32)

    def begin(self, obs: np.ndarray, achieved: np.ndarray, desired: np.ndarray) -> replay.Episodes | None:
        """Take the states that the next step starts from; where they don't go on from the last ones, the episodes so far, as cut short.

        That happens where a loop resets in the middle of an episode, and where an environment draws a new goal.
        """
        lane = np.arange(len(self.t))
        rows = (self.obs[lane, self.t], obs), (self.achieved[lane, self.t], achieved), (self.desired, desired)
        same = np.all([(old == new).all(-1) for old, new in rows], axis=0)
        cut = self.take((self.t > 0) & ~same)
        new = self.t == 0
        self.obs[new, 0], self.achieved[new, 0], self.desired[new] = obs[new], achieved[new], desired[new]
        return cut

    def step(self, action: np.ndarray, obs: np.ndarray, achieved: np.ndarray) -> None:
        lane = np.arange(len(self.t))
        self.action[lane, self.t] = action
        self.t += 1
        self.obs[lane, self.t], self.achieved[lane, self.t] = obs, achieved

    def take(self, over: np.ndarray, failed: np.ndarray | bool = False, ended: np.ndarray | bool = False) -> replay.Episodes | None:
        """The episodes that are over, with nothing (length 0) in the other lanes so that one shape serves all."""
        if not over.any():
            return None
        columns = (
            self.obs,
            self.achieved,
            self.desired,
            self.action,
            np.broadcast_to(failed, over.shape) & over,
            np.where(over, self.t, 0),
            np.broadcast_to(ended, over.shape) & over,
        )
        self.t = np.where(over, 0, self.t)
        # JAX may read the arrays of a call later than it returns, or in place: hand over copies.
        return replay.Episodes(*jax.tree.map(np.array, columns))

    @property
    def full(self) -> np.ndarray:
        """Lanes without room for another step: a longer episode is kept in pieces."""
        return self.t >= self.spec.horizon


class OnlineReward:
    """A reward with its state and an episode ring, fed by a foreign loop and updated as it goes."""

    def __init__(self, reward: Reward, spec: GoalSpec, task: GoalTask, how: replay.Hindsight, capacity: int, schedule: Schedule, seed: int):
        need, free = replay.bytes_needed(spec, capacity, reward.needs_prefix), runs.free_memory()
        if free is not None and need > 0.9 * free:
            size, room = need / 2**30, free / 2**30
            raise UserError(f"a buffer of {capacity:,} transitions needs {size:.1f} GiB, {room:.1f} GiB are free: lower buffer_size")
        self.reward, self.spec, self.task, self.schedule, self.how = reward, spec, task, schedule, how
        self.root = jax.random.key(seed)
        self.state = reward.init(jax.random.fold_in(self.root, 0), spec)
        self.ring = replay.make_ring(spec, capacity, reward.needs_prefix)
        self.steps = self.episodes = self.rounds = self.draws = 0
        self.metrics: Metrics = {}
        judge = make_judge(task)

        def learn(state: Any, ring: replay.Ring, key: PRNGKeyArray, how: replay.Hindsight) -> tuple[Any, Metrics]:
            k_batch, k_update = jax.random.split(key)
            batches = replay.sample(ring, k_batch, (schedule.updates, schedule.update_batch), how, judge, schedule.window)
            return reward.update(state, batches, k_update)

        def draw(ring: replay.Ring, key: PRNGKeyArray, batch: int, how: replay.Hindsight) -> Transition:
            data = replay.sample(ring, key, (batch,), how, judge)
            if how.moved_fraction > 0:  # those come first, and SBX splits one large sample into many batches
                order = jax.random.permutation(jax.random.fold_in(key, 1), batch)
                data = jax.tree.map(lambda x: x[order], data)
            return data

        self._insert = jax.jit(lambda ring, episodes: replay.insert(ring, episodes, judge), donate_argnums=0)
        self._learn, self._draw = jax.jit(learn, static_argnums=3), jax.jit(draw, static_argnums=(2, 3))
        self._pay = jax.jit(lambda state, batch: total_reward(reward, state, batch))

    def record(self, running: Running, before: State, action: np.ndarray, after: State, ended: np.ndarray, over: np.ndarray) -> None:
        """One step of every lane; `ended` says which episodes the environment ended for good, `over` also those cut by time."""
        self.insert(running.begin(*before))
        running.step(action, *after[:2])
        success = np.asarray(self.task.success(after[1], running.desired))
        odd = unexplained(self.task, ended, after[1], running.desired)
        self.insert(running.take(over | running.full, odd & ~success, odd & success))
        self.advance(len(over))

    def insert(self, episodes: replay.Episodes | None) -> None:
        if episodes is not None:
            self.ring = self._insert(self.ring, episodes)
            self.episodes += int((np.asarray(episodes.length) > 0).sum())

    def advance(self, steps: int) -> None:
        """Count steps of the environments; every `update_every` of them the reward learns from the newest transitions."""
        before, self.steps = self.steps, self.steps + steps
        s = self.schedule
        if s.updates and self.episodes and before // s.update_every != self.steps // s.update_every:
            self.rounds += 1
            key = jax.random.fold_in(self.root, 2 * self.rounds)
            self.state, self.metrics = self._learn(self.state, self.ring, key, self.how)

    def draw(self, batch: int) -> Transition:
        """Transitions with hindsight goals: task reward, success and termination are those of the goal in force."""
        self.draws += 1
        return self._draw(self.ring, jax.random.fold_in(self.root, 2 * self.draws + 1), batch, self.how)

    def pay(self, batch: Transition) -> Float[np.ndarray, "*batch"]:
        """What the agent maximises."""
        value = np.asarray(self._pay(self.state, batch))
        if not np.isfinite(value).all():
            name = type(self.reward).__name__
            raise UserError(
                f"reward {name} is not finite after {self.steps} steps and {self.rounds} rounds of updates: its network blew up?"
            )
        return value

    def size(self) -> int:
        """Transitions that can be sampled."""
        span = np.asarray(self.ring.span)
        return int(span[1] - span[0])

    def statistics(self) -> dict[str, float]:
        """The metrics of the last round of updates, and what the buffer holds."""
        kept = {"buffer/transitions": float(self.size()), "buffer/episodes": float(self.episodes), "reward/rounds": float(self.rounds)}
        return {k: float(v) for k, v in self.metrics.items()} | kept

    # --- files: safetensors and JSON, never pickle ---------------------------------------------------------------------------------------

    def save(self, folder: str | Path, ring: bool) -> None:
        """The reward's state, and the stored episodes if asked, whole or not at all; what the folder held before is replaced."""
        rows = replay.used_rows(self.ring) if ring else 0
        trees = {"reward": self.state} | ({"ring": replay.trimmed(self.ring, rows)} if ring else {})
        counts = {"steps": self.steps, "episodes": self.episodes, "rounds": self.rounds, "draws": self.draws, "rows": rows}
        counts |= {"length": self.ring.table.shape[0]}
        named = {"reward": type(self.reward).__name__, "options": options_of(self.reward)}
        try:
            runs.save_checkpoint(Path(folder), 0, trees, counts | named)
        except OSError as e:
            raise UserError(f"cannot write to {folder}: {e.strerror or e}") from e

    def load(self, folder: str | Path, ring: bool) -> None:
        """What `save` wrote, of the same reward with the same options; a full ring only into one of the same length."""
        folder, meta = Path(folder), runs.load_meta(Path(folder), 0)
        self._check_reward(folder, meta)
        state = jax.tree.map(jnp.asarray, runs.load_tree(folder, 0, "reward", self.state))
        if ring:
            rows, length, here = runs.natural(meta, "rows"), runs.natural(meta, "length"), self.ring.table.shape[0]
            if not rows:
                raise UserError(f"{folder} holds a reward without episodes: use load_reward")
            if rows > here or rows == length != here:  # in a full ring places count modulo its length
                raise UserError(f"{folder} holds {rows} of {length} rows, this buffer has {here}: give it the same buffer_size")
            counts = {key: runs.natural(meta, key) for key in ("steps", "episodes", "rounds", "draws")}
            self.ring = replay.untrimmed(runs.load_tree(folder, 0, "ring", replay.trimmed(self.ring, rows)), self.ring)
            self.steps, self.episodes, self.rounds, self.draws = counts.values()
        self.state = state

    def _check_reward(self, folder: Path, meta: dict[str, Any]) -> None:
        """The same network pays something else under other options: refuse it."""
        name, saved = type(self.reward).__name__, meta.get("options")
        if meta.get("reward") != name:
            raise UserError(f"{folder} holds a reward {meta.get('reward')!r:.80}, not {name}")
        if not isinstance(saved, dict):
            raise UserError(f"{folder} doesn't say which options its reward had, as files of older versions: teach and save it again")
        had, here = options_of(type(self.reward)) | saved, options_of(self.reward)
        for key in here | had:
            if had.get(key) != here.get(key):
                raise UserError(f"{folder} holds a reward whose {key:.80} is {had.get(key)!r:.80}, not {here.get(key)!r:.80}")


def options_of(reward: Reward | type[Reward]) -> dict[str, Any]:
    """A reward's options, or a class's defaults, as JSON holds them: arrays by a digest, functions by their names."""

    def told(value: Any) -> Any:
        if isinstance(value, np.ndarray | jax.Array):
            return f"array {list(value.shape)} {hashlib.sha256(np.asarray(value, order='C').tobytes()).hexdigest()[:16]}"
        return json.loads(json.dumps(runs.plain(value), default=lambda x: getattr(x, "__qualname__", type(x).__qualname__)))

    made = isinstance(reward, Reward)
    values = {f.name: getattr(reward, f.name) if made else f.default for f in dataclasses.fields(reward)}
    return {key: told(value) for key, value in values.items() if value is not dataclasses.MISSING}


# --- the Gymnasium wrapper ---------------------------------------------------------------------------------------------------------------


class LearnedReward(gymnasium.Wrapper):
    """Pays a learned reward from `step`, for on-policy or foreign loops; the task's own is in `info["task_reward"]`.

    The reward learns from a ring of recent episodes every `update_every` steps, with hindsight goals as in Algorithm 1. Limits, next to the
    replay buffer of `aimrl.sb3`:

    - The agent's data are not relabelled: it only ever sees the goals it was given. On-policy agents can't use hindsight.
    - The reward is not stationary: a transition is paid by what the model knew when it was played. Loops that store rewards (any replay
      buffer) keep outdated ones; use short rollouts, or for replay `aimrl.sb3.AIMReplayBuffer`, which pays when it samples.
    - One environment, one model, unless `share` is another LearnedReward of the same process: then both use and teach its model.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        reward: str | Reward | None = None,  # aim, or what `share` has
        reward_options: dict[str, Any] | None = None,
        *,
        buffer_size: int = 10_000,  # transitions kept: the reward only learns from the newest `window`
        update_every: int = 100,
        updates: int = 100,
        update_batch: int = 256,
        window: int = 2_000,
        hindsight_options: dict[str, Any] | None = None,
        horizon: int | None = None,
        seed: int = 0,
        share: LearnedReward | None = None,
    ):
        super().__init__(env)
        if share is not None:
            if reward is not None or reward_options or hindsight_options:
                raise UserError("a LearnedReward that shares another's model takes its reward and options, too: give them to the other")
            self.learner = share.learner
            if share.observation_space != self.observation_space or share.action_space != self.action_space:
                raise UserError("a LearnedReward can only share the model of one around the same kind of environment")
        else:
            schedule = Schedule(update_every, updates, update_batch, window)
            made = make_reward("aim" if reward is None else reward, reward_options)
            spec, task = examine(env, horizon)
            self.learner = OnlineReward(made, spec, task, hindsight(task, **hindsight_options or {}), buffer_size, schedule, seed)
        self._running = Running(self.learner.spec, 1)
        self._achieved: list[np.ndarray] = []  # of the running episode, for rewards that ask for its moments
        self._state: State | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._state = None  # until there is a first one to go on from
        obs, info = self.env.reset(seed=seed, options=options)
        self.learner.insert(self._running.take(self._running.t > 0))  # an episode given up half-way was cut by time
        self._state = _flat(obs)
        self._achieved = [self._state[1][0]]
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._state is None:
            raise UserError("call reset before step")
        obs, task_reward, terminated, truncated, info = self.env.step(action)
        before, self._state = self._state, None  # a state that is refused has no next one
        after, act = _flat(obs), flat_action(action, self.action_space, 1)
        self._achieved.append(after[1][0])
        paid = float(self.learner.pay(self._transition(before, act, after, float(task_reward), terminated))[0])
        self.learner.record(self._running, before, act, after, np.array([terminated]), np.array([terminated or truncated]))
        self._state = after
        return obs, paid, terminated, truncated, info | {"task_reward": float(task_reward)}

    def save_reward(self, folder: str | Path) -> None:
        """Write the learned model to a folder, in safetensors."""
        self.learner.save(folder, ring=False)

    def load_reward(self, folder: str | Path) -> None:
        self.learner.load(folder, ring=False)

    def _transition(self, before: State, action: np.ndarray, after: State, task_reward: float, terminated: bool) -> Transition:
        (obs, achieved, desired), (next_obs, next_achieved, _) = before, after
        columns: dict[str, Any] = {
            "obs": obs,
            "action": action,
            "next_obs": next_obs,
            "achieved": achieved,
            "next_achieved": next_achieved,
            "goal": desired,
            "desired": desired,
            "future": next_achieved,
            "future_steps": np.ones(1, np.int32),
            "relabelled": np.zeros(1, bool),
            "task_reward": np.array([task_reward], np.float32),
            "success": np.asarray(self.learner.task.success(next_achieved, desired)),
            "terminated": np.array([terminated]),
        }
        if self.learner.reward.needs_prefix:
            states = np.stack(self._achieved)
            columns |= {"prefix_mean": states.mean(0)[None], "prefix_var": states.var(0)[None]}
        return Transition(**columns)


def _flat(obs: dict[str, Any]) -> State:
    observation, achieved, desired = (np.array(obs[key], np.float32).reshape(1, -1) for key in guard.KEYS)  # it may write over its own
    if not all(np.isfinite(x).all() for x in (observation, achieved, desired)):
        raise UserError("the environment's observation is not finite: nothing to learn from it")
    return observation, achieved, desired
