"""The code of docs/rewards.md runs, and the page has a section for every name."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from reward_batches import SPEC, pairs_batch, random_batch

from aimrl import rewards

PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"


def test_every_name_has_a_section():
    headings = " ".join(line for line in PAGE.read_text().splitlines() if line.startswith("## "))
    assert not [name for name in rewards.NAMES if f"`{name}`" not in headings and name != "aim+r"]
    assert "`aim+r` adds the task reward" in PAGE.read_text()


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
