"""The grid trainer: its bookkeeping, its promises on bad input, and that every reward learns."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aimrl import grid, plots_grid, rewards
from aimrl.envs import grid as worlds
from aimrl.rewards.base import Reward
from aimrl.types import UserError

EASY = """\
limit: 30
+-+-+-+-+-+
|. . . . .|
+ + + + + +
|. S .|G .|
+ + + + + +
|. . . . .|
+-+-+-+-+-+
"""
TWO_GOALS = EASY.replace("|. S .|G .|", "|G S .|G .|")


def small(world, reward="sparse", **overrides):
    made, config = grid.settings(world, reward, "paper", **{"gather": 60, "rounds": 2, "q_batch": 16, "reward_batch": 16} | overrides)
    return grid.trainer(world, made, config)


def test_as_many_transitions_are_gathered_as_asked_for_or_a_few_more():
    """Once an episode's length that didn't divide the number asked for left some ungathered."""
    world = worlds.parse(TWO_GOALS, "two")
    for asked in (30, 89, 91):
        program = small(world, gather=asked)
        assert asked <= program.steps * program.lanes < asked + program.lanes


def test_gathered_transitions_follow_the_world_and_episodes_restart():
    world = worlds.parse(TWO_GOALS, "two")
    program = small(world, gather=90)
    assert (program.lanes, program.steps) == (3, 30)
    carry = program.init(jax.random.key(5))
    lengths = []
    for i in range(6):
        r, lanes = program.gather(carry.agent, carry.lanes, jax.random.key(i))
        goals = np.asarray(program.tables.goals)[np.asarray(r.goal)]
        np.testing.assert_array_equal(r.s_next, world.move[np.asarray(r.s), np.asarray(r.a)])  # no wind here
        reached = np.asarray(r.s_next) == goals
        s, s_next = np.asarray(r.s), np.asarray(r.s_next)
        restart = s[1:] != s_next[:-1]
        assert (s[1:][reached[:-1]] == world.starts[0]).all()
        assert (s[1:][restart] == world.starts[0]).all()
        lengths.append(reached.sum())
        assert (np.asarray(lanes.env.t) < world.limit).all()
        carry = grid.dataclasses.replace(carry, lanes=lanes)
    assert sum(lengths) > 3
    assert len(np.unique(goals)) == 2


def test_a_future_lies_in_the_same_episode_and_its_steps_count_right():
    s_next = jnp.arange(12)[:, None] * 10  # the state tells its time
    done = jnp.zeros((12, 1), bool).at[4, 0].set(True).at[7, 0].set(True)
    seen = set()
    for i in range(200):
        future, steps = grid.pick_future(s_next, done, jax.random.uniform(jax.random.key(i), (12, 1)))
        t_future = np.asarray(future)[:, 0] // 10
        np.testing.assert_array_equal(t_future, np.arange(12) + np.asarray(steps)[:, 0] - 1)
        assert (np.asarray(steps) >= 1).all()
        last = np.array([4] * 5 + [7] * 3 + [11] * 4)
        assert (t_future <= last).all()
        seen |= {(t, int(f)) for t, f in enumerate(t_future)}
    assert len(seen) == 15 + 6 + 10  # every later state gets its turn


def test_prefix_moments_are_those_of_the_episode_so_far():
    world = worlds.parse(EASY, "easy")
    program = small(world, "smirl", gather=60)
    carry = program.init(jax.random.key(2))
    r, _ = program.gather(carry.agent, carry.lanes, jax.random.key(9))
    x, goal = world.features(), int(world.goals[0])
    for lane in range(program.lanes):
        path = [x[world.starts[0]]]
        for t in range(program.steps):
            path.append(x[int(r.s_next[t, lane])])
            np.testing.assert_allclose(r.prefix_mean[t, lane], np.mean(path, 0), atol=1e-5)
            np.testing.assert_allclose(r.prefix_var[t, lane], np.var(path, 0), atol=1e-5)
            if int(r.s_next[t, lane]) == goal or len(path) > world.limit:
                path = [x[world.starts[0]]]


def test_rewards_see_the_task_reward_and_termination_only_at_the_goal():
    world = worlds.load("room")
    program = small(world)
    every = jnp.arange(100)
    zero = jnp.zeros_like(every)
    t = program.transition(grid.Record(zero, zero, every, zero, every, zero + 1))
    at_goal = np.arange(100) == world.goals[0]
    np.testing.assert_array_equal(t.task_reward, at_goal.astype(float))
    np.testing.assert_array_equal(t.terminated, at_goal)
    assert np.abs(t.next_achieved).max() <= 0.5


def test_evaluation_agrees_with_the_exact_success_rate_and_visits():
    """The uniform policy in a small windy world, against powers of its transition matrix."""
    world = worlds.parse("limit: 6\nwind: 0.3\n+-+-+-+\n|v . G|\n+ + + +\n|S v .|\n+-+-+-+\n", "tiny")
    program = small(world, gather=12, entropy=1e6)  # at this temperature the policy is uniform
    carry = program.init(jax.random.key(0))
    mdp = worlds.exact_mdp(world)
    chain = mdp.P.mean(1)
    chain[mdp.goal] = 0.0
    rho, visits, reached, steps = mdp.start, mdp.start.copy(), 0.0, 0.0
    for t in range(1, world.limit + 1):
        rho = rho @ chain
        visits += rho
        reached += rho[mdp.goal]
        steps += t * rho[mdp.goal]
        if t == world.limit:  # the state after the last step isn't acted in, unless it's the goal
            visits -= np.where(np.arange(world.n_states) == mdp.goal, 0.0, rho)
    n = 40_000
    e = program.evaluate(carry.agent, jax.random.key(1), n)
    assert float(e.success.mean()) == pytest.approx(reached, abs=4 * np.sqrt(reached * (1 - reached) / n))
    assert float(jnp.where(e.success, e.steps, 0).mean()) == pytest.approx(steps, abs=0.06)
    np.testing.assert_allclose(e.visits, visits, atol=0.03)


@pytest.mark.usefixtures("quick_compilation")
def test_the_same_seed_gives_the_same_result_in_any_company():
    world = worlds.parse(EASY, "easy")
    made, config = grid.settings(world, "aim", "paper", gather=60, rounds=2)
    run = lambda seeds, seed: grid.train(world, made, config, seeds=seeds, seed=seed, iterations=3, evaluations=1)  # noqa: E731
    pair, alone, again = run(2, 3), run(1, 4), run(1, 4)
    np.testing.assert_array_equal(alone.maps.reward, again.maps.reward)
    assert alone.summary()["success_rate"] == again.summary()["success_rate"]
    np.testing.assert_allclose(pair.maps.reward[1], alone.maps.reward[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(pair.maps.reward[0], pair.maps.reward[1])


def test_the_spread_of_visits_is_one_when_even_and_zero_in_one_cell():
    np.testing.assert_allclose(grid.spread(np.array([[2.0, 2, 2, 2], [0, 8, 0, 0], [1, 1, 0, 0]])), [1.0, 0.0, 0.5], atol=1e-9)


def test_violations_count_transitions_above_the_bound():
    world = worlds.parse("+-+-+-+-+\n|S . . G|\n+-+-+-+-+\n", "line")
    f = np.array([0.0, 1.0, 3.0, 4.0])
    # 0-1, 1-0, 1-2, 2-1, 2-3; nothing leaves the goal. The middle hop is 2 high, in both directions.
    assert plots_grid.violations(world, f, 1.0) == (2, 5)
    assert plots_grid.violations(world, f, 2.0) == (0, 5)
    assert plots_grid.violations(world, f, 1.0, one_sided=True) == (1, 5)  # the way down may be as steep as it likes
    assert plots_grid.rank_correlation(f, np.array([3.0, 2.0, 1.0, 0.0])) == pytest.approx(1.0)
    assert plots_grid.rank_correlation(-f, np.array([3.0, 2.0, 1.0, np.inf])) == pytest.approx(-1.0)


@pytest.mark.usefixtures("quick_compilation")
def test_a_run_leaves_its_folder_and_prints_the_contract(tmp_path):
    file = tmp_path / "easy.txt"
    file.write_text(EASY)
    out = tmp_path / "deep" / "run"
    for _ in range(2):  # an earlier grid run is replaced
        summary = grid.run(
            str(file), "dense", "fast", seeds=2, seed=7, iterations=2, out=out, progress=False, gather=60, rounds=2, q_batch=8
        )
    assert set(summary) == {"success_rate", "steps_to_goal", "iterations", "env_steps", "wall_s"}
    assert len(summary["success_rate"]) == len(summary["steps_to_goal"]) == 2
    assert (summary["iterations"], summary["env_steps"]) == (2, 240)
    config = json.loads((out / "config.json").read_text())
    assert (config["seed"], config["seeds"], config["reward"], config["config"]["gather"]) == (7, 2, "dense", 60)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2]
    assert lines[-1]["success_rate"] == summary["success_rate"]
    assert all(0 < line["cells_seen"] <= 1 and 0 < line["spread"] <= 1 for line in lines)
    names = {p.name for p in (out / "figures").iterdir()}
    assert names == {"reward.png", "visits.png", "policy.png", "potential.png", "success.png", "reward.gif"}
    assert [p.name for p in out.parent.iterdir()] == ["run"]


BAD = [
    ({"world": "roam"}, "did you mean room"),
    ({"reward": "aimm"}, "did you mean aim"),
    ({"preset": "papr"}, "did you mean paper"),
    ({"q_bach": 3}, "q_bach"),
    ({"q_batch": 0}, "q_batch must be"),
    ({"seeds": 0}, "seeds must be"),
    ({"seed": -1}, "seed must be"),
    ({"iterations": 0}, "iterations must be"),
    ({"entropy": 0.0}, "entropy must be"),
    ({"entropy": float("nan")}, "entropy takes a float"),
    ({"gamma": 1.5}, "gamma must be at least 0 and below 1"),
    ({"target_rate": 5.0}, "target_rate must be a positive number of at most 1"),
    ({"q_learning_rate": -1.0}, "q_learning_rate must be"),
    ({"q_activation": "rely"}, "did you mean relu"),
    ({"q_hidden": "x"}, "q_hidden takes a tuple"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_bad_input_is_one_line_and_leaves_nothing_behind(change, words, tmp_path):
    asked = {"world": "room", "reward": "sparse", "preset": "paper", "seeds": 1, "iterations": 1, "out": tmp_path / "a" / "b"}
    with pytest.raises(UserError, match=words) as error:
        grid.run(**asked | change, progress=False)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_goal_behind_walls_is_refused_and_other_folders_are_left_alone(tmp_path):
    file = tmp_path / "shut.txt"
    file.write_text("+-+-+\n|S|G|\n+-+-+\n")
    with pytest.raises(UserError, match="x = 1, y = 0 can't be reached"):
        grid.run(str(file), out=tmp_path / "run", progress=False)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years")
    with pytest.raises(UserError, match="isn't a grid run"):
        grid.run("room", out=precious, progress=False)
    assert (precious / "thesis.tex").read_text() == "years"


def test_a_failure_on_the_way_leaves_nothing_behind(tmp_path):
    def fail():
        with grid.output_folder(tmp_path / "a" / "run") as folder:
            (folder / "half.txt").write_text("half")
            raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        fail()
    assert list(tmp_path.iterdir()) == []


class Broken(Reward):
    """What a user's reward may do: divide by the number of times it was updated, less two."""

    task_weight: float = 0.0
    scale: float = 1.0

    def init(self, key, spec):
        return jnp.zeros(())

    def update(self, state, batches, key):
        return state + 1.0, {"broken/updates": state}

    def reward(self, state, batch):
        return (state - 2.0) / (state - 2.0) + 0.0 * batch.next_achieved[..., 0]


