"""The paper's propositions, lemmas, bound and theorem on hundreds of random MDPs, and the numbers against independent derivations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from theory_worlds import deterministic_policies, random_mdp, random_policy, random_walk, worlds

from aimrl.theory import (
    GoalMDP,
    all_hitting_times,
    analyse,
    bounds,
    eq4_potential,
    hitting_time,
    hitting_variance,
    hop_distance,
    induced_chain,
    interior,
    jensen_gap,
    optimal_hitting_time,
    to_json,
    transport,
    uniform_policy,
    value,
    visitation,
    w1_closed_form,
    w1_coupling,
    w1_dual,
    w1_eq4,
    w1_hop,
    w1_primal,
)
from aimrl.theory.distances import charged

COUNT = 504  # 12 times round every kind and discount


@pytest.fixture(scope="module")
def cases():
    """(mdp, policy, chain, every number) of each random MDP."""
    return [(mdp, policy, induced_chain(mdp, policy), analyse(mdp, policy)) for mdp, policy in worlds(COUNT, seed=1)]


def close(a, b, tolerance=1e-8):
    """Agreement to `tolerance` relative to 1 + |x|; infinities must coincide."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    with np.errstate(invalid="ignore"):
        return bool(np.all((a == b) | (np.abs(a - b) <= tolerance * (1 + np.abs(b)))))


def survival(chain, horizon):
    """P(T > t | s₀ = s) for t < horizon, by stepping the chain: shares nothing with the solves."""
    K = chain.K.toarray()
    K[:, chain.goal] = 0.0
    alive = (np.arange(chain.states) != chain.goal).astype(float)
    out = []
    for _ in range(horizon):
        out.append(alive)
        alive = K @ alive
    return np.array(out)


def test_the_random_mdps_include_finite_and_infinite_distances_and_start_at_the_goal(cases):
    finite = [np.isfinite(r["w1_primal"]) for *_, r in cases]
    assert len(cases) == COUNT
    assert 50 < sum(finite) < COUNT - 20
    assert sum(mdp.start[mdp.goal] == 1 for mdp, *_ in cases) > 50
    assert {mdp.gamma for mdp, *_ in cases} == {0.0, 0.1, 0.5, 0.9, 0.99, 0.999}


def test_every_number_agrees_with_stepping_the_chain_through_time(cases):
    checked = 0
    for _, _, chain, r in cases:
        if np.isfinite(r["d"]).all() and r["d"].max() < 30:
            alive = survival(chain, 1500)
            t = np.arange(1500)[:, None]
            assert close(alive.sum(0), r["d"])
            assert close(((2 * t + 1) * alive).sum(0) - alive.sum(0) ** 2, r["var_T"])
            pmf = np.concatenate([1 - alive[:1], alive[:-1] - alive[1:]])
            assert close((chain.gamma**t * pmf).sum(0), r["V"])
            checked += 1
    assert checked > 150


def test_visitation_agrees_with_stepping_and_leaves_the_absorbing_state_out(cases):
    for _, _, chain, r in cases:
        if chain.gamma <= 0.9:
            K, now, rho = chain.K.toarray(), chain.start.copy(), np.zeros(chain.states)
            for t in range(300):
                rho += (1 - chain.gamma) * chain.gamma**t * now
                now = now @ K
            assert close(rho, r["rho"])
        assert close(r["rho"][chain.goal], (1 - chain.gamma) * chain.start @ r["V"])
        assert close(r["rho"].sum() + chain.gamma * chain.start @ r["V"], 1.0)


def test_distance_is_infinite_exactly_where_arrival_is_not_certain(cases):
    for _, _, chain, r in cases:
        K = chain.K.toarray() + np.outer(np.eye(chain.states)[chain.goal], np.eye(chain.states)[chain.goal])
        for _ in range(40):
            K = K @ K
            K /= K.sum(1, keepdims=True)
        assert (np.isfinite(r["d"]) == (K[:, chain.goal] > 1 - 1e-9)).all()
        assert (np.isfinite(r["var_T"]) == np.isfinite(r["d"])).all()


