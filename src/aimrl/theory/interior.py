"""max −Σ cost·f subject to B|Df| ≤ 1 by Mehrotra's predictor–corrector, each Newton system reduced by hand to two unknowns a state.

D [E, n] takes differences along edges, B [n, E] ≥ 0 weighs them. With u ≥ |Df| the constraints are Df ≤ u, −Df ≤ u and Bu ≤ 1; their
multipliers p, q, y and their slacks are kept end to end, in this order. HiGHS needs minutes for 10,000 states, this needs seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from aimrl.theory.distances import DENSE_STATES
from aimrl.theory.mdp import Sparse
from aimrl.types import UserError

GAP = 1e-7  # between primal and dual objective, relative to 1 + |value|


class _Iterate(NamedTuple):
    f: np.ndarray
    u: np.ndarray
    slack: np.ndarray
    dual: np.ndarray


class _Residuals(NamedTuple):
    primal: np.ndarray
    f: np.ndarray
    u: np.ndarray


def maximise_potential(D: Sparse, B: Sparse, cost: np.ndarray, rounds: int = 200) -> np.ndarray:
    """The optimal f, to a relative duality gap of 1e-7."""
    scale = cost.max()
    cost = cost / scale
    now = _first(D, B)
    for _ in range(rounds):
        residuals = _residuals(D, B, cost, now)
        value, above = -cost @ now.f, _split(now.dual, D)[2].sum()
        worst = max(np.abs(r).max() for r in residuals)
        if abs(value - above) < GAP * (1.0 / scale + abs(value)) and worst < 1e-8 * (1.0 + np.abs(now.f).max()):
            return now.f
        now = _advance(D, B, now, residuals)
    raise UserError("the program of w1_eq4 doesn't converge: the chain is too badly conditioned")


def _first(D: Sparse, B: Sparse) -> _Iterate:
    count, n = D.shape
    u = np.full(count, 0.5)
    slack = np.concatenate([u, u, 1.0 - np.minimum(B @ u, 0.5)])
    return _Iterate(np.zeros(n), u, slack, np.ones(slack.size))


def _split(x: np.ndarray, D: Sparse) -> list[np.ndarray]:
    return np.split(x, [D.shape[0], 2 * D.shape[0]])


def _left(D: Sparse, B: Sparse, f: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The constraints' left-hand sides; the right-hand sides are 0, 0 and 1."""
    Df = D @ f
    return np.concatenate([Df - u, -Df - u, B @ u])


def _residuals(D: Sparse, B: Sparse, cost: np.ndarray, now: _Iterate) -> _Residuals:
    p, q, y = _split(now.dual, D)
    primal = _left(D, B, now.f, now.u) + now.slack
    primal[2 * D.shape[0] :] -= 1.0
    return _Residuals(primal, cost + D.T @ (p - q), B.T @ y - p - q)


def _advance(D: Sparse, B: Sparse, now: _Iterate, residuals: _Residuals) -> _Iterate:
    """One predictor step to see how far complementarity can fall, one corrector step that gets there."""
    solve = _newton(D, B, now)
    product = now.slack * now.dual
    mu = product.mean()
    _, _, dslack, ddual = _direction(D, B, now, residuals, solve, product)
    ahead = (now.slack + _longest(now.slack, dslack) * dslack) @ (now.dual + _longest(now.dual, ddual) * ddual) / product.size
    df, du, dslack, ddual = _direction(D, B, now, residuals, solve, product + dslack * ddual - mu * (ahead / mu) ** 3)
    a, b = 0.995 * _longest(now.slack, dslack), 0.995 * _longest(now.dual, ddual)
    return _Iterate(now.f + a * df, now.u + a * du, now.slack + a * dslack, now.dual + b * ddual)


def _newton(D: Sparse, B: Sparse, now: _Iterate) -> Callable[[np.ndarray], np.ndarray]:
    """The factorised system in (df, dy): u's own block is diagonal but for B, so du has been eliminated."""
    from scipy.sparse import block_array, csr_array, diags_array

    n = D.shape[1]
    wp, wq, wy = _split(now.dual / now.slack, D)
    h, g = wp + wq, wq - wp
    M = D.T @ diags_array(4.0 * wp * wq / h) @ D
    C = B @ diags_array(g / h) @ D
    Y = B @ diags_array(1.0 / h) @ B.T + diags_array(1.0 / wy)
    order = np.arange(2 * n).reshape(2, n).T.ravel()  # f and y of a state side by side: far less fill-in
    inner = _factor(csr_array(block_array([[M, -C.T], [-C, -Y]]))[order][:, order])

    def solve(rhs: np.ndarray) -> np.ndarray:
        solution = np.empty(2 * n)
        solution[order] = inner(rhs[order])
        return solution

    return solve


def _direction(
    D: Sparse, B: Sparse, now: _Iterate, residuals: _Residuals, solve: Callable[[np.ndarray], np.ndarray], target: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(df, du, dslack, ddual) that removes the residuals and takes `target` off slack · dual, to first order."""
    n = D.shape[1]
    weight = now.dual / now.slack
    wp, wq, _ = _split(weight, D)
    h, g = wp + wq, wq - wp
    push_p, push_q, push_y = _split(weight * residuals.primal - target / now.slack, D)
    rhs_f = -residuals.f - D.T @ (push_p - push_q)
    rhs_u = -residuals.u + push_p + push_q - B.T @ push_y
    solution = solve(np.concatenate([rhs_f - D.T @ (g / h * rhs_u), -(B @ (rhs_u / h))]))
    df, dy = solution[:n], solution[n:]
    Ddf = D @ df
    du = (rhs_u - g * Ddf - B.T @ dy) / h
    # Near the end the large weights cost digits: take the smaller of p and q directly, the other from the constraint p + q = Bᵀy.
    y = push_y + dy
    both = residuals.u + B.T @ y
    p, q = push_p + wp * (Ddf - du), push_q - wq * (Ddf + du)
    p, q = np.where(wp > wq, both - q, p), np.where(wp > wq, q, both - p)
    return df, du, -residuals.primal - _left(D, B, df, du), np.concatenate([p, q, y])


def _longest(x: np.ndarray, dx: np.ndarray) -> float:
    """The largest step ≤ 1 that keeps x ≥ 0."""
    down = dx < 0
    return float(min(1.0, (-x[down] / dx[down]).min())) if down.any() else 1.0


def _factor(system: Sparse) -> Callable[[np.ndarray], np.ndarray]:
    """x ↦ system⁻¹ x, dense where small or full."""
    if system.shape[0] <= 2 * DENSE_STATES or system.nnz > 0.05 * system.shape[0] ** 2:
        from scipy.linalg import lu_factor, lu_solve

        factors = lu_factor(system.toarray())
        return lambda b: lu_solve(factors, b)
    from scipy.sparse.linalg import splu

    # Symmetric quasi-definite: any symmetric order works without pivoting.
    return splu(system.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}).solve
