"""Goal tasks against gymnasium-robotics' own rules, one pair at a time, and users' environments through their methods."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from toy import OneByOne, Walk

from aimrl.envs.goals import GoalTask, Near, Never, Sparse, known_task, near_task, task_of
from aimrl.envs.vector import make, make_single
from aimrl.types import UserError

TASKS = [
    "FetchReach-v4",
    "FetchPushDense-v4",
    "HandReach-v3",
    "HandReachDense-v3",
    "HandManipulateBlockRotateZ-v1",
    "HandManipulateBlockFull-v1",
    "HandManipulateBlockRotateXYZ_BooleanTouchSensorsDense-v1",
    "HandManipulateEggDense-v1",
    "HandManipulateEgg_ContinuousTouchSensors-v1",
    "HandManipulatePen-v1",
    "HandManipulatePenRotate-v1",
    "HandManipulatePenDense-v1",
    "HandManipulatePenRotate_BooleanTouchSensors-v1",
    "PointMaze_UMaze-v3",
    "PointMaze_MediumDense-v3",
    "AntMaze_UMaze-v5",
]


def goal_pairs(task: str, dim: int, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Random goals and achieved goals at all distances around the thresholds, some with a rotation about z on top."""
    rng = np.random.default_rng(0)
    goal = rng.normal(1.0, 0.5, (n, dim))
    size = 10.0 ** rng.uniform(-3.5, 0.5, (n, 1))
    direction = rng.normal(size=(n, dim))
    achieved = goal + size * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    if "Manipulate" in task:
        goal[:, 3:] /= np.linalg.norm(goal[:, 3:], axis=1, keepdims=True)
        achieved[:, :3] = goal[:, :3] + 10.0 ** rng.uniform(-3.5, 0, (n, 1)) * rng.normal(size=(n, 3))
        achieved[:, 3:] = goal[:, 3:] + size * rng.normal(size=(n, 4))
        spun = rng.random(n) < 0.5  # turned about the object's own axis: a pen doesn't mind, an egg does
        angle = rng.uniform(-1.5, 1.5, n) * spun
        w, z = np.cos(angle / 2), np.sin(angle / 2)
        a = achieved[:, 3:].copy()
        achieved[:, 3:] = np.stack(
            [a[:, 0] * w - a[:, 3] * z, a[:, 1] * w + a[:, 2] * z, a[:, 2] * w - a[:, 1] * z, a[:, 3] * w + a[:, 0] * z], 1
        )
        achieved[:, 3:] /= np.linalg.norm(achieved[:, 3:], axis=1, keepdims=True)
        achieved[spun, 3:] *= rng.choice([-1, 1], (spun.sum(), 1))  # q and −q are one rotation but not one goal here
    return achieved, goal


@pytest.mark.parametrize("task", TASKS)
def test_reward_success_and_termination_are_those_of_gymnasium_robotics(task):
    env = make_single(task)
    base, ours = env.unwrapped, task_of(env, task)
    achieved, goal = goal_pairs(task, env.observation_space["desired_goal"].shape[0])
    reward = np.array([base.compute_reward(a, g, {}) for a, g in zip(achieved, goal)])
    np.testing.assert_allclose(ours.reward(achieved, goal), reward, atol=1e-9)
    terminated = np.array([bool(base.compute_terminated(a, g, {})) for a, g in zip(achieved, goal)])
    np.testing.assert_array_equal(ours.terminated(achieved, goal), terminated)
    if hasattr(base, "_is_success"):
        success = np.array([bool(base._is_success(a, g)) for a, g in zip(achieved, goal)])
    else:
        success = np.linalg.norm(achieved - goal, axis=1) <= 0.45
    np.testing.assert_array_equal(ours.success(achieved, goal), success)
    assert 0.02 < success.mean() < 0.98  # both answers were tried
    assert ours.sparse == ("Dense" not in task)
    assert ours.jittable
    env.close()


@pytest.mark.parametrize("task", ["FetchReach-v4", "HandManipulatePenDense-v1", "HandManipulatePen-v1", "PointMaze_UMazeDense-v3"])
def test_the_same_task_runs_under_jit_in_single_precision(task):
    env = make_single(task)
    ours = task_of(env, task)
    achieved, goal = (x.astype(np.float32) for x in goal_pairs(task, env.observation_space["desired_goal"].shape[0]))
    for f in (ours.reward, ours.success, ours.terminated):
        compiled = jax.jit(f)(jnp.asarray(achieved), jnp.asarray(goal))
        here = f(achieved, goal)
        assert here.dtype == compiled.dtype
        if compiled.dtype == bool:
            assert (np.asarray(compiled) == here).mean() > 0.99  # rounding may move a pair that lies on a threshold
        else:
            assert np.mean(np.isclose(compiled, here, atol=2e-3)) > 0.99
    env.close()


