"""The Gymnasium wrapper pays what its model knows, and the model learns from the episodes it sees."""

import json
import re
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import PointGoal, point_goal
from scipy.stats import spearmanr

from aimrl import rewards
from aimrl.types import Transition, UserError
from aimrl.wrapper import LearnedReward, OnlineReward, Schedule, examine, hindsight

QUICK: dict[str, Any] = {"update_every": 10, "updates": 2, "update_batch": 16}


def episode(env: gym.Env, seed: int = 0) -> list[tuple]:
    """One episode of random actions: observation, action, and what step returned."""
    rng = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    played, over = [], False
    while not over:
        action = rng.uniform(-1, 1, 2).astype(np.float32)
        answer = env.step(action)
        played.append((obs, action, *answer))
        obs, over = answer[0], answer[2] or answer[3]
    return played


def test_step_pays_the_learned_reward_and_info_the_task_reward():
    env = LearnedReward(point_goal(horizon=6), "aim", {"scale": 3.0, "task_weight": 0.5}, **QUICK)
    first = episode(env)
    assert env.learner.rounds == 0
    second = episode(env, 1)
    assert env.learner.rounds == 1
    assert env.learner.size() == 12
    state = env.learner.state
    third = episode(env, 2)[:2]  # before the next update
    aim = rewards.make("aim", shape="metric", form="to-goal", normalise="none", standardise=True, rest=True, worst=2.0)  # the default
    for obs, _, after, paid, _, _, info in third:
        task = env.unwrapped.compute_reward(after["achieved_goal"], obs["desired_goal"], {})
        known = {
            "achieved": obs["achieved_goal"],
            "next_achieved": after["achieved_goal"],
            "goal": obs["desired_goal"],
            "success": task == 0,
        }
        batch = Transition(**{k: np.asarray(known[k])[None] if k in known else None for k in Transition._fields})
        assert info["task_reward"] == task
        assert paid == pytest.approx(3.0 * float(aim.reward(state, batch)[0]) + 0.5 * task, rel=1e-4)
    assert len({paid for *_, paid, _, _, _ in first + second}) > 2  # not the task's −1 and 0


def test_smirl_is_paid_by_the_moments_of_the_running_episode():
    env = LearnedReward(point_goal(horizon=6), "smirl", {"task_weight": 0.0}, updates=0)
    played = episode(env)
    path = np.stack([played[0][0]["achieved_goal"], *(p[2]["achieved_goal"] for p in played)])
    for t, (*_, paid, _, _, _) in enumerate(played):
        x = path[: t + 2]
        mean, var = x.mean(0), np.maximum(x.var(0), 1e-2)
        assert paid == pytest.approx(float(-0.5 * ((x[-1] - mean) ** 2 / var + np.log(2 * np.pi * var)).sum()), rel=1e-4)


def test_wrappers_may_share_one_model():
    one = LearnedReward(point_goal(horizon=6), "rnd", **QUICK)
    two = LearnedReward(point_goal(horizon=6), share=one)
    episode(one)
    episode(two)
    assert one.learner is two.learner
    assert one.learner.size() == 12
    assert one.learner.rounds == 1
    with pytest.raises(UserError, match="same kind of environment"):
        LearnedReward(point_goal(horizon=6, discrete=True), share=one)
    with pytest.raises(UserError, match="takes its reward and options, too"):  # was taken in silence
        LearnedReward(point_goal(horizon=6), "aim", share=one)


def test_probing_leaves_the_environments_own_random_stream_alone():
    env, twin = point_goal(horizon=6), point_goal(horizon=6)
    env.reset(seed=3)
    twin.reset(seed=3)
    wrapped = LearnedReward(env, "sparse", updates=0)
    np.testing.assert_array_equal(wrapped.reset()[0]["desired_goal"], twin.reset()[0]["desired_goal"])


def test_an_episode_given_up_half_way_is_kept_as_cut_by_time():
    env = LearnedReward(point_goal(horizon=6), "sparse", updates=0)
    env.reset(seed=0)
    for _ in range(4):
        env.step(np.zeros(2, np.float32))
    env.reset()
    assert env.learner.size() == 4
    assert not np.asarray(env.learner.draw(20).terminated).any()


