"""Vectorised goal environments with explicit resets: EnvPool's C++ simulators or any Gymnasium goal environment, one face for both.

No autoreset leaks out: `step` always returns the true next observation, and an environment whose episode has ended refuses to step until
the caller resets it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import cached_property, partial
from multiprocessing import connection
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from aimrl.envs import guard, slim
from aimrl.envs.ahead import Ahead
from aimrl.envs.goals import GoalTask, known_task, task_of
from aimrl.envs.guard import GoalObs
from aimrl.types import BACKENDS, Backend, EnvTrouble, GoalSpec, UserError, cores, nearest

EnvLike = Any  # an id, a gymnasium.Env or a function that makes one; gymnasium is imported late, so not spelt out as a type
TIMEOUT_S = 120.0  # far above any simulator's step or reset, far below a lost night

# EnvPool runs its newest rules under every version number it lists (REFERENCE: v1 ids run v4), so only these are what they say they are.
ENVPOOL_VERSIONS = {"Fetch": "v4", "HandReach": "v3", "HandManipulate": "v1", "PointMaze": "v3"}
# EnvPool starts every Fetch robot with its base at 0.4049 m. gymnasium-robotics says otherwise for these; for Slide the difference is a
# whole task (0.35 m nearer, goals off the table). With these the two start and move alike to rounding, which a test holds.
ENVPOOL_FETCH_BASE = {"FetchPush": 0.405, "FetchPickAndPlace": 0.405, "FetchSlide": 0.05}
ENVPOOL_MUJOCO = {"1.2.5": "3.6.0"}  # the MuJoCo each EnvPool release embeds


class StepResult(NamedTuple):
    """One step of all environments; leading axis num_envs."""

    obs: GoalObs  # the true next observation, also on an episode's last step
    reward: np.ndarray  # task reward as the environment gave it, float32
    terminated: np.ndarray
    truncated: np.ndarray


class EnvFault(EnvTrouble):
    """An environment misbehaved; `index` and `step` say which and when, `partial` holds the step of the others where there is one."""

    def __init__(self, index: int, step: int, what: str, partial: StepResult | None = None, during_reset: bool = False) -> None:
        self.index, self.step, self.partial = index, step, partial
        when = f"reset after step {step}" if during_reset else f"step {step}"
        super().__init__(f"environment {index}, {when}: {what}")


class _Simulators(Protocol):
    """What a backend must do; `reset` returns rows for `ids` only, faults are {index: what}."""

    def reset(self, ids: np.ndarray) -> tuple[GoalObs, dict[int, str]]: ...
    def step(self, action: np.ndarray) -> tuple[StepResult, dict[int, str]]: ...
    def close(self) -> None: ...


class VectorGoalEnv:
    """`num_envs` goal environments stepped together; continuous actions are in [−1, 1], discrete ones are integers from 0."""

    def __init__(
        self,
        simulators: _Simulators,
        spec: GoalSpec,
        task: GoalTask,
        num_envs: int,
        backend: str,
        versions: dict[str, str],
        judging: Any = None,  # the environment whose methods are the task's, where they aren't array code of ours
    ):
        self.spec, self.task, self.num_envs, self.backend, self.versions = spec, task, num_envs, backend, versions
        self._judging = judging
        self.steps = 0  # vector steps so far: environment steps are num_envs times as many
        self._simulators = simulators
        self._needs_reset = np.ones(num_envs, bool)
        self._episode_steps = np.zeros(num_envs, int)
        self._obs = GoalObs(*(np.zeros((num_envs, d), np.float32) for d in (spec.obs_dim, spec.goal_dim, spec.goal_dim)))

    def reset(self, mask: np.ndarray | None = None) -> GoalObs:
        """Starts new episodes where `mask` is true (everywhere if None); returns the current observations of all."""
        mask = np.ones(self.num_envs, bool) if mask is None else np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != bool:
            raise UserError(f"reset wants a bool mask of shape ({self.num_envs},), got {mask.dtype} of shape {mask.shape}")
        if mask.any():
            ids = np.flatnonzero(mask)
            rows, faults = self._guarded(partial(self._simulators.reset, ids), during_reset=True)
            faults |= _non_finite(rows, ids)
            if faults:
                index = min(faults)
                raise EnvFault(index, self.steps, faults[index], during_reset=True)
            for whole, part in zip(self._obs, rows):
                whole[ids] = part
            self._needs_reset[ids] = False
            self._episode_steps[ids] = 0
        return GoalObs(*(x.copy() for x in self._obs))

    def step(self, action: np.ndarray) -> StepResult:
        """One step of every environment; all must be in an episode."""
        if self._needs_reset.any():
            waiting = np.flatnonzero(self._needs_reset).tolist()
            raise UserError(f"environments {waiting} have no running episode: call reset with a mask before stepping them")
        action = self._checked(action)
        self.steps += 1
        result, raised = self._guarded(partial(self._simulators.step, action))
        self._episode_steps += 1
        over = result.terminated | result.truncated
        late = ~over & (self._episode_steps >= self.spec.horizon)
        faults = {int(i): f"neither terminated nor truncated at its time limit of {self.spec.horizon} steps" for i in np.flatnonzero(late)}
        faults |= {int(i): f"reward is {result.reward[i]}" for i in np.flatnonzero(~np.isfinite(result.reward))}
        faults |= _non_finite(result.obs, np.arange(self.num_envs))
        faults |= raised  # the cause, where the others are what came of it
        if faults:
            index = min(faults)
            raise EnvFault(index, self.steps, faults[index], result)
        self._needs_reset = over
        self._obs = GoalObs(*(x.copy() for x in result.obs))
        return result

    def run_ahead(self, actions: Iterable[np.ndarray]) -> VectorGoalEnv:
        """This, already simulating these actions (float32, in [−1, 1]) in the background; they should be the first that are asked for."""
        assert isinstance(self._simulators, _EnvPool), "only simulators that can be made again"
        self._simulators = Ahead(self._simulators.new, self.num_envs, actions)
        return self

    def outliving_task(self) -> GoalTask:
        """The task, for use after this is closed: the environment that answers for it stays open."""
        self._judging = None
        return self.task

    def close(self) -> None:
        self._simulators.close()
        if self._judging is not None:
            with contextlib.suppress(Exception):  # a user's code; nothing depends on it any more
                self._judging.close()
            self._judging = None

    def __enter__(self) -> VectorGoalEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _guarded(self, call: Callable[[], Any], during_reset: bool = False) -> Any:
        try:
            return call()
        except _Lost as lost:  # a hung or dead worker: nothing more can be had from this set of simulators
            raise EnvFault(lost.index, self.steps, lost.what, during_reset=during_reset) from None

    def _checked(self, action: np.ndarray) -> np.ndarray:
        action, n = np.asarray(action), self.num_envs
        if self.spec.discrete:
            if action.shape != (n,) or action.dtype.kind not in "iu":
                raise UserError(f"step wants {n} integer actions, got {action.dtype} of shape {action.shape}")
            if (action < 0).any() or (action >= self.spec.action_dim).any():
                raise UserError(f"actions must be in 0…{self.spec.action_dim - 1}, got {action.min()}…{action.max()}")
            return action.astype(np.int64)
        if action.shape != (n, self.spec.action_dim):
            raise UserError(f"step wants actions of shape ({n}, {self.spec.action_dim}), got {action.shape}")
        if not np.isfinite(action).all():
            raise UserError(f"the action for environment {int(np.flatnonzero(~np.isfinite(action).all(1))[0])} is not finite")
        return np.clip(action, -1.0, 1.0).astype(np.float32)


def make(
    env: EnvLike,
    num_envs: int,
    seed: int,
    backend: Backend = "auto",
    threads: int | None = None,
    timeout_s: float | None = None,
    horizon: int | None = None,
    processes: bool | None = None,
) -> VectorGoalEnv:
    """Builds `num_envs` copies of a goal environment, each with a seed of its own derived from `seed`.

    `env` is a Gymnasium id, an environment object (copied, never stepped itself) or a function that makes one. `threads` bounds how many
    run at once; a step or reset longer than `timeout_s` counts as hung; `horizon` sets a time limit where the environment has none.
    `processes` gives each Gymnasium environment a process of its own (None: if it simulates with MuJoCo and there are several).
    """
    if num_envs < 1:
        raise UserError(f"num_envs must be at least 1, got {num_envs}")
    if threads is not None and threads < 1:
        raise UserError(f"threads must be at least 1, got {threads}")
    if seed < 0:
        raise UserError(f"seed must not be negative, got {seed}")
    if horizon is not None and horizon < 1:
        raise UserError(f"horizon must be at least 1, got {horizon}")
    if resolve_backend(env, backend, horizon) == "envpool":
        return _make_envpool(env, num_envs, seed, threads)
    return _make_gym(env, num_envs, seed, threads, TIMEOUT_S if timeout_s is None else timeout_s, horizon, processes)


def resolve_backend(env: EnvLike, backend: Backend = "auto", horizon: int | None = None) -> Literal["envpool", "gym"]:
    """Which backend `make` will use: EnvPool where it is installed and runs exactly this environment, else Gymnasium."""
    if backend not in BACKENDS:
        raise UserError(nearest(str(backend), BACKENDS, "backend"))
    if backend == "gym":
        return "gym"
    installed = importlib.util.find_spec("envpool") is not None
    faithful = isinstance(env, str) and runs_in_envpool(env)
    if backend == "auto":
        return "envpool" if installed and faithful and horizon is None and not _someones_own(env) else "gym"
    if not installed:
        raise UserError("backend 'envpool' is not installed: in the checkout, pip install -e '.[envpool]', or use backend 'gym'")
    if not faithful:
        known = ", ".join(f"{family}*-{version}" for family, version in ENVPOOL_VERSIONS.items())
        name = env if isinstance(env, str) else "an environment object"
        raise UserError(f"EnvPool doesn't run {name} (only {known}): use backend 'gym'")
    if horizon is not None:
        raise UserError("EnvPool's time limits are fixed: leave horizon out, or use backend 'gym'")
    return "envpool"


def well_known(env: EnvLike, backend: Backend = "auto", horizon: int | None = None) -> bool:
    """Is this of a family whose rules the tests hold to gymnasium-robotics', in the release of EnvPool that they ran on?"""
    return resolve_backend(env, backend, horizon) == "envpool" and importlib.metadata.version("envpool") in ENVPOOL_MUJOCO


