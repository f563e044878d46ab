"""Every figure and table, by name: its cost and its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aimrl import runs, sweep
from aimrl.paper.budgets import BUDGETS, OUT
from aimrl.paper.fetch import APP_FETCH, FETCH, app_fetch, fetch
from aimrl.paper.grids import (
    CALM_AIM,
    EARLY_RND,
    OTHERS,
    ROOM_AIM,
    ROOM_TASK,
    TORUS_AIM,
    TORUS_WGAN,
    WINDY_AIM,
    add_grid,
    example,
    gridworld,
    toroid,
    windy_gridworld,
)
from aimrl.paper.material import GridCell, Item, fetch_spec
from aimrl.paper.tables import ANOVA, anova, hyper
from aimrl.types import UserError, nearest

GRID_S, GRID_BEGIN_S = 0.003, 25.0  # core-seconds of a seed's iteration, and to compile and draw a grid run: for estimates
ITEMS = {
    item.name: item
    for item in (
        Item("example", "fig:example", "Grid world example: distances and walls", example),
        Item("gridworld", "fig:gridworld", "The room: visits and reward with AIM, visits with the task reward", gridworld,
             ("fig:grid_policy", "fig:reward", "fig:task_policy"), (ROOM_AIM, ROOM_TASK)),
        Item("fetch", "fig:fetch", "AIM with HER on the Fetch tasks against the other rewards", fetch,
             ("fig:reach", "fig:pick", "fig:push", "fig:slide"), fetch=FETCH),
        Item("windy_gridworld", "fig:windy_gridworld", "The windy room: reward and visits", windy_gridworld,
             ("fig:windy_grid", "fig:windy_reward", "fig:windy_policy"), (WINDY_AIM, CALM_AIM)),
        Item("toroid", "fig:toroid", "The torus: AIM's reward and visits, the WGAN reward", toroid,
             ("fig:r_toroid", "fig:p_toroid", "fig:r_gnorm"), (TORUS_AIM, TORUS_WGAN)),
        Item("add_grid", "fig:add_grid", "The room with the other rewards", add_grid,
             ("fig:grid_disco", "fig:grid_ddl", "fig:grid_rnd", "fig:grid_smirl", "fig:grid_rew_ddl", "fig:grid_rew_rnd"),
             (*(GridCell("room", r, n) for r in OTHERS for n in (100, 500)), EARLY_RND)),
        Item("app_fetch", "fig:app_fetch", "AIM with and without the task reward on the Fetch tasks", app_fetch,
             ("fig:app_reach", "fig:app_pick", "fig:app_push", "fig:app_slide"), fetch=APP_FETCH),
        Item("anova", "tab:anova", "Tukey's test on the Fetch tasks", anova, fetch=ANOVA),
        Item("hyper_r", "tab:hyper_r", "Hyperparameters of TD3 and HER (R + HER)", hyper("sparse", ["sparse"])),
        Item("hyper_dense", "tab:hyper_dense", "Hyperparameters of dense + HER", hyper("dense", ["dense"])),
        Item("hyper_aim", "tab:hyper_aim", "Hyperparameters of AIM + HER and AIM + R + HER", hyper("aim", ["aim", "aim+r"])),
    )
}  # fmt: skip


def find(name: str) -> Item:
    """An item by its name or label; a panel's label leads to its figure."""
    known = {
        key: item for item in ITEMS.values() for key in (item.name, item.label, *item.panels, *(p.partition(":")[2] for p in item.panels))
    }
    known |= ITEMS  # where a panel and a figure share a name, the figure
    if name not in known:
        raise UserError(nearest(name, ITEMS, "figure or table") + " (aimrl paper lists all)")
    return known[name]


def cost(item: Item, budget_name: str) -> dict[str, Any]:
    """How many runs an item takes at a budget, and an estimate of the core-hours, nothing being there yet."""
    budget, spec = BUDGETS[budget_name], fetch_spec(item, budget_name, OUT)
    cells = spec.cells if spec else ()
    seconds = sum(GRID_BEGIN_S + GRID_S * (s := c.settings(budget))["seeds"] * s["iterations"] for c in item.grids)
    seconds += sum(sweep.assumed_seconds(c.config, c.config.steps) for c in cells)
    return {"runs": len(cells) + len(item.grids), "core_hours": round(seconds / 3600, 2)}


def state(item: Item, out: Path = OUT) -> dict[str, Any]:
    """Whether the item has been made: at which budget, when, from what, and how its statements came out."""
    path = out / item.name / "data.json"
    if not path.is_file():
        return {"made": False}
    try:
        data = runs.read_json(path)
        found = {key: data[key] for key in ("budget", "when", "from")}
        return {"made": True, **found, "verdicts": [v["verdict"] for v in data["verdicts"]]}
    except (UserError, KeyError, TypeError) as e:
        return {"made": False, "problem": f"{path} can't be read: {e}"}


def listing(out: Path = OUT) -> list[dict[str, Any]]:
    """Every figure and table with its command, budgets and state."""
    where = "" if out == OUT else f" --out {out}"
    return [
        {
            "name": item.name, "label": item.label, "kind": item.kind, "title": item.title, "panels": item.panels,
            "command": f"aimrl paper {item.name} --budget desk{where}",
            "budgets": {b: cost(item, b) for b in BUDGETS}, "state": state(item, out),
        }
        for item in ITEMS.values()
    ]  # fmt: skip


def listing_text(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        s = row["state"]
        made = f"made at budget {s['budget']} on {s['when']} from {s['from']}" if s["made"] else s.get("problem", "not made")
        needs = ", ".join(f"{b} {c['runs']} runs, {c['core_hours']:,.2f} core-hours" for b, c in row["budgets"].items() if c["runs"])
        lines += [f"{row['label']}: {row['title']}", f"    {row['command']}", f"    {needs or 'no training'}", f"    {made}"]
        if s["made"]:
            lines.append("    statements: " + ", ".join(f"{s['verdicts'].count(v)} {v}" for v in dict.fromkeys(s["verdicts"])))
    lines += ["", "Budgets:", *(f"    {name:<6} {b.all_words}" for name, b in BUDGETS.items())]
    return "\n".join([*lines, "Core-hours are estimates; figures and tables of one budget share their runs."])
