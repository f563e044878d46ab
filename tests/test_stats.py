"""The statistics against lme4 and multcomp (numbers made once, fixtures/stats/make.R), against integrals, and on bad input."""

import itertools
import json
import subprocess
import sys
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from run_folders import make_run
from scipy import integrate
from scipy import stats as scipy_stats

from aimrl import runs, stats
from aimrl.stats import analysis, glmm
from aimrl.types import UserError

FIXTURES = Path(__file__).parent / "fixtures" / "stats"
REFERENCE = json.loads((FIXTURES / "reference.json").read_text(encoding="utf-8"))
SETS = sorted(REFERENCE["fits"])


@cache
def analyse_fixture(name):
    return stats.analyse(stats.from_csv(FIXTURES / f"{name}.csv"))[name]


def table(env="x", episodes=100, **wins):
    """A table of one environment from the wins of each seed by algorithm."""
    return stats.Table({env: stats.counts({(a, str(i)): (w, episodes) for a, ws in wins.items() for i, w in enumerate(ws)})})


# --- the mixed model -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_fit_agrees_with_lme4_and_multcomp(name):
    entry, expected = analyse_fixture(name), REFERENCE["fits"][name]
    assert entry["loglik"] == pytest.approx(expected["loglik"], abs=2e-5)
    assert entry["sd_seed"] == pytest.approx(expected["sd_seed"], abs=2e-5)
    assert [entry["algorithms"][a]["log_odds"] for a in expected["algorithms"]] == pytest.approx(expected["beta"], abs=2e-5)
    assert [(c["a"], c["b"]) for c in entry["contrasts"]] == [(c["a"], c["b"]) for c in expected["contrasts"]]
    for ours, theirs in zip(entry["contrasts"], expected["contrasts"]):
        assert ours["estimate"] == pytest.approx(theirs["estimate"], abs=2e-5)
        assert ours["se"] == pytest.approx(theirs["se"], abs=2e-5)
        assert ours["se"] == pytest.approx(theirs["se_summary"], abs=5e-5)  # lme4's one-step difference is itself off by 3e-5
        assert ours["p"] == pytest.approx(theirs["p"], abs=2e-5)
        assert ours["p_holm"] == pytest.approx(theirs["p_holm"], abs=2e-5)
        assert ours["test"] == "wald"


@pytest.mark.parametrize("name", SETS)
def test_fit_agrees_with_lme4_at_its_default_tolerances(name):
    for ours, theirs in zip(analyse_fixture(name)["contrasts"], REFERENCE["defaults"][name]["contrasts"]):
        assert ours["estimate"] == pytest.approx(theirs["estimate"], abs=2e-5)
        assert ours["se"] == pytest.approx(theirs["se_summary"], abs=5e-5)


def test_quadrature_agrees_with_the_integral_and_laplace_does_not():
    successes, episodes = np.array([[7.0, 2.0], [9.0, 6.0], [3.0, 0.0]]), np.array([[10.0, 9.0], [10.0, 10.0], [8.0, 0.0]])
    sd, beta = 1.3, np.array([0.8, -0.6])

    def density(u, s, n):
        p = 1 / (1 + np.exp(-(beta + sd * u)))
        return np.prod(p**s * (1 - p) ** (n - s)) * scipy_stats.norm.pdf(u)

    total = sum(np.log(integrate.quad(density, -12, 12, args=(s, n), epsabs=1e-16)[0]) for s, n in zip(successes, episodes))
    params = np.array([[sd, *beta]])
    assert glmm.log_likelihood(params, successes, episodes)[0] == pytest.approx(total, abs=1e-7)
    assert abs(glmm.log_likelihood(params, successes, episodes, nodes=1)[0] - total) > 1e-3


