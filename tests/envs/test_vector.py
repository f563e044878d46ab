"""Vectorised goal environments: both backends, explicit resets, true last observations, and environments that misbehave."""

from __future__ import annotations

import sys

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from toy import Rogue, Steps, Walk

from aimrl.envs import guard, vector
from aimrl.envs.vector import EnvFault, VectorGoalEnv, make, make_single, resolve_backend, seeds_for
from aimrl.types import UserError, cores

BACKENDS = ["envpool", "gym"]


def walk(**settings) -> gymnasium.Env:
    return TimeLimit(Walk(**settings), 5)


def random_actions(env: VectorGoalEnv, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (steps, env.num_envs, env.spec.action_dim))


# --- both backends ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["FetchReach-v4", "FetchPush-v4", "FetchSlide-v4", "FetchPickAndPlace-v4"])
def test_both_backends_have_the_same_fetch_dynamics_from_the_same_state(task):
    """A pushing policy is played in EnvPool; Gymnasium, set to the same object position and goal, replays its actions."""
    with make(task, 1, seed=3, backend="envpool") as pool:
        obs = pool.reset()
        single = make_single(task)
        single.reset(seed=0)
        base = single.unwrapped
        if pool.spec.obs_dim == 25:
            joint = base._utils.get_joint_qpos(base.model, base.data, "object0:joint")
            joint[:2] = obs.observation[0, 3:5]
            base._utils.set_joint_qpos(base.model, base.data, "object0:joint", joint)
        base.goal = obs.desired_goal[0].astype(np.float64)
        mujoco.mj_forward(base.model, base.data)
        start = base._get_obs()
        np.testing.assert_allclose(start["observation"], obs.observation[0], atol=1e-6)
        gaps, moved = [], 0.0
        for t in range(50):
            grip, thing, goal = obs.observation[0, :3], obs.achieved_goal[0], obs.desired_goal[0]
            behind = thing - 0.06 * (goal - thing) / np.linalg.norm(goal - thing)
            target = behind if t < 12 else goal
            action = np.zeros((1, 4), np.float32)
            action[0, :3] = np.clip(8 * (target - grip), -1, 1)
            result = pool.step(action)
            reply, reward, *_ = single.step(action[0])
            gaps.append(np.abs(reply["observation"][:6] - result.obs.observation[0, :6]).max())
            assert reward == result.reward[0]
            moved = max(moved, np.linalg.norm(result.obs.achieved_goal[0] - start["achieved_goal"]))
            obs = result.obs
        single.close()
    # In metres. The float32 start grows to at most 4 mm through contacts; another MuJoCo version gives about 33 mm.
    assert max(gaps) < 5e-3
    assert moved > 0.02  # the object was really touched, so contacts were compared too


@pytest.mark.parametrize("backend", BACKENDS)
def test_truncation_keeps_the_last_observation_and_a_mask_restarts_only_its_environments(backend):
    with make("FetchReach-v4", 3, seed=1, backend=backend) as env:
        env.reset()
        actions = random_actions(env, 60)
        for t in range(20):
            env.step(actions[t])
        before = env.reset(np.zeros(3, bool))
        after = env.reset(np.array([False, True, False]))
        np.testing.assert_array_equal(after.observation[[0, 2]], before.observation[[0, 2]])
        assert not np.array_equal(after.desired_goal[1], before.desired_goal[1])
        for t in range(20, 50):
            result = env.step(actions[t])
            assert not result.terminated.any()
            assert result.truncated.tolist() == [t == 49, False, t == 49]
            # Rewards are those of the observation that came with them, also in the last step.
            np.testing.assert_array_equal(result.reward, env.task.reward(result.obs.achieved_goal, result.obs.desired_goal))
        with pytest.raises(UserError, match=r"environments \[0, 2\] have no running episode"):
            env.step(actions[50])
        fresh = env.reset(result.truncated)
        np.testing.assert_array_equal(fresh.observation[1], result.obs.observation[1])
        assert np.abs(fresh.observation[0] - result.obs.observation[0]).max() > 1e-3
        following = env.step(np.ones((3, 4)))
        # It is a true step from the new start, with its action obeyed, not EnvPool's silent reset.
        assert (following.obs.observation[[0, 2], 0] - fresh.observation[[0, 2], 0] > 1e-3).all()
        np.testing.assert_array_equal(following.reward, env.task.reward(following.obs.achieved_goal, following.obs.desired_goal))


