"""Sweeps: what is read from SPEC.toml, and that every cell ends once whatever is killed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aimrl import runs, sweep
from aimrl.config import make_config
from aimrl.sweep import local
from aimrl.sweep.board import Board
from aimrl.sweep.cluster import _ray_cell, connect
from aimrl.types import UserError

STANDIN = Path(__file__).parent / "standin"
STEPS, ROUND = 1000, 100
SUM = STEPS * (STEPS // ROUND + 1) // 2  # of 100, 200, … 1000: what the stand-in's only weight holds after an unbroken run of seed 0


def spec_text(out: Path, env: str = '["A-v0", "B-v0"]', seeds: str = "[0, 1]", more: str = "", every: int = 200) -> str:
    return f"""
out = "{out}"
env = {env}
reward = ["sparse"]
seeds = {seeds}
steps = {STEPS}
{more}
[overrides]
num_envs = 2
round_steps = {ROUND}
checkpoint_every = {every}
tensorboard = false
"""


def load(tmp_path: Path, **options: Any) -> sweep.Spec:
    path = tmp_path / "spec.toml"
    path.write_text(spec_text(tmp_path / "out", **options))
    return sweep.load_spec(path)


@pytest.fixture(autouse=True)
def standin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes started by these tests train with the stand-in, unless a test wants the real thing."""
    monkeypatch.setenv("PYTHONPATH", str(STANDIN))


def events(folder: Path) -> list[str]:
    return [row["event"] for row in runs.read_lines(folder / "attempts.jsonl")]


def assert_whole(spec: sweep.Spec) -> None:
    """Every cell ended exactly once, with each evaluation once and the weight of an uninterrupted run."""
    for cell in spec.cells:
        folder = spec.out / cell.name
        rows = runs.read_lines(folder / "evals.jsonl")
        assert [r["step"] for r in rows] == list(range(ROUND, STEPS + 1, ROUND))
        assert rows[-1]["sum"] == SUM * (cell.config.seed + 1)
        assert Counter(events(folder))["finished"] == 1
        assert runs.read_json(folder / "done.json")["step"] == STEPS


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} didn't happen in {seconds} s"
        time.sleep(0.02)


def driver(spec_path: Path, *arguments: str, **environment: str) -> subprocess.Popen:
    """A sweep in a process of its own, which prints its summary as JSON."""
    code = (
        "import sys, json, dataclasses; from aimrl import sweep\n"
        "if __name__ == '__main__':\n"
        "    spec = sweep.load_spec(sys.argv[1]); options = json.loads(sys.argv[2])\n"
        "    print(json.dumps(dataclasses.asdict(sweep.run(spec, **options))))"
    )
    options = arguments[0] if arguments else "{}"
    command = [sys.executable, "-c", code, str(spec_path), options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment)


# --- SPEC.toml --------------------------------------------------------------------------------------------------------------------------


