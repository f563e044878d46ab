"""Simulators that run ahead of what they are asked: right guesses, wrong ones, failures, and an early end."""

import threading
from functools import partial

import numpy as np
import pytest

from aimrl.envs import vector
from aimrl.envs.ahead import Ahead
from aimrl.envs.guard import GoalObs
from aimrl.envs.vector import StepResult

N = 3
GUESSED = [np.full((N, 1), 0.1 * k, np.float32) for k in range(1, 8)]


class Sum:
    """Adds up actions; an episode is cut after three steps, the first environment's after two."""

    made: list["Sum"]

    def __init__(self, fails_at: int = 10**6) -> None:
        self.total, self.t, self.calls, self.closed, self.fails_at = np.zeros(N), np.zeros(N, int), 0, False, fails_at
        self.by: set[str] = set()

    def reset(self, ids):
        self.total[ids], self.t[ids] = 100.0 * (self.calls + 1), 0
        self._called()
        return GoalObs(*[self.total[ids, None].copy()] * 3), {}

    def step(self, action):
        self._called()
        self.total += action[:, 0]
        self.t += 1
        obs = GoalObs(*[self.total[:, None].copy()] * 3)
        return StepResult(obs, np.zeros(N), np.zeros(N, bool), self.t >= np.array([2, 3, 3])), {}

    def _called(self):
        self.calls += 1
        self.by.add(threading.current_thread().name)
        if self.calls == self.fails_at:
            raise RuntimeError("broken")

    def close(self):
        self.closed = True


def played(simulators, actions) -> list[np.ndarray]:
    """All observations of a player who resets whatever has ended."""
    seen = [simulators.reset(np.arange(N))[0].observation]
    for action in actions:
        result, _ = simulators.step(action)
        seen.append(result.obs.observation)
        over = np.flatnonzero(result.terminated | result.truncated)
        if over.size:
            seen.append(simulators.reset(over)[0].observation)
    return seen


def others(first_wrong: int) -> list[np.ndarray]:
    """Ten actions, guessed up to one."""
    right, wrong = GUESSED[:first_wrong], [np.full((N, 1), -0.3, np.float32)] * 10
    return (right + wrong)[:10]


@pytest.mark.parametrize("first_wrong", [0, 1, 4, 7])
def test_what_is_asked_is_answered_as_without_guessing(first_wrong):
    ahead = Ahead(Sum, N, iter(GUESSED))
    for mine, plain in zip(played(ahead, others(first_wrong)), played(Sum(), others(first_wrong)), strict=True):
        np.testing.assert_array_equal(mine, plain)
    ahead.close()


def test_right_guesses_were_simulated_in_the_background_and_nothing_twice():
    made: list[Sum] = []

    def make() -> Sum:
        made.append(Sum())
        return made[-1]

    ahead = Ahead(make, N, iter(GUESSED))
    ahead._thread.join()
    before = made[0].calls
    seen = played(ahead, GUESSED)
    assert len(made) == 1
    assert made[0].calls == before == len(seen)
    assert "ahead" in made[0].by


def test_a_reset_that_nobody_guessed_is_a_wrong_guess_too():
    """Such as that of an episode which ends on success."""

    def early_reset(simulators):
        simulators.reset(np.arange(N))
        simulators.step(GUESSED[0])
        simulators.reset(np.array([1]))
        return simulators.step(GUESSED[1])[0].obs.observation

    ahead = Ahead(Sum, N, iter(GUESSED))
    np.testing.assert_array_equal(early_reset(ahead), early_reset(Sum()))
    ahead.close()


def test_simulators_that_fail_ahead_of_time_fail_where_they_are_asked():
    ahead = Ahead(partial(Sum, fails_at=4), N, iter(GUESSED))  # the third step
    ahead.reset(np.arange(N))
    for action in GUESSED[:2]:
        result, _ = ahead.step(action)
    np.testing.assert_allclose(result.obs.observation, 100.3)
    with pytest.raises(RuntimeError, match="broken"):
        ahead.reset(np.array([0]))
    ahead.close()


def test_closing_ends_the_guessing():
    many = (np.zeros((N, 1), np.float32) for _ in iter(int, 1))  # without end
    simulators = Sum()
    ahead = Ahead(lambda: simulators, N, many)
    ahead.close()
    assert simulators.closed
    assert not ahead._thread.is_alive()


def test_a_robot_moves_the_same_whether_it_ran_ahead_or_not():
    rng = np.random.default_rng(0)
    actions = list(rng.uniform(-1, 1, (60, 2, 4)).astype(np.float32))

    def play(env):
        obs = [np.concatenate(env.reset(), 1)]
        for action in actions:
            result = env.step(action)
            obs.append(np.concatenate(result.obs, 1))
            env.reset(result.truncated)
        return np.stack(obs)

    with vector.make("FetchPush-v4", 2, 5) as env:
        plain = play(env)
    for guess in (actions, [*actions[:20], -actions[20], *actions[21:]]):
        with vector.make("FetchPush-v4", 2, 5).run_ahead(guess) as env:
            np.testing.assert_array_equal(play(env), plain)
