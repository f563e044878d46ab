"""Tests run with warnings as errors (pyproject.toml). Strict dtype promotion is off: Optax's own code doesn't pass it."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # two test workers share two cores
os.environ.setdefault("MUJOCO_GL", "egl")
