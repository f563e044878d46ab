"""What a report is about: runs, grid worlds, pictures and what is wrong with them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aimrl import plots, runs
from aimrl.plots import Group, RunData
from aimrl.types import UserError

MAX_FILE = 12 << 20  # bytes of one picture or video in the page
MAX_MEDIA = 48 << 20  # and of all of them
# Only files that are what their name says: the first bytes of each kind.
_KINDS = {
    ".mp4": ("video/mp4", lambda b: b[4:8] == b"ftyp"),
    ".webm": ("video/webm", lambda b: b[:4] == b"\x1aE\xdf\xa3"),
    ".gif": ("image/gif", lambda b: b[:6] in (b"GIF87a", b"GIF89a")),
    ".png": ("image/png", lambda b: b[:8] == b"\x89PNG\r\n\x1a\n"),
    ".jpg": ("image/jpeg", lambda b: b[:3] == b"\xff\xd8\xff"),
}
Success = Literal["final", "ever"]
SUCCESS: dict[Success, str] = {"final": "held at the end", "ever": "reached"}


@dataclass(frozen=True)
class Medium:
    """A picture or video as a data address."""

    kind: str  # its MIME type
    data: str
    name: str  # file name without suffix
    about: str  # the run it shows


@dataclass(frozen=True)
class GridRun:
    """A grid world's run: its numbers and pictures."""

    folder: Path
    config: dict[str, Any]
    result: dict[str, Any]


@dataclass(frozen=True)
class Report:
    groups: list[Group]
    grids: list[GridRun]
    media: dict[Path, list[Medium]]
    problems: list[str]
    title: str
    live: bool = False

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(sorted((g.name for g in self.groups), key=runs.method_order)))

    @property
    def runs(self) -> list[RunData]:
        return [r for g in self.groups for r in g.runs]

    def colour(self, group: Group) -> int:
        return self.methods.index(group.name)


def gather(folders: Sequence[Path], title: str | None = None, live: bool = False) -> Report:
    from aimrl.stats.data import find_runs

    found: list[Path] = []
    problems: list[str] = []
    for folder in map(Path, folders):
        try:
            found += find_runs([folder])
        except UserError as e:
            problems.append(str(e))
    found = list(dict.fromkeys(found))
    grids = [g for f in found if (g := _grid(f, problems)) is not None]
    grid_folders = {g.folder for g in grids}
    data, lines = plots.read(f for f in found if f not in grid_folders)
    problems += lines if not live else [line for line in lines if not line.endswith("no evaluations yet")]
    groups, lines = plots.group(data)
    problems += lines + plots.counts(groups, "ever")[1]
    media, lines = _media([g.folder for g in grids] + [r.folder for k in range(1000) for g in groups for r in g.runs[k : k + 1]])
    return Report(groups, grids, media, problems + lines, title or _title(groups, grids), live)


def _grid(folder: Path, problems: list[str]) -> GridRun | None:
    try:
        config = runs.read_json(folder / "config.json")
        if config.get("kind") != "grid":
            return None
        result = runs.read_json(folder / "result.json") if (folder / "result.json").is_file() else {}
        return GridRun(folder, config, result)
    except UserError as e:
        if "result.json" in str(e):
            problems.append(f"{e}; left out")
        return None  # plots.read says what is wrong with config.json


def _title(groups: list[Group], grids: list[GridRun]) -> str:
    if len(groups) == 1 and not grids:
        return f"{groups[0].env} with {groups[0].name}"
    if len(grids) == 1 and not groups:
        return f"{world_name(grids[0])} with {grids[0].config.get('reward')}"
    envs = list(dict.fromkeys(g.env for g in groups)) + list(dict.fromkeys(world_name(g) for g in grids))
    methods = len({g.name for g in groups} | {str(g.config.get("reward")) for g in grids})
    where = envs[0] if len(envs) == 1 else f"{len(envs)} environments"
    return f"{methods} method{'s' * (methods != 1)} in {where}"


def world_name(grid: GridRun) -> str:
    return f"Grid world {Path(str(grid.config.get('world', '?'))).name}"


def _media(folders: Iterable[Path]) -> tuple[dict[Path, list[Medium]], list[str]]:
    """Pictures and videos of each run, first seeds first, until the page is full. Symbolic links are not followed."""
    total, full, out, problems = 0, 0, {}, []
    for folder in folders:
        out[folder] = []
        for path in _media_files(folder):
            try:
                kind, fits = _KINDS[path.suffix.lower()]
                size = path.stat().st_size
                if size > MAX_FILE:
                    problems.append(f"{path}: {size / 1e6:.0f} MB is too large for the page; left out")
                    continue
                if total + size > MAX_MEDIA:
                    full += 1
                    continue
                content = path.read_bytes()
            except OSError as e:
                problems.append(f"{path}: {e.strerror or e}; left out")
                continue
            if not fits(content):
                problems.append(f"{path}: not a {path.suffix[1:]} file; left out")
                continue
            total += len(content)
            out[folder].append(Medium(kind, base64.b64encode(content).decode(), path.stem, folder.name))
    if full:
        problems.append(f"{full} more pictures or videos would make the page too large; left out")
    return out, problems


def _media_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for name in ("videos", "figures"):
        root = folder / name
        if root.is_dir() and not root.is_symlink():
            found += [p for p in root.iterdir() if p.suffix.lower() in _KINDS and p.is_file() and not p.is_symlink()]
    order = list(_KINDS)
    found.sort(key=lambda p: (order.index(p.suffix.lower()), p.name))
    films = {p.stem for p in found if p.suffix in (".mp4", ".webm")}
    return [p for p in found if not (p.suffix == ".gif" and p.stem in films)]  # the same in fewer colours
