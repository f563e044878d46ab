"""The documentation says what is true: its code runs (at a small budget), its commands exist, its links lead somewhere."""

import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimrl.cli import main, options, training
from aimrl.cli.commands import COMMANDS
from aimrl.types import UserError

ROOT = Path(__file__).resolve().parent.parent
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts)]
TINY = (
    "--steps 400 --learning-starts 200 --num-envs 2 --round-steps 200 --round-updates 2 --batch-size 8 --eval-episodes 2 --no-tensorboard"
)
TINY_PYTHON = (
    'steps=400, learning_starts=200, num_envs=2, round_steps=200, round_updates=2, batch_size=8, agent_options={"hidden": (16,)}, '
)
# What the pages show, at the size of a test. Nothing else of them is changed.
BUDGETS = (
    (r"(aimrl train .*?)--steps \d+(?: --eval-every \d+ --eval-episodes \d+)?", rf"\1{TINY} --eval-every 400 --eval-episodes 2"),
    (r"--iterations \d+", "--iterations 2"),
    (r"--seeds \d+", "--seeds 1"),
    (r"--episodes \d+", "--episodes 2"),
    (r" --video\b", ""),
    (r"--step 2000\b", "--step 400"),
    (r"\bsteps=[\d_]+, ?", TINY_PYTHON),
    (r"\b(eval_every|eval_episodes|episodes)=[\d_]+", r"\1=2"),
    (r"eval_every=2\b", "eval_every=400"),
    (r"\bseeds=\d+, iterations=\d+", "seeds=2, iterations=2"),
    (r"evaluations=\d+", "evaluations=1"),
    (r"\bn = 5000\b", "n = 300"),
    (r"(total_timesteps=|\.learn\()[\d_]+", r"\g<1>180"),
    (r"range\(20_000\)", "range(120)"),
    (r"learning_starts=1_000", "learning_starts=100"),
    (r"buffer_size=50_000(?!, seed)", "buffer_size=500"),
    (r"(?m)^seeds = 6$", "seeds = [0, 1]"),
    (r"(?m)^steps = 10_000$", "steps = 400"),
    (r"(?m)^eval_every = .*$", "learning_starts = 200\nnum_envs = 2\nround_steps = 200\nround_updates = 2\nbatch_size = 8"),
    (r"(?m)^eval_episodes = .*$", "eval_episodes = 4\nagent_options.hidden = [16]"),
)
# Pages whose code runs as it stands there, in order: shell commands of aimrl, Python, and TOML files that name themselves.
RUN = [
    *("theory.md", "rewards.md", "tutorials/room.md", "tutorials/first-robot.md", "tutorials/own-environment.md"),
    *("tutorials/own-reward.md", "tutorials/it-doesnt-learn.md", "howto/pretrained.md"),
]
RUN_SLOWLY = ["tutorials/stable-baselines3.md", "tutorials/claim.md", "howto/sb3.md"]


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of every fenced block of a page."""
    for match in re.finditer(r"^```(\S*)[^\n]*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
        yield match[1], match[2]


def small(text: str) -> str:
    for pattern, replacement in BUDGETS:
        text = re.sub(pattern, replacement, text)
    return text


def command_lines(text: str) -> list[list[str]]:
    """The `aimrl …` commands in a block, as lists of words."""
    lines = [line.removeprefix("$ ").replace("python -m aimrl", "aimrl") for line in text.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("aimrl ") and "…" not in line]


def run_page(page: Path, folder: Path) -> int:
    """Run a page's blocks in order, in one folder; Python blocks share their names. How many ran."""
    names: dict = {}
    ran = 0
    for language, text in blocks(page):
        text = small(text)
        if language == "sh":
            for words in command_lines(text):
                assert main(words) == 0, f"aimrl {shlex.join(words)}"
                ran += 1
        elif language == "python":
            script = folder / f"block_{ran}.py"
            script.write_text(text, encoding="utf-8")
            names = runpy.run_path(str(script), init_globals=names)
            ran += 1
        elif language == "toml" and (name := re.match(r"# (\w+\.toml)\n", text)):
            (folder / name[1]).write_text(text, encoding="utf-8")
    return ran


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """An empty folder to work in, the examples importable, and registrations of environments undone afterwards."""
    import gymnasium
    import jax

    jax.config.update("jax_disable_most_optimizations", True)  # every program is compiled for a few calls only
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # also in processes of a sweep
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "pretrained", tmp_path / "pretrained")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = dict(gymnasium.registry)
    yield tmp_path
    jax.config.update("jax_disable_most_optimizations", False)
    for name in set(gymnasium.registry) - set(before):
        if not name.startswith(("Fetch", "Hand", "Adroit", "Ant", "Point", "Franka")):  # their package is imported once a process
            del gymnasium.registry[name]
    sys.modules.pop("square", None)


# --- code -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs(page, workshop):
    assert run_page(DOCS / page, workshop) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # Stable-Baselines3's and torch's
@pytest.mark.parametrize("page", RUN_SLOWLY)
def test_the_code_of_a_longer_page_runs(page, workshop):
    assert run_page(DOCS / page, workshop) > 0


def run_readme(word: str, folder: Path) -> dict:
    """Run the README's one Python block with `word` in it; the names it leaves."""
    (text,) = (small(text) for language, text in blocks(ROOT / "README.md") if language == "python" and word in text)
    (folder / "readme.py").write_text(text, encoding="utf-8")
    return runpy.run_path(str(folder / "readme.py"))


