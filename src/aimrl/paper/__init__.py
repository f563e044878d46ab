"""Every figure and table of the paper by its label: what it takes, whether it has been made, and making it again with our numbers.

An item names the runs it needs; grid worlds run here, Fetch tasks as a sweep. Items share runs, and a finished run is never made again.
"""

from aimrl.paper.budgets import BUDGETS, LABELS, OUT, TASKS, Budget, check_budget
from aimrl.paper.fetch import APP_FETCH, FETCH
from aimrl.paper.grids import CALM_AIM, EARLY_RND, OTHERS, ROOM_AIM, ROOM_TASK, TORUS_AIM, TORUS_WGAN, WINDY_AIM, Panel, edge_ratio, ways
from aimrl.paper.items import GRID_BEGIN_S, GRID_S, ITEMS, cost, find, listing, listing_text, state
from aimrl.paper.making import Outcome, reproduce
from aimrl.paper.material import Curves, GridCell, GridRun, Item, Material, Shown, fetch_spec, read_curves, run_grid
from aimrl.paper.tables import ANOVA, COLUMNS, HYPER, REACH_STEP, higher, preset_table, published, similar
from aimrl.paper.verdicts import CLOSE, CONFIDENT, LEARNED, MIN_SEEDS, REACHES, UNABLE, Interval, Verdict, at_least, every, interval, negate

__all__ = [
    "ANOVA",
    "APP_FETCH",
    "BUDGETS",
    "CALM_AIM",
    "CLOSE",
    "COLUMNS",
    "CONFIDENT",
    "EARLY_RND",
    "FETCH",
    "GRID_BEGIN_S",
    "GRID_S",
    "HYPER",
    "ITEMS",
    "LABELS",
    "LEARNED",
    "MIN_SEEDS",
    "OTHERS",
    "OUT",
    "REACHES",
    "REACH_STEP",
    "ROOM_AIM",
    "ROOM_TASK",
    "TASKS",
    "TORUS_AIM",
    "TORUS_WGAN",
    "UNABLE",
    "WINDY_AIM",
    "Budget",
    "Curves",
    "GridCell",
    "GridRun",
    "Interval",
    "Item",
    "Material",
    "Outcome",
    "Panel",
    "Shown",
    "Verdict",
    "at_least",
    "check_budget",
    "cost",
    "edge_ratio",
    "every",
    "fetch_spec",
    "find",
    "higher",
    "interval",
    "listing",
    "listing_text",
    "negate",
    "preset_table",
    "published",
    "read_curves",
    "reproduce",
    "run_grid",
    "similar",
    "state",
    "ways",
]
