"""The training loop: learning, what it counts, and what it refuses."""

import dataclasses

import gymnasium as gym
import jax
import numpy as np
import pytest
from problems import TINY, PointGoal, point_goal
from small_runs import arrays, config, lines

from aimrl import replay, runs
from aimrl.collect import Collector, env_seed
from aimrl.config import Config, check, make_config
from aimrl.envs import vector
from aimrl.rewards import make as make_reward
from aimrl.rewards.dense import Dense
from aimrl.train import Trainer, capacity, make_round, target_bounds, train
from aimrl.types import UserError


@pytest.mark.parametrize("reward", ["aim", "sparse"])
def test_the_loop_learns_to_reach_goals(reward, tmp_path):
    run = train(config(reward=reward, steps=3_000), tmp_path / "r", env=point_goal)
    record = run.evaluate(50)
    assert np.mean(record["success_final"]) >= 0.8
    before = np.mean(lines(tmp_path / "r", "evals.jsonl")[0]["success_final"])
    assert before < 0.8  # and it had to learn it


@pytest.mark.slow
def test_aim_with_the_papers_settings_holds_reach_after_4000_steps(tmp_path):
    """Once the actor saturated, by either of two causes, and this seed held nothing: a minute of updates."""
    c = make_config("FetchReach-v4", preset="paper", seed=2, steps=4_000, eval_every=4_000, tensorboard=False)
    train(c, tmp_path / "r")
    assert np.mean(lines(tmp_path / "r", "evals.jsonl")[-1]["success_final"]) >= 0.9


def test_soft_q_learning_reaches_goals_with_discrete_actions(tmp_path):
    options = {"hidden": (32, 32), "gamma": 0.9, "tau": 0.1, "entropy": 0.05}
    fields = TINY | {"steps": 3_000, "agent": "soft_q", "random_final": 0.1}
    c = dataclasses.replace(make_config("point", preset="paper", reward="sparse", **fields), agent_options=options)
    record = train(c, tmp_path / "r", env=lambda: point_goal(discrete=True)).evaluate(50)
    assert np.mean(record["success_ever"]) >= 0.9  # it cannot stand still, so holding the goal is not asked


def test_an_agent_that_does_not_fit_the_actions_is_refused(tmp_path):
    with pytest.raises(UserError, match="soft_q"):
        train(config(), tmp_path / "r", env=lambda: point_goal(discrete=True))


def test_training_and_evaluation_never_share_environment_seeds():
    train_seeds = {env_seed(s, "train", k) for s in range(50) for k in range(0, 2000, 100)}
    eval_seeds = {env_seed(s, "eval") for s in range(50)}
    assert max(train_seeds) < min(eval_seeds)


def test_nothing_is_learned_from_an_empty_buffer(tmp_path):
    """Episodes of 15 steps in 4 environments: none has ended after 40 steps, the first have after 60."""
    learned = []
    listen = lambda event, data: learned.append(data["step"]) if event == "round" and data["learned"] else None  # noqa: E731
    small = {"steps": 120, "learning_starts": 0, "moving_starts": 0, "round_steps": 20, "num_envs": 4, "end_on_success": False}
    train(config(**small), tmp_path / "r", env=point_goal, listen=listen)
    assert learned[0] == 60


def test_a_buffer_holds_every_environments_episode_and_short_ones_too(tmp_path):
    with vector.make(point_goal, 1, 0) as env:
        assert capacity(config(buffer_size=10, num_envs=4), env.spec) == 4 * 16
        assert capacity(config(steps=100, round_steps=20), env.spec) == 240  # episodes of one step take two rows


def test_steps_are_counted_over_all_environments_and_every_step_is_stored(tmp_path):
    trainer_steps = {}
    for n in (1, 4):
        run = train(config(num_envs=n, steps=240, learning_starts=1_000), tmp_path / str(n), env=point_goal)
        ring = arrays(tmp_path / str(n), 240)["ring.safetensors"]
        trainer_steps[n] = (run.step, int(ring["span"][1]))
    assert trainer_steps == {1: (240, 240), 4: (240, 240)}


