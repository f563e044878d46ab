"""Goal success and task reward as functions of (achieved, goal): what hindsight relabelling recomputes.

The known tasks are written once in array-API code, so the same object serves NumPy in the loop and JAX inside a compiled round.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aimrl.types import EnvTrouble, UserError

GoalFunction = Callable[[Any, Any], Any]
MAZE_RADIUS = 0.45  # gymnasium-robotics hard-codes it in MazeEnv


@dataclass(frozen=True)
class GoalTask:
    """When is a goal met, and what does the environment pay; batched over leading axes."""

    reward: GoalFunction  # (achieved, goal) -> the environment's task reward
    success: GoalFunction  # (achieved, goal) -> bool
    terminated: GoalFunction  # (achieved, goal) -> bool: would the environment itself end the episode here for good?
    terminates_on_success: bool
    jittable: bool  # True: pure array code, safe under jax.jit; False: calls a Python environment, NumPy only
    sparse: bool  # True: the reward takes one value on success and another elsewhere
    name: str = ""
    pays: tuple[float, float] = (-1.0, 0.0)  # least and most, where the reward is sparse


@dataclass(frozen=True)
class Never:
    """No goal ends an episode: continuing tasks."""

    def __call__(self, achieved: Any, goal: Any) -> Any:
        xp = achieved.__array_namespace__()
        return xp.zeros(achieved.shape[:-1], dtype=bool)


def unexplained(task: GoalTask, ended: np.ndarray, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """Which of the episodes that an environment ended for good its own rule doesn't foresee."""
    return ended & ~np.asarray(task.terminated(achieved, desired), bool) if ended.any() else ended


@dataclass(frozen=True)
class Distance:
    """‖achieved − goal‖₂."""

    def __call__(self, achieved: Any, goal: Any) -> Any:
        xp = achieved.__array_namespace__()
        return xp.sqrt(xp.sum((achieved - goal) ** 2, axis=-1))


@dataclass(frozen=True)
class Near:
    """Success of the Fetch and reach tasks: a distance below `threshold` (mazes include the border)."""

    threshold: float
    inclusive: bool = False

    def __call__(self, achieved: Any, goal: Any) -> Any:
        d = Distance()(achieved, goal)
        return d <= self.threshold if self.inclusive else d < self.threshold


@dataclass(frozen=True)
class Pose:
    """Position and rotation gaps of the hand's manipulation tasks; goals are x y z and a unit quaternion w x y z."""

    use_position: bool
    use_rotation: bool
    ignore_z: bool  # the pen is symmetric about its axis: its third Euler angle doesn't count

    def __call__(self, achieved: Any, goal: Any) -> tuple[Any, Any]:
        xp = achieved.__array_namespace__()
        zero = xp.zeros_like(achieved[..., 0])
        d_pos = Distance()(achieved[..., :3], goal[..., :3]) if self.use_position else zero
        if not self.use_rotation:
            return d_pos, zero
        a, g = achieved[..., 3:], goal[..., 3:]
        if self.ignore_z:
            # gymnasium-robotics copies euler[2], which in a batch is the third *row*; here it is the third angle of every row.
            euler_a, euler_g = _quat_to_euler(a), _quat_to_euler(g)
            a = _euler_to_quat(euler_a[0], euler_a[1], euler_g[2])
        # The scalar part of a · conj(g). As in the original, q and −q count as a full turn apart.
        w = xp.sum(a * g, axis=-1)
        return d_pos, 2 * xp.arccos(xp.clip(w, -1.0, 1.0))


@dataclass(frozen=True)
class PoseNear:
    """Success of the manipulation tasks: position and rotation both within their thresholds."""

    pose: Pose
    distance_threshold: float
    rotation_threshold: float

    def __call__(self, achieved: Any, goal: Any) -> Any:
        d_pos, d_rot = self.pose(achieved, goal)
        return (d_pos < self.distance_threshold) & (d_rot < self.rotation_threshold)


@dataclass(frozen=True)
class Sparse:
    """`high` on success, `low` elsewhere."""

    success: Near | PoseNear
    low: float = -1.0
    high: float = 0.0

    def __call__(self, achieved: Any, goal: Any) -> Any:
        xp = achieved.__array_namespace__()
        hit = xp.astype(self.success(achieved, goal), achieved.dtype)
        return self.low + (self.high - self.low) * hit


@dataclass(frozen=True)
class MinusDistance:
    """The dense reward of Fetch and HandReach."""

    def __call__(self, achieved: Any, goal: Any) -> Any:
        return -Distance()(achieved, goal)


