"""Run folders: configuration, logs, checkpoints. Only JSON and safetensors: a stranger's folder cannot run code."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from aimrl import __version__
from aimrl.config import MAX_LOG, Config, check, settled_here
from aimrl.types import UserError, look_here

FORMAT = 1  # of run folders and checkpoints; another number is refused
MAX_JSON = 16 << 20  # bytes; no file of ours comes near
MAX_HEADER = 4 << 20
LOGS = ("metrics.jsonl", "evals.jsonl")
NEW = ".new-"  # before a whole checkpoint's name: it is about to replace one of the same step
MAX_STEP = 2**31 - 1  # random keys are folded with twice the step, in 32 bits


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


def read_bounded(path: Path, limit: int, links: bool = False) -> bytes:
    """A plain file's bytes, or a clear line: never a pipe or a device, which might not end, and never more than `limit`.

    A stranger's run folder must not lead elsewhere: `links` is for files that the user named.
    """
    try:
        if path.is_symlink() and not links:
            raise UserError(f"{path} is a symbolic link; run folders hold plain files")
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a plain file")
        with open(path, "rb") as f:
            data = f.read(limit + 1)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, ValueError) as e:
        raise UserError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from None
    if len(data) > limit:
        raise UserError(f"{path} is too large to be a file of aimrl's")
    return data


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of sane size, or a clear line."""
    try:
        data = json.loads(read_bounded(path, MAX_JSON).decode("utf-8"))
    except (ValueError, RecursionError) as e:  # also bad UTF-8 and numbers of thousands of digits
        raise UserError(f"{path} is not valid JSON: {str(e)[:200]}") from None
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
    """Append one JSON line in one write, on the disk before any later checkpoint is."""
    line = json.dumps(plain(value), allow_nan=False) + "\n"
    with open(path, "a", encoding="utf-8") as f:
        f.write(line)
        f.flush()
        os.fsync(f.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole JSON lines of a log; damaged ones and a half-written last line are left out."""
    return list(read_log(path)[0].values())


def read_log(path: Path) -> tuple[dict[int, dict[str, Any]], list[int]]:
    """The lines of `read_lines` by their numbers, and the numbers of the damaged ones."""
    rows: dict[int, dict[str, Any]] = {}
    damaged: list[int] = []
    for number, line in enumerate(read_bounded(path, MAX_LOG).split(b"\n")[:-1] if path.is_file() else [], 1):
        try:
            row = json.loads(line.decode("utf-8", errors="replace"))
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows[number] = row
        else:
            damaged.append(number)
    return rows, damaged


def cut_log(path: Path, step: int) -> None:
    """Drop what a log says after `step` (and a half-written line): a resumed run writes it again."""
    if path.is_file():
        rows = [r for r in read_lines(path) if isinstance(r.get("step"), int) and r["step"] <= step]
        temporary = path.with_name(path.name + ".part")
        temporary.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        _sync(temporary)
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
        ask = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
        return subprocess.run(ask, cwd=here, capture_output=True, text=True, timeout=5).stdout.strip() or "unknown"
    return "unknown"


# --- the folder -------------------------------------------------------------------------------------------------------------------------


def settled(config: Config, folder: Path) -> Config:
    """The configuration with what depends on the machine decided: as the run in `folder` has it, or else for this machine."""
    if config.precision != "auto":
        return config
    had = read_json(folder / "config.json").get("precision", Config(env="").precision) if (folder / "config.json").is_file() else None
    return dataclasses.replace(config, precision=had) if had in ("float32", "bfloat16") else settled_here(config)


def last_evaluated(folder: Path) -> int:
    """The step of a run's last evaluation; 0 before the first."""
    rows = read_lines(folder / "evals.jsonl")
    return rows[-1]["step"] if rows and isinstance(rows[-1].get("step"), int) else 0


@contextlib.contextmanager
def claimed(folder: Path, resume: bool) -> Iterator[None]:
    """Hold a run's folder, made for a new run, against every other process: two that begin at once must not mix their files."""
    if resume and not folder.is_dir():
        raise UserError(f"nothing to resume in {folder}: there is no such folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"cannot write to {folder}: {e.strerror or e}") from None
    with locked(folder, f"{folder} is being trained by another process: wait until that has ended"):
        yield


def prepare(folder: Path, config: Config, found: dict[str, str], resume: bool) -> None:
    """Make a run's folder and its config.json, or check that a resumed one is of the same run."""
    path = folder / "config.json"
    values = plain(dataclasses.asdict(settled(config, folder)))
    if resume:
        if not path.is_file():
            raise UserError(f"nothing to resume in {folder}: it holds no config.json")
        refuse_links(folder)
        old = read_json(path)
        _check_format(folder, old)
        missing = plain(dataclasses.asdict(Config(env="")))  # a setting newer than the run had its default's effect
        for key, value in values.items():
            had = old.get(key, missing[key])
            if key not in ("steps", "tensorboard", "wandb") and had != value:
                raise UserError(f"{folder} is another run: its {key} is {had!r:.80}, not {value!r:.80}")
        had, now = _versions_of(old).get("backend"), found.get("backend")
        if None not in (had, now) and had != now:
            raise UserError(
                f"{folder} was trained in the simulators of {had!r:.80}, which can't be had here: it would go on in those of {now}"
            )
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder")
    if path.is_file():
        raise UserError(
            f"{folder} already holds a run: add --resume (in Python resume=True) to go on with it, or choose another --out (out=…)"
        )
    if left := [name for name in ("checkpoints", *LOGS) if (folder / name).exists()]:
        raise UserError(f"{folder} holds {left[0]} of a run whose config.json is gone: choose another --out, or remove the folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, values | {"format": FORMAT, "versions": versions(**found)})
        (folder / "checkpoints").mkdir()  # where it is missing, somebody has removed them
        for name in LOGS:
            (folder / name).touch()
    except OSError as e:
        raise UserError(f"cannot write to {folder}: {e.strerror or e}") from None


_NOT_METHOD = ("env", "seed", "steps", "format", "versions", "backend", "tensorboard", "wandb", "env_timeout", "eval_every")
_NOT_METHOD += ("eval_episodes", "checkpoint_every", "resumed", "agent_options", "reward_options")


def method_settings(config: dict[str, Any]) -> dict[str, Any]:
    """What of a config.json makes its method, in one level; a setting that is newer than the run has its default."""
    flat = {k: v for k, v in (plain(dataclasses.asdict(Config(env=""))) | config).items() if k not in _NOT_METHOD}
    for key in ("agent_options", "reward_options"):
        options = config.get(key)
        flat |= {f"{key.split('_')[0]} {k}": v for k, v in options.items()} if isinstance(options, dict) else {}
    return flat


def method_names(configs: Sequence[dict[str, Any]]) -> list[str]:
    """A method by its reward; agent and preset where they vary; and the options in which it differs from most that share these."""
    varying = [k for k in ("agent", "preset") if len({_short(c.get(k, "unknown")) for c in configs}) > 1]
    base = [(c["reward"], *(_short(c.get(k, "unknown")) for k in varying)) for c in configs]
    settings = [{k: json.dumps(v) for k, v in plain(method_settings(c)).items()} for c in configs]
    arms: dict[tuple[str, ...], list[dict[str, str]]] = {}  # different settings of what would have one name
    for config, key, mine in zip(configs, base, settings):
        if mine not in (known := arms.setdefault((config["env"], *key), [])):
            known.append(mine)
    names = []
    for config, key, mine in zip(configs, base, settings):
        others = arms[config["env"], *key]
        keys = dict.fromkeys(k for one in others for k in one)
        rare = [k for k in keys if 2 * sum(one.get(k) == mine.get(k) for one in others) <= len(others)]
        extra = [*key[1:], *(f"{k} {_short(json.loads(mine[k]))}" if k in mine else f"no {k}" for k in rare)]
        names.append(f"{key[0]} ({', '.join(extra)})" if extra else key[0])
    return names


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 24 else f"{text[:19]}…{zlib.crc32(text.encode()) & 0xFFFF:04x}"  # what differs may be in the rest


def method_order(name: str) -> tuple[bool, int, str]:
    """AIM's methods first, the longer name before the shorter, so that contrasts read as in the paper: AIM minus others."""
    aim = name.lower().startswith("aim")
    return (not aim, -len(name) if aim else 0, name)


def mixed_versions(configs: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each environment and package of which runs of several versions are compared."""
    problems = []
    for env in sorted({c["env"] for c in configs}):
        here = [_versions_of(c) for c in configs if c["env"] == env]
        for name in sorted({k for v in here for k in v}):
            values = sorted({str(v.get(name, "unknown")) for v in here})
            if len(values) > 1:
                problems.append(f"{env}: runs of mixed versions of {name} ({', '.join(values)}) are compared")
    return problems


def go_on(folder: Path, steps: int, step: int) -> None:
    """Write down that a run goes on from `step`, to how many steps, and which versions are not those it was begun with."""
    old = read_json(folder / "config.json")
    had, now = _versions_of(old), versions()
    changed = {name: now[name] for name in now if name in had and had[name] != now[name]}
    before = old["resumed"] if isinstance(old.get("resumed"), dict) else {}
    new = old | {"steps": max(steps, old.get("steps", 0))} | ({"resumed": before | {str(step): changed}} if changed else {})
    if new != old:
        write_json(folder / "config.json", new)


def _versions_of(config: dict[str, Any]) -> dict[str, Any]:
    found = config.get("versions")
    return found if isinstance(found, dict) else {}


def check_writable(folder: Path) -> None:
    """Make a folder, and find out before any work is done for it that nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
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
    refuse_links(folder)
    data = read_json(folder / "config.json")
    if data.get("kind") == "grid":
        raise UserError(f"{folder} is a run of `aimrl grid`, not of `aimrl train`: its results are in its result.json and figures")
    _check_format(folder, data)
    names = {f.name for f in dataclasses.fields(Config)}
    try:
        config = check(Config(**{k: v for k, v in data.items() if k in names}))
    except TypeError as e:
        raise UserError(f"{folder}/config.json is not a run's configuration: {e}") from None
    look_here(config.env)
    _refuse_own_code(folder, config.env)
    return config


def refuse_own(folder: Path, config: Config, env: Any = None, reward: Any = None) -> None:
    """A run of environments or rewards that have no names here can go on only with the objects themselves."""
    from aimrl import rewards
    from aimrl.envs import vector

    how = "in Python, aimrl.load(folder, {0}=…) loads it and aimrl.train(…, out=folder, resume=True) goes on with it"
    if env is None:
        try:
            vector.check_name(config.env)
        except UserError:
            raise UserError(f"{folder} was trained in '{config.env}', which isn't registered here: {how.format('env')}") from None
    if reward is None and config.reward not in rewards.known():
        raise UserError(f"{folder} was trained with a reward of its own, '{config.reward}': {how.format('reward')}")


def refuse_links(folder: Path) -> None:
    """A stranger's folder must not lead reading or writing elsewhere."""
    for name in ("config.json", *LOGS, "checkpoints", "tb"):
        if (folder / name).is_symlink():
            raise UserError(f"{folder / name} is a symbolic link; run folders hold plain files")


def _refuse_own_code(folder: Path, env: str) -> None:
    """`module:Id` imports the module, as Gymnasium does; never one that came with the run."""
    module = env.partition(":")[0].partition(".")[0] if ":" in env else ""
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module) if module.isidentifier() else None
    places = [spec.origin, *(spec.submodule_search_locations or [])] if spec is not None else []
    if any(folder.resolve() in Path(place).resolve().parents for place in places if place):
        raise UserError(f"{folder} names an environment, {env!r:.80}, whose code lies in the run folder: it is not run")


def _check_format(folder: Path, data: dict[str, Any]) -> None:
    if data.get("format") != FORMAT:
        raise UserError(f"{folder} was written by another version of aimrl (format {data.get('format')!r:.80}, this one reads {FORMAT})")


def natural(meta: dict[str, Any], key: str) -> int:
    """A whole number of sane size from metadata."""
    value = meta.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**40:
        raise UserError(f"a checkpoint's '{key}' is {value!r:.80}, not a count")
    return value


CGROUP = Path("/sys/fs/cgroup")  # of a container, which sees its own limit here


def free_memory() -> int | None:
    """Bytes of memory that can be had without swapping, where the system or a container's limit says."""
    free = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free.append(max(limit - used + _cached(), 0))
    return min(free, default=None)


def _cached() -> int:
    """Bytes that count as a container's but are files it has read, given up as soon as memory is asked for."""
    with contextlib.suppress(OSError, ValueError):
        parts = dict(line.split(maxsplit=1) for line in (CGROUP / "memory.stat").read_text().splitlines())
        return sum(int(parts.get(name, 0)) for name in ("active_file", "inactive_file"))
    return 0


@contextlib.contextmanager
def locked(path: Path, refusal: str, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of a file, or of a folder that exists; it goes with the process that holds it, however that ends.

    Waits on a monotonic clock. Folders have no locks on some network file systems; there this holds none.
    """
    import fcntl  # not everywhere

    folder = path.is_dir()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as e:
        raise UserError(f"cannot write to {path.parent}: {e.strerror or e}") from None
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise UserError(refusal) from None
            except OSError:
                if folder:
                    break
                raise
            time.sleep(0.1)
        yield
    finally:
        os.close(handle)


# --- checkpoints ------------------------------------------------------------------------------------------------------------------------


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints, oldest first."""
    root = folder / "checkpoints"
    if not root.is_dir():
        return []
    return sorted({step for p in root.iterdir() if (p / "meta.json").is_file() for step in _named_step(p.name.removeprefix(NEW))})


def _named_step(name: str) -> list[int]:
    """The step that a checkpoint's folder is named by; none if it is named otherwise."""
    return [int(name)] if name.isascii() and name.isdigit() and str(int(name)) == name and int(name) <= MAX_STEP else []


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where a checkpoint lies: in its place, or beside it where a kill came between the old one's going and the new one's coming."""
    final = folder / "checkpoints" / str(step)
    new = final.with_name(f"{NEW}{step}")
    return new if not (final / "meta.json").is_file() and (new / "meta.json").is_file() else final


def save_checkpoint(folder: Path, step: int, trees: dict[str, Any], meta: dict[str, Any], keep: int = 2) -> Path:
    """Write `checkpoints/STEP/` whole or not at all; each tree is one safetensors file. Older ones beyond `keep` are removed."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    root = folder / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    final, temporary = root / str(step), root / f".part-{step}"
    for left in root.glob(".part-*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    for other in checkpoint_steps(folder):
        if (root / f"{NEW}{other}" / "meta.json").is_file():
            _replace(root / f"{NEW}{other}", root / str(other))
    temporary.mkdir()
    try:
        for name, tree in trees.items():
            save_file(dict(_named_leaves(tree)), str(temporary / f"{name}.safetensors"))
        write_json(temporary / "meta.json", meta | {"format": FORMAT, "step": step, "trees": sorted(trees)})
        for path in temporary.iterdir():
            _sync(path)
        _sync(temporary)
        if final.exists():  # stopped twice at one step, or written by a run that went on from an older checkpoint
            os.rename(temporary, root / f"{NEW}{step}")
            _replace(root / f"{NEW}{step}", final)
        else:
            os.rename(temporary, final)
        _sync(root)
    except SafetensorError as e:  # how safetensors tells that the disk is full
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(str(e)) from None
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in checkpoint_steps(folder)[:-keep]:
        if old != step:
            _remove(root / str(old))
    return final


def _replace(new: Path, final: Path) -> None:
    """Put a whole checkpoint in another's place. Folders can't be exchanged in one move: in between, `checkpoint_path` finds the new."""
    _sync(new.parent)  # the new one's name is on the disk before the old one goes
    if final.exists():
        _remove(final)
    os.rename(new, final)


def _remove(checkpoint: Path) -> None:
    """Rename before removing: a kill in between must not leave half a checkpoint that looks whole."""
    away = checkpoint.with_name(f".part-old-{checkpoint.name}")
    with contextlib.suppress(OSError):
        os.rename(checkpoint, away)
        shutil.rmtree(away, ignore_errors=True)


def _newest_named(folder: Path) -> int:
    """The newest step that a folder with anything in it is named by, whole checkpoint or not; 0 without any."""
    root = folder / "checkpoints"
    named = [s for p in root.iterdir() if p.is_dir() and any(p.iterdir()) for s in _named_step(p.name)] if root.is_dir() else []
    return max(named, default=0)


def refuse_lost(folder: Path, config: Config) -> None:
    """A run without a whole checkpoint begins again, unless it had one: its logs would be written over by those of a new run."""
    if step := _newest_named(folder):
        raise UserError(f"checkpoint {step} of {folder} is incomplete: fetch it again, or choose another --out to begin anew")
    steps = [row.get("step") for name in LOGS for row in read_lines(folder / name)]
    last = max((step for step in steps if isinstance(step, int)), default=0)
    if last >= config.checkpoint_every + config.round_steps or (last and not (folder / "checkpoints").is_dir()):
        raise UserError(f"{folder} was at step {last}, but its checkpoints are gone: choose another --out to begin anew")


def load_meta(folder: Path, step: int | None = None) -> dict[str, Any]:
    """The metadata of a checkpoint (the newest by default); never silently an older one."""
    steps = checkpoint_steps(folder)
    if not steps:
        raise UserError(f"{folder} holds no checkpoint yet")
    if step is not None and step not in steps:
        raise UserError(f"{folder} has no checkpoint at step {step}; it has {', '.join(map(str, steps))}")
    newest = _newest_named(folder)
    if step is None and newest > steps[-1]:
        raise UserError(f"checkpoint {newest} of {folder} is incomplete: fetch it again, or remove it to use that of step {steps[-1]}")
    step = steps[-1] if step is None else step
    meta = read_json(checkpoint_path(folder, step) / "meta.json")
    _check_format(folder, meta)
    if meta.get("step") != step or isinstance(meta["step"], bool | float):
        raise UserError(f"checkpoint {step} of {folder} says it is of step {meta.get('step')!r:.80}")
    return meta


def load_tree(folder: Path, step: int, name: str, template: Any) -> Any:
    """Arrays of one file laid into `template`; names, shapes and types are checked before anything is allocated."""
    import jax
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = checkpoint_path(folder, step) / f"{name}.safetensors"
    header = read_header(path)
    wanted = {k: (tuple(v.shape), np.dtype(v.dtype)) for k, v in _named_leaves(template, as_numpy=False)}
    if header.keys() != wanted.keys():
        odd = sorted(header.keys() ^ wanted.keys())[0]
        raise UserError(
            f"{path.name} of step {step} doesn't fit this configuration, or is of another version of aimrl: "
            f"'{odd[:100]}' is {'missing' if odd in wanted else 'unexpected'}"
        )
    for key, (shape, dtype) in wanted.items():
        if header[key] != (shape, dtype):
            raise UserError(f"{path.name} of step {step}: '{key}' is {header[key][1]}{list(header[key][0])}, expected {dtype}{list(shape)}")
    try:
        arrays = load_file(str(path))
    except (SafetensorError, OSError, ValueError, KeyError) as e:
        raise UserError(f"cannot read {path}: {str(e)[:200]}") from None
    leaves, structure = jax.tree.flatten(template)
    return jax.tree.unflatten(structure, [arrays[k] for k, _ in _named_leaves(template, as_numpy=False)][: len(leaves)])


_DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U64": "u8", "U32": "u4", "U16": "u2"}
_DTYPES |= {"U8": "u1", "BOOL": "?"}


def read_header(path: Path) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shapes and types in a safetensors file, read with bounded memory and checked against the file's size."""
    import numpy as np

    if path.is_symlink() or path.parent.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"{path} is a link or no plain file; checkpoints hold plain files")
    try:
        size = path.stat().st_size
        with open(path, "rb") as f:
            start = f.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if not 2 <= length <= min(MAX_HEADER, size - 8):
                raise UserError(f"{path} is truncated or not a safetensors file")
            header = json.loads(f.read(length), object_pairs_hook=_no_doubles)
        out = {}
        for key, entry in header.items():
            if key == "__metadata__":
                continue
            shape, dtype = tuple(entry["shape"]), np.dtype(_DTYPES[entry["dtype"]])
            begin, end = entry["data_offsets"]
            if len(shape) > 32 or not all(type(n) is int and 0 <= n < 2**48 for n in (*shape, begin, end)):
                raise ValueError(key)  # before they are multiplied: thousands of digits would take minutes
            if end - begin != math.prod(shape) * dtype.itemsize or not 0 <= begin <= end <= size - 8 - length:
                raise UserError(f"{path} is truncated: '{key[:100]}' does not fit in it")
            out[key] = (shape, dtype)
        return out
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as e:
        raise UserError(f"{path} has a damaged header: {type(e).__name__}") from None


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a name is there twice")
    return dict(pairs)


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