def test_episodes_are_played_for_goals_reached_before_when_practice_is_asked_for(tmp_path):
    for share, starts in ((1.0, 0), (0.0, 0), (1.0, 1_000)):  # nothing is practised before learning begins
        folder = tmp_path / f"{share} {starts}"
        train(config(steps=240, learning_starts=starts, practice=share), folder, env=point_goal)
        files = arrays(folder, 240)
        reached, asked = files["ring.safetensors"]["achieved"], files["actions.safetensors"]["['goals']"]
        assert [(reached == goal).all(-1).any() for goal in asked] == [share == 1.0 and not starts] * len(asked)


def test_an_episode_begun_before_learning_is_played_on_for_its_desired_goal(tmp_path):
    with vector.make(point_goal, 1, 0) as env:
        t = Trainer(config(practice=1.0, end_on_success=False), tmp_path, env.spec, env.task, point_goal, None, lambda e, d: None)
    t.begin(resume=False)
    t.gather(5 * t.config.num_envs)  # a third of an episode
    desired = t.collector.obs.desired_goal
    assert desired.any()
    np.testing.assert_array_equal(t.goals, desired)
    t.act(ready=True)
    np.testing.assert_array_equal(t.goals, desired)
    t.close()


def test_on_reach_the_papers_episodes_go_on_after_success():
    assert [make_config(env, preset="paper").end_on_success for env in ("FetchReach-v4", "FetchPush-v4")] == [False, True]


def test_random_actions_come_at_the_rate_asked_for(tmp_path):
    with vector.make(point_goal, 1, 0) as env:
        t = Trainer(config(agent_options={"noise": 0.0}), tmp_path, env.spec, env.task, point_goal, None, lambda e, d: None)
    x = np.ones((4000, 2), np.float32)
    action = t.round.explore(t.brain, x, x, jax.random.PRNGKey(1), np.uint32(0), np.float32(0.3))
    assert abs((action == t.round.act(t.brain, x, x)).all(-1).mean() - 0.7) < 0.03


@pytest.mark.parametrize(("moving", "first"), [(0, 60), (100, 180), (10**6, 1_500)])
def test_learning_waits_until_goals_have_moved_but_not_for_ever(moving, first, tmp_path):
    """A point under random actions moves at once, so a hundred such transitions are there after a few episodes of 15 steps."""
    began = []

    def listen(event, data):
        if event == "round" and data["learned"]:
            began.append(data["step"])

    small = {"steps": first + 60, "learning_starts": 60, "round_updates": 2, "eval_every": 10**6, "eval_episodes": 1}
    train(config(moving_starts=moving, **small), tmp_path / "r", env=point_goal, listen=listen)
    assert began[0] == first


class Square(PointGoal):
    """Observes a 2 × 2 picture of itself."""

    def __init__(self):
        super().__init__()
        box = gym.spaces.Box(-np.inf, np.inf, (2, 2), np.float32)
        self.observation_space = gym.spaces.Dict({**self.observation_space.spaces, "observation": box})

    def _obs(self):
        seen = super()._obs()
        return {**seen, "observation": np.stack([seen["achieved_goal"], seen["desired_goal"]])}


def test_a_policy_takes_observations_of_several_axes_one_or_a_batch(tmp_path):
    run = train(config(steps=60), tmp_path / "r", env=lambda: gym.wrappers.TimeLimit(Square(), 50))
    obs, goal = np.ones((2, 2)), np.ones(2)
    assert run.policy(obs, goal).shape == (2,)
    many = run.policy(np.stack([obs] * 3), np.stack([goal] * 3))
    np.testing.assert_allclose(many, [run.policy(obs, goal)] * 3, atol=1e-6)
    assert run.policy(obs[None], goal[None]).shape == (1, 2)