@pytest.mark.usefixtures("quick_compilation")
def test_a_reward_that_is_no_number_ends_the_run_in_one_line_and_nothing_is_kept(tmp_path, monkeypatch):
    """It was saved as a finished run with success 0."""
    file = tmp_path / "easy.txt"
    file.write_text(EASY)
    monkeypatch.setattr(grid.rewards, "make", lambda name, **options: Broken())
    small = {"gather": 60, "rounds": 2, "q_batch": 8, "reward_batch": 8}
    with pytest.raises(UserError, match=r"by iteration 2: reward/mean is nan in 2 of 2 seeds; look at what the reward Broken") as error:
        grid.run(str(file), "broken", "paper", seeds=2, iterations=3, out=tmp_path / "run", progress=False, **small)
    assert "\n" not in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["easy.txt"]


def test_what_blew_up_is_named_whichever_seed_it_is():
    fine = {"soft_q/q": jnp.zeros(3), "reward/mean": jnp.ones(3)}
    grid.check_finite(fine, Broken(), 5)
    with pytest.raises(UserError, match=r"iteration 5: soft_q/q is inf in 1 of 3 seeds"):
        grid.check_finite(fine | {"soft_q/q": jnp.array([0.0, jnp.inf, 0.0])}, Broken(), 5)


