"""The paper's statistics (appendix "Statistical Analysis") and the aggregates that reports use.

`data` reads counts, `glmm` fits, `analysis` tests, `text` prints, `summaries` aggregates learning curves; nothing here needs JAX.
"""

from aimrl.stats.analysis import analyse, holm
from aimrl.stats.data import Counts, Table, counts, from_csv, from_runs, load
from aimrl.stats.glmm import Fit, fit
from aimrl.stats.summaries import (
    area_under_curve,
    bootstrap_interval,
    improvement_interval,
    iqm,
    pooled_iqm,
    probability_of_improvement,
    steps_to,
    steps_to_summary,
)
from aimrl.stats.text import PAPER_TABLE, format_table, sentence

__all__ = [
    "PAPER_TABLE",
    "Counts",
    "Fit",
    "Table",
    "analyse",
    "area_under_curve",
    "bootstrap_interval",
    "counts",
    "fit",
    "format_table",
    "from_csv",
    "from_runs",
    "holm",
    "improvement_interval",
    "iqm",
    "load",
    "pooled_iqm",
    "probability_of_improvement",
    "sentence",
    "steps_to",
    "steps_to_summary",
]
