"""The command line as a user meets it: help, answers to mistakes, JSON, a run from start to video, signals."""

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from aimrl import cli, rewards, runs
from aimrl.cli import options, training
from aimrl.cli.commands import COMMANDS
from aimrl.config import make_config
from aimrl.types import UserError

HERE = Path(__file__).parent
TINY = shlex.split(
    "--num-envs 4 --round-steps 40 --round-updates 2 --batch-size 16 --learning-starts 80 --eval-every 200 --eval-episodes 4 "
    "--checkpoint-every 200 --buffer-size 1000 --potential-updates 2 --potential-batch 16 --td3.hidden 8"
)


@pytest.fixture(autouse=True)
def _tests_are_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def call(capsys, *argv):
    """Exit code, lines of standard output, lines of standard error."""
    code = cli.main([str(a) for a in argv])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err.splitlines()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A finished run of 240 steps on the point."""
    sys.path.insert(0, str(HERE))
    folder = tmp_path_factory.mktemp("runs") / "point"
    assert cli.main(["train", "point_env:Point-v0", "--steps", "240", "--out", str(folder), "--quiet", *TINY]) == 0
    return folder


# --- help -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 120])
def test_the_overview_breaks_its_lines_between_words_at_the_terminals_width(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    commands = " ".join(" ".join(lines).split())
    assert all(" ".join(c.help.summary.splitlines()[0].split()) in commands for c in COMMANDS.values())


def test_the_overview_names_every_command_and_loads_nothing_heavy():
    heavy = "{'jax', 'scipy', 'gymnasium', 'tyro'} & sys.modules.keys()"
    code = f"import sys, aimrl.cli as c; r = c.main(['--help']); print(sorted({heavy})); sys.exit(r)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_of_itself(name, capsys):
    code, out, err = call(capsys, name, "--help")
    assert (code, err) == (0, [])
    assert f"  aimrl {name} " in "\n".join(out)
    assert "{None}" not in "\n".join(out)
    assert max(map(len, out)) <= 80


def test_a_short_option_is_not_blamed_for_the_unknown_one_beside_it(capsys):
    code, _, err = call(capsys, "train", "FetchReach-v4", "-q", "--stepz", 10)
    assert code == 2
    assert len(err) == 1
    assert "'--stepz'" in err[0]
    assert "--steps" in err[0]


def test_help_of_train_shows_the_values_of_the_preset_typed_beside_it(capsys):
    def batch(*argv):
        text = " ".join(call(capsys, "train", "FetchPush-v4", *argv, "--help")[1])
        return text.split("--round-steps INT")[1].split("default: ")[1].split(")")[0]

    assert batch("--preset", "paper") == "100"
    assert batch("--preset", "paper", "--reward=sparse") == "10"
    assert batch() == str(make_config("FetchPush-v4").round_steps)


def test_every_field_of_the_configuration_the_agent_and_the_reward_is_an_option():
    made, base, _ = training.option_class(["FetchPush-v4"])
    known = options.flags(made)
    for f in dataclasses.fields(base):
        if f.name not in ("env", "agent_options", "reward_options"):
            assert f"--{f.name.replace('_', '-')}" in known
    assert {"--td3.tau", "--aim.step-bound", "--no-tensorboard"} <= set(known)


def test_a_comment_beside_a_field_is_its_help_and_one_above_too():
    texts = options.comments(Commented)
    assert texts == {"a": "beside", "b": "above, over two lines", "c": ""}


@dataclasses.dataclass
class Commented:
    a: int = 1  # beside
    # above, over
    # two lines
    b: int = 2
    c: int = 3


def test_version_and_completion(capsys):
    assert call(capsys, "--version")[:2] == (0, ["aimrl 0.1.0"])
    for shell in ("bash", "zsh"):
        code, out, _ = call(capsys, "--print-completion", shell)
        assert code == 0
        assert "--aim.step-bound" in "\n".join(out)
    script = "\n".join(call(capsys, "--print-completion", "bash")[1])
    ask = script + '\nCOMP_WORDS=(aimrl train X --see) COMP_CWORD=3; _aimrl; echo "${COMPREPLY[@]}"'
    assert subprocess.run(["bash", "-c", ask], capture_output=True, text=True).stdout.split() == ["--seed"]
    assert call(capsys, "--print-completion", "bahs")[0] == 2


# --- mistakes ---------------------------------------------------------------------------------------------------------------------------

MISTAKES = {
    "trian": "train",
    "train FetchReech-v4": "FetchReach-v4",
    "train FetchReach-v4 --reward aimm": "aim",
    "train FetchReach-v4 --agent tdd3": "td3",
    "train FetchReach-v4 --preset papper": "paper",
    "train FetchReach-v4 --bath-size 3": "--batch-size",
    "train FetchReach-v4 --td3.tua 0.1": "--td3.tau",
    "train FetchReach-v4 --rnd.scale 2": "--aim.scale",
    "train FetchReach-v4 --backend gmy": "gym",
    "train FetchReach-v4 --batch-size many": "whole number",
    "train FetchReach-v4 --batch-size": "--batch-size",
    "train FetchReach-v4 --steps -5": "steps must be positive",
    "train FetchReach-v4 --her-ratio 2": "between 0 and 1",
    "train FetchReach-v4 extra": "'extra'",
    "train": "environment",
    "train --resume": "--out",
    "train --resume --out nowhere": "nothing to resume",
    "train CartPole-v1": "CartPole-v1",
    "eval": "RUN",
    "eval nowhere": "nowhere",
    "eval nowhere --episodes 1.5": "whole number",
    "eval nowhere --episodes 0": "at least 1",
    "grid roam": "room",
    "grid room --reward aimm": "aim",
    "grid room --seeds 0": "seeds",
    "grid room --seeds 100000000000": "seeds must be a whole number from 1 to 1,048,576, not 100000000000",
    "grid room --seed 4294967296": "seed must be a whole number from 0 to",
    "grid room --iterations 100000000000": "iterations must be a whole number from 1 to",
    "grid room --aim.hidden": "option 'hidden' of reward 'aim' takes a tuple",
    "theory rom": "room",
    "theory nowhere.npz": "nowhere.npz",
    "theory room --gamma 2": "gamma",
    "stats": "CSV",
    "stats nowhere.csv": "nowhere.csv",
    "stats nowhere --success evver": "ever",
    "sweep nowhere.toml": "nowhere.toml",
    "report": "folders",
    "report nowhere": "nowhere",
    "watch nowhere": "nowhere",
    "tune FetchReach-v4 --trials 0": "trials",
    "tune CartPole-v1": "CartPole-v1",
    "train point_env:Pointt-v0": "did you mean point_env:Point-v0",
    f"theory {'x' * 300}": "File name too long",
    f"eval {'x' * 300}": "File name too long",
    f"grid room --out {'x' * 300}": "File name too long",
    "tune FetchReach-v4 --only agent.tua": "agent.tau",
    "bench --quik": "--quick",
}


@pytest.mark.parametrize("typed", MISTAKES, ids=lambda typed: typed[:60])
def test_a_mistake_is_answered_in_one_line_with_what_was_meant(typed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *typed.split())
    assert (code, out) == (2, [])
    assert len(err) == 1, err
    assert err[0].startswith("aimrl: ")
    assert MISTAKES[typed] in err[0]
    assert list(tmp_path.iterdir()) == []


def test_an_unexpected_exception_is_one_line_unless_debugging(capsys, monkeypatch):
    def explode(argv):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(training, "run", explode)
    code, _, err = call(capsys, "train", "FetchReach-v4")
    assert code == 1
    assert err == ["aimrl: unexpected RuntimeError: two lines (run with AIMRL_DEBUG=1 for the traceback)"]
    monkeypatch.setenv("AIMRL_DEBUG", "1")
    with pytest.raises(RuntimeError):
        cli.main(["train", "FetchReach-v4"])


def test_a_reader_that_has_seen_enough_is_no_error():
    command = [sys.executable, "-m", "aimrl", "--print-completion", "bash"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as begun:
        begun.stdout.close()
        assert begun.stderr.read() == b""
    assert begun.returncode == cli.BROKEN_PIPE


# --- small commands ---------------------------------------------------------------------------------------------------------------------


def test_theory_prints_one_json_object_last_with_infinities_as_text(capsys, tmp_path):
    P = np.zeros((3, 1, 3))
    P[0, 0, 1] = P[1, 0, 1] = P[2, 0, 0] = 1.0  # from 0 to the trap 1, never to the goal 2
    np.savez(tmp_path / "trap.npz", P=P, start=np.eye(3)[0], goal=2, gamma=0.9, policy=np.ones((3, 1)))
    code, out, _ = call(capsys, "theory", tmp_path / "trap.npz", "--json")
    found = json.loads(out[-1])
    assert (code, len(out)) == (0, 1)
    assert found["d"] == ["inf", "inf", 0.0]
    assert found["w1_primal"] == found["w1_dual"] == "inf"


def test_theory_of_the_room_says_the_optimal_number_of_steps(capsys):
    code, out, _ = call(capsys, "theory", "room")
    assert code == 0
    assert out[-1].split()[-1] == "17"


def test_a_world_of_several_goals_says_which_one_the_theory_is_of(capsys, tmp_path):
    (tmp_path / "two.txt").write_bytes(b"\xef\xbb\xbf+-+-+-+\n|G S G|\n+-+-+-+\n")  # with the mark that some editors put first
    code, out, err = call(capsys, "theory", tmp_path / "two.txt", "--json")
    assert (code, len(out), json.loads(out[0])["d_opt"]) == (0, 1, [0.0, 1.0, 2.0])
    assert err == ["two.txt has 1 more goal: this is of the one at x = 0, y = 0"]


def test_text_that_a_terminal_can_not_show_does_not_end_a_command(tmp_path):
    rows = [f"E,{a},{s},{e},{int(a == 'aim')}" for a in ("aim", "sparse") for s in range(3) for e in range(10)]  # an infinite estimate
    (tmp_path / "r.csv").write_text("env,algorithm,seed,episode,success\n" + "\n".join(rows) + "\n")
    ask = [sys.executable, "-m", "aimrl", "stats", tmp_path / "r.csv"]
    done = subprocess.run(ask, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "aim - sparse" in done.stdout
    assert "?" in done.stdout


def test_warnings_of_libraries_come_in_one_line_without_colours(capsys, monkeypatch):
    def warn(argv):
        print(
            warnings.formatwarning(UserWarning("\x1b[33mWARN: twice\n used\x1b[0m"), UserWarning, "gymnasium.py", 1),
            end="",
            file=sys.stderr,
        )

    monkeypatch.setattr(training, "run", warn)
    assert call(capsys, "train", "FetchReach-v4")[2] == ["warning: WARN: twice used"]


def test_stats_of_a_csv_file(capsys, tmp_path):
    rows = [f"E,{a},{s},{e},{int(e < wins)}" for a, wins in (("aim", 8), ("sparse", 3)) for s in range(3) for e in range(10)]
    (tmp_path / "r.csv").write_text("env,algorithm,seed,episode,success\n" + "\n".join(rows) + "\n")
    code, out, _ = call(capsys, "stats", tmp_path / "r.csv", "--json")
    contrast = json.loads(out[-1])["E"]["contrasts"][0]
    assert code == 0
    assert (contrast["a"], contrast["b"]) == ("aim", "sparse")
    assert contrast["estimate"] == pytest.approx(np.log(8 / 2) - np.log(3 / 7), rel=1e-3)
    assert "aim - sparse" in "\n".join(call(capsys, "stats", tmp_path / "r.csv")[1])


def test_the_doctor_exits_by_what_it_finds(capsys):
    code, out, _ = call(capsys, "doctor", "point_env:Point-v0", "--json")
    assert code == 0
    assert json.loads(out[-1])["healthy"] is True
    code, out, _ = call(capsys, "doctor", "CartPole-v1")
    assert code == 2
    assert out[-1] == "not fit for training yet"


def test_a_sweep_can_be_listed_without_running(capsys, tmp_path):
    (tmp_path / "s.toml").write_text('envs = ["FetchReach-v4"]\nrewards = ["aim", "sparse"]\nseeds = [0, 1]\nsteps = 1000\n')
    code, out, _ = call(capsys, "sweep", tmp_path / "s.toml", "--dry-run", "--json")
    assert code == 0
    found = json.loads(out[-1])
    assert [c["state"] for c in found["cells"]] == ["new"] * 4
    assert found["core_hours"] > 0
    (tmp_path / "bad.toml").write_text('env = "FetchRech-v4"\nseeds = [0]\nsteps = 1000\n')
    code, out, _ = call(capsys, "sweep", tmp_path / "bad.toml", "--dry-run")
    assert code == 1
    assert "will fail: unknown environment 'FetchRech-v4'" in out[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('env = ["FetchReach-v4", "FetchRech-v4"]', "unknown environment 'FetchRech-v4': did you mean FetchReach-v4"),
        ('env = "FetchReach-v4"\noverrides = { agent_options = { tua = 3 } }', "did you mean tau"),
        ('env = "FetchReach-v4"\nreward = ["aim", "rnd"]\noverrides = { reward_options = { step_bound = 2 } }', "option of reward 'rnd'"),
    ],
)
def test_a_sweep_with_a_wrong_cell_is_refused_before_any_begins(capsys, tmp_path, line, message):
    (tmp_path / "s.toml").write_text(f'{line}\nseeds = [0]\nsteps = 1000\nout = "{tmp_path / "out"}"\n')
    code, out, err = call(capsys, "sweep", tmp_path / "s.toml")
    assert (code, out, len(err)) == (2, [], 1)
    assert message in err[0]
    assert not (tmp_path / "out").exists()


def test_grid_answers_in_json_and_keeps_its_folder(capsys, tmp_path):
    argv = ("grid", "room", "--reward", "sparse", "--seeds", 2, "--iterations", 2, "--out", tmp_path / "g", "--quiet", "--json")
    code, out, _ = call(capsys, *argv)
    found = json.loads(out[-1])
    assert code == 0
    assert len(found["success_rate"]) == 2
    assert (tmp_path / "g" / "config.json").is_file()
    assert "the earlier grid run" in call(capsys, *argv)[2][0]
    for other in (("eval", tmp_path / "g"), ("stats", tmp_path / "g")):
        code, _, err = call(capsys, *other)
        assert code == 2
        assert "a run of `aimrl grid`, not of `aimrl train`" in err[-1]


def test_a_file_is_not_taken_for_a_run_folder(capsys, tmp_path):
    (tmp_path / "f").write_text("mine")
    code, _, err = call(capsys, "train", "FetchReach-v4", "--out", tmp_path / "f")
    assert (code, err) == (2, [f"aimrl: {tmp_path / 'f'} is a file, not a folder"])
    assert (tmp_path / "f").read_text() == "mine"


# --- a run ------------------------------------------------------------------------------------------------------------------------------


def test_options_end_up_in_the_run_and_only_typed_ones_differ_from_the_preset(run_folder):
    config, preset = runs.load_config(run_folder), make_config("point_env:Point-v0")
    assert config.agent_options == dict(runs.plain(preset.agent_options)) | {"hidden": [8]}
    assert config.reward_options == preset.reward_options
    assert (config.batch_size, config.her_ratio, config.normalise_inputs) == (16, preset.her_ratio, preset.normalise_inputs)


def test_a_run_leaves_its_logs_and_tensorboard_files(run_folder):
    assert [e["step"] for e in runs.read_lines(run_folder / "evals.jsonl")] == [200, 240]
    assert runs.checkpoint_steps(run_folder)[-1] == 240
    assert list((run_folder / "tb").glob("events*"))


def test_resuming_a_finished_run_changes_nothing(run_folder, capsys):
    before = {p: p.stat().st_mtime_ns for p in run_folder.rglob("*")}
    code, out, err = call(capsys, "train", "--resume", "--out", run_folder, "--json")
    assert (code, err) == (0, [])
    assert json.loads(out[-1])["step"] == 240
    assert {p: p.stat().st_mtime_ns for p in run_folder.rglob("*")} == before


def test_resuming_with_another_setting_is_refused(run_folder, capsys):
    code, _, err = call(capsys, "train", "--resume", "--out", run_folder, "--batch-size", 32)
    assert code == 2
    assert "batch_size" in err[0]
    code, _, err = call(capsys, "train", "--resume", "--out", run_folder, "FetchPush-v4")
    assert (code, len(err)) == (2, 1)
    assert "FetchPush-v4" in err[0]


def test_a_folder_in_use_is_not_overwritten(run_folder, capsys):
    code, _, err = call(capsys, "train", "point_env:Point-v0", "--out", run_folder)
    assert (code, len(err)) == (2, 1)
    assert "--resume" in err[0]


def test_eval_prints_a_record_and_draws_where_it_can(run_folder, capsys):
    code, out, err = call(capsys, "eval", run_folder, "--episodes", 6, "--video", "--video-episodes", 1, "--json")
    record = json.loads(out[-1])
    assert code == 0
    assert (record["step"], record["episodes"], len(record["success_final"])) == (240, 6, 6)
    assert [Path(line.split()[-1]).suffix for line in err] == [".mp4", ".gif"]
    assert all(Path(line.split()[-1]).stat().st_size > 500 for line in err)


def test_eval_draws_elsewhere_when_asked(run_folder, tmp_path, capsys):
    before = sorted(run_folder.rglob("*"))
    code, _, err = call(
        capsys, "eval", run_folder, "--episodes", 2, "--video", "--video-episodes", 1, "--figures", "-o", tmp_path / "films"
    )
    assert code == 0
    assert {p.suffix for p in (tmp_path / "films").rglob("*.*")} >= {".mp4", ".gif", ".png"}
    assert err[-1] == f"figures: {tmp_path / 'films' / 'figures'}"
    assert sorted(run_folder.rglob("*")) == before


def test_eval_without_a_way_to_draw_says_so_in_one_line_and_still_evaluates(run_folder, capsys, monkeypatch):
    import point_env

    class Viewer:
        """Like MuJoCo's: fails half made, and complains once more when it's freed."""

        def __init__(self):
            raise RuntimeError("no GL")

        def __del__(self):
            self.context.free()

    monkeypatch.setattr(point_env.PointEnv, "render", lambda self: Viewer())
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    code, out, err = call(capsys, "eval", run_folder, "--episodes", 4, "--video", "--json")
    assert code == 0
    assert json.loads(out[-1])["episodes"] == 4
    assert len(err) == 1
    assert "can't draw" in err[0]
    assert not heard


def test_the_default_folder_gets_a_number_where_it_is_taken(tmp_path):
    config = make_config("pkg:My/Env-v0", seed=3)
    first = runs.default_folder(config, tmp_path)
    assert first.name == "pkg-My-Env-v0-aim-s3"
    first.mkdir()
    assert runs.default_folder(config, tmp_path).name == "pkg-My-Env-v0-aim-s3-2"


def test_the_python_entry_points_train_and_load_objects(tmp_path):
    import aimrl
    from aimrl.rewards import make

    small = {"num_envs": 4, "round_steps": 40, "round_updates": 2, "batch_size": 16, "learning_starts": 40, "eval_episodes": 4}
    small |= {"agent_options": {"hidden": (8,)}}
    run = aimrl.train(_point, reward=make("sparse"), steps=80, out=tmp_path / "r", quiet=True, **small)
    again = aimrl.load(tmp_path / "r", env=_point, reward=make("sparse"))
    assert (run.step, run.config.reward, run.config.env) == (80, "sparse", "_point")
    obs = {"observation": np.ones(2), "desired_goal": np.zeros(2)}
    assert np.array_equal(run.policy(obs), again.policy(obs))
    assert run.evaluate(3)["success_final"] == again.evaluate(3)["success_final"]
    with pytest.raises(UserError, match="batch_size"):
        aimrl.train("FetchReach-v4", bath_size=3)


def _point():
    import gymnasium

    return gymnasium.make("point_env:Point-v0")


# --- signals ----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def begin():
    """Start `aimrl train` in a group of its own; what still runs when the test ends, ends with it."""
    begun = []

    def start(folder, *argv):
        env = os.environ | {"PYTHONPATH": str(HERE), "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
        command = [sys.executable, "-m", "aimrl", "train", *argv, "--out", str(folder)]
        begun.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def await_line(process, text):
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"ended without saying '{text}'")


@pytest.mark.parametrize(("first", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, begin, first, code):
    process = begin(tmp_path / "r", "point_env:Point-v0", "--steps", "1000000", *TINY)
    await_line(process, "step 200 of")
    process.send_signal(first)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert "stopping after this round" in err
    assert f"aimrl train --resume --out {tmp_path / 'r'}" in out
    step = runs.checkpoint_steps(tmp_path / "r")[-1]
    assert f"stopped at step {step:,} " in out
    if first == signal.SIGTERM:
        again = begin(tmp_path / "r", "--resume", "--steps", str(step + 40))
        out, err = again.communicate(timeout=120)
        assert again.returncode == 0
        assert f"going on from step {step:,}" in err
        assert runs.checkpoint_steps(tmp_path / "r")[-1] == step + 40


def test_switches_of_agent_and_reward_may_stand_before_the_environment():
    config, _ = training.parse(["--td3.layer-norm", "FetchReach-v4", "--aim.rest", "--reward", "aim"])
    assert (config.env, config.agent_options["layer_norm"]) == ("FetchReach-v4", True)


def test_a_discount_of_one_is_refused(capsys):
    code, _, err = call(capsys, "train", "FetchReach-v4", "--td3.gamma", 1)
    assert (code, len(err)) == (2, 1)
    assert "below 1" in err[0]


def test_eval_that_could_not_write_says_so_before_it_plays(run_folder, tmp_path, capsys):
    (tmp_path / "file").touch()
    code, out, err = call(capsys, "eval", run_folder, "--figures", "-o", tmp_path / "file" / "films")
    assert (code, out, len(err)) == (2, [], 1)
    assert "cannot write to" in err[0]


ARM = ("FetchReach-v4", "--backend", "gym", "--num-envs", "2", "--steps", "1000000")  # its simulators are processes of their own


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_does_not_take_the_simulators(tmp_path, begin, number):
    """`timeout` and a closed terminal tell every process of the group: the workers died of it and the run was lost."""
    process = begin(tmp_path / "r", *ARM, *TINY)
    await_line(process, "step 200 of")
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    assert runs.checkpoint_steps(tmp_path / "r")
    assert "Traceback" not in err
    assert "resource_tracker" not in err


def test_the_second_signal_ends_at_once_and_in_silence(tmp_path, begin):
    process = begin(tmp_path / "r", *ARM, *TINY, "--round-steps", "4000")
    await_line(process, "gym simulator")
    os.killpg(process.pid, signal.SIGTERM)
    await_line(process, "stopping after this round")
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert "Traceback" not in err


def test_signals_are_the_callers_again_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with training.Stopper() as stopper:
        assert not stopper()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopper()
        assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGINT) == stopper._quit
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_environment_in_the_current_folder_is_found_without_python_path(tmp_path):
    """`aimrl` is installed beside Python, so the folder a user works in was not searched, unlike with `python -m aimrl`."""
    (tmp_path / "here_env.py").write_text((HERE / "point_env.py").read_text())
    script = Path(sys.executable).with_name("aimrl")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [script, "doctor", "here_env:Point-v0", "--json"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    small = "--preset paper --steps 200 --learning-starts 100 --num-envs 2 --round-steps 20 --round-updates 1"
    small += " --eval-every 200 --eval-episodes 2 --td3.hidden 16 --quiet --out run"
    for words in (f"train here_env:Point-v0 {small}", "eval run --episodes 2", "train --resume --out run --steps 220"):
        done = subprocess.run([script, *words.split()], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


# --- options of rewards -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """What `aimrl grid` asks of the library, which isn't run."""
    from aimrl import grid

    calls = []
    result = {"success_rate": [0.5], "iterations": 1, "env_steps": 1}
    monkeypatch.setattr(grid, "run", lambda *args: calls.append(args) or result)
    return lambda: calls[-1]


