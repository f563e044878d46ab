"""The code of docs/rewards.md runs, and the page has a whole section for every name."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from reward_batches import SPEC, pairs_batch, random_batch

from aimrl import rewards

PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"
SECTIONS = dict(re.findall(r"^## (`.*?)\n(.*?)(?=^## )", PAGE.read_text(), re.DOTALL | re.MULTILINE))
PARTS = {"formula": r"\br = ", "needs": r"\*\*Needs\*\*\s\S", "failure": r"\*\*Fails when\*\*\s\S", "ablation": r"\*\*Ablate\*\*[^.]*`\w+"}


@pytest.mark.parametrize("name", rewards.NAMES)
def test_every_name_has_a_section_with_formula_needs_failure_and_ablation(name):
    (section,) = [text for heading, text in SECTIONS.items() if f"`{name.removesuffix('+r')}`" in heading]
    assert [part for part, pattern in PARTS.items() if not re.search(pattern, section)] == []


def test_the_switches_named_for_an_ablation_are_options_of_the_reward():
    for heading, section in SECTIONS.items():
        options = vars(rewards.make(heading.split("`")[1]))
        named = re.findall(r"`(\w+)=", section[section.index("**Ablate**") :].split("\n\n")[0])
        assert not [option for option in named if option not in options], heading


def test_aim_with_the_task_reward_has_its_line():
    assert "`aim+r` adds the task reward" in SECTIONS["`aim` — Adversarial Intrinsic Motivation"]


@pytest.fixture
def own_reward(tmp_path, monkeypatch):
    """The class of the page, imported as the module a reader would write."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "reward_of_the_docs.py").write_text("\n".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    import reward_of_the_docs  # pyright: ignore[reportMissingImports]

    return reward_of_the_docs.reward


def test_the_reward_of_ones_own_counts_visits(own_reward):
    near, far = np.full((9, 3), 0.31), np.full((9, 3), 0.83)
    key = jax.random.key(0)
    state, metrics = own_reward.update(own_reward.init(key, SPEC), pairs_batch(near, near, near), key)
    np.testing.assert_allclose(own_reward.reward(state, pairs_batch(near, near, near)), 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(own_reward.reward(state, pairs_batch(far, far, far)), 1.0)
    assert metrics["counts/cells"] == 1
    assert own_reward.reward(state, random_batch(0, (4,))).shape == (4,)
