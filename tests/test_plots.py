"""What the figures show: reading run folders, grouping seeds, curves and intervals."""

import json

import numpy as np
import pytest
from run_folders import evaluation, make_run, write_lines

from aimrl import plots, runs
from aimrl.stats import data as stats_data
from aimrl.types import UserError


def with_evals(folder, shares, seed=0, episodes=100, **config):
    """A run whose evaluations have exactly these shares of success, at steps 1000, 2000, …"""
    make_run(folder, seed=seed, **config)
    rows = []
    for i, share in enumerate(shares, 1):
        wins = [1] * round(share * episodes) + [0] * round((1 - share) * episodes)
        rows.append(
            {
                "step": 1000 * i,
                "episodes": episodes,
                "success_final": wins,
                "success_ever": wins,
                "steps_to_goal": [7 if w else -1 for w in wins],
            }
        )
        rows[-1] |= {"return": wins, "wall_s": 10.0 * i * (seed + 1)}
    write_lines(folder / "evals.jsonl", rows)
    return folder


def groups_of(*folders):
    runs, problems = plots.read(folders)
    groups, more = plots.group(runs)
    return groups, problems + more


def test_the_centre_over_seeds_is_their_mean_and_the_interval_is_around_it(tmp_path):
    folders = [with_evals(tmp_path / str(s), [0.1, share], seed=s) for s, share in enumerate((0.6, 0.8, 1.0))]
    (group,), problems = groups_of(*folders)
    c = plots.curve(group, "final")
    assert problems == []
    assert c.of == "seeds"
    assert c.x.tolist() == [1000, 2000]
    np.testing.assert_allclose(c.mid, [0.1, 0.8])
    np.testing.assert_allclose((c.low[0], c.high[0]), (0.1, 0.1))  # the seeds agree: nothing to be unsure about
    assert 0.6 <= c.low[1] < 0.8 < c.high[1] <= 1.0


def test_the_interquartile_mean_leaves_out_the_extreme_seeds(tmp_path):
    folders = [with_evals(tmp_path / str(s), [share], seed=s) for s, share in enumerate((0.0, 0.5, 0.6, 1.0))]
    (group,), _ = groups_of(*folders)
    assert plots.curve(group, "final", centre="iqm").mid.tolist() == pytest.approx([0.55])
    assert plots.curve(group, "final", centre="mean").mid.tolist() == pytest.approx([0.525])


def test_one_seed_gets_wilsons_interval_of_its_episodes(tmp_path):
    (group,), _ = groups_of(with_evals(tmp_path / "a", [0.0, 0.5]))
    c = plots.curve(group, "final")
    assert c.of == "episodes"
    # Wilson by hand: 0 of 100 gives (0, z² / (n + z²)); 50 of 100 gives 1/2 ± z / (2 √(n + z²)).
    z2 = 1.96**2
    np.testing.assert_allclose((c.low[0], c.high[0]), (0, z2 / (100 + z2)), atol=1e-12)
    np.testing.assert_allclose((c.low[1], c.high[1]), 0.5 + np.array([-1, 1]) * 1.96 / (2 * np.sqrt(100 + z2)))


def test_seeds_of_different_lengths_are_compared_where_all_were_evaluated(tmp_path):
    (group,), _ = groups_of(with_evals(tmp_path / "a", [0.1, 0.2, 0.9], seed=0), with_evals(tmp_path / "b", [0.3, 0.4], seed=1))
    c = plots.curve(group, "final")
    assert c.x.tolist() == [1000, 2000]
    np.testing.assert_allclose(c.mid, [0.2, 0.3])


def test_over_wall_time_a_point_stands_at_the_seeds_mean_time(tmp_path):
    (group,), _ = groups_of(with_evals(tmp_path / "a", [0.1, 0.2], seed=0), with_evals(tmp_path / "b", [0.3, 0.4], seed=1))
    assert plots.curve(group, "final", "wall").x.tolist() == [15.0, 30.0]


def test_steps_to_the_goal_are_of_episodes_that_reach_it(tmp_path):
    (group,), _ = groups_of(with_evals(tmp_path / "a", [0.0, 0.1]))
    mid = plots.curve(group, "to_goal").mid
    assert np.isnan(mid[0])
    assert mid[1] == 7  # 90 of 100 episodes never get there and are not counted as −1


