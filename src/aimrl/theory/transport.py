"""W1 from ρ_π to the goal under the time-step metric, three independent ways: sum (or coupling), closed form, dual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aimrl.theory.distances import DENSE_STATES, all_hitting_times, charged, hitting_time, value, visitation
from aimrl.types import UserError

if TYPE_CHECKING:
    from aimrl.theory.mdp import Chain

SCALE = 1e4


def w1_primal(chain: Chain) -> float:
    """Σ_s ρ_π(s) d^π(s, s_g), `eqn:dt_W1`; infinite where ρ charges a state that isn't sure to arrive."""
    return weighted(visitation(chain), hitting_time(chain), charged(chain))


def w1_coupling(chain: Chain) -> tuple[float, np.ndarray]:
    """(cost, plan [S, S]) of the best coupling of ρ_π (s̄'s mass at the goal) and δ(s_g), `eqn:w-p`, by POT; up to 300 states."""
    import ot

    mass, target = visitation(chain), np.zeros(chain.states)
    mass[chain.goal] += max(0.0, 1.0 - mass.sum())
    target[chain.goal] = mass.sum()  # 1 up to rounding; the solver wants equal totals
    cost = all_hitting_times(chain)
    finite = np.isfinite(cost)
    if (charged(chain) & ~finite[:, chain.goal]).any():
        return float("inf"), np.outer(mass, target)
    plan = ot.emd(mass, target, np.where(finite, cost, 1.0 + cost[finite].max()))  # the other columns can receive nothing
    return float((plan * np.where(finite, cost, 0.0)).sum()), plan


def w1_closed_form(chain: Chain) -> float:
    """E_{s₀}[h(d) + γ/(1−γ) (Δ_Jensen − 1)] with h(μ) = μ + γ/(1−γ) γ^μ, Proposition 3."""
    d, gamma = hitting_time(chain), chain.gamma
    odds = gamma / (1.0 - gamma)
    gap = value(chain) - gamma**d
    return weighted(chain.start, d + odds * gamma**d + odds * (gap - 1.0), chain.start > 0)


def w1_dual(chain: Chain) -> tuple[float, np.ndarray]:
    """(value, potential) of the linear program max −Σ ρ(s) f(s), f(s_g) = 0, f(y) − f(x) ≤ d^π(x, y), `eqn:KRdual`.

    Up to 300 states over every ordered pair with a finite hitting time, above that in the sparse form Σ K(s, s′) f(s′) − f(s) ≤ 1.
    Both feasible sets are closed under the pointwise minimum, so one f is lowest everywhere and optimal for any non-negative weights;
    adding 1/S to every weight asks the solver for that f, also where ρ is zero or below the solver's tolerance.
    States that aren't sure to arrive have no lower bound: −∞ if ρ charges one of them, else the objective doesn't see them and they get 0.
    """
    arrives = np.isfinite(hitting_time(chain))
    rho, seen = visitation(chain), charged(chain)
    inner = np.flatnonzero(arrives & (np.arange(chain.states) != chain.goal))
    unbounded = bool((seen & ~arrives).any())
    potential = np.where(arrives, 0.0, -np.inf if unbounded else 0.0)
    if inner.size:
        A, b = _pair_constraints(chain, inner) if chain.states <= DENSE_STATES else _step_constraints(chain, inner)
        methods = ("highs-ds", "highs-ipm") if inner.size <= 2000 else ("highs-ipm", "highs-ds")
        potential[inner] = minimise(rho[inner] + 1.0 / chain.states, A, b, methods)
    return (float("inf") if unbounded else weighted(rho, -potential, seen)), potential


def _pair_constraints(chain: Chain, inner: np.ndarray) -> tuple[Any, np.ndarray]:
    """f(y) − f(x) ≤ d(x, y) over `inner` and the goal, whose column is dropped because f is 0 there."""
    from scipy.sparse import csr_array

    nodes = np.append(inner, chain.goal)
    d = all_hitting_times(chain)[np.ix_(nodes, nodes)]
    x, y = np.nonzero(np.isfinite(d) & ~np.eye(nodes.size, dtype=bool))
    rows = np.arange(x.size)
    A = csr_array((np.repeat([1.0, -1.0], x.size), (np.tile(rows, 2), np.concatenate([y, x]))), shape=(x.size, nodes.size))
    return A[:, : inner.size], d[x, y]


def _step_constraints(chain: Chain, inner: np.ndarray) -> tuple[Any, np.ndarray]:
    """Σ K(s, s′) f(s′) − f(s) ≤ 1, times SCALE: HiGHS drops coefficients below 1e-9, and many lost probabilities add up."""
    from scipy.sparse import csr_array, eye_array

    return csr_array(SCALE * (chain.K[inner][:, inner] - eye_array(inner.size))), np.full(inner.size, SCALE)


def minimise(
    cost: np.ndarray, A: Any, b: np.ndarray, methods: tuple[str, ...] = ("highs-ds", "highs-ipm"), lower: Any = None
) -> np.ndarray:
    """argmin cost·x subject to Ax ≤ b by HiGHS; x is free unless `lower` bounds it."""
    from scipy.optimize import linprog

    bounds = (None, None) if lower is None else np.stack([lower, np.full(cost.size, np.inf)], 1)
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    for method in methods:
        result = linprog(cost / cost.max(), A_ub=A, b_ub=b, bounds=bounds, method=method, options=tight)
        if result.x is not None and result.status == 0:
            return result.x
    raise UserError(f"the linear program's solver gave up: {result.message.splitlines()[0]}")


def weighted(weights: np.ndarray, numbers: np.ndarray, support: np.ndarray) -> float:
    """Σ weights · numbers over the support only: 0 · ∞ is 0, and a charged infinity stays infinite even where its weight underflows."""
    if not np.isfinite(numbers[support]).all():
        return float("inf")
    return float(weights[support] @ numbers[support])
