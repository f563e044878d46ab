"""Run folders: resuming to the bit, loading, and what is kept when a run fails."""

import dataclasses
import json
import shutil
import signal
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from point_env import PointEnv
from problems import TINY, PointGoal, point_goal
from small_runs import assert_same_run, config, lines

import aimrl
from aimrl import runs
from aimrl.cli import main
from aimrl.config import make_config
from aimrl.rewards import make as make_reward
from aimrl.train import load_run, train
from aimrl.types import EnvTrouble, UserError


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one_to_the_bit(tmp_path, precision):
    wide = {"hidden": (128, 128), "gamma": 0.9} if precision == "bfloat16" else {"hidden": (32, 32), "gamma": 0.9}
    # what depends on more than the last step
    c = config(practice=0.5, spread_goals=2, moved_fraction=0.5, precision=precision, agent_options=wide)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(c, whole, env=point_goal)
    for stop_at in (300, 780):  # in the middle of episodes and between checkpoints
        seen = []
        listen = lambda event, data: seen.append(data["step"]) if "step" in data else None  # noqa: B023, E731
        count = {"rounds": 0}

        def stop(stop_at=stop_at, count=count):
            count["rounds"] += 1
            return count["rounds"] * 60 >= (stop_at if stop_at == 300 else stop_at - 300)

        train(c, broken, env=point_goal, resume=stop_at != 300, stop=stop, listen=listen)
        assert runs.checkpoint_steps(broken)[-1] == stop_at
        with open(broken / "evals.jsonl", "a") as f:
            f.write('{"step": 99999, "half a li')  # a log line cut by a kill
    train(c, broken, env=point_goal, resume=True)
    assert_same_run(whole, broken, 1_200)


def test_a_killed_run_resumes_from_its_last_checkpoint_to_the_bit(tmp_path):
    """A kill leaves logs ahead of the checkpoint and perhaps half a checkpoint."""
    c = config()
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(c, whole, env=point_goal)

    def die(event, data):
        if event == "round" and data["step"] == 900:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train(c, killed, env=point_goal, listen=die)
    with open(killed / "metrics.jsonl", "a") as f:
        f.write(json.dumps({"step": 900, "agent/q": 1.0}) + "\n" + '{"step": 9')
    (killed / "checkpoints" / ".part-1200").mkdir()
    train(c, killed, env=point_goal, resume=True)
    assert_same_run(whole, killed, 1_200)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path):
    c = config(steps=300)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(dataclasses.replace(c, seed=seed), tmp_path / name, env=point_goal)
    assert_same_run(tmp_path / "a", tmp_path / "b", 300)
    assert lines(tmp_path / "a", "metrics.jsonl") != lines(tmp_path / "c", "metrics.jsonl")


def test_a_saved_run_gives_the_same_actions_when_loaded(tmp_path):
    c = make_config("FetchReach-v4", preset="paper", **(TINY | {"steps": 200, "eval_episodes": 2, "agent_options": {"hidden": (16,)}}))
    run = train(c, tmp_path / "r")
    again = load_run(tmp_path / "r")
    obs = {"observation": np.linspace(0, 1, 10), "desired_goal": np.array([1.3, 0.7, 0.5])}
    np.testing.assert_array_equal(run.policy(obs), again.policy(obs))
    assert run.evaluate(3) == again.evaluate(3)


def test_a_run_with_a_reward_of_its_own_asks_for_it(tmp_path):
    train(config(steps=120, reward="nearer"), tmp_path / "r", env=point_goal, reward=make_reward("dense"))
    with pytest.raises(UserError, match=r"reward of its own, 'nearer': .* aimrl\.load\(folder, reward=…\) loads it"):
        load_run(tmp_path / "r", env=point_goal)
    assert load_run(tmp_path / "r", env=point_goal, reward=make_reward("dense")).step == 120