def test_gradient_is_the_slope_of_the_quadrature_and_vanishes_at_the_fit():
    counts = stats.from_csv(FIXTURES / "unbalanced.csv").envs["unbalanced"]
    data = counts.successes.astype(float), counts.episodes.astype(float)
    x = np.array([0.7, 1.0, 0.5, 0.2, -0.4])
    slopes = [(np.subtract(*glmm.log_likelihood(np.stack([x + h, x - h]), *data)) / 2e-5) for h in 1e-5 * np.eye(5)]
    assert glmm._gradient(x[None], *data)[0] == pytest.approx(slopes, rel=1e-6)
    model = stats.fit(*data)
    assert np.abs(glmm._gradient(np.array([[model.sd, *model.beta]]), *data)).max() < 1e-8


def test_standard_errors_carry_the_uncertainty_of_the_seed_effect():
    """The covariance from β alone, with σ taken as known, is not what lme4's summary reports."""
    counts = stats.from_csv(FIXTURES / "unbalanced.csv").envs["unbalanced"]
    data = counts.successes.astype(float), counts.episodes.astype(float)
    model = stats.fit(*data)
    information = -glmm._hessian(np.array([model.sd, *model.beta]), *data)
    known = np.linalg.inv(information[1:, 1:])
    expected = next(c for c in REFERENCE["fits"]["unbalanced"]["contrasts"] if (c["a"], c["b"]) == ("aim+r", "sparse"))
    assert np.sqrt(known[0, 0] + known[3, 3] - 2 * known[0, 3]) < expected["se_summary"] - 1e-4


def test_a_seed_effect_at_the_boundary_is_zero_and_gives_the_logistic_regression():
    entry = analyse_fixture("no_seed_effect")
    assert entry["sd_seed"] == 0.0
    for rate in entry["algorithms"].values():
        w, n = rate["successes"], rate["episodes"]
        assert rate["log_odds"] == pytest.approx(np.log(w / (n - w)))
        assert rate["se"] == pytest.approx(np.sqrt(1 / w + 1 / (n - w)))


def test_failures_counted_as_successes_turn_every_sign():
    one = stats.analyse(table(aim=[80, 60, 90], sparse=[30, 20, 55]))["x"]
    other = stats.analyse(table(aim=[20, 40, 10], sparse=[70, 80, 45]))["x"]
    assert other["contrasts"][0]["estimate"] == pytest.approx(-one["contrasts"][0]["estimate"], abs=1e-7)
    assert other["loglik"] == pytest.approx(one["loglik"], abs=1e-9)
    assert other["sd_seed"] == pytest.approx(one["sd_seed"], abs=1e-7)


def test_fit_refuses_an_algorithm_without_a_maximum():
    with pytest.raises(ValueError, match="at least one success and one failure"):
        stats.fit(np.array([[5, 10], [6, 10]]), np.array([[10, 10], [10, 10]]))


# --- separation ------------------------------------------------------------------------------------------------------------------------


def test_separation_is_said_and_answered_with_likelihood_ratio_tests():
    entry, expected = analyse_fixture("separated"), REFERENCE["separated"]
    assert entry["separated"] == ["aim+r", "sparse"]
    assert entry["loglik"] == pytest.approx(expected["loglik"], abs=2e-5)
    assert entry["sd_seed"] == pytest.approx(expected["sd_seed"], abs=2e-5)
    contrasts = {frozenset((c["a"], c["b"])): c for c in entry["contrasts"]}
    assert len(contrasts) == 6
    for test in expected["tests"]:
        c = contrasts.pop(frozenset(test["pair"]))
        assert c["test"] == "likelihood ratio"
        assert c["z"] ** 2 == pytest.approx(test["lr"], abs=1e-4)
        assert np.log(c["p"]) == pytest.approx(test["log_p"], abs=1e-4)
        assert abs(c["estimate"]) == np.inf
        assert (c["estimate"] > 0) == (c["z"] > 0)
        assert c["significant"]
    (rest,) = contrasts.values()
    assert (rest["a"], rest["b"], rest["test"]) == ("aim", "dense", "wald")
    assert rest["estimate"] == pytest.approx(expected["beta"][0] - expected["beta"][1], abs=2e-5)