def test_options_of_the_reward_reach_the_grid_and_only_those_that_differ(asked, capsys):
    """`aimrl grid` took none: the bounds, targets, forms and the goal term could only be tried from Python."""
    for typed, expected in {
        "--aim.bound two-sided": {"bound": "two-sided"},
        "--bound expected --reward aim+r": {"bound": "expected"},
        "--aim.form to-goal --aim.no-goal-term --aim.gamma 0.9": {"form": "to-goal", "goal_term": False, "gamma": 0.9},
        "--aim.bound one-sided": {},  # as in the preset
        "--aim.bound one-sided --preset paper": {"bound": "one-sided"},
        "--reward rnd --rnd.hidden 8 8": {"hidden": (8, 8)},
        "--reward disco --disco.covariance 0.01": {"covariance": 0.01},
        "--aim.target examples --aim.examples [[0.5,-0.25]]": {"target": "examples", "examples": [[0.5, -0.25]]},
    }.items():
        assert call(capsys, "grid", "room", *typed.split())[0] == 0
        assert asked()[-1] == expected, typed


def test_options_of_the_reward_are_recorded_in_the_grid_run(capsys, tmp_path):
    (tmp_path / "two.txt").write_text("limit: 4\n+-+-+\n|S G|\n+-+-+\n")
    argv = ("grid", tmp_path / "two.txt", "--bound", "expected", "--aim.hidden", 4, "--seeds", 1, "--iterations", 1, "--quiet")
    argv += ("--aim.target", "examples", "--aim.examples", "[[0.5, -0.25]]", "--out", tmp_path / "g")
    code, _, err = call(capsys, *argv)
    assert (code, err) == (0, [])
    found = json.loads((tmp_path / "g" / "config.json").read_text())["reward_options"]
    assert (found["bound"], found["examples"], found["hidden"]) == ("expected", [[0.5, -0.25]], [4])


