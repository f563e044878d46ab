"""Run folders: configuration, logs, checkpoints. Only JSON and safetensors: a stranger's folder cannot run code."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from aimrl import __version__
from aimrl.config import Config, check
from aimrl.types import UserError

FORMAT = 1  # of run folders and checkpoints; another number is refused
MAX_JSON = 16 << 20  # bytes; no file of ours comes near
MAX_HEADER = 4 << 20


# --- JSON -------------------------------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """JSON-able copy: arrays to lists, infinities to the string "inf", paths to text."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Path):
        return str(value)
    return value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of sane size, or a clear line."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise UserError(f"{path} is too large to be a file of aimrl's")
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"cannot read {path}: {e}") from None
    except (json.JSONDecodeError, RecursionError) as e:
        raise UserError(f"{path} is not valid JSON: {e}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} does not hold a JSON object")
    return data


def write_json(path: Path, value: Any) -> None:
    """Write so that a reader sees the old file or the whole new one."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "w", encoding="utf-8") as f:
        json.dump(plain(value), f, indent=1, allow_nan=False)
        f.write("\n")
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Append one JSON line in one write."""
    line = json.dumps(plain(value), allow_nan=False) + "\n"
    with open(path, "a", encoding="utf-8") as f:
        f.write(line)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole JSON lines of a log; a half-written last line is left out."""
    if not path.is_file():
        return []
    rows = []
    with open(path, encoding="utf-8", errors="replace") as f:
        for line in f:
            if len(line) > MAX_JSON or not line.endswith("\n"):
                break
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, RecursionError):
                break
            if isinstance(row, dict):
                rows.append(row)
    return rows


def cut_log(path: Path, step: int) -> None:
    """Drop what a log says after `step` (and a half-written line): a resumed run writes it again."""
    if path.is_file():
        rows = [r for r in read_lines(path) if isinstance(r.get("step"), int) and r["step"] <= step]
        temporary = path.with_name(path.name + ".part")
        temporary.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        os.replace(temporary, path)


# --- provenance -------------------------------------------------------------------------------------------------------------------------


def versions(**extra: str) -> dict[str, str]:
    """Versions of everything a result depends on."""
    names = ("jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "gymnasium-robotics", "mujoco", "envpool")
    found = {"aimrl": __version__, "python": sys.version.split()[0]}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found | extra | {"git": _git_revision()}


def _git_revision() -> str:
    here = Path(__file__).resolve().parent
    if not (here.parents[1] / ".git").exists():
        return "not a checkout"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        run = lambda *a: subprocess.run(["git", *a], cwd=here, capture_output=True, text=True, timeout=5).stdout.strip()  # noqa: E731
        dirty = "+" if run("status", "--porcelain", "--untracked-files=no") else ""
        return run("rev-parse", "--short=12", "HEAD") + dirty
    return "unknown"


# --- the folder -------------------------------------------------------------------------------------------------------------------------


def prepare(folder: Path, config: Config, found: dict[str, str], resume: bool) -> None:
    """Make a run's folder and its config.json, or check that a resumed one is of the same run."""
    path = folder / "config.json"
    values = plain(dataclasses.asdict(config))
    if resume:
        if not path.is_file():
            raise UserError(f"nothing to resume in {folder}: it holds no config.json")
        old = read_json(path)
        _check_format(folder, old)
        for key, value in values.items():
            if key not in ("steps", "tensorboard", "wandb") and old.get(key) != value:
                raise UserError(f"{folder} is another run: its {key} is {old.get(key)!r}, not {value!r}")
        return
    if path.is_file():
        raise UserError(f"{folder} already holds a run: add --resume to go on with it, or choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, values | {"format": FORMAT, "versions": versions(**found)})
    except OSError as e:
        raise UserError(f"cannot write to {folder}: {e.strerror or e}") from None


def default_folder(config: Config, root: Path = Path("runs")) -> Path:
    """runs/ENV-REWARD-sSEED, with a number added where that is taken."""
    name = "".join(c if c.isalnum() or c in "_.+-" else "-" for c in f"{config.env}-{config.reward}-s{config.seed}")
    taken = itertools.takewhile(lambda n: (root / (name if n < 2 else f"{name}-{n}")).exists(), itertools.count(1))
    n = sum(1 for _ in taken) + 1
    return root / (name if n < 2 else f"{name}-{n}")


def load_config(folder: Path) -> Config:
    """The configuration a run was made with."""
    if not folder.is_dir():
        raise UserError(f"there is no run folder {folder}")
    data = read_json(folder / "config.json")
    _check_format(folder, data)
    names = {f.name for f in dataclasses.fields(Config)}
    try:
        return check(Config(**{k: v for k, v in data.items() if k in names}))
    except TypeError as e:
        raise UserError(f"{folder}/config.json is not a run's configuration: {e}") from None


def _check_format(folder: Path, data: dict[str, Any]) -> None:
    if data.get("format") != FORMAT:
        raise UserError(f"{folder} was written by another version of aimrl (format {data.get('format')!r}, this one reads {FORMAT})")


def natural(meta: dict[str, Any], key: str) -> int:
    """A whole number of sane size from metadata."""
    value = meta.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**40:
        raise UserError(f"a checkpoint's '{key}' is {value!r}, not a count")
    return value


def free_memory() -> int | None:
    """Bytes of memory that can be had without swapping, where the system says."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


# --- checkpoints ------------------------------------------------------------------------------------------------------------------------


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints, oldest first."""
    root = folder / "checkpoints"
    if not root.is_dir():
        return []
    names = [p.name for p in root.iterdir() if p.name.isascii() and p.name.isdigit() and (p / "meta.json").is_file()]
    return sorted(int(n) for n in names)


def save_checkpoint(folder: Path, step: int, trees: dict[str, Any], meta: dict[str, Any], keep: int = 2) -> Path:
    """Write `checkpoints/STEP/` whole or not at all; each tree is one safetensors file. Older ones beyond `keep` are removed."""
    from safetensors.numpy import save_file

    root = folder / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    final, temporary = root / str(step), root / f".part-{step}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        for name, tree in trees.items():
            save_file(dict(_named_leaves(tree)), str(temporary / f"{name}.safetensors"))
        write_json(temporary / "meta.json", meta | {"format": FORMAT, "step": step, "trees": sorted(trees)})
        for path in temporary.iterdir():
            _sync(path)
        if final.exists():  # written by a run that went on from an older checkpoint
            shutil.rmtree(final)
        os.rename(temporary, final)
        _sync(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in checkpoint_steps(folder)[:-keep]:
        shutil.rmtree(root / str(old), ignore_errors=True)
    return final


def load_meta(folder: Path, step: int | None = None) -> dict[str, Any]:
    """The metadata of a checkpoint (the newest by default); never silently an older one."""
    steps = checkpoint_steps(folder)
    if not steps:
        raise UserError(f"{folder} holds no checkpoint yet")
    if step is not None and step not in steps:
        raise UserError(f"{folder} has no checkpoint at step {step}; it has {', '.join(map(str, steps))}")
    step = steps[-1] if step is None else step
    meta = read_json(folder / "checkpoints" / str(step) / "meta.json")
    _check_format(folder, meta)
    if meta.get("step") != step:
        raise UserError(f"checkpoint {step} of {folder} says it is of step {meta.get('step')!r}")
    return meta


def load_tree(folder: Path, step: int, name: str, template: Any) -> Any:
    """Arrays of one file laid into `template`; names, shapes and types are checked before anything is allocated."""
    import jax
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / "checkpoints" / str(step) / f"{name}.safetensors"
    header = read_header(path)
    wanted = {k: (tuple(v.shape), np.dtype(v.dtype)) for k, v in _named_leaves(template, as_numpy=False)}
    if header.keys() != wanted.keys():
        odd = sorted(header.keys() ^ wanted.keys())[0]
        raise UserError(
            f"{path.name} of step {step} doesn't fit this configuration: '{odd}' is {'missing' if odd in wanted else 'unexpected'}"
        )
    for key, (shape, dtype) in wanted.items():
        if header[key] != (shape, dtype):
            raise UserError(f"{path.name} of step {step}: '{key}' is {header[key][1]}{list(header[key][0])}, expected {dtype}{list(shape)}")
    try:
        arrays = load_file(str(path))
    except (SafetensorError, OSError, ValueError) as e:
        raise UserError(f"cannot read {path}: {e}") from None
    leaves, structure = jax.tree.flatten(template)
    return jax.tree.unflatten(structure, [arrays[k] for k, _ in _named_leaves(template, as_numpy=False)][: len(leaves)])


_DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U64": "u8", "U32": "u4", "U16": "u2"}
_DTYPES |= {"U8": "u1", "BOOL": "?"}


def read_header(path: Path) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shapes and types in a safetensors file, read with bounded memory and checked against the file's size."""
    import numpy as np

    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link; checkpoints hold plain files")
    try:
        size = path.stat().st_size
        with open(path, "rb") as f:
            start = f.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if not 2 <= length <= min(MAX_HEADER, size - 8):
                raise UserError(f"{path} is truncated or not a safetensors file")
            header = json.loads(f.read(length))
        out = {}
        for key, entry in header.items():
            if key == "__metadata__":
                continue
            shape, dtype = tuple(entry["shape"]), np.dtype(_DTYPES[entry["dtype"]])
            if not all(isinstance(n, int) and n >= 0 for n in shape):
                raise ValueError(key)
            begin, end = entry["data_offsets"]
            if end - begin != math.prod(shape) * dtype.itemsize or not 0 <= begin <= end <= size - 8 - length:
                raise UserError(f"{path} is truncated: '{key}' does not fit in it")
            out[key] = (shape, dtype)
        return out
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as e:
        raise UserError(f"{path} has a damaged header: {type(e).__name__}") from None


def _named_leaves(tree: Any, as_numpy: bool = True) -> Iterator[tuple[str, Any]]:
    import jax
    import numpy as np

    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield jax.tree_util.keystr(path).lstrip("."), np.asarray(leaf, order="C") if as_numpy else leaf


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
