"""Feeds mutated files to every parser of aimrl's. A parser may succeed or raise UserError; anything else, a slow answer or too much memory
is a fault.

    python tests/reliability/fuzzing.py --inputs 100000 --seed 0
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aimrl import runs, stats, sweep, theory
from aimrl.config import make_config
from aimrl.types import UserError

MEMORY = 1 << 30  # bytes a parser may take beyond what importing took
SECONDS = 10.0  # of processor time for one file

Bytes = bytes | bytearray


# --- good files to start from -----------------------------------------------------------------------------------------------------------


def _config() -> bytes:
    import dataclasses

    c = make_config("FetchReach-v4", agent_options={"hidden": [16, 16], "tau": 0.1}, reward_options={"step_bound": 1.0})
    return json.dumps(
        runs.plain(dataclasses.asdict(c)) | {"format": runs.FORMAT, "versions": {"jax": "0.10", "git": "abc"}}, indent=1
    ).encode()


def _evals() -> bytes:
    lists = {"success_final": [0, 1], "success_ever": [1, 1], "steps_to_goal": [-1, 7], "return": [-50.0, -7.0]}
    return b"".join(json.dumps({"step": s, "episodes": 2, **lists, "wall_s": 1.5}).encode() + b"\n" for s in (0, 200, 400))


def _metrics() -> bytes:
    row = {"agent/q": -3.25, "aim/loss": "nan", "random": 0.3, "wall_s": 0.5}
    return b"".join(json.dumps({"step": s, **row}).encode() + b"\n" for s in (200, 400))


META = json.dumps({"rows": 3, "wall_s": 1.5, "segment": 0, "replayed": 2, "format": runs.FORMAT, "step": 400, "trees": ["brain"]}).encode()
TREE = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.zeros((), np.int32)}


def _tensors() -> bytes:
    from safetensors.numpy import save

    return save({f"['{k}']": v for k, v in TREE.items()})


def _npz(compressed: bool) -> bytes:
    P = np.full((3, 2, 3), 1 / 3)
    arrays = {"P": P, "start": np.array([1.0, 0, 0]), "goal": np.array(2), "gamma": np.array(0.9), "policy": np.full((3, 2), 0.5)}
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **arrays)
    return out.getvalue()


def _npy() -> bytes:
    out = io.BytesIO()
    np.save(out, np.full((3, 2), 0.5))
    return out.getvalue()


WORLD = b"limit: 30\nwind: 0.4\n+-+-+-+\n|S v G|\n+ +-+ +\n|. #|.|\n+-+-+-+\n"
SPEC = b"""name = "fuzz"
env = ["FetchReach-v4", "FetchPush-v4"]
reward = ["aim", "sparse"]
seeds = 2
steps = 1000
[overrides]
batch_size = 64
[overrides.agent_options]
tau = 0.1
[[cells]]
env = "FetchSlide-v4"
label = "wide"
[cells.overrides.agent_options]
hidden = [16, 16]
"""
ROWS = [b"push,%s,%d,%d,%d\n" % (a, seed, e, (seed + e) % 2) for a in (b"aim", b"her") for seed in (0, 1) for e in (0, 1)]
CSV = b"env,algorithm,seed,episode,success\n" + b"".join(ROWS)
PRESET = json.dumps(
    {"batch_size": 128, "num_envs": 4, "agent_options": {"tau": 0.1, "hidden": [16]}, "her": "future", "her_ratio": 0.8}
).encode()


# --- what reads them --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A parser: `read` is given a folder in which the file `name` is the mutated one."""

    name: str
    seeds: tuple[bytes, ...]
    read: Callable[[Path], object]
    share: int = 10  # of the inputs, relative to the others


def _read_meta(folder: Path) -> None:
    meta = runs.load_meta(folder)
    assert all(runs.natural(meta, key) >= 0 for key in ("rows", "segment", "replayed"))


def _read_tensors(folder: Path) -> None:
    out = runs.load_tree(folder, 400, "brain", TREE)
    assert out["w"].shape == (2, 3)


def _read_world(folder: Path) -> None:
    from aimrl.envs import grid

    grid.exact_mdp(grid.load(folder / "world.txt"))