@pytest.mark.parametrize("command", ["grid room", "train FetchReach-v4"])
def test_help_shows_the_options_of_the_reward_typed_beside_it(command, capsys):
    text = " ".join(" ".join(call(capsys, *command.split(), "--reward", "disco", "--help")[1]).split())
    assert "--disco.covariance NUMBER|LIST a variance, one variance a feature, or a matrix (default: 1.0)" in text
    assert "--aim." not in text.split("options ---", 1)[1]
    assert "--bound {two-sided,one-sided,expected}" in " ".join(call(capsys, *command.split(), "--help")[1])


def test_a_short_form_and_lists_reach_the_configuration_of_train_and_come_back_from_its_file(tmp_path):
    matrix, states = [[0.01, 0, 0], [0, 0.02, 0], [0, 0, 1]], [[1.3, 0.7, 0.5], [1.2, 0.8, 0.5]]
    for typed, expected in (
        (["--bound", "one-sided"], {"bound": "one-sided"}),
        (["--reward", "aim+r", "--bound=one-sided"], {"bound": "one-sided"}),
        (["--reward", "disco", "--disco.covariance", "0.01"], {"covariance": 0.01}),
        (["--reward", "disco", "--disco.covariance", json.dumps(matrix)], {"covariance": matrix}),
        (["--aim.form", "biased", "--aim.target", "examples", "--aim.examples", json.dumps(states)], {"examples": states}),
    ):
        config, _ = training.parse(["FetchReach-v4", *typed])
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        runs.prepare(folder, config, {}, False)
        again = runs.load_config(folder)
        assert runs.plain(again.reward_options) == runs.plain(config.reward_options)
        assert expected.items() <= again.reward_options.items()
        made = rewards.make(again.reward, **again.reward_options)
        for name, value in expected.items():
            np.testing.assert_array_equal(np.asarray(getattr(made, name)), np.asarray(value, getattr(getattr(made, name), "dtype", None)))
        resumed, _ = training.parse(["--resume", "--out", str(folder)])
        assert resumed == again


