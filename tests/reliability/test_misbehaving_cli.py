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


@pytest.mark.parametrize("how", misbehaving.HOW)
def test_what_an_environment_did_is_told_in_one_line_and_the_checkpoint_survives(how, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(misbehaving.Misbehaving, "steps", 0)
    monkeypatch.setattr(misbehaving.Misbehaving, "after", 10**9)
    saved = runs.save_checkpoint

    def save(folder, step, *rest, **more):
        if step == 160:  # the doctor's steps before the run don't count
            misbehaving.Misbehaving.after = misbehaving.Misbehaving.steps + 61  # in the second round from here
        return saved(folder, step, *rest, **more)

    monkeypatch.setattr(runs, "save_checkpoint", save)
    code = cli.main(["train", f"misbehaving:{how.capitalize()}-v0", "--out", str(tmp_path / "run"), *OPTIONS])
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning:")]
    assert code == 2
    assert len(lines) == 1
    assert misbehaving.HOW[how] in lines[0]
    assert re.match(r"aimrl: environment \d, step \d+: .*; the run is kept as it was at step 200$", lines[0])
    assert runs.checkpoint_steps(tmp_path / "run")[-1] == 200
    assert runs.load_meta(tmp_path / "run")["step"] == 200
