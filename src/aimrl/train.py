"""Algorithm 1 (AIM + HER) as one loop: environment → replay → reward → agent → policy. The only place that joins the rooms."""

from __future__ import annotations

import dataclasses
import errno
import math
import sys
import time
import types
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl import agents, nn, programs, replay, rewards, runs
from aimrl.agents.base import Agent, Batch
from aimrl.collect import Collector, HeadStart, env_seed, made_before, make_env, random_share, wander
from aimrl.config import Config
from aimrl.envs import guard, vector
from aimrl.envs.goals import GoalTask
from aimrl.envs.judging import make_ends, make_judge
from aimrl.envs.vector import VectorGoalEnv
from aimrl.evaluate import evaluate
from aimrl.replay.ring import AnyArray
from aimrl.rewards.base import Reward, total_reward
from aimrl.types import EnvTrouble, GoalSpec, Metrics, UserError

_PATIENCE = 25  # learning waits for movement up to this many times `learning_starts`
_LOG_ROWS = 30_000  # at most in metrics.jsonl, whose readers take no more than some 50,000
_ROOMS = (  # make a round
    *("aimrl.types", "aimrl.nn", "aimrl.envs.goals", "aimrl.envs.judging", "aimrl.replay", "aimrl.rewards", "aimrl.agents", "aimrl.train"),
)


class Inputs(eqx.Module):
    """What the networks see: observation and goal, standardised when asked."""

    obs: nn.Moments
    goal: nn.Moments
    standardise: bool = eqx.field(static=True)

    def __call__(self, obs: Float[AnyArray, "*n o"], goal: Float[AnyArray, "*n g"]) -> Float[Array, "*n x"]:
        obs, goal = jnp.asarray(obs), jnp.asarray(goal)
        if self.standardise:
            obs, goal = self.obs.normalise(obs), self.goal.normalise(goal)
        return jnp.concatenate([obs, goal], -1)


class Brain(eqx.Module):
    """Everything that learns."""

    agent: Any
    reward: Any
    curiosity: Any
    inputs: Inputs


# --- one round, compiled -----------------------------------------------------------------------------------------------------------------


class Sizes(NamedTuple):
    """How much a round does."""

    updates: int
    batch: int
    potential_updates: int
    potential_batch: int
    potential_window: int