def test_of_two_evaluations_at_one_step_the_later_counts(tmp_path):
    folder = with_evals(tmp_path / "a", [0.2, 0.4])
    rows = [json.loads(line) for line in (folder / "evals.jsonl").read_text().splitlines()]
    rows.append(rows[0] | {"success_final": [1] * 100})
    write_lines(folder / "evals.jsonl", rows)
    evals, problems = plots.read_evals(folder)
    assert evals.final.tolist() == [1.0, 0.4]
    assert problems == []


def test_a_second_run_of_a_cell_is_left_out_with_one_line(tmp_path):
    a, b = with_evals(tmp_path / "a", [0.5]), with_evals(tmp_path / "b", [0.9])
    groups, problems = groups_of(a, b)
    assert [len(g.runs) for g in groups] == [1]
    assert problems == [f"{b}: the same cell as {a} (FetchPush-v4, aim, seed 0); left out"]


def test_a_run_older_than_a_setting_had_its_default(tmp_path):
    for seed in range(2):
        make_run(tmp_path / str(seed), seed=seed)
    path = tmp_path / "0" / "config.json"
    old = json.loads(path.read_text())
    assert old.pop("curiosity") == 0.0
    path.write_text(json.dumps(old))
    groups, _ = groups_of(tmp_path / "0", tmp_path / "1")
    assert [(g.name, len(g.runs)) for g in groups] == [("aim", 2)]


def test_runs_that_differ_in_an_option_are_methods_of_their_own(tmp_path):
    a = make_run(tmp_path / "a", reward_options={"form": "shaped"})
    b = make_run(tmp_path / "b", reward_options={"form": "biased"})
    groups, problems = groups_of(a, b)
    assert [g.name for g in groups] == ["aim (reward form biased)", "aim (reward form shaped)"]
    assert problems == []


def test_agent_and_preset_are_named_only_where_they_vary(tmp_path):
    folders = [make_run(tmp_path / "a", preset="fast"), make_run(tmp_path / "b", preset="paper"), make_run(tmp_path / "c", reward="dense")]
    groups, _ = groups_of(*folders)
    assert {g.name for g in groups} == {"aim (fast)", "aim (paper)", "dense (fast)"}
    assert groups_of(make_run(tmp_path / "d"))[0][0].name == "aim"


def test_mixed_versions_are_said(tmp_path):
    groups_problems = groups_of(make_run(tmp_path / "a", versions={"jax": "1"}), make_run(tmp_path / "b", seed=1, versions={"jax": "2"}))[1]
    assert groups_problems == ["FetchPush-v4: runs of mixed versions of jax (1, 2) are compared"]


def test_a_half_written_last_line_is_no_problem_and_a_damaged_one_is_said(tmp_path):
    folder = with_evals(tmp_path / "a", [0.1, 0.2, 0.3])
    whole = (folder / "evals.jsonl").read_text()
    (folder / "evals.jsonl").write_text(whole[:-20])
    evals, problems = plots.read_evals(folder)
    assert (len(evals.step), problems) == (2, [])
    lines = whole.splitlines()
    (folder / "evals.jsonl").write_text("\n".join([lines[0], lines[1][:30], lines[2], ""]))
    evals, problems = plots.read_evals(folder)
    assert evals.step.tolist() == [1000, 3000]
    assert problems == [f"{folder}/evals.jsonl: line 2 is damaged; left out"]
    assert list(stats_data.read_evals(folder, "success_final")[0]) == [1000, 3000]  # statistics and report are of the same evaluations
    assert [row["step"] for row in runs.read_lines(folder / "evals.jsonl")] == [1000, 3000]
    (folder / "evals.jsonl").write_text("\n".join([lines[0], "[]", lines[2], ""]))
    assert plots.read_evals(folder)[1] == [f"{folder}/evals.jsonl: line 2 is damaged; left out"]


@pytest.mark.parametrize("wrong", [{"step": -1}, {"step": True}, {"success_final": [2]}, {"success_ever": []}, {"success_final": "yes"}])
def test_an_impossible_evaluation_is_left_out_with_one_line(tmp_path, wrong):
    folder = make_run(tmp_path / "a")
    good = evaluation(1000, 0.5, np.random.default_rng(0))
    write_lines(folder / "evals.jsonl", [good | {"step": 500} | wrong, good])
    evals, problems = plots.read_evals(folder)
    assert evals.step.tolist() == [1000]
    assert len(problems) == 1
    assert "line 1 is no evaluation" in problems[0]