def test_the_model_is_saved_and_loaded_without_pickle(tmp_path):
    taught, fresh = (LearnedReward(point_goal(horizon=6), "aim", seed=s, **QUICK) for s in (0, 1))
    for seed in range(4):
        episode(taught, seed)
    taught.save_reward(tmp_path)
    fresh.load_reward(tmp_path)
    for a, b in zip(jax.tree.leaves(taught.learner.state), jax.tree.leaves(fresh.learner.state)):
        np.testing.assert_array_equal(a, b)
    LearnedReward(point_goal(horizon=6), "sparse").save_reward(tmp_path / "nothing learned")
    LearnedReward(point_goal(horizon=6), "sparse").load_reward(tmp_path / "nothing learned")


@pytest.mark.parametrize(
    ("saved", "options", "here", "odd"),
    [
        ("aim", {"standardise": True}, {"standardise": False}, "standardise is True, not False"),
        ("aim", {"bound": "one-sided"}, {}, "bound is 'one-sided', not 'two-sided'"),
        ("aim", {}, {"form": "shaped"}, "form is 'to-goal', not 'shaped'"),
        ("aim", {"worst": float("inf")}, {}, "worst is 'inf', not 2.0"),
        ("aim", *({"form": "biased", "target": "examples", "examples": jnp.full((3, 2), x)} for x in (1.0, 2.0)), "examples is 'array"),
        ("fairl", {}, {"negative": True}, "negative is False, not True"),
        ("disco", {"covariance": [1.0, 2.0]}, {"covariance": [1.0, 3.0]}, "covariance is [1.0, 2.0], not [1.0, 3.0]"),
    ],
)
def test_a_network_is_not_loaded_into_a_reward_with_other_options(saved, options, here, odd, tmp_path):
    """Only the class and the shapes were compared: a standardised potential paid something else, and nothing said so."""
    LearnedReward(point_goal(horizon=6), saved, options).save_reward(tmp_path)
    LearnedReward(point_goal(horizon=6), saved, options).load_reward(tmp_path)
    other = LearnedReward(point_goal(horizon=6), saved, here)
    before = other.learner.state
    with pytest.raises(UserError, match=re.escape(odd)) as caught:
        other.load_reward(tmp_path)
    assert "\n" not in str(caught.value)
    assert other.learner.state is before


def test_a_saved_reward_without_an_option_had_its_default_and_one_without_options_is_refused(tmp_path):
    LearnedReward(point_goal(horizon=6), "gail").save_reward(tmp_path)
    path = tmp_path / "checkpoints" / "0" / "meta.json"
    meta = json.loads(path.read_text())
    del meta["options"]["smoothing"]  # as if it were newer than the file
    path.write_text(json.dumps(meta))
    LearnedReward(point_goal(horizon=6), "gail").load_reward(tmp_path)
    with pytest.raises(UserError, match=r"smoothing is 0.1, not 0.2"):
        LearnedReward(point_goal(horizon=6), "gail", {"smoothing": 0.2}).load_reward(tmp_path)
    for odd in (None, [], "smoothing"):
        path.write_text(json.dumps(meta | {"options": odd}))
        with pytest.raises(UserError, match="doesn't say which options its reward had"):
            LearnedReward(point_goal(horizon=6), "gail").load_reward(tmp_path)


class Bend(gym.Env):
    """A corridor of 12 cells folded around a wall: its two ends lie side by side, 11 steps apart."""

    cells = np.array([(1 + 0.2 * min(i, 11 - i), 2 + 0.2 * (i > 5)) for i in range(12)], np.float32)

    def __init__(self):
        box = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.observation_space = gym.spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), box))
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.at, self.goal = (int(i) for i in self.np_random.integers(12, size=2))
        return self._obs(), {}

    def step(self, action):
        self.at = min(max(self.at + 2 * int(action) - 1, 0), 11)
        return self._obs(), -float(self.at != self.goal), False, False, {}

    def compute_reward(self, achieved, desired, info):
        return -(np.abs(np.asarray(achieved) - np.asarray(desired)).max(-1) > 0.1).astype(np.float32)

    def _obs(self):
        here = self.cells[self.at]
        return {"observation": here.copy(), "achieved_goal": here.copy(), "desired_goal": self.cells[self.goal].copy()}