def test_cells_are_the_product_of_the_lists_and_have_folders_of_their_own(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(
        'env = ["FetchReach-v4", "aimrl/Room-v0"]\nrewards = ["aim", "sparse"]\npresets = ["fast", "paper"]\nseeds = 3\nout = "o"'
    )
    found = sweep.load_spec(path).cells
    assert len(found) == 2 * 2 * 2 * 3
    assert len({c.name for c in found}) == len(found)
    assert "FetchReach-v4/aim-td3-fast/seed-2" in {c.name for c in found}
    assert "aimrl_Room-v0/sparse-td3-paper/seed-0" in {c.name for c in found}
    paper = next(c.config for c in found if c.config.preset == "paper" and c.config.reward == "aim")
    assert (paper.agent_options["gamma"], paper.round_updates) == (0.9, 200)


def test_a_preset_s_agent_counts_where_none_is_listed(tmp_path):
    (tmp_path / "best.json").write_text(json.dumps({"agent": "sac"}), encoding="utf-8")
    asked = {"env": "A-v0", "preset": str(tmp_path / "best.json"), "out": "o"}
    (cell,) = sweep.parse_spec(asked).cells
    assert (cell.config.agent, cell.name) == ("sac", "A-v0/aim-sac-best/seed-0")
    (cell,) = sweep.parse_spec(asked | {"agent": "td3"}).cells
    assert cell.config.agent == "td3"


def test_a_cell_that_waited_for_a_core_when_the_cluster_was_stopped_does_not_begin(tmp_path):
    (tmp_path / ".stop").touch()
    config = dataclasses.asdict(make_config("FetchReach-v4"))
    assert _ray_cell(config, str(tmp_path / "c"), str(tmp_path / ".stop")) == {"state": "stopped"}
    assert not (tmp_path / "c").exists()


def test_listed_cells_take_over_what_they_do_not_set_and_merge_options(tmp_path):
    more = '[[cells]]\nenv = "C-v0"\nlabel = "slow rate"\noverrides.agent_options.critic_rate = 1e-4\noverrides.batch_size = 64'
    path = tmp_path / "s.toml"
    path.write_text(f'out = "o"\nreward = "sparse"\nsteps = 500\nseeds = [4]\noverrides.agent_options.gamma = 0.9\n{more}')
    (cell,) = sweep.load_spec(path).cells
    assert cell.name == "C-v0/sparse-td3-fast-slow_rate/seed-4"
    assert (cell.config.batch_size, cell.config.steps, cell.config.seed) == (64, 500, 4)
    assert (cell.config.agent_options["gamma"], cell.config.agent_options["critic_rate"]) == (0.9, 1e-4)
    assert cell.config.agent_options["tau"] == 0.05  # the preset's


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('enw = ["A-v0"]', "did you mean env"),
        ('env = "A-v0"\nreward = "aim+s"', "did you mean aim\\+r"),
        ('env = "A-v0"\nagent = "td4"', "did you mean td3"),
        ('env = "A-v0"\npreset = "fats"', "did you mean fast"),
        ('env = "A-v0"\noverrides.bach_size = 3', "did you mean batch_size"),
        ('env = "A-v0"\noverrides.batch_size = -3', "batch_size must be positive"),
        ('env = "A-v0"\noverrides.batch_size = inf', "batch_size"),
        ('env = "A-v0"\noverrides.agent_options = 3', "agent_options is a table"),
        ('env = "A-v0"\noverrides.agent_options.gamma = 1979-05-27', "impossible overrides"),
        ('env = "A-v0"\noverrides.seed = 3', "seed belongs to the lists"),
        ('env = "A-v0"\nseed = [1, 1]', "lists a value twice"),
        ('env = "A-v0"\nseed = [true]', "a seed is a whole number"),
        ('env = "A-v0"\nseeds = 0', "seeds is how many, at least 1"),
        ('env = "A-v0"\nseeds = -2', "seeds is how many, at least 1"),
        ('env = "A-v0"\nseeds = 2000000', "more than 100,000 cells"),
        ('env = "A-v0"\nenvs = ["B-v0"]', "both env and envs"),
        ('env = "A-v0"\n[[cells]]\nseed = 0', "names the cell .* twice"),
        ('env = "A-v0"\nsteps = "many"', "steps must be a whole number"),
        ('reward = "aim"', "names no environment"),
        ('[[cells]]\nreward = "aim"', "names no environment"),
        ("env = [", "not valid TOML"),
        ("a = " + "[" * 5000, "not valid TOML"),
        (f"env = {json.dumps([f'E{i}-v0' for i in range(1000)])}\nseeds = 1000", "more than 100,000 cells"),
    ],
)
def test_a_bad_specification_is_answered_in_one_line(tmp_path, text, line):
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=line) as e:
        print(len(sweep.load_spec(path).cells))
    assert "\n" not in str(e.value)


def test_a_pipe_as_specification_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(UserError, match="is not a plain file"):
        sweep.load_spec(tmp_path / "pipe.toml")


def test_a_missing_specification_is_answered_in_one_line(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        sweep.load_spec(tmp_path / "none.toml")


def test_no_name_leads_out_of_the_sweep_s_folder(tmp_path):
    for env in ("../../x", "..", "/etc/passwd", ".", "a/../../b"):
        spec = sweep.parse_spec({"out": str(tmp_path / "out"), "env": env, "cells": [{"label": "../../y"}]})
        for cell in spec.cells:
            assert (spec.out / cell.name).resolve().is_relative_to(tmp_path / "out")
            assert len(Path(cell.name).parts) == 3


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.sampled_from(["", "aim", "td3", "fast", "x\0", "A-v0", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["env", "batch_size", "gamma", "agent_options"]), inner),
    max_leaves=6,
)
KEY = st.sampled_from(
    ["name", "out", "env", "envs", "reward", "agent", "preset", "seed", "seeds", "steps", "overrides", "cells", "label", "x"]
)


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(KEY, VALUE))
def test_any_tables_make_cells_or_one_clear_line(data):
    line = ""
    try:
        assert sweep.parse_spec(data).cells
    except UserError as e:
        line = str(e)
    assert "\n" not in line


