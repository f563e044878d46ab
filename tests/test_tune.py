"""The search: its ranges name real fields, it prunes, resumes and runs in parallel, and its best configuration is a usable preset."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from point_env import PointEnv

from aimrl import agents, rewards, runs, tune
from aimrl.config import make_config, settled_here
from aimrl.types import UserError

STANDIN = Path(__file__).parent / "standin"
SMALL: dict[str, Any] = {"num_envs": 2, "round_steps": 100, "checkpoint_every": 100}


@pytest.fixture(autouse=True)
def standin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers train with the stand-in: success grows with the steps, up to a height that is greatest at a critic's rate of 1e-3."""
    monkeypatch.setenv("PYTHONPATH", str(STANDIN))


def search(out: Path, **options: Any) -> tune.Tuned:
    settings = {"reward": "sparse", "trials": 4, "steps": 500, "only": ("agent.critic_rate", "batch_size"), "progress": False}
    return tune.tune(**{"env": "FetchPush-v4", "out": out, "overrides": SMALL} | settings | options)


@pytest.mark.parametrize("agent", list(tune.AGENT))
@pytest.mark.parametrize("reward", ["sparse", "dense", "aim", "aim+r"])
def test_every_declared_range_names_a_field_that_takes_both_its_ends(agent, reward):
    found = tune.ranges(agent, reward)
    for pick in (0, -1):
        params = {n: r.values[pick] if isinstance(r, tune.OneOf) else (r.low, r.high)[pick] for n, r in found.items()}
        config = make_config("FetchPush-v4", reward=reward, agent=agent, preset="paper", **tune.as_overrides(params))
        made, paid = agents.make(agent, gamma=0.9), rewards.make(reward, **config.reward_options)
        for name, value in params.items():
            room, _, field = name.rpartition(".")
            assert hasattr({"": config, "agent": made, "reward": paid}[room], field)
            options = {"": dataclasses.asdict(config), "agent": config.agent_options, "reward": config.reward_options}[room]
            assert options[field] == value


def test_a_search_finds_the_better_rate_and_saves_it_as_a_preset(tmp_path):
    done = search(tmp_path, trials=8, jobs=2)
    assert len(done.trials) == 8
    assert {t["state"] for t in done.trials} <= {"complete", "pruned"}
    assert done.best_value == max(t["value"] for t in done.trials if t["state"] == "complete")
    # The stand-in's success: floor of 10 / (1 + |log10(rate / 1e-3)|) out of ten episodes.
    complete = [t for t in done.trials if t["state"] == "complete"]
    distance = {t["number"]: abs(math.log10(t["params"]["agent.critic_rate"] / 1e-3)) for t in complete}
    for t in complete:
        assert t["value"] == int(10 / (1 + distance[t["number"]])) / 10
    config = make_config("FetchPush-v4", reward="sparse", preset=str(done.preset), steps=500, seed=0)
    best = next(t for t in complete if t["params"] == done.best_params)
    trained = runs.load_config(Path(best["folder"]))
    same = lambda c: runs.plain(dataclasses.asdict(c)) | {"preset": ""}  # noqa: E731
    assert same(settled_here(config)) == same(trained)
    agents.make(config.agent, **config.agent_options)
    assert "saved as a preset" in done.text()


def test_poor_trials_are_pruned_on_their_evaluations(tmp_path, monkeypatch):
    poor = {"agent.critic_rate": tune.Real(1e-9, 1e-9)}
    good = {"agent.critic_rate": tune.Real(1e-3, 1e-3)}
    item = tune.Search("s", str(tmp_path), "FetchPush-v4", "sparse", "td3", "fast", 500, 0, 5, "final", ("agent.critic_rate",), SMALL)
    monkeypatch.setitem(sys.modules, "aimrl.train", _standin_module())
    for trials, found in ((5, good), (6, poor)):
        monkeypatch.setitem(tune.AGENT, "td3", found)
        tune.work(dataclasses.replace(item, trials=trials), None, lambda: False, lambda text: None)
    trials = tune.result(item, tune.open_study(item, None)).trials
    assert [t["state"] for t in trials] == ["complete"] * 5 + ["pruned"]
    assert len(runs.read_lines(tmp_path / "trial-0005" / "evals.jsonl")) == 1  # at its first evaluation