def test_envpools_autoreset_would_pay_a_false_success_and_is_masked():
    import envpool

    raw = envpool.make_gymnasium("FetchPush-v4", num_envs=2, env_seed=seeds_for(4, 2), initial_slide0=0.405)
    raw.reset()
    with make("FetchPush-v4", 2, seed=4, backend="envpool") as env:
        env.reset()
        actions = random_actions(env, 50)
        for action in actions:
            obs, _, _, truncated, _ = raw.step(action.astype(np.float32))
            result = env.step(action)
        np.testing.assert_allclose(result.obs.observation, obs["observation"], rtol=1e-6)  # the true last observation
        assert truncated.all()
        obs, reward, _, _, info = raw.step(np.ones((2, 4), np.float32))
        assert reward.tolist() == [0, 0]  # the trap: reward 0 says success …
        assert (np.linalg.norm(obs["achieved_goal"] - obs["desired_goal"], axis=1) > 0.05).all()  # … which it isn't
        assert info["elapsed_step"].tolist() == [0, 0]
        fresh = env.reset(result.truncated)
        result = env.step(np.ones((2, 4)))
        assert result.reward.tolist() == [-1, -1]
        assert (result.obs.observation[:, 0] > fresh.observation[:, 0]).all()
        lengths = 1
        while not result.truncated.any():
            result = env.step(np.zeros((2, 4)))
            lengths += 1
        assert lengths == 50  # no step of the second episode was swallowed


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_seed_gives_the_same_stream_and_another_seed_another(backend):
    def stream(seed: int) -> np.ndarray:
        with make("PointMaze_UMaze-v3", 3, seed=seed, backend=backend, processes=False) as env:
            rows = [env.reset()]
            for action in random_actions(env, 5):
                rows.append(env.step(action).obs)
            rows.append(env.reset(np.array([True, False, True])))
            return np.concatenate([np.concatenate(r, axis=1) for r in rows])

    first = stream(7)
    np.testing.assert_array_equal(first, stream(7))
    goals = first[:3, -2:]
    assert len(np.unique(goals, axis=0)) == 3  # each environment has goals of its own
    assert not np.intersect1d(goals, stream(8)[:3, -2:]).size


def test_neighbouring_seeds_share_no_environment_seed():
    seeds = [s for seed in range(50) for s in seeds_for(seed, 16)]
    assert len(set(seeds)) == len(seeds)
    assert 0 <= min(seeds) <= max(seeds) < 2**31


def test_both_backends_have_the_same_point_maze_and_the_same_hand():
    with make("PointMaze_UMaze-v3", 1, seed=0, backend="envpool") as pool:
        start = pool.reset()
        single = make_single("PointMaze_UMaze-v3")
        single.reset(seed=0)
        single.unwrapped.point_env.set_state(start.achieved_goal[0].astype(np.float64), np.zeros(2))
        single.unwrapped.goal = start.desired_goal[0].astype(np.float64)
        for t in range(60):
            action = np.array([[np.sin(t / 9), np.cos(t / 7)]], np.float32)  # along the walls and into them
            result, (reply, reward, *_) = pool.step(action), single.step(action[0])
            np.testing.assert_allclose(result.obs.observation[0], reply["observation"], atol=1e-4)
            assert result.reward[0] == reward
    with make("HandReach-v3", 1, seed=0, backend="envpool") as pool:
        pool.reset()
        single = make_single("HandReach-v3")
        single.reset(seed=0)
        for action in random_actions(pool, 20):
            result, (reply, *_) = pool.step(action), single.step(action[0].astype(np.float32))
            np.testing.assert_allclose(result.obs.achieved_goal[0], reply["achieved_goal"], atol=1e-5)


@pytest.mark.parametrize("task", ["FetchPush-v4", "FetchSlide-v4", "FetchPickAndPlace-v4", "PointMaze_UMaze-v3"])
def test_both_backends_draw_starts_and_goals_from_the_same_box(task):
    def bounds(draw) -> np.ndarray:
        rows = np.array([np.concatenate(draw()) for _ in range(150)])
        return np.stack([rows.min(0), rows.max(0), rows.mean(0)])

    single = make_single(task)
    single.reset(seed=0)
    with make(task, 1, seed=0, backend="envpool") as pool:

        def from_pool():
            obs = pool.reset()
            return obs.achieved_goal[0], obs.desired_goal[0]

        def from_gym():
            obs, _ = single.reset()
            return obs["achieved_goal"], obs["desired_goal"]

        # 150 draws from a range of 0.3 m (2.5 in the maze, in discrete cells) pin its ends to a few per cent.
        tolerance = 0.35 if "Maze" in task else 0.06
        np.testing.assert_allclose(bounds(from_pool), bounds(from_gym), atol=tolerance)
    single.close()


