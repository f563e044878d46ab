"""Disks that fill, turn read-only or vanish under a run: the last good checkpoint survives, one clear line, resumable elsewhere."""

import contextlib
import dataclasses
import errno
import os
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from problems import TINY, point_goal

from aimrl import runs
from aimrl.config import make_config
from aimrl.train import train
from aimrl.types import UserError

FIELDS = TINY | {"steps": 360, "checkpoint_every": 120, "eval_every": 120, "eval_episodes": 2, "learning_starts": 9_000}


def config(**overrides):
    """Nothing is learned, so nothing is compiled for long: these tests are about files."""
    return make_config("point", preset="paper", **(FIELDS | {"agent_options": {"hidden": [8]}} | overrides))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(config(), folder, env=point_goal)
    return folder


def assert_resumes_elsewhere(broken, elsewhere, whole):
    """A copy of what is left goes on to the same bits as a run without the fault."""
    shutil.copytree(broken, elsewhere)
    train(config(), elsewhere, env=point_goal, resume=True)
    for name in ("brain", "ring", "actions"):
        file = f"checkpoints/360/{name}.safetensors"
        assert (elsewhere / file).read_bytes() == (whole / file).read_bytes()
    evals = [[{k: v for k, v in row.items() if k != "wall_s"} for row in runs.read_lines(f / "evals.jsonl")] for f in (elsewhere, whole)]
    assert evals[0] == evals[1]


def fails(folder, listen=lambda event, data: None):
    with pytest.raises(UserError) as error:
        train(config(), folder, env=point_goal, listen=listen)
    assert "\n" not in str(error.value)
    return str(error.value)


@contextlib.contextmanager
def mounted(place, *options):
    """A small disk of its own where this machine allows one (root, Linux); else None."""
    place.mkdir()
    allowed = (
        os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(place)], capture_output=True).returncode == 0
    )
    try:
        yield place if allowed else None
    finally:
        if allowed:
            subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk, leave):
    """Take all of a disk's space but `leave` bytes."""
    free = shutil.disk_usage(disk).free
    with open(disk / "filler", "wb") as f:
        f.write(bytes(max(free - leave, 0)))


@pytest.mark.parametrize("leave", [0, 8 << 10, 40 << 10])  # bytes: for no log line, for half a checkpoint, for a whole one
def test_a_disk_that_fills_leaves_the_last_good_checkpoint(leave, whole, tmp_path, monkeypatch):
    with mounted(tmp_path / "disk", "-o", "size=2m") as disk:
        folder = (disk or tmp_path / "disk") / "run"

        def listen(event, data):
            if event == "checkpoint" and data["step"] == 120:
                if disk is not None:
                    fill(disk, leave)
                else:  # no disk of our own: the file layer says what a full one says
                    monkeypatch.setattr(runs.os, "fsync", full)

        def full(fd):
            raise OSError(errno.ENOSPC, "No space left on device")

        said = fails(folder, listen)
        monkeypatch.undo()
        assert "No space left on device" in said
        saved = runs.checkpoint_steps(folder)
        assert f"the last checkpoint is at step {saved[-1]}" in said
        assert saved == [120] or (leave >= 40 << 10 and saved == [120, 240])
        assert not list((folder / "checkpoints").glob(".part-*"))
        assert_resumes_elsewhere(folder, tmp_path / "elsewhere", whole)


def test_a_disk_that_turns_read_only_leaves_the_last_good_checkpoint(whole, tmp_path, monkeypatch):
    with mounted(tmp_path / "disk", "-o", "size=4m") as disk:
        folder = (disk or tmp_path / "disk") / "run"

        def listen(event, data):
            if event == "checkpoint" and data["step"] == 240:
                if disk is not None:
                    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
                else:
                    (folder / "evals.jsonl").chmod(0o400)

        said = fails(folder, listen)
        assert "the last checkpoint is at step 240" in said
        assert runs.checkpoint_steps(folder) == [120, 240]
        (folder / "evals.jsonl").chmod(0o600) if disk is None else None
        assert_resumes_elsewhere(folder, tmp_path / "elsewhere", whole)


