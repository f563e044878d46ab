"""Bad MDPs, policies and files are answered with one clear line."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from aimrl.theory import GoalMDP, analyse, load_npz, load_policy, uniform_policy
from aimrl.types import UserError


def parts(**changes):
    P = np.full((3, 2, 3), 1 / 3)
    return {"P": P, "start": np.array([0.5, 0.5, 0.0]), "goal": 2, "gamma": 0.9, "policy": np.full((3, 2), 0.5)} | changes


def changed(name, index, number):
    array = parts()[name].copy()
    array[index] = number
    return {name: array}


BAD = {
    "P's row sums to 0.9": (changed("P", (0, 1), [0.3, 0.3, 0.3]), r"P\[0, 1\] sums to 0.9"),
    "NaN in P": (changed("P", (1, 0, 0), np.nan), "NaN"),
    "negative probability": (changed("P", (1, 0), [-0.5, 1.0, 0.5]), "negative"),
    "P is square": ({"P": np.eye(3)}, "3 axes"),
    "P's ends differ": ({"P": np.ones((3, 2, 4)) / 4}, r"\[S, A, S\]"),
    "P is complex": ({"P": np.ones((3, 2, 3), complex) / 3}, "real numbers"),
    "P is text": ({"P": np.full((3, 2, 3), "a")}, "real numbers"),
    "P is empty": ({"P": np.zeros((0, 2, 0))}, "empty"),
    "start too long": ({"start": np.ones(4) / 4}, "start has shape"),
    "start sums to 2": ({"start": np.array([1.0, 1.0, 0.0])}, "start sums to 2"),
    "start is NaN": ({"start": np.array([np.nan, 1.0, 0.0])}, "NaN"),
    "goal out of range": ({"goal": 3}, "goal 3 is not one of the 3 states"),
    "goal negative": ({"goal": -1}, "goal -1"),
    "goal not whole": ({"goal": 1.5}, "one state index"),
    "two goals": ({"goal": np.array([1, 2])}, "one state index"),
    "gamma 1": ({"gamma": 1.0}, "below 1"),
    "gamma negative": ({"gamma": -0.1}, "at least 0"),
    "gamma NaN": ({"gamma": np.nan}, "gamma is nan"),
    "policy's row sums to 2": (changed("policy", 0, [1.0, 1.0]), r"policy\[0\] sums to 2"),
    "policy's shape": ({"policy": np.full((3, 3), 1 / 3)}, "policy has shape"),
    "policy NaN": (changed("policy", (1, 0), np.nan), "NaN"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_array_is_told_in_one_line(case, tmp_path):
    changes, message = BAD[case]
    np.savez(tmp_path / "m.npz", **parts(**changes))
    with pytest.raises(UserError, match=message) as error:
        load_npz(tmp_path / "m.npz")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["P", "start", "goal", "gamma", "policy"])
def test_a_missing_key_is_named(key, tmp_path):
    some = parts()
    del some[key]
    np.savez(tmp_path / "m.npz", **some)
    with pytest.raises(UserError, match=f"no array named {key} "):
        load_npz(tmp_path / "m.npz")


def test_arguments_replace_the_files_gamma_and_policy(tmp_path):
    some = parts()
    del some["policy"]
    np.savez(tmp_path / "m.npz", **some)
    mdp, policy = load_npz(tmp_path / "m.npz", gamma=0.5, policy=np.eye(2)[[0, 1, 0]])
    assert mdp.gamma == 0.5
    assert policy[0, 0] == policy[1, 1] == 1


def test_a_good_file_round_trips(tmp_path):
    np.savez_compressed(tmp_path / "m.npz", **parts(P=parts()["P"].astype(np.float32)))
    mdp, policy = load_npz(tmp_path / "m.npz")
    assert np.allclose(analyse(mdp, policy)["d"], [3, 3, 0])


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04" + b"\0" * 50])
def test_a_corrupt_file_is_told_in_one_line(content, tmp_path):
    (tmp_path / "m.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"not a readable \.npz"):
        load_npz(tmp_path / "m.npz")
    (tmp_path / "p.npy").write_bytes(content)
    with pytest.raises(UserError, match=r"not a readable \.npy"):
        load_policy(tmp_path / "p.npy")


def test_a_truncated_file_and_a_missing_file_are_told(tmp_path):
    np.savez(tmp_path / "m.npz", **parts())
    data = (tmp_path / "m.npz").read_bytes()
    for cut in (len(data) // 3, len(data) - 30):
        (tmp_path / "m.npz").write_bytes(data[:cut])
        with pytest.raises(UserError, match=r"not a readable \.npz"):
            load_npz(tmp_path / "m.npz")
    with pytest.raises(UserError, match="not a readable"):
        load_npz(tmp_path / "nothing.npz")
    with pytest.raises(UserError, match="not a readable"):
        load_npz(tmp_path)


def test_flipped_bytes_never_escape_as_another_error(tmp_path):
    np.savez_compressed(tmp_path / "m.npz", **parts())
    data = bytearray((tmp_path / "m.npz").read_bytes())
    whole, whole_policy = load_npz(tmp_path / "m.npz")
    rng = np.random.default_rng(0)
    refused, accepted = [], []
    for _ in range(300):
        broken = data.copy()
        for i in rng.integers(len(data), size=3):
            broken[i] = rng.integers(256)
        (tmp_path / "m.npz").write_bytes(broken)
        try:  # any other error fails the test
            accepted.append(load_npz(tmp_path / "m.npz"))
        except UserError as e:
            refused.append(str(e))
    assert len(refused) > 200
    assert len(refused) + len(accepted) == 300
    assert not any("\n" in line for line in refused)
    for mdp, policy in accepted:  # the flips fell on dates and attributes: every array has a checksum
        assert np.array_equal(mdp.P, whole.P)
        assert np.array_equal(mdp.start, whole.start)
        assert (mdp.goal, mdp.gamma) == (whole.goal, whole.gamma)
        assert np.array_equal(policy, whole_policy)


def test_objects_are_refused_without_being_unpickled(tmp_path):
    np.savez(tmp_path / "m.npz", **parts(P=np.array([{"a": 1}], dtype=object)))
    with pytest.raises(UserError, match="P holds object"):
        load_npz(tmp_path / "m.npz")


def test_a_header_that_claims_terabytes_allocates_nothing(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 4, 10**6)})
    np.savez(tmp_path / "m.npz", **parts())
    with zipfile.ZipFile(tmp_path / "m.npz") as old, zipfile.ZipFile(tmp_path / "big.npz", "w") as new:
        for name in old.namelist():
            new.writestr(name, header.getvalue() if name == "P.npy" else old.read(name))
    with pytest.raises(UserError, match="more than"):
        load_npz(tmp_path / "big.npz")


def test_the_goals_rows_of_p_and_of_the_policy_are_ignored():
    some = parts()
    some["P"][2] = np.nan
    some["policy"][2] = np.nan
    mdp = GoalMDP(some["P"], some["start"], 2, 0.9)
    clean = GoalMDP(parts()["P"], some["start"], 2, 0.9)
    ours, theirs = analyse(mdp, some["policy"]), analyse(clean, uniform_policy(clean))
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_sparse_matrices_are_held_to_the_same_rules():
    good = csr_array(np.full((3, 3), 1 / 3))
    start = np.array([1.0, 0.0, 0.0])
    dense, sparse = GoalMDP(np.full((3, 1, 3), 1 / 3), start, 2, 0.9), GoalMDP([good], start, 2, 0.9)
    one = np.ones((3, 1))
    assert all(np.allclose(a, b) for a, b in zip(analyse(dense, one).values(), analyse(sparse, one).values()))
    for matrix, message in ((good * 0.5, "sums to 0.5"), (good * np.nan, "NaN"), (good[:2], "shapes")):
        with pytest.raises(UserError, match=message):
            GoalMDP([matrix], start, 2, 0.9)
    with pytest.raises(UserError, match="sparse matrices"):
        GoalMDP([], start, 2, 0.9)


def test_the_mdp_owns_its_arrays():
    some = parts()
    mdp = GoalMDP(some["P"], some["start"], 2, 0.9)
    some["P"][:] = 0
    assert mdp.P[0].sum() == pytest.approx(2)


def test_importing_the_theory_loads_no_jax():
    code = "import sys, aimrl.theory; print('jax' in sys.modules, 'scipy.optimize' in sys.modules, 'ot' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False"] * 3


def test_the_documentations_python_blocks_run(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == 3
    (tmp_path / "blocks.py").write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, tmp_path / "blocks.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
