"""Every command but `train`: its options, its help, and the few lines that call the library, imported when it is called."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aimrl.cli import options, training
from aimrl.cli.options import SHORT_Q, Help, place
from aimrl.types import Backend, UserError


@dataclass(frozen=True)
class Command:
    """One command: to add one, write its options, its function, and a line in COMMANDS."""

    help: Help
    fields: type
    run: Callable[[Any], int | None]

    def options(self) -> type:
        return options.tyro_class(self.fields, options.columns(self.fields))

    def start(self, argv: Sequence[str]) -> int | None:
        typed = options.parse(self.options(), argv, self.help)
        return self.run(self.fields(**{name: getattr(typed, name) for name in self.fields.__dataclass_fields__}))


@dataclass(frozen=True)
class TrainCommand:
    """`train` makes its options from what is typed."""

    help: Help = training.HELP

    def options(self) -> type:
        return training.option_class(["--help"])[0]

    def start(self, argv: Sequence[str]) -> int | None:
        return training.run(argv)


@dataclass(frozen=True)
class GridCommand:
    """`grid` has the options of the reward that is typed as well."""

    help: Help

    def options(self, argv: Sequence[str] = ()) -> type:
        return self._made(argv)[0]

    def start(self, argv: Sequence[str]) -> None:
        made, name, reward = self._made(argv)
        typed = options.parse(made, argv, self.help)
        grid(Grid(**{f: getattr(typed, f) for f in Grid.__dataclass_fields__}), options.changed(getattr(typed, name), reward))

    def _made(self, argv: Sequence[str]) -> tuple[type, str, Any]:
        """The class of options, and the reward that the preset in `argv` starts from under the prefix of its options."""
        from aimrl.grid import preset_reward

        asked = options.typed_value(argv, "--reward") or Grid.reward
        reward = preset_reward(asked, options.typed_value(argv, "--preset") or Grid.preset)
        group = options.reward_group(asked, reward, argv)
        return options.tyro_class(Grid, [*options.columns(Grid), options.group(*group)]), *group


def answer(result: Any, text: str, as_json: bool) -> None:
    """The result on standard output, for a program or for a person."""
    from aimrl.runs import plain

    print(json_.dumps(plain(result)) if as_json else text)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- eval -------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Eval:
    run: Path = field(metadata=place("RUN"))  # folder of a training run
    episodes: int = 100  # episodes to play
    step: int | None = None  # checkpoint to take; the newest when left out
    video: bool = False  # draw some episodes to OUT/videos (MP4 and GIF)
    video_episodes: int = 3  # episodes to draw
    figures: bool = False  # draw the learned potential to OUT/figures
    goal: tuple[float, ...] = ()  # goal for which the potential is drawn; goals of three episodes when left out
    out: Path | None = field(default=None, metadata={"short": "-o"})  # folder of videos and figures; RUN when left out
    json: bool = False


def evaluate(o: Eval) -> None:
    from aimrl import runs
    from aimrl.progress import success_text
    from aimrl.train import load_run

    for name, count in (("--episodes", o.episodes), ("--video-episodes", o.video_episodes)):
        if count < 1:
            raise UserError(f"{name} must be at least 1, not {count}")
    if o.goal and not o.figures:
        raise UserError("--goal says which goal the figures are drawn for: add --figures")
    run, out = load_run(o.run, o.step), o.out or o.run
    if o.video or o.figures:
        runs.check_writable(out)
    record = run.evaluate(o.episodes)
    record["wall_s"] = runs.load_meta(o.run, run.step).get("wall_s")  # of the training, as in evals.jsonl
    reached = [s for s in record["steps_to_goal"] if s >= 0]
    text = f"{run.config.env} at step {run.step:,}, {record['episodes']} episodes: {success_text(record)}"
    text += f", in {sum(reached) / len(reached):.1f} steps on average" if reached else ""
    if o.video:
        from aimrl import videos

        try:
            for path in videos.record(run, out / "videos", o.video_episodes):
                note(f"video: {path}")
        except UserError as e:
            note(f"aimrl: {e}")
    if o.figures:
        from aimrl import look

        found = look.draw(run, out, goal=o.goal)
        note(f"figures: {out / 'figures'}" if found else f"no figures: the reward '{run.config.reward}' learns no potential")
    answer(record, text, o.json)


# --- grid -------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    world: str = field(metadata=place("WORLD"))  # room, windy, torus, or a text file with a drawing
    reward: str = "aim"  # aim aim+r sparse disco mc rnd smirl gail fairl wgan …
    preset: str = "fast"  # paper, fast
    seeds: int = 8  # how many seeds, all in one compiled program
    seed: int = 0  # the first of them
    iterations: int = 100  # of at most 5,000 environment steps each
    entropy: float | None = None  # entropy coefficient of the policy; the preset's when left out
    out: Path | None = None  # folder of the results; runs/grid-WORLD-REWARD when left out
    quiet: bool = field(default=False, metadata=SHORT_Q)
    json: bool = False


def grid(o: Grid, reward_options: dict[str, Any]) -> None:
    from aimrl import grid

    out = o.out or Path("runs") / f"grid-{Path(o.world).stem}-{o.reward}"
    if (out / "config.json").is_file():
        note(f"the earlier grid run in {out} is replaced when this one is done: another --out keeps both")
    result = grid.run(o.world, o.reward, o.preset, o.seeds, o.seed, o.iterations, o.entropy, out, not o.quiet, reward_options)
    rates = [float(r) for r in result["success_rate"]]
    text = f"{o.world}, reward {o.reward}, {result['iterations']} iterations, {result['env_steps']:,} environment steps a seed: "
    text += f"success {sum(rates) / len(rates):.0%} (worst seed {min(rates):.0%}, best {max(rates):.0%}); results in {out}"
    answer(result, text, o.json)


# --- theory -----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Theory:
    source: str = field(metadata=place("SOURCE"))  # room, windy, torus, a world's text file, or an .npz with P, start, goal, gamma, policy
    policy: Path | None = None  # .npy with policy[S, A]; a world's default is the uniform policy
    gamma: float | None = None  # discount; 0.99 for worlds
    json: bool = False


def theory(o: Theory) -> None:
    import numpy as np

    from aimrl import theory

    policy = theory.load_policy(o.policy) if o.policy else None
    if o.source.endswith(".npz"):
        mdp, policy = theory.load_npz(o.source, gamma=o.gamma, policy=policy)
    else:
        from aimrl.envs import grid

        world = grid.load(o.source)
        if len(world.goals) > 1:
            (x, y), others = world.xy[world.goals[0]], len(world.goals) - 1
            print(f"{world.name} has {others} more goal{'s' * (others > 1)}: this is of the one at x = {x}, y = {y}", file=sys.stderr)
        exact = grid.exact_mdp(world, 0.99 if o.gamma is None else o.gamma)
        mdp = theory.GoalMDP(P=exact.P, start=exact.start, goal=exact.goal, gamma=exact.gamma)
        policy = theory.uniform_policy(mdp) if policy is None else policy
    result = theory.analyse(mdp, policy)
    names = {
        "w1_primal": "W1 to the goal, primal (the paper's sum)",
        "w1_dual": "W1, dual (linear program)",
        "w1_closed_form": "W1, Proposition 3",
        "w1_eq4": "what the bound in expectation allows (eq. 4)",
        "w1_hop": "what AIM's penalty allows (undirected hops)",
    }
    lines = [f"{mdp.states} states, {mdp.actions} actions, goal {mdp.goal}, discount {mdp.gamma:g}"]
    lines += [f"  {text:<46} {float(result[name]):.6g}" for name, text in names.items()]
    begins = mdp.start > 0  # elsewhere the distance may be infinite
    start = lambda key: float(mdp.start[begins] @ np.asarray(result[key])[begins])  # noqa: E731
    lines.append(f"  {'expected steps from the start, this policy':<46} {start('d'):.6g}")
    lines.append(f"  {'expected steps from the start, best policy':<46} {start('d_opt'):.6g}")
    answer(result, "\n".join(lines), o.json)


# --- stats ------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stats:
    sources: tuple[Path, ...] = field(metadata=place("CSV_OR_RUNS"))  # a CSV file (env,algorithm,seed,episode,success) or run folders
    step: int | None = None  # training step to compare at; the largest all runs have when left out
    success: Literal["ever", "final"] = "ever"  # the goal was reached at some time (the paper's), or is met at the end
    markdown: bool = False  # the table as Markdown
    json: bool = False


def stats(o: Stats) -> None:
    from aimrl import stats

    table = stats.load(o.sources, o.step, o.success)
    for problem in table.problems:
        note(f"warning: {problem}")
    result = stats.analyse(table)
    answer(result, stats.format_table(result, "markdown" if o.markdown else "text") + "\n\n" + stats.sentence(result), o.json)


# --- sweep ------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    spec: Path = field(metadata=place("SPEC.toml"))  # environments, rewards, seeds and settings
    jobs: int | None = None  # runs at once; one a core when left out
    ray: str | None = None  # run on Ray: local, or the address of a cluster
    dry_run: bool = False  # only list the runs, their states and what they would take
    quiet: bool = field(default=False, metadata=SHORT_Q)
    json: bool = False


def sweep(o: Sweep) -> int:
    from dataclasses import asdict

    from aimrl import sweep

    spec = sweep.load_spec(o.spec)
    if o.dry_run:
        report = sweep.dry_run(spec, o.jobs)
        answer(report, sweep.dry_run_text(report), o.json)
        return 1 if any(row["state"].startswith("will fail") for row in report["cells"]) else 0
    sweep.check(spec, names=o.ray is None)  # a cluster may know more environments than this machine
    summary = sweep.run(spec, o.jobs, o.ray, progress=not o.quiet)
    again = f"\ngo on with: aimrl sweep {o.spec}" if summary.stopped else ""
    answer(asdict(summary) | {"out": spec.out}, summary.text() + again, o.json)
    return 1 if summary.failed else 130 if summary.stopped else 0


# --- tune and bench ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tune:
    env: str = field(metadata=place("ENV"))  # Gymnasium id of a goal environment
    reward: str = "aim"  # as for train
    agent: str | None = None  # as for train; the preset's when left out
    preset: str = "fast"  # what the search starts from
    trials: int = 20  # runs in all, those of earlier calls included
    steps: int | None = None  # environment steps of each; the preset's when left out
    jobs: int = 1  # runs at once
    seed: int = 0
    measure: Literal["final", "area"] = "final"  # what is best: success at the end, or over all evaluations
    only: tuple[str, ...] = ()  # search only these settings
    storage: str | None = None  # URL of a database, to search on several machines; a file in --out when left out
    name: str | None = None  # of the search
    out: Path | None = None  # folder; runs/tune-ENV-REWARD-AGENT-PRESET when left out
    quiet: bool = field(default=False, metadata=SHORT_Q)
    json: bool = False


def tune(o: Tune) -> int:
    from dataclasses import asdict

    from aimrl import tune

    values = asdict(o)
    quiet, as_json = values.pop("quiet"), values.pop("json")
    result = tune.tune(**values, progress=not quiet)
    answer(asdict(result), result.text(), as_json)
    return 0 if result.best_value is not None else 1


@dataclass(frozen=True)
class Bench:
    quick: bool = False  # shorter measurements: for a look, not for a claim
    quiet: bool = field(default=False, metadata=SHORT_Q)
    json: bool = False


def bench(o: Bench) -> None:
    from aimrl import bench

    result = bench.bench(o.quick, (lambda line: None) if o.quiet else note)
    answer(result, "\n".join(f"{k:<36} {v:.4g}" for k, v in result.items() if isinstance(v, int | float)), o.json)


# --- paper ------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paper:
    name: str | None = field(default=None, metadata=place("NAME"))  # a figure or table, by its label; all are listed when left out
    budget: str = "desk"  # smoke (a minute), desk (two cores: minutes for grids, two hours for Fetch), full (the paper's protocol)
    out: Path = Path("runs/paper")  # folder of figures, tables and the runs behind them
    jobs: int | None = None  # Fetch runs at once; one a core when left out
    ray: str | None = None  # do the Fetch runs on Ray: local, or the address of a cluster
    quiet: bool = field(default=False, metadata=SHORT_Q)
    json: bool = False


def paper(o: Paper) -> int:
    from dataclasses import asdict

    from aimrl import paper

    if o.name is None:
        paper.check_budget(o.budget)
        rows = paper.listing(o.out)
        answer({"items": rows, "budgets": {name: b.all_words for name, b in paper.BUDGETS.items()}}, paper.listing_text(rows), o.json)
        return 0
    outcome = paper.reproduce(o.name, o.budget, o.out, o.jobs, o.ray, progress=not o.quiet)
    answer(asdict(outcome), outcome.text(), o.json)
    return 130 if outcome.stopped else 1 if outcome.failed else 0


# --- report and watch -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    runs: tuple[Path, ...] = field(metadata=place("RUNS"))  # run folders, or folders of them
    out: Path = field(default=Path("report.html"), metadata={"short": "-o"})  # file to write
    title: str | None = None  # heading; made from the runs when left out


def report(o: Report) -> None:
    from aimrl import report

    if not o.runs:
        raise UserError("give the folders of the runs to report on")
    for problem in report.write(o.runs, o.out, o.title):
        note(f"warning: {problem}")
    print(f"report: {o.out}")


@dataclass(frozen=True)
class Watch:
    run: Path = field(metadata=place("RUN"))  # folder of a training run, finished or not
    web: bool = False  # serve the live report on this machine only (127.0.0.1)
    port: int = 0  # port for --web; a free one when left out
    once: bool = False  # show where it stands and leave


def watch(o: Watch) -> None:
    from aimrl import watch

    watch.watch(o.run, web=o.web, port=o.port, once=o.once)


# --- doctor -----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Doctor:
    env: str = field(metadata=place("ENV"))  # Gymnasium id, package:Id for an environment of your own
    backend: Backend = "auto"  # simulator
    quick: bool = False  # only what `train` looks at first
    horizon: int | None = None  # time limit, where the environment has none
    json: bool = False


def doctor(o: Doctor) -> int:
    from aimrl.envs import doctor

    if o.horizon is not None and o.horizon < 1:
        raise UserError(f"--horizon must be at least 1, not {o.horizon}")
    findings = doctor.diagnose(o.env, o.backend, o.quick, o.horizon)
    healthy = doctor.healthy(findings)
    signs = {"ok": "ok   ", "warn": "warn ", "error": "ERROR"}
    lines = [f"{signs[f.level]}  {f.what}" + (f"\n       → {f.advice}" if f.advice else "") for f in findings]
    lines.append("fit for training" if healthy else "not fit for training yet")
    answer({"env": o.env, "healthy": healthy, "findings": [f.as_json() for f in findings]}, "\n".join(lines), o.json)
    return 0 if healthy else 2


COMMANDS: dict[str, Command | TrainCommand | GridCommand] = {
    "train": TrainCommand(),
    "eval": Command(
        Help(
            "eval",
            "Play episodes with a trained policy and report its success rates.",
            ("aimrl eval runs/FetchReach-v4-aim-s0", "aimrl eval runs/push --episodes 500 --json", "aimrl eval runs/push --video"),
        ),
        Eval,
        evaluate,
    ),
    "grid": GridCommand(
        Help(
            "grid",
            "Train on a grid world, all seeds in one compiled program, and draw what was learned.\n\n"
            "Every option of the reward is one here; the values shown are those of the preset and reward typed beside --help.",
            (
                "aimrl grid room",
                "aimrl grid windy --reward sparse --seeds 32 --iterations 50 --json",
                "aimrl grid windy --bound two-sided --out runs/windy-two-sided",
                "aimrl grid room --aim.form to-goal       # any option of the reward",
                "aimrl grid my_maze.txt --out runs/maze",
            ),
        )
    ),
    "theory": Command(
        Help(
            "theory",
            "Exact step distances, values and Wasserstein distances of a finite goal MDP.",
            ("aimrl theory room", "aimrl theory windy --gamma 0.95 --json", "aimrl theory mine.npz --policy policy.npy"),
        ),
        Theory,
        theory,
    ),
    "stats": Command(
        Help(
            "stats",
            "Compare algorithms over seeds: mixed-effects logistic model, all contrasts, Holm and Bonferroni.",
            ("aimrl stats results.csv", "aimrl stats runs/ --success final", "aimrl stats runs/a runs/b --step 100000 --json"),
        ),
        Stats,
        stats,
    ),
    "sweep": Command(
        Help(
            "sweep",
            "Run environments × rewards × seeds; finished runs are never run twice, stopped ones go on.",
            ("aimrl sweep fetch.toml --dry-run", "aimrl sweep fetch.toml --jobs 2", "aimrl sweep fetch.toml --ray local"),
        ),
        Sweep,
        sweep,
    ),
    "tune": Command(
        Help(
            "tune",
            "Search the declared ranges of the settings with Optuna; the best become a preset file.",
            ("aimrl tune FetchPush-v4 --trials 30 --steps 50000", "aimrl tune FetchReach-v4 --only agent.tau batch_size --jobs 2"),
        ),
        Tune,
        tune,
    ),
    "paper": Command(
        Help(
            "paper",
            "List the paper's figures and tables, or reproduce one at a stated budget.",
            ("aimrl paper --json", "aimrl paper gridworld --budget smoke", "aimrl paper tab:anova --budget full --ray local"),
        ),
        Paper,
        paper,
    ),
    "report": Command(
        Help(
            "report",
            "Write one self-contained HTML page about runs: curves, intervals, tables, pictures, videos.",
            ("aimrl report runs/reach -o report.html", "aimrl report runs/ -o all.html --title 'Four tasks'"),
        ),
        Report,
        report,
    ),
    "watch": Command(
        Help(
            "watch",
            "Follow a run in the terminal, or in a browser with --web.",
            ("aimrl watch runs/push", "aimrl watch runs/push --web --port 8000", "aimrl watch runs/push --once"),
        ),
        Watch,
        watch,
    ),
    "doctor": Command(
        Help(
            "doctor",
            "Is this a sound goal environment? Each finding says what to do about it.",
            ("aimrl doctor FetchPush-v4", "aimrl doctor your_package:YourEnv-v0", "aimrl doctor YourEnv-v0 --json"),
        ),
        Doctor,
        doctor,
    ),
    "bench": Command(
        Help(
            "bench",
            "Measure speed against Stable-Baselines3, SBX and the machine's own limit, side by side.",
            ("aimrl bench", "aimrl bench --quick --json"),
        ),
        Bench,
        bench,
    ),
}