@pytest.mark.parametrize(
    ("task", "backend", "sizes"),
    [
        ("HandReach-v3", "envpool", (63, 15, 20, 50)),
        ("HandReach-v3", "gym", (63, 15, 20, 50)),
        ("HandManipulatePenRotate-v1", "envpool", (61, 7, 20, 100)),
        ("AntMaze_UMaze-v5", "gym", (105, 2, 8, 700)),
    ],
)
def test_hands_and_ants_step_with_rewards_that_match_their_goal_task(task, backend, sizes):
    with make(task, 2, seed=0, backend=backend) as env:
        env.reset()
        assert (env.spec.obs_dim, env.spec.goal_dim, env.spec.action_dim, env.spec.horizon) == sizes
        for action in random_actions(env, 5):
            result = env.step(action)
            assert result.obs.observation.dtype == result.reward.dtype == np.float32
            np.testing.assert_allclose(result.reward, env.task.reward(result.obs.achieved_goal, result.obs.desired_goal))
        assert env.versions["mujoco"] == "3.6.0"
        assert env.backend == backend


def test_auto_takes_envpool_only_where_it_runs_the_very_same_task():
    assert resolve_backend("FetchPush-v4") == "envpool"
    assert resolve_backend("FetchPush-v1") == "gym"  # EnvPool would run v4's rules under this name
    assert resolve_backend("AntMaze_UMaze-v5") == "gym"
    assert resolve_backend(walk) == "gym"
    with pytest.raises(UserError, match=r"EnvPool doesn't run FetchPush-v1 \(only Fetch\*-v4"):
        make("FetchPush-v1", 1, 0, "envpool")


# --- user environments --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [walk, TimeLimit(Walk(), 5)], ids=["function", "object"])
@pytest.mark.parametrize("processes", [False, True])
def test_a_users_environment_is_flattened_scaled_and_copied(env, processes):
    with make(env, 3, seed=0, processes=processes) as vector:
        start = vector.reset()
        assert start.observation.shape == (3, 4)
        assert start.observation.dtype == np.float32
        np.testing.assert_array_equal(start.observation[:, 2], start.desired_goal[:, 0])
        result = vector.step(np.array([[-1.0], [0.0], [1.0]]))
        np.testing.assert_allclose(result.obs.achieved_goal[:, 0], [-2, 2, 6])  # [−1, 1] covers the Box [−2, 6]
        result = vector.step(np.array([[9.0], [0.0], [0.0]]))
        np.testing.assert_allclose(result.obs.achieved_goal[:, 0], [4, 4, 8])  # out of bounds is clipped
        for _ in range(3):
            result = vector.step(np.zeros((3, 1)))
        assert result.truncated.all()
        assert not result.terminated.any()
        assert result.obs.observation[:, 1].tolist() == [5, 5, 5]
    if not callable(env):
        assert env.unwrapped.t == 0  # the caller's own object was not stepped


def test_termination_stays_apart_from_truncation_also_when_both_come_at_once():
    with make(lambda: TimeLimit(Walk(ends_at_goal=True, span=1.0), 2), 3, seed=0) as env:  # goals at 1
        env.reset()
        one, none = (1.0 + 2.0) / 4.0 - 1.0, 2.0 / 4.0 - 1.0  # actions of length 1 and 0 on the Box [−2, 6]
        result = env.step(np.array([[one], [none], [none]]))
        assert (result.terminated.tolist(), result.truncated.tolist()) == ([True, False, False], [False, False, False])
        assert result.obs.achieved_goal[0, 0] == 1  # the final observation, not the next episode's first
        env.reset(result.terminated)
        result = env.step(np.array([[none], [one], [none]]))
        assert (result.terminated.tolist(), result.truncated.tolist()) == ([False, True, False], [False, True, True])


def test_discrete_actions_count_from_zero_whatever_the_space_says():
    with make(TimeLimit(Steps(), 5), 3, seed=0) as env:
        env.reset()
        assert env.spec.discrete
        assert env.spec.action_dim == 3
        result = env.step(np.array([0, 1, 2]))
        assert result.obs.achieved_goal[:, 0].tolist() == [-1, 0, 1]
        with pytest.raises(UserError, match="actions must be in 0…2"):
            env.step(np.array([0, 1, 3]))
        with pytest.raises(UserError, match="3 integer actions"):
            env.step(np.array([0.0, 1.0, 2.0]))


