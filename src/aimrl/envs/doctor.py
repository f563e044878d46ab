"""Is this a sound goal environment? Each finding says what was seen and what to do about it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from aimrl.config import Config
from aimrl.envs import guard
from aimrl.envs.goals import GoalTask
from aimrl.envs.vector import TIMEOUT_S, EnvLike, StepResult, VectorGoalEnv, in_time, make, make_single, resolve_backend, well_known
from aimrl.types import Backend, UserError

Level = Literal["ok", "warn", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing the doctor looked at."""

    level: Level
    what: str
    advice: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class _Play:
    """Random play: arrays are steps × environments × size."""

    result: StepResult  # stacked
    before: np.ndarray  # achieved goals before each step
    goal: np.ndarray  # desired goals before each step
    first: np.ndarray  # was the step an episode's first?


def diagnose(
    env: EnvLike, backend: Backend = "auto", quick: bool = False, horizon: int | None = None, timeout_s: float | None = None
) -> list[Finding]:
    """Everything worth knowing before training on `env`; `quick` stops after a few steps and one reset, as `train` does first."""
    findings: list[Finding] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            chosen = resolve_backend(env, backend, horizon)
            vector = make(env, 2, seed=0, backend=chosen, horizon=horizon, processes=False, timeout_s=timeout_s)
        with vector:
            play = _random_play(vector, 10 if quick else min(max(200, 2 * vector.spec.horizon + 2), 600))  # faults are named here first
            findings += _shape(vector)
            findings += [Finding("warn", str(w.message), "accept batches of goals in it to train faster") for w in caught if _ours(w)]
            if chosen == "gym" or not quick:  # EnvPool's tasks are gymnasium-robotics', whose import takes a second
                findings += _spaces(env, horizon, timeout_s)
            if chosen == "gym":
                findings += _wrappers(env, horizon)
            findings += _rewards(play, vector.task)
            findings += _termination(play, vector.task)
            if not quick:
                findings += _movement(play, vector.task)
                findings += _episodes(play, vector.spec.horizon)
        if not quick:
            findings += _determinism(env, chosen, horizon, timeout_s)
    except UserError as e:
        return [*findings, Finding("error", str(e), "fix this first: training would stop here")]
    return findings


def look_first(env: EnvLike, c: Config, say: Callable[..., None]) -> None:
    """The quick look before training at what nobody has looked at yet: errors end it, warnings are told."""
    if well_known(env, c.backend, c.horizon or None):
        return
    for finding in diagnose(env, c.backend, quick=True, horizon=c.horizon or None, timeout_s=c.env_timeout):
        text = finding.what + (f": {finding.advice}" if finding.advice else "")
        if finding.level == "error":
            raise UserError(finding.what if finding.advice.startswith("fix this first") else text)
        if finding.level == "warn":
            say(f"warning: {text}", always=True)


def healthy(findings: list[Finding]) -> bool:
    """No finding forbids training."""
    return all(f.level != "error" for f in findings)


def _ours(w: warnings.WarningMessage) -> bool:
    return issubclass(w.category, UserWarning) and "is not vectorised" in str(w.message)


def _shape(env: VectorGoalEnv) -> list[Finding]:
    s = env.spec
    action = f"{s.action_dim} discrete actions" if s.discrete else f"actions of size {s.action_dim}"
    size = f"observation {s.obs_dim}, goal {s.goal_dim}, {action}, time limit {s.horizon} steps"
    versions = ", ".join(f"{k} {v}" for k, v in env.versions.items())
    own = "array code, compiled with the updates" if env.task.jittable else "the environment's compute_reward"
    return [
        Finding("ok", f"a goal environment through {env.backend} ({versions}): {size}"),
        Finding("ok", f"goals are judged by {own}"),
        Finding("ok", "autoreset is off: episodes end with their true last observation, resets are explicit"),
    ]