BAD_OPTIONS = {
    "grid room --aim.boundd one-sided": "did you mean --aim.bound",
    "grid room --bound onesided": "did you mean one-sided",
    "grid room --reward rnd --bound one-sided": "--bound is an option of the rewards aim and aim+r; the reward 'rnd' has none",
    "train FetchReach-v4 --reward=sparse --bound=one-sided": "the reward 'sparse' has none",
    "grid room --rnd.scale 2": "--aim.scale",
    "grid room --aim.target examples": "go together",
    "grid room --aim.target examples --aim.examples [[1,2,3]]": "the examples have 3 features, the goals 2",
    "grid room --reward disco --disco.covariance [[1,2],[3]]": "--disco.covariance takes a number or a list",
    "grid room --reward disco --disco.covariance [[1,": "not '[[1,'",
    "grid room --reward disco --disco.covariance -1": "positive",
    "train FetchReach-v4 --aim.examples [1e999]": "--aim.examples takes a number or a list",
    'train FetchReach-v4 --aim.examples ["a"]': "--aim.examples takes a number or a list",
    "train FetchReach-v4 --aim.examples {}": "--aim.examples takes a number or a list",
    "train FetchReach-v4 --aim.examples NaN": "--aim.examples takes a number or a list",
    "train FetchReach-v4 --aim.examples " + "[" * 100_000: "--aim.examples takes a number or a list",
    "train FetchReach-v4 --aim.examples [" + "0," * 70_000 + "0]": "takes at most 65,536 numbers, not 70,001",
    "train FetchReach-v4 --aim.examples [" + "0," * 700_000 + "0]": "takes at most 1,048,576 characters",
}


