"""Search over the configuration's declared ranges with Optuna: resumable, parallel, unpromising trials are pruned on their evaluations.

A trial is a run folder. The study lives in a journal file beside them, or in a database by URL.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aimrl import runs
from aimrl.collect import make_env
from aimrl.config import Config, make_config, preset_values
from aimrl.envs import vector
from aimrl.runs import locked
from aimrl.sweep import LOCK_WAIT, RETRIES, Interrupts, check_options, one_line, one_thread, safe_name
from aimrl.types import UserError, cores, nearest


@dataclass(frozen=True)
class Real:
    low: float
    high: float
    log: bool = False

    def suggest(self, trial: Any, name: str) -> float:
        return trial.suggest_float(name, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Whole:
    low: int
    high: int
    log: bool = False

    def suggest(self, trial: Any, name: str) -> int:
        return trial.suggest_int(name, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class OneOf:
    values: tuple[Any, ...]

    def suggest(self, trial: Any, name: str) -> Any:
        return trial.suggest_categorical(name, self.values)


Range = Real | Whole | OneOf

# Fields of the configuration by their names; of the agent and the reward with "agent." and "reward." before them.
COMMON: dict[str, Range] = {
    "round_updates": Whole(20, 400, log=True),
    "batch_size": OneOf((128, 256, 512, 1024)),
    "her_ratio": Real(0.5, 0.95),
    "random_final": Real(0.05, 0.5),
}
AGENT: dict[str, dict[str, Range]] = {
    "td3": {
        "agent.critic_rate": Real(1e-4, 3e-3, log=True),
        "agent.actor_rate": Real(1e-4, 3e-3, log=True),
        "agent.gamma": OneOf((0.9, 0.95, 0.98, 0.99)),
        "agent.tau": Real(5e-3, 0.1, log=True),
        "agent.noise": Real(0.05, 0.4),
        "agent.action_cost": Real(1e-2, 1.0, log=True),
    },
    "sac": {
        "agent.critic_rate": Real(1e-4, 3e-3, log=True),
        "agent.actor_rate": Real(1e-4, 3e-3, log=True),
        "agent.gamma": OneOf((0.9, 0.95, 0.98, 0.99)),
        "agent.tau": Real(5e-3, 0.1, log=True),
        "agent.target_entropy": Real(-2.0, -0.25),
    },
}
_AIM: dict[str, Range] = {
    "potential_updates": Whole(5, 50),
    "potential_window": OneOf((2_000, 5_000, 10_000, 20_000)),
    "reward.learning_rate": Real(1e-4, 3e-3, log=True),
    "reward.lipschitz_weight": Real(1.0, 100.0, log=True),
}
REWARD: dict[str, dict[str, Range]] = {"aim": _AIM, "aim+r": _AIM}


def ranges(agent: str, reward: str, only: tuple[str, ...] = ()) -> dict[str, Range]:
    """What is searched for an agent and a reward; `only` names a part of it."""
    found = COMMON | AGENT.get(agent, {}) | REWARD.get(reward, {})
    for name in only:
        if name not in found:
            raise UserError(nearest(name, found, "range"))
    return {name: r for name, r in found.items() if not only or name in only}


def as_overrides(params: dict[str, Any]) -> dict[str, Any]:
    """Searched values as arguments of `make_config`."""
    out: dict[str, Any] = {}
    for name, value in params.items():
        room, _, option = name.rpartition(".")
        if room:
            out.setdefault(f"{room}_options", {})[option] = value
        else:
            out[name] = value
    return out


# --- the search -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """Everything a worker needs to know of a search."""

    study: str
    out: str
    env: str
    reward: str
    agent: str
    preset: str
    steps: int | None
    seed: int
    trials: int
    measure: Literal["final", "area"]
    only: tuple[str, ...]
    overrides: dict[str, Any]

    def config(self, params: dict[str, Any]) -> Config:
        options = dict(self.overrides)
        for key, value in as_overrides(params).items():
            options[key] = options.get(key, {}) | value if isinstance(value, dict) else value
        return make_config(
            self.env, reward=self.reward, agent=self.agent, preset=self.preset, seed=self.seed, **{"steps": self.steps} | options
        )


@dataclass(frozen=True)
class Tuned:
    """How a search stands."""

    study: str
    best_value: float | None  # mean success_final of the last evaluation, or of all with measure="area"
    best_params: dict[str, Any]
    preset: Path | None  # for `aimrl train ENV --preset FILE`
    trials: list[dict[str, Any]]  # number, state, value, params, reason
    wall_s: float

    def text(self) -> str:
        counts = {s: sum(t["state"] == s for t in self.trials) for s in ("complete", "pruned", "fail", "running")}
        lines = [f"{self.study}: " + ", ".join(f"{n} {state}" for state, n in counts.items() if n)]
        lines += [f"trial {t['number']} failed: {t['reason']}" for t in self.trials if t["state"] == "fail" and t["reason"]]
        if self.best_value is not None:
            lines.append(f"best success {self.best_value:.3f}: " + ", ".join(f"{k}={_short(v)}" for k, v in self.best_params.items()))
            lines.append(f"saved as a preset: --preset {self.preset}")
        return "\n".join(lines)


def tune(
    env: str,
    reward: str = "aim",
    agent: str | None = None,  # the preset's
    preset: str = "fast",
    trials: int = 20,
    steps: int | None = None,
    storage: str | None = None,
    jobs: int = 1,
    out: str | Path | None = None,
    name: str | None = None,
    seed: int = 0,
    measure: Literal["final", "area"] = "final",
    only: tuple[str, ...] = (),
    overrides: dict[str, Any] | None = None,
    progress: bool = True,
) -> Tuned:
    """Search until the study holds `trials` trials; the same call goes on with an interrupted search, and draws others for failed trials.

    `storage` is a database URL; by default a journal file in `out`. Ctrl-C saves the running trials, which the next call resumes.
    """
    for what, number in (("trials", trials), ("jobs", jobs)):
        if number < 1:
            raise UserError(f"{what} must be at least 1, not {number}")
    if measure not in ("final", "area"):
        raise UserError(nearest(str(measure), ("final", "area"), "measure"))
    if not isinstance(env, str) or not env:
        raise UserError("tune needs the id of an environment")
    agent = agent or make_config(env, preset=preset, reward=reward).agent
    name = name or f"{env}-{reward}-{agent}-{Path(preset).stem}"
    folder = Path(out or f"runs/tune-{safe_name(name)}").expanduser().absolute()
    search = Search(name, str(folder), env, reward, agent, preset, steps, seed, trials, measure, tuple(only), overrides or {})
    _check(search)
    began = time.monotonic()
    with locked(folder / ".tune.lock", f"another search is running in {folder}"), Interrupts() as interrupts:
        study = open_study(search, storage)
        failed = sum(t.state.name == "FAIL" and "lost" not in t.user_attrs for t in study.get_trials(deepcopy=False))
        search = dataclasses.replace(search, trials=trials + failed)  # those of earlier calls: what made them fail may be mended
        for tries_left in reversed(range(1 + RETRIES)):
            take_up_lost(study, folder)
            left = search.trials - _counted(study)
            killed = left > 0 and _work(search, storage, min(jobs, left, 4 * cores()), interrupts, progress)
            if not killed or interrupts.count:
                break
            if not tries_left:
                raise UserError(f"processes of the search were killed {1 + RETRIES} times (too little memory?); start it again to go on")
        return result(search, study, time.monotonic() - began)


def _check(search: Search) -> None:
    """Bad names and impossible settings are told before anything is started."""
    vector.check_name(search.env)
    config = search.config({})
    check_options(config)
    with make_env(config, None, 1, 0):  # is it a goal environment?
        pass
    if not ranges(search.agent, search.reward, search.only):
        raise UserError("there is nothing to search")


def open_study(search: Search, storage: str | None) -> Any:
    """The study, made at the first call."""
    optuna = _optuna()
    try:
        study = optuna.create_study(
            study_name=search.study,
            storage=storage or _journal(Path(search.out) / "study.journal"),
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=0),
        )
    except Exception as e:  # SQLAlchemy has dozens; the URL may hold a password and is not repeated
        raise UserError(f"cannot open the study's storage: {type(e).__name__}") from None
    asked = {"steps": search.steps, "seed": search.seed, "measure": search.measure, "only": list(search.only)}
    asked |= {"overrides": runs.plain(search.overrides)}
    asked |= {"env": search.env, "reward": search.reward, "agent": search.agent, "preset": search.preset}
    had = asked | study.user_attrs.get("asked", {})  # trials are compared with one another: all must be of one kind
    for key, value in asked.items():
        if had[key] != value:
            raise UserError(
                f"the study {search.study} was begun with {key} {had[key]!r:.80}, not {value!r:.80}: choose another --name (and --out)"
            )
    if "asked" not in study.user_attrs:
        study.set_user_attr("asked", asked)
    return study


def _journal(path: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    return JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("tune needs Optuna: in the checkout, pip install -e '.[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _counted(study: Any) -> int:
    """Trials that were given out; those still in the queue will be."""
    return sum(t.state.name != "WAITING" and "lost" not in t.user_attrs for t in study.get_trials(deepcopy=False))


def take_up_lost(study: Any, folder: Path) -> None:
    """Trials of this folder that were running when their processes died are queued again, to resume in the same run folders.

    Holding the folder's lock, we know that nobody runs them; trials of other machines on the same database are left alone.
    """
    from optuna.trial import TrialState

    for trial in study.get_trials(deepcopy=False):
        home = trial.user_attrs.get("folder")
        if trial.state == TrialState.RUNNING and home and Path(home).parent == folder:
            study._storage.set_trial_user_attr(trial._trial_id, "lost", True)
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params, user_attrs={"folder": home})


def _work(search: Search, storage: str | None, jobs: int, interrupts: Interrupts, progress: bool) -> bool:
    """Workers, one core each; the storage's URL goes through a pipe, not into a file or the list of processes. → Was one killed?"""
    task = json.dumps({"search": dataclasses.asdict(search), "storage": storage, "parent": os.getpid(), "progress": progress})
    workers = []
    for _ in range(jobs):
        command = [sys.executable, "-m", "aimrl.tune"]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | one_thread(), start_new_session=True, text=True)
        workers.append(worker)
        assert worker.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(task)
            worker.stdin.close()
    told = 0
    try:
        while any(w.poll() is None for w in workers):
            if interrupts.count > told:
                told = interrupts.count
                for w in workers:
                    w.send_signal(signal.SIGTERM if told == 1 else signal.SIGKILL)
            time.sleep(0.1)
    finally:
        for w in workers:
            w.terminate()
    bad = [w.returncode for w in workers if w.returncode > 0]
    if bad and not interrupts.count:
        raise UserError(f"a process of the search ended with exit code {bad[0]}; start the search again to go on")
    return any(w.returncode < 0 for w in workers)