def test_a_run_in_an_environment_without_a_name_asks_for_it(tmp_path, capsys):
    train(config(steps=120), tmp_path / "r", env=point_goal)
    with pytest.raises(UserError, match=r"was trained in 'point', which isn't registered here: .* aimrl\.load\(folder, env=…\) loads it"):
        load_run(tmp_path / "r")
    assert main(["train", "--resume", "--out", str(tmp_path / "r")]) == 2
    assert "was trained in 'point', which isn't registered here" in capsys.readouterr().err
    assert load_run(tmp_path / "r", env=point_goal).step == 120


def test_a_run_that_goes_on_longer_writes_it_down(tmp_path):
    train(config(steps=120), tmp_path / "r", env=point_goal)
    train(config(steps=240), tmp_path / "r", env=point_goal, resume=True)
    assert runs.load_config(tmp_path / "r").steps == 240
    train(config(steps=120), tmp_path / "r", env=point_goal, resume=True)
    assert runs.load_config(tmp_path / "r").steps == 240


def test_a_run_whose_settings_do_not_say_its_steps_goes_on(tmp_path):
    train(config(steps=120), tmp_path / "r", env=point_goal)
    written = runs.read_json(tmp_path / "r" / "config.json")
    runs.write_json(tmp_path / "r" / "config.json", {k: v for k, v in written.items() if k != "steps"})
    assert train(config(steps=240), tmp_path / "r", env=point_goal, resume=True).step == 240
    assert runs.read_json(tmp_path / "r" / "config.json")["steps"] == 240


def test_an_infinite_option_is_read_back(tmp_path):
    c = make_config("point", reward="fairl", reward_options={"clip": np.inf}, **(TINY | {"steps": 120, "agent_options": {"hidden": (8,)}}))
    run = train(c, tmp_path / "r", env=point_goal)
    assert load_run(tmp_path / "r", env=point_goal).round.reward.clip == run.round.reward.clip == np.inf


def test_many_example_states_are_read_back(tmp_path):
    examples = np.random.default_rng(0).uniform(size=(100, 2))
    options = {"target": "examples", "form": "biased", "examples": examples}
    train(config(steps=120, reward_options=options), tmp_path / "r", env=point_goal)
    np.testing.assert_allclose(load_run(tmp_path / "r", env=point_goal).round.reward.examples, examples, rtol=1e-6)


def test_a_policy_without_its_replay_buffer_can_not_go_on(tmp_path):
    train(config(steps=120), tmp_path / "r", env=point_goal)
    (runs.checkpoint_path(tmp_path / "r", 120) / "ring.safetensors").unlink()
    with pytest.raises(UserError, match="can't go on: its replay buffer was left out"):
        train(config(steps=240), tmp_path / "r", env=point_goal, resume=True)


def test_a_run_folder_is_never_overwritten_and_another_run_is_not_resumed(tmp_path):
    c = config(steps=120)
    train(c, tmp_path / "r", env=point_goal)
    with pytest.raises(UserError, match="--resume"):
        train(c, tmp_path / "r", env=point_goal)
    with pytest.raises(UserError, match="batch_size"):
        train(dataclasses.replace(c, batch_size=32), tmp_path / "r", env=point_goal, resume=True)
    with pytest.raises(UserError, match="nothing to resume"):
        train(c, tmp_path / "none", env=point_goal, resume=True)