def test_the_grid_worlds_are_goal_environments_like_any_other():
    with make("aimrl/Room-v0", 2, seed=0) as env:
        start = env.reset()
        assert (env.spec.discrete, env.spec.action_dim, env.spec.goal_dim, env.spec.horizon) == (True, 4, 2, 100)
        assert env.task.terminates_on_success
        assert start.achieved_goal.tolist() == [[1, 1], [1, 1]]
        result = env.step(np.array([0, 1]))
        np.testing.assert_array_equal(result.reward, env.task.reward(result.obs.achieved_goal, result.obs.desired_goal))


def test_actions_of_the_wrong_shape_or_not_finite_are_refused():
    with make(walk, 2, seed=0) as env:
        env.reset()
        with pytest.raises(UserError, match=r"shape \(2, 1\), got \(2,\)"):
            env.step(np.zeros(2))
        with pytest.raises(UserError, match="action for environment 1 is not finite"):
            env.step(np.array([[0.0], [np.nan]]))
        with pytest.raises(UserError, match="bool mask"):
            env.reset(np.array([0, 1]))


def test_a_time_limit_is_required_and_can_be_given():
    with pytest.raises(UserError, match="Walk has no time limit"):
        make(Walk, 1, 0)
    with make(Walk, 1, 0, horizon=3) as env:
        env.reset()
        assert [bool(env.step(np.zeros((1, 1))).truncated[0]) for _ in range(3)] == [False, False, True]
    # A wrapper's limit counts, and the tightest of several wins.
    with make(TimeLimit(TimeLimit(Walk(), 4), 9), 1, 0) as env:
        assert env.spec.horizon == 4


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ("FetchPsh-v4", "unknown environment 'FetchPsh-v4': did you mean FetchPush-v"),
        ("aimrl/Rom-v0", "unknown environment 'aimrl/Rom-v0': did you mean aimrl/Room-v0"),
        ("FetchPush-v9", "unknown environment 'FetchPush-v9': did you mean FetchPush-v"),
        ("CartPole-v1", "CartPole-v1 is not a goal environment: its observation space is a Box"),
        (3, "an environment is an id, a gymnasium.Env or a function that makes one, not a int"),
        (lambda: 3, "made a int, not a gymnasium.Env"),
    ],
)
def test_what_is_no_goal_environment_is_refused_in_one_line(env, line):
    with pytest.raises(UserError, match=line.replace("(", r"\(")) as caught:
        make(env, 1, 0)
    assert "\n" not in str(caught.value)


def test_spaces_that_can_not_be_used_are_refused_in_one_line():
    def changed(**parts) -> Walk:
        env = Walk()
        for name, part in parts.items():
            if name == "action":
                env.action_space = part
            else:
                env.observation_space = spaces.Dict({**env.observation_space.spaces, name: part})
        return env

    for parts, line in [
        ({"action": spaces.MultiDiscrete([2, 2])}, "only a Box of floats or Discrete"),
        ({"action": spaces.Box(-np.inf, np.inf, (1,))}, "no finite bounds"),
        ({"achieved_goal": spaces.Dict({"kettle": spaces.Box(0, 1, (3,))})}, "the space of 'achieved_goal' is a Dict; only Boxes"),
        ({"observation": spaces.Discrete(3)}, "the space of 'observation' is a Discrete"),
        ({"desired_goal": spaces.Box(0, 1, (3,))}, "they must be the same"),
    ]:
        with pytest.raises(UserError, match=line):
            make(lambda parts=parts: changed(**parts), 1, 0, horizon=5)


# --- environments that misbehave ----------------------------------------------------------------------------------------------------

WAYS = {
    "raise": "raised ValueError: the wheel came off",
    "nan": "achieved_goal has NaN",
    "inf": "observation has infinite values",
    "overflow": "desired_goal has infinite values",
    "shape": r"achieved_goal has shape \(2,\), its space says \(1,\)",
    "dtype": "achieved_goal has dtype <U4, its space says float64",
    "missing": "the observation has no 'achieved_goal'",
    "array": "the observation is a ndarray, not a dict",
    "bad reward": "reward is nan",
    "bad flag": "terminated is not a bool",
    "four values": "raised ValueError: not enough values to unpack",  # said by TimeLimit, which is around it
}


SEED = 4  # puts the farthest goal into environment 1


