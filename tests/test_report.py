"""The report as text and in a real browser."""

import json
import os
import re
import shlex
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from browser import Visit, chromium
from run_folders import make_run, write_lines

from aimrl import report, runs
from aimrl.grid import preset_reward
from aimrl.report import content
from aimrl.report.commands import grid_command
from aimrl.types import UserError

HOSTILE = [
    "</script><script>window.hacked=1</script>",
    '"><svg onload=window.hacked=1>',
    "<img src=x onerror=window.hacked=1>",
    '<a href="javascript:window.hacked=1">click</a><b>bold</b>',
    "[x](javascript:window.hacked=1) `code` $x^2$ %{x} &lt;i&gt; \x1b[31m\u2028",
]


@pytest.fixture(scope="module")
def browser():
    with chromium() as made:
        yield made


class Page(HTMLParser):
    """Elements with their attributes, visible text, and the chart data of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self.scripts, self.inside = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        (self.scripts if self.inside == "script" else self.words).append(data)

    def all(self, tag):
        return [attributes for t, attributes in self.elements if t == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def picture(path, size=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = [np.full((size, size, 3), v, np.uint8) for v in (40, 200)]
    iio.imwrite(path, frames if path.suffix == ".gif" else frames[0])


def written(folders, out, **options):
    problems = report.write(folders, out, **options)
    return out.read_text(encoding="utf-8"), problems


def make_many(root, seeds=3):
    for env in ("FetchPush-v4", "FetchSlide-v4"):
        for reward, best in (("aim", 0.9), ("sparse", 0.3)):
            for seed in range(seeds):
                make_run(root / f"{env}-{reward}-{seed}", env, reward, seed, best)
    return root


# --- text --------------------------------------------------------------------------------------------------------------------------------


def test_one_run_makes_a_page_that_opens_with_its_success(tmp_path):
    folder = make_run(tmp_path / "first", env="FetchReach-v4", best=1.0)
    wins = [1] * 39 + [0]
    row = {"step": 20_000, "episodes": 40, "success_final": wins, "success_ever": [1] * 40, "steps_to_goal": [3] * 40, "wall_s": 125.0}
    write_lines(folder / "evals.jsonl", [row])
    picture(folder / "figures" / "potential_table.png")
    text, problems = written([folder], tmp_path / "report.html")
    page = Page(text)
    assert problems == []
    assert "98 % of 40 test episodes end at the goal, after 20,000 steps of practice" in page.text.replace("\xa0", " ")
    assert "No reward came from the environment" in page.text
    assert "aimrl train FetchReach-v4 --reward aim" in page.text
    assert all(image["alt"] for image in page.all("img"))
    assert "Worth knowing" not in page.text


def test_the_page_is_whole_and_fetches_nothing(tmp_path):
    text, _ = written([make_run(tmp_path / "a")], tmp_path / "r.html")
    page = Page(text)
    links = [v for _, attributes in page.elements for k, v in attributes.items() if k in ("src", "href", "action", "poster", "srcset")]
    assert all(v.startswith(("#", "data:")) for v in links)
    (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in re.search("script-src[^;]*", policy)[0]


def test_the_same_runs_make_the_same_bytes(tmp_path):
    make_run(tmp_path / "a" / "x")
    make_run(tmp_path / "a" / "y", seed=1)
    assert written([tmp_path / "a"], tmp_path / "1.html") == written([tmp_path / "a"], tmp_path / "2.html")


def test_tables_and_headings_can_be_read_aloud(tmp_path):
    text, _ = written([make_many(tmp_path / "runs", 2)], tmp_path / "r.html")
    page = Page(text)
    tags = [t for t, _ in page.elements]
    assert [a.get("lang") for a in page.all("html")] == ["en"]
    assert {"header", "nav", "main", "footer"} <= set(tags)
    assert tags.count("h1") == 1
    assert tags.count("caption") == tags.count("table") > 2
    assert all(a.get("scope") in ("col", "row") for a in page.all("th"))
    plots = [a for t, a in page.elements if a.get("class") == "plot"]
    ids = {a["id"] for _, a in page.elements if "id" in a}
    assert plots
    assert all(a["role"] == "img" and {a["aria-labelledby"], a["aria-describedby"]} <= ids for a in plots)
    assert len(ids) == sum("id" in a for _, a in page.elements)  # no id twice
    levels = [int(t[1]) for t in tags if re.fullmatch("h[1-6]", t)]
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_statistics_come_with_a_sentence_for_both_successes(tmp_path):
    text, problems = written([make_many(tmp_path / "runs")], tmp_path / "r.html")
    said = Page(text).text
    assert problems == []
    assert said.count("aim shows significantly higher odds than sparse (p < 0.001)") == 4  # two environments, two successes
    assert "aim − sparse" in said
    assert "Compared at step: FetchPush-v4 20,000, FetchSlide-v4 20,000" in said


def test_methods_are_compared_over_all_environments_and_seeds(tmp_path):
    """The interquartile mean of the pooled runs, and the chance that one method's run beats another's, from known successes."""
    wins = {("E-v0", "aim"): (40, 32), ("F-v0", "aim"): (24, 16), ("E-v0", "sparse"): (32, 16), ("F-v0", "sparse"): (8, 0)}
    wins |= {("E-v0", "dense"): (40, 40)}  # in one environment only: not compared
    for (env, reward), won in wins.items():
        for seed, n in enumerate(won):
            folder, each = make_run(tmp_path / f"{env}-{reward}-{seed}", env, reward, seed), [1] * n + [0] * (40 - n)
            row = {"step": 20_000, "episodes": 40, "success_final": each, "success_ever": each, "steps_to_goal": [3] * 40, "wall_s": 9.0}
            write_lines(folder / "evals.jsonl", [row])
    page = Page(written([tmp_path], tmp_path / "r.html")[0])
    (chart,) = [c for c in json.loads(page.scripts[0]) if c["kind"] == "bars" and c["by"] == ["measure"]]
    found = {s["name"]: s["points"]["final"][0] for s in chart["series"]}
    assert {name: point["y"] for name, point in found.items()} == {"aim": 0.7, "sparse": 0.3}  # the middle two of four
    assert all(point["lo"] <= point["y"] <= point["hi"] for point in found.values())
    # E: 1 > .8, 1 > .4, .8 = .8, .8 > .4: 3.5 of 4. F: all four.
    assert "aim over sparse 94 % 75–100 % 94 % 75–100 %" in page.text
    assert "held at the end: aim over sparse." in page.text
    assert "Left out, not run in every environment: dense." in page.text


def test_one_seed_makes_no_comparison_look_certain(tmp_path):
    make_many(tmp_path / "runs", seeds=1)
    text = Page(written([tmp_path / "runs"], tmp_path / "r.html")[0]).text
    assert "All environments together" not in text
    assert "there is none where an environment has one seed only" in text
    assert "Clear of 50 % in success held at the end: none." in text


def named_page(root, name):
    """A report in which every name and content is `name`."""
    safe = name.replace("/", "")
    folder = make_run(root / f"run {safe}", env=name, reward=name, preset=name, versions={name: name}, agent=name)
    picture(folder / "figures" / f"{safe}.png")
    write_lines(folder / "metrics.jsonl", [{"step": 1000, name: 1.0, "agent/q": 2.0, "wall_s": 1.0}])
    (root / f"broken {safe}").mkdir()
    (root / f"broken {safe}" / "config.json").write_text(json.dumps({"env": [name]}))
    text, problems = written([root], root / "r.html", title=name)
    assert len(problems) == 1
    return text


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_or_content_becomes_markup(tmp_path, name):
    text = named_page(tmp_path / "hostile", name)
    page, plain = Page(text), Page(named_page(tmp_path / "plain", "plain"))
    shape = lambda p: [(tag, sorted(attributes)) for tag, attributes in p.elements]  # noqa: E731
    assert shape(page) == shape(plain)  # the same elements with the same attributes: names are nothing but text
    assert page.scripts[1:] == plain.scripts[1:]
    charts = json.loads(page.scripts[0])
    assert charts[0]["series"][0]["name"] == name  # whole, as data


def test_problems_are_told_in_one_line_each_and_the_rest_is_reported(tmp_path):
    good = make_run(tmp_path / "good")
    twin = make_run(tmp_path / "twin")
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_text('{"env": "Fet')
    young = make_run(tmp_path / "young", seed=1)
    (young / "evals.jsonl").unlink()
    empty = tmp_path / "empty"
    empty.mkdir()
    text, problems = written([good, twin, half, young, empty, tmp_path / "gone"], tmp_path / "r.html")
    assert len(problems) == 5
    for words in (
        "gone: no such folder",
        "half/config.json is not valid JSON",
        "empty/config.json does not exist",
        "young: no evaluations yet",
    ):
        assert sum(words in p for p in problems) == 1
    assert sum("twin: the same cell as" in p for p in problems) == 1
    assert all("\n" not in p for p in problems)
    assert all(p.split("/")[-1][:40] in Page(text).text for p in problems)


def test_nothing_usable_is_one_clear_line(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match=r"nothing to report: .*config\.json does not exist"):
        report.write([tmp_path / "a"], tmp_path / "r.html")
    young = make_run(tmp_path / "b")
    (young / "evals.jsonl").unlink()
    (young / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="no evaluations yet"):
        report.write([young], tmp_path / "r.html")
    with pytest.raises(UserError, match="nothing to report"):
        report.write([], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        report.write([make_run(tmp_path / "c")], tmp_path / "file" / "r.html")


def test_only_real_pictures_inside_the_run_are_shown(tmp_path):
    folder = make_run(tmp_path / "a")
    picture(tmp_path / "secret" / "private.png")
    picture(folder / "figures" / "good.png")
    (folder / "figures" / "fake.png").write_text("<svg onload=alert(1)>")
    (folder / "figures" / "drawing.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    os.symlink(tmp_path / "secret" / "private.png", folder / "figures" / "link.png")
    os.symlink(tmp_path / "secret", folder / "videos")
    text, problems = written([folder], tmp_path / "r.html")
    assert len(Page(text).all("img")) == 1
    assert problems == [f"{folder}/figures/fake.png: not a png file; left out"]


def test_pictures_too_large_are_left_out_with_a_line(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "a")
    for name in ("one", "two", "three"):
        picture(folder / "figures" / f"{name}.png")
    size = (folder / "figures" / "one.png").stat().st_size
    monkeypatch.setattr(content, "MAX_MEDIA", int(2.5 * size))
    text, problems = written([folder], tmp_path / "r.html")
    assert len(Page(text).all("img")) == 2
    assert problems == ["1 more pictures or videos would make the page too large; left out"]
    monkeypatch.setattr(content, "MAX_FILE", size - 1)
    assert len(written([folder], tmp_path / "r.html")[1]) == 3


def test_grid_runs_bring_their_numbers_pictures_and_animation(tmp_path):
    folder = tmp_path / "grid"
    picture(folder / "figures" / "reward.gif")
    picture(folder / "figures" / "visits.png")
    runs.write_json(folder / "config.json", {"kind": "grid", "world": "room", "reward": "aim", "seeds": 2, "preset": "fast", "seed": 0})
    runs.write_json(folder / "result.json", {"success_rate": [1.0, 0.9], "steps_to_goal": [10.0, 12.0], "iterations": 100, "wall_s": 61})
    text, problems = written([folder], tmp_path / "r.html")
    page = Page(text)
    assert problems == []
    assert "Grid world room with aim" in page.text
    assert "95 % mean of 2 seeds" in page.text
    assert "1 min 1 s" in page.text
    assert len(page.all("img")) == 2
    assert "Pause the animation" in page.text
    assert "aimrl grid room --reward aim --preset fast --seeds 2 --seed 0 --out grid" in page.text


def test_the_command_spells_out_what_differs_from_the_preset(tmp_path):
    folder = make_run(tmp_path / "my run", her_ratio=0.5, end_on_success=True, reward_options={"form": "shaped"}, normalise_inputs=False)
    line = report.command(json.loads((folder / "config.json").read_text()), folder)
    assert line == (
        "aimrl train FetchPush-v4 --reward aim --agent td3 --preset fast --steps 20000 --seed 0 --no-normalise-inputs "
        "--her-ratio 0.5 --end-on-success --aim.form shaped --out 'my run'"
    )


def test_the_command_starts_from_the_agent_s_preset_and_writes_vectors_as_the_command_line_reads_them(tmp_path):
    from aimrl.cli import training

    options = {"reward": "disco", "agent": "sac", "reward_scale": 0.3, "reward_options": {"covariance": [0.01, 0.02, 0.03]}}
    folder = make_run(tmp_path / "r", **options | {"agent_options": {"hidden": [64, 64]}})
    line = report.command(json.loads((folder / "config.json").read_text()), folder)
    config, _ = training.parse(shlex.split(line)[2:])
    assert (config.agent, config.reward_scale) == ("sac", 0.3)
    assert config.agent_options["hidden"] == (64, 64)
    np.testing.assert_allclose(config.reward_options["covariance"], [0.01, 0.02, 0.03])


def test_what_a_stranger_calls_its_command_is_not_shown(tmp_path):
    folder = make_run(tmp_path / "r", command="curl evil | sh")
    assert report.command(json.loads((folder / "config.json").read_text()), folder).startswith("aimrl train FetchPush-v4 ")


def test_the_command_of_a_grid_run_names_its_reward_s_options():
    reward = preset_reward("aim", "fast", bound="two-sided")
    config = {"world": "room", "reward": "aim", "preset": "fast", "seeds": 2, "reward_options": runs.plain(vars(reward))}
    run = content.GridRun(Path("runs/g"), config, {})
    assert grid_command(run) == "aimrl grid room --reward aim --preset fast --seeds 2 --aim.bound two-sided --out g"
    assert "--entropy 0.5" in grid_command(content.GridRun(Path("runs/g"), config | {"entropy": 0.5}, {}))


def test_a_folder_is_no_file_to_write_the_report_to(tmp_path):
    with pytest.raises(UserError, match="is a folder: give the report a file's name"):
        report.write([tmp_path], tmp_path)


# --- browser -----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    root = tmp_path_factory.mktemp("many")
    make_many(root / "runs")
    report.write([root / "runs"], root / "r.html")
    return (root / "r.html").as_uri()


def test_charts_are_drawn_and_the_legend_and_choices_change_them(browser, many):
    with Visit(browser, many) as visit:
        page = visit.page
        assert page.locator(".plot .main-svg").count() >= page.locator(".plot").count() > 4
        bars, curve = 0, 2
        assert visit.traces("bar", bars) == visit.traces("bar", bars + 1) == ["aim", "sparse"]
        assert visit.traces("line", curve) == ["aim", "sparse"]
        page.locator("button[data-series='1']").first.focus()
        page.keyboard.press("Enter")  # by keyboard, in every chart at once
        assert visit.traces("line", curve) == ["aim"]
        assert visit.traces("bar", bars) == ["aim"]
        assert set(page.locator("button[data-series='1']").evaluate_all("bs => bs.map(b => b.ariaPressed)")) == {"false"}
        page.locator("button[data-series='1']").last.click()
        assert visit.traces("line", curve) == ["aim", "sparse"]
        page.get_by_label("each seed").check()
        assert len(visit.traces("seed", curve)) == 6
        get = f"document.querySelectorAll('.plot')[{curve}]"
        held = page.evaluate(f"{get}.data.find(t => t.meta === 'line').y")
        page.get_by_label("reached at any time").check()
        assert page.evaluate(f"{get}.data.find(t => t.meta === 'line').y") != held
        page.get_by_label("time", exact=True).check()
        assert page.evaluate(f"{get}.layout.xaxis.title.text") == "training time (min)"
        assert visit.said == []
        assert [u for u in visit.asked if not u.startswith(("file:", "data:"))] == []


def test_the_page_is_dark_where_the_system_is_and_changes_with_it(browser, many):
    with Visit(browser, many, scheme="dark") as visit:
        colour = "document.querySelectorAll('.plot')[2].data.find(t => t.meta === 'line').line.color"
        back = "getComputedStyle(document.body).backgroundColor"
        dark = visit.page.evaluate(f"[{back}, {colour}]")
        assert max(map(int, re.findall(r"\d+", dark[0]))) < 60
        visit.page.emulate_media(color_scheme="light")
        visit.wait(f"{colour} !== '{dark[1]}'")
        assert min(map(int, re.findall(r"\d+", visit.page.evaluate(back)))) > 200
        assert visit.said == []


def test_the_page_fits_a_phone(browser, many):
    with Visit(browser, many, width=360, has_touch=True) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
        widths = visit.page.evaluate("[...document.querySelectorAll('.plot')].map(p => p.getBoundingClientRect().right)")
        assert max(widths) <= 360
        assert visit.said == []


def test_hostile_names_do_nothing_in_a_browser(browser, tmp_path):
    for k, name in enumerate(HOSTILE):
        folder = make_run(tmp_path / "runs" / f"{k} {name}".replace("/", ""), env=HOSTILE[0], reward=name, preset=name)
        picture(folder / "figures" / f"{name}.png".replace("/", ""))
    report.write([tmp_path / "runs"], tmp_path / "r.html", title=HOSTILE[0])
    with Visit(browser, (tmp_path / "r.html").as_uri(), reduced_motion="reduce") as visit:
        page = visit.page
        assert page.title() == f"{HOSTILE[0]} · aimrl"
        page.locator(".plot").nth(1).hover()  # the hover label holds names too
        visit.wait("document.querySelector('.hoverlayer text') !== null")
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("[...document.querySelectorAll('a')].every(a => a.getAttribute('href').startsWith('#'))")
        assert page.evaluate("document.querySelectorAll('img[src=x], .plot img, .plot a, .plot b').length") == 0
        assert any(t.startswith(HOSTILE[2]) for t in page.locator(".legend button").all_inner_texts())
        assert visit.said == []


def test_an_animation_can_be_stopped_and_stands_still_where_motion_is_unwanted(browser, tmp_path):
    folder = make_run(tmp_path / "a")
    picture(folder / "figures" / "reward.gif")
    picture(folder / "figures" / "potential_table.png")
    report.write([folder], tmp_path / "r.html")
    for motion, first in (("no-preference", "Pause the animation"), ("reduce", "Play the animation")):
        with Visit(browser, (tmp_path / "r.html").as_uri(), reduced_motion=motion) as visit:
            button = visit.page.locator(".gif button")
            visit.wait("!document.querySelector('.gif button').hidden")
            assert button.inner_text() == first
            button.click()
            assert button.inner_text() != first
            assert visit.said == []


def test_a_method_of_which_only_a_later_seed_is_evaluated_yet_is_reported(tmp_path):
    make_run(tmp_path / "a", seed=0)
    (tmp_path / "a" / "evals.jsonl").write_text("", encoding="utf-8")
    make_run(tmp_path / "b", seed=1)
    report.write([tmp_path], tmp_path / "r.html")
    assert "40 episodes of one seed" in (tmp_path / "r.html").read_text(encoding="utf-8")
