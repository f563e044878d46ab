"""`aimrl paper`: everything the paper shows is listed and can be made, and a caption's verdict follows from the data."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import jax
import numpy as np
import pytest
from run_folders import make_run

from aimrl import cli, config, grid, paper, runs, stats, sweep
from aimrl.agents.soft_q import SoftQConfig
from aimrl.envs import grid as worlds
from aimrl.paper.budgets import TaskBudget
from aimrl.types import UserError

HERE = Path(__file__).parent

# The paper's labels, figure by figure with their panels, in its order of sections; the three hyperparameter tables have none there.
FIGURES = {
    "fig:example": [],
    "fig:gridworld": ["fig:grid_policy", "fig:reward", "fig:task_policy"],
    "fig:fetch": ["fig:reach", "fig:pick", "fig:push", "fig:slide"],
    "fig:windy_gridworld": ["fig:windy_grid", "fig:windy_reward", "fig:windy_policy"],
    "fig:toroid": ["fig:r_toroid", "fig:p_toroid", "fig:r_gnorm"],
    "fig:add_grid": ["fig:grid_disco", "fig:grid_ddl", "fig:grid_rnd", "fig:grid_smirl", "fig:grid_rew_ddl", "fig:grid_rew_rnd"],
    "fig:app_fetch": ["fig:app_reach", "fig:app_pick", "fig:app_push", "fig:app_slide"],
}


def call(capsys, *argv) -> tuple[int, list[str], list[str]]:
    code = cli.main(["paper", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err.splitlines()


def by_claim(verdicts: Any, word: str) -> bool | None:
    """What was found on the one statement that has `word` in it."""
    (found,) = [v for v in verdicts if word in (v["claim"] if isinstance(v, dict) else v.claim)]
    return found["holds"] if isinstance(found, dict) else found.holds


# --- the list ---------------------------------------------------------------------------------------------------------------------------


def test_every_figure_and_table_of_the_paper_is_listed_with_command_budgets_and_state(tmp_path, capsys):
    code, out, err = call(capsys, "--json", "--out", tmp_path)
    assert (code, err) == (0, [])
    items = json.loads(out[-1])["items"]
    assert {i["label"]: i["panels"] for i in items if i["kind"] == "figure"} == FIGURES
    assert [i["label"] for i in items if i["kind"] == "table"] == ["tab:anova", "tab:hyper_r", "tab:hyper_dense", "tab:hyper_aim"]
    for item in items:
        assert item["command"].startswith(f"aimrl paper {item['name']} --budget ")
        assert list(item["budgets"]) == ["smoke", "desk", "full"]
        assert item["state"] == {"made": False}
    text = "\n".join(call(capsys, "--out", tmp_path)[1])
    assert all(label in text for label in FIGURES)
    assert "not made" in text


def test_the_full_budget_is_the_papers_protocol(tmp_path):
    spec = paper.fetch_spec(paper.ITEMS["fetch"], "full", tmp_path)
    assert spec is not None
    for cell in spec.cells:
        reach = "Reach" in cell.config.env
        assert (cell.config.preset, cell.config.steps) == ("paper", 30_000 if reach else 1_000_000)
        assert (cell.config.eval_every, cell.config.eval_episodes) == (2_000 if reach else 20_000, 100)
        assert cell.config.reward != "smirl" or reach  # the paper didn't try it elsewhere
    assert {c.config.seed for c in spec.cells} == set(range(6))
    assert len(spec.cells) == 6 * (4 * 6 + 1)
    cells = {(c.world, c.reward): c.settings(paper.BUDGETS["full"]) for c in (paper.ROOM_AIM, paper.ROOM_TASK, paper.WINDY_AIM)}
    assert [s["iterations"] for s in cells.values()] == [100, 500, 50]
    assert {s["preset"] for s in cells.values()} == {"paper"}


def test_the_desk_budget_runs_what_it_says(tmp_path):
    spec = paper.fetch_spec(paper.ITEMS["fetch"], "desk", tmp_path)
    assert spec is not None
    steps = {(c.config.env, c.config.reward): c.config.steps for c in spec.cells}
    assert {r: n for (env, r), n in steps.items() if env == "FetchPush-v4"} == dict.fromkeys(("aim", "sparse", "dense"), 100_000)
    assert [steps["FetchReach-v4", r] for r in ("aim", "rnd")] == [4_000, 4_000]
    seeds = lambda env: sorted({c.config.seed for c in spec.cells if c.config.env == env})  # noqa: E731
    assert (seeds("FetchSlide-v4"), seeds("FetchReach-v4")) == ([11, 12, 13], [11, 12, 13, 14, 15, 16])


def test_fetch_figures_and_the_table_share_their_runs(tmp_path):
    names = {}
    for item in ("fetch", "app_fetch", "anova"):
        spec = paper.fetch_spec(paper.ITEMS[item], "desk", tmp_path)
        assert spec is not None
        names[item] = {spec.out / c.name: c.config for c in spec.cells}
    shared = names["fetch"].keys() & names["anova"].keys()
    assert len(shared) == 3 * (6 + 3 * 3)  # three rewards in both, six seeds of Reach and three of the others
    assert all(names["fetch"][k] == names["anova"][k] for k in shared)
    assert names["app_fetch"].keys() < names["anova"].keys()


@pytest.mark.parametrize(
    ("typed", "name"), [("fig:toroid", "toroid"), ("toroid", "toroid"), ("fig:push", "fetch"), ("grid_rnd", "add_grid")]
)
def test_a_label_or_a_panel_finds_its_figure(typed, name):
    assert paper.find(typed).name == name


def test_mistakes_are_answered_in_one_line_before_anything_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(grid, "run", None)
    (tmp_path / "file").touch()
    for argv, word in (
        (["fig:gridwolrd"], "gridworld"),
        (["gridworld", "--budget", "dask"], "desk"),
        (["--budget", "dask"], "desk"),
        (["gridworld", "--out", tmp_path / "file"], "cannot write"),
        (["gridworld", "--seeds", "3"], "unknown option"),
    ):
        code, out, err = call(capsys, *argv)
        assert (code, out, len(err)) == (2, [], 1)
        assert word in err[0]


# --- verdicts ---------------------------------------------------------------------------------------------------------------------------


def test_three_of_four_is_known_as_soon_as_it_can_be():
    for verdicts in itertools.product((True, False, None), repeat=4):
        known = [[v if v is not None else w for v, w in zip(verdicts, fill)] for fill in itertools.product((True, False), repeat=4)]
        possible = {sum(k) >= 3 for k in known}
        assert paper.at_least(3, verdicts) == (possible.pop() if len(possible) == 1 else None)


def test_an_interval_decides_only_what_lies_outside_it():
    x = paper.interval([0.5, 0.6, 0.7, 0.6])
    assert x.low < 0.6 < x.high
    assert (x.above(0.3), x.above(0.6), x.above(0.9)) == (True, None, False)
    assert (x.below(0.3), x.below(0.6), x.below(0.9)) == (False, None, True)
    d = paper.interval([0.5, 0.6, 0.7, 0.6], [0.55, 0.6, 0.65, 0.6])
    assert d.mid == pytest.approx(0, abs=1e-12)
    assert (d.within(0.2), d.within(0.01)) == (True, None)
    assert paper.interval([0.9, 0.9, 0.9], [0.1, 0.1, 0.1]).within(0.2) is False
    few = paper.interval([0.9, 0.9])
    assert (few.mid, few.above(0.5), few.below(0.5)) == (0.9, None, None)
    assert paper.interval(None).above(0.0) is None


def test_edges_of_the_torus_cost_nothing_for_its_own_distance_and_much_for_the_plane():
    world = worlds.load("torus")
    around = np.minimum(np.abs(world.xy - (7, 7)), 10 - np.abs(world.xy - (7, 7))).sum(1)
    assert paper.edge_ratio(world, around.astype(float)) == pytest.approx(1.0, abs=0.12)
    assert paper.edge_ratio(world, world.xy.sum(1).astype(float)) == pytest.approx(9.0)


def test_the_four_ways_around_the_torus_are_told_apart():
    world = worlds.load("torus")
    assert paper.ways(world, np.ones(100)) == pytest.approx([0.25] * 4)
    one = np.zeros(100)
    one[[world.state_at(3, 3), world.state_at(4, 6)]] = 1  # up and to the right of (2, 2), before (7, 7)
    assert sorted(paper.ways(world, one)) == [0, 0, 0, 1]


def made_up(cell: paper.GridCell, rate: float, where: np.ndarray | None = None, seeds: int = 6) -> paper.GridRun:
    """A grid run with this success whose reward is minus the exact distance."""
    world = worlds.load(cell.world)
    rates = np.clip(rate + np.linspace(-0.02, 0.02, seeds), 0, 1)
    visits = np.tile(np.ones(world.n_states) if where is None else where.astype(float), (seeds, 1))
    potential = np.tile(-0.1 * grid.optimal_distance(world), (seeds, 1))
    return paper.GridRun(cell, world, cell.iterations, rates, visits, potential, potential, 0.1)


def judge(name: str, found: dict[paper.GridCell, paper.GridRun]) -> list[paper.Verdict]:
    return list(paper.ITEMS[name].make(paper.Material("desk", found, paper.Curves({}), ())).verdicts)


def test_statements_on_the_room_follow_the_success_of_both_rewards():
    good, bad = [judge("gridworld", {paper.ROOM_AIM: made_up(paper.ROOM_AIM, a), paper.ROOM_TASK: made_up(paper.ROOM_TASK, b)})
                 for a, b in ((0.9, 0.0), (0.1, 0.7))]  # fmt: skip
    assert [v.holds for v in good] == [True, True, True, True]
    assert [v.holds for v in bad] == [False, False, False, True]
    steep = made_up(paper.ROOM_AIM, 0.9)
    steep = dataclasses.replace(steep, potential=steep.potential * 3)  # three bounds a step
    assert by_claim(judge("gridworld", {paper.ROOM_AIM: steep, paper.ROOM_TASK: made_up(paper.ROOM_TASK, 0)}), "smoothly") is False


def test_statements_on_the_wind_and_the_other_rewards_follow_where_the_time_is_spent():
    world = worlds.load("room")
    x, y = world.xy.T
    low, corner = (x == 4) & (y <= 1), (x <= 3) & (y <= 2)
    calm = made_up(paper.CALM_AIM, 1)
    windy = {
        w: judge("windy_gridworld", {paper.WINDY_AIM: made_up(paper.WINDY_AIM, 0.95, 1 + w * low), paper.CALM_AIM: calm}) for w in (1, -0.5)
    }
    assert [[v.holds for v in found] for found in windy.values()] == [[True, True], [True, False]]
    cells = paper.ITEMS["add_grid"].grids
    found = {c: made_up(c, 0.02, corner if c.reward == "smirl" else None) for c in cells}
    assert [v.holds for v in judge("add_grid", found)] == [True] * 4
    found |= {c: made_up(c, 0.6, corner if c.reward == "rnd" else None) for c in cells if c.reward != "mc"}
    assert [v.holds for v in judge("add_grid", found)] == [False] * 4


def test_a_reward_that_knows_the_torus_is_told_from_one_that_does_not():
    aim, wgan = made_up(paper.TORUS_AIM, 1), made_up(paper.TORUS_WGAN, 0)
    plane = np.tile(-np.abs(wgan.world.xy - (7, 7)).sum(1).astype(float), (6, 1)) * (1 + 0.01 * np.arange(6))[:, None]
    wgan = dataclasses.replace(wgan, reward=plane)
    assert [v.holds for v in judge("toroid", {paper.TORUS_AIM: aim, paper.TORUS_WGAN: wgan})] == [True] * 4
    swapped = dataclasses.replace(aim, reward=plane * 1.0, visits=np.eye(100)[[aim.world.state_at(3, 3)] * 6])
    assert [v.holds for v in judge("toroid", {paper.TORUS_AIM: swapped, paper.TORUS_WGAN: aim})] == [True, False, False, False]


def test_the_manhattan_distance_is_compared_with_the_exact_one(tmp_path):
    outcome = paper.reproduce("example", "smoke", tmp_path, progress=False)
    assert [v["holds"] for v in outcome.verdicts] == [True, True, True]  # exact: no budget is too small
    assert "Manhattan 3, exact optimal number of steps 17" in outcome.verdicts[0]["evidence"]
    assert "36 of 100" in outcome.verdicts[1]["evidence"]  # x < 2 or y < 2: the way around is shorter


# --- tables -----------------------------------------------------------------------------------------------------------------------------

COMMON = """n_sampled_goal 4, goal_selection_strategy future, buffer_size 1000000, batch_size 256, random_exploration 0.3,
target_policy_noise 0.2, learning_rate 0.001, noise_type normal, noise_std 0.2, MLP size (256, 256, 256), learning_starts 1000"""
TABLES = {
    "sparse": {"gamma": 0.95, "train_freq": 10, "gradient_steps": 10, "tau": 0.05},
    "dense": {"gamma": 0.95, "train_freq": 100, "gradient_steps": 200, "policy_delay": 5, "tau": 0.05},
    "aim": {"gamma": 0.9, "train_freq": 100, "gradient_steps": 200, "disc_train_freq": 100, "disc_steps": 20, "tau": 0.1},
}


@pytest.mark.parametrize("reward", ["sparse", "dense", "aim", "aim+r"])
def test_the_preset_paper_is_the_papers_table(reward):
    printed = {f"{k}": v for k, v in TABLES[reward.removesuffix("+r")].items()}
    ours = paper.preset_table(reward)
    assert {k: ours[k] for k in printed} == printed
    rest = ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in ours.items() if k not in printed)
    assert rest.replace("4.0", "4") == " ".join(COMMON.split())


def test_a_preset_that_departs_from_the_table_is_reported(tmp_path, monkeypatch, capsys):
    assert paper.reproduce("hyper_aim", "smoke", tmp_path, progress=False).verdicts[0]["verdict"] == "holds"
    changed = lambda reward: config._paper(reward) | {"batch_size": 512}  # noqa: E731
    monkeypatch.setitem(config.PRESETS, "paper", changed)
    code, out, _ = call(capsys, "hyper_aim", "--budget", "smoke", "--out", tmp_path)
    assert code == 0
    assert out[0].startswith("does not hold")
    assert "batch_size (aim): 512" in out[0]


def test_the_papers_own_table_has_dense_like_odds_in_two_environments_not_three():
    table = paper.published()
    assert paper.similar(table, "aim") == [True, True, False, False]  # Slide, Push, PickAndPlace, Reach
    assert paper.similar(table, "aim+r") == [True, True, True, False]
    assert paper.higher(table, "aim") == paper.higher(table, "aim+r") == [True] * 4
    assert "*-5.01 (0.35)" in stats.format_table(table)


# --- grid worlds from start to end ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_grids(monkeypatch):
    """Networks, gathers and budgets that only show that the parts fit."""
    small = grid.Preset(
        grid.GridConfig(q=SoftQConfig(hidden=(4,), entropy=0.3), gather=40, rounds=1, q_batch=4, reward_updates=1, reward_batch=4), {}, {}
    )
    monkeypatch.setitem(grid.PRESETS, "paper", small)
    monkeypatch.setitem(paper.BUDGETS, "smoke", dataclasses.replace(paper.BUDGETS["smoke"], grid_seeds=3, grid_share=0.02))
    monkeypatch.setattr(grid, "EPISODES", 4)
    jax.config.update("jax_disable_most_optimizations", True)  # these programs run twice: compiling is the cost
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def test_a_grid_figure_is_made_once_and_stays_undecided_at_a_smoke(tiny_grids, tmp_path, capsys, monkeypatch):
    code, out, err = call(capsys, "toroid", "--budget", "smoke", "--out", tmp_path, "--json", "--quiet")
    assert (code, err) == (0, [])
    folder = tmp_path / "toroid"
    assert json.loads(out[-1])["folder"] == str(folder)
    height, width = iio.imread(folder / "figure.png").shape[:2]
    assert width > 2.5 * height  # three panels in a row, as in the paper
    caption = (folder / "caption.md").read_text()
    assert caption.count("**not decided at this budget**") == 4
    assert all(f"\n- ({letter}) " in caption for letter in "abc")
    data = runs.read_json(folder / "data.json")
    assert data["data"]["torus aim 100"]["iterations"] == 2

    trained = []
    monkeypatch.setattr(grid, "run", lambda **settings: trained.append(settings["reward"]))
    assert call(capsys, "toroid", "--budget", "smoke", "--out", tmp_path, "--quiet")[0] == 0
    assert trained == []
    monkeypatch.setitem(grid.PRESETS, "paper", dataclasses.replace(grid.PRESETS["paper"], rewards={"wgan": {"hidden": (8,)}}))
    call(capsys, "toroid", "--budget", "smoke", "--out", tmp_path, "--quiet")
    assert trained == ["wgan"]  # other settings than the kept run's

    state = paper.state(paper.ITEMS["toroid"], tmp_path)
    assert (state["made"], state["budget"]) == (True, "smoke")
    assert "2 grid runs of 3 seeds" in state["from"]
    listed = "\n".join(call(capsys, "--out", tmp_path)[1])
    assert f"made at budget smoke on {state['when']} from 2 grid runs" in listed
    assert "4 not decided at this budget" in listed


def test_a_smaller_budget_never_replaces_what_a_larger_one_made(tmp_path, capsys):
    paper.reproduce("example", "full", tmp_path, progress=False)
    before = (tmp_path / "example" / "data.json").read_bytes()
    code, _, err = call(capsys, "example", "--budget", "smoke", "--out", tmp_path)
    assert code == 2
    assert "made at budget full" in err[0]
    assert (tmp_path / "example" / "data.json").read_bytes() == before


def test_a_damaged_data_file_is_not_made_and_says_why(tmp_path):
    (tmp_path / "toroid").mkdir()
    (tmp_path / "toroid" / "data.json").write_text("{")
    assert "can't be read" in paper.state(paper.ITEMS["toroid"], tmp_path)["problem"]
    assert "can't be read" in paper.listing_text(paper.listing(tmp_path))


# --- Fetch ------------------------------------------------------------------------------------------------------------------------------


def runs_of(
    out: Path, item: str, best: dict[str, float], task_best: dict[tuple[str, str], float] | None = None, budget: str = "desk"
) -> None:
    """Made-up finished runs in the places of an item's cells."""
    spec = paper.fetch_spec(paper.ITEMS[item], budget, out)
    assert spec is not None
    task = {env: name for name, env in paper.TASKS.items()}
    for cell in spec.cells:
        c = cell.config
        share = (task_best or {}).get((task[c.env], c.reward), best[c.reward])
        settings = {k: v for k, v in runs.plain(dataclasses.asdict(c)).items() if k not in ("env", "reward", "seed", "steps")}
        make_run(spec.out / cell.name, c.env, c.reward, c.seed, share, **settings)


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.setattr(sweep, "run", lambda *a, **k: sweep.Summary())