def test_a_buffer_that_cannot_fit_is_refused_before_it_is_allocated(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "free_memory", lambda: 1 << 20)
    with pytest.raises(UserError, match="GiB"):
        train(config(steps=10_000_000, buffer_size=10_000_000), tmp_path / "r", env=point_goal)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "bad",
    [
        *({"steps": 0}, {"num_envs": -1}, {"her_ratio": 2.0}, {"her": "futur"}, {"round_steps": 7}, {"batchsize": 3}),
        {"steps": 10**7, "eval_every": 1_000, "eval_episodes": 1_000},  # a log that could not be read back
    ],
)
def test_impossible_options_are_refused_in_one_line(bad):
    with pytest.raises(UserError) as e:
        config(**bad)
    assert "\n" not in str(e.value)


def test_hindsight_episodes_keep_failures_apart_from_time_limits():
    class Env:
        num_envs = 1
        spec = dataclasses.make_dataclass("S", ["obs_dim", "goal_dim", "action_dim", "horizon", "discrete"])(2, 2, 2, 15, False)

    from aimrl.envs.guard import GoalObs
    from aimrl.envs.vector import StepResult

    zero = np.zeros((1, 2), np.float32)

    class Falls(Env):
        task = dataclasses.make_dataclass("T", ["success", "terminated"])(*[lambda a, g: np.zeros(1, bool)] * 2)
        t = 0

        def reset(self, mask=None):
            return GoalObs(zero, zero, zero)

        def step(self, action):
            self.t += 1
            return StepResult(GoalObs(zero, zero, zero), np.zeros(1), np.array([self.t == 3]), np.array([self.t == 5]))

    c = Collector(Falls(), end_on_success=True)
    for _ in range(5):
        c.step(zero)
    episodes = replay.Episodes(*next(c.take()))
    assert episodes.length.tolist() == [3]
    assert episodes.failed.tolist() == [True]


def test_trainer_state_is_only_arrays(tmp_path):
    """Whatever a checkpoint saves must be arrays: nothing that would need pickle."""
    with vector.make(point_goal, 1, 0) as env:
        t = Trainer(config(), tmp_path, env.spec, env.task, point_goal, None, lambda e, d: None)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves((t.brain, t.ring)))


def test_targets_are_bounded_by_what_the_reward_allows():
    with vector.make(point_goal, 1, 0) as env:
        bounds = lambda name, **o: target_bounds(make_reward(name, **o), env.task, 0.9)  # noqa: E731
        assert bounds("sparse") == pytest.approx({"q_low": -10.0, "q_high": 0.0})
        metric = {"shape": "metric", "form": "to-goal", "worst": 2.0}
        assert bounds("aim", **metric) == pytest.approx({"q_low": -20.0, "q_high": 0.0})
        assert bounds("aim+r", **metric) == pytest.approx({"q_low": -30.0, "q_high": 0.0})
        assert bounds("aim") == {"q_low": -np.inf, "q_high": np.inf}
        assert bounds("dense") == {"q_low": -np.inf, "q_high": 0.0}


def test_targets_of_sac_hold_entropy_and_are_not_bounded_by_the_reward(tmp_path):
    with vector.make(point_goal, 1, 0) as env:
        made = {agent: make_round(make_config("point", agent=agent), env.spec, env.task).agent for agent in ("td3", "sac")}
    assert np.isfinite(made["td3"].q_low)
    assert (made["sac"].q_low, made["sac"].q_high) == (-np.inf, np.inf)