def test_proposition_1_value_is_at_least_gamma_to_the_distance(cases):
    for _, _, chain, r in cases:
        assert (r["V"] >= chain.gamma ** r["d"] - 1e-12).all()
        assert close(r["jensen"], r["V"] - chain.gamma ** r["d"])
        assert close(r["V"][chain.goal], 1.0)
        assert r["d"][chain.goal] == 0


def test_jensen_gap_is_zero_exactly_where_the_variance_is_if_gamma_is_positive(cases):
    for _, _, chain, r in cases:
        finite = np.isfinite(r["d"])
        if chain.gamma > 0.05:
            still = finite & (r["var_T"] < 1e-12)
            assert (np.abs(r["jensen"][still]) < 1e-10).all()
            moving = finite & (r["var_T"] > 1e-3) & (chain.gamma ** r["d"] > 1e-6)
            assert (r["jensen"][moving] > 0).all()


def test_proposition_2_best_return_is_least_distance_in_deterministic_mdps():
    rng = np.random.default_rng(2)
    for gamma in (0.3, 0.9, 0.99) * 10:
        mdp = random_mdp(rng, "deterministic", gamma, states=4, actions=2)
        chains = [induced_chain(mdp, policy) for policy in deterministic_policies(mdp)]
        V, d = np.stack([value(c) for c in chains]), np.stack([hitting_time(c) for c in chains])
        assert close(V.max(0), gamma ** d.min(0))
        assert close(d.min(0), optimal_hitting_time(mdp))
        assert ((V.max(0) - 1e-12 <= V) == (d <= d.min(0))).all()


def test_proposition_3_sum_and_closed_form_agree(cases):
    for *_, r in cases:
        assert close(r["w1_primal"], r["w1_closed_form"])


def test_lemma_1_discounted_remaining_time_has_its_closed_form():
    for gamma, T in itertools.product((0.0, 0.1, 0.5, 0.9, 0.99, 0.999), (0, 1, 2, 5, 37, 200)):
        t = np.arange(T)
        assert close((1 - gamma) * (gamma**t * (T - t)).sum(), T - gamma / (1 - gamma) * (1 - gamma**T))


def test_lemma_2_h_increases_on_the_non_negative_numbers():
    mu = np.linspace(0, 50, 20_001)
    for gamma in (0.0, 1e-6, 0.1, 0.5, 0.9, 0.99, 0.999):
        h = mu + gamma / (1 - gamma) * gamma**mu
        assert (np.diff(h) > 0).all()


def test_the_dual_program_reaches_the_primal_sum_with_a_feasible_potential(cases):
    for _, _, chain, r in cases:
        assert close(r["w1_dual"], r["w1_primal"], 1e-6)
        assert r["potential"][chain.goal] == 0
        if np.isfinite(r["w1_dual"]):
            f, pairs = r["potential"], all_hitting_times(chain)
            assert close(-r["rho"] @ f, r["w1_dual"])
            excess = f[None, :] - f[:, None] - np.where(np.isfinite(pairs), pairs, np.inf)
            assert (excess <= 1e-6 * (1 + np.abs(f).max())).all()
            arrives = np.isfinite(r["d"])
            assert close(f[arrives], -r["d"][arrives], 1e-6)
        else:
            assert np.isneginf(r["potential"][~np.isfinite(r["d"])]).all()


def test_the_sparse_program_has_the_value_of_the_program_over_all_pairs(cases, monkeypatch):
    monkeypatch.setattr(transport, "DENSE_STATES", 0)
    for _, _, chain, r in cases[::3]:
        assert close(w1_dual(chain)[0], r["w1_dual"], 1e-6)


def test_the_best_coupling_costs_the_primal_sum(cases):
    for _, _, chain, r in cases[::2]:
        cost, plan = w1_coupling(chain)
        assert close(cost, r["w1_primal"])
        assert close(plan.sum(0), np.eye(chain.states)[chain.goal])