BEST = {"aim": 0.9, "aim+r": 0.97, "dense": 0.9, "sparse": 0.4, "rnd": 0.2, "mc": 0.2, "gail": 0.2, "smirl": 0.02}


def test_statements_on_the_curves_follow_the_runs(tmp_path, no_training, capsys):
    slide = {("Slide", r): 0.6 for r in ("aim", "dense", "sparse", "gail")} | {("Slide", r): 0.03 for r in ("rnd", "mc")}
    runs_of(tmp_path, "fetch", BEST, slide, "full")
    code, _, err = call(capsys, "fetch", "--budget", "full", "--out", tmp_path, "--quiet")
    assert (code, err) == (0, [])
    verdicts = runs.read_json(tmp_path / "fetch" / "data.json")["verdicts"]
    for word, holds in (("speeds up", True), ("close", True), ("in Slide AIM", True), ("compare well", False), ("outperforms", True)):
        assert by_claim(verdicts, word) is holds
    for word, holds in (("RND helps", False), ("MC helps", False), ("fail in Slide", True), ("GAIL works", True), ("SMiRL", True)):
        assert by_claim(verdicts, word) is holds
    assert {v["verdict"] for v in verdicts} == {"holds", "does not hold"}
    height, width = iio.imread(tmp_path / "fetch" / "figure.png").shape[:2]
    assert 1.1 < width / height < 1.6  # two by two