def odd_one_out(num_envs: int, seed: int) -> tuple[int, float]:
    """Which environment has the farthest goal under this seed, and a bound only that one is beyond."""
    with make(walk, num_envs, seed) as env:
        goals = env.reset().desired_goal[:, 0]
    order = np.argsort(goals)
    return int(order[-1]), float(goals[order[-2:]].mean())


@pytest.mark.parametrize("how", WAYS)
def test_a_misbehaving_environment_is_named_with_its_step_and_the_others_step_is_kept(how):
    index, beyond = odd_one_out(3, seed=SEED)
    assert index > 0  # else naming always 0 would pass
    with make(lambda: TimeLimit(Rogue(how, 3, beyond), 5), 3, seed=SEED) as env:
        env.reset()
        env.step(np.zeros((3, 1)))
        env.step(np.zeros((3, 1)))
        with pytest.raises(EnvFault, match=f"^environment {index}, step 3: {WAYS[how]}") as caught:
            env.step(np.zeros((3, 1)))
    fault = caught.value
    assert (fault.index, fault.step) == (index, 3)
    assert "\n" not in str(fault)
    others = np.arange(3) != index
    assert fault.partial is not None
    np.testing.assert_allclose(fault.partial.obs.achieved_goal[others], 6.0)  # three moves of 2


def test_what_goes_wrong_in_the_last_step_is_named_before_the_time_limit_it_missed():
    """The limit's wrapper never hears of a step that raised, so the environment seemed to overrun it."""
    with make(lambda: TimeLimit(Rogue("raise", 3), 3), 2, seed=SEED) as env:
        env.reset()
        env.step(np.zeros((2, 1)))
        env.step(np.zeros((2, 1)))
        with pytest.raises(EnvFault, match=r"^environment 0, step 3: raised ValueError: the wheel came off"):
            env.step(np.zeros((2, 1)))


@pytest.mark.parametrize("how", ["raise", "nan", "shape"])
def test_trouble_in_a_reset_is_named_too(how):
    with _made_before_it_goes_wrong(how) as env, pytest.raises(EnvFault, match="environment 0, reset after step 0: "):
        env.reset()


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (lambda: TimeLimit(Rogue("raise", 0), 5), r"^Rogue.reset gave no goals \(ValueError: the wheel came off\)"),
        (lambda: TimeLimit(Rogue("shape", 0), 5), r"^Rogue.reset gave an achieved goal of size 2"),
        (lambda: TimeLimit(Rogue("hang", 0), 5), r"took more than 2.5 s \(hung\)"),
        (lambda: 1 / 0, "the function given as environment failed: ZeroDivisionError"),
    ],
)
def test_trouble_while_making_is_one_line_too(env, line):
    with pytest.raises(UserError, match=line):
        make(env, 2, seed=0, timeout_s=2.5)


def test_copies_whose_spaces_differ_are_refused():
    sizes = iter([1, 1, 2, 3, 4])

    def fickle() -> gymnasium.Env:
        env = Walk()
        env.observation_space = spaces.Dict({**env.observation_space.spaces, "observation": spaces.Box(0, 1, (next(sizes),))})
        return TimeLimit(env, 5)

    with pytest.raises(UserError, match=r"Walk can't be made several times: RuntimeError: .* not equivalent"):
        make(fickle, 2, seed=0)


def _made_before_it_goes_wrong(how: str) -> VectorGoalEnv:
    """`make` itself probes goals by resetting, so the trouble has to start after it."""
    made: list[Rogue] = []

    def maker() -> gymnasium.Env:
        made.append(Rogue("none", 0))
        return TimeLimit(made[-1], 5)

    env = make(maker, 2, seed=0)
    for rogue in made:
        rogue.how = how
    return env


@pytest.mark.parametrize("processes", [False, True])
def test_a_hung_environment_is_given_up_on_and_named(processes):
    index, beyond = odd_one_out(3, seed=SEED)
    with make(lambda: TimeLimit(Rogue("hang", 2, beyond), 5), 3, seed=SEED, threads=3, timeout_s=2.5, processes=processes) as env:
        env.reset()
        env.step(np.zeros((3, 1)))
        with pytest.raises(EnvFault, match=rf"environment {index}, step 2: no answer within 2.5 s \(hung\)"):
            env.step(np.zeros((3, 1)))
        with pytest.raises(UserError, match="closed"):
            env.step(np.zeros((3, 1)))


