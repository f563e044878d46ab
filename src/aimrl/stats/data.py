"""Where the counts come from: a CSV file of episodes, or run folders at one step. Problems are collected, one line each."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aimrl.runs import MAX_JSON, method_names, method_order, mixed_versions, read_bounded, read_log
from aimrl.types import UserError, nearest

COLUMNS = ("env", "algorithm", "seed", "episode", "success")
SUCCESS = ("ever", "final")  # the paper counts an episode that reaches the goal at any time
MAX_CSV = 64 << 20  # bytes: a million episodes
MAX_CELLS = 100_000  # algorithms × seeds of one environment
MAX_ALGORITHMS = 100  # each pair of them is tested
OUTCOMES = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}


@dataclass(frozen=True)
class Counts:
    """Successful and played episodes of one environment, seeds × algorithms; a missing cell has 0 episodes."""

    algorithms: tuple[str, ...]
    seeds: tuple[str, ...]
    successes: NDArray[np.int64]
    episodes: NDArray[np.int64]
    step: int | None = None  # the training step of the evaluations, when they come from runs


@dataclass(frozen=True)
class Table:
    """Counts by environment, and one line for each thing that was wrong with the input."""

    envs: dict[str, Counts]
    problems: tuple[str, ...] = ()


def counts(cells: dict[tuple[str, str], tuple[int, int]], step: int | None = None) -> Counts:
    """Counts from {(algorithm, seed): (successes, episodes)}."""
    algorithms = tuple(sorted({a for a, _ in cells}, key=method_order))
    seeds = tuple(sorted({s for _, s in cells}, key=lambda s: (len(s), s)))
    if len(algorithms) > MAX_ALGORITHMS or len(algorithms) * len(seeds) > MAX_CELLS:
        raise UserError(f"{len(algorithms)} algorithms and {len(seeds)} seeds are too many: are the columns in the right place?")
    grid = np.zeros((2, len(seeds), len(algorithms)), np.int64)
    for (algorithm, seed), pair in cells.items():
        grid[:, seeds.index(seed), algorithms.index(algorithm)] = pair
    return Counts(algorithms, seeds, grid[0], grid[1], step)


def from_csv(path: str | Path) -> Table:
    """Read episodes from a CSV file with the columns env, algorithm, seed, episode, success (0 or 1); further columns are ignored."""
    path = Path(path)
    seen: set[tuple[str, ...]] = set()
    cells: dict[str, dict[tuple[str, str], tuple[int, int]]] = {}
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: {'Is a directory' if path.is_dir() else 'not a plain file'}")
        if path.stat().st_size > MAX_CSV:
            raise UserError(f"{path}: larger than {MAX_CSV >> 20} MiB")
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            if not header:
                raise UserError(f"{path}: the file is empty; it needs the columns {','.join(COLUMNS)}")
            if missing := [c for c in COLUMNS if c not in header]:
                raise UserError(f"{path}: no column {', '.join(missing)} (found {', '.join(header)[:200]}); it needs {','.join(COLUMNS)}")
            if twice := [c for c in COLUMNS if header.count(c) > 1]:
                raise UserError(f"{path}: column {twice[0]} is there {header.count(twice[0])} times")
            where = [header.index(c) for c in COLUMNS]
            for row in reader:
                if not row:
                    continue
                place = f"{path} line {reader.line_num}"
                if len(row) != len(header):
                    raise UserError(f"{place}: {len(row)} fields where the header has {len(header)}")
                *key, value = (row[i].strip() for i in where)
                for column, text in zip(COLUMNS, key):
                    if text.lower() in ("", "nan", "na", "null", "none"):
                        raise UserError(f"{place}: {column} is missing")
                if value.lower() not in OUTCOMES:
                    raise UserError(f"{place}: success must be 0 or 1, not '{value[:40]}'")
                if tuple(key) in seen:
                    raise UserError(f"{place}: env {key[0]}, algorithm {key[1]}, seed {key[2]}, episode {key[3]} is there twice")
                seen.add(tuple(key))
                cell = cells.setdefault(key[0], {})
                wins, plays = cell.get((key[1], key[2]), (0, 0))
                cell[key[1], key[2]] = (wins + OUTCOMES[value.lower()], plays + 1)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: not a CSV text file ({error})") from None
    if not cells:
        raise UserError(f"{path}: no episodes, only a header")
    return Table({env: counts(cell) for env, cell in cells.items()})


@dataclass(frozen=True)
class _Run:
    folder: Path
    config: dict[str, Any]
    evals: dict[int, tuple[int, int]]  # step: successes, episodes


def _outcomes(values: Any) -> tuple[int, int]:
    if not isinstance(values, list) or not values or any(v not in (0, 1) for v in values):
        raise ValueError("not a list of 0 and 1")
    return sum(int(v) for v in values), len(values)


def read_evals(folder: Path, key: str) -> tuple[dict[int, tuple[int, int]], list[str]]:
    """Evaluations by step; of two at one step the later counts (a resumed run writes it again). A broken last line is a cut-off write."""
    found: dict[int, tuple[int, int]] = {}
    try:
        rows, wrong = read_log(folder / "evals.jsonl")
    except UserError as e:
        return {}, [str(e)]
    for number, record in rows.items():
        try:
            step = record["step"]
            if isinstance(step, bool) or not isinstance(step, int) or step < 0:
                raise ValueError("step is not a count")
            found[step] = _outcomes(record[key])
        except (ValueError, KeyError, TypeError):
            wrong.append(number)
    problems = [f"{folder}/evals.jsonl line {number}: not an evaluation with step and {key}; left out" for number in sorted(wrong)]
    if not found:
        problems.append(f"{folder}: no evaluations" if (folder / "evals.jsonl").exists() else f"{folder}: no evals.jsonl")
    return found, problems


def _read_run(folder: Path, key: str) -> tuple[_Run | None, list[str]]:
    try:
        config = json.loads(read_bounded(folder / "config.json", MAX_JSON).decode("utf-8"))
        if isinstance(config, dict) and config.get("kind") == "grid":
            return None, [f"{folder}: a run of `aimrl grid`, not of `aimrl train`"]
        env, reward, seed = config["env"], config["reward"], config["seed"]
        if not isinstance(env, str) or not isinstance(reward, str) or isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError
    except UserError as e:
        return None, [str(e) if (folder / "config.json").exists() else f"{folder}: no config.json"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, [f"{folder}: config.json is half-written or has no env, reward and seed"]
    evals, problems = read_evals(folder, key)
    return _Run(folder, config, evals) if evals else None, problems


def find_runs(folders: Sequence[str | Path]) -> list[Path]:
    """Run folders among `folders` and below them: whatever holds a config.json. A folder without any stands for itself."""
    found: list[Path] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder")
        holders = {p.parent for p in folder.rglob("config.json")}
        outer = sorted(h for h in holders if holders.isdisjoint(h.parents))  # what lies inside a run, as its checkpoints, is no run
        found += outer or [folder]
    return list(dict.fromkeys(found))


def from_runs(folders: Sequence[str | Path], step: int | None = None, success: str = "ever") -> Table:
    """Read run folders (or folders of them) at one training step; by default the largest step that every run of an environment has.

    `success` is "ever" (the goal was reached at some time, the paper's) or "final" (it is reached at the last step). An algorithm is named
    by its reward, and by agent, preset and options where these differ between the runs.
    """
    if success not in SUCCESS:
        raise UserError(nearest(success, SUCCESS, "success"))
    found: list[_Run] = []
    problems: list[str] = []
    for folder in find_runs(folders):
        run, lines = _read_run(folder, f"success_{success}")
        problems += lines
        found += [run] if run is not None else []
    if not found:
        raise UserError(problems[0] if len(problems) == 1 else f"no usable run: {problems[0]} (and {len(problems) - 1} more)")
    cells: dict[str, dict[tuple[str, str], _Run]] = {}
    for run, name in zip(found, method_names([run.config for run in found])):
        env, cell = run.config["env"], (name, str(run.config["seed"]))
        if other := cells.setdefault(env, {}).get(cell):
            problems.append(f"{run.folder}: the same cell as {other.folder} ({env}, {name}, seed {cell[1]}); left out")
        else:
            cells[env][cell] = run
    tables: dict[str, Counts] = {}
    for env, here in sorted(cells.items()):
        shared = set.intersection(*(set(run.evals) for run in here.values()))
        at = step if step is not None else max(shared, default=None)
        if at is None:
            problems.append(f"{env}: no step at which all {len(here)} runs were evaluated; state one")
            continue
        if not any(at in run.evals for run in here.values()):
            known = ", ".join(f"{s:,}" for s in sorted(shared)[-6:]) or "none"
            problems.append(f"{env}: no run was evaluated at step {at:,}; the last steps that all {len(here)} have: {known}")
            continue
        if step is None and (further := max(max(run.evals, default=0) for run in here.values())) > at:
            short = min(here.values(), key=lambda run: max(run.evals, default=0))
            problems.append(
                f"{env}: compared at step {at:,}, though runs go on to {further:,}: {short.folder} ends at {max(short.evals):,}"
            )
        problems += [f"{run.folder}: not evaluated at step {at}; left out" for run in here.values() if at not in run.evals]
        here = {cell: run for cell, run in here.items() if at in run.evals}
        problems += mixed_versions([run.config for run in here.values()])
        tables[env] = counts({cell: run.evals[at] for cell, run in here.items()}, at)
    if not tables:
        raise UserError(problems[-1])
    return Table(tables, tuple(problems))


def load(sources: Sequence[str | Path], step: int | None = None, success: str = "ever") -> Table:
    """One CSV file, or any number of run folders."""
    paths = [Path(s) for s in sources]
    if not paths:
        raise UserError("give a CSV file or run folders")
    if len(paths) == 1 and not paths[0].is_dir():
        if step is not None:
            raise UserError(f"{paths[0]}: a CSV file has no steps to choose from; --step is for run folders")
        return from_csv(paths[0])
    if files := [p for p in paths if p.is_file()]:
        raise UserError(f"{files[0]}: give one CSV file, or run folders, not both")
    return from_runs(paths, step, success)