def _spaces(env: EnvLike, horizon: int | None, timeout_s: float | None) -> Iterator[Finding]:
    """What the guard forgives, said: shapes it flattens and dtypes that differ from the space."""

    def begun() -> tuple[Any, dict[str, np.ndarray]]:
        single = make_single(env, horizon=horizon)
        obs, _ = single.reset(seed=0)
        return single, {key: np.asarray(obs[key]) for key in guard.KEYS}

    try:
        single, obs = in_time(begun, TIMEOUT_S if timeout_s is None else timeout_s)
    except UserError:
        raise
    except Exception as e:  # the guard has seen other resets go well
        raise UserError(f"reset {guard.told(e)}, though not always") from None
    for key in guard.KEYS:
        space, got = single.observation_space[key], obs[key]
        if len(space.shape or ()) != 1:
            yield Finding("warn", f"{key} has shape {space.shape} and will be flattened", "give it one axis if its layout means nothing")
        if got.dtype != space.dtype:
            yield Finding("warn", f"{key} comes as {got.dtype}, its space says {space.dtype}", "cast it in the environment")
        elif not space.contains(got):
            yield Finding("warn", f"{key} leaves its own space {space}", "widen the bounds of the space, or clip the observation")
        else:
            yield Finding("ok", f"{key}: {space.dtype} of shape {space.shape}")
    single.close()


def _wrappers(env: EnvLike, horizon: int | None) -> Iterator[Finding]:
    """Wrappers that reset by themselves or change rewards would lie to hindsight."""
    import gymnasium

    layer = make_single(env, horizon=horizon)
    while isinstance(layer, gymnasium.Wrapper):
        name = type(layer).__name__
        if name in guard.AUTORESETS:
            yield Finding("error", f"the wrapper {name} resets by itself: last observations would be lost", "leave it out, aimrl resets")
        if isinstance(layer, gymnasium.RewardWrapper):
            advice = "put the change into compute_reward, which judges relabelled goals"
            yield Finding("warn", f"the wrapper {name} changes the reward that step gives", advice)
        layer = layer.env
    layer.close()


def _random_play(env: VectorGoalEnv, steps: int) -> _Play:
    rng = np.random.default_rng(0)
    obs, first = env.reset(), np.ones(env.num_envs, bool)
    results, before, goals, firsts = [], [], [], []
    for _ in range(steps):
        shape = (env.num_envs,) if env.spec.discrete else (env.num_envs, env.spec.action_dim)
        action = rng.integers(env.spec.action_dim, size=shape) if env.spec.discrete else rng.uniform(-1, 1, shape)
        before.append(obs.achieved_goal)
        goals.append(obs.desired_goal)
        firsts.append(first)
        result = env.step(action)
        results.append(result)
        first = result.terminated | result.truncated
        obs = env.reset(first)
    stacked = StepResult(
        guard.GoalObs(*(np.stack(x) for x in zip(*(r.obs for r in results)))),
        *(np.stack(x) for x in zip(*((r.reward, r.terminated, r.truncated) for r in results))),
    )
    return _Play(stacked, np.stack(before), np.stack(goals), np.stack(firsts))


def _rewards(play: _Play, task: GoalTask) -> Iterator[Finding]:
    """Does recomputing a reward from the goals give what `step` gave, and is its scale a learner's?"""
    r = play.result
    # A maze may draw its next goal inside the step; what the reward was about is then the goal before it.
    ours = task.reward(r.obs.achieved_goal, r.obs.desired_goal)
    wrong = ~np.isclose(ours, r.reward, atol=1e-3, rtol=1e-3)
    moved = (r.obs.desired_goal != play.goal).any(-1)
    if wrong.any():
        step, index = (int(x[0]) for x in np.nonzero(wrong))
        seen = f"{float(r.reward[step, index]):g} from step, {float(ours[step, index]):g} from compute_reward"
        what = f"compute_reward disagrees with step in {wrong.mean():.0%} of steps (environment {index}, step {step + 1}: {seen})"
        yield Finding("error", what, "make step return compute_reward(achieved_goal, desired_goal, info): hindsight relies on it")
    else:
        yield Finding("ok", "compute_reward, on whole batches, agrees with the rewards of step")
    if moved.any():
        what = f"the desired goal changed within an episode in {moved.mean():.1%} of steps"
        yield Finding("warn", what, "keep one goal an episode (mazes: reset_target=False)")
    low, high = float(r.reward.min()), float(r.reward.max())
    if max(abs(low), abs(high)) > 100:
        yield Finding("warn", f"rewards reach {low:g} … {high:g}", "scale them to about ±1: value networks learn large numbers slowly")
    elif task.sparse:
        yield Finding("ok", f"the reward is sparse, {f'between {low:g} and {high:g}' if low < high else f'always {low:g}'} in random play")
    else:
        advice = "" if task.jittable else "define is_success(achieved, desired): a dense reward doesn't tell where success begins"
        level: Level = "ok" if task.jittable else "warn"
        yield Finding(level, f"the reward is dense, between {low:g} and {high:g} in random play", advice)
    on_goal = task.success(r.obs.desired_goal, r.obs.desired_goal)
    if not on_goal.all():
        yield Finding("error", "standing exactly on the goal is not a success", "check the order of arguments and the threshold")


