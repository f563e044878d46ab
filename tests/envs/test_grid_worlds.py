"""Grid worlds: the drawings, the simulator against the matrix, and Gymnasium's checks."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from aimrl.envs import grid, grid_gym
from aimrl.types import UserError

SMALL = """\
limit: 7
wind: 0.25
+-+-+-+
|S v g|
+ +-+ +
|. .|.|
+-+-+-+
"""


def corridor_distance(world, start_xy, goal_xy):
    """Breadth-first search on coordinates and wall segments alone: independent of the world's own tables."""
    blocked = {((x0 + x1) / 2, (y0 + y1) / 2) for x0, y0, x1, y1 in world.walls}
    frontier, seen, hops = {start_xy}, {start_xy}, 0
    while goal_xy not in frontier:
        frontier = {
            ((x + dx) % world.width, (y + dy) % world.height)
            for x, y in frontier
            for dx, dy in ((0, 1), (0, -1), (1, 0), (-1, 0))
            if (x + dx / 2, y + dy / 2) not in blocked
        } - seen
        seen |= frontier
        hops += 1
    return hops


def test_the_room_is_the_papers():
    room = grid.load("room")
    assert (room.width, room.height, room.limit, room.n_states) == (10, 10, 100, 100)
    assert room.xy[room.starts].tolist() == [[1, 1]]
    assert room.xy[room.goals].tolist() == [[1, 4]]
    inner = {s for s in room.walls if -0.5 < (s[0] + s[2]) / 2 < 9.5 and -0.5 < (s[1] + s[3]) / 2 < 9.5}
    assert inner == {(3.5, y - 0.5, 3.5, y + 0.5) for y in range(3, 8)} | {(x - 0.5, 2.5, x + 0.5, 2.5) for x in range(4)}


@pytest.mark.parametrize(("name", "steps"), [("room", 17), ("windy", 16), ("torus", 10)])
def test_the_shortest_path_has_the_known_length(name, steps):
    """In windy the best gust takes the corner of the doorway diagonally, which saves one of 17 steps."""
    world = grid.load(name)
    goal = int(world.goals[0])
    assert grid.hop_distance(world, goal)[world.starts[0]] == steps
    if name != "windy":
        assert corridor_distance(world, tuple(world.xy[world.starts[0]]), tuple(world.xy[goal])) == steps


def test_the_torus_wraps_and_the_room_does_not():
    torus, room = grid.load("torus"), grid.load("room")
    assert torus.limit == 40
    assert torus.move[torus.state_at(4, 0), grid.DOWN] == torus.state_at(4, 9)
    assert torus.move[torus.state_at(9, 3), grid.RIGHT] == torus.state_at(0, 3)
    assert room.move[room.state_at(4, 0), grid.DOWN] == room.state_at(4, 0)


def test_the_wind_is_the_papers():
    windy = grid.load("windy")
    assert windy.windy.tolist() == (windy.xy[:, 0] >= 4).tolist()
    P = grid.exact_mdp(windy).P
    s = windy.state_at
    assert P[s(6, 5), grid.UP, s(6, 6)] == pytest.approx(0.6)
    assert P[s(6, 5), grid.UP, s(6, 5)] == pytest.approx(0.4)  # a failed up stays
    assert P[s(6, 5), grid.LEFT, s(5, 4)] == pytest.approx(0.4)  # diagonally down
    assert P[s(6, 5), grid.LEFT, s(5, 5)] == pytest.approx(0.6)
    assert P[s(6, 5), grid.DOWN, s(6, 4)] == 1.0
    assert P[s(3, 8), grid.UP, s(3, 9)] == 1.0  # calm
    # A blocked sideways step is still followed by the step down, and the floor blocks that one.
    assert P[s(4, 5), grid.LEFT, s(4, 4)] == pytest.approx(0.4)
    assert P[s(9, 0), grid.RIGHT, s(9, 0)] == 1.0


@pytest.mark.parametrize("name", ["room", "windy", "torus", "file"])
def test_simulator_steps_agree_with_the_matrix_within_three_sigma(name):
    world = grid.parse(SMALL, "small") if name == "file" else grid.load(name)
    P, tables, n, draws = grid.exact_mdp(world).P, grid.tables(world), world.n_states, 4000
    np.testing.assert_allclose(P.sum(-1), 1.0, atol=1e-12)
    s, a = (jnp.repeat(jnp.asarray(i.ravel()), draws) for i in np.indices((n, 4)))
    u = jax.random.uniform(jax.random.key(3), s.shape)
    states = grid.GridState(s, jnp.full_like(s, world.goals[0]), jnp.zeros_like(s))
    s_next = jax.vmap(grid.step, (None, 0, 0, 0))(tables, states, a, u)[0].state
    counts = np.zeros((n, 4, n))
    np.add.at(counts, (np.asarray(s), np.asarray(a), np.asarray(s_next)), 1)
    assert not counts[P == 0].any()
    sigma = np.sqrt(draws * P * (1 - P))
    off = np.abs(counts - draws * P)[sigma > 0] / sigma[sigma > 0]
    # 3σ for each cell, but with hundreds of cells a few may stray: at most 1 % beyond, none beyond 5σ.
    assert (off > 3).mean() <= 0.01 if off.size else True
    assert off.max(initial=0) < 5
    assert (counts[P == 1] == draws).all()


