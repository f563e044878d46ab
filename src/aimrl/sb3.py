"""The same rewards inside Stable-Baselines3 and SBX: a replay buffer with hindsight and learned rewards, and a callback for its logger."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

from aimrl.rewards.base import Reward
from aimrl.types import Transition, UserError
from aimrl.wrapper import OnlineReward, Running, Schedule, examine, flat_action, hindsight, make_reward

try:
    import torch
    from stable_baselines3.common.buffers import BaseBuffer
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize
    from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
except ImportError as e:
    raise UserError(f"aimrl.sb3 needs Stable-Baselines3 ({e}): in the checkout, pip install -e '.[sb3]'") from e

GOALS = ("achieved_goal", "desired_goal")


class AIMReplayBuffer(HerReplayBuffer):
    """Hindsight replay that pays a learned reward when it samples; HerReplayBuffer's arguments, and which reward.

    It is a HerReplayBuffer only by name: that is how Stable-Baselines3 knows which buffers get the environment. Episodes live in
    `aimrl.replay`, goals, rewards and terminations are recomputed there for every sample; nothing of the parent's storage is used.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        env: VecEnv,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",  # future, final, episode, random or none
        copy_info_dict: bool = False,
        *,
        reward: str | Reward = "aim",
        reward_options: dict[str, Any] | None = None,  # fields of the reward
        update_every: int = 100,  # transitions added between two rounds of updates of the reward
        updates: int = 100,  # updates a round
        update_batch: int = 256,
        window: int = 2_000,  # the newest transitions, from which the reward learns
        hindsight_options: dict[str, Any] | None = None,  # more fields of aimrl.replay.Hindsight: redraws, moved_fraction, …
        horizon: int | None = None,  # the longest episode, where the environment doesn't say
        seed: int | None = None,  # None: the model's
    ):
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        if optimize_memory_usage:
            raise UserError("leave optimize_memory_usage out: this buffer stores every state once as it is")
        if copy_info_dict:
            raise UserError("leave copy_info_dict out: goals are judged by compute_reward with an empty info")
        if not handle_timeout_termination:
            raise UserError("leave handle_timeout_termination on: a time limit is not an end here, values go on beyond it")
        if n_sampled_goal < 0:
            raise UserError(f"n_sampled_goal must not be negative, it is {n_sampled_goal}")
        schedule = Schedule(update_every, updates, update_batch, window)
        made = make_reward(reward, reward_options)
        self.env, self.buffer_size, self.handle_timeout_termination = env, max(buffer_size // n_envs, 1), True
        spec, task = examine(_one_env(env), horizon)
        self.parts: dict[str, spaces.Space] = dict(observation_space.spaces)  # pyright: ignore[reportAttributeAccessIssue]
        self.keys = [key for key in self.parts if key not in GOALS]  # every other part is the observation, flat
        spec = dataclasses.replace(spec, obs_dim=sum(int(np.prod(self.obs_shape[key])) for key in self.keys))
        strategy = getattr(goal_selection_strategy, "name", goal_selection_strategy)  # SB3's enumeration, or a name
        options = {"strategy": str(strategy).lower(), "ratio": 1 - 1 / (n_sampled_goal + 1)} | (hindsight_options or {})
        seed = torch.initial_seed() % 2**31 if seed is None else seed  # the model has just set it, if it was given one
        self.learner = OnlineReward(made, spec, task, hindsight(task, **options), self.buffer_size * n_envs, schedule, seed)
        self._running = Running(spec, n_envs)
        self._last: tuple[Transition, np.ndarray] | None = None

    def add(self, obs: Any, next_obs: Any, action: np.ndarray, reward: np.ndarray, done: np.ndarray, infos: list[dict[str, Any]]) -> None:
        done = np.asarray(done, bool)
        truncated = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        acted = flat_action(action, self.action_space, self.n_envs)
        self.learner.record(self._running, self._flat(obs), acted, self._flat(next_obs), done & ~truncated, done)
        self.pos += 1
        self.full, self.pos = self.full or self.pos == self.buffer_size, self.pos % self.buffer_size

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> DictReplayBufferSamples:
        """A batch on the model's device; `env` normalises observations, and the task's part of the reward (its statistics are of that)."""
        if not self.learner.episodes:
            least = self.learner.spec.horizon * self.n_envs
            raise UserError(f"no episode has ended yet: set learning_starts to at least {least} (episode length × environments)")
        data = self.learner.draw(batch_size)
        if env is not None:
            data = data._replace(task_reward=env.normalize_reward(np.asarray(data.task_reward)))
        paid = self.learner.pay(data)
        self._last = data, paid
        return DictReplayBufferSamples(
            observations=self._tensors(data.obs, data.achieved, data.goal, env),
            actions=self._actions(np.asarray(data.action)),
            next_observations=self._tensors(data.next_obs, data.next_achieved, data.goal, env),
            dones=self.to_torch(np.asarray(data.terminated, np.float32).reshape(-1, 1)),
            rewards=self.to_torch(paid.reshape(-1, 1)),
        )

    def statistics(self) -> dict[str, float]:
        """The reward's metrics, what the buffer holds, and the last sampled batch."""
        stats = self.learner.statistics()
        if self._last is not None:
            data, paid = self._last
            stats |= {"reward/mean": float(paid.mean()), "reward/std": float(paid.std())}
            stats |= {"reward/success": float(np.mean(data.success)), "buffer/relabelled": float(np.mean(data.relabelled))}
        return stats

    def size(self) -> int:
        return self.learner.size()

    def truncate_last_trajectory(self) -> None:
        """Keep the running episodes as if cut by time."""
        self.learner.insert(self._running.take(self._running.t > 0))

    # --- files ---------------------------------------------------------------------------------------------------------------------------

    def save_reward(self, folder: str | Path) -> None:
        """Write the learned reward to a folder, in safetensors."""
        self.learner.save(folder, ring=False)

    def load_reward(self, folder: str | Path) -> None:
        self.learner.load(folder, ring=False)

    def save(self, folder: str | Path) -> None:
        """Write the reward and all finished episodes to a folder, in safetensors."""
        self.learner.save(folder, ring=True)

    def load(self, folder: str | Path) -> None:
        self.learner.load(folder, ring=True)
        self._running = Running(self.learner.spec, self.n_envs)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UserError("Stable-Baselines3 saves replay buffers by pickle, which aimrl never does: use model.replay_buffer.save(folder)")

    # --- between SB3's dictionaries and flat rows ----------------------------------------------------------------------------------------

    def _flat(self, obs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = {key: np.asarray(obs[key], np.float32).reshape(self.n_envs, -1) for key in (*self.keys, *GOALS)}
        for key, value in rows.items():
            if not np.isfinite(value).all():
                bad = int(np.flatnonzero(~np.isfinite(value).all(-1))[0])
                raise UserError(f"environment {bad}: {key} is not finite after {self.learner.steps} steps; it was not stored")
        return np.concatenate([rows[key] for key in self.keys], -1), rows["achieved_goal"], rows["desired_goal"]

    def _tensors(self, obs: Any, achieved: Any, goal: Any, env: VecNormalize | None) -> dict[str, torch.Tensor]:
        widths = [int(np.prod(self.obs_shape[key])) for key in self.keys]
        parts = dict(zip(self.keys, np.split(np.asarray(obs), np.cumsum(widths)[:-1], axis=-1)))
        parts |= {"achieved_goal": np.asarray(achieved), "desired_goal": np.asarray(goal)}
        shaped: Any = {}
        for key, space in self.parts.items():
            kind = np.dtype(space.dtype)
            shaped[key] = parts[key].reshape(-1, *self.obs_shape[key]).astype(np.float32 if kind.kind == "f" else kind)
        normalised: Any = self._normalize_obs(shaped, env)
        return {key: self.to_torch(value) for key, value in normalised.items()}

    def _actions(self, action: np.ndarray) -> torch.Tensor:
        if isinstance(self.action_space, spaces.Discrete):
            return self.to_torch(action.argmax(-1, keepdims=True) + int(self.action_space.start))
        return self.to_torch(action)


class LogReward(BaseCallback):
    """Adds the buffer's statistics to the model's logger: `model.learn(…, callback=LogReward())`."""

    def _on_step(self) -> bool:
        buffer = getattr(self.model, "replay_buffer", None)
        if not isinstance(buffer, AIMReplayBuffer):
            raise UserError("LogReward needs a model with replay_buffer_class=AIMReplayBuffer")
        if np.any(self.locals["dones"]):  # SB3 writes its log when an episode ends
            for name, value in buffer.statistics().items():
                self.logger.record(name, value)
        return True


def _one_env(env: VecEnv) -> gymnasium.Env:
    """One environment of a vector: its own first one, or where they live in other processes, one made again from its registration."""
    inner = getattr(env.unwrapped, "envs", None)
    if inner:
        return inner[0]
    registered = env.get_attr("spec", indices=[0])[0]
    if registered is None:
        raise UserError(
            "environments of other processes must be registered with Gymnasium: hindsight needs one of them here (or DummyVecEnv)"
        )
    return gymnasium.make(registered)
