"""What AIM's penalties really bound: the dual's objective under E|f(s) − f(s′)| ≤ 1 (`eqn:lip_mdp`) and under |f(s) − f(s′)| ≤ 1 (`eqn:f_loss`).

w1_hop ≤ w1_eq4 ≤ w1_dual: each constraint implies the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aimrl.theory.distances import DENSE_STATES, charged, hop_distance, visitation
from aimrl.theory.transport import minimise, weighted
from aimrl.types import UserError

if TYPE_CHECKING:
    from aimrl.theory.mdp import Chain

HIGHS_EDGES = 2000  # above, HiGHS needs minutes where the interior-point method below needs seconds
GAP = 1e-7  # relative to 1 + |value|, between the interior-point method's primal and dual objectives


def w1_hop(chain: Chain) -> float:
    """max −Σ ρ f under |f(s) − f(s′)| ≤ 1 on every possible transition = Σ ρ(s) × the undirected hop distance to the goal."""
    return weighted(visitation(chain), hop_distance(chain), charged(chain))


def w1_eq4(chain: Chain) -> float:
    """max −Σ ρ f under E_{s′}|f(s) − f(s′)| ≤ 1 for every s ≠ s_g; infinite only where no chain of transitions links ρ to the goal."""
    return _eq4(chain)[0]


def eq4_potential(chain: Chain) -> np.ndarray:
    """The f that attains `w1_eq4`; 0 on states that no chain of transitions links to the goal."""
    return _eq4(chain)[1]


class _Edges(NamedTuple):
    """The undirected edges of K among the goal's neighbours of any order: u = |Df| and E|f(s) − f(s′)| = Bu."""

    inner: np.ndarray  # states but the goal, in the order of D's columns and B's rows
    D: Any  # [E, n]
    B: Any  # [n, E]


def _edges(chain: Chain, linked: np.ndarray) -> _Edges:
    from scipy.sparse import csr_array

    inner = np.flatnonzero(linked & (np.arange(chain.states) != chain.goal))
    rows = chain.K[inner].tocoo()
    s, t, p = inner[rows.coords[0]], rows.coords[1].astype(np.int64), rows.data
    s, t, p = s[s != t], t[s != t], p[s != t]
    keys, edge = np.unique(np.minimum(s, t) * chain.states + np.maximum(s, t), return_inverse=True)  # s → t and t → s share a u
    a, b = keys // chain.states, keys % chain.states
    count = np.arange(keys.size)
    D = csr_array((np.repeat([1.0, -1.0], keys.size), (np.tile(count, 2), np.concatenate([a, b]))), shape=(keys.size, chain.states))
    B = csr_array((p, (s, edge)), shape=(chain.states, keys.size))
    return _Edges(inner, D[:, inner], B[inner])


def _eq4(chain: Chain) -> tuple[float, np.ndarray]:
    linked, seen, rho = np.isfinite(hop_distance(chain)), charged(chain), visitation(chain)
    potential = np.zeros(chain.states)
    inner, D, B = edges = _edges(chain, linked)
    if inner.size and rho[inner].any():
        f = _eq4_highs(edges, rho[inner]) if D.shape[0] <= HIGHS_EDGES else _eq4_interior(edges, rho[inner])
        f = f / max(1.0, (B @ np.abs(D @ f)).max())  # feasible to the last digit: the value is never above the true one
        potential[inner] = f
    return (weighted(rho, -potential, seen) if linked[seen].all() else float("inf")), potential


def _eq4_highs(edges: _Edges, rho: np.ndarray) -> np.ndarray:
    """Over (f, u): ±Df ≤ u, Bu ≤ 1."""
    from scipy.sparse import block_array, eye_array

    _, D, B = edges
    unit = eye_array(D.shape[0])
    A = block_array([[D, -unit], [-D, -unit], [None, B]], format="csr")
    b = np.concatenate([np.zeros(2 * D.shape[0]), np.ones(B.shape[0])])
    lower = np.concatenate([np.full(rho.size, -np.inf), np.zeros(D.shape[0])])
    return minimise(np.concatenate([rho, np.zeros(D.shape[0])]), A, b, lower=lower)[: rho.size]


