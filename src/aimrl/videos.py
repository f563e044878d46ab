"""A policy in moving pictures: MP4 and GIF, drawn by Gymnasium (EnvPool can't render without a screen)."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from aimrl.types import UserError

WIDTH = 320  # pixels; the height follows


def record(run: Any, folder: Path, episodes: int = 3, seed: int = 0, env: Any = None) -> list[Path]:
    """Play `episodes` episodes of a Run and write `policy-STEP.mp4` and `.gif` to `folder`; a UserError where nothing can be drawn."""
    frames, fps = play(run, episodes, seed, env)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"policy-{run.step}.{kind}" for kind in ("mp4", "gif")]
    write_mp4(paths[0], frames, fps)
    write_gif(paths[1], frames, fps)
    return paths


def play(run: Any, episodes: int, seed: int, env: Any = None) -> tuple[list[np.ndarray], int]:
    """Frames of some episodes, each to its end, and the frames a second."""
    os.environ.setdefault("MUJOCO_GL", "egl")  # before MuJoCo is asked for a picture; needs no screen
    from aimrl.envs import vector

    source = env if env is not None else run.config.env
    single = vector.make_single(source, render_mode="rgb_array", horizon=run.config.horizon or None)
    fps = int(single.metadata.get("render_fps") or 25)
    try:
        frames = []
        for episode in range(episodes):
            obs, _ = single.reset(seed=seed + episode)
            frames.append(_frame(single))
            over = False
            while not over:
                obs, _, terminated, truncated, _ = single.step(run.policy({k: np.ravel(v) for k, v in obs.items()}))
                frames.append(_frame(single))
                over = terminated or truncated
            frames += [frames[-1]] * (fps // 3)  # a moment to see how it ended
        return frames, fps
    finally:
        _close(single)


def _frame(single: Any) -> np.ndarray:
    """One picture of sane size; MuJoCo without a GL library fails in many ways, all of which mean the same."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of GL libraries about displays: what matters is told below
            picture = single.render()
    except Exception as e:
        missing = isinstance(e, AttributeError) and "egl" in str(e).lower()  # PyOpenGL's way to say so
        reason = "no GL library was found" if missing else _short(e)
        _let_go(e)
        raise UserError(
            f"no video: this machine can't draw ({reason}); install a GL library such as libegl1, or libosmesa6 with MUJOCO_GL=osmesa"
        ) from None
    if picture is None:
        raise UserError("no video: the environment's render() gives no picture (render_mode 'rgb_array')")
    from PIL import Image

    image = Image.fromarray(np.asarray(picture, np.uint8))
    height = round(image.height * WIDTH / image.width / 2) * 2  # video codecs want even sizes
    return np.asarray(image.resize((WIDTH, max(height, 2))))


def _short(e: BaseException) -> str:
    return " ".join(str(e).split())[:120] or type(e).__name__


def _let_go(e: BaseException) -> None:
    """Free what a failed call had half made; MuJoCo's viewer complains on its end about what it never had, and is not heard."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        traceback.clear_frames(e.__traceback__)
    finally:
        sys.unraisablehook = hook


def _close(single: Any) -> None:
    with contextlib.suppress(Exception):  # a renderer that could not be made can't be closed either
        single.close()


def write_mp4(path: Path, frames: list[np.ndarray], fps: int) -> None:
    import imageio.v3 as iio

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX fears forks; this one becomes ffmpeg at once
        iio.imwrite(path, np.stack(frames), fps=fps, codec="libx264", macro_block_size=2, plugin="FFMPEG")


def write_gif(path: Path, frames: list[np.ndarray], fps: int) -> None:
    """Every second frame in one palette of 64 colours: a GIF is for looking in, not for quality."""
    from PIL import Image

    images = [Image.fromarray(f).quantize(64) for f in frames[::2]]
    images[0].save(path, save_all=True, append_images=images[1:], duration=round(2000 / fps), loop=0)
