"""Gathering: random actions before anything is learned, and environments that get a head start."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from problems import point_goal
from small_runs import assert_same_run

from aimrl import cli
from aimrl.cli import training
from aimrl.collect import HeadStart, wander
from aimrl.config import make_config
from aimrl.envs import doctor, vector
from aimrl.train import train
from aimrl.types import GoalSpec

BOX = GoalSpec(2, 2, 3, 10)
CHOICE = GoalSpec(2, 2, 5, 10, discrete=True)


def wandered(spec, step, **options):
    return wander(make_config("FetchReach-v4", **options), spec, step)


def test_random_actions_depend_on_seed_and_step_alone():
    first = wandered(BOX, 8, seed=0)
    np.testing.assert_array_equal(first, wandered(BOX, 8, seed=0))
    assert all((first != other).all() for other in (wandered(BOX, 8, seed=1), wandered(BOX, 16, seed=0)))


def test_random_actions_are_uniform():
    drawn = np.concatenate([wandered(BOX, step, num_envs=100, round_steps=100) for step in range(100)])
    np.testing.assert_allclose(np.quantile(drawn, [0, 0.25, 0.5, 0.75, 1], axis=0).T, [[-1, -0.5, 0, 0.5, 1]] * 3, atol=0.03)
    chosen = np.concatenate([wandered(CHOICE, step, num_envs=100, round_steps=100) for step in range(100)])
    assert set(chosen.sum(1).tolist()) == {1.0}
    np.testing.assert_allclose(chosen.mean(0), 0.2, atol=0.02)


def test_before_anything_is_learned_the_papers_schedule_leaves_most_actions_to_small_noise():
    """Once all were random there: on FetchReach, half of the seeds learned a thousand steps later or not at all."""
    share = {"num_envs": 1000, "round_steps": 1000, "steps": 3_000, "preset": "paper"}
    for step, random in ((0, 1.0), (50, 0.65), (100, 0.3), (900, 0.3)):
        drawn = wandered(BOX, step, **share)
        small, large = (np.abs(drawn) < 0.2).mean(), (np.abs(drawn) > 0.8).mean()  # a fifth of the random ones each
        np.testing.assert_allclose([small, large], [0.2 * random + 0.683 * (1 - random), 0.2 * random], atol=0.03)


def small(**options):
    sizes = {"steps": 1_200, "round_updates": 2, "learning_starts": 800, "moving_starts": 0, "eval_episodes": 2, "tensorboard": False}
    return make_config("FetchReach-v4", **(sizes | {"round_steps": 400, "agent_options": {"hidden": (8, 8)}} | options))


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """A run whose environments began when they were asked for."""
    folder = tmp_path_factory.mktemp("runs") / "plain"
    train(small(), folder)
    return folder


@pytest.mark.parametrize("guess", [{}, {"learning_starts": 1_200}, {"seed": 1}], ids=["right", "too long", "another seed"])
def test_a_head_start_changes_nothing_but_the_time(guess, without, tmp_path):
    with HeadStart(small(**guess)) as head:
        train(small(), tmp_path / "r", head=head)
    assert_same_run(tmp_path / "r", without, 1_200)
    assert "ahead" not in {thread.name for thread in threading.enumerate()}


def test_a_head_start_that_nobody_takes_is_closed():
    with HeadStart(small()) as head:
        env = head._env
        assert head.take(small(num_envs=4)) is None
    assert not env._simulators._thread.is_alive()


def test_only_what_is_well_known_gets_a_head_start(monkeypatch):
    assert HeadStart(None)._env is None
    assert HeadStart(small(end_on_success=True))._env is None
    assert HeadStart(small(backend="gym"))._env is None
    monkeypatch.setattr(vector, "ENVPOOL_MUJOCO", {})
    assert HeadStart(small())._env is None


def test_only_what_is_well_known_needs_no_look(monkeypatch):
    looked = []
    monkeypatch.setattr(doctor, "diagnose", lambda env, *a, **k: looked.append(env) or [])
    doctor.look_first("FetchReach-v4", small(), print)
    doctor.look_first("FetchReach-v4", small(backend="gym"), print)
    doctor.look_first(point_goal, small(), print)
    assert looked == ["FetchReach-v4", point_goal]
    monkeypatch.setattr(vector, "ENVPOOL_MUJOCO", {})
    doctor.look_first("FetchReach-v4", small(), print)
    assert len(looked) == 3


@pytest.mark.parametrize(
    "line",
    [
        "FetchPush-v4",
        "FetchPush-v4 --seed 3 --num-envs=4 --reward aim+r",
        "--preset paper FetchReach-v4 --seed=7 --learning-starts 100",
        "--quiet FetchPickAndPlace-v4 --agent sac --round-steps 80 --backend envpool",
    ],
)
def test_what_decides_the_first_steps_is_guessed_from_the_command_line(line):
    words = line.split()
    guess, config = training._guessed(words), training.parse(words)[0]
    names = ("env", "backend", "num_envs", "seed", "horizon", "learning_starts", "round_steps", "end_on_success")
    assert [getattr(guess, n) for n in names] == [getattr(config, n) for n in names]


@pytest.mark.parametrize(
    "line",
    ["", "--help", "FetchPush-v4 --help", "FetchPush-v4 --resume", "PointMaze-v9", "FetchPush-v4 --seed x", "FetchPush-v4 --preset no"],
)
def test_what_can_not_be_guessed_is_left_to_the_parser(line):
    assert training._guessed(line.split()) is None


def test_a_wrong_option_after_a_right_guess_is_told_in_one_line(capsys, tmp_path):
    assert cli.main(["train", "FetchReach-v4", "--out", str(tmp_path / "r"), "--sede", "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert "ahead" not in {thread.name for thread in threading.enumerate()}


def test_gathering_loads_no_jax():
    code = "import sys, aimrl.collect, aimrl.config; c = aimrl.config.make_config('FetchReach-v4')\n"
    code += "with aimrl.collect.HeadStart(c): print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_environments_that_are_only_asked_for_their_task_are_not_made(monkeypatch):
    with vector.make("FetchReach-v4", 2, 0) as env:
        monkeypatch.setattr(env._simulators, "_make_pool", lambda: pytest.fail("made"))
        assert env.spec.obs_dim == 10
        assert env.task.sparse