def test_where_nothing_was_learned_nothing_is_decided(tmp_path, no_training):
    runs_of(tmp_path, "fetch", dict.fromkeys(BEST, 0.01))
    outcome = paper.reproduce("fetch", "desk", tmp_path, progress=False)
    assert {v["verdict"] for v in outcome.verdicts} == {"not decided at this budget"}


def test_what_was_not_run_at_a_budget_is_not_decided_there(tmp_path, no_training):
    runs_of(tmp_path, "fetch", BEST)
    verdicts = [*paper.reproduce("fetch", "desk", tmp_path, progress=False).verdicts]
    assert by_claim(verdicts, "compare well") is False  # the bonuses were run on Reach
    assert by_claim(verdicts, "RND helps") is None
    assert by_claim(verdicts, "speeds up") is True


def test_runs_of_other_settings_are_left_out_and_named(tmp_path, no_training):
    runs_of(tmp_path, "app_fetch", BEST)
    path = tmp_path / "runs" / "fetch-desk" / "FetchPush-v4" / "aim-td3-fast" / "seed-11" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"reward_scale": 1.0}))
    paper.reproduce("app_fetch", "desk", tmp_path, progress=False)
    data = runs.read_json(tmp_path / "app_fetch" / "data.json")
    assert list(data["data"]["Push aim"]) == ["12", "13"]
    assert any("another run: its reward_scale" in note for note in data["notes"])