def check_name(env_id: str) -> None:
    """Raises for an id that nobody registered. Whether it can be made is another question, and `module:Id` is registered when imported."""
    import gymnasium

    if ":" in env_id or _is_registered(env_id):
        return
    importlib.import_module("aimrl.envs.grid_gym")  # registers the grid worlds; late, because it loads JAX
    if not _is_registered(env_id):
        raise UserError(nearest(env_id, gymnasium.registry, "environment"))


def _is_registered(env_id: str) -> bool:
    """An id without a version means the latest."""
    import gymnasium

    register_robotics()
    return env_id in gymnasium.registry or any(known.rpartition("-v")[0] == env_id for known in gymnasium.registry)


def make_single(env: EnvLike, render_mode: str | None = None, horizon: int | None = None) -> Any:
    """One plain Gymnasium environment with a time limit, for videos and close looks (EnvPool can't render without a screen)."""
    import gymnasium

    if isinstance(env, str):
        check_name(env)
        try:
            asked: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}  # not every __init__ takes it
            single = gymnasium.make(env, disable_env_checker=True, **asked)
        except (gymnasium.error.NameNotFound, gymnasium.error.VersionNotFound, gymnasium.error.NamespaceNotFound):
            module = env.rpartition(":")[0]
            of_module = [f"{module}:{s.id}" for s in gymnasium.registry.values() if _comes_from(s, module)] if module else []
            raise UserError(nearest(env, of_module or gymnasium.registry, "environment")) from None
        except Exception as e:
            raise UserError(f"environment '{env}' can't be made: {_one_line(e)}") from None
    elif isinstance(env, gymnasium.Env):
        single = _copied(env, render_mode)
    elif callable(env):
        try:
            single = env()
        except Exception as e:
            raise UserError(f"the function given as environment failed: {_one_line(e)}") from None
        if not isinstance(single, gymnasium.Env):
            raise UserError(f"the function given as environment made a {type(single).__name__}, not a gymnasium.Env")
    else:
        raise UserError(f"an environment is an id, a gymnasium.Env or a function that makes one, not a {type(env).__name__}")
    if horizon is not None:
        single = gymnasium.wrappers.TimeLimit(single, horizon)
    return single