def _read_log(folder: Path) -> None:
    """What the statistics, the plots and a resumed run make of a log."""
    from aimrl import plots

    plots.read_run(folder)
    try:
        stats.from_runs([folder])
    finally:
        for name in ("evals.jsonl", "metrics.jsonl"):
            before = (folder / name).read_bytes()
            runs.cut_log(folder / name, 300)
            assert all(row["step"] <= 300 for row in runs.read_lines(folder / name))
            (folder / name).write_bytes(before)


def _read_report(folder: Path) -> None:
    from aimrl import report

    report.render([folder])


def targets() -> dict[str, Target]:
    found = [
        Target("config.json", (_config(),), lambda d: runs.load_config(d)),
        Target(
            "checkpoints/400/meta.json", (META,), lambda d: [runs.natural(runs.load_meta(d), k) for k in ("rows", "segment", "replayed")]
        ),
        Target("checkpoints/400/brain.safetensors", (_tensors(),), _read_tensors, 20),
        Target("evals.jsonl", (_evals(),), _read_log),
        Target("metrics.jsonl", (_metrics(),), _read_log),
        Target("world.txt", (WORLD,), _read_world),
        Target("SPEC.toml", (SPEC,), lambda d: sweep.load_spec(d / "SPEC.toml"), 5),
        Target("episodes.csv", (CSV,), lambda d: stats.from_csv(d / "episodes.csv")),
        Target("mdp.npz", (_npz(False), _npz(True)), lambda d: theory.load_npz(d / "mdp.npz")),
        Target("policy.npy", (_npy(),), lambda d: theory.load_policy(d / "policy.npy"), 5),
        Target("preset.json", (PRESET,), lambda d: make_config("FetchPush-v4", preset=str(d / "preset.json"))),
    ]
    return {t.name: t for t in found}


def make_folder(folder: Path) -> None:
    """A sound, small run folder and the other files."""
    (folder / "checkpoints" / "400").mkdir(parents=True)
    for target in targets().values():
        (folder / target.name).write_bytes(target.seeds[0])


# --- mutation ---------------------------------------------------------------------------------------------------------------------------