def test_a_folder_that_vanishes_ends_the_run_and_is_not_half_made_again(tmp_path):
    folder = tmp_path / "run"

    def listen(event, data):
        if event == "checkpoint" and data["step"] == 120:
            shutil.rmtree(folder)

    said = fails(folder, listen)
    assert str(folder) in said
    assert not folder.exists()


def test_a_checkpoint_is_not_written_into_a_folder_that_vanished(tmp_path):
    """With evaluations rarer than checkpoints, the checkpoint is the first to meet the missing folder."""
    folder = tmp_path / "run"
    c = dataclasses.replace(config(), eval_every=10_000)

    def listen(event, data):
        if event == "checkpoint" and data["step"] == 120:
            shutil.rmtree(folder)

    with pytest.raises(UserError, match="the run folder has vanished; the last checkpoint is at step 120"):
        train(c, folder, env=point_goal, listen=listen)
    assert not folder.exists()


def test_a_failed_save_is_told_as_a_disk_error_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    tree = {"w": np.ones(3, np.float32)}

    def half(arrays, path):
        """What safetensors does on a full disk, where there is none of our own."""
        Path(path).write_bytes(b"half")
        raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with mounted(tmp_path / "disk", "-o", "size=64k") as disk:
        place = disk or tmp_path / "disk"
        runs.save_checkpoint(place, 1, {"brain": tree}, {})
        if disk is None:
            monkeypatch.setattr(safetensors.numpy, "save_file", half)
        with pytest.raises(OSError, match="No space left"):
            runs.save_checkpoint(place, 2, {"brain": {"w": np.ones(100_000, np.float32)}}, {})
        assert runs.checkpoint_steps(place) == [1]
        assert [p.name for p in (place / "checkpoints").iterdir()] == ["1"]
        np.testing.assert_array_equal(runs.load_tree(place, 1, "brain", tree)["w"], 1)


def test_a_place_that_cannot_be_written_is_told_before_anything_is_trained(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert "cannot write to" in fails(tmp_path / "file" / "run")


@pytest.mark.parametrize("command", [["train", "point_env:Point-v0", "--out"], ["eval"]])
def test_a_folder_that_may_not_be_looked_into_is_told_in_one_line(tmp_path, monkeypatch, capsys, command):
    from aimrl import cli

    stat = Path.stat

    def forbidden(self, **more):
        if "closed" in self.parts:  # what anybody but root meets below a folder without the right to enter
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return stat(self, **more)

    monkeypatch.setattr(Path, "stat", forbidden)
    assert cli.main([*command, str(tmp_path / "closed" / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("Permission denied")


def test_the_command_line_tells_of_a_full_disk_in_one_line_though_tensorboard_writes_there_too(tmp_path, monkeypatch, capsys):
    from aimrl import cli, progress

    saved, writers = runs.save_checkpoint, []
    options = "--num-envs 4 --round-steps 40 --learning-starts 100000 --eval-every 40 --eval-episodes 2 --checkpoint-every 80 "
    options += "--buffer-size 1000 --steps 400 --td3.hidden 8 --tensorboard --quiet"
    with mounted(tmp_path / "disk", "-o", "size=2m") as disk:
        folder = (disk or tmp_path / "disk") / "run"

        def full(fd):
            raise OSError(errno.ENOSPC, "No space left on device")

        def save(*args, **more):
            path = saved(*args, **more)
            if disk is not None:
                fill(disk, 0)
            else:
                monkeypatch.setattr(runs.os, "fsync", full)
            return path

        def close(logger, really=progress.TensorBoard.close):
            writers.append(logger.writer.file_writer)
            really(logger)

        monkeypatch.setattr(runs, "save_checkpoint", save)
        monkeypatch.setattr(progress.TensorBoard, "close", close)
        code = cli.main(["train", "misbehaving:Nan-v0", "--out", str(folder), *options.split()])
        monkeypatch.undo()
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning:")]
        assert code == 2
        assert len(lines) == 1
        assert "No space left on device" in lines[0]
        assert "the last checkpoint is at step 80" in lines[0]
        assert runs.checkpoint_steps(folder) == [80]
        for writer in writers:  # tensorboardX calls this as Python exits; it used to end the command in a traceback
            writer.event_writer.close()
        assert writers
        assert "_EventLoggerThread" not in {type(thread).__name__ for thread in threading.enumerate()}  # it would fail later
