"""Tests run with warnings as errors (pyproject.toml). Strict dtype promotion is off: Optax's own code doesn't pass it."""

import os
import signal
import threading

from hypothesis import settings

settings.register_profile("same", derandomize=True)  # the same examples each time; other ones: benchmarks/soak.py --inputs N --seed S
settings.load_profile("same")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # two test workers share two cores
os.environ.setdefault("MUJOCO_GL", "egl")
if threading.current_thread() is threading.main_thread():
    # A suite started in the background inherits an ignored Ctrl-C, and so would the commands whose Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)
