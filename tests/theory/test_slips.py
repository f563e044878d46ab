"""Slips of the paper's theory, each confirmed by a counter-example (docs/deviations.md lists them)."""

from __future__ import annotations

import numpy as np
import pytest
from theory_worlds import deterministic_policies

from aimrl.theory import (
    GoalMDP,
    hitting_time,
    hitting_variance,
    hop_distance,
    induced_chain,
    jensen_gap,
    value,
    w1_dual,
    w1_eq4,
    w1_hop,
    w1_primal,
)


def lottery(tickets: list[dict[int, float]], gamma: float) -> GoalMDP:
    """One start state; action a makes the time to the goal T with probability tickets[a][T]. States count the steps left; 0 is the goal."""
    longest = max(t for ticket in tickets for t in ticket)
    start = longest  # states 1 … longest − 1 walk down, state `longest` draws
    P = np.zeros((longest + 1, len(tickets), longest + 1))
    for s in range(1, longest):
        P[s, :, s - 1] = 1.0
    for a, ticket in enumerate(tickets):
        for t, p in ticket.items():
            P[start, a, t - 1] += p
    return GoalMDP(P, np.eye(longest + 1)[start], 0, gamma)


def chains(mdp):
    """The chain of each constant policy."""
    return [induced_chain(mdp, np.tile(np.eye(mdp.actions)[a], (mdp.states, 1))) for a in range(mdp.actions)]


@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_the_background_sections_return_is_gamma_to_the_t_minus_1_while_v_is_gamma_to_the_t(gamma):
    mdp = lottery([{4: 1.0}], gamma)
    state, total = 4, 0.0
    for t in range(10):  # H = Σ γ^t r(s_t, a_t, s_{t+1}), r = 1 when s_{t+1} is the goal for the first time
        following = max(state - 1, 0)
        total += gamma**t * (following == 0 and state != 0)
        state = following
    V = value(chains(mdp)[0])[4]
    assert np.isclose(total, gamma**3)
    assert np.isclose(V, gamma**4)
    assert np.isclose(V, gamma * total)


def test_log_gamma_over_1_minus_gamma_is_below_minus_1_so_lemma_2s_proof_fails():
    gamma = np.linspace(0.001, 0.999, 999)
    assert (np.log(gamma) / (1 - gamma) < -1).all()


def test_lemma_2_holds_for_non_negative_times_and_fails_below_zero():
    gamma, mu = np.meshgrid(np.linspace(0.001, 0.999, 200), np.linspace(0, 30, 200))
    assert (1 + np.log(gamma) * gamma ** (mu + 1) / (1 - gamma) > 0).all()
    assert 1 + np.log(0.9) * 0.9 ** (-1 + 1) / (1 - 0.9) < 0  # μ = −1


def test_proposition_4s_proof_is_wrong_conditionally_on_t_though_its_claim_holds():
    # From s: to the goal or stay, each 1/2; |f(s) − f(g)| = 2. Steps are 1 in expectation, but given T = 1 the only step is 2 > L · T.
    P = np.array([[[1.0, 0.0]], [[0.5, 0.5]]])
    chain = induced_chain(GoalMDP(P, np.array([0.0, 1.0]), 0, 0.9), np.ones((2, 1)))
    f = np.array([0.0, 2.0])
    expected_step = float(chain.K.toarray()[1] @ np.abs(f - f[1]))
    step_given_arrival_at_1 = abs(f[1] - f[0])
    assert expected_step == 1.0
    assert step_given_arrival_at_1 > expected_step * 1
    assert abs(f[1] - f[0]) <= expected_step * hitting_time(chain)[1]


def test_at_gamma_0_the_best_return_doesnt_determine_the_shortest_path():
    short, long = chains(lottery([{2: 1.0}, {5: 1.0}], 0.0))
    assert value(short)[5] == value(long)[5] == 0.0
    assert hitting_time(short)[5] < hitting_time(long)[5]


def test_at_gamma_0_the_jensen_gap_vanishes_in_spite_of_variance():
    (chain,) = chains(lottery([{2: 0.5, 8: 0.5}], 0.0))
    assert jensen_gap(chain)[8] == 0.0
    assert np.isclose(hitting_variance(chain)[8], 9.0)