def test_a_run_killed_before_its_first_checkpoint_resumes_from_the_start(tmp_path, monkeypatch):
    c = config(steps=300)
    train(c, tmp_path / "a", env=point_goal)

    def killed(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(runs, "save_checkpoint", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train(c, tmp_path / "b", env=point_goal)
    assert runs.last_evaluated(tmp_path / "b") == 300
    train(c, tmp_path / "b", env=point_goal, resume=True)
    assert_same_run(tmp_path / "a", tmp_path / "b", 300)


def test_more_steps_asked_for_before_the_first_checkpoint_are_remembered(tmp_path):
    runs.prepare(tmp_path / "r", config(steps=120), {}, resume=False)
    train(config(steps=480), tmp_path / "r", env=point_goal, resume=True, stop=lambda: True)
    assert runs.load_config(tmp_path / "r").steps == 480


def test_numbers_that_blow_up_stop_the_run_and_name_the_last_checkpoint(tmp_path):
    train(config(steps=600), tmp_path / "r", env=point_goal)
    runs.write_json(tmp_path / "r" / "config.json", runs.read_json(tmp_path / "r" / "config.json") | {"steps": 1_200})
    broken = make_reward("aim", learning_rate=1e38)
    with pytest.raises(UserError, match="last good checkpoint is at step 600"):
        train(config(), tmp_path / "r", env=point_goal, reward=broken, resume=True)
    assert runs.checkpoint_steps(tmp_path / "r")[-1] == 600


def test_an_environment_that_fails_mid_run_leaves_the_last_checkpoint(tmp_path):
    class Breaks(type(point_goal().unwrapped)):
        calls = 0

        def step(self, action):
            Breaks.calls += 1
            obs, *rest = super().step(action)
            if Breaks.calls > 3_000:
                obs["observation"][:] = np.nan
            return obs, *rest

    import gymnasium as gym

    with pytest.raises(UserError, match=r"environment \d"):
        train(config(steps=6_000, eval_episodes=4), tmp_path / "r", env=lambda: gym.wrappers.TimeLimit(Breaks(), 15))
    assert runs.checkpoint_steps(tmp_path / "r")


def test_a_run_older_than_a_setting_resumes_with_its_default(tmp_path):
    c = config(steps=120)
    train(c, tmp_path / "r", env=point_goal)
    old = {k: v for k, v in runs.read_json(tmp_path / "r" / "config.json").items() if k != "curiosity"}
    runs.write_json(tmp_path / "r" / "config.json", old)
    assert train(c, tmp_path / "r", env=point_goal, resume=True).step == 120
    with pytest.raises(UserError, match="curiosity"):
        train(dataclasses.replace(c, curiosity=0.5), tmp_path / "r", env=point_goal, resume=True)


def test_a_policy_answers_as_the_environment_takes_actions(tmp_path):
    run = train(config(steps=120, agent_options={"hidden": (8,)}), tmp_path / "r", env=lambda: TimeLimit(PointEnv(), 20))
    obs, goal = np.zeros((3, 2), np.float32), np.ones((3, 2), np.float32)
    np.testing.assert_allclose(run.policy(obs, goal), 0.5 * run.play(obs, goal))
    assert run.policy(obs[0], goal[0]).shape == (2,)
    for wrong in ((np.zeros(3), goal[0]), (obs, goal[:2]), (np.zeros((0, 2)), goal)):
        with pytest.raises(UserError, match=r"an observation has 2 numbers and its goal 2; shapes .* don't fit"):
            run.policy(*wrong)
    with pytest.raises(UserError, match="episodes must be at least 1, not 0"):
        run.evaluate(0)


def test_what_changed_before_a_run_went_on_is_written_down(tmp_path, monkeypatch):
    c = config(steps=120, checkpoint_every=120)
    train(c, tmp_path / "r", env=point_goal)
    first = runs.read_json(tmp_path / "r" / "config.json")
    monkeypatch.setattr(runs, "versions", lambda **extra: first["versions"] | {"jax": "9.9"})
    train(dataclasses.replace(c, steps=240), tmp_path / "r", env=point_goal, resume=True)
    after = runs.read_json(tmp_path / "r" / "config.json")
    assert after == first | {"steps": 240, "resumed": {"120": {"jax": "9.9"}}}
    assert runs.method_settings(after) == runs.method_settings(first)


def test_a_run_does_not_go_on_in_another_simulator(tmp_path):
    c = config(steps=120)
    train(c, tmp_path / "r", env=point_goal)
    with pytest.raises(UserError, match="was trained in the simulators of 'gym'"):
        runs.prepare(tmp_path / "r", c, {"backend": "envpool"}, resume=True)


def test_a_container_s_limit_counts_as_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "CGROUP", tmp_path)
    plenty = runs.free_memory()
    assert plenty is not None
    (tmp_path / "memory.current").write_text("600\n")
    (tmp_path / "memory.max").write_text("1000\n")
    assert runs.free_memory() == 400
    (tmp_path / "memory.stat").write_text("anon 250\nactive_file 20\ninactive_file 300\nshmem 30\n")
    assert runs.free_memory() == 720  # what was only read from files is given up when asked for
    (tmp_path / "memory.max").write_text("max\n")
    assert runs.free_memory() > 400


class Pressed(PointGoal):
    """Somebody presses Ctrl-C at the hundredth step."""

    steps, signal = 0, signal.SIGINT

    def step(self, action):
        Pressed.steps += 1
        if Pressed.steps == 100:
            signal.raise_signal(Pressed.signal)
        return super().step(action)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_save_a_run_begun_in_python(tmp_path, monkeypatch, sent):
    monkeypatch.setattr(Pressed, "steps", 0)
    monkeypatch.setattr(Pressed, "signal", sent)
    monkeypatch.setattr("aimrl.envs.doctor.look_first", lambda *a: None)  # its steps would count
    settings = {"preset": "paper", "quiet": True, "out": tmp_path / "r", "agent_options": {"hidden": (8,)}} | TINY | {"steps": 300}
    env = lambda: gym.wrappers.TimeLimit(Pressed(), 15)  # noqa: E731
    with pytest.raises(KeyboardInterrupt, match=r"^stopped at step 120 and saved; go on with resume=True"):
        aimrl.train(env, **settings)
    assert runs.checkpoint_steps(tmp_path / "r") == [120]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert aimrl.train(env, resume=True, **settings).step == 300


def test_an_environment_is_looked_at_before_a_run_begun_in_python(tmp_path):
    with pytest.raises(UserError, match="no time limit"):
        aimrl.train(PointGoal, out=tmp_path / "r", quiet=True)
    assert not (tmp_path / "r").exists()


class _FailsWhenAsked(PointEnv):
    broken = False

    def reset(self, **options):
        if _FailsWhenAsked.broken:
            raise RuntimeError("no power")
        return super().reset(**options)


def test_an_evaluation_that_failed_is_made_up_for_on_resuming(tmp_path, monkeypatch):
    make = lambda: TimeLimit(_FailsWhenAsked(), 10)  # noqa: E731
    c = config(checkpoint_every=10**6, eval_every=10**6, steps=600)

    def breaks(event, data):
        if event == "metrics" and data["step"] == 600:  # told just before the last evaluation
            monkeypatch.setattr(_FailsWhenAsked, "broken", True)

    with pytest.raises(UserError, match=r"no power.*kept as it was at step 600"):
        train(c, tmp_path / "a", env=make, listen=breaks)
    assert runs.checkpoint_steps(tmp_path / "a") == [600]
    assert runs.last_evaluated(tmp_path / "a") == 0
    monkeypatch.setattr(_FailsWhenAsked, "broken", False)
    train(c, tmp_path / "a", env=make, resume=True)
    train(c, tmp_path / "b", env=make)
    assert lines(tmp_path / "a", "evals.jsonl") == lines(tmp_path / "b", "evals.jsonl")
    train(c, tmp_path / "a", env=make, resume=True)  # and only once
    assert [row["step"] for row in lines(tmp_path / "a", "evals.jsonl")] == [600]


@pytest.mark.parametrize("failing", [1, 2])  # in the middle and at the end
def test_what_an_evaluation_s_failure_left_out_at_a_checkpoint_is_made_up_for_on_resuming(tmp_path, monkeypatch, failing):
    """The environments used to go on as they were, where an uninterrupted run builds them anew."""
    make = lambda: TimeLimit(PointEnv(), 7)  # noqa: E731
    c = config(eval_every=420, checkpoint_every=420, steps=600)
    evaluate, asked = sys.modules["aimrl.train"].evaluate, []

    def fails(*args, **options):
        asked.append(1)
        if len(asked) == failing:
            raise EnvTrouble("no power")
        return evaluate(*args, **options)

    monkeypatch.setattr("aimrl.train.evaluate", fails)
    with pytest.raises(UserError, match=rf"no power; the run is kept as it was at step {(420, 600)[failing - 1]}"):
        train(c, tmp_path / "a", env=make)
    train(c, tmp_path / "a", env=make, resume=True)
    train(c, tmp_path / "b", env=make)
    assert_same_run(tmp_path / "a", tmp_path / "b", 600)


def _incomplete(checkpoints):
    (checkpoints / "600" / "meta.json").unlink()


def _all_incomplete(checkpoints):
    for meta in checkpoints.glob("*/meta.json"):
        meta.unlink()


def _emptied(checkpoints):
    shutil.rmtree(checkpoints)
    checkpoints.mkdir()


def _without_buffer(checkpoints):
    (checkpoints / "600" / "ring.safetensors").unlink()


def _of_another_version(checkpoints):
    from safetensors.numpy import load_file, save_file

    file = checkpoints / "600" / "ring.safetensors"
    save_file({k: v for k, v in load_file(file).items() if k != "slot"}, file)


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (_of_another_version, r"ring.safetensors of step 600 .* is of another version of aimrl: 'slot' is missing"),
        (_incomplete, r"checkpoint 600 of .* is incomplete: fetch it again, or remove it to use that of step 300"),
        (_all_incomplete, r"checkpoint 600 of .* is incomplete: fetch it again, or choose another --out"),
        (_without_buffer, r"its replay buffer was left out"),
        (_emptied, r"was at step 600, but its checkpoints are gone: choose another --out"),
    ],
)
def test_a_run_that_can_not_go_on_keeps_its_logs(tmp_path, lose, message):
    """They used to be cut back before it was known whether the run could go on, and emptied where no checkpoint was whole."""
    c = config(steps=600, eval_every=120, checkpoint_every=300)
    train(c, tmp_path / "r", env=point_goal)
    before = {name: (tmp_path / "r" / name).read_bytes() for name in ("metrics.jsonl", "evals.jsonl", "config.json")}
    assert len(before["evals.jsonl"].splitlines()) == 5
    lose(tmp_path / "r" / "checkpoints")
    with pytest.raises(UserError, match=message):
        train(dataclasses.replace(c, steps=900), tmp_path / "r", env=point_goal, resume=True)
    assert {name: (tmp_path / "r" / name).read_bytes() for name in before} == before


