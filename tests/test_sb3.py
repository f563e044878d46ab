"""The replay buffer inside the real Stable-Baselines3, sb3-contrib and SBX."""

import dataclasses
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sb3_contrib
import sbx
import stable_baselines3 as sb3
import torch
from problems import point_goal
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from aimrl import rewards
from aimrl.envs.vector import make_single
from aimrl.rewards.base import Reward
from aimrl.sb3 import AIMReplayBuffer, LogReward
from aimrl.types import Transition, UserError
from aimrl.wrapper import LearnedReward, make_reward

torch.set_num_threads(1)
QUICK = {"update_every": 15, "updates": 2, "update_batch": 16}
PLAIN = {  # AIM as `rewards.make("aim")` makes it, where the buffer's own default is preset fast's
    "reward_options": {
        "shape": "free",
        "form": "biased",
        "normalise": "std",
        "standardise": False,
        "lipschitz_weight": 10.0,
        "moving_only": False,
        "rest": False,
        "worst": float("inf"),
    }
}


class Labelled(gym.Env):
    """Every achieved goal names the environment, the episode and the step: what belongs together can be read off a sample."""

    def __init__(self, name: int = 0, length: int = 5, ends: str = "by time", discrete: bool = False, picture: bool = False):
        box = gym.spaces.Box(-1e3, 1e3, (3,), np.float64)
        parts = {"observation": box, "achieved_goal": box, "desired_goal": box}
        if picture:
            parts["picture"] = gym.spaces.Box(0, 255, (2, 3), np.uint8)
        self.observation_space = gym.spaces.Dict(parts)
        self.action_space = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.name, self.length, self.ends, self.episode, self.t = name, length, ends, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        over = self.t >= self.length
        goal = self._obs()["desired_goal"]
        if self.ends == "at the goal" and over:
            goal = self._obs()["achieved_goal"]  # met by definition
        reward = float(self.compute_reward(self._obs()["achieved_goal"], goal, {}))
        return self._obs(), reward, over and self.ends != "by time", over and self.ends == "by time", {}

    def compute_reward(self, achieved, desired, info):
        return -(np.abs(np.asarray(achieved) - np.asarray(desired)).max(-1) > 0.5).astype(np.float32)

    def _obs(self):
        at = np.array([self.name, self.episode, self.t], np.float64)
        goal = np.array([self.name, self.episode, self.length if self.ends == "at the goal" else 99.0])
        obs = {"observation": 10 * at, "achieved_goal": at, "desired_goal": goal}
        if "picture" in self.observation_space.spaces:
            obs["picture"] = np.full((2, 3), 40 + self.t, np.uint8)
        return obs


def labelled(n: int = 1, **options: Any) -> DummyVecEnv:
    """Environments whose episodes have different lengths, so that they end at different times."""
    make = lambda i: lambda: gym.wrappers.TimeLimit(Labelled(i, 5 + 2 * i, **options), 20)  # noqa: E731
    return DummyVecEnv([make(i) for i in range(n)])


def buffer_of(vec: Any, **options: Any) -> AIMReplayBuffer:
    options = {"reward": "sparse", "updates": 0, "buffer_size": 200, "seed": 0} | options
    size = options.pop("buffer_size")
    return AIMReplayBuffer(size, vec.observation_space, vec.action_space, vec, "cpu", vec.num_envs, **options)


def play(buffer: AIMReplayBuffer, vec: Any, steps: int) -> None:
    """What SB3's loop does with a buffer: random actions, the true last observation in place of the next episode's first."""
    rng, obs = np.random.default_rng(0), vec.reset()
    for _ in range(steps):
        space = vec.action_space
        discrete = isinstance(space, gym.spaces.Discrete)
        action = rng.integers(3, size=vec.num_envs) if discrete else rng.uniform(-1, 1, (vec.num_envs, 2)).astype(np.float32)
        next_obs, reward, done, infos = vec.step(action)
        stored = {k: v.copy() for k, v in next_obs.items()}
        for i in np.flatnonzero(done):
            for key in stored:
                stored[key][i] = infos[i]["terminal_observation"][key]
        buffer.add(obs, stored, action, reward, done, infos)
        obs = next_obs