def test_equal_tasks_are_equal_and_hash_alike_so_that_compiled_code_is_shared():
    settings = {"reward_type": "sparse", "distance_threshold": 0.05}
    assert known_task(settings) == known_task(settings)
    assert hash(known_task(settings)) == hash(known_task(settings))
    assert known_task(settings) != known_task(settings | {"distance_threshold": 0.04})


@pytest.mark.parametrize(
    "task", ["FetchSlide-v4", "HandReachDense-v3", "HandManipulatePen-v1", "HandManipulateEggRotate-v1", "PointMaze_LargeDense-v3"]
)
def test_both_backends_report_the_same_task(task):
    env = make_single(task)
    with make(task, 1, 0, backend="envpool") as pool:
        assert pool.task == task_of(env, task)
    env.close()


def test_an_episodic_maze_terminates_on_success_and_a_continuing_one_does_not():
    import gymnasium

    make_single("PointMaze_UMaze-v3").close()  # registers the ids
    episodic = gymnasium.make("PointMaze_UMaze-v3", continuing_task=False)
    with make(episodic, 1, 0) as env:
        assert env.task.terminates_on_success
        near, far = np.array([[0.3, 0.0]], np.float32), np.array([[0.6, 0.0]], np.float32)
        zero = np.zeros((1, 2), np.float32)
        assert (env.task.terminated(near, zero)[0], env.task.terminated(far, zero)[0]) == (True, False)
    episodic.close()


def test_a_subclass_with_rules_of_its_own_is_asked_and_not_assumed():
    from gymnasium_robotics.envs.fetch.reach import MujocoFetchReachEnv

    class Strict(MujocoFetchReachEnv):
        def compute_reward(self, achieved_goal, goal, info):
            return -(np.linalg.norm(achieved_goal - goal, axis=-1) > 0.01).astype(np.float32)

    env = TimeLimit(Strict(), 50)
    task = task_of(env)
    goal = np.ones((1, 3), np.float32)
    assert task.reward(goal + np.float32(0.02), goal) == -1
    assert not task.jittable
    env.close()


# --- users' environments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pays", [(-1.0, 0.0), (0.0, 1.0), (-5.0, 2.5)])
@pytest.mark.parametrize("ends", [False, True])
def test_success_is_found_from_any_pair_of_sparse_rewards(pays, ends):
    task = task_of(Walk(ends_at_goal=ends, pays=pays))
    goal = np.full((3, 1), 7.0, np.float32)
    achieved = np.array([[7.0], [7.05], [7.2]], np.float32)
    assert task.reward(achieved, goal).tolist() == [pays[1], pays[1], pays[0]]
    assert task.success(achieved, goal).tolist() == [True, True, False]
    assert task.terminated(achieved, goal).tolist() == [ends, ends, False]
    assert task.terminates_on_success == ends
    assert task.sparse
    assert not task.jittable


def test_a_dense_reward_of_one_start_and_one_goal_is_not_taken_for_a_sparse_one():
    class Dense(Walk):
        def reset(self, **_):
            super().reset(seed=0)
            return self._obs(), {}

        def compute_reward(self, achieved, desired, info):
            return -np.abs(achieved - desired)[..., 0]

    task = task_of(Dense())
    assert not task.sparse
    assert task_of(Walk()).sparse


def test_leading_axes_are_kept():
    task = task_of(Walk())
    goal = np.zeros((4, 1, 1), np.float32)
    assert task.success(np.zeros((4, 6, 1), np.float32), goal).shape == (4, 6)
    assert Near(0.1)(np.zeros((4, 6, 1)), goal).shape == (4, 6)


def test_methods_that_answer_for_one_pair_only_are_looped_with_a_warning():
    with pytest.warns(UserWarning, match=r"OneByOne\.compute_(reward|terminated) is not vectorised"):
        task = task_of(OneByOne(ends_at_goal=True))
    goal = np.full((3, 1), 7.0, np.float32)
    achieved = np.array([[7.2], [7.05], [7.0]], np.float32)
    assert task.reward(achieved, goal).tolist() == [-1, 0, 0]
    assert task.terminated(achieved, goal).tolist() == [False, True, True]


def test_a_plain_return_false_is_taken_for_a_continuing_task_without_a_loop():
    class Endless(Walk):
        def compute_terminated(self, achieved, desired, info):
            return False

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = task_of(Endless())
    assert task.terminated(np.zeros((5, 1), np.float32), np.zeros((5, 1), np.float32)).tolist() == [False] * 5
    assert not task.terminates_on_success