def _standin_module() -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("standin", STANDIN / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    before = sys.modules.get("aimrl.train")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if before is None:
        del sys.modules["aimrl.train"]
    else:
        sys.modules["aimrl.train"] = before
    return module.module


def test_a_finished_search_runs_nothing_again_and_a_larger_one_goes_on(tmp_path):
    first = search(tmp_path, trials=2)
    assert [t["number"] for t in first.trials] == [0, 1]
    before = (tmp_path / "study.journal").read_bytes()
    again = search(tmp_path, trials=2)
    assert again.trials == first.trials
    more = search(tmp_path, trials=3, storage=None)
    assert more.trials[:2] == first.trials
    assert len(more.trials) == 3
    assert (tmp_path / "study.journal").read_bytes().startswith(before)
    rates = [t["params"]["agent.critic_rate"] for t in more.trials]
    assert len(set(rates)) == 3  # a search that goes on doesn't draw the same numbers again


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_search_resumes_its_trial_from_the_checkpoint(tmp_path, number):
    code = (
        "import json, sys; from aimrl import tune\n"
        "if __name__ == '__main__':\n"
        "    tune.tune('FetchPush-v4', reward='sparse', trials=1, steps=500, out=sys.argv[1], overrides=json.loads(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path), json.dumps(SMALL)]
    process = subprocess.Popen(command, env=os.environ | {"STANDIN_ROUND_S": "1.0"}, stderr=subprocess.PIPE, text=True)
    folder = tmp_path / "trial-0000"
    deadline = time.monotonic() + 300
    while not runs.checkpoint_steps(folder):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert "Traceback" not in err
    first = runs.read_json(folder / "config.json")
    done = tune.tune("FetchPush-v4", reward="sparse", trials=1, steps=500, out=tmp_path, overrides=SMALL, progress=False)
    assert [(t["state"], t["folder"]) for t in done.trials] == [("complete", str(folder))]
    assert runs.read_json(folder / "config.json") == first
    rows = runs.read_lines(folder / "evals.jsonl")
    assert [r["step"] for r in rows] == [100, 200, 300, 400, 500]
    assert rows[-1]["sum"] == 1500  # 100 + … + 500: no step was lost or made twice
    assert not (tmp_path / "trial-0001").exists()


def test_a_killed_worker_is_replaced_and_its_trial_taken_up(tmp_path, monkeypatch):
    monkeypatch.setitem(gym.registry, "Suicidal-v0", gym.envs.registration.EnvSpec("Suicidal-v0", PointEnv, max_episode_steps=10))
    done = tune.tune("Suicidal-v0", reward="sparse", trials=2, steps=500, out=tmp_path, overrides=SMALL, progress=False)
    assert [t["state"] for t in done.trials] == ["complete", "complete"]
    assert runs.read_lines(tmp_path / "trial-0000" / "evals.jsonl")[-1]["sum"] == 1500


def test_workers_that_die_again_and_again_end_the_search_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "_work", lambda *_: True)
    with pytest.raises(UserError, match="killed 4 times"):
        search(tmp_path)


def test_a_search_is_for_the_agent_of_its_preset(tmp_path):
    (tmp_path / "best.json").write_text(json.dumps({"agent": "sac"}), encoding="utf-8")
    done = search(tmp_path / "s", trials=1, steps=100, preset=str(tmp_path / "best.json"))
    assert runs.read_json(Path(done.trials[0]["folder"]) / "config.json")["agent"] == "sac"


def test_failed_trials_are_listed_with_their_reasons_and_the_next_call_draws_others(tmp_path, monkeypatch):
    monkeypatch.setenv("STANDIN_BREAKS", "1")
    done = search(tmp_path, trials=2, steps=500)
    assert (done.best_value, done.preset) == (None, None)
    assert [t["state"] for t in done.trials] == ["fail", "fail"]
    assert "trial 0 failed: the arm is broken" in done.text()
    monkeypatch.delenv("STANDIN_BREAKS")
    done = search(tmp_path, trials=2, steps=500)
    assert [t["state"] for t in done.trials] == ["fail", "fail", "complete", "complete"]
    assert len(search(tmp_path, trials=2, steps=500).trials) == 4


def test_a_database_url_is_used_and_never_repeated_in_an_error(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    done = search(tmp_path / "out", trials=1, storage=url)
    assert [t["state"] for t in done.trials] == ["complete"]
    assert not (tmp_path / "out" / "study.journal").exists()
    with pytest.raises(UserError, match="cannot open the study's storage") as e:
        search(tmp_path / "out", storage=f"sqlite:////nowhere/secret/{tmp_path.name}/x.db")
    assert "secret" not in str(e.value)


def test_a_search_of_another_kind_does_not_mix_its_trials_with_an_earlier_ones(tmp_path):
    search(tmp_path, trials=1)
    for other, line in (
        ({"steps": 700}, "steps 500, not 700"),
        ({"measure": "area"}, "'final', not 'area'"),
        ({"seed": 3}, "seed 0, not 3"),
        ({"name": "FetchPush-v4-sparse-td3-fast", "reward": "dense"}, "reward 'sparse', not 'dense'"),
    ):
        with pytest.raises(UserError, match=line):
            search(tmp_path, trials=2, **other)
    assert len(search(tmp_path, trials=2).trials) == 2


def test_two_searches_in_one_folder_refuse_in_one_line(tmp_path):
    from aimrl.runs import locked

    with locked(tmp_path / ".tune.lock", "unused"), pytest.raises(UserError, match=r"^another search is running in"):
        search(tmp_path)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"trials": 0}, "trials must be at least 1"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"env": "FetchRech-v4"}, "did you mean FetchReach"),
        ({"env": "CartPole-v1"}, "is not a goal environment"),
        ({"reward": "aimm"}, "did you mean aim"),
        ({"agent": "td33"}, "did you mean td3"),
        ({"preset": "paperr"}, "did you mean paper"),
        ({"only": ("batchsize",)}, "did you mean batch_size"),
        ({"measure": "finale"}, "did you mean final"),
    ],
)
def test_bad_usage_is_answered_in_one_line_before_anything_is_written(tmp_path, options, line):
    with pytest.raises(UserError, match=line):
        search(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