@dataclass(frozen=True)
class ExpMinusDistance:
    """The dense reward of the mazes."""

    def __call__(self, achieved: Any, goal: Any) -> Any:
        xp = achieved.__array_namespace__()
        return xp.exp(-Distance()(achieved, goal))


@dataclass(frozen=True)
class MinusPose:
    """The dense reward of the manipulation tasks: metres weigh ten times as much as radians."""

    pose: Pose

    def __call__(self, achieved: Any, goal: Any) -> Any:
        d_pos, d_rot = self.pose(achieved, goal)
        return -(10.0 * d_pos + d_rot)


def _quat_to_euler(q: Any) -> tuple[Any, Any, Any]:
    """Euler angles in gymnasium-robotics' convention, from the entries of the rotation matrix it uses."""
    xp = q.__array_namespace__()
    w, x, y, z = q[..., 0], q[..., 1], q[..., 2], q[..., 3]
    s = 2.0 / xp.sum(q * q, axis=-1)
    m00, m01, m02 = 1 - s * (y * y + z * z), s * (x * y - w * z), s * (x * z + w * y)
    m10, m11, m12 = s * (x * y + w * z), 1 - s * (x * x + z * z), s * (y * z - w * x)
    m22 = 1 - s * (x * x + y * y)
    cos_y = xp.sqrt(m22 * m22 + m12 * m12)
    regular = cos_y > 4 * np.finfo(np.float64).eps  # else gimbal lock: only the sum of the two other angles is defined
    first = xp.where(regular, -xp.arctan2(m12, m22), xp.zeros_like(m00))
    third = xp.where(regular, -xp.arctan2(m01, m00), -xp.arctan2(-m10, m11))
    return first, -xp.arctan2(-m02, cos_y), third


def _euler_to_quat(first: Any, second: Any, third: Any) -> Any:
    xp = first.__array_namespace__()
    ai, aj, ak = third / 2, -second / 2, first / 2
    si, sj, sk, ci, cj, ck = xp.sin(ai), xp.sin(aj), xp.sin(ak), xp.cos(ai), xp.cos(aj), xp.cos(ak)
    w = cj * ci * ck + sj * si * sk
    x = cj * ci * sk - sj * si * ck
    y = -(cj * si * sk + sj * ci * ck)
    z = cj * si * ck - sj * ci * sk
    return xp.stack([w, x, y, z], axis=-1)


def near_task(threshold: float, reward_type: str = "sparse", name: str = "") -> GoalTask:
    """Fetch and HandReach: reward −1/0 or minus the distance; the simulator never ends an episode itself."""
    success, sparse = Near(float(threshold)), reward_type == "sparse"
    return GoalTask(Sparse(success) if sparse else MinusDistance(), success, Never(), False, True, sparse, name)


def maze_task(reward_type: str, continuing: bool, name: str = "") -> GoalTask:
    """PointMaze and AntMaze: reward 0/1 or exp(−distance); an episodic maze ends at the goal."""
    success, sparse = Near(MAZE_RADIUS, inclusive=True), reward_type == "sparse"
    reward = Sparse(success, 0.0, 1.0) if sparse else ExpMinusDistance()
    return GoalTask(reward, success, Never() if continuing else success, not continuing, True, sparse, name, (0.0, 1.0))


def manipulate_task(settings: Mapping[str, Any], name: str = "") -> GoalTask:
    """HandManipulate*: `settings` are the environment's own, by gymnasium-robotics' names."""
    pose = Pose(
        settings["target_position"] != "ignore", settings["target_rotation"] != "ignore", bool(settings["ignore_z_target_rotation"])
    )
    success = PoseNear(pose, float(settings["distance_threshold"]), float(settings["rotation_threshold"]))
    sparse = settings["reward_type"] == "sparse"
    return GoalTask(Sparse(success) if sparse else MinusPose(pose), success, Never(), False, True, sparse, name)


def known_task(settings: Mapping[str, Any], name: str = "") -> GoalTask | None:
    """The task of a gymnasium-robotics environment from its settings, whichever backend reports them; None if it isn't one we know."""
    if "continuing_task" in settings:
        return maze_task(settings["reward_type"], bool(settings["continuing_task"]), name)
    if "rotation_threshold" in settings and settings.get("hand_task", "manipulate") == "manipulate":
        return manipulate_task(settings, name)
    if "distance_threshold" in settings:
        return near_task(settings["distance_threshold"], settings["reward_type"], name)
    return None


_SETTINGS = (
    "reward_type",
    "distance_threshold",
    "rotation_threshold",
    "target_position",
    "target_rotation",
    "ignore_z_target_rotation",
    "continuing_task",
)