def _comes_from(spec: Any, module: str) -> bool:
    """Was this environment registered by the module, as far as its entry point tells?"""
    entry = spec.entry_point if isinstance(spec.entry_point, str) else getattr(spec.entry_point, "__module__", "")
    return entry.partition(":")[0].partition(".")[0] == module.partition(".")[0]


def seeds_for(seed: int, num_envs: int) -> list[int]:
    """One seed an environment. Derived, not counted up, so that the environments of seeds 0 and 1 have nothing in common."""
    return [int(s) >> 1 for s in np.random.SeedSequence(seed).generate_state(num_envs, np.uint32)]  # 31 bits: EnvPool wants a C int


def _threads() -> int:
    """What simulators may take: OMP_NUM_THREADS, as mathematics does (a sweep's cells have one), or the cores of this process."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) else cores()


# --- EnvPool ------------------------------------------------------------------------------------------------------------------------


def runs_in_envpool(env_id: str) -> bool:
    """Is this a name that EnvPool gives to what gymnasium-robotics means by it?"""
    family, _, version = env_id.rpartition("-")
    return any(family.startswith(prefix) and version == wanted for prefix, wanted in ENVPOOL_VERSIONS.items())


def _someones_own(env_id: str) -> bool:
    """Named like a family that EnvPool runs, but registered with Gymnasium by somebody else."""
    import gymnasium

    return env_id not in slim.envpool().list_all_envs() and env_id in gymnasium.registry


class _EnvPool:
    """EnvPool's own rule is to reset on the step after the last, paying reward 0; an explicit reset in between means it never does."""

    def __init__(self, make_pool: Callable[[], Any], num_envs: int) -> None:
        self._make_pool, self._num_envs = make_pool, num_envs

    def new(self) -> _EnvPool:
        return _EnvPool(self._make_pool, self._num_envs)

    @cached_property
    def _pool(self) -> Any:
        """Made when first asked for: whoever only wants to know the task needs no simulators."""
        return self._make_pool()

    def reset(self, ids: np.ndarray) -> tuple[GoalObs, dict[int, str]]:
        obs, info = self._pool.reset(ids.astype(np.int32))
        order = np.argsort(info["env_id"])  # EnvPool answers in the order its threads finish
        return _goal_obs(obs, order), {}

    def step(self, action: np.ndarray) -> tuple[StepResult, dict[int, str]]:
        obs, reward, terminated, truncated, info = self._pool.step(action, np.arange(self._num_envs, dtype=np.int32))
        order = np.argsort(info["env_id"])
        ended = terminated[order].astype(bool), truncated[order].astype(bool)
        return StepResult(_goal_obs(obs, order), reward[order].astype(np.float32), *ended), {}

    def close(self) -> None:
        if "_pool" in vars(self):
            self._pool.close()


