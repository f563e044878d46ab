"""Sweeps: environments × rewards × agents × presets × seeds from one TOML file, on this machine's cores or on Ray.

A cell is a run folder, and what has been done is read from the folders alone: a sweep can be killed anywhere and started again.
"""

from aimrl.sweep.cell import LOCK_WAIT, config_from, finished, position, run_cell
from aimrl.sweep.cluster import LOCAL_TRIES
from aimrl.sweep.estimate import BEGIN_S, PROCESS_BYTES, STEP_S, UPDATE_S, assumed_seconds, basis, dry_run, dry_run_text, measured_speeds
from aimrl.sweep.local import ONE_THREAD, RETRIES, XLA_ONE_THREAD, Interrupts, one_thread
from aimrl.sweep.running import Summary, run
from aimrl.sweep.spec import (
    AXES,
    MAX_CELLS,
    MAX_SPEC,
    Cell,
    Outcomes,
    Spec,
    check,
    check_options,
    load_spec,
    one_line,
    parse_spec,
    safe_name,
)

__all__ = [
    "AXES",
    "BEGIN_S",
    "LOCAL_TRIES",
    "LOCK_WAIT",
    "MAX_CELLS",
    "MAX_SPEC",
    "ONE_THREAD",
    "PROCESS_BYTES",
    "RETRIES",
    "STEP_S",
    "UPDATE_S",
    "XLA_ONE_THREAD",
    "Cell",
    "Interrupts",
    "Outcomes",
    "Spec",
    "Summary",
    "assumed_seconds",
    "basis",
    "check",
    "check_options",
    "config_from",
    "dry_run",
    "dry_run_text",
    "finished",
    "load_spec",
    "measured_speeds",
    "one_line",
    "one_thread",
    "parse_spec",
    "position",
    "run",
    "run_cell",
    "safe_name",
]