class Round(eqx.Module):
    """The compiled parts of Algorithm 1 for one configuration."""

    agent: Agent
    reward: Reward
    curiosity: Reward | None
    how: replay.Hindsight = eqx.field(static=True)
    task: GoalTask = eqx.field(static=True)
    sizes: Sizes = eqx.field(static=True)
    scale: float = eqx.field(default=1.0, static=True)  # of the reward

    @property
    def judge(self) -> Callable:
        return make_judge(self.task)

    # The root of all chance is an argument of the programs below, not a part of them: every seed finds them in the compilation cache.

    def learn(self, brain: Brain, ring: replay.Ring, root: PRNGKeyArray, step: Array) -> tuple[Brain, Metrics]:
        """Update the potential from the small recent buffer, then the agent from the large one."""
        n = self.sizes
        k_f, k_f_update, k_batch, k_agent = jax.random.split(jax.random.fold_in(root, 2 * step + 1), 4)
        reward_state, curiosity_state, metrics = brain.reward, brain.curiosity, {}
        if n.potential_updates:
            recent = replay.sample(ring, k_f, (n.potential_updates, n.potential_batch), self.how, self.judge, n.potential_window)
            reward_state, metrics = self.reward.update(reward_state, recent, k_f_update)
            if self.curiosity is not None:
                curiosity_state, curiosity_metrics = self.curiosity.update(curiosity_state, recent, k_f_update)
                metrics |= curiosity_metrics
        data = replay.sample(ring, k_batch, (n.updates, n.batch), self.how, self.judge)
        r = total_reward(self.reward, reward_state, data)
        if self.curiosity is not None:
            bonus = total_reward(self.curiosity, curiosity_state, data)
            r, metrics = r + bonus, metrics | {"reward/curiosity": bonus.mean()}
        r = self.scale * r
        x, next_x = brain.inputs(data.obs, data.goal), brain.inputs(data.next_obs, data.goal)
        agent_state, agent_metrics = self.agent.update(brain.agent, Batch(x, data.action, r, next_x, data.terminated), k_agent)
        metrics |= agent_metrics | {"reward/mean": r.mean(), "reward/std": r.std(), "reward/success": data.success.mean()}
        return Brain(agent_state, reward_state, curiosity_state, brain.inputs), metrics

    def store(self, kept: tuple[replay.Ring, Inputs], episodes: replay.Episodes) -> tuple[tuple[replay.Ring, Inputs], Metrics]:
        """Add finished episodes, with the goals they happened to reach, and fold them into the running moments."""
        ring, inputs = kept
        ring = replay.insert(ring, episodes, self.judge)
        if inputs.standardise:
            valid = (jnp.arange(episodes.obs.shape[1]) <= episodes.length[:, None]) & (episodes.length[:, None] > 0)
            flat = lambda a: a.reshape(-1, a.shape[-1])  # noqa: E731
            goals = jnp.concatenate([flat(episodes.achieved), episodes.desired])
            ok = jnp.concatenate([valid.reshape(-1), episodes.length > 0])
            inputs = Inputs(nn.observe(inputs.obs, flat(episodes.obs), valid.reshape(-1)), nn.observe(inputs.goal, goals, ok), True)
        return (ring, inputs), {}

    def explore(self, brain: Brain, obs: AnyArray, goal: AnyArray, root: PRNGKeyArray, step: Array, random: Array) -> Array:
        """The agent's action for gathering at this step, or with probability `random` a random one."""
        k_noise, k_which, k_action = jax.random.split(jax.random.fold_in(root, 2 * step), 3)
        action = self.agent.explore(brain.agent, brain.inputs(obs, goal), k_noise)
        which = jax.random.uniform(k_which, (action.shape[0], 1)) < random
        return jnp.where(which, self.agent.random_action(k_action, action.shape), action)

    def practise(self, ring: replay.Ring, desired: AnyArray, root: PRNGKeyArray, step: Array, share: float) -> Array:
        """The goals to play for at this step: the desired ones, or in this share of episodes others that were reached before."""
        key = jax.random.fold_in(jax.random.fold_in(root, 2**32 - 1), step)  # no step is as large
        return replay.practice_goals(ring, key, jnp.asarray(desired), share, self.judge)

    def act(self, brain: Brain, obs: AnyArray, goal: AnyArray) -> Array:
        return self.agent.act(brain.agent, brain.inputs(obs, goal))


# --- the loop ----------------------------------------------------------------------------------------------------------------------------