def test_a_caption_compares_methods_at_the_last_step_they_share(tmp_path, no_training):
    runs_of(tmp_path, "app_fetch", BEST)
    for seed in (11, 12, 13):
        evals = tmp_path / "runs" / "fetch-desk" / "FetchPush-v4" / "aim+r-td3-fast" / f"seed-{seed}" / "evals.jsonl"
        evals.write_text("\n".join(evals.read_text().splitlines()[:5]) + "\n")  # ended half-way
    (tmp_path / "runs" / "fetch-desk" / "FetchPush-v4" / "aim-td3-fast" / "seed-11" / "evals.jsonl").write_text("")  # not begun
    paper.reproduce("app_fetch", "desk", tmp_path, progress=False)
    caption = (tmp_path / "app_fetch" / "caption.md").read_text()
    assert "Push at step 10,000: " in caption
    assert "PickAndPlace at step 20,000: " in caption


def test_the_odds_are_compared_at_2000_steps_in_reach_and_at_the_end_elsewhere(tmp_path, no_training):
    runs_of(tmp_path, "anova", BEST)
    outcome = paper.reproduce("anova", "desk", tmp_path, progress=False)
    data = runs.read_json(tmp_path / "anova" / "data.json")["data"]["result"]
    assert {task: entry["step"] for task, entry in data.items()} == {
        "Slide": 20_000,
        "Push": 20_000,
        "PickAndPlace": 20_000,
        "Reach": 2_000,
    }
    assert "2 of the 4 tested, so that there the sentence does not hold" in outcome.verdicts[0]["evidence"]
    caption = (tmp_path / "anova" / "caption.md").read_text()
    ours, theirs = caption.split("The paper's\n")
    rows = [line.split("|")[0].strip() for line in ours.splitlines() if line.startswith("aim")]
    assert rows == ["aim+r - dense", "aim - dense", "aim+r - sparse", "aim - sparse"]  # the paper's order
    assert "*-5.01 (0.35)" in theirs
    better = next(c for c in data["Push"]["contrasts"] if (c["a"], c["b"]) == ("aim", "sparse"))
    assert better["significant"] is (paper.higher(data, "aim")[1])
    assert by_claim(outcome.verdicts, "all four") is all(paper.higher(data, a)[i] for a in ("aim", "aim+r") for i in range(4))