BAD_OPTIONS |= {
    "train FetchReach-v4 --td3.hidden [256,256]": "it takes whole numbers one after another, as in --td3.hidden 256 256",
    "eval runs/push --step abc": "--step can't be 'abc': it takes a whole number",
    "sweep s.toml --jobs two": "--jobs can't be 'two': it takes a whole number",
    "grid room --entropy high": "--entropy can't be 'high': it takes a number",
    "theory room --gamma x": "--gamma can't be 'x': it takes a number",
    "grid room --iterations 1 --seeds 1 --aim.hidden 1000000 1000000": "more memory than there is",
    "doctor FetchReach-v4 --horizon -3": "--horizon must be at least 1, not -3",
}


@pytest.mark.parametrize("typed", BAD_OPTIONS, ids=lambda typed: typed[:60])
def test_a_bad_option_is_answered_in_one_line(typed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quiet = ["-q"] if typed.startswith(("grid", "train")) else []
    code, out, err = call(capsys, *typed.split(), *quiet)
    assert (code, out) == (2, [])
    assert len(err) == 1
    assert BAD_OPTIONS[typed] in err[0]
    assert len(err[0]) < 300
    assert list(tmp_path.iterdir()) == []


def test_options_that_would_do_nothing_are_refused(tmp_path, monkeypatch, capsys):
    from aimrl.cli import main

    (tmp_path / "a.csv").write_text("env,algorithm,seed,episode,success\nE,a,0,0,1\n")
    for words, line in (
        (["eval", str(tmp_path), "--goal", "1", "2"], "add --figures"),
        (["stats", str(tmp_path / "a.csv"), "--step", "100"], "--step is for run folders"),
    ):
        assert main(words) == 2
        assert line in capsys.readouterr().err