def test_all_pairs_obey_the_triangle_inequality_and_the_goal_column_is_d(cases):
    for _, _, chain, r in cases[::4]:
        d = all_hitting_times(chain)
        assert close(d[:, chain.goal], r["d"])
        assert (np.diag(d) == 0).all()
        through = (d[:, :, None] + d[None, :, :]).min(1)
        assert (d <= through * (1 + 1e-9) + 1e-9).all()


def test_penalties_bound_less_than_the_distance_and_often_strictly(cases):
    strict_hop = strict_dual = 0
    for *_, r in cases:
        hop, eq4, dual = r["w1_hop"], r["w1_eq4"], r["w1_dual"]
        assert hop <= eq4 + 1e-6 * (1 + abs(eq4) if np.isfinite(eq4) else 1)
        assert eq4 <= dual + 1e-6 * (1 + abs(dual) if np.isfinite(dual) else 1)
        strict_hop += hop < eq4 - 1e-3
        strict_dual += eq4 < dual - 1e-3
    assert strict_hop > 100
    assert strict_dual > 100


def test_the_hop_distance_is_the_optimum_of_its_own_linear_program(cases):
    from scipy.optimize import linprog

    for _, _, chain, r in cases[::5]:
        if np.isfinite(r["w1_hop"]):
            s, t = np.nonzero(chain.K.toarray())
            D = np.eye(chain.states)[s] - np.eye(chain.states)[t]
            free = [(0, 0) if x == chain.goal or np.isinf(hop_distance(chain)[x]) else (None, None) for x in range(chain.states)]
            best = linprog(r["rho"], A_ub=np.vstack([D, -D]), b_ub=np.ones(2 * len(s)), bounds=free)
            assert close(-best.fun, r["w1_hop"], 1e-6)


def test_without_chance_the_expected_bound_equals_the_hop_bound():
    # In a deterministic chain E|f(s) − f(s′)| is |f(s) − f(s′)| on the one possible transition.
    rng = np.random.default_rng(5)
    for _ in range(40):
        mdp = random_mdp(rng, "deterministic", 0.9, states=6)
        chain = induced_chain(mdp, np.eye(2)[rng.integers(2, size=6)])
        assert close(w1_eq4(chain), w1_hop(chain), 1e-6)
        if np.isfinite(w1_primal(chain)):
            assert close(w1_hop(chain), w1_primal(chain), 1e-6)


def test_proposition_4_a_function_bounded_in_expected_steps_is_lipschitz_to_the_goal(cases):
    rng = np.random.default_rng(3)
    for _, _, chain, r in cases:
        K, arrives = chain.K.toarray(), np.isfinite(r["d"])
        f = rng.normal(size=chain.states) * 10
        steps = (K * np.abs(f[:, None] - f[None, :])).sum(1)
        bound = steps[arrives].max()  # the goal's own step to s̄ is 0
        assert (np.abs(f - f[chain.goal])[arrives] <= bound * r["d"][arrives] + 1e-9).all()


def test_eqn_lip_mdp_bounds_the_lipschitz_constant_between_all_pairs_in_both_signs(cases):
    rng = np.random.default_rng(4)
    for _, _, chain, r in cases[::3]:
        if np.isfinite(r["d"]).all():
            K, d = chain.K.toarray(), all_hitting_times(chain)
            f = rng.normal(size=chain.states)
            bound = (K * np.abs(f[:, None] - f[None, :])).sum(1).max()
            x, y = np.nonzero(np.isfinite(d) & (d > 0))
            assert (np.abs(f[y] - f[x]) <= bound * d[x, y] + 1e-9).all()


def test_eq4_potential_is_feasible_and_attains_the_value(cases):
    for _, _, chain, r in cases[::3]:
        if np.isfinite(r["w1_eq4"]):
            f, K = eq4_potential(chain), chain.K.toarray()
            assert ((K * np.abs(f[:, None] - f[None, :])).sum(1) <= 1 + 1e-9).all()
            assert close(-r["rho"] @ f, r["w1_eq4"])