def test_reward_options_reach_the_reward_also_where_the_agent_has_one_of_the_same_name():
    world = worlds.parse(EASY, "easy")
    made, config = grid.settings(world, "aim", "fast", reward_options={"gamma": 0.5, "bound": "expected"}, gamma=0.9)
    assert (made.gamma, made.bound, config.q.gamma) == (0.5, "expected", 0.9)
    assert made.lipschitz_weight == grid.PRESETS["fast"].rewards["aim"]["lipschitz_weight"]
    with pytest.raises(UserError, match="did you mean bound"):
        grid.settings(world, "aim", "fast", reward_options={"bond": "expected"})


@pytest.fixture
def quick_compilation():
    """These programs run for a second and compile for ten: the compiler's optimisations don't pay here."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("name", ["sparse", "dense", "rnd", "mc", "smirl", "gail", "wgan", "disco", "aim", "aim+r"])
def test_every_reward_solves_a_room_with_an_easier_goal(name):
    """As the paper debugged its baselines: one that can't is broken, not beaten.

    A goal that pays 1 is only worth reaching if lingering earns less: entropy α log 4 a step, so α log 4 / (1 − γ) < 1.
    """
    world = worlds.parse(EASY, "easy")
    patient = {"entropy": 0.05, "gamma": 0.85, "q_learning_rate": 1e-2, "target_rate": 0.1}
    options = {} if name in ("aim", "aim+r", "wgan") else patient | ({"scale": 0.02} if name == "smirl" else {})
    made, config = grid.settings(world, name, "fast", gather=150, **options)
    result = grid.train(world, made, config, seeds=2, seed=11, iterations=100, evaluations=1)
    assert np.mean(result.success_rate) >= 0.9


@pytest.mark.slow
def test_aim_reaches_the_goal_in_the_room():
    world = worlds.load("room")
    made, config = grid.settings(world, "aim", "fast")
    result = grid.train(world, made, config, seeds=4, seed=20, iterations=100, evaluations=1)
    assert np.mean(result.success_rate) >= 0.95
    assert np.mean(result.steps_to_goal) >= 17
    assert all(name in rewards.NAMES for name in grid.PRESETS["fast"].rewards)


def test_the_current_folder_can_be_filled(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with grid.output_folder(Path()) as part:
        (part / "x").write_text("1")
    assert (tmp_path / "here" / "x").read_text() == "1"