def test_infinite_options_survive_the_way_to_a_cell_s_process():
    spec = sweep.parse_spec({"env": "A-v0", "overrides": {"agent_options": {"q_low": -float("inf"), "hidden": [8]}}})
    config = sweep.config_from(json.loads(json.dumps(runs.plain(dataclasses.asdict(spec.cells[0].config)))))
    assert config.agent_options["q_low"] == -float("inf")
    assert config.agent_options["hidden"] == [8]


# --- this machine -----------------------------------------------------------------------------------------------------------------------


def test_every_cell_runs_once_and_failures_do_not_stop_the_others(tmp_path, capsys):
    spec = load(tmp_path, env='["A-v0", "Broken-v0", "B-v0"]', seeds="[3]")
    summary = sweep.run(spec, jobs=2)
    assert sorted(summary.finished) == ["A-v0/sparse-td3-fast/seed-3", "B-v0/sparse-td3-fast/seed-3"]
    assert summary.failed == {"Broken-v0/sparse-td3-fast/seed-3": "unknown environment 'Broken-v0'"}
    assert "failed: Broken-v0/sparse-td3-fast/seed-3: unknown environment" in summary.text()
    shown = capsys.readouterr().err
    assert "A-v0/sparse-td3-fast/seed-3 finished: step 1,000, success 100%" in shown
    good = sweep.Spec(spec.name, spec.out, tuple(c for c in spec.cells if "Broken" not in c.name))
    assert_whole(good)
    before = {p: p.read_bytes() for c in good.cells for p in (spec.out / c.name).glob("*.jsonl")}
    again = sweep.run(spec, jobs=2, progress=False)
    assert (again.finished, sorted(again.skipped)) == ([], sorted(summary.finished))
    assert list(again.failed) == ["Broken-v0/sparse-td3-fast/seed-3"]  # failures are tried again, finished cells never
    assert {p: p.read_bytes() for p in before} == before
    assert capsys.readouterr().err == ""


def test_a_cell_whose_process_is_killed_goes_on_from_its_checkpoint(tmp_path):
    spec = load(tmp_path, env='["Suicidal-v0"]', seeds="[0]")
    summary = sweep.run(spec, jobs=1, progress=False)
    assert summary.finished == [spec.cells[0].name]
    assert_whole(spec)
    rows = runs.read_lines(spec.out / spec.cells[0].name / "attempts.jsonl")
    assert [(r["event"], r["step"]) for r in rows] == [("began", 0), ("began", 200), ("finished", STEPS)]


def test_cells_run_in_processes_with_one_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    found = sweep.one_thread()
    assert found["XLA_FLAGS"] == "--xla_dump_to=x --xla_cpu_multi_thread_eigen=false"
    assert {found[f"{name}_NUM_THREADS"] for name in ("OMP", "OPENBLAS", "MKL")} == {"1"}


def test_ctrl_c_saves_the_running_cells_and_the_next_sweep_resumes_them(tmp_path):
    spec = load(tmp_path, seeds="[0]", every=10_000)  # the only checkpoint before the end is the one made on stopping
    folders = [spec.out / c.name for c in spec.cells]
    process = driver(tmp_path / "spec.toml", '{"jobs": 1}', STANDIN_ROUND_S="0.2")
    wait_for(lambda: (folders[0] / "evals.jsonl").is_file(), "the first evaluation")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert sorted(json.loads(out)["stopped"]) == sorted(c.name for c in spec.cells)
    assert "Traceback" not in err
    assert events(folders[0]) == ["began", "stopped"]
    (saved,) = runs.checkpoint_steps(folders[0])
    assert 0 < saved < STEPS
    assert not folders[1].exists()
    summary = sweep.run(spec, jobs=2, progress=False)
    assert len(summary.finished) == 2
    assert runs.read_lines(folders[0] / "attempts.jsonl")[2]["step"] == saved
    assert_whole(spec)