def test_the_interior_point_method_agrees_with_highs():
    rng = np.random.default_rng(6)
    for states, gamma in ((5, 0.5), (12, 0.9), (25, 0.99), (25, 0.999)):
        mdp = random_mdp(rng, "sparse", gamma, states=states)
        mdp = GoalMDP(mdp.P, rng.dirichlet(np.ones(states)), mdp.goal, gamma)
        chain = induced_chain(mdp, random_policy(rng, mdp))
        edges = bounds._edges(chain, np.isfinite(hop_distance(chain)))
        rho = visitation(chain)[edges.inner]
        f, best = interior.maximise_potential(edges.D, edges.B, rho), bounds._eq4_highs(edges, rho)
        assert close(-rho @ f, -rho @ best, 1e-6)


def test_theorem_1_least_w1_is_the_best_return_in_deterministic_mdps():
    rng = np.random.default_rng(7)
    for gamma in (0.2, 0.9, 0.99) * 12:
        mdp = random_mdp(rng, "deterministic", gamma, states=4, actions=2)
        chains = [induced_chain(mdp, policy) for policy in deterministic_policies(mdp)]
        W = np.array([w1_primal(c) for c in chains])
        returns = np.array([mdp.start @ value(c) for c in chains])
        if np.isfinite(W).any():
            assert (np.isclose(W, W.min(), atol=1e-10) == np.isclose(returns, returns.max(), atol=1e-12)).all()
        else:
            assert (returns < 1).all()


def test_optimal_distance_solves_the_bellman_equation_and_is_the_best_of_all_policies():
    for mdp, _ in worlds(84, seed=8):
        best = optimal_hitting_time(mdp)
        if mdp.actions**mdp.states <= 300:
            every = np.stack([hitting_time(induced_chain(mdp, policy)) for policy in deterministic_policies(mdp)])
            assert close(best, every.min(0))
        P = np.asarray(mdp.P)
        Q = 1 + np.where(P > 0, P * np.where(np.isfinite(best), best, 0.0), 0.0).sum(-1)
        Q = np.where(((P > 0) & np.isinf(best)).any(-1), np.inf, Q).min(1)
        Q[mdp.goal] = 0.0
        assert close(best, Q)


def test_rare_exits_keep_every_digit():
    # A walk that drifts away from the goal: d grows by powers of 9, far beyond what plain elimination resolves.
    n, p = 16, 0.1
    P = np.zeros((n, 1, n))
    for s in range(1, n):
        P[s, 0, s - 1] += p
        P[s, 0, min(s + 1, n - 1)] += 1 - p
    chain = induced_chain(GoalMDP(P, np.eye(n)[3], 0, 0.99), np.ones((n, 1)))
    from fractions import Fraction

    up = Fraction(1 - p) / Fraction(p)
    step = [Fraction(0)] * (n + 1)  # expected time from s to s − 1
    for s in range(n - 1, 0, -1):
        step[s] = 1 / Fraction(p) if s == n - 1 else (1 + Fraction(1 - p) * step[s + 1]) / Fraction(p)
    exact = np.cumsum([float(x) for x in step[:n]])
    assert up > 8
    assert exact[-1] > 1e13
    assert np.allclose(hitting_time(chain), exact, rtol=1e-9)


def test_a_world_of_many_states_takes_the_sparse_path_and_agrees_with_the_dense_one():
    mdp = random_walk(19, 18)
    dense = induced_chain(GoalMDP(np.stack([m.toarray() for m in mdp.matrices()], 1), mdp.start, mdp.goal, mdp.gamma), uniform_policy(mdp))
    r = analyse(mdp, uniform_policy(mdp))
    K = dense.K.toarray()
    inner = np.arange(mdp.states) != mdp.goal
    assert close(r["d"][inner], np.linalg.solve(np.eye(inner.sum()) - K[np.ix_(inner, inner)], np.ones(inner.sum())))
    assert close(r["w1_closed_form"], r["w1_primal"])
    assert close(r["w1_dual"], r["w1_primal"], 1e-6)
    assert r["w1_hop"] < r["w1_eq4"] < r["w1_dual"]
    assert r["d_opt"].max() == 9 + 9