def task_of(env: Any, name: str = "") -> GoalTask:
    """The goal task of a Gymnasium environment: array code where it has some or its rules are gymnasium-robotics', else its methods."""
    base = env.unwrapped
    if not callable(getattr(base, "compute_reward", None)):
        raise UserError(f"{name or type(base).__name__} has no compute_reward(achieved_goal, desired_goal, info): hindsight needs it")
    packaged = ("gymnasium_robotics.envs.fetch", "gymnasium_robotics.envs.shadow", "gymnasium_robotics.envs.maze")
    # A subclass may override the rules, so ask where the methods that will be called were written, not what the class is.
    rules = [getattr(getattr(type(base), method, None), "__module__", "") for method in ("compute_reward", "compute_terminated")]
    if rules[0].startswith(packaged) and rules[1].startswith("gymnasium_robotics"):
        task = known_task({key: getattr(base, key) for key in _SETTINGS if hasattr(base, key)}, name)
        if task is not None:
            return task
    methods = method_task(env, name)
    return methods if getattr(base, "goal_task", None) is None else declared_task(env, methods)


def declared_task(env: Any, methods: GoalTask) -> GoalTask:
    """The array code in which an environment repeats its rules (`goal_task`, a GoalTask or a function that makes one), held to its methods.

    What only Python can answer is asked in the middle of a compiled round, which then can't be kept for the next start either.
    """
    import jax  # nobody else here needs it

    base, label = env.unwrapped, methods.name or type(env.unwrapped).__name__
    try:
        task = base.goal_task() if callable(base.goal_task) else base.goal_task
    except Exception as e:
        raise UserError(f"{label}.goal_task failed ({type(e).__name__}: {' '.join(str(e).split())[:300]})") from None
    if not isinstance(task, GoalTask):
        raise UserError(
            f"{label}.goal_task must be a GoalTask, say aimrl.envs.goals.near_task(0.05), not {' '.join(repr(task).split())[:100]}"
        )
    on_the_way, asked = _around_the_border(methods.success, *_probe_goals(env, label))
    for what in ("reward", "success", "terminated"):
        theirs = np.asarray(getattr(methods, what)(on_the_way, asked), np.float32)
        try:
            ours = np.asarray(getattr(task, what)(on_the_way, asked), np.float32)
            jax.eval_shape(getattr(task, what), on_the_way, asked)  # it must do without NumPy
        except Exception as e:
            raise UserError(f"{label}.goal_task: {what} failed ({type(e).__name__}: {' '.join(str(e).split())[:300]})") from None
        if ours.shape != theirs.shape:
            raise UserError(f"{label}.goal_task: {what} has shape {ours.shape} for {len(asked)} pairs of goals")
        apart = ~np.isclose(ours, theirs, atol=1e-5)
        if apart.any():
            i = int(apart.argmax())
            pair = f"achieved {np.round(on_the_way[i], 4).tolist()}, desired {np.round(asked[i], 4).tolist()}"
            raise UserError(f"{label}.goal_task disagrees with the environment: {what} {ours[i]:g} instead of {theirs[i]:g} for {pair}")
    seen = {key: getattr(methods, key) for key in ("name", "sparse", "pays", "terminates_on_success")}
    return dataclasses.replace(task, jittable=True, **seen)


