"""Moving pictures of a policy."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import point_env
import pytest
from imageio_ffmpeg import get_ffmpeg_exe
from PIL import Image

from aimrl import videos
from aimrl.config import make_config
from aimrl.types import UserError


def policy_of(env="point_env:Point-v0"):
    """Straight to the goal, within the environment's bounds."""
    towards = lambda obs: np.clip(obs["desired_goal"] - obs["achieved_goal"], -0.5, 0.5)  # noqa: E731
    return SimpleNamespace(config=make_config(env), step=7, policy=towards)


def test_both_files_hold_every_episode(tmp_path):
    mp4, gif = videos.record(policy_of(), tmp_path / "videos", episodes=2)
    frames = 2 * (11 + 3)  # ten steps, their start, and a third of a second at the end
    assert (mp4.name, gif.name) == ("policy-7.mp4", "policy-7.gif")
    raw = subprocess.run([get_ffmpeg_exe(), "-i", mp4, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True).stdout
    assert len(raw) == frames * 214 * 320 * 3
    with Image.open(gif) as picture:
        assert picture.size == (320, 214)
        assert picture.n_frames > 2  # equal neighbours are merged


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's, about the shape
def test_observations_of_several_dimensions_reach_the_policy_flat_as_in_training(monkeypatch):
    plain = point_env.PointEnv._obs
    monkeypatch.setattr(point_env.PointEnv, "_obs", lambda self: {k: v.reshape(1, 2) for k, v in plain(self).items()})
    run, seen = policy_of(), []
    run.policy = lambda obs: seen.append({v.shape for v in obs.values()}) or np.zeros(2)
    monkeypatch.setattr(point_env.PointEnv, "compute_reward", lambda self, achieved, desired, info: -1.0)
    videos.play(run, 1, 0)
    assert seen == [{(2,)}] * 10


def test_the_pictures_show_the_policy_arriving():
    frames, fps = videos.play(policy_of(), episodes=1, seed=3)
    red, green = (np.argwhere(frames[-1][..., c] > 128).mean(0) for c in (0, 1))
    start = np.argwhere(frames[0][..., 0] > 128).mean(0)
    assert fps == 10
    assert np.abs(red - green).max() < 5 < np.abs(start - green).max()


def test_a_machine_that_cannot_draw_is_told_in_one_line(tmp_path):
    with pytest.raises(UserError, match="no display") as e:
        videos.record(policy_of("point_env:Blind-v0"), tmp_path / "videos")
    assert "\n" not in str(e.value)
    assert not Path(tmp_path / "videos").exists()