TOKENS = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1", b"0", b"true", b"null", b'"', b"[", b"]", b"{", b"}", b"[" * 100_000]
TOKENS += [b'{"a":' * 50_000, b"9" * 5_000, b"1" + b"0" * 30, b"2147483648", b"4294967296", b"9223372036854775808", b"1000000000"]
TOKENS += [b"../../../etc/passwd", b"/etc/passwd", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"<script>", b"|S G|", b"+-+", b"#"]
TOKENS += [
    b",",
    b"\n",
    b"\r",
    b"\t",
    b":",
    b"=",
    b"[[",
    b"'''",
    b"1979-05-27",
    b"[1000000000]",
    b"[1,1,1,1,1,1,1,1]",
    b'"F64"',
    b'"I8"',
    b'""',
]
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    float("nan"),
    float("inf"),
    10**9,
    10**18,
    10**40,
    -(10**40),
    "",
    "x" * 1000,
    "../x",
    "\x00",
    "module:Id",
]
VALUES += [[], {}, [[]], [10**9, 10**9], [1] * 1000, {"a": {"b": []}}, "NaN", "inf", "1e9", "F32", "BF16", [0, 2**63], "\ud800"]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A file with a few faults: bytes, blocks, tokens, or values where the file holds JSON."""
    if rng.random() < 0.4:
        try:
            return _mutate_json(data, rng)
        except (ValueError, RecursionError, struct.error, UnicodeError):
            pass
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at, how = rng.randrange(len(out) + 1), rng.randrange(8)
        length = rng.choice((1, 1, 2, 4, 8, 40, 400))
        if how == 0 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif how == 1 and out:
            out[at % len(out)] = rng.randrange(256)
        elif how == 2:
            del out[at : at + length]
        elif how == 3:
            out[at:at] = bytes(out[at : at + length]) * rng.choice((1, 2, 50))
        elif how in (4, 5):
            out[at : at + rng.choice((0, 0, length))] = rng.choice(TOKENS)
        elif how == 6:
            del out[at:]
        else:
            number = rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, rng.randrange(2**16)))
            out[at : at + 8] = struct.pack("<Q", number)
    return bytes(out)


def _mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Faults in the values: of a JSON file, of one line of a log, or of a safetensors header whose length is kept true."""
    if data[:1] != b"{":
        length = struct.unpack("<Q", data[:8])[0]
        header = _mutate_json(data[8 : 8 + length], rng)
        return struct.pack("<Q", len(header)) + header + data[8 + length :]
    lines = data.split(b"\n") if data.count(b"\n{") else [data]
    i = rng.randrange(len(lines))
    value = json.loads(lines[i])
    for _ in range(rng.choice((1, 1, 2))):
        _change_one(value, rng)
    lines[i] = json.dumps(value).encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _change_one(value: dict, rng: random.Random) -> None:
    """Walk down at random; replace, remove, rename or double one entry."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.6:
            value = value[key]
            continue
        how = rng.randrange(5)
        if how == 0:
            del value[key]
        elif how == 1 and isinstance(value, dict):
            value[rng.choice(("", "../x", "__metadata__", "x" * 2000, "step", "\x00"))] = value[key]
        else:
            value[key] = rng.choice(VALUES)
        return


# --- the loop ---------------------------------------------------------------------------------------------------------------------------


def attempt(target: Target, folder: Path, data: bytes) -> str | None:
    """None when the parser answered well, else what it did."""
    (folder / target.name).write_bytes(data)
    begun = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            target.read(folder)
    except UserError as e:
        if len(str(e)) > 2_000 or "\n" in str(e):
            return f"not one clear line but {len(str(e))} characters: {str(e)[:100]!r}"
    except Exception:
        return traceback.format_exc(limit=-4)
    seconds = time.process_time() - begun
    return f"took {seconds:.1f} s" if seconds > SECONDS else None


def fuzz(inputs: int, seed: int, keep: Path | None = None) -> tuple[Counter[str], list[str]]:
    """Inputs read by target, and the faults found (at most three a target)."""
    done: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    told = []
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        folder = Path(scratch) / "run"
        make_folder(folder)
        all_targets = list(targets().values())
        for target in rng.choices(all_targets, [t.share for t in all_targets], k=inputs):
            data = mutate(rng.choice(target.seeds), rng)
            fault = attempt(target, folder, data)
            done[target.name] += 1
            if fault is not None:
                faults[target.name] += 1
                if faults[target.name] <= 3:
                    told.append(f"{target.name}: {fault}")
                    if keep is not None:
                        (keep / f"{target.name.replace('/', '-')}.{faults[target.name]}").write_bytes(data)
            (folder / target.name).write_bytes(target.seeds[0])
    return done, told


def fuzz_reports(inputs: int, seed: int) -> tuple[int, list[str]]:
    """Whole pages made from damaged run folders: slower, so fewer."""
    told = []
    rng = random.Random(seed)
    names = ("config.json", "evals.jsonl", "metrics.jsonl")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        make_folder(folder)
        for _ in range(inputs):
            target = targets()[rng.choice(names)]
            fault = attempt(Target(target.name, (), _read_report), folder, mutate(target.seeds[0], rng))
            told += [f"report of {target.name}: {fault}"] if fault else []
            (folder / target.name).write_bytes(target.seeds[0])
    return inputs, told[:3]


def limit_memory(extra: int) -> None:
    """Beyond this, allocation fails instead of taking the machine down."""
    with open("/proc/self/statm") as f:
        pages = int(f.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra, resource.RLIM_INFINITY))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=None, help="a folder for the inputs that found a fault")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:  # imports whatever the parsers import late
        make_folder(Path(scratch) / "run")
        for target in targets().values():
            target.read(Path(scratch) / "run")
        _read_report(Path(scratch) / "run")
    limit_memory(MEMORY)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    done, told = fuzz(o.inputs, o.seed, o.keep)
    pages, more = fuzz_reports(o.inputs // 200, o.seed + 1)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"fuzzed: {sum(done.values()) + pages:,} inputs ({', '.join(f'{n:,} {name}' for name, n in sorted(done.items()))}, {pages} reports)"
    )
    print(f"        {time.process_time() - begun:.0f} s of processor time, memory grew by {grown:.0f} MiB, {len(told + more)} faults")
    print("\n".join(told + more))
    return 1 if told or more else 0


if __name__ == "__main__":
    sys.exit(main())