def test_the_python_of_the_readme_trains_and_prints_its_successes(workshop, capsys):
    run = run_readme("aimrl.train(", workshop)["run"]
    assert run.folder.resolve().is_relative_to(workshop)
    assert (run.folder / "checkpoints" / "400" / "meta.json").is_file()
    assert re.fullmatch(r"[012] of 2 goals held; the run is in runs/\S+", capsys.readouterr().out.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # Stable-Baselines3's and torch's
def test_the_stable_baselines3_lines_of_the_readme_train_an_agent_and_its_reward(workshop):
    model = run_readme("AIMReplayBuffer", workshop)["model"]
    assert model.num_timesteps >= 180
    assert model.replay_buffer.learner.rounds > 0


def test_every_python_block_of_the_readme_is_run():
    assert [language for language, _ in blocks(ROOT / "README.md")].count("python") == 2


# What each example promises: lines it prints, files it leaves. square.py is an environment, which a tutorial uses.
EXAMPLE_LINES = {
    "reach.py": [r"held \d+, reached \d+ of 2 goals", r"rank correlations of the potential: \{.*\}"],
    "windy.py": [r"\{'w1_hop': [\d.]+, 'w1_eq4': [\d.]+, 'w1_dual': [\d.]+\}", r"\[[01]\.\d+, [01]\.\d+\]"],
    "sb3_fetch_reach.py": [r"aim: success \d+% after 180 steps"],
}
EXAMPLE_FILES = {
    "reach.py": ["report.html", "runs/example-reach/checkpoints/400/meta.json", "runs/example-reach/figures/potential.json"],
    "windy.py": ["runs/example-windy/result.json", "runs/example-windy/tables.npz"],
    "sb3_fetch_reach.py": [],
}


def broken_promises(script: str, words: list[str], workshop: Path, monkeypatch, capsys) -> list[str]:
    """What an example, run at a small budget, promised to print or to write and didn't."""
    path = workshop / script
    path.write_text(small((EXAMPLES / script).read_text(encoding="utf-8")), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [script, *words])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    unsaid = [f"{line!r} is not in:\n{printed}" for line in EXAMPLE_LINES[script] if not re.search(rf"^{line}$", printed, re.M)]
    return unsaid + [f"{name} is empty" for name in EXAMPLE_FILES[script] if not (workshop / name).stat().st_size]


def test_every_example_has_a_promise():
    assert {p.name for p in EXAMPLES.glob("*.py")} - {"square.py"} == EXAMPLE_LINES.keys() == EXAMPLE_FILES.keys()


@pytest.mark.parametrize("script", ["reach.py", "windy.py"])
def test_an_example_runs(script, workshop, monkeypatch, capsys):
    assert broken_promises(script, [], workshop, monkeypatch, capsys) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # Stable-Baselines3's and torch's
def test_a_longer_example_runs(workshop, monkeypatch, capsys):
    assert broken_promises("sb3_fetch_reach.py", ["--steps", "180"], workshop, monkeypatch, capsys) == []


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.ipynb")))
def test_a_notebook_runs_cell_by_cell(name, workshop):
    book = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in book["cells"]), "notebooks are kept without outputs"
    names: dict = {}
    for i, cell in enumerate(cells):
        (workshop / f"cell_{i}.py").write_text(small(cell), encoding="utf-8")
        names = runpy.run_path(str(workshop / f"cell_{i}.py"), init_globals=names)
    assert len(cells) >= 3


def test_a_block_that_fails_fails_the_page(workshop):
    (workshop / "bad.md").write_text("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        run_page(workshop / "bad.md", workshop)
    (workshop / "worse.md").write_text("```sh\naimrl thoery room\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="thoery"):
        run_page(workshop / "worse.md", workshop)


# --- commands ---------------------------------------------------------------------------------------------------------------------------


def shown_commands() -> list[tuple[str, list[str]]]:
    fenced = [(page, text) for page in PAGES for language, text in blocks(page) if language in ("sh", "console", "", "text")]
    inline = [(page, code) for page in PAGES for code in re.findall(r"`(aimrl [a-z][^`]*)`", page.read_text(encoding="utf-8"))]
    found = [(page.name, words) for page, text in fenced + inline for words in command_lines(text)]
    return [(page, words) for page, words in found if len(words) > 1 and words[1] != "--help" and not {"[", "|"} & set("".join(words))]


def check_parses(words: list[str]) -> None:
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        raise UserError(f"no command {name}")
    if name == "train":
        training.parse([w for w in rest if w != "--resume"] + (["FetchReach-v4"] if "--resume" in rest else []))
    else:
        made = COMMANDS[name].options(rest) if name == "grid" else COMMANDS[name].options()
        options.parse(made, rest, COMMANDS[name].help)


def test_every_command_that_is_shown_parses(workshop):
    shown = shown_commands()
    assert len(shown) > 30
    for page, words in shown:
        if any(w.endswith(".json") and w.startswith("best") for w in words):
            continue  # a preset that a search would have written
        try:
            check_parses(words)
        except (UserError, SystemExit) as e:
            pytest.fail(f"{page}: aimrl {shlex.join(words)}: {e}")


def test_a_command_with_an_unknown_option_is_noticed():
    with pytest.raises(UserError):
        check_parses(["grid", "room", "--iteratoins", "3"])


def test_every_command_has_its_help_in_the_reference():
    text = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"<!-- help: (\w+) -->", text)[1:] == re.findall(r"^## (\w+)$", text, re.M)
    assert set(re.findall(r"^## (\w+)$", text, re.M)) == set(COMMANDS)


# --- links ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_pictures_lead_to_files_of_the_repository(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?://|#|mailto:", target):
            assert not target.startswith("/"), f"{target} is absolute"
            assert (page.parent / target.split("#")[0]).exists(), f"{target} does not exist"


def test_no_page_names_a_path_of_one_machine():
    for page in PAGES:
        assert not re.search(r"(?<![\w.])/(home|work|root|Users|tmp)/", page.read_text(encoding="utf-8")), page