def arrays(sample: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray, np.ndarray]:
    numpy = lambda part: {k: v.numpy() for k, v in part.items()}  # noqa: E731
    return numpy(sample.observations), numpy(sample.next_observations), sample.rewards.numpy(), sample.dones.numpy()


def transition(sample: Any) -> Transition:
    """The parts of a transition that AIM needs, from nothing but the tensors SB3 gets."""
    obs, nxt, _, _ = arrays(sample)
    known = {"achieved": obs["achieved_goal"], "next_achieved": nxt["achieved_goal"], "goal": obs["desired_goal"]}
    return Transition(**{k: known.get(k) for k in Transition._fields})


AGENTS = {
    "TD3": sb3.TD3,
    "SAC": sb3.SAC,
    "DDPG": sb3.DDPG,
    "TQC": sb3_contrib.TQC,
    "SBX TD3": sbx.TD3,
    "SBX SAC": sbx.SAC,
    "SBX TQC": sbx.TQC,
}


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_learns_from_relabelled_learned_rewards(name):
    vec = DummyVecEnv([lambda: point_goal(horizon=8)] * 2)
    options = {"learning_starts": 20, "batch_size": 64, "buffer_size": 500, "policy_kwargs": {"net_arch": [8]}, "seed": 1}
    agent = AGENTS[name]("MultiInputPolicy", vec, replay_buffer_class=AIMReplayBuffer, replay_buffer_kwargs=QUICK | PLAIN, **options)
    agent.learn(36)
    buffer = agent.replay_buffer
    assert agent._n_updates > 0
    assert buffer.learner.rounds == 2
    sample = buffer.sample(64)
    obs, nxt, paid, dones = arrays(sample)
    assert {k: v.shape for k, v in obs.items()} == dict.fromkeys(("observation", "achieved_goal", "desired_goal"), (64, 2))
    assert sample.actions.shape == (64, 2)
    assert paid.shape == dones.shape == (64, 1)
    assert {sample.rewards.dtype, sample.actions.dtype, sample.observations["observation"].dtype} == {torch.float32}
    assert sample.rewards.device == buffer.device
    np.testing.assert_array_equal(obs["desired_goal"], nxt["desired_goal"])
    truth = rewards.make("aim").reward(buffer.learner.state, transition(sample))
    np.testing.assert_allclose(paid[:, 0], truth, rtol=1e-4, atol=1e-5)
    fresh = rewards.make("aim").init(buffer.learner.root, buffer.learner.spec)
    assert np.abs(paid[:, 0] - rewards.make("aim").reward(fresh, transition(sample))).max() > 1e-3  # it has learned


def test_goals_come_from_later_states_of_the_same_episode_when_environments_are_interleaved():
    vec = labelled(3)
    buffer = buffer_of(vec, n_sampled_goal=4)
    play(buffer, vec, 60)
    assert buffer.size() == 60 + 56 + 54  # whole episodes of 5, 7 and 9 steps
    obs, nxt, paid, dones = arrays(buffer.sample(2_000))
    at, then, goal = obs["achieved_goal"], nxt["achieved_goal"], obs["desired_goal"]
    assert set(at[:, 0]) == {0.0, 1.0, 2.0}
    np.testing.assert_array_equal(then - at, np.tile([0, 0, 1], (2_000, 1)))
    relabelled = goal[:, 2] != 99
    assert 0.76 < relabelled.mean() < 0.84
    np.testing.assert_array_equal(goal[:, :2], at[:, :2])
    assert (goal[relabelled, 2] > at[relabelled, 2]).all()
    met = (then == goal).all(-1)
    np.testing.assert_array_equal(paid[:, 0], np.where(met, 0.0, -1.0))  # played rewards were all −1
    assert met.any()
    assert not dones.any()  # episodes were cut by time