def _around_the_border(success: GoalFunction, achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of goals at many distances on the way from one to the other, and a thousandth inside and outside of where success begins."""
    at = lambda left: (desired + left * (achieved - desired)).astype(np.float32)  # noqa: E731  what is left of the way
    met, missed = np.zeros((len(achieved), 1)), np.ones((len(achieved), 1))
    for _ in range(40):
        middle = (met + missed) / 2
        hit = np.asarray(success(at(middle), desired), bool)[:, None]
        met, missed = np.where(hit, middle, met), np.where(hit, missed, middle)
    left = [*np.geomspace(1e-4, 1.0, 40), 0.0, 0.999 * met, 1.001 * missed]
    return np.concatenate([at(x) for x in left]), np.concatenate([desired] * len(left))


def method_task(env: Any, name: str = "") -> GoalTask:
    """The goal task of a user's environment through its `compute_reward` and `compute_terminated`.

    Success, in this order: the environment's own `is_success(achieved, desired)` (or `_is_success`, gymnasium-robotics' name) if it has
    one; else the reward equals what standing exactly on the goal pays, reward(a, g) ≥ reward(g, g). That is right for every sparse
    reward, −1/0 or 0/1 or any other pair; under a dense reward it only holds on the goal itself, so such an environment should define
    `is_success` (the doctor says so).
    """
    base, label = env.unwrapped, name or type(env.unwrapped).__name__
    space = env.observation_space["achieved_goal"]
    achieved, desired = _probe_goals(env, label)

    def batched(method: str, dtype: Any) -> GoalFunction:
        return _batched(getattr(base, method), space.shape, space.dtype, dtype, achieved, desired, f"{label}.{method}")

    def with_info(method: str, dtype: Any) -> GoalFunction:
        bound = getattr(base, method)
        return _batched(lambda a, g: bound(a, g, {}), space.shape, space.dtype, dtype, achieved, desired, f"{label}.{method}")

    reward = with_info("compute_reward", np.float32)
    # Goal environments older than gymnasium-robotics 1.2, and many users' own, have no compute_terminated: then no goal ends an episode.
    terminated = with_info("compute_terminated", bool) if callable(getattr(base, "compute_terminated", None)) else Never()
    own = next((m for m in ("is_success", "_is_success") if callable(getattr(base, m, None))), None)
    success = batched(own, bool) if own else _RewardOnGoal(reward)
    hits = success(achieved, desired)
    ends = terminated(achieved, desired)
    paid = np.unique(np.round(reward(*_around_the_border(success, achieved, desired)), 6))  # also where no start and no goal is
    pays = float(paid[0]), float(paid[-1])
    return GoalTask(reward, success, terminated, bool(hits.any() and ends[hits].all()), False, len(paid) <= 2, name, pays)


@dataclass(frozen=True)
class _RewardOnGoal:
    reward: GoalFunction

    def __call__(self, achieved: Any, goal: Any) -> Any:
        best = self.reward(goal, goal)
        return self.reward(achieved, goal) >= best - 1e-6 * np.maximum(1.0, np.abs(best))


def _probe_goals(env: Any, label: str, n: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Goal pairs to try functions on: n starts against their own goals, against each other, and each goal against itself."""
    try:
        starts = [env.reset(seed=i)[0] for i in range(n)]
        a = np.stack([np.asarray(o["achieved_goal"], np.float32).ravel() for o in starts])
        g = np.stack([np.asarray(o["desired_goal"], np.float32).ravel() for o in starts])
    except Exception as e:
        raise UserError(f"{label}.reset gave no goals ({type(e).__name__}: {' '.join(str(e).split())[:300]})") from None
    if a.shape != g.shape:
        raise UserError(f"{label}.reset gave an achieved goal of size {a.shape[1]} and a desired goal of size {g.shape[1]}")
    return np.concatenate([a, a, np.roll(g, 1, 0), g, a]), np.concatenate([g, np.roll(g, 1, 0), g, g, a])


def _batched(f: GoalFunction, shape: Any, dtype: Any, out: Any, achieved: np.ndarray, desired: np.ndarray, label: str) -> GoalFunction:
    """`f` over a batch of flat goals: in one call if that agrees with one call a pair (tried here once), else in a loop."""

    def restore(x: Any) -> np.ndarray:
        return np.asarray(x).reshape((-1, *shape)).astype(dtype)

    def looped(a: Any, g: Any) -> np.ndarray:
        a, g = np.broadcast_arrays(a, g)
        return np.array([np.asarray(f(x, y)).item() for x, y in zip(restore(a), restore(g))], dtype=out).reshape(a.shape[:-1])

    def vectorised(a: Any, g: Any) -> np.ndarray:
        a, g = np.broadcast_arrays(a, g)
        return np.asarray(f(restore(a), restore(g))).astype(out).reshape(a.shape[:-1])

    try:
        truth = looped(achieved, desired)
    except Exception as e:
        raise UserError(f"{label} failed on goals from reset with an empty info ({type(e).__name__}: {e}): hindsight needs it") from None
    try:
        agree = np.allclose(vectorised(achieved, desired), truth, atol=1e-6)
    except Exception:  # any failure means the same thing: not written for batches
        agree = False
    if agree:
        return _guarded(vectorised, label)
    if not truth.any() and out is bool:
        # A constant False from `compute_terminated` is the common continuing task; a loop would only slow it down.
        constant = _constant_false(f, restore(achieved), restore(desired))
        if constant:
            return Never()
    warnings.warn(f"{label} is not vectorised (a batch disagrees with one call a pair): it is looped, which is slow", stacklevel=2)
    return _guarded(looped, label)


def _guarded(f: GoalFunction, label: str) -> GoalFunction:
    """`f`, whose own errors are told as the environment's."""

    def call(achieved: Any, goal: Any) -> Any:
        try:
            return f(achieved, goal)
        except Exception as e:
            raise EnvTrouble(f"{label} failed ({type(e).__name__}: {' '.join(str(e).split())[:300]})") from e

    return call


def _constant_false(f: GoalFunction, achieved: np.ndarray, desired: np.ndarray) -> bool:
    """Does `f` answer one plain False for a whole batch, as `return False` does?"""
    try:
        return f(achieved, desired) is False
    except Exception:
        return False
