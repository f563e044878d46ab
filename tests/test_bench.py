"""The benchmark's arithmetic and what it answers without its peers; its measurements are no tests."""

import pytest

from aimrl import bench
from aimrl.types import UserError

PROMISED = (
    *("sgemm_gflops", "update_ms", "update_floor_ratio", "steps_per_s", "sb3_ratio", "sbx_ratio", "env_ratio"),
    *("sample_us_1e4", "sample_us_1e6", "grid_ms_per_seed_iteration"),
)
MEASURED = {
    "learner": {"sgemm_gflops": 100.0, "update_ms": 10.0, "update_ms_sparse": 9.5, "aim_share": 0.05},
    "loop": {"steps_per_s": 150.0, "first_update_s": 7.0},
    "learner_bfloat16": {"update_ms_bfloat16": 8.0},
    "loop_bfloat16": {"steps_per_s_bfloat16": 225.0},
    "sb3": {"sb3_steps_per_s": 75.0},
    "sbx": {"sbx_steps_per_s": 100.0},
    "envs": {"envpool_steps_per_s": 2400.0, "gym_steps_per_s": 1000.0},
    "sampling": {"sample_us_1e4": 15.0, "sample_us_1e6": 40.0},
    "grid": {"grid_ms_per_seed_iteration": 3.2},
}


@pytest.mark.parametrize("narrow", [True, False])
def test_the_ratios_are_those_of_what_was_measured(monkeypatch, narrow):
    monkeypatch.setattr(bench, "multiplies_bfloat16", lambda: narrow)
    halved = lambda part, cores: {k: v / 2 if cores and k == "steps_per_s" else v for k, v in MEASURED[part].items()}  # noqa: E731
    monkeypatch.setattr(bench, "_measure", lambda part, cores, quick: halved(part, cores))
    found = bench.bench()
    assert {*PROMISED, *(f"{key}_1core" for key in PROMISED[:7])} <= set(found)
    assert found["update_floor_ratio"] == pytest.approx(10.0 / (830 / 100), abs=1e-4)  # 830 MFLOP at 100 GFLOP/s are 8.3 ms
    assert (found["sb3_ratio"], found["sbx_ratio"], found["env_ratio"]) == (2.0, 1.5, 2.4)
    assert (found["sb3_ratio_1core"], found["sbx_ratio_1core"]) == (1.0, 0.75)
    assert found.get("sb3_ratio_bfloat16") == (3.0 if narrow else None)
    assert found.get("sbx_ratio_bfloat16_1core") == (2.25 if narrow else None)


def test_what_a_part_found_is_said_before_the_next_begins(monkeypatch):
    """The whole takes up to an hour: whoever ends it early keeps what there was."""
    lines: list[str] = []
    monkeypatch.setattr(bench, "multiplies_bfloat16", lambda: False)
    monkeypatch.setattr(bench, "_measure", lambda part, cores, quick: MEASURED[part])
    bench.bench(quick=True, listen=lines.append)
    assert lines[2:6] == ["loop …", "loop: steps_per_s 150, first_update_s 7", "sb3 …", "sb3: sb3_steps_per_s 75"]
    assert "sbx on one core: sbx_steps_per_s 100" in lines
    assert lines[-1] == "grid: grid_ms_per_seed_iteration 3.2"


def test_loops_take_turns_and_each_is_compared_with_its_neighbours(monkeypatch):
    """A machine that slows down half-way through, or speeds up for one moment, must not decide who is faster."""
    monkeypatch.setattr(bench, "multiplies_bfloat16", lambda: False)
    asked: list[str] = []

    def uneven(part, cores, quick):
        asked.append(part)
        turn = asked.count(part)
        pace = 3.0 if (part, turn) == ("sb3", 2) else 1 / turn
        return {k: v * pace if k.endswith("steps_per_s") else v for k, v in MEASURED[part].items()}

    monkeypatch.setattr(bench, "_measure", uneven)
    found = bench.bench()
    assert asked[: asked.index("envs")] == ["learner", *["loop", "sb3", "sbx"] * 5]
    assert found["steps_per_s_each"] == [150.0, 75.0, 50.0, 37.5, 30.0]
    assert found["sb3_ratio_each"] == [2.0, 0.33, 2.0, 2.0, 2.0]
    assert (found["steps_per_s"], found["sb3_ratio"], found["sbx_ratio"]) == (50.0, 2.0, 1.5)
    asked.clear()
    assert bench.bench(quick=True)["sb3_ratio"] == 2.0
    assert asked.count("loop") == 2  # on all cores and on one


def test_what_is_timed_takes_turns(monkeypatch):
    called: list[str] = []
    clock = iter([0.0, 5.0, 5.0, 6.0, 6.0, 8.0, 8.0, 12.0])  # a: 5 and 2 seconds, b: 1 and 4
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    assert bench._by_turns([lambda: called.append("a"), lambda: called.append("b")], 2) == [(5.0, 2.0), (1.0, 4.0)]
    assert called == ["a", "b"] * 3  # once before the clock runs


def test_what_aim_adds_is_measured_against_its_neighbour_in_time(monkeypatch):
    """The machine is twice as slow from the second turn on: AIM's best and its rival's would lie in different turns."""
    seconds = [(1.5, 1.0), (1.1, 2.04), (1.0, 2.0)]  # of the products, AIM's rounds and the rounds without it, by turn
    monkeypatch.setattr(bench, "_by_turns", lambda rivals, repeats: [*seconds])
    monkeypatch.setattr(bench, "_rounds", lambda **options: None)
    found = bench._learner(quick=True)
    assert found["aim_share"] == pytest.approx((1.1 + 1.02) / 2 - 1)
    assert (found["update_ms"], found["update_ms_sparse"]) == pytest.approx((1.1e3 / 20, 1e3 / 20))  # of these the best counts
    assert found["sgemm_gflops"] == bench._gflops(1.0)


def test_a_missing_peer_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(bench, "_installed", lambda package: package != "sbx")
    with pytest.raises(UserError, match=r"compares with sbx, which is missing: .* '\.\[sb3,envpool\]'$"):
        bench.bench()


def test_a_part_that_fails_is_named_with_its_last_words():
    with pytest.raises(UserError, match=r"^the benchmark's part 'nonsense' failed: KeyError: 'nonsense'$"):
        bench._measure("nonsense", None, quick=True)