def _eq4_interior(edges: _Edges, rho: np.ndarray, rounds: int = 200) -> np.ndarray:
    """The same program by Mehrotra's predictor–corrector, each Newton system reduced by hand to 2 unknowns a state.

    Multipliers p, q ≥ 0 of Df ≤ u and −Df ≤ u, y ≥ 0 of Bu ≤ 1; slacks in the same order. u's block is diagonal but for B, so du goes out.
    """
    from scipy.sparse import block_array, diags_array

    _, D, B = edges
    count, n = D.shape
    DT, BT = D.T.tocsr(), B.T.tocsr()
    scale = rho.max()
    cost = rho / scale
    f, u = np.zeros(n), np.full(count, 0.5)
    slack = np.concatenate([u, u, 1.0 - np.minimum(B @ u, 0.5)])
    dual = np.full(slack.size, 1.0)
    order = np.arange(2 * n).reshape(2, n).T.ravel()  # f and y of a state side by side: far less fill-in

    def constraints(f: np.ndarray, u: np.ndarray) -> np.ndarray:
        return np.concatenate([D @ f - u, -(D @ f) - u, B @ u])

    bound = np.concatenate([np.zeros(2 * count), np.ones(n)])
    for _ in range(rounds):
        p, q, y = np.split(dual, [count, 2 * count])
        r_primal = constraints(f, u) + slack - bound
        r_f, r_u = cost + DT @ (p - q), BT @ y - p - q
        primal, bound_above = -cost @ f, y.sum()
        worst = max(np.abs(r_primal).max(), np.abs(r_f).max(), np.abs(r_u).max())
        if abs(primal - bound_above) < GAP * (1.0 / scale + abs(primal)) and worst < 1e-8 * (1.0 + np.abs(f).max()):
            return f
        weight = dual / slack
        wp, wq, wy = np.split(weight, [count, 2 * count])
        h, g = wp + wq, wq - wp
        M_f = DT @ diags_array(4.0 * wp * wq / h) @ D
        C = B @ diags_array(g / h) @ D
        Y = B @ diags_array(1.0 / h) @ BT + diags_array(1.0 / wy)
        system = block_array([[M_f, -C.T], [-C, -Y]], format="csr")[order][:, order]
        factor = _factor(system)

        def step(target: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
            """Newton step towards slack · dual = slack · dual − target."""
            push_p, push_q, push_y = np.split(weight * r_primal - target / slack, [count, 2 * count])
            rhs_f = -r_f - DT @ (push_p - push_q)
            rhs_u = -r_u + push_p + push_q - BT @ push_y
            rhs = np.concatenate([rhs_f - DT @ (g / h * rhs_u), -(B @ (rhs_u / h))])[order]
            solution = np.empty(2 * n)
            solution[order] = factor(rhs)
            df, dy = solution[:n], solution[n:]
            du = (rhs_u - g * (D @ df) - BT @ dy) / h
            # Near the end the large weights cost digits: take the smaller of p and q directly, the other from the constraint p + q = Bᵀy.
            Ddf, y_new = D @ df, push_y + dy
            both = r_u + BT @ y_new
            p_new, q_new = push_p + wp * (Ddf - du), push_q - wq * (Ddf + du)
            p_new, q_new = np.where(wp > wq, both - q_new, p_new), np.where(wp > wq, q_new, both - p_new)
            return df, du, -r_primal - constraints(df, du), np.concatenate([p_new, q_new, y_new])

        mu = slack @ dual / slack.size
        _, _, dslack, ddual = step(slack * dual)
        ahead = (slack + _longest(slack, dslack) * dslack) @ (dual + _longest(dual, ddual) * ddual) / slack.size
        df, du, dslack, ddual = step(slack * dual + dslack * ddual - mu * (ahead / mu) ** 3)
        a, b = 0.995 * _longest(slack, dslack), 0.995 * _longest(dual, ddual)
        f, u, slack, dual = f + a * df, u + a * du, slack + a * dslack, dual + b * ddual
    raise UserError("the program of w1_eq4 doesn't converge: the chain is too badly conditioned")


def _longest(x: np.ndarray, dx: np.ndarray) -> float:
    """The largest step ≤ 1 that keeps x ≥ 0."""
    down = dx < 0
    return float(min(1.0, (-x[down] / dx[down]).min())) if down.any() else 1.0


def _factor(system: Any) -> Any:
    """x ↦ system⁻¹ x, dense where small or full."""
    if system.shape[0] <= 2 * DENSE_STATES or system.nnz > 0.05 * system.shape[0] ** 2:
        from scipy.linalg import lu_factor, lu_solve

        factors = lu_factor(system.toarray())
        return lambda b: lu_solve(factors, b)
    from scipy.sparse.linalg import splu

    # Symmetric quasi-definite: any symmetric order works without pivoting.
    return splu(system.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}).solve
