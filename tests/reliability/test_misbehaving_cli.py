"""An environment that goes wrong in the middle of `aimrl train`: one line with its index and step, exit 2, and the checkpoint survives."""

import re
import shlex

import misbehaving
import pytest

from aimrl import cli, runs

OPTIONS = shlex.split(
    "--num-envs 4 --round-steps 40 --learning-starts 100000 --eval-every 100000 --checkpoint-every 80 --buffer-size 1000 --steps 4000 "
    "--td3.hidden 8 --no-tensorboard --quiet --env-timeout 3"
)


def misbehave_after(step, steps, monkeypatch):
    """From `steps` environment steps after the checkpoint at `step` on; the doctor's steps before the run don't count."""
    monkeypatch.setattr(misbehaving.Misbehaving, "steps", 0)
    monkeypatch.setattr(misbehaving.Misbehaving, "after", 10**9)
    saved = runs.save_checkpoint

    def save(folder, now, *rest, **more):
        if now == step:
            misbehaving.Misbehaving.after = misbehaving.Misbehaving.steps + steps
        return saved(folder, now, *rest, **more)

    monkeypatch.setattr(runs, "save_checkpoint", save)


def told(capsys, how, folder, *options):
    """The one line that `aimrl train` ends with."""
    code = cli.main(["train", f"misbehaving:{how.capitalize()}-v0", "--out", str(folder), *OPTIONS, *options])
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning:")]
    assert (code, len(lines)) == (2, 1), lines
    return lines[0]


@pytest.mark.parametrize("how", misbehaving.HOW)
def test_what_an_environment_did_is_told_in_one_line_and_the_checkpoint_survives(how, tmp_path, capsys, monkeypatch):
    misbehave_after(160, 61, monkeypatch)  # in the second round from there
    line = told(capsys, how, tmp_path / "run")
    assert misbehaving.HOW[how] in line
    assert re.match(r"aimrl: environment \d, step \d+: .*; the run is kept as it was at step 200$", line)
    assert runs.checkpoint_steps(tmp_path / "run")[-1] == 200
    assert runs.load_meta(tmp_path / "run")["step"] == 200


RULE = r"misbehaving:Rule-v0.compute_reward failed \(ZeroDivisionError: the goal has no size\)"
BUILDS = r"environment 'misbehaving:Builds-v0' can't be made: OSError: no more licences"


@pytest.mark.parametrize(("how", "what", "step"), [("rule", RULE, 200), ("builds", BUILDS, 240)])
def test_its_rules_and_its_constructor_may_fail_too(how, what, step, tmp_path, capsys, monkeypatch):
    misbehave_after(160, 61, monkeypatch)
    assert re.match(rf"aimrl: {what}; the run is kept as it was at step {step}$", told(capsys, how, tmp_path / "run"))
    assert runs.checkpoint_steps(tmp_path / "run")[-1] == step


def test_a_rule_that_fails_inside_an_update_is_told_with_the_last_checkpoint(tmp_path, capsys, monkeypatch):
    misbehave_after(160, 1, monkeypatch)
    line = told(capsys, "learning", tmp_path / "run", "--learning-starts", "40", "--moving-starts", "0")
    what = RULE.replace("Rule", "Learning")
    assert re.match(rf"aimrl: {what} after step \d+; the last good checkpoint is at step 160$", line)
