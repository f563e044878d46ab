"""The Gymnasium wrapper pays what its model knows, and the model learns from the episodes it sees."""

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import point_goal

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
    aim = rewards.make("aim")
    for obs, _, after, paid, _, _, info in third:
        known = {"achieved": obs["achieved_goal"], "next_achieved": after["achieved_goal"], "goal": obs["desired_goal"]}
        batch = Transition(**{k: known[k][None] if k in known else None for k in Transition._fields})
        task = env.unwrapped.compute_reward(after["achieved_goal"], obs["desired_goal"], {})
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
        (lambda: LearnedReward(point_goal(), updates=-1), "updates must be a whole number of at least 0, not -1"),
        (lambda: LearnedReward(point_goal(), "aim").step(np.zeros(2)), "call reset before step"),
        (lambda: LearnedReward(point_goal(), "aim", {"examples": jnp.zeros((3, 5)), "target": "examples"}), "the goals 2"),
    ],
)
def test_bad_input_is_told_in_one_line(make, line):
    with pytest.raises(UserError, match=line) as caught:
        make()
    assert "\n" not in str(caught.value)