def test_reaching_the_goal_terminates_and_the_time_limit_truncates():
    world = grid.parse(SMALL, "small")
    tables = grid.tables(world)
    state = grid.reset(tables, jnp.array([0.0, 0.99]))
    assert (int(state.state), int(state.goal)) == (world.state_at(0, 1), world.state_at(2, 1))
    still = jnp.asarray(1.0)  # no gust at this draw
    for _ in range(2):
        state, terminated, truncated = grid.step(tables, state, jnp.asarray(grid.RIGHT), still)
    assert terminated
    assert not truncated
    state = grid.reset(tables, jnp.array([0.5, 0.5]))
    flags = []
    for _ in range(7):
        state, terminated, truncated = grid.step(tables, state, jnp.asarray(grid.LEFT), still)
        flags.append((bool(terminated), bool(truncated)))
    assert flags == [(False, False)] * 6 + [(False, True)]


def test_several_starts_and_goals_are_drawn_alike():
    world = grid.parse("+-+-+\n|S G|\n+ + +\n|S G|\n+-+-+\n")
    u = jax.random.uniform(jax.random.key(0), (4000, 2))
    states = jax.vmap(grid.reset, (None, 0))(grid.tables(world), u)
    for drawn, options in ((states.state, world.starts), (states.goal, world.goals)):
        shares = [float((np.asarray(drawn) == o).mean()) for o in options]
        assert shares == pytest.approx([0.5, 0.5], abs=0.03)
    np.testing.assert_allclose(grid.exact_mdp(world).start, [0.5, 0.0, 0.5, 0.0])


MALFORMED = [
    ("", 1, 1, "no maze"),
    ("+-+\n|G|\n", 2, 1, "end with a line of walls"),
    ("+-+-+\n|S G|\n+-+-\n", 3, 5, "expected '+'"),
    ("+-+-+\n|S G\n+-+-+\n", 2, 5, "opposite edge is walled"),
    ("+-+-+\n|S G|x\n+-+-+\n", 2, 6, "longer"),
    ("+-+-+\n|S X|\n+-+-+\n", 2, 4, "expected a cell"),
    ("+-+-+\n|SG.|\n+-+-+\n", 2, 3, "goal is inside a wall"),
    ("+-+-+\n|S .|\n+G+-+\n|. G|\n+-+-+\n", 3, 2, "goal is inside a wall"),
    ("+-+-+\n|. G|\n+-+-+\n", 1, 1, "no start"),
    ("+-+-+\n|S .|\n+-+-+\n", 1, 1, "no goal"),
    ("+ +-+\n|S G|\n+-+-+\n", 1, 2, "opposite edge is walled"),
    ("wnd: 3\n+-+-+\n|S G|\n+-+-+\n", 1, 1, "did you mean wind"),
    ("limit: 100\nwind: 1.5\n+-+-+\n|S G|\n+-+-+\n", 2, 6, "probability"),
    ("limit: 2.5\n+-+-+\n|S G|\n+-+-+\n", 1, 7, "whole number"),
    ("limit: inf\n+-+-+\n|S G|\n+-+-+\n", 1, 7, "whole number"),
    ("wind: nan\n+-+-+\n|S G|\n+-+-+\n", 1, 6, "probability"),
    ("hello\n", 1, 1, "key: value"),
]


@pytest.mark.parametrize(("text", "row", "column", "words"), MALFORMED)
def test_a_malformed_world_gets_one_line_with_its_row_and_column(text, row, column, words, tmp_path):
    file = tmp_path / "maze.txt"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        grid.load(file)
    message = str(error.value)
    assert message.startswith(f"maze.txt: row {row}, column {column}: ")
    assert words in message
    assert "\n" not in message


def test_unknown_worlds_and_unreadable_files_are_told_in_one_line(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00+")
    for source, words in (("rom", "did you mean room"), (tmp_path / "none.txt", "no world file"), (tmp_path / "binary", "not a readable")):
        with pytest.raises(UserError, match=words):
            grid.load(source)


@pytest.mark.parametrize("name", ["Room", "Windy", "Torus"])
def test_gymnasium_accepts_each_world(name):
    env = gym.make(f"aimrl/{name}-v0")
    check_env(env.unwrapped)
    assert env.spec is not None
    assert env.spec.max_episode_steps == env.unwrapped.world.limit


def test_a_world_file_is_a_gymnasium_goal_env(tmp_path):
    file = tmp_path / "small.txt"
    file.write_text(SMALL)
    env = gym.make("aimrl/Grid-v0", world=str(file), render_mode="rgb_array")
    obs, _ = env.reset(seed=4)
    env.action_space.seed(4)
    core = env.unwrapped
    total = 0
    for _ in range(50):
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        # The goal-env contract: reward and termination are functions of the two goals, for batches too.
        assert reward == core.compute_reward(obs["achieved_goal"], obs["desired_goal"], info)
        assert terminated == core.compute_terminated(obs["achieved_goal"], obs["desired_goal"], info) == info["is_success"]
        total += terminated
        if terminated or truncated:
            assert not (terminated and truncated)
            obs, _ = env.reset()
    assert total > 0
    batch = core.compute_reward(np.array([[2.0, 1.0], [0.0, 1.0]]), np.array([[2.0, 1.0], [2.0, 1.0]]), [{}, {}])
    np.testing.assert_array_equal(batch, [1.0, 0.0])
    assert core.render().shape == (2 * grid_gym.PIXELS, 3 * grid_gym.PIXELS, 3)


def test_the_same_seed_gives_the_same_gymnasium_episode():
    def play(seed):
        env = gym.make("aimrl/Windy-v0")
        env.reset(seed=seed)
        actions = [grid.RIGHT] * 6 + [grid.UP] * 40
        return [env.step(a)[0]["observation"].tolist() for a in actions]

    assert play(1) == play(1)
    assert play(1) != play(2)
