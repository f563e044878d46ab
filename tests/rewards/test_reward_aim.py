"""AIM's potential as a table against exact linear programs, and its reward's algebra."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reward_batches import SPEC, pairs_batch, random_batch, repeat_update
from scipy.optimize import linprog

from aimrl import theory
from aimrl.rewards import targets
from aimrl.rewards.aim import AIM
from aimrl.rewards.wgan import WGAN
from aimrl.types import GoalSpec

KEY = jax.random.key(0)
SIZE, GOAL = 6, 5
ONE_HOT = np.eye(SIZE)


def falling_back():
    """A corridor of six states whose walker advances 3 times in 5, stays once and falls back to the start once."""
    K = np.zeros((SIZE, SIZE))
    for s in range(GOAL):
        K[s, s + 1] += 0.6
        K[s, s] += 0.2
        K[s, 0] += 0.2
    return K


def one_way():
    return np.eye(SIZE, k=1)


def chain_rows(K):
    """Transitions s → s′ in exact proportions, every state equally often, and the goal staying where it is."""
    counts = np.round(10 * K).astype(int)
    counts[GOAL] = 0
    counts[GOAL, GOAL] = 10
    s, t = np.nonzero(counts)
    return np.repeat(s, counts[s, t]), np.repeat(t, counts[s, t])


def dual(K, rho, nu, bound):
    """max Σ (ν − ρ) f with f(goal) = 0 under one of the three readings of the Lipschitz bound."""
    rows = []
    for s in set(range(SIZE)) - {GOAL}:
        for t in np.flatnonzero(K[s]):
            step = ONE_HOT[t] - ONE_HOT[s]
            rows += {"two-sided": [step, -step], "one-sided": [step], "expected": []}[bound]
        rows += [K[s] - ONE_HOT[s]] if bound == "expected" else []
    free = [(0, 0) if s == GOAL else (None, None) for s in range(SIZE)]
    return -linprog(rho - nu, A_ub=np.array(rows), b_ub=np.ones(len(rows)), bounds=free).fun


def visitation_rows(chain, size=400):
    """Transitions whose s′ is distributed as the discounted visitation (s̄'s mass at the goal), up to rounding to `size` rows."""
    rho, K = theory.visitation(chain), chain.K.toarray()
    mass = np.diag((1 - chain.gamma) * chain.start) + chain.gamma * rho[:, None] * K  # a start is a step onto itself
    mass[GOAL, GOAL] += 1 - mass.sum()
    counts = np.maximum(np.round(size * mass), mass > 0).astype(int)
    s, t = np.nonzero(counts)
    return np.repeat(s, counts[s, t]), np.repeat(t, counts[s, t])


def chain(K):
    return theory.induced_chain(theory.GoalMDP(K[:, None], ONE_HOT[0], GOAL, 0.9), np.ones((SIZE, 1)))


def estimates(rows, bound, weights, updates=3000, **options):
    """AIM's estimate of W1 with a table for f at each λ, the distribution of s′ it was given, and the table."""
    s, t = rows
    goal = jnp.tile(jnp.asarray(ONE_HOT[GOAL], jnp.float32), (SIZE, 1))
    batches = pairs_batch(ONE_HOT[s], ONE_HOT[t], np.tile(ONE_HOT[GOAL], (len(s), 1)))
    state, values = None, []
    for weight in weights:
        for rate in (3e-2, 2e-3):  # the configuration isn't part of the state: a second, slower phase polishes
            aim = AIM(**{"target": "dirac"} | options, hidden=(), bound=bound, step_bound=1.0, lipschitz_weight=weight, learning_rate=rate)
            state = aim.init(KEY, GoalSpec(SIZE, SIZE, 1, 50)) if state is None else state
            state, metrics = repeat_update(aim, state, batches, updates)
        values.append(metrics["aim/w1"])
    f = AIM(hidden=()).potential(state, jnp.asarray(ONE_HOT, jnp.float32), goal)
    return values, np.bincount(t, minlength=SIZE) / len(t), np.asarray(f)


def test_the_papers_bound_with_a_table_and_a_growing_penalty_converges_to_the_hop_distance():
    world = chain(falling_back())
    (loose, tight, tightest), rho, _ = estimates(visitation_rows(world), "two-sided", (10.0, 100.0, 1000.0))
    truth = rho @ theory.hop_distance(world)
    assert truth == pytest.approx(theory.w1_hop(world), rel=0.02)  # the rounding of the rows
    assert loose > tight > tightest > truth  # a soft bound always overestimates
    assert tightest == pytest.approx(truth, rel=0.015)
    assert theory.w1_dual(world)[0] > 2 * truth  # what it doesn't converge to


def test_the_one_sided_bound_converges_to_directed_hops_which_is_neither_the_hop_nor_the_exact_distance():
    K = falling_back()
    (loose, tight), rho, _ = estimates(chain_rows(K), "one-sided", (10.0, 300.0))
    undirected, truth, exact = (dual(K, rho, ONE_HOT[GOAL], b) for b in ("two-sided", "one-sided", "expected"))
    assert truth == pytest.approx(rho @ (GOAL - np.arange(SIZE)))
    assert loose > tight > truth
    assert tight == pytest.approx(truth, rel=0.015)
    assert 1.2 * undirected < truth < exact / 1.2


def test_the_bound_in_expectation_converges_to_the_exact_quasimetric_dual():
    K, weights = falling_back(), (5.0, 15.0)
    values, rho, _ = estimates(chain_rows(K), "expected", weights, updates=6000)
    truth = rho @ theory.hitting_time(chain(K))  # expected steps d^π
    assert truth == pytest.approx(dual(K, rho, ONE_HOT[GOAL], "expected"))
    # The penalty's gradient balances the flow y of mass to the goal: at the optimum state s exceeds the bound by y(s) / (2 λ P(s)).
    inner = np.eye(GOAL) - K[:GOAL, :GOAL]
    excess = np.linalg.solve(inner.T, rho[:GOAL]) * SIZE / 2
    soft = rho[:GOAL] @ np.linalg.solve(inner, excess)
    np.testing.assert_allclose(values, [truth + soft / weight for weight in weights], rtol=0.01)
    assert (3 * values[1] - values[0]) / 2 == pytest.approx(truth, rel=0.02)  # hence the limit of λ → ∞
    assert truth > 1.5 * dual(K, rho, ONE_HOT[GOAL], "one-sided")


def test_on_a_one_way_chain_the_papers_bound_already_gives_the_exact_distance():
    world = chain(one_way())
    (estimate,), _rho, f = estimates(visitation_rows(world), "two-sided", (1000.0,))
    steps = GOAL - np.arange(SIZE)
    assert theory.w1_hop(world) == pytest.approx(theory.w1_primal(world))
    assert estimate == pytest.approx(theory.w1_primal(world), rel=0.02)
    np.testing.assert_allclose(f[GOAL] - f, steps, atol=0.1)


def test_example_states_as_target_give_the_distance_to_their_distribution():
    K, examples = falling_back(), ONE_HOT[[1, 1, 4]]
    _, rho, f = estimates(chain_rows(K), "two-sided", (300.0,), target="examples", examples=examples)
    nu = examples.mean(0)
    truth = dual(K, rho, nu, "two-sided")
    assert (nu - rho) @ f == pytest.approx(truth, rel=0.05)
    assert (nu - rho) @ f < (ONE_HOT[GOAL] - rho) @ -np.abs(np.arange(SIZE) - GOAL)  # nothing like the way to the goal


def test_visited_states_count_once_however_often_they_were_visited():
    x = (np.stack(np.meshgrid(np.arange(10), np.arange(10)), -1).reshape(-1, 2) + 0.5) / 10 - 0.5
    rng = np.random.default_rng(0)
    visits = np.concatenate([np.arange(60), rng.choice(60, 20_000, p=rng.dirichlet(np.full(60, 0.2)))])  # 60 of 100, very unevenly
    memory = targets.memory(2, 16384)
    for part in np.array_split(visits, 10):
        memory = targets.remember(memory, jnp.asarray(x[part], jnp.float32), cell=0.05)
    assert int(memory.filled.sum()) == 60
    drawn = np.asarray(targets.draw(memory, KEY, 60_000))
    index = np.abs(drawn[:, None] - x).sum(-1).argmin(1)
    np.testing.assert_allclose(np.asarray(x, np.float32)[index], drawn)  # states as they were visited, not corners of cells
    counts = np.bincount(index, minlength=100)
    assert (counts[60:] == 0).all()
    np.testing.assert_allclose(counts[:60], 1000, atol=5 * np.sqrt(1000))


def test_targets_are_drawn_from_the_distribution_asked_for():
    goal = jnp.broadcast_to(jnp.array([0.3, -0.2]), (4000, 2))
    noisy = targets.sample("gaussian", goal, 0.05, None, None, KEY) - goal
    np.testing.assert_allclose(noisy.std(0), 0.05, rtol=0.05)
    np.testing.assert_array_equal(targets.sample("dirac", goal, 0.05, None, None, KEY), goal)
    examples = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    drawn = targets.sample("examples", goal, 0.05, examples, None, KEY)
    np.testing.assert_allclose([(drawn == e).all(-1).mean() for e in examples], 1 / 3, atol=0.04)


def test_reward_forms_are_the_papers_three():
    batch = random_batch(1, (20,))
    state = AIM().init(KEY, SPEC)
    state = eqx.tree_at(lambda s: (s.f_max, s.f_min, s.f_std), state, (jnp.float32(0.8), jnp.float32(-0.4), jnp.float32(0.3)))

    def f(x):
        return AIM().potential(state, x, batch.goal)

    forms = {
        "biased": f(batch.next_achieved) - 0.9,
        "to-goal": f(batch.next_achieved) - f(batch.goal),
        "shaped": 0.9 * f(batch.next_achieved) - f(batch.achieved),
    }
    for form, truth in forms.items():
        for normalise, divisor in {"none": 1.0, "range": 1.4, "std": 0.8}.items():
            aim = AIM(form=form, normalise=normalise, gamma=0.9, margin=0.1)  # pyright: ignore[reportArgumentType]
            np.testing.assert_allclose(aim.reward(state, batch), truth / divisor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [AIM, WGAN])
def test_the_bias_and_the_scale_are_over_targets_and_states_so_that_no_goal_is_paid_before_it_is_visited(make):
    """Once they were over states only: arriving for the first time was paid hundreds of times what anything else cost."""
    chain = ONE_HOT[[0, 1, 2]], ONE_HOT[[1, 2, 3]], np.tile(ONE_HOT[GOAL], (3, 1))
    batches, still = pairs_batch(*chain), {"learning_rate": 0.0, "target_std": 0.0, "normalise": "none", "margin": 0.0}
    for statistics in ("all", "visited"):
        reward = make(statistics=statistics, **still)
        state = reward.init(KEY, GoalSpec(1, SIZE, 1, 50))
        f = np.asarray(reward.potential(state, jnp.asarray(ONE_HOT), jnp.tile(ONE_HOT[GOAL], (SIZE, 1))))
        states = f[1:4] if statistics == "visited" else np.concatenate([f[[GOAL] * 3], f[1:4]])
        state, _ = reward.update(state, batches, KEY)
        np.testing.assert_allclose([state.f_max, state.f_min, state.f_std], [states.max(), states.min(), states.std()], rtol=1e-5)
        at_goal = reward.reward(state, pairs_batch(ONE_HOT[[3]], ONE_HOT[[GOAL]], ONE_HOT[[GOAL]]))
        assert (float(at_goal.max()) <= 0) == (statistics == "all" or f[GOAL] <= f[1:4].max())


def test_shaping_is_a_difference_of_potentials_and_nothing_else():
    """Once the settings of preset `fast` for the other forms bent it, and it was no shaping any more."""
    batch = random_batch(3, (64,))
    plain = AIM(form="shaped", shape="metric", normalise="none")
    state = plain.init(KEY, SPEC)
    shaped = AIM(form="shaped", shape="metric", normalise="none", knee=0.05, rest=True, worst=0.01)
    np.testing.assert_array_equal(shaped.reward(state, batch), plain.reward(state, batch))
    assert shaped.bounds() == plain.bounds() == (-np.inf, np.inf)


def test_the_goal_rests_and_elsewhere_distance_costs_up_to_the_worst_or_levels_off():
    batch = eqx.tree_at(lambda b: b.success, random_batch(3, (64,)), jnp.arange(64) % 4 == 0)
    plain = AIM(shape="metric", form="to-goal", normalise="none")
    state = plain.init(KEY, SPEC)
    distance = -plain.reward(state, batch)
    worst = float(jnp.median(distance))
    full = AIM(shape="metric", form="to-goal", normalise="none", rest=True, worst=worst)
    np.testing.assert_allclose(full.reward(state, batch), -jnp.where(batch.success, 0.0, jnp.minimum(distance, worst)), rtol=1e-6)
    assert full.bounds() == (-worst, 0.0)
    level = AIM(shape="metric", form="to-goal", normalise="none", knee=0.1)
    np.testing.assert_allclose(level.reward(state, batch), -distance / (distance + 0.1), rtol=1e-5)
    assert level.bounds() == (-1.0, 0.0)


def test_without_the_goal_term_the_potential_at_an_unvisited_goal_is_nobodys_business():
    batches = pairs_batch(ONE_HOT[[0, 1]], ONE_HOT[[1, 2]], np.tile(ONE_HOT[GOAL], (2, 1)))
    at_goal = {}
    for goal_term in (True, False):
        aim = AIM(hidden=(), target="dirac", goal_term=goal_term)
        state = aim.init(KEY, GoalSpec(SIZE, SIZE, 1, 50))
        before = state.potential.params[0].weights[0][GOAL, 0]
        state, _ = repeat_update(aim, state, batches, 50)
        at_goal[goal_term] = float(state.potential.params[0].weights[0][GOAL, 0] - before)
    assert at_goal[True] > 0.04  # it grows with the number of updates: no transition bounds it
    assert at_goal[False] == 0.0


@pytest.mark.parametrize("bound", ["two-sided", "one-sided", "expected"])
def test_resting_transitions_do_not_thin_the_penalty(bound):
    batch = random_batch(0, (64,))
    moving = jnp.arange(64) % 4 == 0
    batch = batch._replace(next_achieved=jnp.where(moving[:, None], batch.next_achieved, batch.achieved))
    penalties = []
    for moving_only in (False, True):
        aim = AIM(bound=bound, step_bound=0.01, moving_only=moving_only)
        state = aim.init(KEY, SPEC)
        _, (metrics, _) = aim.loss(state.potential.params, state.moments, None, batch, KEY)
        penalties.append(float(metrics["aim/penalty"]))
    assert penalties[0] != 0
    assert penalties[1] == pytest.approx(4 * penalties[0])
