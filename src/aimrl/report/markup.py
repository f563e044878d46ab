"""Pieces of HTML. Everything that comes from a run folder is escaped here."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aimrl import plots
from aimrl.plots import Curve, percent


def esc(value: Any) -> str:
    """Text for HTML, in content and in attributes. Control characters cannot be shown and are dropped."""
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in str(value)), quote=True)


def script_json(value: Any) -> str:
    """JSON for a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def tag(name: str, content: str = "", **attributes: Any) -> str:
    """An element; `content` is HTML, attributes are text. `class_` and `for_` lose their underscore, other underscores become hyphens."""
    named = [(k.rstrip("_").replace("_", "-"), v) for k, v in attributes.items() if v is not None and v is not False]
    text = "".join(f" {k}" if v is True else f' {k}="{esc(v)}"' for k, v in named)
    return f"<{name}{text}>{content}</{name}>"


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table of HTML cells; the first `left` columns are text, the very first names the row."""

    def cell(i: int, content: str) -> str:
        return f'<th scope="row">{content}</th>' if i == 0 else f"<td{' class=left' if i < left else ''}>{content}</td>"

    top = "".join(f'<th scope="col"{" class=left" if i < left else ""}>{h}</th>' for i, h in enumerate(head))
    body = "".join(f"<tr>{''.join(cell(i, c) for i, c in enumerate(row))}</tr>" for row in rows)
    inner = f"<table><caption>{caption}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table">{inner}</div>'


def section(anchor: str, heading: str, *content: str) -> str:
    if not any(content):
        return ""
    return f'<section id="{anchor}" aria-labelledby="h-{anchor}"><h2 id="h-{anchor}">{heading}</h2>{"".join(content)}</section>'


def interval(low: float, high: float) -> str:
    """80–90 %."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    a, b = percent(low), percent(high)
    return a if a == b else f"{a.removesuffix(' %')}–{b}"


def numbers(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Short numbers for JSON; what is not finite is a gap."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in np.asarray(list(values), float).tolist()]


def swatch(i: int) -> str:
    dash = {"solid": "", "dash": "6 3", "dot": "2 3", "dashdot": "6 3 2 3"}[plots.DASHES[i % 4]]
    line = f'<line x1="1" y1="6" x2="23" y2="6" stroke-width="3" stroke-dasharray="{dash}" style="stroke: var(--c{i % 8})"/>'
    return f'<svg width="24" height="12" aria-hidden="true" focusable="false">{line}</svg>'


def legend(series: Sequence[tuple[int, str]]) -> str:
    """Buttons that show and hide a method in every chart: reachable by keyboard, unlike a legend inside a drawing."""
    if len(series) < 2:
        return ""
    button = lambda i, name: f'<button type="button" data-series="{i}" aria-pressed="true">{swatch(i)}{esc(name)}</button>'  # noqa: E731
    return f'<ul class="legend" aria-label="Methods shown">{"".join(f"<li>{button(i, n)}</li>" for i, n in series)}</ul>'


@dataclass(frozen=True)
class Chart:
    """A drawing's data for the script, and what says the same in words and numbers."""

    title: str
    summary: str
    y: str  # percent or number
    by: tuple[str, ...]  # which of the reader's choices select the curves
    series: list[dict[str, Any]]
    numbers: str = ""  # a table
    kind: str = "lines"
    wide: bool = False

    def html(self, anchor: str, heading: str = "h3") -> str:
        head = f'<{heading} id="{anchor}-t">{esc(self.title)}</{heading}>'
        plot = f'<div class="plot" id="{anchor}" role="img" aria-labelledby="{anchor}-t" aria-describedby="{anchor}-s"></div>'
        more = f'<details id="{anchor}-n"><summary>The numbers</summary>{self.numbers}</details>' if self.numbers else ""
        words = f'<figcaption id="{anchor}-s">{esc(self.summary)}</figcaption>'
        shown = legend([(s["i"], s["name"]) for s in self.series])
        return f'<figure class="card{" wide" if self.wide else ""}">{head}{shown}{plot}{words}{more}</figure>'

    def data(self, anchor: str) -> dict[str, Any]:
        return {"id": anchor, "kind": self.kind, "y": self.y, "by": list(self.by), "series": self.series}


def curve_data(c: Curve) -> dict[str, Any]:
    return {"x": numbers(c.x, 9), "y": numbers(c.mid), "lo": numbers(c.low), "hi": numbers(c.high)}


def whisker(value: float, low: float, high: float) -> str:
    """A chance and its interval on a line from 0 to 1, with a mark at one half."""
    span = f'<line x1="{4 + 56 * low:.1f}" y1="6" x2="{4 + 56 * high:.1f}" y2="6"/>' if math.isfinite(low) else ""
    dot = f'<circle cx="{4 + 56 * value:.1f}" cy="6" r="3" style="fill: currentColor"/>'
    half = '<line x1="32" y1="0" x2="32" y2="12" stroke-dasharray="2 2" opacity="0.6"/>'
    lines = f'<g stroke="currentColor" stroke-width="1.5">{half}{span}</g>'
    return f'<span class="bar" aria-hidden="true"><svg width="64" height="12">{lines}{dot}</svg></span>'


def fine(text: str) -> str:
    return f"<span class='muted small'>{text}</span>"


def bar(value: float, i: int) -> str:
    fill = f'<rect width="{64 * value:.1f}" height="9" rx="4" style="fill: var(--c{i % 8})"/>'
    return f'<span class="bar" aria-hidden="true"><svg width="64" height="9">{fill}</svg></span>'


def count_words(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "some"