def test_two_perfect_algorithms_do_not_differ():
    entry = stats.analyse(table(aim=[100] * 3, sparse=[100] * 3))["x"]
    (contrast,) = entry["contrasts"]
    assert (contrast["estimate"], contrast["p_final"], contrast["significant"]) == (0.0, 1.0, False)
    assert entry["separated"] == ["aim", "sparse"]


def test_perfect_against_never_is_the_binomial_likelihood_ratio():
    (contrast,) = stats.analyse(table(aim=[10] * 3, sparse=[0] * 3, episodes=10))["x"]["contrasts"]
    assert contrast["z"] == pytest.approx(np.sqrt(2 * 60 * np.log(2)))  # merged: 30 of 60, no seed effect
    assert contrast["estimate"] == np.inf


def test_seeds_that_succeed_or_fail_as_a_whole_are_said():
    entry = stats.analyse(table(aim=[100, 0, 100, 0], sparse=[100, 0, 0, 0]))["x"]
    assert "no finite seed effect" in entry["problem"]
    assert entry["sd_seed"] == np.inf
    assert entry["contrasts"][0]["significant"]
    assert entry["contrasts"][0]["test"] == "likelihood ratio"


# --- adjustments -----------------------------------------------------------------------------------------------------------------------


def test_holm_multiplies_by_the_number_left_and_stays_monotone():
    p = [0.01, 0.04, 0.03, 0.005, 0.9]
    assert np.exp(analysis.holm(np.log(p))) == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.9])
    assert np.exp(analysis.holm(np.log([0.5, 0.6]))) == pytest.approx([1.0, 1.0])


def test_p_values_that_underflow_are_ordered_and_never_zero():
    assert 2 * scipy_stats.norm.sf(60) == 0.0
    assert -np.inf < analysis.log_p_normal(80) < analysis.log_p_normal(60) < -1000
    data = table(episodes=1_000_000, aim=[900_000, 910_000], rnd=[500_000, 520_000], sparse=[100_000, 110_000])
    contrasts = {(c["a"], c["b"]): c for c in stats.analyse(data)["x"]["contrasts"]}
    assert all(c["significant"] and 0 < c["p"] <= c["p_holm"] <= c["p_final"] for c in contrasts.values())
    assert contrasts["aim", "sparse"]["log10_p_final"] < contrasts["aim", "rnd"]["log10_p_final"] < -308


def test_bonferroni_multiplies_by_the_environments_tested_and_stops_at_one():
    one = table("one", aim=[60, 70, 65], sparse=[50, 62, 57]).envs
    others = table("two", aim=[50, 51], sparse=[50, 50]).envs | table("three", aim=[9, 1], sparse=[4, 6]).envs
    three = stats.analyse(stats.Table(one | others))
    alone = stats.analyse(stats.Table(one))["one"]["contrasts"][0]
    together = three["one"]["contrasts"][0]
    assert alone["p_final"] == alone["p_holm"] == alone["p"]
    assert together["p_final"] == pytest.approx(3 * alone["p"])
    assert alone["significant"]
    assert not together["significant"]
    assert three["two"]["contrasts"][0]["p_final"] == 1.0


def test_each_unordered_pair_is_tested_once():
    names = ["sparse", "aim", "rnd", "aim+r", "dense"]
    contrasts = stats.analyse(table(**{n: [40 + 3 * i, 50, 60] for i, n in enumerate(names)}))["x"]["contrasts"]
    assert [(c["a"], c["b"]) for c in contrasts] == list(combinations(["aim+r", "aim", "dense", "rnd", "sparse"], 2))


# --- the paper's own table -------------------------------------------------------------------------------------------------------------


def test_the_papers_table_contradicts_its_text():
    similar = {a: [env for env, row in stats.PAPER_TABLE.items() if not row[a, "dense"][2]] for a in ("aim", "aim+r")}
    assert similar["aim"] == ["FetchSlide", "FetchPush"]  # the text: three of four
    assert similar["aim+r"] == ["FetchSlide", "FetchPush", "FetchPickAndPlace"]
    assert stats.PAPER_TABLE["FetchSlide"]["aim", "sparse"][2]  # the text: similar learning behaviour