class Run:
    """A trained (or training) policy with its folder."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        spec: GoalSpec,
        round_: Round,
        brain: Brain,
        step: int,
        env: Any = None,
        act: Callable | None = None,
    ):
        self.folder, self.config, self.spec, self.step, self._env = folder, config, spec, step, env
        self.brain, self._act, self.round = brain, act or compiled_policy(round_), round_

    def policy(self, obs: Any, goal: Any = None) -> np.ndarray:
        """The best action for a goal observation (a dictionary, or observation and goal), one or a batch, as the environment takes it."""
        obs, goal = (obs["observation"], obs["desired_goal"]) if goal is None else (obs, goal)
        obs, goal = np.asarray(obs, np.float32), np.asarray(goal, np.float32)
        sizes = self.spec.obs_dim, self.spec.goal_dim
        if any(not x.size or x.size % n for x, n in zip((obs, goal), sizes)) or obs.size // sizes[0] != goal.size // sizes[1]:
            raise UserError(f"an observation has {sizes[0]} numbers and its goal {sizes[1]}; shapes {obs.shape} and {goal.shape} don't fit")
        batch = obs.reshape(-1, sizes[0]), goal.reshape(-1, sizes[1])  # parts with several axes are seen flat
        action = guard.own_action(self.spec.action_space, self.play(*batch))
        return action if obs.ndim > 1 and len(obs) == len(batch[0]) else action[0]

    def play(self, obs: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """The best actions for a batch, as a VectorGoalEnv takes them: numbers in [−1, 1], or indices."""
        action = np.asarray(self._act(self.brain, obs, goal))
        return action.argmax(-1) if self.spec.discrete else action

    def evaluate(self, episodes: int = 100) -> dict[str, Any]:
        """Play episodes with the deterministic policy; a record like a line of evals.jsonl."""
        if episodes < 1:
            raise UserError(f"episodes must be at least 1, not {episodes}")
        with self.make_eval_env(episodes) as env:
            return {"step": self.step} | evaluate(self.play, env, episodes)

    def make_eval_env(self, episodes: int) -> VectorGoalEnv:
        c = self.config
        source = self._env if self._env is not None else c.env
        fast = vector.resolve_backend(source, c.backend, c.horizon or None) == "envpool"
        n = min(episodes, 20 if fast else c.num_envs)
        return make_env(c, self._env, n, env_seed(c.seed, "eval"))


def compiled_policy(round_: Round) -> Callable[[Brain, AnyArray, AnyArray], Array]:
    """(brain, obs, goal) → the best actions: one program for a policy in training and for one that was loaded, to the last bit."""
    return jax.jit(lambda brain, obs, goal: round_.act(brain, obs, goal))


Listener = Callable[[str, dict[str, Any]], None]


def train(
    config: Config,
    folder: Path,
    *,
    env: Any = None,
    reward: Reward | None = None,
    resume: bool = False,
    listen: Listener = lambda event, data: None,
    stop: Callable[[], bool] = lambda: False,
    head: HeadStart | None = None,
    expected: programs.Expected | None = None,
) -> Run:
    """Train in `folder`. `env` and `reward` may be objects instead of the configured names; `stop` is asked after every round.

    `head` may hold the environments of a run that begins at step 0, `expected` the programs.
    """
    config = runs.settled(config, folder)
    with make_env(config, env, 1, 0) as probe:
        trainer = Trainer(config, folder, probe.spec, probe.outliving_task(), env, reward, listen, None if resume else head, expected)
        found = probe.versions | {"backend": probe.backend}
        size = replay.bytes_needed(probe.spec, capacity(config, probe.spec), trainer.round.reward.needs_prefix)
    try:
        if not resume:
            trainer.rebuild()  # a run that can't begin leaves no folder
        with runs.claimed(folder, resume):
            runs.prepare(folder, config, found, resume)
            listen("start", {"backend": found["backend"], "buffer_bytes": size})
            trainer.begin(resume)
            return _run(trainer, stop)
    except OSError as e:
        raise UserError(f"cannot write to {folder}: {e.strerror or e}; the last checkpoint is at step {trainer.saved}") from e
    finally:
        trainer.close()


def _run(trainer: Trainer, stop: Callable[[], bool]) -> Run:
    """Train to the end; an environment's trouble leaves the run as it was after its last round."""
    try:
        return trainer.run(stop)
    except EnvTrouble as e:
        if trainer.step > trainer.saved:
            trainer.save()
        raise UserError(f"{e}; the run is kept as it was at step {trainer.step}") from e
    except jax.errors.JaxRuntimeError as e:  # inside a compiled round, whose networks are gone with it
        _, trouble, what = str(e).rpartition(f"{EnvTrouble.__name__}: ")
        if not trouble:
            raise
        raise UserError(f"{what.splitlines()[0]} after step {trainer.step}; {trainer.kept()}") from e


