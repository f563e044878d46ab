"""The result in the layout of the paper's table, and in words."""

from __future__ import annotations

import math
from typing import Any

Result = dict[str, dict[str, Any]]

# Table 1 of the appendix (tab:anova), as published: estimate, standard error, asterisk; HER is in every method.
PAPER_TABLE: dict[str, dict[tuple[str, str], tuple[float, float, bool]]] = {
    "FetchSlide": {
        ("aim+r", "dense"): (0.34, 0.14, False),
        ("aim", "dense"): (0.21, 0.14, False),
        ("aim+r", "sparse"): (0.69, 0.13, True),
        ("aim", "sparse"): (0.57, 0.13, True),
    },
    "FetchPush": {
        ("aim+r", "dense"): (-1.74, 0.77, False),
        ("aim", "dense"): (-2.19, 0.75, False),
        ("aim+r", "sparse"): (5.32, 0.35, True),
        ("aim", "sparse"): (4.86, 0.30, True),
    },
    "FetchPickAndPlace": {
        ("aim+r", "dense"): (-0.10, 0.45, False),
        ("aim", "dense"): (-1.50, 0.37, True),
        ("aim+r", "sparse"): (4.71, 0.33, True),
        ("aim", "sparse"): (3.31, 0.19, True),
    },
    "FetchReach": {
        ("aim+r", "dense"): (-3.43, 0.34, True),
        ("aim", "dense"): (-5.01, 0.35, True),
        ("aim+r", "sparse"): (4.75, 0.25, True),
        ("aim", "sparse"): (3.17, 0.24, True),
    },
}


def _number(value: float) -> str:
    if math.isfinite(value):
        return f"{round(value, 2) + 0.0:.2f}"  # + 0.0 turns -0.00 into 0.00
    return "∞" if value > 0 else "-∞"


def _entry(contrast: dict[str, Any] | None) -> str:
    """*-3.43 (0.34); LR in the place of the standard error where a likelihood-ratio test decides."""
    if contrast is None:
        return "–"
    spread = _number(contrast["se"]) if contrast["test"] == "wald" else "LR"
    return f"{'*' if contrast['significant'] else ''}{_number(contrast['estimate'])} ({spread})"


def _rows(result: Result) -> list[tuple[str, str]]:
    """Pairs of all environments, grouped by the method that is subtracted, as in the paper."""
    pairs = list(dict.fromkeys((c["a"], c["b"]) for entry in result.values() for c in entry["contrasts"]))
    subtracted = list(dict.fromkeys(b for _, b in pairs))
    return sorted(pairs, key=lambda pair: subtracted.index(pair[1]))


def _notes(result: Result) -> list[str]:
    factor = max((entry["environments"] for entry in result.values()), default=0)
    notes = [f"Log odds ratios (standard errors); * significant at 95 % after Holm within an environment and Bonferroni over {factor}."]
    if any(c["test"] != "wald" for entry in result.values() for c in entry["contrasts"]):
        notes.append("LR: no finite standard error, decided by a likelihood-ratio test.")
    notes += [
        f"At step {step:,}: {', '.join(env for env, e in result.items() if e.get('step') == step)}."
        for step in sorted({e["step"] for e in result.values() if e.get("step") is not None})
    ]
    for env, entry in result.items():
        luck = [c for c in entry["contrasts"] if c["significant"] and (c.get("p_runs") or 0.0) >= 0.05]
        if luck:
            named = ", ".join(f"{c['a']} - {c['b']} ({c['runs']} seeds, p = {c['p_runs']:.2f})" for c in luck)
            notes.append(f"{env}: not significant with one number a run (paired t): {named}; more seeds would tell.")
        if entry["separated"]:
            notes.append(f"{env}: complete separation, all or none of the episodes succeed: {', '.join(entry['separated'])}.")
        if entry["problem"]:
            notes.append(f"{env}: {entry['problem']}.")
    return notes


def format_table(result: Result, style: str = "text") -> str:
    """The paper's table: a row a contrast, a column an environment; `style` is "text" or "markdown"."""
    head = ["Contrast", *result]
    body, last = [], None
    for a, b in _rows(result):
        if last not in (None, b):
            body.append([])  # the paper's rule between groups
        last = b
        found = [next((c for c in entry["contrasts"] if (c["a"], c["b"]) == (a, b)), None) for entry in result.values()]
        body.append([f"{a} - {b}", *map(_entry, found)])
    if style == "markdown":
        lines = [_markdown(head), "| --- |" + " ---: |" * len(result), *(_markdown(row) for row in body if row)]
        return "\n".join(lines + [f"\n{_escape(note)}" for note in _notes(result)])
    widths = [max(len(row[i]) for row in [head, *body] if row) for i in range(len(head))]
    rule = "-+-".join("-" * w for w in widths)
    lines = [_line(head, widths), rule, *(_line(row, widths) if row else rule for row in body), *_notes(result)]
    return "\n".join(lines)


def _line(row: list[str], widths: list[int]) -> str:
    return " | ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:]))])


def _escape(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\|*_`<[" else c for c in text)


def _markdown(row: list[str]) -> str:
    return "| " + " | ".join(_escape(cell).replace("\n", " ") for cell in row) + " |"


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def sentence(result: Result) -> str:
    """What the contrasts show in words: by environment, for AIM's methods where there are any, else for all."""
    parts = []
    for env, entry in result.items():
        contrasts = entry["contrasts"]
        names = list(dict.fromkeys(c["a"] for c in contrasts))
        focus = [n for n in names if n.lower().startswith("aim")] or names
        clauses = []
        for a in focus:
            mine = [c for c in contrasts if c["a"] == a]
            higher = [f"{c['b']} ({_p(c['p_final'])})" for c in mine if c["significant"] and c["z"] > 0]
            lower = [f"{c['b']} ({_p(c['p_final'])})" for c in mine if c["significant"] and c["z"] < 0]
            same = [c["b"] for c in mine if not c["significant"]]
            said = [f"significantly {how} odds than {_join(group)}" for how, group in (("higher", higher), ("lower", lower)) if group]
            if same:
                said.append(f"no significant difference from {_join(same)}")
            clauses.append(f"{a} shows {_join(said)}")
        if clauses:
            parts.append(f"In {env}, {'; '.join(clauses)}.")
        else:
            parts.append(f"In {env} nothing is tested: {entry['problem']}.")
        if clauses and entry["separated"]:
            parts.append(f"There {_join(entry['separated'])} succeeded in all or none of the episodes, so likelihood-ratio tests decide.")
    if any(not c["significant"] for entry in result.values() for c in entry["contrasts"]):
        parts.append("No significant difference does not mean equal odds.")
    return " ".join(parts)
