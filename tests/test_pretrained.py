"""The policies in `pretrained/` load like any run and do what their cards say."""

import json
from pathlib import Path

import numpy as np
import pytest

import aimrl
from aimrl import cli

FOLDERS = sorted(p.parent for p in (Path(__file__).parents[1] / "pretrained").glob("*/config.json"))
# On 40 episodes; the cards' numbers are on 100.
HELD = {"FetchReach-v4-aim": 0.95, "FetchPush-v4-aim": 0.8, "FetchPickAndPlace-v4-aim": 0.8, "FetchSlide-v4-aim": 0.15}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_a_pretrained_policy_reaches_what_its_card_says(folder):
    run = aimrl.load(folder)
    assert np.mean(run.evaluate(40)["success_final"]) >= HELD[folder.name]
    last = json.loads((folder / "evals.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["step"] == run.step
    assert f"held in {100 * np.mean(last['success_final']):.0f} %" in (folder / "README.md").read_text(encoding="utf-8")


def test_the_command_line_evaluates_a_pretrained_policy(capsys):
    reach = next(p for p in FOLDERS if "Reach" in p.name)
    assert cli.main(["eval", str(reach), "--episodes", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["episodes"] == 10


def test_every_pretrained_policy_has_its_threshold():
    assert {p.name for p in FOLDERS} == set(HELD)