def _goal_obs(obs: dict[str, np.ndarray], order: np.ndarray) -> GoalObs:
    return GoalObs(*(np.asarray(obs[key][order], np.float32) for key in guard.KEYS))


def _make_envpool(env_id: str, num_envs: int, seed: int, threads: int | None) -> VectorGoalEnv:
    envpool = slim.envpool()
    if env_id not in envpool.list_all_envs():
        raise UserError(nearest(env_id, [i for i in envpool.list_all_envs() if runs_in_envpool(i)], "environment"))
    workers = min(num_envs, threads or _threads())
    base = next(({"initial_slide0": x} for task, x in ENVPOOL_FETCH_BASE.items() if env_id.startswith(task)), {})
    how = {"num_envs": num_envs, "num_threads": workers, "env_seed": seeds_for(seed, num_envs)} | base
    with slim.family():
        described = envpool.make_spec(env_id, **how)
    config, space, actions = described.config._asdict(), described.gymnasium_observation_space, described.gymnasium_action_space
    task = known_task(config, env_id)
    if task is None:
        raise UserError(f"EnvPool's {env_id} has no goal rule that aimrl knows: use backend 'gym'")
    obs_dim, goal_dim = (int(np.prod(space[key].shape)) for key in ("observation", "desired_goal"))
    action_dim, horizon = int(np.prod(actions.shape)), int(config["max_episode_steps"])
    spec = GoalSpec(obs_dim, goal_dim, action_dim, horizon, env_id=env_id, action_space=actions)
    version = importlib.metadata.version("envpool")
    versions = {"envpool": version, "mujoco": ENVPOOL_MUJOCO.get(version, f"embedded in EnvPool {version}")}
    simulators = _EnvPool(partial(envpool.make_gymnasium, env_id, **how), num_envs)
    return VectorGoalEnv(simulators, spec, task, num_envs, "envpool", versions)


