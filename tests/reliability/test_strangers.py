"""Run folders, checkpoints and other files from strangers: one clear line, bounded memory, no code, nothing outside the folder."""

import ast
import dataclasses
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import fuzzing
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aimrl import agents, runs, stats, theory
from aimrl.config import Config, check, make_config
from aimrl.envs import grid
from aimrl.types import UserError

SOURCE = Path(runs.__file__).parent


@pytest.fixture
def folder(tmp_path):
    fuzzing.make_folder(tmp_path / "run")
    return tmp_path / "run"


def one_line(error):
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1_000


# --- no code from data ------------------------------------------------------------------------------------------------------------------


def _imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_source_file_unpickles_or_evaluates_text(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
    assert not {name.split(".")[0] for name in _imported(tree)} & forbidden
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not {f.id for f in calls if isinstance(f, ast.Name)} & {"eval", "exec", "compile", "__import__"}
    loads = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "allow_pickle"]
    assert all(isinstance(node.value, ast.Constant) and node.value.value is False for node in loads)
    unsafe = {"torch.load", "joblib.load"}  # np.load refuses pickles by itself
    assert not {ast.unparse(f) for f in calls} & unsafe


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_modules_are_imported_by_names_that_stand_in_the_source(path):
    """`import_module` takes a literal, or a name out of a table in the same file; never text from a file or the command line."""
    tables = {
        "agents/__init__.py": {"module"},
        "rewards/__init__.py": {"f'aimrl.rewards.{module}'"},
        "__init__.py": {"_HOMES[name]", "_ROOMS[name]"},
    }
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            literal = isinstance(node.args[0], ast.Constant)
            assert literal or ast.unparse(node.args[0]) in tables.get(str(path.relative_to(SOURCE)), set()), ast.unparse(node)


def test_an_environment_whose_code_lies_in_the_run_folder_is_not_run(folder, monkeypatch):
    """`python -m` looks for modules where one stands; standing in a stranger's folder must not be enough to run its code."""
    (folder / "evil.py").write_text("raise SystemExit('owned')")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")
    (folder / "config.json").write_text(json.dumps(json.loads(fuzzing._config()) | {"env": "evil:Env-v0"}))
    with pytest.raises(UserError, match="whose code lies in the run folder"):
        runs.load_config(folder)
    (folder / "evil").mkdir()
    (folder / "evil" / "__init__.py").write_text("raise SystemExit('owned')")
    with pytest.raises(UserError, match="whose code lies in the run folder"):
        runs.load_config(Path("."))
    assert "evil" not in sys.modules


# --- configurations ---------------------------------------------------------------------------------------------------------------------

HOSTILE = {
    "steps": [10**12, 1e300, float("inf"), float("nan"), "many", None, [1], True],
    "num_envs": [10**6, 2**63, -1, 0, 1.5],
    "batch_size": [2**40, float("inf")],
    "seed": [2**70, -1],
    "env": [5, None, ["a"], {"a": 1}],
    "her": ["../x", 3],
    "backend": [[], "x"],
    "agent_options": [[], "x", {"hidden": [1] * 100_000}, {"hidden": 2**80}, None],
    "reward_options": [3, {"step_bound": 10**400}],
    "env_timeout": [float("inf"), 1e30],
    "tensorboard": ["yes", 1],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in HOSTILE.items() for v in values], ids=lambda v: f"{v!r:.20}")
def test_impossible_configurations_are_refused_in_one_line(key, value, folder):
    (folder / "config.json").write_text(json.dumps(json.loads(fuzzing._config()) | {key: value}))
    with pytest.raises(UserError) as error:
        runs.load_config(folder)
    one_line(error)


def test_a_whole_number_written_as_a_float_becomes_one():
    assert type(make_config("FetchReach-v4", steps=1e4).steps) is int


@pytest.mark.parametrize(
    "options", [{"hidden": "wide"}, {"hidden": [0]}, {"hidden": []}, {"tau": "x"}, {"tau": [1]}, {"policy_delay": 1.5}]
)
def test_agent_options_of_the_wrong_kind_are_refused(options):
    with pytest.raises(UserError, match=f"option '{next(iter(options))}' of td3 takes a"):
        agents.make("td3", **options)


def test_infinite_agent_options_survive_a_config_json():
    kept = json.loads(json.dumps(runs.plain({"q_low": -float("inf"), "tau": 1})))
    assert agents.make("td3", **kept).q_low == -float("inf")