class Trainer:
    """The state of one run and the loop over it."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        spec: GoalSpec,
        task: GoalTask,
        env: Any,
        reward: Reward | None,
        listen: Listener,
        head: HeadStart | None = None,
        expected: programs.Expected | None = None,
    ):
        c, self.head = config, head
        self.config, self.folder, self.spec, self.env, self.listen = c, folder, spec, env, listen
        self.round = make_round(c, spec, task, reward)
        brain, ring = check_memory(c, spec, self.round)
        self._collector: Collector | None = None
        self.actions: list[np.ndarray] = []  # since the environments were last rebuilt: replayed on resuming
        self.step = self.saved = 0
        self.newest: Metrics = {}  # of the last round of updates
        self.wall, self.clock = 0.0, time.monotonic()
        self.root = jax.random.PRNGKey(c.seed)
        options, rough = programs.quickly_compiled(c.precision), programs.roughly_compiled()
        jit = partial(jax.jit, compiler_options=options)
        self.explore = jit(lambda *x: self.round.explore(*x))
        self.best = compiled_policy(self.round)
        self.learn = jit(lambda *x: self.round.learn(*x), donate_argnums=0)
        code = programs.code_of(_ROOMS)

        def early(f: programs.Step, *args: Any, options: dict[str, Any] = options, makes: Any = None) -> programs.Step:
            """Compiled beside everything else until it is needed."""
            key = programs.key_of((f.__name__, self.round, dataclasses.replace(spec, action_space=None)), code, makes, *args)
            return programs.compile_early(f, *args, options=options, key=key, makes=makes, expected=expected)

        def begin(root: PRNGKeyArray) -> tuple[tuple[Brain, replay.Ring], Metrics]:
            return fresh(c, spec, self.round, root), {}

        if c.steps > c.learning_starts:
            self.learn = early(self.round.learn, brain, ring, self.root, np.uint32(0))
        self.store = early(self.round.store, (ring, brain.inputs), replay.episodes_like(spec, c.num_envs), options=rough)
        begun = early(begin, self.root, options=rough, makes=(brain, ring))  # one program instead of a hundred small ones
        self._begun = programs.beside(lambda: begun(self.root)[0])
        if expected is not None:
            expected.note()
        self.practise = jit(lambda ring, desired, root, step: self.round.practise(ring, desired, root, step, c.practice))
        self.goals = np.zeros((c.num_envs, spec.goal_dim), np.float32)

    @cached_property
    def brain(self) -> Brain:
        return self._begun.result()[0]

    @cached_property
    def ring(self) -> replay.Ring:
        return self._begun.result()[1]

    # Algorithm 1. Slips of the printed version, repaired: an episode starts at the present t, not K; s advances to s′; the time limit is T
    # steps, not T + 1; the end of an epoch doesn't cut episodes short.
    def run(self, stop: Callable[[], bool]) -> Run:
        c = self.config
        metrics: Metrics = {}
        last = runs.last_evaluated(self.folder)
        if self.step > last and (self.step >= c.steps or _passed(last, self.step, c.eval_every)):
            self.evaluate()  # what failed when it was due
        if self.actions and (self.step >= c.steps or _passed(self.step - c.round_steps, self.step, c.checkpoint_every)):
            self.rebuild()  # what came behind it, and was left out with it
            self.save()
        while self.step < c.steps:
            before = self.step
            self.gather(c.round_steps)
            learned = self.ready()
            if learned:
                if not metrics:
                    self.listen("learning", {"step": self.step})
                self.brain, metrics = self.learn(self.brain, self.ring, self.root, np.uint32(self.step))
                self.newest = metrics
            done = self.step >= c.steps
            if metrics and (done or _passed(before, self.step, max(c.round_steps, 1_000, c.steps // _LOG_ROWS))):
                self.log(metrics)
            if done or _passed(before, self.step, c.eval_every):
                self.evaluate()
            self.listen("round", {"step": self.step, "learned": learned})
            stopped = not done and stop()
            if done or _passed(before, self.step, c.checkpoint_every):
                self.rebuild()
                self.save()
            if stopped:
                if self.saved < self.step:
                    self.save()
                self.listen("stopped", {"step": self.step, "folder": str(self.folder)})
                break
        return self.as_run()

    def gather(self, steps: int) -> None:
        """Act in the environments; finished episodes go to the buffer, where hindsight goals are drawn on sampling."""
        n = self.config.num_envs
        ready, before = self.ready(), (self.step, len(self.actions), self.goals)
        try:
            for _ in range(steps // n):
                action = np.asarray(self.act(ready))
                if not np.isfinite(action).all():
                    self.give_up("the policy's action is not a number")
                self.actions.append(action)
                self.collector.step(action)
                self.step += n
        except EnvTrouble:  # back to the end of the last round, which can be saved
            self.step, kept, self.goals = before
            del self.actions[kept:]
            raise
        self.flush()

    def act(self, ready: bool) -> AnyArray:
        """Actions of the policy, some of them random; before it has learned anything, all of them."""
        c, now = self.config, self.collector.obs
        if not ready:
            self.goals = now.desired_goal.copy()
            return wander(c, self.spec, self.step)
        share = np.float32(random_share(c, self.step))
        return self.explore(self.brain, now.observation, self.aims(), self.root, np.uint32(self.step), share)

    def aims(self) -> np.ndarray:
        """The goals that the environments' present episodes are played for; drawn when an episode begins."""
        desired, begun = self.collector.obs.desired_goal, self.collector.t == 0
        if self.config.practice and begun.any():
            drawn = self.practise(self.ring, desired, self.root, np.uint32(self.step))
            self.goals = np.where(begun[:, None], np.asarray(drawn), self.goals)
        return self.goals if self.config.practice else desired

    def ready(self) -> bool:
        """Is there something to learn from? Updates on an object that never moved only teach the networks to ignore it."""
        c = self.config
        if self.step < c.learning_starts or not np.asarray(self.ring.span)[1]:  # no episode has ended yet
            return False
        return np.asarray(self.ring.moved_span)[1] >= c.moving_starts or self.step >= _PATIENCE * c.learning_starts

    def flush(self) -> None:
        for columns in self.collector.take():
            (self.ring, inputs), _ = self.store((self.ring, self.brain.inputs), replay.Episodes(*columns))
            self.brain = dataclasses.replace(self.brain, inputs=inputs)

    @property
    def collector(self) -> Collector:
        assert self._collector is not None, "begin() builds the environments"
        return self._collector

    # --- environments that can be rebuilt ------------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Cut the running episodes and build the environments anew from a seed of this step: what resuming can repeat."""
        c = self.config
        begun = self.head.take(c) if self.head is not None else None  # of step 0: nobody has asked before
        with made_before():
            env = begun or make_env(c, self.env, c.num_envs, env_seed(c.seed, "train", self.step))
            fresh = Collector(env, c.end_on_success)
        if self._collector is not None:  # cut only now that nothing can go wrong any more
            self._collector.close()
            self.flush()
        self._collector, self.actions = fresh, []

    def close(self) -> None:
        if self._collector is not None:
            self._collector.env.close()

    # --- what is written -----------------------------------------------------------------------------------------------------------------

    def log(self, metrics: Metrics) -> None:
        row = self.check(metrics)
        row |= {
            "step": self.step,
            "random": random_share(self.config, self.step),
            "moved": self.moved_share(),
            "wall_s": round(self.seconds(), 3),
        }
        runs.append_line(self.folder / "metrics.jsonl", row)
        self.listen("metrics", row)

    def check(self, metrics: Metrics) -> dict[str, float]:
        """The metrics as numbers; whoever blew up is not saved."""
        row = {k: float(v) for k, v in metrics.items()}
        if not math.isfinite(row["reward/mean"]):
            raise UserError(f"the reward {self.config.reward} pays {row['reward/mean']} at step {self.step}; {self.kept()}")
        for name, value in row.items():
            if not math.isfinite(value) or (name == "agent/q" and abs(value) > 1e6):
                self.give_up(f"{name} is {value:.3g}")
        return row

    def kept(self) -> str:
        return f"the last good checkpoint is at step {self.saved}" if self.saved else "there is no checkpoint yet"

    def give_up(self, what: str) -> None:
        raise UserError(
            f"learning blew up at step {self.step}: {what}; {self.kept()}; "
            "try a smaller learning rate, or where the agent has them bounds for the targets (q_low, q_high) or layer_norm"
        )

    def moved_share(self) -> float:
        """Share of stored transitions after which the achieved goal still moves."""
        span, moved = np.asarray(self.ring.span), np.asarray(self.ring.moved_span)
        return float((moved[1] - moved[0]) / max(span[1] - span[0], 1))

    def evaluate(self) -> None:
        with made_before():
            record = self.as_run().evaluate(self.config.eval_episodes) | {"wall_s": round(self.seconds(), 3)}
        runs.append_line(self.folder / "evals.jsonl", record)
        self.listen("eval", record)

    def seconds(self) -> float:
        now = time.monotonic()
        self.wall, self.clock = self.wall + now - self.clock, now
        return self.wall

    def as_run(self) -> Run:
        return Run(self.folder, self.config, self.spec, self.round, self.brain, self.step, self.env, self.best)

    # --- checkpoints ---------------------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        if self.newest:
            self.check(self.newest)
        if not (self.folder / "config.json").is_file():  # not half made again
            raise FileNotFoundError(errno.ENOENT, "the run folder has vanished")
        rows = replay.used_rows(self.ring)
        acted = {"actions": self._actions_array(), "goals": self.goals}
        ring = replay.trimmed(jax.tree.map(np.asarray, self.ring), rows)  # a view: saving needs no second buffer
        trees = {"brain": self.brain, "ring": ring, "actions": acted}
        meta = {"rows": rows, "wall_s": self.seconds(), "segment": self.step - len(self.actions) * self.config.num_envs}
        runs.save_checkpoint(self.folder, self.step, trees, meta | {"replayed": len(self.actions)})
        self.saved = self.step
        self.listen("checkpoint", {"step": self.step})

    def begin(self, resume: bool) -> None:
        """Start at step 0, or exactly where the last checkpoint stands; only then the logs are cut back to there."""
        steps = runs.checkpoint_steps(self.folder) if resume else []
        if steps:
            self._restore(steps)
        elif resume:
            runs.refuse_lost(self.folder, self.config)
        if self._collector is None:
            self.rebuild()
        for name in runs.LOGS:
            runs.cut_log(self.folder / name, self.step if steps else -1)
        if resume:
            runs.go_on(self.folder, self.config.steps, self.step)
        if steps:
            self.listen("resumed", {"step": self.step})

    def _restore(self, steps: list[int]) -> None:
        """Networks, buffer and environments as the last of these checkpoints has them."""
        meta = runs.load_meta(self.folder)
        segment, replayed = (runs.natural(meta, key) for key in ("segment", "replayed"))
        wall = meta.get("wall_s", 0.0)
        if segment + replayed * self.config.num_envs != steps[-1] or type(wall) not in (int, float):
            raise UserError(f"checkpoint {steps[-1]} of {self.folder} contradicts itself: its meta.json is damaged")
        if not (runs.checkpoint_path(self.folder, steps[-1]) / "ring.safetensors").is_file():
            raise UserError(f"{self.folder} can't go on: its replay buffer was left out, as in policies that are shared")
        load = lambda name, template: runs.load_tree(self.folder, steps[-1], name, template)  # noqa: E731
        shape = (replayed, self.config.num_envs, self.spec.action_dim)
        acted = load("actions", {"actions": jax.ShapeDtypeStruct(shape, np.float32), "goals": self.goals})
        actions, self.goals = acted["actions"], np.asarray(acted["goals"])
        self.step = segment
        self.rebuild()
        for action in actions:  # the environments are deterministic: the same actions lead to the same state
            self.collector.step(action)
            self.actions.append(action)
        self.collector.finished = []  # these episodes are in the saved buffer
        self.brain = jax.tree.map(jnp.asarray, load("brain", self.brain))
        rows, whole = runs.natural(meta, "rows"), jax.eval_shape(lambda ring: ring, self.ring)
        del self.ring, self._begun  # makes room for the saved one
        self.ring = replay.untrimmed(load("ring", jax.eval_shape(lambda ring: replay.trimmed(ring, rows), whole)), whole)
        self.step = self.saved = steps[-1]
        self.wall, self.clock = float(wall), time.monotonic()

    def _actions_array(self) -> np.ndarray:
        shape = (len(self.actions), self.config.num_envs, self.spec.action_dim)
        return np.stack(self.actions) if self.actions else np.zeros(shape, np.float32)