def test_a_reset_in_the_middle_of_an_episode_never_joins_two_episodes():
    vec = labelled(1)
    buffer = buffer_of(vec, goal_selection_strategy="none")
    for _ in range(3):
        play(buffer, vec, 8)  # 5 steps, then 3 of a second episode, given up
    buffer.truncate_last_trajectory()
    obs, nxt, *_ = arrays(buffer.sample(500))
    assert buffer.size() == 24
    np.testing.assert_array_equal(nxt["achieved_goal"] - obs["achieved_goal"], np.tile([0, 0, 1], (500, 1)))


@pytest.mark.parametrize("ends", ["at the goal", "by a failure"])
def test_termination_is_recomputed_for_relabelled_goals(ends):
    vec = labelled(1, ends=ends)
    buffer = buffer_of(vec)
    play(buffer, vec, 20)
    obs, nxt, _, dones = arrays(buffer.sample(500))
    last, met = nxt["achieved_goal"][:, 2] == 5, (nxt["achieved_goal"] == obs["desired_goal"]).all(-1)
    assert (met & ~last).any()
    assert (last & ~met).any() or ends == "at the goal"
    # A failure ends every goal's episode, and only it; the goal ends it wherever hindsight put it.
    np.testing.assert_array_equal(dones[:, 0], met if ends == "at the goal" else last)


def test_success_terminates_when_asked_though_the_environment_goes_on():
    vec = labelled(1)
    buffer = buffer_of(vec, hindsight_options={"success_terminates": True})
    play(buffer, vec, 20)
    obs, nxt, _, dones = arrays(buffer.sample(300))
    np.testing.assert_array_equal(dones[:, 0], (nxt["achieved_goal"] == obs["desired_goal"]).all(-1))
    assert dones.any()


def test_vec_normalize_scales_observations_and_the_task_reward_but_not_the_learned_one():
    vec = VecNormalize(DummyVecEnv([lambda: point_goal(horizon=5)]))
    agent = sb3.TD3(
        "MultiInputPolicy",
        vec,
        replay_buffer_class=AIMReplayBuffer,
        replay_buffer_kwargs=QUICK | PLAIN | {"reward": "aim+r"},
        learning_starts=30,
        policy_kwargs={"net_arch": [8]},
        seed=0,
    )
    agent.learn(35)
    sample = agent.replay_buffer.sample(256, env=vec)
    data, paid = agent.replay_buffer._last
    obs, *_ = arrays(sample)
    mean, var = vec.obs_rms["observation"].mean, vec.obs_rms["observation"].var
    np.testing.assert_allclose(obs["observation"], (np.asarray(data.obs) - mean) / np.sqrt(var + vec.epsilon), rtol=1e-3, atol=1e-3)
    assert 1.0 < np.asarray(data.obs).mean() < 2.0  # stored as they were
    task = vec.venv.envs[0].unwrapped.compute_reward(np.asarray(data.next_achieved), np.asarray(data.goal), {})
    learned = rewards.make("aim").reward(agent.replay_buffer.learner.state, data)
    np.testing.assert_allclose(paid, learned + task / np.sqrt(vec.ret_rms.var + vec.epsilon), rtol=1e-4, atol=1e-4)


def test_other_parts_of_a_dict_observation_and_discrete_actions_come_back_as_they_were():
    vec = labelled(2, discrete=True, picture=True)
    buffer = buffer_of(vec)
    play(buffer, vec, 20)
    sample = buffer.sample(100)
    obs, nxt, *_ = arrays(sample)
    assert obs["picture"].shape == (100, 2, 3)
    assert obs["picture"].dtype == np.uint8
    np.testing.assert_array_equal(nxt["picture"][:, 1, 2], 40 + nxt["achieved_goal"][:, 2])
    np.testing.assert_array_equal(obs["observation"], 10 * obs["achieved_goal"])
    assert set(sample.actions[:, 0].tolist()) == {0, 1, 2}
    assert sample.actions.dtype == torch.int64
    agent = sb3.DQN("MultiInputPolicy", labelled(1, discrete=True), replay_buffer_class=AIMReplayBuffer, replay_buffer_kwargs=QUICK)
    agent.learning_starts = 20
    agent.learn(25)
    assert agent._n_updates > 0