def test_a_short_run_whose_checkpoints_were_removed_keeps_its_evaluation(tmp_path):
    train(config(steps=120), tmp_path / "r", env=point_goal)
    shutil.rmtree(tmp_path / "r" / "checkpoints")
    for steps in (120, 240):
        with pytest.raises(UserError, match="was at step 120, but its checkpoints are gone"):
            train(config(steps=steps), tmp_path / "r", env=point_goal, resume=True)
    assert [row["step"] for row in lines(tmp_path / "r", "evals.jsonl")] == [120]


def test_a_folder_is_trained_by_one_process_at_a_time(tmp_path):
    def second(event, data):
        if event == "round":
            with pytest.raises(UserError, match="being trained by another process"):
                train(c, tmp_path / "a", env=point_goal, resume=True)

    c = config(steps=120)
    train(c, tmp_path / "a", env=point_goal, listen=second)
    assert [row["step"] for row in lines(tmp_path / "a", "evals.jsonl")] == [120]


def test_of_two_runs_that_begin_at_once_in_one_folder_one_is_refused_and_writes_nothing(tmp_path):
    """The second used to write its settings over those of the first before it found that folder taken."""
    c = config(steps=120)
    with runs.claimed(tmp_path / "r", resume=False):  # the first has checked the folder, and written nothing yet
        with pytest.raises(UserError, match="is being trained by another process"):
            train(c, tmp_path / "r", env=point_goal)
        assert not list((tmp_path / "r").iterdir())
    with pytest.raises(UserError, match=r"nothing to resume in .*: there is no such folder"):
        train(c, tmp_path / "none", env=point_goal, resume=True)
    assert not (tmp_path / "none").exists()


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path):
    made = []

    def second_fails():
        made.append(1)
        if len(made) > 3:
            raise RuntimeError("too many")
        return TimeLimit(PointEnv(), 10)

    with pytest.raises(UserError, match="too many"):
        train(config(num_envs=4, round_steps=60), tmp_path / "a", env=second_fails)
    assert not (tmp_path / "a").exists()


