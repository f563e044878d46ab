"""The doctor finds each illness it claims to know, and none in the healthy."""

from __future__ import annotations

import json
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit, TransformReward
from toy import OneByOne, Rogue, Steps, Walk

from aimrl.envs.doctor import Finding, diagnose, healthy


class Wanderer(Walk):
    """A healthy walk: small moves, float32 throughout."""

    low, high = -0.5, 0.5

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.observation_space = spaces.Dict({key: spaces.Box(-np.inf, np.inf, (1,), np.float32) for key in self.observation_space})

    def _obs(self):
        x, goal = np.array([self.x], np.float32), np.array([self.goal], np.float32)
        return {"observation": x - 1, "achieved_goal": x, "desired_goal": goal}


class Liar(Wanderer):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward + (self.t % 4 == 0), *rest


class Endless(Wanderer):
    """compute_terminated ends at the goal, step doesn't."""

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, False, truncated, info


class Falls(Wanderer):
    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, bool(self.x < -0.5), truncated, info


class Frozen(Wanderer):
    def step(self, action):
        return super().step([0.0])


class Unseeded(Wanderer):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = float(np.random.default_rng().uniform(1, 10))
        return self._obs(), {}


class Shaky(Wanderer):
    def step(self, action):
        return super().step([float(action[0]) + np.random.default_rng().normal() * 0.01])


class Shifting(Wanderer):
    def step(self, action):
        self.goal += 0.1
        return super().step(action)


class Dense(Wanderer):
    def compute_reward(self, achieved, desired, info):
        return -np.abs(achieved - desired)[..., 0]


class Fixed(Wanderer):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = 3.0
        return self._obs(), {}


class Backwards(Wanderer):
    """A threshold the wrong way round: success is being far away."""

    def is_success(self, achieved, desired):
        return np.abs(achieved - desired)[..., 0] > 0.1


class Outside(Wanderer):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({**self.observation_space.spaces, "desired_goal": spaces.Box(0, 0.5, (1,), np.float32)})


class HalfMade(Wanderer):
    compute_reward = None


def limited(env: gymnasium.Env) -> gymnasium.Env:
    return TimeLimit(env, 20)


def find(findings: list[Finding], text: str) -> Finding:
    hits = [f for f in findings if text in f.what]
    assert len(hits) == 1, [f.what for f in findings]
    return hits[0]


def test_a_healthy_environment_gets_no_warning_and_every_matter_is_looked_at():
    findings = diagnose(limited(Wanderer()))
    assert {f.level for f in findings} == {"ok"}, findings
    assert healthy(findings)
    text = " ".join(f.what for f in findings)
    for matter in (
        "autoreset is off",
        "compute_reward",
        "termination is consistent",
        "same seed",
        "achieved goal",
        "sparse",
        "float32 of shape",
    ):
        assert matter in text
    assert json.loads(json.dumps([f.as_json() for f in findings]))[0]["level"] == "ok"


@pytest.mark.parametrize(
    ("env", "level", "text"),
    [
        (
            Liar(),
            "error",
            "compute_reward disagrees with step in 25% of steps (environment 0, step 4: 0 from step, -1 from compute_reward)",
        ),
        (Endless(ends_at_goal=True, span=1.0), "error", "compute_terminated says an episode ended where step went on"),
        (Falls(), "warn", "terminated for a reason that compute_terminated doesn't know"),
        (Frozen(), "error", "random play never changed the achieved goal"),
        (Unseeded(), "error", "reset is not deterministic"),
        (Shaky(), "error", "step is not deterministic"),
        (Shifting(), "warn", "the desired goal changed within an episode in 100.0% of steps"),
        (Dense(), "warn", "the reward is dense"),
        (Fixed(), "warn", "another seed gives the same start and goal"),
        (Fixed(), "warn", "every episode had the same desired goal"),
        (Backwards(), "error", "standing exactly on the goal is not a success"),
        (Wanderer(pays=(-1000.0, 0.0)), "warn", "rewards reach -1000"),
        (Outside(), "warn", "desired_goal leaves its own space"),
        (HalfMade(), "error", "HalfMade has no compute_reward"),
        (Rogue("nan", 15), "error", "environment 0, step 15: achieved_goal has NaN"),
        (TransformReward(Wanderer(), lambda r: 2 * r), "warn", "the wrapper TransformReward changes the reward"),
        (gymnasium.wrappers.Autoreset(Wanderer()), "error", "the wrapper Autoreset resets by itself"),
        (OneByOne(ends_at_goal=True), "warn", "OneByOne.compute_reward is not vectorised"),
        (Walk(), "warn", "observation has shape (2, 2) and will be flattened"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, gymnasium.Env) else None,
)
def test_each_illness_is_named_with_advice(env, level, text):
    finding = find(diagnose(limited(env)), text)
    assert finding.level == level
    assert finding.advice


def test_the_quick_look_finds_what_makes_training_pointless_and_leaves_the_rest():
    assert healthy(diagnose(limited(Steps()), quick=True))
    assert not healthy(diagnose(limited(Liar()), quick=True))
    assert not healthy(diagnose("CartPole-v1", quick=True))
    assert healthy(diagnose(limited(Unseeded()), quick=True))  # needs the full look


@pytest.mark.parametrize(("env", "backend"), [("FetchReach-v4", "envpool"), ("FetchPush-v4", "gym"), ("PointMaze_UMaze-v3", "envpool")])
def test_the_known_environments_are_sound(env, backend):
    findings = diagnose(env, backend)
    assert healthy(findings), findings
    assert f"through {backend}" in findings[0].what


def test_an_unknown_id_is_one_finding():
    (finding,) = diagnose("FetchPsh-v4")
    assert finding.level == "error"
    assert "did you mean" in finding.what


def test_the_spaces_of_an_environment_in_envpool_are_listed_too():
    said = [f.what for f in diagnose("FetchReach-v4")]
    assert {"observation: float64 of shape (10,)", "achieved_goal: float64 of shape (3,)"} <= set(said)
    assert not any("of shape" in f.what for f in diagnose("FetchReach-v4", "envpool", quick=True))  # a run starts sooner without


def test_the_look_before_training_waits_as_long_as_the_run_would():
    class Slow(Walk):
        def reset(self, **options):
            time.sleep(0.2)
            return super().reset(**options)

    make = lambda: TimeLimit(Slow(), 10)  # noqa: E731
    assert healthy(diagnose(make, quick=True, timeout_s=60.0))
    [finding] = diagnose(make, quick=True, timeout_s=0.5)
    assert "took more than 0.5 s (hung)" in finding.what


class Partly(Wanderer):
    def reset(self, **options):
        obs, info = super().reset(**options)
        return {k: v for k, v in obs.items() if k != "observation"}, info


class Worn(Wanderer):
    """Its reset fails from the third environment on: the doctor's own look at one."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Worn.made += 1
        self.number = Worn.made

    def reset(self, **options):
        if self.number > 3:
            raise RuntimeError("the gripper is lost")
        return super().reset(**options)


class Exits(Wanderer):
    def reset(self, **options):
        raise SystemExit


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (Partly, "the observation has no 'observation'"),
        (Worn, "reset raised RuntimeError: the gripper is lost, though not always"),
        (Exits, "ends the process (sys.exit)"),
    ],
)
def test_a_reset_that_fails_is_one_finding(env, text):
    assert find(diagnose(lambda: limited(env()), quick=True), text).level == "error"