def _termination(play: _Play, task: GoalTask) -> Iterator[Finding]:
    r = play.result
    ours = task.terminated(r.obs.achieved_goal, r.obs.desired_goal)
    missed, other = ours & ~r.terminated, r.terminated & ~ours
    if missed.any():
        what = "compute_terminated says an episode ended where step went on"
        yield Finding("error", what, "make step return compute_terminated(achieved_goal, desired_goal, info)")
    if other.any():
        what = f"{other.sum()} episodes terminated for a reason that compute_terminated doesn't know"
        advice = "fine if it is a failure (a fall): such ends are kept on relabelling; a time limit must be truncated, not terminated"
        yield Finding("warn", what, advice)
    if not missed.any() and not other.any():
        how = "ends episodes at the goal" if task.terminates_on_success else "never ends an episode itself"
        yield Finding("ok", f"termination is consistent: the environment {how}")


def _movement(play: _Play, task: GoalTask) -> Iterator[Finding]:
    """Hindsight learns from achieved goals that change; success at the start teaches nothing."""
    r = play.result
    size = np.linalg.norm(r.obs.achieved_goal - play.before, axis=-1)
    scale = float(np.linalg.norm(r.obs.desired_goal - r.obs.achieved_goal, axis=-1).mean()) or 1.0
    share = float((size > 1e-3 * scale).mean())
    if size.max() == 0:
        yield Finding("error", "random play never changed the achieved goal", "check that actions act and that achieved_goal is updated")
    elif share < 0.05:
        advice = "expect a long start: hindsight needs movement (see moved_fraction and moving_starts)"
        yield Finding("warn", f"random play changes the achieved goal in only {share:.1%} of steps", advice)
    else:
        yield Finding("ok", f"random play changes the achieved goal in {share:.0%} of steps")
    starts = task.success(play.before[play.first], play.goal[play.first])
    if starts.mean() > 0.5:
        yield Finding("warn", f"{starts.mean():.0%} of episodes start at their goal", "draw goals farther from the start")
    goals = np.unique(play.goal[play.first], axis=0)
    if len(goals) == 1 and play.first.sum() > 1:
        yield Finding("warn", "every episode had the same desired goal", "fine for one task; draw goals in reset to learn many")


def _episodes(play: _Play, horizon: int) -> Iterator[Finding]:
    ends = (play.result.terminated | play.result.truncated).sum()
    both = (play.result.terminated & play.result.truncated).sum()
    yield Finding("ok", f"{ends} episodes ended within their limit of {horizon} steps")
    if both:
        yield Finding("ok", f"{both} episodes ended and ran out of time at once: they count as terminated")


def _determinism(env: EnvLike, backend: Backend, horizon: int | None, timeout_s: float | None) -> Iterator[Finding]:
    """Same seed, same stream; another seed, another goal."""

    def stream(seed: int) -> tuple[np.ndarray, np.ndarray]:
        with make(env, 2, seed=seed, backend=backend, horizon=horizon, processes=False, timeout_s=timeout_s) as vector:
            start = vector.reset()
            return np.concatenate(start, axis=1), np.concatenate(_random_play(vector, 10).result.obs, axis=-1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (start, later), (start_again, later_again), (other, _) = stream(1), stream(1), stream(2)
    if not np.array_equal(start, start_again):
        advice = "draw everything in reset from self.np_random, after super().reset(seed=seed)"
        yield Finding("error", "reset is not deterministic: the same seed gave another start", advice)
    elif not np.array_equal(later, later_again):
        advice = "draw randomness in step from self.np_random and reset all hidden state; runs can't be repeated otherwise"
        yield Finding("error", "step is not deterministic: the same seed and actions gave another path", advice)
    else:
        yield Finding("ok", "the same seed gives the same start and the same path")
    if np.array_equal(start, other):
        yield Finding("warn", "another seed gives the same start and goal", "fine for one fixed task; otherwise draw them in reset")
