"""Tests run with warnings as errors (pyproject.toml). Strict dtype promotion is off: Optax's own code doesn't pass it."""

import os
import signal
import threading

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True)  # the same examples each time; other ones: benchmarks/soak.py --inputs N --seed S
settings.load_profile("same")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # two test workers share two cores
os.environ.setdefault("MUJOCO_GL", "egl")
if threading.current_thread() is threading.main_thread():
    # A suite started in the background inherits an ignored Ctrl-C, and so would the commands whose Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A worker takes whole files: the long ones go first, or the last of them is waited for by everybody else.
_LONG = ("test_resume", "test_train", "test_cli", "test_docs", "test_sweep", "test_sb3", "test_grid", "test_paper", "test_report")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: i for i, name in enumerate(_LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))
