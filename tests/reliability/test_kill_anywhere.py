"""Real training processes, killed and resumed: the same bits, logs without gaps, doubles or half lines. `make soak` does it fifty times."""

import os
import random

import kills
import pytest

from aimrl import runs


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_bits_and_logs(tmp_path):
    kills.finish(tmp_path / "cold")  # compiles, so that the seconds of the next one tell how far another is
    seconds = kills.finish(tmp_path / "whole")
    done = kills.survive(tmp_path / "killed", 3, seconds, random.Random(3))
    assert done["kills"] > 0
    assert kills.differences(tmp_path / "whole", tmp_path / "killed") == []
    assert [row["step"] for row in runs.read_lines(tmp_path / "killed" / "evals.jsonl")] == [360, 720, 1080]
    (tmp_path / "killed" / "checkpoints" / "1080" / "ring.safetensors").write_bytes(b"other bits")  # and the comparison can fail
    assert kills.differences(tmp_path / "whole", tmp_path / "killed") == ["ring.safetensors of step 1080 differs"]


def test_a_kill_while_an_old_checkpoint_is_removed_leaves_none_that_only_looks_whole(tmp_path, monkeypatch):
    import numpy as np

    trees = {"brain": {"w": np.ones(3, np.float32)}}
    for step in (100, 200):
        runs.save_checkpoint(tmp_path, step, trees, {})
    removed = []

    def killed(path, ignore_errors=False):  # at the first file it removes
        if ".part-100" not in str(path) and path.is_dir():
            removed.append(path.name)
            (path / "brain.safetensors").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(runs.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        runs.save_checkpoint(tmp_path, 300, trees, {})
    monkeypatch.undo()
    assert removed
    assert runs.checkpoint_steps(tmp_path) == [200, 300]
    for step in (200, 300):
        runs.load_tree(tmp_path, step, "brain", trees["brain"])
    runs.save_checkpoint(tmp_path, 400, trees, {})  # and what was left behind is cleaned away
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["300", "400"]


class Killed(BaseException):
    pass


def dies_at(call, monkeypatch):
    """From the `call`-th change to the disk on, nothing is changed any more, as after a SIGKILL; not even by what cleans up."""
    made = iter(range(1, 1_000))

    def mortal(real):
        def change(*args, **more):
            if next(made) >= call:
                raise Killed
            return real(*args, **more)

        return change

    for name in ("mkdir", "rename", "replace", "fsync", "unlink", "rmdir"):
        monkeypatch.setattr(runs.os, name, mortal(getattr(os, name)))


def test_a_kill_at_any_moment_of_saving_a_step_again_leaves_a_whole_checkpoint_of_it(tmp_path, monkeypatch):
    """The old one used to go before the new one was in its place: a run with no other checkpoint could lose all."""
    import numpy as np

    tree = lambda x: {"w": np.full(3, x, np.float32)}  # noqa: E731
    found = []
    for call in range(1, 1_000):
        folder = tmp_path / str(call)
        runs.save_checkpoint(folder, 100, {"brain": tree(1), "ring": tree(1)}, {"x": 1})
        with monkeypatch.context() as patch:
            dies_at(call, patch)
            try:
                runs.save_checkpoint(folder, 100, {"brain": tree(2), "ring": tree(2)}, {"x": 2})
                break
            except Killed:
                pass
        assert runs.checkpoint_steps(folder) == [100], f"killed at change {call}"
        x = runs.load_meta(folder)["x"]
        for name in ("brain", "ring"):  # of one and the same save
            np.testing.assert_array_equal(runs.load_tree(folder, 100, name, tree(0))["w"], x)
        found.append(x)
        runs.save_checkpoint(folder, 200, {"brain": tree(3)}, {})  # and the next one clears up
        assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["100", "200"]
        assert runs.load_meta(folder, 100)["x"] in (x, 2)
    assert len(found) > 8
    assert found == sorted(found)
    assert set(found) == {1, 2}


def test_only_numbers_are_taken_for_checkpoints_about_to_replace_others(tmp_path):
    import numpy as np

    tree = {"w": np.ones(3, np.float32)}
    runs.save_checkpoint(tmp_path / "run", 100, {"brain": tree}, {})
    for name in (".new-..", ".new-", ".new-0100"):  # in a stranger's folder
        (tmp_path / "run" / "checkpoints" / name).mkdir()
        (tmp_path / "run" / "checkpoints" / name / "meta.json").write_text("{}")
    assert runs.checkpoint_steps(tmp_path / "run") == [100]
    runs.save_checkpoint(tmp_path / "run", 200, {"brain": tree}, {})
    assert runs.checkpoint_steps(tmp_path / "run") == [100, 200]
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_half_written_checkpoint_is_never_read(tmp_path):
    import numpy as np

    tree = {"w": np.ones(3, np.float32)}
    runs.save_checkpoint(tmp_path, 100, {"brain": tree}, {})
    half = tmp_path / "checkpoints" / ".part-200"
    half.mkdir()
    (half / "brain.safetensors").write_bytes(b"\x10")
    (tmp_path / "checkpoints" / "300").mkdir()  # no meta.json: not ours, or emptied by hand
    (tmp_path / "checkpoints" / "0400").mkdir()
    (tmp_path / "checkpoints" / "0400" / "meta.json").write_text("{}")
    assert runs.checkpoint_steps(tmp_path) == [100]
    assert runs.load_meta(tmp_path)["step"] == 100