def test_where_others_wait_for_the_hung_environment_all_that_may_be_it_are_named():
    with make(lambda: TimeLimit(Rogue("hang", 2), 5), 3, seed=SEED, threads=1, timeout_s=2.5, processes=True) as env:
        env.reset()
        env.step(np.zeros((3, 1)))
        with pytest.raises(EnvFault, match=r"environment 0, step 2: no answer within 2.5 s \(it or one of \[1, 2\] hung\)"):
            env.step(np.zeros((3, 1)))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_worker_that_dies_is_named_with_its_exit_code(threads):
    """With one thread the others wait for its turn to end: they must not be taken for hung."""
    index, beyond = odd_one_out(3, seed=SEED)
    with make(lambda: TimeLimit(Rogue("die", 2, beyond), 5), 3, seed=SEED, threads=threads, processes=True) as env:
        env.reset()
        env.step(np.zeros((3, 1)))
        with pytest.raises(EnvFault, match=rf"environment {index}, step 2: its worker process died \(exit code 17\)"):
            env.step(np.zeros((3, 1)))


def test_an_environment_that_overruns_its_registered_time_limit_is_named():
    env = Walk()
    env.spec = gymnasium.envs.registration.EnvSpec("Endless-v0", entry_point=Walk, max_episode_steps=2)
    with make(env, 1, 0) as vector:
        vector.reset()
        vector.step(np.zeros((1, 1)))
        with pytest.raises(EnvFault, match="environment 0, step 2: neither terminated nor truncated at its time limit of 2 steps"):
            vector.step(np.zeros((1, 1)))


def test_an_interrupted_step_closes_the_environments_instead_of_answering_late(monkeypatch):
    with make(walk, 2, seed=0) as env:
        env.reset()

        def interrupted(timeout):
            raise KeyboardInterrupt

        class Results:
            get = staticmethod(lambda timeout: interrupted(timeout))
            put = staticmethod(lambda result: None)  # the step goes on in its thread, and nobody waits for what it answers

        monkeypatch.setattr(env._simulators._thread, "_results", Results)
        with pytest.raises(KeyboardInterrupt):
            env.step(np.zeros((2, 1)))
        with pytest.raises(UserError, match="closed"):
            env.step(np.zeros((2, 1)))


def test_worker_processes_leave_the_users_main_module_as_it_was():
    before = dict(vars(sys.modules["__main__"]))
    with make(walk, 2, seed=0, processes=True) as env:
        env.reset()
    assert vars(sys.modules["__main__"]) == before


def test_a_single_environment_can_be_made_for_videos():
    single = make_single("FetchReach-v4", render_mode="rgb_array")
    assert single.render_mode == "rgb_array"
    assert single.spec is not None
    assert single.spec.max_episode_steps == 50
    single.close()


def test_actions_are_told_in_the_environment_s_own_terms():
    box = spaces.Box(np.array([[0.0, -2.0]], np.float32), np.array([[1.0, 6.0]], np.float32))
    np.testing.assert_allclose(guard.own_action(box, [-1.0, 0.5]), [[0.0, 4.0]])
    assert guard.own_action(box, np.zeros((3, 2))).shape == (3, 1, 2)
    assert box.contains(guard.own_action(box, np.array([1.0, 1.0000001], np.float32)))
    assert guard.own_action(spaces.Discrete(3, start=5), 2) == 7
    np.testing.assert_array_equal(guard.own_action(spaces.Discrete(3, start=5), [0, 2]), [5, 7])


def test_simulators_take_as_many_threads_as_mathematics(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert vector._threads() == 3
    for unset in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", unset)
        assert vector._threads() == cores()


def test_the_environment_that_judges_is_closed_with_the_others_unless_its_task_is_wanted_longer():
    closed = []

    class Closing(Walk):
        def close(self):
            closed.append(self)

    def count(keep: bool) -> int:
        closed.clear()
        with make(lambda: TimeLimit(Closing(), 10), 2, seed=0, processes=False) as env:
            if keep:
                env.outliving_task()
        return len(closed)

    assert count(keep=False) == 3  # two that play and one that judges
    assert count(keep=True) == 2


def test_an_environment_of_ones_own_named_like_a_family_of_envpools_runs_in_gymnasium():
    assert resolve_backend("FetchPush-v4") == "envpool"
    gymnasium.register("FetchMine-v4", lambda: None)
    try:
        assert resolve_backend("FetchMine-v4") == "gym"
    finally:
        del gymnasium.registry["FetchMine-v4"]