def test_what_is_left_of_a_run_is_not_written_over(tmp_path):
    c = config(steps=120)
    train(c, tmp_path / "a", env=point_goal)
    (tmp_path / "a" / "config.json").unlink()
    with pytest.raises(UserError, match=r"whose config\.json is gone"):
        train(c, tmp_path / "a", env=point_goal)
    for step in (5, 7):
        runs.save_checkpoint(tmp_path / "b", step, {"x": {"a": np.zeros(1)}}, {})
    runs.save_checkpoint(tmp_path / "b", 1, {"x": {"a": np.zeros(1)}}, {})
    assert 1 in runs.checkpoint_steps(tmp_path / "b")


def test_a_run_keeps_the_precision_it_began_with_on_another_processor(tmp_path, monkeypatch):
    c = config(steps=120, precision="auto")
    monkeypatch.setattr("aimrl.config.multiplies_bfloat16", lambda: True)
    train(c, tmp_path / "a", env=point_goal)
    assert runs.load_config(tmp_path / "a").precision == "bfloat16"
    monkeypatch.setattr("aimrl.config.multiplies_bfloat16", lambda: False)
    assert train(dataclasses.replace(c, steps=240), tmp_path / "a", env=point_goal, resume=True).config.precision == "bfloat16"
    with pytest.raises(UserError, match="its precision is 'bfloat16', not 'float32'"):
        train(dataclasses.replace(c, steps=300, precision="float32"), tmp_path / "a", env=point_goal, resume=True)