def _passed(before: int, now: int, every: int) -> bool:
    return before // every != now // every


def target_bounds(reward: Reward, task: GoalTask, gamma: float) -> dict[str, float]:
    """Bounds of a return whose rewards stay within what the learned and the task's reward allow; success may go on paying."""
    low, high = sorted(reward.scale * b if reward.scale else 0.0 for b in reward.bounds())
    if reward.task_weight:
        least, most = sorted(reward.task_weight * pay for pay in (task.pays if task.sparse else (-math.inf, math.inf)))
        low, high = low + least, high + most
    return {"q_low": min(low, 0.0) / (1 - gamma), "q_high": max(high, 0.0) / (1 - gamma)}


def make_round(c: Config, spec: GoalSpec, task: GoalTask, reward: Reward | None = None) -> Round:
    reward = rewards.make(reward) if reward is not None else rewards.make(c.reward, **c.reward_options)
    agent = agents.make(c.agent, **c.agent_options)
    if c.bound_targets and not c.curiosity and c.agent == "td3":  # soft values also hold entropy
        bounds = {name: c.reward_scale * q for name, q in target_bounds(reward, task, agent.gamma).items()}
        agent = agents.make(c.agent, **(bounds | c.agent_options))
    if (c.agent == "soft_q") != spec.discrete:
        kind, fitting = ("discrete", "soft_q") if spec.discrete else ("continuous", "td3 or sac")
        raise UserError(f"{spec.env_id or c.env} has {kind} actions: use --agent {fitting} instead of {c.agent}")
    how = replay.Hindsight(c.her, c.her_ratio, c.her_redraws, c.moved_fraction, c.spread_goals, c.success_terminates, make_ends(task))
    sizes = Sizes(c.round_updates, c.batch_size, c.potential_updates, c.potential_batch, c.potential_window)
    bonus = rewards.make("rnd", scale=c.curiosity, task_weight=0.0, warmup=0, standardise=True) if c.curiosity else None
    return Round(agent, reward, bonus, how, task, sizes, c.reward_scale)