def test_longer_episodes_than_the_horizon_are_kept_in_pieces():
    vec = DummyVecEnv([lambda: Labelled(0, 30)])
    with pytest.raises(UserError, match="no time limit"):
        buffer_of(vec)
    buffer = buffer_of(vec, horizon=8)
    play(buffer, vec, 24)
    obs, nxt, *_ = arrays(buffer.sample(300))
    assert buffer.size() == 24
    np.testing.assert_array_equal(nxt["achieved_goal"] - obs["achieved_goal"], np.tile([0, 0, 1], (300, 1)))


def test_environments_of_other_processes_are_judged_by_one_made_here():
    vec = SubprocVecEnv([lambda: gym.make("point_env:Point-v0")])
    try:
        buffer = buffer_of(vec, reward="dense")
    finally:
        vec.close()
    assert buffer.learner.spec.horizon == 10


def test_the_same_seed_gives_the_same_samples_and_another_seed_others():
    def made(seed: int) -> AIMReplayBuffer:
        torch.manual_seed(seed)  # as SB3 does with a model's seed before it makes the buffer
        return buffer_of(labelled(1), seed=None)

    def drawn(buffer: AIMReplayBuffer) -> np.ndarray:
        play(buffer, labelled(1), 20)
        return arrays(buffer.sample(50))[0]["desired_goal"]

    np.testing.assert_array_equal(drawn(made(3)), drawn(made(3)))
    assert made(3).learner.root == made(3).learner.root
    assert made(3).learner.root != made(4).learner.root


SEEN = {  # rewards that learn nothing, from nothing but what SB3 gets; episodes of Labelled count their steps t in the last feature
    "sparse": lambda x, goal: np.zeros(len(x)),
    "dense": lambda x, goal: -np.linalg.norm(x - goal, axis=-1),
    "disco": lambda x, goal: -0.5 * np.square(x - goal).sum(-1),
    "smirl": lambda x, goal: _smirl(x[:, 2]),
}
TASK_WEIGHT = dict.fromkeys(("aim", "dense", "fairl", "fairl-", "wgan"), 0.0)  # the others are paid with the task's reward


def _smirl(t: np.ndarray) -> np.ndarray:
    """log N of step t under the moments of 0, …, t, and of two features that stay as they are, whose variance is the floor."""
    var = ((t + 1) ** 2 - 1) / 12
    return -0.5 * (3 * t**2 / ((t + 1) ** 2 - 1) + np.log(2 * np.pi * var)) - np.log(2 * np.pi * 0.01)


@pytest.mark.parametrize("name", rewards.NAMES)
def test_every_reward_by_name_learns_and_is_paid_as_by_its_own_formula(name):
    vec = labelled(2)
    known = {f.name for f in dataclasses.fields(rewards.make(name))}
    tiny = {k: v for k, v in {"hidden": (4,), "warmup": 1}.items() if k in known}
    buffer = buffer_of(vec, reward=name, reward_options=tiny, **QUICK | {"updates": 20})
    play(buffer, vec, 30)
    assert buffer.learner.rounds == 4
    sample = buffer.sample(200)
    obs, nxt, paid, _ = arrays(sample)
    x, goal = nxt["achieved_goal"], obs["desired_goal"]
    task = Labelled().compute_reward(x, goal, {})
    assert set(task) == {-1.0, 0.0}
    learned = paid[:, 0] - TASK_WEIGHT.get(name, 1.0) * task
    if name in SEEN:
        np.testing.assert_allclose(learned, SEEN[name](x, goal), rtol=1e-4, atol=1e-4)
    else:
        batch = transition(sample)._replace(success=task == 0.0)
        one = make_reward(name, tiny)
        np.testing.assert_allclose(learned, one.reward(buffer.learner.state, batch), rtol=1e-4, atol=1e-4)
        fresh = one.init(jax.random.fold_in(buffer.learner.root, 0), buffer.learner.spec)
        assert np.abs(learned - one.reward(fresh, batch)).max() > 1e-3  # it has learned
        assert np.isfinite(learned).all()
        assert learned.std() > 1e-3