# --- Gymnasium ----------------------------------------------------------------------------------------------------------------------


class _Lost(Exception):
    """A simulator that will not answer any more."""

    def __init__(self, index: int, what: str) -> None:
        super().__init__(what)
        self.index, self.what = index, what


class _GymVector:
    """Guarded environments in a Gymnasium vector env with autoreset disabled; the guards turn exceptions into notes in `info`."""

    def __init__(self, vec: Any, seeds: list[int], timeout_s: float) -> None:
        self._vec, self._timeout = vec, timeout_s
        self._seeds: list[int | None] = list(seeds)  # each is used for the environment's first reset, then its own stream goes on
        self._in_processes = hasattr(vec, "processes")
        self._thread = None if self._in_processes else _TimedThread(timeout_s)

    def reset(self, ids: np.ndarray) -> tuple[GoalObs, dict[int, str]]:
        mask = np.zeros(self._vec.num_envs, bool)
        mask[ids] = True
        seeds = [s if m else None for s, m in zip(self._seeds, mask)]
        self._seeds = [None if m else s for s, m in zip(self._seeds, mask)]
        obs, info = self._answer("reset", seed=seeds, options={"reset_mask": mask})
        return GoalObs(*(obs[key][ids].copy() for key in guard.KEYS)), guard.faults(info)

    def step(self, action: np.ndarray) -> tuple[StepResult, dict[int, str]]:
        obs, reward, terminated, truncated, info = self._answer("step", actions=action)
        here = GoalObs(*(obs[key].copy() for key in guard.KEYS))
        return StepResult(here, reward.astype(np.float32), terminated.copy(), truncated.copy()), guard.faults(info)

    def close(self) -> None:
        if not self._vec.closed:
            self._vec.close()
        if self._thread is not None:
            self._thread.close()

    def _answer(self, what: str, **arguments: Any) -> Any:
        if self._vec.closed:
            raise UserError("these environments are closed")
        try:
            return self._answer_of_processes(what, **arguments) if self._in_processes else self._answer_of_thread(what, **arguments)
        except (_Lost, KeyboardInterrupt):  # half a step was taken: no later answer could be trusted
            self._abandon()
            raise

    def _answer_of_thread(self, what: str, **arguments: Any) -> Any:
        assert self._thread is not None
        try:
            return self._thread.call(partial(getattr(self._vec, what), **arguments))
        except TimeoutError:
            busy = next((i for i, e in enumerate(self._vec.envs) if e.busy), 0)
            raise _Lost(busy, f"no answer within {self._timeout:g} s (hung)") from None

    def _answer_of_processes(self, what: str, **arguments: Any) -> Any:
        vec = self._vec
        try:
            getattr(vec, f"{what}_async")(**arguments)
            self._await_processes()
            return getattr(vec, f"{what}_wait")(timeout=self._timeout)
        except (EOFError, OSError):
            for process in vec.processes:
                process.join(0.2)  # the dead one is about to be known as such
            raise self._died(next((i for i, p in enumerate(vec.processes) if not p.is_alive()), 0)) from None

    def _await_processes(self) -> None:
        """Returns when every worker has answered. One that dies keeps its turn: the others would wait for it until the time is up."""
        silent = {pipe: i for i, pipe in enumerate(self._vec.parent_pipes)}
        ends = {process.sentinel: i for i, process in enumerate(self._vec.processes)}
        deadline = time.monotonic() + self._timeout
        while silent:
            ready = connection.wait([*silent, *ends], max(deadline - time.monotonic(), 0.0))
            if dead := [ends[end] for end in ready if end in ends]:
                raise self._died(dead[0])
            if not ready:
                first, *others = silent.values()
                who = f"it or one of {others} " if others else ""  # a hung one keeps its turn, too, and the others wait
                raise _Lost(first, f"no answer within {self._timeout:g} s ({who}hung)")
            for pipe in ready:
                del silent[pipe]

    def _died(self, index: int) -> _Lost:
        process = self._vec.processes[index]
        process.join(1.0)
        return _Lost(index, f"its worker process died (exit code {process.exitcode})")

    def _abandon(self) -> None:
        self._vec.closed = True
        if self._in_processes:
            for process, pipe in zip(self._vec.processes, self._vec.parent_pipes):
                process.kill()
                process.join()
                pipe.close()