def fresh(c: Config, spec: GoalSpec, round_: Round, root: PRNGKeyArray) -> tuple[Brain, replay.Ring]:
    """Networks and buffer before the first step."""
    k_agent, k_reward, k_curiosity = jax.random.split(root, 3)
    inputs = Inputs(nn.moments(spec.obs_dim), nn.moments(spec.goal_dim), c.normalise_inputs)
    agent = nn.in_precision(round_.agent.init(k_agent, spec.obs_dim + spec.goal_dim, spec.action_dim), c.precision)
    curiosity = None if round_.curiosity is None else round_.curiosity.init(k_curiosity, spec)
    return Brain(agent, round_.reward.init(k_reward, spec), curiosity, inputs), _empty_ring(c, spec, round_)


def _empty_ring(c: Config, spec: GoalSpec, round_: Round) -> replay.Ring:
    return replay.make_ring(spec, capacity(c, spec), round_.reward.needs_prefix)


def capacity(c: Config, spec: GoalSpec) -> int:
    """No more than can ever be filled, by episodes of one step, which take two rows; no less than one episode of every environment."""
    return max(min(c.buffer_size, 2 * (c.steps + c.round_steps)), c.num_envs * (spec.horizon + 1))


def check_memory(c: Config, spec: GoalSpec, round_: Round) -> tuple[Brain, replay.Ring]:
    """The shapes of networks and buffer; what can't fit is refused before anything is allocated."""
    try:
        brain, _ = jax.eval_shape(lambda: fresh(dataclasses.replace(c, buffer_size=1), spec, round_, jax.random.PRNGKey(0)))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError, KeyError, AttributeError, IndexError) as e:
        what = " ".join(str(e).split())[:200]
        raise UserError(f"networks can't be made with the options of {c.agent} and {c.reward}: {type(e).__name__}: {what}") from None
    held = capacity(c, spec)
    row = 4 * (2 * spec.obs_dim + 8 * spec.goal_dim + spec.action_dim + 8)  # bytes of one transition as it is sampled
    needs = {
        f"a buffer of {held:,} transitions": (replay.bytes_needed(spec, held, round_.reward.needs_prefix), "buffer-size"),
        "networks of that size": (sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(brain)), f"{c.agent}.hidden"),
        "a round's batches": (row * (c.round_updates * c.batch_size + c.potential_updates * c.potential_batch), "batch-size"),
    }
    free, total = runs.free_memory(), sum(need for need, _ in needs.values())
    if free is not None and total > 0.9 * free:
        what, (need, option) = max(needs.items(), key=lambda item: item[1][0])
        parts = f"{what} needs {need / 2**30:.1f} GiB" + (f" of {total / 2**30:.1f} in all" if need <= 0.9 * free else "")
        raise UserError(f"{parts}, {free / 2**30:.1f} GiB are free: lower --{option}")
    return brain, jax.eval_shape(lambda: _empty_ring(c, spec, round_))


def load_run(folder: Path, step: int | None = None, env: Any = None, reward: Reward | None = None) -> Run:
    """A saved run's policy at its newest (or the given) checkpoint; `env` and `reward` as given to `train`, where they were objects."""
    config = runs.load_config(folder)
    runs.refuse_own(folder, config, env, reward)
    meta = runs.load_meta(folder, step)
    with make_env(config, env, 1, 0) as probe:
        round_ = make_round(config, probe.spec, probe.outliving_task(), reward)
        template, _ = check_memory(dataclasses.replace(config, buffer_size=1), probe.spec, round_)
    brain = jax.tree.map(jnp.asarray, runs.load_tree(folder, meta["step"], "brain", template))
    return Run(folder, config, probe.spec, round_, brain, meta["step"], env)


class _CallableModule(types.ModuleType):
    """`aimrl.train(…)` is the package's contract and this file is its room: importing the room must not hide the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Run:
        import aimrl

        return aimrl.train_named(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