# --- one worker -------------------------------------------------------------------------------------------------------------------------


def work(search: Search, storage: str | None, stop: Callable[[], bool], say: Callable[[str], None]) -> None:
    """Take trials until there are enough of them."""
    study, folder = open_study(search, storage), Path(search.out)
    while not stop():
        # One worker asks at a time: so there are never more trials than wanted, and a trial's seed follows from its number.
        with locked(folder / ".ask.lock", "the search's lock is held by a dead process", wait_s=600):
            waiting = any(t.state.name == "WAITING" for t in study.get_trials(deepcopy=False))
            if not waiting and _counted(study) >= search.trials:
                return
            trial = _ask(study, search)
        _play(study, trial, search, stop, say)


def _ask(study: Any, search: Search) -> Any:
    import numpy as np
    import optuna

    number = len(study.get_trials(deepcopy=False))
    seed = int(np.random.SeedSequence([search.seed, number]).generate_state(1)[0])
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=5)
    trial = study.ask()
    for name, r in ranges(search.agent, search.reward, search.only).items():
        r.suggest(trial, name)
    if "folder" not in trial.user_attrs:
        trial.set_user_attr("folder", str(Path(search.out) / f"trial-{trial.number:04d}"))
    return trial


def _play(study: Any, trial: Any, search: Search, stop: Callable[[], bool], say: Callable[[str], None]) -> None:
    """Train one trial. If asked to stop it saves and stays open, for the next call to resume."""
    import optuna

    folder = Path(trial.user_attrs["folder"])

    def listen(event: str, data: dict[str, Any]) -> None:
        if event == "eval":
            trial.report(_mean(data), data["step"])
            if data["step"] < config.steps and trial.should_prune():
                raise optuna.TrialPruned

    state, value, reason = optuna.trial.TrialState.COMPLETE, None, ""
    try:
        from aimrl.train import train

        config = search.config(trial.params)
        # A trial believed dead may be saving yet: its folder is ours when its lock is.
        with locked(folder / ".lock", f"{folder} is still in use by another process", LOCK_WAIT):
            for row in _kept(folder):  # a resumed trial: what was evaluated before its last checkpoint
                trial.report(_mean(row), row["step"])
            train(config, folder, resume=(folder / "config.json").is_file(), listen=listen, stop=stop)
        scores = [_mean(row) for row in runs.read_lines(folder / "evals.jsonl")]
        if not scores or runs.read_lines(folder / "evals.jsonl")[-1]["step"] < config.steps:
            return
        value = scores[-1] if search.measure == "final" else sum(scores) / len(scores)
    except optuna.TrialPruned:
        state = optuna.trial.TrialState.PRUNED
    except Exception as e:
        state, reason = optuna.trial.TrialState.FAIL, one_line(e)
        trial.set_user_attr("reason", reason)
    study.tell(trial, value, state=state)
    say(f"trial {trial.number} {state.name.lower()}" + (f": success {value:.3f}" if value is not None else f": {reason}" if reason else ""))