@pytest.mark.parametrize("name", ["aim", "aim+r"])
def test_buffer_and_wrapper_have_the_same_default_reward(name):
    """The wrapper had the paper's free potential of raw goals."""
    buffer, wrapper = buffer_of(labelled(1), reward=name), LearnedReward(point_goal(), name)
    assert buffer.learner.reward == wrapper.learner.reward
    fields = wrapper.learner.reward
    assert (fields.shape, fields.standardise, fields.knee, fields.worst) == ("metric", True, 0.0, 2.0)
    assert fields.task_weight == float(name == "aim+r")


# --- files and logs ----------------------------------------------------------------------------------------------------------------------


def test_the_reward_and_the_episodes_are_saved_without_pickle(tmp_path):
    def make(**options: Any) -> AIMReplayBuffer:
        return buffer_of(labelled(1), reward="aim", reward_options={"standardise": True}, **QUICK | options)

    taught, other = make(), make(seed=5)
    play(taught, labelled(1), 33)
    taught.save_reward(tmp_path / "reward")
    taught.save(tmp_path / "all")
    assert {p.suffix for p in tmp_path.rglob("*") if p.is_file()} == {".safetensors", ".json"}

    data = taught.learner.draw(32)
    assert np.abs(other.learner.pay(data) - taught.learner.pay(data)).max() > 1e-3
    other.load_reward(tmp_path / "reward")
    np.testing.assert_array_equal(other.learner.pay(data), taught.learner.pay(data))
    assert other.size() == 0

    other.load(tmp_path / "all")
    other.learner.root, other.learner.draws = taught.learner.root, taught.learner.draws  # it was made with another seed, and had no draw
    assert other.size() == taught.size() == 30
    for a, b in zip(other.sample(32), taught.sample(32)):
        if isinstance(a, torch.Tensor):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    with pytest.raises(UserError, match="without episodes"):
        make().load(tmp_path / "reward")
    with pytest.raises(UserError, match="holds a reward 'AIM', not RND"):
        buffer_of(labelled(1), reward="rnd").load_reward(tmp_path / "reward")
    with pytest.raises(UserError, match="no checkpoint"):
        other.load_reward(tmp_path / "nowhere")


def in_step(sample: Any) -> bool:
    """Do all sampled transitions go on by one step of one episode?"""
    obs, nxt, *_ = arrays(sample)
    return bool((nxt["achieved_goal"] - obs["achieved_goal"] == [0, 0, 1]).all())


def test_a_full_ring_is_only_loaded_into_one_of_the_same_size(tmp_path):
    """Places in it count modulo its length: a larger buffer sampled rows of different episodes, and of none."""
    full, young = buffer_of(labelled(1), buffer_size=30), buffer_of(labelled(1), buffer_size=30)
    play(full, labelled(1), 75)
    play(young, labelled(1), 20)
    full.save(tmp_path / "full")
    young.save(tmp_path / "young")
    same, larger = buffer_of(labelled(1), buffer_size=30), buffer_of(labelled(1), buffer_size=60)
    same.load(tmp_path / "full")
    assert same.size() == full.size() >= 30
    for size in (10, 60):
        with pytest.raises(UserError, match="give it the same buffer_size") as caught:
            buffer_of(labelled(1), buffer_size=size).load(tmp_path / "full")
        assert "\n" not in str(caught.value)
    larger.load(tmp_path / "young")  # it had not come round yet
    assert larger.size() == 20
    for buffer in (same, larger):
        assert in_step(buffer.sample(300))
        play(buffer, labelled(1), 50)
        assert in_step(buffer.sample(300))
    assert larger.size() >= 60