def test_the_papers_push_asterisk_is_missing_if_each_pair_counts_once():
    estimate, se, star = stats.PAPER_TABLE["FetchPush"]["aim", "dense"]
    p = 2 * scipy_stats.norm.sf(abs(estimate) / se)
    assert not star
    assert p * 3 * 4 < 0.05 < p * 6 * 4  # three stronger pairs of 6 leave Holm's factor 3; of 12 ordered pairs, 6


# --- CSV input -------------------------------------------------------------------------------------------------------------------------

HEADER = "env,algorithm,seed,episode,success\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        (HEADER, "no episodes"),
        ("env,algorithm,seed,success\nx,aim,0,1\n", "no column episode"),
        ("environment,algo,seed,episode,success\nx,aim,0,0,1\n", "no column env, algorithm"),
        ("env,env,algorithm,seed,episode,success\nx,x,aim,0,0,1\n", "column env is there 2 times"),
        (HEADER + "x,aim,0,0,1\nx,aim,0,1,2\n", "line 3: success must be 0 or 1, not '2'"),
        (HEADER + "x,aim,0,0,0.5\n", "line 2: success must be 0 or 1, not '0.5'"),
        (HEADER + "x,aim,0,0,-1\n", "success must be 0 or 1"),
        (HEADER + "x,aim,0,0,NaN\n", "success must be 0 or 1, not 'NaN'"),
        (HEADER + 'x,aim,0,0,"1\nx,aim,0,1,1"\n', "success must be 0 or 1, not '1 x,aim,0,1,1'"),  # a field over two lines
        ('"env,al\ngorithm",seed,episode,success\n', "(found env,al gorithm, seed"),
        (HEADER + "x,aim,0,0,\n", "success must be 0 or 1, not ''"),
        (HEADER + "x,aim,nan,0,1\n", "line 2: seed is missing"),
        (HEADER + ",aim,0,0,1\n", "line 2: env is missing"),
        (HEADER + "x,aim,0,0,1\nx,aim,0,0,0\n", "line 3: env x, algorithm aim, seed 0, episode 0 is there twice"),
        (HEADER + "x,aim,0,1\n", "line 2: 4 fields where the header has 5"),
    ],
)
def test_a_bad_csv_gets_one_clear_line(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"bad\.csv") as error:
        stats.from_csv(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_a_folder_and_a_binary_file_get_one_clear_line(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80" * 20)
    for path in (tmp_path / "absent.csv", tmp_path, tmp_path / "binary.csv"):
        with pytest.raises(UserError, match=r"^[^\n]+$"):
            stats.from_csv(path)


def test_csv_accepts_any_column_order_a_byte_order_mark_and_further_columns(tmp_path):
    path = tmp_path / "fine.csv"
    rows = "".join(f"{(e + s) % 2},{e},{s},aim,note,x\r\n" for s in range(2) for e in range(3))
    path.write_text("\ufeffsuccess,episode,seed,algorithm,extra,env\r\n" + rows, encoding="utf-8")
    counts = stats.from_csv(path).envs["x"]
    assert counts.successes.tolist() == [[1], [2]]
    assert counts.episodes.tolist() == [[3], [3]]


def test_one_seed_is_a_problem_of_that_environment_only(tmp_path):
    path = tmp_path / "mixed.csv"
    lines = [f"good,{a},{s},{e},{int(e < k + s)}" for a, k in (("aim", 12), ("sparse", 5)) for s in range(3) for e in range(20)]
    lines += [f"alone,{a},0,{e},{e % 2}" for a in ("aim", "sparse") for e in range(20)]
    path.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    result = stats.analyse(stats.from_csv(path))
    assert result["alone"]["contrasts"] == []
    assert result["alone"]["problem"].startswith("one seed only")
    (contrast,) = result["good"]["contrasts"]
    assert contrast["p_final"] == contrast["p"]  # nothing is tested in the other environment
    assert result["good"]["problem"] is None
    assert "alone: one seed only" in stats.format_table(result)
    assert "In alone nothing is tested" in stats.sentence(result)


def test_a_run_each_is_not_compared_whatever_the_seeds_are_called():
    wins, episodes = np.array([[70, 0], [0, 50]]), np.array([[100, 0], [0, 100]])
    entry = stats.analyse(stats.Table({"Push": stats.Counts(("aim", "sparse"), ("0", "1"), wins, episodes, None)}))["Push"]
    assert entry["contrasts"] == []
    assert "nothing is tested" in entry["problem"]
    wins = np.array([[100, 50]])
    result = stats.analyse(stats.Table({"Push": stats.Counts(("aim", "sparse"), ("0",), wins, np.full_like(wins, 100), None)}))
    assert "likelihood-ratio tests decide" not in stats.sentence(result)


def test_methods_that_differ_late_in_a_long_value_keep_two_names():
    configs = [{"env": "P", "reward": "aim", "seed": 0, "reward_options": {"w": [0.1, 0.2, 0.3, 0.4, 0.5, last]}} for last in (0.6, 0.9)]
    assert len(set(runs.method_names(configs))) == 2


def test_one_algorithm_leaves_nothing_to_compare():
    entry = stats.analyse(table(aim=[50, 60, 70]))["x"]
    assert entry["contrasts"] == []
    assert "only one algorithm" in entry["problem"]
    assert np.isfinite(entry["loglik"])


# --- run folders -----------------------------------------------------------------------------------------------------------------------


def write_run(folder, reward="aim", seed=0, env="FetchReach-v4", evals=((1000, 3), (2000, 6)), tail="", **config):
    folder.mkdir(parents=True)
    settings = {"env": env, "reward": reward, "seed": seed, "agent": "td3", "preset": "fast", "versions": {"mujoco": "3.6.0"}} | config
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    lines = []
    for step, wins in evals:
        ever, final = [i < wins for i in range(10)], [i < wins - 2 for i in range(10)]
        lines.append(json.dumps({"step": step, "episodes": 10, "success_ever": ever, "success_final": final}) + "\n")
    (folder / "evals.jsonl").write_text("".join(lines) + tail, encoding="utf-8")
    return folder


def test_runs_are_read_at_the_largest_common_step_as_reached_or_as_final(tmp_path):
    write_run(tmp_path / "a", "aim", 0, evals=((1000, 3), (2000, 6), (3000, 9)), tail='{"step": 4000, "succ')
    write_run(tmp_path / "b", "aim", 1)
    write_run(tmp_path / "c", "sparse", 0, evals=((1000, 5), (1000, 4), (2000, 4)))
    write_run(tmp_path / "d", "sparse", 1)
    write_run(tmp_path / "d" / "checkpoints" / "2000", "rnd", 1)  # a run's inside is not another run
    counts = stats.from_runs([tmp_path]).envs["FetchReach-v4"]
    assert (counts.algorithms, counts.seeds, counts.step) == (("aim", "sparse"), ("0", "1"), 2000)
    assert counts.successes.tolist() == [[6, 4], [6, 6]]
    assert counts.episodes.tolist() == [[10, 10], [10, 10]]
    assert stats.from_runs([tmp_path], success="final").envs["FetchReach-v4"].successes.tolist() == [[4, 2], [4, 4]]
    assert stats.from_runs([tmp_path], step=1000).envs["FetchReach-v4"].successes.tolist() == [[3, 4], [3, 3]]  # the later of two at a step
    (said,) = stats.from_runs([tmp_path]).problems
    assert "compared at step 2,000, though runs go on to 3,000" in said
    assert stats.from_runs([tmp_path], step=1000).problems == ()
    assert "At step 2,000: FetchReach-v4." in stats.format_table(stats.analyse(stats.from_runs([tmp_path])))


def test_runs_of_one_reward_and_different_settings_are_compared(tmp_path):
    for seed, size in itertools.product(range(2), (128, 512)):  # the arms of an ablation, on the same seeds
        make_run(tmp_path / f"{size}-{seed}", seed=seed, batch_size=size)
    found = stats.from_runs([tmp_path])
    assert found.problems == ()
    assert found.envs["FetchPush-v4"].algorithms == ("aim (batch_size 128)", "aim (batch_size 512)")
    assert found.envs["FetchPush-v4"].episodes.min() > 0


def test_each_arm_of_a_larger_ablation_is_named_by_what_it_lacks(tmp_path):
    lacking = {"her_redraws": 0, "moved_fraction": 0.0, "normalise_inputs": False, "bound_targets": False, "practice": 0.0}
    for name, value in lacking.items():
        make_run(tmp_path / name, **{name: value})
    make_run(tmp_path / "whole")
    found = stats.from_runs([tmp_path])
    assert found.problems == ()
    arms = {"aim", *(f"aim ({name} {json.dumps(value)})" for name, value in lacking.items())}
    assert set(found.envs["FetchPush-v4"].algorithms) == arms


def test_bad_runs_get_one_line_each_and_the_rest_is_used(tmp_path):
    for seed in range(2):
        write_run(tmp_path / f"aim{seed}", "aim", seed)
        write_run(tmp_path / f"sparse{seed}", "sparse", seed, versions={"mujoco": f"3.{6 + seed}.0"})
    write_run(tmp_path / "twin", "aim", 1)
    write_run(tmp_path / "zempty", evals=(), seed=7)
    write_run(tmp_path / "zgarbled", seed=8, reward="sparse", evals=((1000, 1),), tail='{"step": 2000}\n')
    (tmp_path / "zhalf").mkdir()
    (tmp_path / "zhalf" / "config.json").write_text('{"env": "FetchRe', encoding="utf-8")
    write_run(tmp_path / "znoevals", seed=9).joinpath("evals.jsonl").unlink()
    (tmp_path / "folder without a run").mkdir()
    found = stats.from_runs([tmp_path, tmp_path / "folder without a run"], step=2000)
    text = "\n".join(found.problems)
    for name, reason in {
        "twin": "the same cell as",
        "zempty": "no evaluations",
        "zgarbled/evals.jsonl line 2": "not an evaluation",
        "zgarbled": "not evaluated at step 2000",
        "zhalf": "config.json is half-written",
        "znoevals": "no evals.jsonl",
        "folder without a run": "no config.json",
        "FetchReach-v4": "mixed versions of mujoco (3.6.0, 3.7.0)",
    }.items():
        assert any(name in line and reason in line for line in found.problems), f"{name}: {reason} not in\n{text}"
    assert len(found.problems) == 8
    assert found.envs["FetchReach-v4"].successes.tolist() == [[6, 6], [6, 6]]


def test_agent_and_preset_name_the_algorithm_only_where_they_differ(tmp_path):
    write_run(tmp_path / "a", "aim", 0)
    write_run(tmp_path / "b", "aim", 0, agent="sac")
    assert stats.from_runs([tmp_path]).envs["FetchReach-v4"].algorithms == ("aim (sac)", "aim (td3)")


def test_runs_without_a_common_step_are_said(tmp_path):
    write_run(tmp_path / "a", seed=0, evals=((1000, 3),))
    write_run(tmp_path / "b", seed=1, evals=((1500, 3),))
    write_run(tmp_path / "c", env="FetchPush-v4")
    found = stats.from_runs([tmp_path])
    assert list(found.envs) == ["FetchPush-v4"]
    assert found.problems == ("FetchReach-v4: no step at which all 2 runs were evaluated; state one",)


def test_nothing_usable_or_a_wrong_name_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json"):
        stats.from_runs([tmp_path])
    with pytest.raises(UserError, match="no such folder"):
        stats.from_runs([tmp_path / "absent"])
    with pytest.raises(UserError, match="did you mean final"):
        stats.from_runs([tmp_path], success="finale")
    with pytest.raises(UserError, match="no run was evaluated at step 5"):
        stats.from_runs([write_run(tmp_path / "a")], step=5)


def test_load_takes_a_csv_or_run_folders(tmp_path):
    write_run(tmp_path / "runs" / "a")
    assert list(stats.load([FIXTURES / "balanced.csv"]).envs) == ["balanced"]
    assert list(stats.load([tmp_path / "runs"]).envs) == ["FetchReach-v4"]
    with pytest.raises(UserError, match="not both"):
        stats.load([tmp_path / "runs", FIXTURES / "balanced.csv"])
    with pytest.raises(UserError, match="give a CSV file or run folders"):
        stats.load([])


# --- layout and words ------------------------------------------------------------------------------------------------------------------


def small_result():
    """Two environments with stated numbers: the layout must not depend on a fit."""

    def contrast(a, b, estimate, se, significant, test="wald"):
        p = 0.0001 if significant else 0.4
        return {"a": a, "b": b, "estimate": estimate, "se": se, "z": estimate, "p_final": p, "significant": significant, "test": test}

    slide = [contrast("aim", "dense", 0.21, 0.14, False), contrast("aim", "sparse", 0.57, 0.13, True)]
    slide.append(contrast("dense", "sparse", 0.36, 0.2, False))
    reach = [contrast("aim", "dense", -5.01, 0.35, True), contrast("aim", "sparse", np.inf, np.inf, True, "likelihood ratio")]
    return {
        "Slide": {"contrasts": slide, "separated": [], "problem": None, "environments": 2},
        "Reach": {"contrasts": reach, "separated": ["aim"], "problem": None, "environments": 2},
    }


def test_table_has_the_papers_layout():
    assert stats.format_table(small_result()).splitlines()[:6] == [
        "Contrast       |        Slide |         Reach",
        "---------------+--------------+--------------",
        "aim - dense    |  0.21 (0.14) | *-5.01 (0.35)",
        "---------------+--------------+--------------",
        "aim - sparse   | *0.57 (0.13) |       *∞ (LR)",
        "dense - sparse |  0.36 (0.20) |             –",
    ]
    assert "Bonferroni over 2" in stats.format_table(small_result())
    assert "Reach: complete separation" in stats.format_table(small_result())


def test_markdown_table_is_one_table_whatever_the_names_hold():
    result = small_result()
    result["a|b_*<i>"] = result.pop("Reach")
    lines = stats.format_table(result, "markdown").splitlines()
    assert lines[0] == r"| Contrast | Slide | a\|b\_\*\<i> |"
    assert lines[1] == "| --- | ---: | ---: |"
    assert lines[2] == r"| aim - dense | 0.21 (0.14) | \*-5.01 (0.35) |"


def test_sentence_says_direction_and_never_claims_equality():
    words = stats.sentence(small_result())
    assert "In Slide, aim shows significantly higher odds than sparse (p < 0.001) and no significant difference from dense." in words
    both = "significantly higher odds than sparse (p < 0.001) and significantly lower odds than dense (p < 0.001)."
    assert f"In Reach, aim shows {both}" in words
    assert "aim succeeded in all or none of the episodes" in words
    assert "does not mean equal odds" in words
    assert "dense shows" not in words  # AIM's methods are what is spoken of


# --- aggregates ------------------------------------------------------------------------------------------------------------------------


def test_iqm_drops_a_quarter_at_each_end():
    assert stats.iqm([100.0, 1, 2, 3, 4, 5, 6, -100]) == pytest.approx(3.5)
    assert stats.iqm([[0, 1], [2, 9]]) == pytest.approx(1.5)


def test_bootstrap_is_seeded_and_covers_what_it_should():
    x = np.random.default_rng(1).normal(3.0, 1.0, 40)
    y = np.random.default_rng(2).normal(100.0, 1.0, 30)
    one = stats.bootstrap_interval([x], np.random.default_rng(5))
    assert one == stats.bootstrap_interval([x], np.random.default_rng(5))
    assert one != stats.bootstrap_interval([x], np.random.default_rng(6))
    assert one[0] < stats.iqm(x) < one[1]
    mean = lambda *s, axis: np.concatenate(s, axis=axis).mean(axis)  # noqa: E731
    low, high = stats.bootstrap_interval([x, y], np.random.default_rng(0), mean)
    se = np.sqrt(40 * x.var() + 30 * y.var()) / 70
    assert high - low == pytest.approx(2 * 1.96 * se, rel=0.1)  # a bootstrap blind to environments would be some 40 times wider


def test_bootstrap_gives_an_interval_a_step_and_none_for_one_seed():
    curves = np.array([[0.0, 0.5, 1.0], [0.2, 0.5, 1.0], [0.4, 0.8, 1.0]])
    low, high = stats.bootstrap_interval([curves], np.random.default_rng(0))
    assert low.shape == high.shape == (3,)
    assert low[0] < high[0]
    assert low[2] == high[2] == 1.0
    assert np.isnan(stats.bootstrap_interval([curves[:1]], np.random.default_rng(0))[0]).tolist() == [True] * 3


def test_probability_of_improvement_counts_pairs_with_ties_half():
    assert stats.probability_of_improvement([[1, 2, 3]], [[2, 2]]) == pytest.approx((0 + 0.5 + 1) / 3)
    assert stats.probability_of_improvement([[1, 2], [0, 0]], [[0, 0], [1, 1]]) == pytest.approx(0.5)
    low, high = stats.improvement_interval([[1, 2, 3, 4]], [[2, 2.5, 3]], np.random.default_rng(3))
    assert 0 <= low < stats.probability_of_improvement([[1, 2, 3, 4]], [[2, 2.5, 3]]) < high <= 1


def test_area_under_the_curve_weighs_uneven_steps():
    assert stats.area_under_curve([0, 10, 40], [0.0, 1.0, 1.0]) == pytest.approx((5 + 30) / 40)
    assert stats.area_under_curve([0, 10, 40], [0.0, 1.0, 1.0], until=5) == pytest.approx(0.25)
    assert stats.area_under_curve([0, 10, 40], [0.0, 1.0, 1.0], until=99) == pytest.approx(35 / 40)
    assert stats.area_under_curve([10], [0.3]) == 0.3


def test_steps_to_ninety_per_cent_by_run_and_in_the_median():
    fast, slow, never = ([1, 2, 3], [0.5, 0.9, 0.8]), ([1, 2, 3], [0, 0.5, 1.0]), ([1, 2, 3], [0, 0, 0.89])
    assert [stats.steps_to(*c) for c in (fast, slow, never)] == [2.0, 3.0, np.inf]
    assert stats.steps_to_summary([fast, slow, never]) == {"runs": [2.0, 3.0, np.inf], "median": 3.0, "reached": 2, "level": 0.9}
    assert stats.steps_to_summary([fast, never])["median"] == np.inf
    assert stats.steps_to_summary([never, never])["median"] == np.inf


def test_importing_the_statistics_does_not_import_jax():
    code = "import sys, aimrl.stats; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_difference_that_one_seed_carries_is_not_carried_by_the_runs():
    wins = np.array([[33, 29], [61, 33], [41, 42]])
    counts = stats.Counts(("aim", "sparse"), ("11", "12", "13"), wins, np.full_like(wins, 100), None)
    result = stats.analyse(stats.Table({"Pick": counts}))
    (c,) = result["Pick"]["contrasts"]
    assert c["significant"]
    assert (c["runs"], c["difference"]) == (3, pytest.approx(0.31 / 3))
    assert c["p_runs"] == pytest.approx(scipy_stats.ttest_rel([0.33, 0.61, 0.41], [0.29, 0.33, 0.42]).pvalue)
    assert "Pick: not significant with one number a run (paired t): aim - sparse (3 seeds, p = 0.37)" in stats.format_table(result)


def test_runs_that_all_differ_alike_have_no_spread_to_test():
    wins = np.array([[50, 40], [60, 50]])
    counts = stats.Counts(("a", "b"), ("1", "2"), wins, np.full_like(wins, 100), None)
    (c,) = stats.analyse(stats.Table({"e": counts}))["e"]["contrasts"]
    assert (c["difference"], c["p_runs"]) == (pytest.approx(0.1), None)