def test_lower_variance_at_equal_mean_can_mean_higher_w1():
    a, b = chains(lottery([{1: 27 / 36, 37: 9 / 36}, {5: 49 / 54, 59: 5 / 54}], 0.9))
    start = 59
    assert np.isclose(hitting_time(a)[start], 10)
    assert np.isclose(hitting_time(b)[start], 10)
    assert hitting_variance(a)[start] < hitting_variance(b)[start]
    assert w1_primal(a) > w1_primal(b) + 1


def test_no_positive_constant_bounds_the_jensen_gap_below_by_the_variance():
    # Mean 10, all mass at 9 but a little at N: Var grows without bound, the gap doesn't.
    ratios = []
    for N in (20, 200, 2000):
        (chain,) = chains(lottery([{9: (N - 10) / (N - 9), N: 1 / (N - 9)}], 0.9))
        assert np.isclose(hitting_time(chain)[N], 10)
        ratios.append(jensen_gap(chain)[N] / hitting_variance(chain)[N])
    assert ratios[1] < ratios[0] / 5
    assert ratios[2] < ratios[1] / 5


def test_with_chance_least_w1_is_neither_the_best_return_nor_the_fewest_expected_steps():
    risky, sure = chains(lottery([{1: 0.75, 37: 0.25}, {11: 1.0}], 0.9))
    assert w1_primal(sure) < w1_primal(risky)
    assert value(sure)[37] < value(risky)[37]
    assert hitting_time(sure)[37] > hitting_time(risky)[37]


def test_theorem_1_needs_every_start_to_reach_the_goal():
    # Start 2 is a trap: W1 is infinite whatever start 1 does, so every policy "minimises" it, also the worse one.
    P = np.zeros((4, 2, 4))
    P[1, 0, 0] = P[1, 1, 3] = P[3, :, 0] = P[2, :, 2] = 1.0
    mdp = GoalMDP(P, np.array([0.0, 0.5, 0.5, 0.0]), 0, 0.9)
    found = [(w1_primal(c), mdp.start @ value(c)) for c in (induced_chain(mdp, p) for p in deterministic_policies(mdp))]
    assert {w for w, _ in found} == {np.inf}
    assert len({round(v, 12) for _, v in found}) == 2


def test_eqn_lip_mdp_is_sufficient_but_not_necessary_so_its_dual_falls_short_of_w1():
    # A walk with equal chances on a line: f = −d is the optimal 1-Lipschitz potential, yet its expected step is far above 1.
    n = 8
    P = np.zeros((n, 1, n))
    for s in range(1, n):
        P[s, 0, s - 1] += 0.5
        P[s, 0, min(s + 1, n - 1)] += 0.5
    chain = induced_chain(GoalMDP(P, np.eye(n)[n - 1], 0, 0.99), np.ones((n, 1)))
    dual, f = w1_dual(chain)
    steps = (chain.K.toarray() * np.abs(f[:, None] - f[None, :])).sum(1)
    assert np.allclose(f, -hitting_time(chain), rtol=1e-6)
    assert steps[1:].max() > 5
    assert w1_hop(chain) + 0.1 < w1_eq4(chain) < dual - 10


def test_the_hop_estimate_uses_backward_edges_the_agent_can_never_take():
    # A one-way path 1 → 2 → … → 9 → goal, but state 9 slips back to 1 half the time: 1 and 9 are one undirected hop apart.
    n = 10
    P = np.zeros((n, 1, n))
    for s in range(1, n - 1):
        P[s, 0, s + 1] = 1.0
    P[n - 1, 0, 0] = P[n - 1, 0, 1] = 0.5
    chain = induced_chain(GoalMDP(P, np.eye(n)[1], 0, 0.9), np.ones((n, 1)))
    assert np.isclose(hitting_time(chain)[1], 18)  # nine steps to a fair coin
    assert hop_distance(chain)[1] == 2
    assert w1_hop(chain) < w1_dual(chain)[0] / 2