def test_a_reward_object_is_recorded_with_its_own_options(tmp_path):
    small = {k: v for k, v in TINY.items() if k != "env"} | {"steps": 120, "quiet": True}
    run = aimrl.train(point_goal, reward=make_reward("aim", form="shaped", step_bound=0.3), out=tmp_path / "a", **small)
    assert run.config.reward_options["form"] == "shaped"
    assert run.config.reward_options["step_bound"] == 0.3
    assert load_run(tmp_path / "a", env=point_goal).round.reward.form == "shaped"
    with pytest.raises(UserError, match="leave reward_options out"):
        aimrl.train(point_goal, reward=make_reward("aim"), reward_options={"knee": 0.1}, out=tmp_path / "b", **small)
    with pytest.raises(UserError, match="needs to know which run"):
        aimrl.train(point_goal, resume=True, **small)


def test_a_run_that_ends_before_its_first_update_has_both_logs_all_the_same(tmp_path):
    train(config(steps=200, learning_starts=1_000), tmp_path / "a", env=point_goal)
    assert (tmp_path / "a" / "metrics.jsonl").read_text() == ""
    assert len(lines(tmp_path / "a", "evals.jsonl")) == 1


def test_a_long_run_s_log_stays_short_enough_to_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr("aimrl.train._LOG_ROWS", 1)
    train(config(steps=2_400), tmp_path / "a", env=point_goal)
    assert [row["step"] for row in lines(tmp_path / "a", "metrics.jsonl")] == [2_400]