@pytest.mark.parametrize("change", [{"agent_options": {"hidden": [10**9, 10**9]}}, {"batch_size": 2**30}, {"buffer_size": 2**30}])
def test_networks_and_batches_that_cannot_fit_are_refused_before_they_are_allocated(change):
    from aimrl.envs.goals import GoalTask, Near, Never, Sparse
    from aimrl.train import check_memory, make_round
    from aimrl.types import GoalSpec

    near = Near(0.05)
    spec, task = GoalSpec(10, 3, 4, 50), GoalTask(Sparse(near), near, Never(), False, True, True)
    c = make_config("FetchReach-v4", **({"steps": 2**30, "eval_every": 2**24} | change))
    with pytest.raises(UserError, match=r"GiB are free: lower --"):
        check_memory(c, spec, make_round(c, spec, task))


# --- checkpoints ------------------------------------------------------------------------------------------------------------------------


def tensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


F = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
N = {"dtype": "I32", "shape": [], "data_offsets": [24, 28]}
BAD_TENSORS = {
    "empty": b"",
    "header longer than the file": tensors({}, length=2**63),
    "header of 4 GiB": tensors({}, b"x" * 100, length=2**32),
    "a giant shape": tensors({"['w']": F | {"shape": [2**40, 2**40]}, "['n']": N}, bytes(28)),
    "a shape of thousands of digits": tensors({"w": {"dtype": "F32", "shape": [10**3999] * 900, "data_offsets": [0, 4]}}),
    "a negative shape": tensors({"['w']": F | {"shape": [-2, -3]}, "['n']": N}, bytes(28)),
    "overlapping": tensors({"['w']": F, "['n']": N | {"data_offsets": [0, 4]}}, bytes(28)),
    "beyond the end": tensors({"['w']": F | {"data_offsets": [2**40, 2**40 + 24]}, "['n']": N}, bytes(28)),
    "another dtype": tensors({"['w']": F | {"dtype": "I32"}, "['n']": N}, bytes(28)),
    "an unknown dtype": tensors({"['w']": F | {"dtype": "OBJECT"}, "['n']": N}, bytes(28)),
    "a name twice": tensors(b"{\"['w']\": %s, \"['w']\": %s}" % (json.dumps(F).encode(), json.dumps(N).encode()), bytes(28)),
    "a name like a path": tensors({"../../w": F, "['n']": N}, bytes(28)),
    "floats for offsets": tensors({"['w']": F | {"data_offsets": [0.0, 24.0]}, "['n']": N}, bytes(28)),
    "a hole": tensors({"['w']": F | {"data_offsets": [4, 28]}, "['n']": N | {"data_offsets": [28, 32]}}, bytes(32)),
    "deep nesting": tensors(b"[" * 100_000),
    "pickled": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
}


@pytest.mark.parametrize("what", BAD_TENSORS)
def test_a_hostile_checkpoint_is_refused_in_one_line(what, folder):
    (folder / "checkpoints/400/brain.safetensors").write_bytes(BAD_TENSORS[what])
    with pytest.raises(UserError) as error:
        runs.load_tree(folder, 400, "brain", fuzzing.TREE)
    one_line(error)


def test_a_sound_checkpoint_is_read_and_has_the_bits_that_were_saved(folder):
    out = runs.load_tree(folder, 400, "brain", fuzzing.TREE)
    np.testing.assert_array_equal(out["w"], fuzzing.TREE["w"])


def put_elsewhere(path, tmp_path):
    """Leaves a link in its place."""
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "evals.jsonl", "checkpoints"])
def test_links_in_a_run_folder_are_not_followed(name, folder, tmp_path):
    put_elsewhere(folder / name, tmp_path)
    with pytest.raises(UserError, match="symbolic link"):
        runs.load_config(folder)
    with pytest.raises(UserError, match="symbolic link"):
        runs.prepare(folder, make_config("FetchReach-v4"), {}, resume=True)


@pytest.mark.parametrize("name", ["config.json", "evals.jsonl"])
def test_nor_are_they_by_whoever_only_reads(name, folder, tmp_path):
    from aimrl import plots, stats

    put_elsewhere(folder / name, tmp_path)
    with pytest.raises(UserError, match="symbolic link"):
        plots.read_run(folder)
    with pytest.raises(UserError, match="symbolic link"):
        stats.from_runs([folder])


def test_a_checkpoint_of_which_a_part_is_missing_is_not_passed_over_for_an_older_one(folder):
    (folder / "checkpoints" / "800").mkdir()
    assert runs.load_meta(folder)["step"] == 400  # nothing is in it
    (folder / "checkpoints" / "800" / "brain.safetensors").write_bytes(b"half a copy")
    with pytest.raises(UserError, match=r"checkpoint 800 of .* is incomplete: fetch it again, or remove it to use that of step 400"):
        runs.load_meta(folder)
    assert runs.load_meta(folder, 400)["step"] == 400


@pytest.mark.parametrize("name", ["400", "400/brain.safetensors"])
def test_links_in_checkpoints_are_not_followed(name, folder, tmp_path):
    path = folder / "checkpoints" / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="link"):
        runs.load_tree(folder, 400, "brain", fuzzing.TREE)


