"""The documentation site: Sphinx, MyST and Furo, offline. Command help and results are put into their pages while it is built."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import os
import re
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

project = "aimrl"
author = "The aimrl developers"
copyright = "The aimrl developers, MIT licence"
version = release = installed("aimrl")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"aimrl {release}"

MAX_ROWS = 60  # of a table of results on the page; the file has them all


# --- what is made while building --------------------------------------------------------------------------------------------------------


def command_help(name: str) -> str:
    """What `aimrl NAME --help` prints, at a width that fits the page."""
    from aimrl.cli import main

    os.environ["COLUMNS"] = "88"
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        code = main([name, "--help"] if name != "aimrl" else ["--help"])
    if code:
        raise RuntimeError(f"aimrl {name} --help exits {code}")
    return "\n".join(line.rstrip() for line in shown.getvalue().splitlines())


def results(name: str) -> str:
    """Markdown of what lies in results/NAME: its own words, its tables, its pictures."""
    folder = ROOT / "results" / name
    parts: list[str] = []
    if (words := folder / "README.md").is_file():
        parts.append(f"```{{include}} ../results/{name}/README.md\n:heading-offset: 1\n:relative-images:\n:relative-docs: .\n```")
    shown = words.read_text(encoding="utf-8") if words.is_file() else ""
    for path in sorted(folder.glob("*.csv")) if not shown else []:
        parts.append(table(path))
    for path in sorted(p for kind in ("png", "gif") for p in [*folder.glob(f"*.{kind}"), *folder.glob(f"figures/*.{kind}")]):
        if path.name not in shown:
            parts.append(f"![{path.stem.replace('_', ' ').replace('-', ' ')}](../{path.relative_to(ROOT).as_posix()})")
    return "\n\n".join(parts) or f"Nothing has been measured yet: `results/{name}` is empty."


def table(path: Path) -> str:
    with open(path, encoding="utf-8", newline="") as f:
        rows = [[cell.replace("|", "\\|") for cell in row] for row in csv.reader(f) if row]
    if not rows:
        return f"`{path.name}` is empty."
    lines = [" | ".join(rows[0]), " | ".join("---" for _ in rows[0]), *(" | ".join(row) for row in rows[1 : MAX_ROWS + 1])]
    more = f"\n\n{len(rows) - 1 - MAX_ROWS} more rows are in the file." if len(rows) - 1 > MAX_ROWS else ""
    return f"`{path.relative_to(ROOT).as_posix()}`:\n\n" + "\n".join(f"| {line} |" for line in lines) + more


def fill(app: Any, docname: str, source: list[str]) -> None:
    """`<!-- help: train -->` is the command's help, `<!-- results: grid -->` what was measured, `<!-- page: x -->` x if there is one."""
    source[0] = re.sub(r"<!-- page: (\w+) -->\n", lambda m: f"{m[1]}\n" if (ROOT / "docs" / f"{m[1]}.md").is_file() else "", source[0])
    source[0] = re.sub(r"<!-- help: (\w+) -->", lambda m: f"```text\n{command_help(m[1])}\n```", source[0])
    source[0] = re.sub(r"<!-- results: (\w+) -->", lambda m: results(m[1]), source[0])


# --- docstrings -------------------------------------------------------------------------------------------------------------------------


def as_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Our docstrings are plain text with `code`: stars and bars in them are the paper's, not markup. Fields get their comments."""
    lines[:] = ["".join(_escape(part) for part in re.split(r"(`[^`]+`)", line)) for line in lines]
    if what == "class" and dataclasses.is_dataclass(obj):
        from aimrl.cli.options import comments

        texts = comments(obj)
        own = [f for f in dataclasses.fields(obj) if texts.get(f.name)]
        lines += ["", *(f"- ``{f.name}``: " + "".join(_escape(p) for p in re.split(r"(`[^`]+`)", texts[f.name])) for f in own), ""]


def _escape(part: str) -> str:
    if part.startswith("`"):
        return f"`{part}`"
    return re.sub(r"([*|\\])", r"\\\1", re.sub(r"(\w)_(?=\W|$)", r"\1\\_", part))


def setup(app: Any) -> None:
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", as_rst)