def test_many_tiny_probabilities_are_not_lost_in_the_sparse_program():
    # HiGHS drops coefficients below 1e-9: with thousands of them the unscaled program was off by 2e-6.
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.full(320, 0.05), size=(320, 3))
    mdp = GoalMDP(P, rng.dirichlet(np.ones(320)), 5, 0.99)
    chain = induced_chain(mdp, uniform_policy(mdp))
    assert ((chain.K.data > 0) & (chain.K.data < 1e-9)).sum() > 1000
    assert close(w1_dual(chain)[0], w1_primal(chain), 1e-7)


def test_ten_thousand_states_need_no_all_pairs():
    mdp = random_walk(100, 100)
    chain = induced_chain(mdp, uniform_policy(mdp))
    assert close(w1_primal(chain), w1_closed_form(chain))
    assert optimal_hitting_time(mdp).max() == 100
    assert np.isfinite(hitting_variance(chain)).all()
    assert 100 * (1 - mdp.gamma) < w1_hop(chain) < 100


def test_a_charged_state_that_never_arrives_makes_w1_infinite_but_not_the_penalised_estimates():
    P = np.zeros((3, 1, 3))
    P[1, 0] = [0.5, 0.0, 0.5]  # to the goal or into a trap
    P[2, 0, 2] = 1.0
    r = analyse(GoalMDP(P, np.array([0.0, 1.0, 0.0]), 0, 0.9), np.ones((3, 1)))
    assert r["w1_primal"] == r["w1_closed_form"] == r["w1_dual"] == np.inf
    assert close(r["w1_hop"], 0.1 * 1 + 0.45 * 2)
    assert np.isfinite(r["w1_eq4"])
    assert to_json(r)["d"] == [0.0, "inf", "inf"]
    assert to_json(r)["w1_dual"] == "inf"
    assert to_json(r)["potential"][1] == "-inf"


def test_an_uncharged_state_that_never_arrives_changes_nothing():
    P = np.zeros((3, 1, 3))
    P[1, 0, 0] = P[2, 0, 2] = 1.0
    r = analyse(GoalMDP(P, np.array([0.0, 1.0, 0.0]), 0, 0.9), np.ones((3, 1)))
    for key in ("w1_primal", "w1_closed_form", "w1_dual", "w1_eq4", "w1_hop"):
        assert close(r[key], 0.1, 1e-6)
    assert np.isfinite(r["potential"]).all()


def test_start_at_the_goal_costs_nothing():
    mdp = random_mdp(np.random.default_rng(9), "start is goal", 0.9)
    r = analyse(mdp, uniform_policy(mdp))
    assert [r[k] for k in ("w1_primal", "w1_dual", "w1_eq4", "w1_hop")] == [0.0] * 4
    assert close(r["w1_closed_form"], 0.0)
    assert close(r["rho"], 0.1 * np.eye(mdp.states)[mdp.goal])


def test_jensen_gap_function_and_charged_states_match_the_analysis():
    mdp = random_mdp(np.random.default_rng(10), "several starts", 0.9)
    chain = induced_chain(mdp, uniform_policy(mdp))
    r = analyse(mdp, uniform_policy(mdp))
    assert close(jensen_gap(chain), r["jensen"])
    assert ((r["rho"] > 0) == charged(chain)).all()
    assert set(r) == {
        "d",
        "d_opt",
        "V",
        "var_T",
        "jensen",
        "rho",
        "potential",
        "w1_primal",
        "w1_dual",
        "w1_closed_form",
        "w1_eq4",
        "w1_hop",
    }


@pytest.mark.parametrize("p", [1e-9, 1e-11, 1e-12])
def test_steps_that_hardly_ever_happen_are_not_dropped_from_the_programs(p):
    P = np.zeros((2, 1, 2))
    P[0, 0], P[1, 0, 1] = [1 - p, p], 1
    mdp = GoalMDP(P, np.array([1.0, 0.0]), 1, 0.9)
    chain = induced_chain(mdp, uniform_policy(mdp))
    assert w1_eq4(chain) <= w1_dual(chain)[0] * (1 + 1e-6)
    assert w1_eq4(chain) > 1e6