class _TimedThread:
    """Runs calls on one daemon thread, so that a hung Python environment can be given up on; the process can still exit."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout = timeout_s
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._results.put((call(), None))
            except BaseException as e:  # handed to the caller, who decides
                self._results.put((None, e))

    def call(self, call: Callable[[], Any]) -> Any:
        self._calls.put(call)
        try:
            result, error = self._results.get(timeout=self._timeout)
        except queue.Empty:
            raise TimeoutError from None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        self._calls.put(None)


def _make_gym(
    env: EnvLike, num_envs: int, seed: int, threads: int | None, timeout_s: float, horizon: int | None, processes: bool | None
) -> VectorGoalEnv:
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    if not timeout_s > 0:
        raise UserError(f"timeout_s must be positive, got {timeout_s}")
    # The probe is read once for its spaces and rules; user environments keep it for compute_reward.
    probe, name, spec, task = in_time(partial(_examined, env, horizon), timeout_s)
    if processes is None:
        mujoco = hasattr(probe.unwrapped, "mujoco_renderer") or type(probe.unwrapped).__module__.startswith("gymnasium_robotics")
        processes = mujoco and num_envs > 1
    build = partial(guard.GuardedEnv.build, partial(make_single, env, horizon=horizon), spec)
    with _one_clear_line(name):
        if processes:
            workers = min(num_envs, threads or _threads())
            # forkserver: forking this process is unsafe once JAX has started its threads.
            multiprocessing.get_context("forkserver").set_forkserver_preload(["aimrl.envs.warm"])
            _start_resource_tracker()
            options = {"context": "forkserver", "max_concurrency": workers, "autoreset_mode": AutoresetMode.DISABLED, "copy": False}
            with _workers_without_main():
                vec = AsyncVectorEnv([build] * num_envs, **options)
        else:
            vec = SyncVectorEnv([build] * num_envs, copy=False, autoreset_mode=AutoresetMode.DISABLED)
    if task.jittable:
        probe.close()
    simulators, judging = _GymVector(vec, seeds_for(seed, num_envs), timeout_s), None if task.jittable else probe
    return VectorGoalEnv(simulators, spec, task, num_envs, "gym", _gym_versions(), judging)


def _examined(env: EnvLike, horizon: int | None) -> tuple[Any, str, GoalSpec, GoalTask]:
    probe = make_single(env, horizon=horizon)
    name = env if isinstance(env, str) else _name(probe)
    return probe, name, guard.spec_of(probe, name), task_of(probe, name)


def in_time(call: Callable[[], Any], timeout_s: float) -> Any:
    """An environment may hang while it is made or first reset, too."""
    thread = _TimedThread(timeout_s)
    try:
        return thread.call(call)
    except TimeoutError:
        raise UserError(f"making and resetting one environment took more than {timeout_s:g} s (hung)") from None
    except SystemExit:
        raise UserError("the environment ends the process (sys.exit) while it is made or reset") from None
    finally:
        thread.close()


def _start_resource_tracker() -> None:
    """Python's cleaner of shared memory ignores Ctrl-C and SIGTERM to the group, but a closed terminal would end it before us."""
    from multiprocessing import resource_tracker

    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what is ignored stays so in a new program
    try:
        resource_tracker.ensure_running()
    finally:
        signal.signal(signal.SIGHUP, before)