def test_the_agent_is_paid_on_the_configured_scale_and_bounds_its_targets_alike(tmp_path):
    from aimrl.agents.td3 import TD3

    class Echo(TD3):
        def update(self, state, batches, key):
            return state, {"agent/paid": batches.reward.mean(), "agent/least": batches.reward.min()}

    c = config(reward="sparse", reward_scale=0.25, bound_targets=True)
    with vector.make(point_goal, 1, 0) as env:
        t = Trainer(c, tmp_path, env.spec, env.task, point_goal, None, lambda e, d: None)
    assert (t.round.agent.q_low, t.round.agent.q_high) == pytest.approx((-2.5, 0.0))  # −0.25 a step, γ = 0.9
    t.begin(resume=False)
    t.gather(400)
    t.close()
    round_ = dataclasses.replace(t.round, agent=Echo())
    _, metrics = jax.jit(lambda *x: round_.learn(*x))(t.brain, t.ring, t.root, np.uint32(0))
    assert float(metrics["agent/least"]) == -0.25
    assert float(metrics["agent/paid"]) == pytest.approx(float(metrics["reward/mean"]))  # what is logged is what is paid


def test_nothing_is_compiled_twice(tmp_path):
    """A buffer that was made and one that was filled differed in a weak type: everything that takes one was compiled for both."""
    c = config(practice=0.5, spread_goals=2)
    with vector.make(point_goal, 1, 0) as env:
        t = Trainer(c, tmp_path, env.spec, env.task, point_goal, None, lambda e, d: None)
    fresh = jax.tree.map(jax.typeof, (t.brain, t.ring))
    t.begin(resume=False)
    for _ in range(2):
        t.gather(400)
    t.brain, _ = jax.jit(t.round.learn)(t.brain, t.ring, t.root, np.uint32(0))
    t.close()
    for _ in range(2):
        t.as_run().evaluate(2)
    assert jax.tree.map(jax.typeof, (t.brain, t.ring)) == fresh
    assert [f._cache_size() for f in (t.practise, t.explore, t.best)] == [1, 1, 1]  # the others take one kind of arguments only


@pytest.mark.parametrize("agent", ["sac", "soft_q"])
def test_the_preset_scales_the_reward_of_td3_only(agent):
    assert make_config("point").reward_scale != 1
    assert make_config("point", agent=agent).reward_scale == 1


@pytest.mark.parametrize("agent", ["td3", "sac", "soft_q"])
@pytest.mark.parametrize("preset", ["paper", "fast"])
def test_every_agent_takes_every_preset(agent, preset):
    """Presets hold options of TD3; with another agent they were refused as unknown."""
    from aimrl import agents

    for reward in ("aim", "sparse", "dense"):
        made = agents.make(agent, **make_config("point", preset=preset, reward=reward, agent=agent).agent_options)
        assert made.gamma == {"paper": {"aim": 0.9}.get(reward, 0.95), "fast": 0.95}[preset]


@pytest.mark.parametrize(("options", "low", "high"), [({"scale": -1.0}, 0.0, 20.0), ({"scale": 2.0}, -40.0, 0.0)])
def test_bounds_of_targets_turn_with_the_sign_of_the_weight(options, low, high):
    reward = make_reward("aim", form="to-goal", shape="metric", knee=0.05, **options)
    with vector.make(point_goal, 1, 0) as env:
        found = target_bounds(reward, env.task, 0.95)
    assert found == {"q_low": pytest.approx(low), "q_high": pytest.approx(high)}


def test_the_defaults_fit_together():
    assert check(Config("any-env")).round_steps == 200


def test_a_preset_of_one_s_own_is_not_overruled_on_reach(tmp_path):
    own = tmp_path / "own.json"
    own.write_text('{"eval_every": 500, "end_on_success": true, "steps": 7777}')
    c = make_config("FetchReach-v4", preset=str(own))
    assert (c.eval_every, c.end_on_success, c.steps, c.checkpoint_every) == (500, True, 7777, 10_000)
    assert make_config("FetchReach-v4", preset="fast").eval_every == 2_000


class Fenced(PointGoal):
    """Ends for good where it has strayed from the goal; its reward is only known where a point can be."""

    goal_task = None  # only Python knows these rules

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, bool(self.compute_terminated(obs["achieved_goal"], obs["desired_goal"], {})), truncated, info

    def compute_terminated(self, achieved, desired, info):
        return np.linalg.norm(achieved - desired, axis=-1) > 0.6

    def compute_reward(self, achieved, desired, info):
        if np.abs(achieved).max() > 10:
            raise IndexError("no such place")
        return super().compute_reward(achieved, desired, info)