def test_the_default_reward_soon_ranks_states_by_the_steps_to_the_goal_where_straight_lines_mislead():
    """The wrapper's default was the free potential of raw goals, whose rank correlation here was 0.1 after 500 steps."""
    inner = Bend()
    env = LearnedReward(gym.wrappers.TimeLimit(inner, 20), update_batch=64)
    rng, rows = np.random.default_rng(0), []
    env.reset(seed=0)
    for _ in range(300):
        obs, paid, _, over, _ = env.step(rng.integers(2))
        straight = np.linalg.norm(obs["achieved_goal"] - obs["desired_goal"])
        rows.append((paid, -straight, -abs(inner.at - inner.goal)))
        if over:
            env.reset()
    paid, straight, truth = np.array(rows).T
    untaught, taught = slice(100), slice(100, None)  # the first round of updates is after 100 steps
    assert spearmanr(paid[taught], truth[taught]).statistic > 0.9
    assert spearmanr(straight[taught], truth[taught]).statistic < 0.8
    assert spearmanr(paid[untaught], truth[untaught]).statistic < 0.8


class Sick(PointGoal):
    """Says nan where it should say where it is, from step `since` on."""

    since = 99

    def _obs(self):
        obs = super()._obs()
        return obs | {"achieved_goal": obs["achieved_goal"] * np.float32("nan")} if self.t >= self.since else obs


def test_a_state_that_is_not_finite_is_refused_at_reset_as_at_a_step():
    """A first state wasn't checked: it entered the ring, and the reward's network was blamed later."""
    inner = Sick(horizon=6)
    env = LearnedReward(gym.wrappers.TimeLimit(inner, 6), "dense", updates=0)
    env.reset(seed=0)
    env.step(np.zeros(2, np.float32))
    inner.since = 0
    with pytest.raises(UserError, match="observation is not finite"):
        env.reset()
    with pytest.raises(UserError, match="call reset before step"):  # nothing goes on from it
        env.step(np.zeros(2, np.float32))
    inner.since = 1
    env.reset()
    with pytest.raises(UserError, match="observation is not finite"):
        env.step(np.zeros(2, np.float32))
    with pytest.raises(UserError, match="call reset before step"):
        env.step(np.zeros(2, np.float32))
    inner.since = 99
    env.reset()
    assert env.learner.size() == 1  # the one good step
    assert np.isfinite(np.asarray(env.learner.draw(20).achieved)).all()


def test_the_reward_only_learns_from_the_newest_transitions():
    spec, task = examine(point_goal(horizon=6))
    seen = []

    class Spy(type(rewards.make("sparse"))):
        def update(self, state, batches, key):
            jax.debug.callback(lambda x: seen.append(np.asarray(x)), batches.achieved)
            return None, {}

    learner = OnlineReward(Spy(), spec, task, hindsight(task), 100, Schedule(6, 3, 32, window=6), 0)
    env = LearnedReward(point_goal(horizon=6), share=None, updates=0)
    env.learner = learner
    episode(env, 0)
    newest = episode(env, 1)
    jax.effects_barrier()
    states = {tuple(p[0]["achieved_goal"]) for p in newest}
    assert {tuple(x) for x in seen[-1].reshape(-1, 2)} == states
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: LearnedReward(point_goal(), "gial"), "did you mean gail"),
        (lambda: LearnedReward(gym.make("Pendulum-v1")), "not a goal environment"),
        (lambda: LearnedReward(point_goal().env), "no time limit"),
        (lambda: LearnedReward(gym.wrappers.Autoreset(point_goal())), "the wrapper Autoreset resets by itself"),
        (lambda: LearnedReward(point_goal(), updates=-1), "updates must be a whole number of at least 0, not -1"),
        (lambda: LearnedReward(point_goal(), "aim").step(np.zeros(2)), "call reset before step"),
        (
            lambda: LearnedReward(point_goal(), "aim", {"form": "shaped", "examples": jnp.zeros((3, 5)), "target": "examples"}),
            "the goals 2",
        ),
    ],
)
def test_bad_input_is_told_in_one_line(make, line):
    with pytest.raises(UserError, match=line) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_an_environment_may_write_over_the_arrays_it_has_returned():
    class Same(gym.ObservationWrapper):
        kept: dict[str, np.ndarray] | None = None

        def observation(self, observation):
            self.kept = self.kept or {k: np.array(v, np.float32) for k, v in observation.items()}
            for key, value in observation.items():
                self.kept[key][:] = value
            return self.kept

    plain, same = (LearnedReward(wrap(point_goal(horizon=6)), "aim", seed=3, **QUICK) for wrap in (lambda env: env, Same))
    for env in (plain, same):
        for seed in range(4):
            episode(env, seed)
    assert plain.learner.rounds == same.learner.rounds > 0
    for a, b in zip(*(jax.tree.leaves(env.learner.state) for env in (plain, same))):
        np.testing.assert_array_equal(a, b)