@contextlib.contextmanager
def _workers_without_main() -> Iterator[None]:
    """Keeps worker processes from running the user's script again: they need nothing of it, environments travel by value.

    Without this every script would have to put its training under `if __name__ == "__main__":`.
    """
    main = sys.modules["__main__"]
    hidden = {key: main.__dict__[key] for key in ("__spec__", "__file__") if key in main.__dict__}
    main.__dict__["__spec__"] = None
    main.__dict__.pop("__file__", None)
    try:
        yield
    finally:
        main.__dict__.update(hidden)


@contextlib.contextmanager
def _one_clear_line(name: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (EOFError, OSError) as e:
        raise UserError(f"a worker process of {name} died while starting ({_one_line(e)})") from None
    except Exception as e:  # a user's constructor, or copies whose spaces differ: anything can be raised here
        raise UserError(f"{name} can't be made several times: {_one_line(e)}") from None


def register_robotics() -> None:
    """Makes the ids of gymnasium-robotics known."""
    import gymnasium

    with contextlib.redirect_stderr(io.StringIO()):  # importing it prints a note about Adroit's old rewards, once a process
        import gymnasium_robotics
    gymnasium.register_envs(gymnasium_robotics)


def _copied(env: Any, render_mode: str | None) -> Any:
    import gymnasium

    if render_mode is not None and render_mode != env.render_mode:
        if env.spec is None:
            raise UserError(f"{_name(env)} was made without render_mode='{render_mode}' and can't be made again: pass a function")
        return gymnasium.make(env.spec, render_mode=render_mode)
    try:
        return deepcopy(env)
    except Exception as e:
        if env.spec is not None:
            return gymnasium.make(env.spec)
        raise UserError(f"{_name(env)} can't be copied ({_one_line(e)}): pass a function that makes it instead") from None


def _name(env: Any) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _gym_versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("gymnasium", "gymnasium-robotics", "mujoco")}


def _non_finite(obs: GoalObs, ids: np.ndarray) -> dict[int, str]:
    bad: dict[int, str] = {}
    for key, rows in zip(guard.KEYS, obs):
        for row in np.flatnonzero(~np.isfinite(rows).all(axis=1)):
            kind = "NaN" if np.isnan(rows[row]).any() else "infinite values"
            bad.setdefault(int(ids[row]), f"{key} has {kind}")
    return bad


def _one_line(e: BaseException) -> str:
    return f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