@pytest.mark.parametrize("name", ["config.json", "evals.jsonl", "checkpoints/400/brain.safetensors", "checkpoints/400/meta.json"])
def test_a_pipe_or_a_device_in_the_place_of_a_file_hangs_nothing(name, folder):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    for read in (
        lambda: runs.read_json(folder / "config.json"),
        lambda: stats.from_runs([folder]),
        lambda: runs.load_meta(folder),
        lambda: runs.load_tree(folder, 400, "brain", fuzzing.TREE),
    ):
        try:
            read()
        except UserError as e:
            assert "\n" not in str(e)  # noqa: PT017 (some of them don't read this file)
    assert runs.read_lines(folder / "evals.jsonl") == [] or name != "evals.jsonl"


def test_logs_and_tables_too_large_to_be_ours_are_refused_unread(folder):
    for name, limit, read in (
        ("evals.jsonl", runs.MAX_LOG, lambda: runs.read_lines(folder / "evals.jsonl")),
        ("config.json", runs.MAX_JSON, lambda: runs.read_json(folder / "config.json")),
        ("episodes.csv", stats.data.MAX_CSV, lambda: stats.from_csv(folder / "episodes.csv")),
        ("world.txt", grid.MAX_FILE, lambda: grid.load(folder / "world.txt")),
    ):
        os.truncate(folder / name, limit + 1)
        with pytest.raises(UserError, match="larg"):
            read()


def test_a_table_of_a_million_cells_is_refused_before_it_is_allocated(folder):
    rows = "".join(f"e,a{i},{i},0,1\n" for i in range(3_000))
    (folder / "episodes.csv").write_text("env,algorithm,seed,episode,success\n" + rows)
    with pytest.raises(UserError, match="too many"):
        stats.from_csv(folder / "episodes.csv")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run of 120 steps that learned nothing yet."""
    from problems import TINY, point_goal

    from aimrl.train import train

    fields = TINY | {"steps": 120, "learning_starts": 900, "eval_episodes": 1, "agent_options": {"hidden": [8]}}
    config = make_config("point", preset="paper", **fields)
    folder = tmp_path_factory.mktemp("saved") / "run"
    train(config, folder, env=point_goal)
    return folder, config


@pytest.mark.parametrize(
    "meta", [{"replayed": 2**39}, {"segment": 7}, {"wall_s": "long"}, {"rows": -1}, {"rows": True}, {"step": 400.0}, {"format": 2}]
)
def test_a_checkpoint_that_contradicts_itself_is_refused_before_anything_is_allocated(meta, saved, tmp_path):
    from problems import point_goal

    from aimrl.train import train

    folder, config = saved
    shutil.copytree(folder, tmp_path / "r")
    path = tmp_path / "r" / "checkpoints" / "120" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | meta))
    with pytest.raises(UserError) as error:
        train(dataclasses.replace(config, steps=240), tmp_path / "r", env=point_goal, resume=True)
    one_line(error)


# --- fuzzing ----------------------------------------------------------------------------------------------------------------------------


def test_every_parser_answers_mutated_files_with_a_value_or_one_line_in_bounded_memory_and_time():
    """A few thousand files; `make soak` feeds a hundred thousand. A process of its own, so that its memory can be limited."""
    command = [sys.executable, fuzzing.__file__, "--inputs", "3000", "--seed", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_the_fuzzer_finds_a_parser_that_lets_other_errors_through(tmp_path):
    naive = fuzzing.Target("config.json", (fuzzing._config(),), lambda d: Config(**json.loads((d / "config.json").read_text())))
    fuzzing.make_folder(tmp_path / "run")
    rng = random.Random(0)
    assert any(fuzzing.attempt(naive, tmp_path / "run", fuzzing.mutate(naive.seeds[0], rng)) for _ in range(50))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3),
)
fields = st.sampled_from(sorted(Config.__dataclass_fields__))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(fields, json_values, max_size=3))
def test_any_json_as_configuration_is_taken_or_refused(changes):
    try:
        c = check(Config(**({"env": "FetchReach-v4"} | changes)))
    except UserError as e:
        assert "\n" not in str(e) or any("\n" in str(v) for v in changes.values())  # noqa: PT017
    else:
        assert c.round_steps % c.num_envs == 0
        json.dumps(runs.plain(c.__dict__), allow_nan=False)


def test_an_archive_with_an_array_twice_is_refused(tmp_path):
    import warnings
    import zipfile

    path = tmp_path / "twice.npz"
    path.write_bytes(fuzzing._npz(False))
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("P.npy", fuzzing._npy())
    with pytest.raises(UserError, match="P is there twice"):
        theory.load_npz(path)