def test_that_episodes_end_at_the_goal_is_saved_with_them_but_what_was_asked_for_is_not(tmp_path):
    """A wrapper's ends at the goal are seen, not told; a loaded buffer didn't know of them until the next one."""
    seen, asked = buffer_of(labelled(1, ends="at the goal")), buffer_of(labelled(1), hindsight_options={"success_terminates": True})
    play(seen, labelled(1, ends="at the goal"), 20)
    play(asked, labelled(1), 20)
    for buffer, ends in ((seen, True), (asked, False)):
        buffer.save(tmp_path / str(ends))
        again = buffer_of(labelled(1))
        again.load(tmp_path / str(ends))
        obs, nxt, _, dones = arrays(again.sample(300))
        met = (nxt["achieved_goal"] == obs["desired_goal"]).all(-1)
        assert met.any()
        np.testing.assert_array_equal(dones[:, 0], met & ends)


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda meta: {"length": None}, "'length' is None, not a count"),
        (lambda meta: {"rows": 10**9}, "give it the same buffer_size"),
        (lambda meta: {"rows": meta["rows"] - 1}, "ring.safetensors"),
        (lambda meta: {"options": meta["options"] | {"x" * 10**5: [[1] * 10**5]}}, "holds a reward whose xxx"),
        (lambda meta: {"reward": "AIM" * 10**5}, "not Sparse"),
        (None, "truncated or not a safetensors file"),
    ],
)
def test_a_hostile_or_truncated_file_is_told_in_one_line_and_changes_nothing(spoil, line, tmp_path):
    buffer = buffer_of(labelled(1))
    play(buffer, labelled(1), 20)
    buffer.save(tmp_path)
    path = tmp_path / "checkpoints" / "0" / "meta.json"
    if spoil is None:
        ring = path.with_name("ring.safetensors")
        ring.write_bytes(ring.read_bytes()[:40])
    else:
        meta = json.loads(path.read_text())
        path.write_text(json.dumps(meta | spoil(meta)))
    fresh = buffer_of(labelled(1))
    with pytest.raises(UserError, match=re.escape(line)) as caught:
        fresh.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert fresh.size() == fresh.learner.episodes == 0