class Arriving(PointGoal):
    """Ends at the goal without saying so for other goals."""

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, reward == 0.0, truncated, info


def sampled(env, folder, **settings):
    """A batch after some random play, as the agent learns from it."""
    source = lambda: gym.wrappers.TimeLimit(env(), 15)  # noqa: E731
    c = config(reward="sparse", success_terminates=False, end_on_success=False, bound_targets=True, **settings)
    with vector.make(source, 1, 0) as probe:
        t = Trainer(c, folder, probe.spec, probe.task, source, None, lambda e, d: None)
    t.begin(resume=False)
    t.gather(1_200)
    t.close()
    return replay.sample(t.ring, t.root, (1, 2_000), t.round.how, t.round.judge)


def test_the_environment_s_own_end_is_recomputed_for_hindsight_goals(tmp_path):
    batch = sampled(Fenced, tmp_path)
    assert 0 < batch.terminated.mean() < 1
    assert batch.relabelled.mean() == pytest.approx(0.8, abs=0.05)
    np.testing.assert_array_equal(batch.terminated, Fenced().compute_terminated(batch.next_achieved, batch.goal, {}))


def test_an_environment_that_ends_at_the_goal_unannounced_is_believed(tmp_path):
    batch = sampled(Arriving, tmp_path)
    assert batch.success.any()
    np.testing.assert_array_equal(batch.terminated, batch.success)
    assert not sampled(PointGoal, tmp_path).terminated.any()


def test_a_reward_that_pays_no_number_is_named_and_never_saved(tmp_path):
    class Broken(Dense):
        def reward(self, state, batch):
            return super().reward(state, batch) * np.nan

    with pytest.raises(UserError, match=r"^the reward broken pays nan at step 120; the last good checkpoint is at step 60$"):
        train(config(reward="broken", checkpoint_every=60), tmp_path / "r", env=point_goal, reward=Broken())
    assert runs.checkpoint_steps(tmp_path / "r") == [60]


def test_a_time_limit_can_be_given_to_an_environment_without_one(tmp_path):
    endless = lambda: PointGoal(horizon=10**9)  # noqa: E731
    with pytest.raises(UserError, match="no time limit"):
        train(config(steps=120), tmp_path / "r", env=endless)
    run = train(config(steps=120, horizon=7), tmp_path / "r", env=endless)
    assert min(run.evaluate(20)["return"]) == -7  # −1 a step, until the time limit
    assert run.spec.horizon == 7


def test_whatever_asks_for_a_checkpoint_networks_that_blew_up_get_none(tmp_path):
    """As when an environment fails in the evaluation right after the update that did it."""
    with vector.make(point_goal, 1, 0) as env:
        t = Trainer(config(reward="dense"), tmp_path, env.spec, env.task, point_goal, None, lambda e, d: None)
    runs.write_json(tmp_path / "config.json", {})
    t.newest = {"reward/mean": -0.5, "agent/q": float("nan")}
    with pytest.raises(UserError, match="learning blew up at step 0: agent/q is nan; there is no checkpoint yet"):
        t.save()
    assert runs.checkpoint_steps(tmp_path) == []
    t.newest = {"reward/mean": -0.5, "agent/q": -3.0}
    t.save()
    assert runs.checkpoint_steps(tmp_path) == [0]


@pytest.mark.parametrize("options", [{"curiosity": 0.1}, {"reward_options": {"normalise": True}}])
def test_what_learns_in_updates_of_the_reward_is_refused_where_there_are_none(options):
    with pytest.raises(UserError, match="of which this configuration has none: add --potential-updates 2"):
        make_config("FetchReach-v4", preset="paper", reward="dense", **options)
    assert make_config("FetchReach-v4", preset="paper", reward="dense", potential_updates=2, **options)