def test_cells_of_a_killed_sweep_save_and_end_and_the_next_sweep_waits_for_them(tmp_path):
    spec = load(tmp_path, env='["A-v0"]', seeds="[0]", every=10_000)
    folder = spec.out / spec.cells[0].name
    process = driver(tmp_path / "spec.toml", STANDIN_ROUND_S="0.5")
    wait_for(lambda: (folder / "evals.jsonl").is_file(), "the first evaluation")
    process.kill()
    process.communicate()
    summary = sweep.run(spec, progress=False)
    assert summary.finished == [spec.cells[0].name]
    assert events(folder) == ["began", "stopped", "began", "finished"]
    assert_whole(spec)


def test_two_sweeps_on_one_folder_refuse_in_one_line(tmp_path):
    spec = load(tmp_path, env='["A-v0"]', seeds="[0]")
    with (
        runs.locked(spec.out / ".sweep.lock", "unused"),
        pytest.raises(UserError, match=r"^another sweep is running in .*out$"),
    ):
        sweep.run(spec, progress=False)
    assert not (spec.out / spec.cells[0].name).exists()


def test_a_finished_cell_of_other_settings_is_refused_not_overwritten(tmp_path):
    spec = load(tmp_path, env='["A-v0"]', seeds="[0]")
    sweep.run(spec, progress=False)
    evals = (spec.out / spec.cells[0].name / "evals.jsonl").read_bytes()
    other = sweep.parse_spec({"out": str(spec.out), "env": "A-v0", "reward": "sparse", "seed": 0, "steps": STEPS})
    summary = sweep.run(other, progress=False)
    assert "is another run: its num_envs is 2, not 8" in summary.failed[spec.cells[0].name]
    assert (spec.out / spec.cells[0].name / "evals.jsonl").read_bytes() == evals


@pytest.mark.parametrize("year", [1971, 2100])
def test_a_clock_that_jumps_makes_no_cell_run_twice(tmp_path, monkeypatch, year):
    """The system's clock jumps by decades with every look at it, and the first sweep's files carry such times."""
    looks = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: 86400.0 * 365 * ((year - 1970) + 10 * (next(looks) % 2)))
    spec = load(tmp_path, env='["A-v0", "B-v0"]', seeds="[0]")
    assert len(sweep.run(spec, jobs=2, progress=False).finished) == 2
    for path in spec.out.rglob("*"):
        os.utime(path, (time.time(), time.time()))
    assert len(sweep.run(spec, jobs=2, progress=False).skipped) == 2
    assert_whole(spec)


def test_a_cell_is_finished_by_its_files_alone(tmp_path):
    spec = load(tmp_path, env='["A-v0"]', seeds="[0]")
    sweep.run(spec, progress=False)
    folder, config = spec.out / spec.cells[0].name, spec.cells[0].config
    (folder / "done.json").unlink()
    assert sweep.finished(folder, config)  # last evaluation and last checkpoint are of the last step
    assert sweep.run_cell(config, folder) == {"state": "finished"}
    assert events(folder) == ["began", "finished"]  # nothing was trained again
    for step in runs.checkpoint_steps(folder):
        (folder / "checkpoints" / str(step) / "meta.json").unlink()
    assert sweep.finished(folder, config)  # results outlive checkpoints that were removed
    longer = dataclasses.replace(config, steps=2 * STEPS)
    assert not sweep.finished(folder, longer)
    assert "its checkpoints are gone" in sweep.run_cell(longer, folder)["reason"]
    assert len(runs.read_lines(folder / "evals.jsonl")) == STEPS // ROUND
    runs.cut_log(folder / "evals.jsonl", STEPS - ROUND)
    assert not sweep.finished(folder, config)


def test_a_cell_that_went_further_than_now_asked_is_finished(tmp_path):
    """Evaluated half-way, stopped later: the newest checkpoint was not the one of the last evaluation, and the cell never ended."""
    spec = load(tmp_path, env='["A-v0"]', seeds="[0]")
    sweep.run(spec, progress=False)
    folder, config = spec.out / spec.cells[0].name, spec.cells[0].config
    (folder / "done.json").unlink()
    runs.cut_log(folder / "evals.jsonl", STEPS - ROUND)
    assert sweep.finished(folder, dataclasses.replace(config, steps=STEPS - ROUND))