class _Heard(BaseCallback):
    """What the logger holds whenever it is about to be written."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()

    def _on_step(self) -> bool:
        self.names |= set(self.logger.name_to_value)
        return True


def test_the_logger_shows_the_reward_and_models_save_and_load_but_buffers_are_not_pickled(tmp_path):
    agent = sb3.TD3(
        "MultiInputPolicy",
        point_goal(horizon=5),
        replay_buffer_class=AIMReplayBuffer,
        replay_buffer_kwargs=QUICK,
        learning_starts=10,
        policy_kwargs={"net_arch": [8]},
    )
    heard = _Heard()
    agent.learn(40, callback=[LogReward(), heard], log_interval=1)
    assert {"aim/w1", "aim/loss", "reward/mean", "reward/success", "buffer/transitions", "buffer/relabelled"} <= heard.names
    with pytest.raises(UserError, match=re.escape("use model.replay_buffer.save(folder)")):
        agent.save_replay_buffer(io.BytesIO())
    agent.save(tmp_path / "model.zip")
    again = sb3.TD3.load(tmp_path / "model.zip", env=point_goal(horizon=5))
    assert isinstance(again.replay_buffer, AIMReplayBuffer)
    again.learn(20)
    plain = sb3.TD3("MultiInputPolicy", point_goal(horizon=5), policy_kwargs={"net_arch": [8]})
    with pytest.raises(UserError, match="LogReward needs a model"):
        plain.learn(10, callback=LogReward())


# --- bad input ---------------------------------------------------------------------------------------------------------------------------


class Broken(Reward):
    needs_prefix: ClassVar[bool] = False
    task_weight: float = eqx.field(default=0.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def init(self, key, spec):
        return None

    def update(self, state, batches, key):
        return None, {}

    def reward(self, state, batch):
        return jnp.full(batch.success.shape, jnp.nan)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"reward": "aimm"}, "unknown reward 'aimm': did you mean aim"),
        ({"reward": "aim", "reward_options": {"step_bund": 1}}, "step_bound"),
        ({"goal_selection_strategy": "futur"}, "did you mean future"),
        ({"hindsight_options": {"redraw": 1}}, "did you mean redraws"),
        ({"hindsight_options": {"ratio": 1.5}}, "between 0 and 1"),
        ({"update_every": 0}, "update_every must be a whole number of at least 1, not 0"),
        ({"n_sampled_goal": -1}, "n_sampled_goal"),
        ({"optimize_memory_usage": True}, "optimize_memory_usage"),
        ({"copy_info_dict": True}, "copy_info_dict"),
        ({"handle_timeout_termination": False}, "handle_timeout_termination"),
        ({"buffer_size": 10**12}, "lower buffer_size"),
    ],
)
def test_bad_options_are_told_in_one_line(options, line):
    with pytest.raises(UserError, match=re.escape(line)) as caught:
        buffer_of(labelled(1), **options)
    assert "\n" not in str(caught.value)


def test_an_environment_without_goals_is_refused_in_one_line():
    with pytest.raises(UserError, match="not a goal environment"):
        sb3.TD3("MlpPolicy", "Pendulum-v1", replay_buffer_class=AIMReplayBuffer, replay_buffer_kwargs={"reward": "aim"})


def test_too_early_a_sample_a_nan_observation_and_a_nan_reward_are_told():
    vec = labelled(2)
    buffer = buffer_of(vec, reward=Broken())
    with pytest.raises(UserError, match="set learning_starts to at least 40"):
        buffer.sample(4)
    play(buffer, vec, 10)
    before = buffer.size()
    with pytest.raises(UserError, match="reward Broken is not finite"):
        buffer.sample(4)
    obs = vec.reset()
    bad = {k: v.copy() for k, v in obs.items()}
    bad["achieved_goal"][1, 0] = np.nan
    with pytest.raises(UserError, match="environment 1: achieved_goal is not finite"):
        buffer.add(obs, bad, np.zeros((2, 2)), np.zeros(2), np.zeros(2, bool), [{}, {}])
    assert buffer.size() == before


# --- learning and documentation ----------------------------------------------------------------------------------------------------------


def success_rate(agent: Any, norm: VecNormalize, episodes: int = 20) -> float:
    """Share of episodes at the goal after 25 steps of the deterministic policy."""
    env, hits = make_single("FetchReach-v4"), []
    for seed in range(episodes):
        obs, info = env.reset(seed=10_000 + seed)
        for _ in range(25):
            obs, _, _, _, info = env.step(agent.predict(norm.normalize_obs(obs), deterministic=True)[0])
        hits.append(info["is_success"])
    env.close()
    return float(np.mean(hits))


@pytest.mark.slow
def test_td3_with_aim_beats_plain_her_on_fetch_reach_at_the_same_steps():
    def trained(seed: int, buffer: Any, **options: Any) -> float:
        vec = VecNormalize(DummyVecEnv([lambda: make_single("FetchReach-v4")]), norm_reward=False)
        agent = sb3.TD3(
            "MultiInputPolicy",
            vec,
            replay_buffer_class=buffer,
            replay_buffer_kwargs=options,
            learning_starts=1_000,
            batch_size=256,
            buffer_size=10_000,
            gamma=0.9,
            tau=0.05,
            action_noise=NormalActionNoise(np.zeros(4), np.full(4, 0.5)),
            policy_kwargs={"net_arch": [64, 64]},
            seed=seed,
            device="cpu",
        )
        return success_rate(agent.learn(1_500), vec)

    aim = np.mean([trained(seed, AIMReplayBuffer, reward="aim", reward_options={"standardise": True}) for seed in (0, 1)])
    her = np.mean([trained(seed, sb3.HerReplayBuffer) for seed in (0, 1)])
    assert aim >= her + 0.3, (aim, her)
    assert aim >= 0.7


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[1] / "docs" / "howto" / "sb3.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script = "\n".join(blocks).replace("20_000", "150").replace("FetchReach-v4", "point_env:Point-v0")
    (tmp_path / "page_of_sb3.py").write_text(script)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import page_of_sb3  # pyright: ignore[reportMissingImports]

    assert page_of_sb3.model.replay_buffer.size() > 0
    assert (tmp_path / "reach-reward").is_dir()


def test_plain_import_of_the_package_offers_the_buffer():
    """The contract's line is `aimrl.sb3.AIMReplayBuffer` after `import aimrl`; it raised AttributeError."""
    code = "import aimrl; print(aimrl.sb3.AIMReplayBuffer.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "AIMReplayBuffer", done.stderr
