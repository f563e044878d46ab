"""The episode ring and hindsight sampling against a plain Python model of both."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aimrl import replay
from aimrl.types import STRATEGIES, GoalSpec, UserError

FIELDS = [f for f in replay.Episodes._fields if f != "ended"]  # which is False unless an environment is odd
SPEC = GoalSpec(obs_dim=3, goal_dim=2, action_dim=1, horizon=6)


def judge(achieved, goal):
    """Met within half a unit; −1 until then."""
    near = jnp.linalg.norm(achieved - goal, axis=-1) < 0.5
    return near.astype(jnp.float32) - 1.0, near


def episode(number: int, length: int, still: bool = False):
    """Everything in an episode tells its number and the time: obs = (number, t, 7), achieved = (number, t or 0)."""
    t = np.arange(SPEC.horizon + 1, dtype=np.float32)
    n = np.full_like(t, number)
    return {
        "obs": np.stack([n, t, 0 * t + 7], -1),
        "achieved": np.stack([n, 0 * t if still else t], -1),
        "desired": np.array([number, 100.0], np.float32),
        "action": t[:, None] + 10 * number,
        "failed": np.array(number % 3 == 0),
        "length": np.array(length, np.int32),
    }


def filled(lengths, capacity=40, still=(), group=2):
    """A ring after inserting episodes of these lengths, a few at a time with padding."""
    ring = replay.make_ring(SPEC, capacity)
    insert = jax.jit(lambda r, e: replay.insert(r, e, judge))
    eps = [episode(i, n, i in still) for i, n in enumerate(lengths)]
    for k in range(0, len(eps), group):
        part = eps[k : k + group] + [episode(0, 0)] * (group - len(eps[k : k + group]))
        ring = insert(ring, replay.Episodes(*(jnp.stack([e[f] for e in part]) for f in FIELDS)))
    return ring


def draw(ring, how=replay.Hindsight(), n=4000, window=None, seed=0):  # noqa: B008  frozen
    return jax.device_get(replay.sample(ring, jax.random.PRNGKey(seed), (n,), how, judge, window))


def test_every_stored_transition_is_drawn_equally_often_and_unstored_ones_never():
    lengths = [6, 3, 1, 5]
    batch = draw(filled(lengths), n=30_000)
    pairs, counts = np.unique(np.stack([batch.obs[:, 0], batch.obs[:, 1]]), axis=1, return_counts=True)
    wanted = {(e, t) for e, n in enumerate(lengths) for t in range(n)}
    assert {tuple(p) for p in pairs.T.astype(int)} == wanted
    expected = 30_000 / len(wanted)
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_a_transition_keeps_its_action_and_true_next_observation_across_the_wrap_of_the_ring():
    rng = np.random.default_rng(1)
    ring = filled(rng.integers(1, 7, 60), capacity=30)
    batch = draw(ring)
    np.testing.assert_array_equal(batch.next_obs[:, 0], batch.obs[:, 0])
    np.testing.assert_array_equal(batch.next_obs[:, 1], batch.obs[:, 1] + 1)
    np.testing.assert_array_equal(batch.action[:, 0], batch.obs[:, 1] + 10 * batch.obs[:, 0])


@pytest.mark.parametrize("longest", [1, 2, 6])  # of one step: as many episodes as a ring can hold
def test_an_episode_keeps_its_goal_its_end_and_its_failure_beside_all_that_were_stored_since(longest):
    lengths = np.random.default_rng(longest).integers(1, longest + 1, 100)
    insert = jax.jit(lambda r, e: replay.insert(r, e, judge))
    sample = jax.jit(lambda r, key: replay.sample(r, key, (300,), replay.Hindsight(strategy="final", ratio=0.5), judge))
    ring = replay.make_ring(SPEC, 30)
    for newest, length in enumerate(lengths):  # the oldest is overwritten at any of its rows
        ring = insert(ring, replay.Episodes(*(jnp.asarray(episode(newest, length)[f])[None] for f in FIELDS)))
        batch = jax.device_get(sample(ring, jax.random.PRNGKey(newest)))
        number, t = batch.obs[:, 0].astype(int), batch.obs[:, 1]
        np.testing.assert_array_equal(batch.desired[:, 0], number)
        ends = np.stack([number, lengths[number]], -1)
        np.testing.assert_array_equal(batch.goal, np.where(batch.relabelled[:, None], ends, batch.desired))
        over = (number % 3 == 0) & (t + 1 == lengths[number])
        np.testing.assert_array_equal(batch.terminated, batch.success | over)


def test_the_ring_forgets_oldest_first_and_holds_its_capacity_of_full_episodes():
    ring = filled([6] * 30, capacity=30)
    alive = np.unique(draw(ring, n=20_000).obs[:, :2], axis=0)
    assert 30 <= len(alive) <= 30 + 2 * SPEC.horizon
    oldest = alive[:, 0].min()
    assert set(alive[:, 0]) == set(np.arange(oldest, 30))
    assert len(alive) == int(ring.span[1] - ring.span[0])


def test_future_goals_lie_ahead_in_the_same_episode_and_cover_it_evenly():
    batch = draw(filled([6, 6, 4]), replay.Hindsight(ratio=1.0), n=20_000)
    steps = batch.goal[:, 1] - batch.obs[:, 1]
    assert (batch.goal[:, 0] == batch.obs[:, 0]).all()
    assert steps.min() == 1
    np.testing.assert_array_equal(steps, batch.future_steps)
    first = batch.goal[(batch.obs[:, 0] == 0) & (batch.obs[:, 1] == 0), 1]
    counts = np.bincount(first.astype(int))[1:]
    assert len(counts) == 6
    assert np.abs(counts / counts.sum() - 1 / 6).max() < 0.05


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_draws_the_goals_it_names(strategy):
    lengths = np.array([6, 3, 5])
    b = draw(filled(lengths), replay.Hindsight(strategy=strategy, ratio=1.0))
    episode_of, t = b.obs[:, 0].astype(int), b.obs[:, 1]
    if strategy == "none":
        assert not b.relabelled.any()
        np.testing.assert_array_equal(b.goal, b.desired)
        return
    assert b.relabelled.all()
    assert (b.goal[:, 1] <= lengths[b.goal[:, 0].astype(int)]).all()
    same = b.goal[:, 0] == episode_of
    if strategy == "random":
        assert 0.2 < same.mean() < 0.6
        assert (b.goal[:, 1] == lengths[b.goal[:, 0].astype(int)]).any()  # last states, too
    else:
        assert same.all()
    if strategy == "final":
        np.testing.assert_array_equal(b.goal[:, 1], lengths[episode_of])
    if strategy == "episode":
        assert (b.goal[:, 1] < t).any()
        assert (b.goal[:, 1] > t).any()


def test_reward_and_termination_are_recomputed_for_hindsight_goals():
    b = draw(filled([6, 6, 6, 6]), replay.Hindsight(ratio=0.8))
    met = np.linalg.norm(b.next_achieved - b.goal, axis=-1) < 0.5
    np.testing.assert_array_equal(b.success, met)
    np.testing.assert_array_equal(b.task_reward, np.where(met, 0.0, -1.0))
    failed = (b.obs[:, 0] % 3 == 0) & (b.obs[:, 1] == 5)  # only the last step of an episode can fail
    np.testing.assert_array_equal(b.terminated, met | failed)
    assert met[b.relabelled].any()
    assert not met[~b.relabelled].any()
    assert abs(b.relabelled.mean() - 0.8) < 0.03
    lasting = draw(filled([6, 6, 6, 6]), replay.Hindsight(ratio=0.8, success_terminates=False))
    np.testing.assert_array_equal(lasting.terminated, (lasting.obs[:, 0] % 3 == 0) & (lasting.obs[:, 1] == 5))


def test_a_fall_at_the_goal_is_not_taken_for_an_environment_that_ends_there():
    """One unexplained end at the goal would have made every success terminal for the rest of the run."""
    insert = jax.jit(lambda r, e: replay.insert(r, e, judge))
    ending, going_on, missing = ({**episode(1, 6), "desired": np.array([1.0, at], np.float32)} for at in (6, 3, 50))

    def inserted(ring, what, ended):
        return insert(ring, replay.Episodes(*(jnp.asarray(what[f])[None] for f in FIELDS), jnp.array([ended])))

    ring = inserted(inserted(replay.make_ring(SPEC, 40), ending, True), missing, False)
    assert bool(ring.ends_at_goal)  # nothing speaks against it
    ring = inserted(ring, going_on, False)
    assert not ring.ends_at_goal
    how = replay.Hindsight(success_terminates=False)
    batch = draw(ring, how)
    assert batch.success.any()
    assert not batch.terminated.any()


def test_redrawing_avoids_goals_that_are_already_met():
    """With an achieved goal that moves only at the end, most future goals are trivial."""
    ring = filled([6])
    late = ring.achieved.at[:, 1].set(jnp.where(ring.obs[:, 1] >= 5, 3.0, 0.0))
    ring = dataclasses.replace(ring, achieved=late)
    trivial = lambda b: (np.linalg.norm(b.achieved - b.goal, axis=-1) < 0.5).mean()  # noqa: E731
    plain = draw(ring, replay.Hindsight(ratio=1.0))
    redrawn = draw(ring, replay.Hindsight(ratio=1.0, redraws=80))
    assert trivial(plain) > 0.45
    last = redrawn.obs[:, 1] == 5  # from here every goal ahead is met already
    again = np.arange(len(last)) % 2 == 0
    met = np.linalg.norm(redrawn.achieved - redrawn.goal, axis=-1) < 0.5
    np.testing.assert_array_equal(met[again], last[again])
    assert abs(met[~again].mean() - trivial(plain)) < 0.05


def test_a_share_of_each_batch_comes_from_before_the_goal_moves():
    ring = filled([6] * 10, capacity=100, still=set(range(9)))
    share = lambda b: (b.obs[:, 0] == 9).mean()  # noqa: E731
    assert abs(share(draw(ring)) - 0.1) < 0.03
    assert abs(share(draw(ring, replay.Hindsight(moved_fraction=0.5))) - 0.55) < 0.03
    moves_once = episode(3, 6) | {"achieved": np.array([[3, t >= 3] for t in range(SPEC.horizon + 1)], np.float32)}  # in its third step
    ring = replay.insert(ring, replay.Episodes(*(jnp.asarray(moves_once[f])[None] for f in FIELDS)), judge)
    moving = draw(ring, replay.Hindsight(moved_fraction=1.0))
    assert set(moving.obs[moving.obs[:, 0] == 3][:, 1]) == {0, 1, 2}
    none_moved = filled([6] * 3, still={0, 1, 2})
    assert np.isfinite(draw(none_moved, replay.Hindsight(moved_fraction=0.5)).obs).all()


def test_several_batches_at_once_are_each_like_one_drawn_alone():
    ring = filled([6] * 10, capacity=100, still=set(range(9)))
    how = replay.Hindsight(ratio=1.0, moved_fraction=0.5, spread=4, redraws=2)
    several = jax.device_get(replay.sample(ring, jax.random.PRNGKey(0), (500, 8), how, judge))
    assert several.goal.shape == (500, 8, 2)
    np.testing.assert_array_equal(several.goal[..., 0], several.obs[..., 0])
    moving = several.obs[..., 0] == 9
    np.testing.assert_array_equal((several.goal - several.achieved)[moving][:, 1], several.future_steps[moving])
    assert moving[:, :4].all()  # the half from before the movement, in every batch
    assert abs(moving[:, 4:].mean() - 0.1) < 0.03
    assert abs(np.corrcoef(several.obs[:, 4:, 1].reshape(-1, 4).T)[np.triu_indices(4, 1)]).max() < 0.15  # no two draws are the same


def seldom_and_often():
    """Of twenty episodes fifteen end at one place, two at another and one at a third; the last two far from everything desired."""
    ring, insert = replay.make_ring(SPEC, 100), jax.jit(lambda r, e: replay.insert(r, e, judge))
    for number, end in enumerate([20.0] * 15 + [50.0] * 2 + [80.0] + [900.0] * 2):
        jitter = 0.1 * (number % 3)  # on an axis on which all desired goals agree
        moves = episode(number, 1) | {"achieved": np.array([[0, 0], [end, jitter]] + [[0, 0]] * (SPEC.horizon - 1), np.float32)}
        moves |= {"desired": np.array([100.0 * (number % 2), 0.0], np.float32)}
        ring = insert(ring, replay.Episodes(*(jnp.asarray(moves[f])[None] for f in FIELDS)))
    return ring


def test_goals_to_practise_are_those_reached_seldom_and_the_rest_are_the_desired_ones():
    desired = jnp.full((3000, 2), 7.0)
    goals = replay.practice_goals(seldom_and_often(), jax.random.PRNGKey(0), desired, 0.6, judge)
    share = {place: float((goals[:, 0] == place).mean()) for place in (7, 20, 50, 80, 900)}
    assert abs(share[7] - 0.4) < 0.03
    for place in (20, 50, 80):
        assert abs(share[place] - 0.2) < 0.05
    assert share[900] < 0.02
    nothing_yet = replay.practice_goals(replay.make_ring(SPEC, 100), jax.random.PRNGKey(0), desired, 0.6, judge)
    np.testing.assert_array_equal(nothing_yet, desired)


def test_places_are_told_apart_where_only_one_goal_is_ever_desired():
    ring, insert = replay.make_ring(SPEC, 100), jax.jit(lambda r, e: replay.insert(r, e, judge))
    for number, end in enumerate([20.0] * 15 + [-20.0]):
        moves = episode(number, 1) | {"achieved": np.array([[0, 0], [end, 0]] + [[0, 0]] * (SPEC.horizon - 1), np.float32)}
        moves |= {"desired": np.array([-40.0, 0.0], np.float32)}
        ring = insert(ring, replay.Episodes(*(jnp.asarray(moves[f])[None] for f in FIELDS)))
    goals = replay.practice_goals(ring, jax.random.PRNGKey(0), jnp.full((3000, 2), -40.0), 1.0, judge)
    assert abs(float((goals[:, 0] == -20).mean()) - 0.5) < 0.1  # as often as the place reached fifteen times


def test_spread_goals_are_drawn_evenly_over_the_places_reached_near_desired_ones():
    ring = seldom_and_often()
    share = lambda place, **how: (draw(ring, replay.Hindsight(ratio=1.0, moved_fraction=1.0, **how)).goal[:, 0] == place).mean()  # noqa: E731
    assert abs(share(20) - 15 / 20) < 0.03
    for place in (20, 50, 80):
        assert abs(share(place, spread=4) - 1 / 3) < 0.05
    assert share(900, spread=4) < 0.02


def test_the_recent_window_holds_only_the_newest_transitions():
    b = draw(filled([6] * 5), window=12)
    assert set(b.obs[:, 0]) == {3, 4}


def test_prefix_moments_are_those_of_the_episode_so_far():
    ring = replay.make_ring(SPEC, 20, prefix=True)
    e = episode(2, 6)
    ring = replay.insert(ring, replay.Episodes(*(jnp.asarray(e[f])[None] for f in FIELDS)), judge)
    b = draw(ring, n=50)
    for t, mean, var in zip(b.obs[:, 1].astype(int), b.prefix_mean, b.prefix_var):
        so_far = e["achieved"][: t + 2]
        np.testing.assert_allclose(mean, so_far.mean(0), atol=1e-5)
        np.testing.assert_allclose(var, so_far.var(0), atol=1e-4)


def test_trimming_and_laying_back_loses_nothing():
    for lengths in ([6, 2], [6] * 20):
        ring = filled(lengths, capacity=30)
        rows = replay.used_rows(ring)
        fresh = replay.make_ring(SPEC, 30)
        back = replay.untrimmed(jax.device_get(replay.trimmed(ring, rows)), fresh)
        assert all(bool((a == b).all()) for a, b in zip(jax.tree.leaves(ring), jax.tree.leaves(back)))
    assert replay.used_rows(filled([6, 2], capacity=30)) == 10


@pytest.mark.parametrize("capacity", [10_000, 1_000_000])
@pytest.mark.parametrize("obs_dim", [10, 25, 63], ids=["reach", "push", "hand"])
def test_memory_is_close_to_the_raw_data(obs_dim, capacity):
    fetch = GoalSpec(obs_dim=obs_dim, goal_dim=3, action_dim=4, horizon=50)
    raw = capacity * 4 * (obs_dim + 3 + 3 + 4)  # each observation once
    ring = jax.eval_shape(lambda: replay.make_ring(fetch, capacity))
    rows = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(dataclasses.replace(ring, cells=None)))
    assert rows < 1.2 * raw
    assert abs(rows / replay.bytes_needed(fetch, capacity) - 1) < 0.001


def test_more_episodes_at_once_than_the_ring_can_hold_are_refused():
    with pytest.raises(UserError, match="at once: make it larger"):
        filled([SPEC.horizon] * 40, capacity=10, group=40)