def test_cells_killed_by_a_second_interrupt_are_to_resume_not_failed(tmp_path, monkeypatch):
    spec = load(tmp_path, env='["A-v0"]', seeds="[0]")
    sleep = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    monkeypatch.setattr(local, "_start", lambda folder, config: subprocess.Popen([sys.executable, "-c", sleep]))
    interrupts = types.SimpleNamespace(count=0)

    def refresh(cells):
        interrupts.count += bool(cells) and interrupts.count < 2

    board = types.SimpleNamespace(began=lambda cell: None, say=lambda text: None, refresh=refresh)
    (outcome,) = local.on_this_machine(spec, spec.cells, 1, interrupts, board)
    assert outcome[1]["state"] == "stopped"


def test_a_dry_run_lists_cells_whose_options_do_not_fit(tmp_path):
    table = {"out": str(tmp_path), "env": "aimrl/Room-v0", "reward": ["aim", "sparse"], "seeds": 1, "steps": 100}
    spec = sweep.parse_spec(table | {"agent": "soft_q", "overrides": {"reward_options": {"margin": 0.2}}})
    states = {r["cell"]: r["state"] for r in sweep.dry_run(spec)["cells"]}
    assert [s[:9] for s in states.values()] == ["new", "will fail"]
    (row,) = sweep.dry_run(sweep.parse_spec(table | {"reward": "sparse", "overrides": {"agent_options": {"bogus": 1}}}))["cells"]
    assert "will fail: unknown option" in row["state"]
    with pytest.raises(UserError, match="at least 1"):
        sweep.dry_run(spec, jobs=-1)


def test_a_dry_run_gives_environments_the_time_limit_they_will_have(tmp_path):
    table = {"out": str(tmp_path), "env": "dry_endless:Endless-v0", "reward": ["sparse"], "seeds": 1, "steps": 100}
    for overrides, state in (({}, "will fail: dry_endless:Endless-v0 has no time limit"), ({"horizon": 20}, "new")):
        (row,) = sweep.dry_run(sweep.parse_spec(table | {"overrides": overrides}))["cells"]
        assert row["state"].startswith(state)


def test_a_dry_run_counts_cells_hours_and_memory(tmp_path):
    spec = sweep.parse_spec(
        {"out": str(tmp_path), "env": ["aimrl/Room-v0", "aimrl/Rom-v0"], "reward": "sparse", "seeds": 2, "steps": 36_000}
    )
    report = sweep.dry_run(spec, jobs=2)
    good, bad = report["cells"][:2], report["cells"][2:]
    c = spec.cells[0].config
    evaluations = 100 * c.eval_episodes * math.ceil(36_000 / c.eval_every)  # 100 steps an episode in the room
    seconds = sweep.BEGIN_S + (36_000 + evaluations) * sweep.STEP_S + 36_000 * sweep.UPDATE_S * c.round_updates / c.round_steps
    assert [r["core_hours"] for r in good] == pytest.approx([seconds / 3600] * 2)
    assert (report["core_hours"], report["hours"]) == pytest.approx((2 * seconds / 3600, seconds / 3600))
    assert all("did you mean aimrl/Room-v0" in r["state"] for r in bad)
    assert report["memory_bytes"] > 2 * sweep.PROCESS_BYTES
    assert not list(tmp_path.iterdir())  # nothing was run or written
    text = sweep.dry_run_text(report)
    assert "4 cells" in text
    assert "assumed" in text


def test_a_dry_run_uses_the_speed_of_finished_cells(tmp_path):
    spec = load(tmp_path, env='["aimrl/Room-v0"]', seeds="[0, 1]")
    sweep.run(sweep.Spec(spec.name, spec.out, spec.cells[:1]), progress=False)
    done, new = sweep.dry_run(spec, jobs=1)["cells"]
    assert (done["state"], done["core_hours"]) == ("finished", 0.0)
    assert new["measured"]
    assert new["core_hours"] == pytest.approx(STEPS / 100 / 3600)  # the stand-in says 100 steps a second