def _kept(folder: Path) -> Iterator[dict[str, Any]]:
    steps = runs.checkpoint_steps(folder)
    return (row for row in runs.read_lines(folder / "evals.jsonl") if steps and row["step"] <= steps[-1])


def _mean(record: dict[str, Any]) -> float:
    return sum(record["success_final"]) / max(len(record["success_final"]), 1)


def _main() -> int:
    """A worker: `python -m aimrl.tune` with its task as JSON on standard input."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: asked.append(signum))
    task = json.load(sys.stdin)
    values = task["search"]
    search = Search(**values | {"only": tuple(values["only"])})
    say = (lambda text: print(text, file=sys.stderr, flush=True)) if task["progress"] else lambda text: None
    try:
        work(search, task["storage"], lambda: bool(asked) or os.getppid() != task["parent"], say)
    except UserError as e:
        print(e, file=sys.stderr)
        return 2
    return 0


# --- the result -------------------------------------------------------------------------------------------------------------------------


def result(search: Search, study: Any, wall_s: float = 0.0) -> Tuned:
    """How the search stands; the best trial is saved as a preset file."""
    rows = []
    for t in study.get_trials(deepcopy=False):
        if "lost" not in t.user_attrs:
            row = {"number": t.number, "state": t.state.name.lower(), "value": t.value, "params": dict(t.params)}
            rows.append(row | {"reason": t.user_attrs.get("reason", ""), "folder": t.user_attrs.get("folder", "")})
    done = [r for r in rows if r["state"] == "complete"]
    if not done:
        return Tuned(search.study, None, {}, None, rows, wall_s)
    best = max(done, key=lambda r: (r["value"], -r["number"]))
    path = Path(search.out) / "best.json"
    runs.write_json(path, as_preset(search, best["params"]))
    return Tuned(search.study, best["value"], best["params"], path, rows, wall_s)


def as_preset(search: Search, params: dict[str, Any]) -> dict[str, Any]:
    """The preset's own fields and the searched ones with the values of a trial; how long to train stays the user's choice."""
    config = dataclasses.asdict(search.config(params))
    tuned = as_overrides(params)
    names = {*preset_values(search.preset, search.reward), *tuned, *search.overrides, "agent"} - {"steps"}
    return {name: config[name] for name in sorted(names)}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Optuna's notices on experimental parts
    sys.exit(_main())
