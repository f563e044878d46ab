"""Looking at a potential whose truth is known."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from aimrl import look, rewards, runs
from aimrl.envs.goals import Near
from aimrl.envs.guard import GoalObs
from aimrl.envs.vector import StepResult
from aimrl.types import GoalSpec, UserError

SPEED, HORIZON = 0.1, 30


class Walkers:
    """Points that walk straight to their goals, 0.1 a step, with the face of vectorised goal environments."""

    def __init__(self, n, dims, discrete=False, lost=()):
        rng = np.random.default_rng(0)
        self.spec = GoalSpec(dims, dims, 2 if discrete else dims, HORIZON, discrete)
        self.task, self.num_envs, self.lost = SimpleNamespace(success=Near(0.05)), n, list(lost)
        self.at = np.zeros((n, dims), np.float32)
        direction = rng.normal(size=(n, dims))
        distance = np.linspace(0.5, 2.0, n)[:, None]  # 5 to 20 steps
        self.goal = (distance * direction / np.linalg.norm(direction, axis=-1, keepdims=True)).astype(np.float32)
        self.t = 0

    def reset(self, mask=None):
        return GoalObs(self.at.copy(), self.at.copy(), self.goal.copy())

    def step(self, action):
        assert action.shape == ((self.num_envs,) if self.spec.discrete else self.at.shape)
        gap = self.goal - self.at
        length = np.maximum(np.linalg.norm(gap, axis=-1, keepdims=True), 1e-9)
        move = gap * np.minimum(SPEED / length, 1.0)
        move[self.lost] *= -1
        self.at = (self.at + move).astype(np.float32)
        self.t += 1
        over = np.full(self.num_envs, self.t >= HORIZON)
        return StepResult(self.reset(), np.zeros(self.num_envs), np.zeros(self.num_envs, bool), over)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Distance:
    """The potential that is right for walkers: a step bound of 0.1 is one step."""

    step_bound = 0.1
    sign = -1.0

    def potential(self, state, achieved, goal):
        return self.sign * jnp.linalg.norm(achieved - goal, axis=-1)


class Upside(Distance):
    sign = 1.0


def make(reward=None, n=6, dims=3, state=None, **options):
    env = Walkers(n, dims, **options)
    play = lambda obs, goal: np.zeros(len(obs) if env.spec.discrete else (len(obs), env.spec.action_dim), np.float32)  # noqa: E731
    brain = SimpleNamespace(reward=state)
    config, round_ = SimpleNamespace(env="walkers"), SimpleNamespace(reward=reward or Distance())
    return SimpleNamespace(config=config, round=round_, brain=brain, step=1234, play=play, make_eval_env=lambda episodes: env)


def test_episodes_know_when_they_reached_their_goal():
    played = look.play(make(lost=[2]), 6)
    # Within 0.05 of a goal at 0.5, 0.8, … after ⌈(distance − 0.05) / 0.1⌉ steps of 0.1; the lost one walks away.
    assert [e.reached for e in played] == [5, 8, -1, 14, 17, 20]
    assert all(e.achieved.shape == (HORIZON + 1, 3) for e in played)


def test_a_true_potential_ranks_states_perfectly_and_an_upside_down_one_in_reverse(tmp_path):
    found = look.draw(make(), tmp_path)
    assert found["spearman_steps"] == pytest.approx(1.0, abs=0.02)  # equal steps to go at slightly different distances
    assert found["spearman_distance"] == pytest.approx(1.0, abs=1e-3)  # ties at the goal differ by rounding
    assert found["episodes_reached"] == 6
    assert look.draw(make(Upside()), tmp_path)["spearman_steps"] == pytest.approx(-found["spearman_steps"], abs=1e-6)


def test_the_implied_steps_to_go_are_the_true_ones_for_a_true_potential():
    e = look.play(make(), 6)[3]
    np.testing.assert_allclose(look.steps_to_go(make(), e.achieved[:14], e.goal), 14 - np.arange(14.0), atol=1e-4)


@pytest.mark.parametrize(("dims", "plane"), [(2, True), (3, True), (7, False)])
def test_pictures_and_numbers_are_written_and_the_plane_only_where_there_is_one(tmp_path, dims, plane):
    found = look.draw(make(dims=dims), tmp_path)
    names = {p.name for p in (tmp_path / "figures").iterdir()}
    assert names == {"potential_episode.png", "potential.json"} | ({"potential_table.png"} if plane else set())
    assert all((tmp_path / "figures" / n).read_bytes()[:4] == b"\x89PNG" for n in names if n.endswith("png"))
    assert runs.read_json(tmp_path / "figures" / "potential.json") == found


def test_no_success_leaves_the_correlation_with_steps_open(tmp_path):
    found = look.draw(make(n=2, lost=[0, 1]), tmp_path)
    assert found["spearman_steps"] is None
    assert found["episodes_reached"] == 0
    assert found["spearman_distance"] == pytest.approx(1.0, abs=1e-3)  # ties at the goal differ by rounding


def test_discrete_policies_are_played_by_their_best_action(tmp_path):
    assert look.draw(make(discrete=True), tmp_path)["episodes_reached"] == 6


def test_rewards_without_a_potential_have_nothing_to_look_at(tmp_path):
    assert look.draw(make(rewards.make("sparse")), tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_the_library_s_own_potential_can_be_looked_at(tmp_path):
    aim = rewards.make("aim")
    state = aim.init(jax.random.PRNGKey(0), GoalSpec(3, 3, 3, HORIZON))
    run = make(aim, state=state)
    found = look.draw(run, tmp_path)
    assert -1 <= found["spearman_steps"] <= 1
    e = look.play(make(), 1)[0]
    direct = aim.potential(state, jnp.asarray(e.achieved), jnp.broadcast_to(jnp.asarray(e.goal), e.achieved.shape))
    np.testing.assert_allclose(look.potential(run, e.achieved, e.goal), np.asarray(direct), rtol=1e-5)


def test_the_table_can_be_drawn_for_a_goal_of_one_s_own(tmp_path):
    look.draw(make(), tmp_path / "three")
    look.draw(make(), tmp_path / "own", goal=(0.5, 0.2, 0.4))
    sizes = []
    for name in ("three", "own"):
        with Image.open(tmp_path / name / "figures" / "potential_table.png") as picture:
            sizes.append(picture.size)
    assert sizes[1][0] < sizes[0][0]  # one panel instead of three
    with pytest.raises(UserError, match=r"has 3 finite numbers, not \[0\.5\]$"):
        look.draw(make(), tmp_path, goal=(0.5,))