def test_equal_failures_are_no_similarity(tmp_path, no_training):
    runs_of(tmp_path, "anova", dict.fromkeys(BEST, 0.01))
    outcome = paper.reproduce("anova", "desk", tmp_path, progress=False)
    assert [v["holds"] for v in outcome.verdicts] == [None, None]


def test_failed_runs_are_named_and_the_rest_is_still_shown(tmp_path, monkeypatch, capsys):
    runs_of(tmp_path, "app_fetch", BEST, {("Push", "aim"): 0.9})
    monkeypatch.setattr(sweep, "run", lambda *a, **k: sweep.Summary(failed={"FetchPush-v4/aim-td3-fast/seed-0": "out of memory"}))
    code, out, _ = call(capsys, "app_fetch", "--out", tmp_path, "--quiet")
    assert code == 1
    assert "failed: FetchPush-v4/aim-td3-fast/seed-0: out of memory" in out
    assert "out of memory" in (tmp_path / "app_fetch" / "caption.md").read_text()


def test_an_interrupted_figure_leaves_no_picture_and_can_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "run", lambda *a, **k: sweep.Summary(stopped=["FetchPush-v4/aim-td3-fast/seed-0"]))
    code, out, _ = call(capsys, "app_fetch", "--out", tmp_path, "--quiet")
    assert code == 130
    assert "goes on" in out[-1]
    assert not (tmp_path / "app_fetch" / "figure.png").exists()