def test_the_live_table_shows_names_as_they_are(tmp_path):
    from rich.console import Console

    spec = sweep.Spec("[red]x", tmp_path, sweep.parse_spec({"env": "A-v0"}).cells)
    board = Board(spec, 1, True, sys.stderr)
    console = Console(record=True, width=120, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(board._table(list(spec.cells)))
    console.file.close()
    text = console.export_text()
    assert "[red]x: 1 cells to run" in text
    assert spec.cells[0].name in text


@pytest.mark.slow
def test_cells_trained_side_by_side_have_the_same_bits_as_one_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH")  # the real training
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))  # three processes compile the same programs
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    tiny = {"num_envs": 2, "round_steps": 100, "round_updates": 4, "batch_size": 16, "learning_starts": 100, "eval_every": 200}
    tiny |= {"eval_episodes": 2, "checkpoint_every": 200, "potential_updates": 2, "tensorboard": False, "agent_options": {"hidden": [8]}}
    table = {"env": "FetchReach-v4", "reward": "aim", "steps": 300, "overrides": tiny}
    both = sweep.parse_spec(table | {"out": str(tmp_path / "both"), "seeds": [0, 1]})
    alone = sweep.parse_spec(table | {"out": str(tmp_path / "alone"), "seeds": [1]})
    assert (sweep.run(both, jobs=2, progress=False).failed, sweep.run(alone, jobs=1, progress=False).failed) == ({}, {})
    folders = [both.out / both.cells[1].name, alone.out / alone.cells[0].name, both.out / both.cells[0].name]
    weights = [(f / "checkpoints" / "300" / "brain.safetensors").read_bytes() for f in folders]
    records = [[r | {"wall_s": 0} for r in runs.read_lines(f / "evals.jsonl")] for f in folders[:2]]
    assert weights[0] == weights[1] != weights[2]
    assert records[0] == records[1]
    assert [r["step"] for r in records[0]] == [200, 300]


# --- Ray ----------------------------------------------------------------------------------------------------------------------------------

CLUSTER = """
import os, signal, subprocess, sys
from ray.cluster_utils import Cluster
if __name__ == "__main__":
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 10}
    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 << 20, "_system_config": quick}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            # A machine that loses power takes the workers with it; Ray's own way to remove a node would leave them running for a while.
            raylet = second.all_processes["raylet"][0].process.pid
            os.kill(raylet, signal.SIGSTOP)  # it starts no more of them
            workers = subprocess.run(["ps", "-o", "pid=", "--ppid", str(raylet)], capture_output=True, text=True).stdout.split()
            for pid in [*map(int, workers), raylet]:
                os.kill(pid, signal.SIGKILL)
            cluster.remove_node(second, allow_graceful=False)
            print("killed", flush=True)
        else:
            break
    cluster.shutdown()
"""


def start_cluster() -> tuple[subprocess.Popen, str]:
    """Two nodes. A node gives up when its agents need more than 15 s to start (Ray's issue 65983), as they may on a busy machine."""
    for _ in range(6):
        cluster = subprocess.Popen([sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert cluster.stdout is not None
        if address := cluster.stdout.readline().strip():
            return cluster, address
        cluster.communicate()
    pytest.fail("Ray's nodes didn't start in six attempts")


@pytest.mark.slow
def test_on_a_cluster_every_cell_ends_once_though_a_node_and_a_worker_are_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    spec = load(tmp_path, env='["A-v0", "Suicidal-v0", "B-v0", "Broken-v0"]', seeds="[1]")
    good = sweep.Spec(spec.name, spec.out, tuple(c for c in spec.cells if "Broken" not in c.name))
    sweep.run(sweep.Spec(spec.name, spec.out, good.cells[2:]), progress=False)  # B has finished before
    first = [spec.out / c.name for c in good.cells[:2]]
    gate = tmp_path / "gate"
    monkeypatch.setenv("STANDIN_GATE", str(gate))
    cluster, address = start_cluster()
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    try:
        process = driver(tmp_path / "spec.toml", json.dumps({"ray": address}))
        wait_for(lambda: all(runs.checkpoint_steps(f)[-1:] == [400] for f in first), "half the way on either node")
        cluster.stdin.write("kill\n")
        cluster.stdin.flush()
        assert cluster.stdout.readline().strip() == "killed"
        gate.touch()
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, err
    finally:
        cluster.communicate("quit\n", timeout=200)
    summary = json.loads(out)  # nothing else on standard output, whatever Ray has to say
    assert sorted(summary["finished"]) == sorted(c.name for c in good.cells[:2])
    assert summary["skipped"] == [good.cells[2].name]
    assert summary["failed"] == {"Broken-v0/sparse-td3-fast/seed-1": "unknown environment 'Broken-v0'"}
    assert_whole(good)
    rows = [r for f in first for r in runs.read_lines(f / "attempts.jsonl")]
    begun = sorted(r["step"] for r in rows if r["event"] == "began")
    assert begun == [0, 0, 200, 400]  # the killed worker's cell went on from step 200, the killed node's from 400
    assert events(spec.out / good.cells[2].name) == ["began", "finished"]


def tiny_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cell of real learning, small enough for a test: a point in a square, networks of eight units."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # no stand-in; the environment `point_env`
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")  # compiling is the cost
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))  # every process compiles the same programs
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    path = tmp_path / "spec.toml"
    path.write_text(f"""
out = "{tmp_path / "out"}"
env = "point_env:Point-v0"
reward = "sparse"
steps = 4000
[overrides]
backend = "gym"
num_envs = 2
round_steps = 40
round_updates = 2
batch_size = 16
learning_starts = 40
buffer_size = 1000
eval_every = 1000
eval_episodes = 4
checkpoint_every = 400
agent_options.hidden = [8]
""")
    return path


