"""A small training run, and how two of them are compared."""

import numpy as np
from problems import TINY

from aimrl import runs
from aimrl.config import make_config


def config(**overrides):
    options = {"hidden": (32, 32), "gamma": 0.9}
    return make_config("point", preset="paper", **(TINY | {"steps": 1_200, "agent_options": options} | overrides))


def lines(folder, name):
    return [{k: v for k, v in row.items() if k != "wall_s"} for row in runs.read_lines(folder / name)]


def arrays(folder, step):
    from safetensors.numpy import load_file

    return {p.name: load_file(p) for p in sorted((folder / "checkpoints" / str(step)).glob("*.safetensors"))}


def assert_same_run(a, b, step):
    for name in ("evals.jsonl", "metrics.jsonl"):
        assert lines(a, name) == lines(b, name)
    left, right = arrays(a, step), arrays(b, step)
    assert left.keys() == right.keys() == {"actions.safetensors", "brain.safetensors", "ring.safetensors"}
    for file in left:
        assert left[file].keys() == right[file].keys()
        for key in left[file]:
            np.testing.assert_array_equal(left[file][key], right[file][key], err_msg=f"{file} {key}")