def test_an_environments_own_is_success_goes_before_the_reward():
    class Dense(Walk):
        def compute_reward(self, achieved, desired, info):
            return -np.abs(achieved - desired)[..., 0]

    class Told(Dense):
        def is_success(self, achieved, desired):
            return np.abs(achieved - desired)[..., 0] < 0.5

    goal, achieved = np.full((2, 1), 7.0, np.float32), np.array([[7.0], [7.3]], np.float32)
    assert task_of(Told()).success(achieved, goal).tolist() == [True, True]
    assert task_of(Dense()).success(achieved, goal).tolist() == [True, False]  # only the goal itself is sure
    assert not task_of(Dense()).sparse


def test_missing_or_broken_methods_are_told_in_one_line():
    class Silent(Walk):
        compute_reward = None

    class Needy(Walk):
        def compute_reward(self, achieved, desired, info):
            return info["weight"]

    with pytest.raises(UserError, match="Silent has no compute_reward"):
        task_of(Silent())
    with pytest.raises(UserError, match=r"Needy.compute_reward failed on goals from reset with an empty info \(KeyError"):
        task_of(Needy())


def test_an_environment_without_compute_terminated_never_ends_on_a_goal():
    """Goal environments written for Stable-Baselines3 only have compute_reward; they were refused."""

    class Plain(Walk):
        compute_terminated = None

    task = task_of(Plain())
    goal = np.full((1, 1), 0.5, np.float32)
    assert task.success(goal, goal).all()
    assert not task.terminated(goal, goal).any()
    assert not task.terminates_on_success


# --- rules repeated in array code -----------------------------------------------------------------------------------------------------


class Declared(Walk):
    """A walk that says its rule in array code, too."""

    rule: object = near_task(0.1)

    def goal_task(self):
        return self.rule


def declaring(rule: object, **options: object) -> Declared:
    env = Declared(**options)  # pyright: ignore[reportArgumentType]
    env.rule = rule
    return env


def test_a_declared_rule_is_compiled_and_answers_like_the_environment():
    task, theirs = task_of(Declared()), task_of(Walk())
    goal = np.full((500, 1), 7.0, np.float32)
    achieved = goal + np.random.default_rng(0).uniform(-0.3, 0.3, goal.shape).astype(np.float32)
    assert (task.jittable, theirs.jittable) == (True, False)
    assert (task.sparse, task.pays, task.terminates_on_success) == (theirs.sparse, theirs.pays, theirs.terminates_on_success)
    for what in ("reward", "success", "terminated"):
        np.testing.assert_array_equal(jax.jit(getattr(task, what))(achieved, goal), getattr(theirs, what)(achieved, goal))


def test_a_declared_rule_may_pay_and_end_as_it_likes_if_the_environment_does_the_same():
    near = Near(0.1)
    rule = GoalTask(Sparse(near, -5.0, 2.5), near, near, False, False, False)  # the last three are found, not believed
    task = task_of(declaring(rule, ends_at_goal=True, pays=(-5.0, 2.5)))
    assert (task.sparse, task.pays, task.terminates_on_success, task.jittable) == (True, (-5.0, 2.5), True, True)


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (near_task(0.101), r"Declared.goal_task disagrees with the environment: reward -?0 instead of -1 for achieved \[[\d.]+\], desired"),
        (near_task(0.099), r"disagrees with the environment: reward -1 instead of 0"),
        (near_task(0.1, "dense"), r"disagrees with the environment: reward -[\d.]+ instead of -?\d"),
        (GoalTask(Sparse(Near(0.1)), Near(0.2), Never(), False, True, True), r"disagrees with the environment: success 1 instead of 0"),
        (
            GoalTask(Sparse(Near(0.1)), Near(0.1), Near(0.1), False, True, True),
            r"disagrees with the environment: terminated 1 instead of 0",
        ),
        (
            GoalTask(Sparse(Near(0.1)), lambda a, g: a < g, Never(), False, True, True),
            r"goal_task: success has shape \(\d+, 1\) for \d+ pairs",
        ),
        (GoalTask(lambda a: a, Near(0.1), Never(), False, True, True), r"Declared.goal_task: reward failed \(TypeError: .*\)$"),
        (
            GoalTask(Sparse(Near(0.1)), lambda a, g: np.linalg.norm(a - g, axis=-1) < 0.1, Never(), False, True, True),
            r"Declared.goal_task: success failed \(TracerArrayConversionError: .*\)$",
        ),
        (0.1, r"Declared.goal_task must be a GoalTask, say aimrl.envs.goals.near_task\(0.05\), not 0.1"),
    ],
)
def test_a_declared_rule_that_is_not_the_environments_is_refused_in_one_line(rule, what):
    with pytest.raises(UserError, match=what):
        task_of(declaring(rule))


def test_a_goal_task_that_can_not_be_made_is_told_in_one_line():
    class Other(Walk):
        def goal_task(self, number):
            return number

    with pytest.raises(UserError, match=r"^Other.goal_task failed \(TypeError: .*missing 1 required positional argument: 'number'\)$"):
        task_of(Other())