@pytest.mark.slow
def test_real_training_on_ray_has_the_same_bits_though_stopped_once_and_its_driver_killed_once(tmp_path, monkeypatch):
    path = tiny_training(tmp_path, monkeypatch)
    spec = sweep.load_spec(path)
    (cell,) = spec.cells
    folder, options = spec.out / cell.name, json.dumps({"ray": "local", "jobs": 1})

    process = driver(path, options)
    wait_for(lambda: runs.checkpoint_steps(folder) or process.poll() is not None, "the first checkpoint")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert json.loads(out)["stopped"] == [cell.name]
    saved = runs.checkpoint_steps(folder)[-1]
    assert 0 < saved < cell.config.steps

    process = driver(path, options)
    wait_for(lambda: runs.checkpoint_steps(folder)[-1] > saved or process.poll() is not None, "a checkpoint after going on")
    process.kill()
    process.communicate()

    out, err = driver(path, options).communicate(timeout=300)
    assert json.loads(out)["finished"] == [cell.name], err
    rows = runs.read_lines(folder / "attempts.jsonl")
    begun = [r["step"] for r in rows if r["event"] == "began"]
    assert begun[:2] == [0, saved]
    assert len(begun) == 3
    assert begun[2] > saved
    assert [r["event"] for r in rows].count("finished") == 1
    assert [r["step"] for r in runs.read_lines(folder / "evals.jsonl")] == [1000, 2000, 3000, 4000]
    assert list((folder / "tb").glob("events*"))  # as the configuration's default has it

    alone = sweep.parse_spec(tomllib.loads(path.read_text()) | {"out": str(tmp_path / "alone")})
    assert sweep.run(alone, jobs=1, progress=False).finished == [cell.name]
    weights = [(out / cell.name / "checkpoints" / "4000" / "brain.safetensors").read_bytes() for out in (spec.out, alone.out)]
    assert weights[0] == weights[1]


def test_a_ray_that_does_not_start_at_once_is_started_again_here_but_not_elsewhere(monkeypatch):
    tried: list[str] = []

    def init(address: str, **options: Any) -> None:
        tried.append(address)
        if len(tried) < 3:
            raise RuntimeError("The current node timed out during startup.")

    standin = types.SimpleNamespace(init=init, shutdown=lambda: None, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", standin)
    assert connect("local", 1) == (standin, True)
    assert tried == ["local"] * 3
    tried.clear()
    with pytest.raises(UserError, match=r"cannot reach Ray at 10\.0\.0\.1:6379: RuntimeError: The current node"):
        connect("10.0.0.1:6379", None)
    assert len(tried) == 1


def test_an_unreachable_cluster_is_named_in_one_line(tmp_path, monkeypatch):
    spec = load(tmp_path, env='["A-v0"]', seeds="[0]")
    with pytest.raises(UserError, match="cannot reach Ray at not-an-address"):
        sweep.run(spec, ray="not-an-address", progress=False)