def test_without_any_evaluation_there_is_one_clear_line(tmp_path, no_training):
    with pytest.raises(UserError, match="no run of app_fetch got to an evaluation"):
        paper.reproduce("app_fetch", "smoke", tmp_path, progress=False)


def test_a_curve_figure_from_real_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")  # in the run's process: compiling is the cost
    monkeypatch.setitem(paper.TASKS, "Reach", "point_env:Point-v0")
    monkeypatch.setitem(paper.ITEMS, "app_fetch", dataclasses.replace(paper.ITEMS["app_fetch"], fetch={"Reach": ("aim",)}))
    small = {"num_envs": 2, "round_steps": 40, "round_updates": 2, "batch_size": 8, "learning_starts": 40, "eval_every": 80}
    small |= {"eval_episodes": 3, "checkpoint_every": 80, "buffer_size": 200, "potential_updates": 1, "potential_batch": 8}
    plan = TaskBudget(80, (0,), overrides=small | {"agent_options": {"hidden": [4]}, "tensorboard": False})
    budget = dataclasses.replace(paper.BUDGETS["smoke"], tasks={"Reach": plan})
    monkeypatch.setitem(paper.BUDGETS, "smoke", budget)
    code, out, err = call(capsys, "app_fetch", "--budget", "smoke", "--out", tmp_path, "--jobs", 1)
    assert code == 0, err
    assert any("finished" in line for line in err)  # progress on standard error
    assert out[0].startswith("not decided at this budget")
    data = runs.read_json(tmp_path / "app_fetch" / "data.json")
    assert data["from"] == "1 run, preset fast, 1 seed, 80 steps"
    assert set(data["data"]) == {"Reach aim"}
    assert "Push: not run at this budget" in (tmp_path / "app_fetch" / "caption.md").read_text()
    assert math.isfinite(data["data"]["Reach aim"]["0"]["reached"][0])