ODD = [None, True, -1, 0, 1, 2, 2**70, -0.5, 1e308, float("nan"), float("inf"), "", "1", [], [0], [1, 1], [0, "1"], [[]], {}, {"a": 1}]


def test_no_log_makes_the_reader_fail(tmp_path):
    rng = np.random.default_rng(0)
    names = ["step", "success_final", "success_ever", "steps_to_goal", "wall_s", "aim/w1"]
    (tmp_path / "config.json").write_text(json.dumps({"env": "E", "reward": "aim", "seed": 0, "steps": 10}))
    kept = 0
    for _ in range(300):
        rows = [{n: ODD[rng.integers(len(ODD))] for n in names if rng.random() < 0.9} for _ in range(20)]
        for name in ("evals.jsonl", "metrics.jsonl"):
            write_lines(tmp_path / name, rows)
        run, _ = plots.read_run(tmp_path)
        kept += len(run.evals.step)
        assert np.isfinite(run.evals.final).all()
        assert all(np.isfinite(values).all() for _, values in run.metrics.values())
    assert kept > 0  # now and then a line is an evaluation after all


@pytest.mark.parametrize("config", [{}, {"env": 3}, {"env": "E", "reward": "r", "seed": "0", "steps": 1}])
def test_a_configuration_without_its_cell_is_refused_in_one_line(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"config\.json is not a run's"):
        plots.read_run(tmp_path)


def test_metrics_are_thinned_to_what_a_screen_can_show_and_keep_their_mean(tmp_path):
    folder = make_run(tmp_path / "a")
    write_lines(folder / "metrics.jsonl", [{"step": i, "agent/q": float(i)} for i in range(1, 4001)])
    (group,), _ = groups_of(folder)
    c = plots.metric_curve(group, "agent/q")
    assert c is not None
    assert len(c.x) == 400
    assert c.mid.mean() == pytest.approx(2000.5)
    assert plots.metric_curve(group, "aim/w1") is None


def test_counts_for_the_mixed_model_are_taken_at_the_last_shared_step(tmp_path):
    folders = [with_evals(tmp_path / "a", [0.2, 0.3, 0.9], seed=0), with_evals(tmp_path / "b", [0.5, 0.6], seed=0, reward="dense")]
    tables, problems = plots.counts(groups_of(*folders)[0], "final")
    counts = tables["FetchPush-v4"]
    assert problems == []
    assert (counts.step, counts.algorithms) == (2000, ("aim", "dense"))
    assert counts.successes.tolist() == [[30, 60]]
    assert counts.episodes.tolist() == [[100, 100]]


def test_runs_without_a_common_step_are_said_and_not_tested(tmp_path):
    a, b = with_evals(tmp_path / "a", [0.2]), with_evals(tmp_path / "b", [0.2, 0.4], reward="dense")
    rows = (b / "evals.jsonl").read_text().splitlines()
    (b / "evals.jsonl").write_text(rows[1] + "\n")
    tables, problems = plots.counts(groups_of(a, b)[0], "final")
    assert tables == {}
    assert problems == ["FetchPush-v4: no step at which all 2 runs were evaluated; nothing is tested there"]


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (1.0, "100 %"), (0.85, "85 %"), (0.996, "99.6 %"), (0.004, "0.4 %"), (float("nan"), "–")]
)
def test_percent_says_almost_when_it_is_almost(share, text):
    assert plots.percent(share) == text


def test_four_environments_stand_two_by_two_as_in_the_paper(tmp_path):
    sizes = []
    for n in (2, 4):
        groups = groups_of(*(make_run(tmp_path / f"{n}-{i}", env=f"E{i}-v0") for i in range(n)))[0]
        picture = plots.draw_curves(groups, tmp_path / f"{n}.png").read_bytes()
        sizes.append((int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")))
    assert sizes[0][0] == sizes[1][0]  # as wide as two
    assert sizes[1][1] > 1.5 * sizes[0][1]


def test_curves_are_drawn_to_a_file_whatever_the_names(tmp_path):
    folders = [make_run(tmp_path / "a", env="Odd$env_{^-v0"), make_run(tmp_path / "b", env="Other-v0", reward="sparse")]
    path = plots.draw_curves(groups_of(*folders)[0], tmp_path / "out" / "curves.png", "ever", "wall")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(UserError, match="no runs to draw"):
        plots.draw_curves([], tmp_path / "none.png")
