"""Step distances and what follows from them: d^π, d♦, V, Var(T), the Jensen gap, ρ_π and the hop distance. Float64, exact solves.

Whether a number is infinite is decided on the graph of possible transitions, never by the size of a floating-point number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aimrl.types import UserError

if TYPE_CHECKING:
    from aimrl.theory.mdp import Chain, GoalMDP, Sparse

ILL_CONDITIONED = 1e6  # expected steps; beyond, plain elimination may lose more than 1e-9
HOPELESS = 1e12  # beyond, sparse elimination has too few digits left
GTH_STATES = 1000  # largest dense elimination without subtraction
DENSE_STATES = 300  # up to here dense solves and all pairs; above it sparse solves, never all pairs


def hitting_time(chain: Chain) -> np.ndarray:
    """d^π(s, s_g) = E[T], `eqn:rec_time_d`; infinite where the goal isn't reached with probability 1."""
    return _hitting_time(chain.K, chain.goal)


def all_hitting_times(chain: Chain) -> np.ndarray:
    """d^π(x, y) for every ordered pair in the one chain whose goal is absorbing; infinite where y isn't surely met."""
    if chain.states > DENSE_STATES:
        raise UserError(f"all pairs of {chain.states} states asked for; at most {DENSE_STATES} are allowed")
    return np.stack([_hitting_time(chain.K, y) for y in range(chain.states)], axis=1)


def optimal_hitting_time(mdp: GoalMDP) -> np.ndarray:
    """d♦(s, s_g), `eqn:opt_dt`, by policy iteration; infinite where no policy reaches the goal with probability 1."""
    from scipy.sparse import csr_array, vstack

    states, goal, matrices = mdp.states, mdp.goal, mdp.matrices()
    safe, allowed = _surely_reachable(matrices, goal)
    distance = np.full(states, np.inf)
    distance[goal] = 0.0
    if safe.sum() == 1:
        return distance

    # A first policy that arrives surely: always an allowed action with a chance to come one hop nearer, of those the one best on average
    # (an action that comes nearer only by rare luck makes times too long to solve for).
    union = sum((_rows(P, ok) for P, ok in zip(matrices, allowed)), csr_array((states, states)))
    level = hops(csr_array(union.T), [goal], directed=True)
    nearer = np.stack([ok & (_least_next(P, level) < level) for P, ok in zip(matrices, allowed)])
    mean_level = np.stack([P @ np.where(safe, level, 0.0) for P in matrices])
    action = np.where(nearer, mean_level, np.inf).argmin(0)

    stacked = csr_array(vstack(matrices))
    inner = np.flatnonzero(safe & (np.arange(states) != goal))
    for _ in range(10_000):  # strict improvement below makes this finite; a handful of rounds in practice
        distance[inner] = _mean_times(stacked[action[inner] * states + inner], inner)
        finite = np.where(safe, distance, 0.0)
        Q = np.stack([np.where(ok, 1.0 + P @ finite, np.inf) for P, ok in zip(matrices, allowed)])
        better = safe & (Q.min(0) < finite - 1e-13 * (1.0 + finite))  # only beyond rounding, or equal actions would swap forever
        better[goal] = False
        if not better.any():
            return distance
        action = np.where(better, Q.argmin(0), action)
    raise UserError("policy iteration for the optimal distance doesn't settle: the MDP is too badly conditioned")


def value(chain: Chain) -> np.ndarray:
    """V^π(s) = E[γ^T], 1 at the goal (the paper's return, γ^(T−1), is V / γ)."""
    result = np.zeros(chain.states)
    result[chain.goal] = 1.0
    inner = np.flatnonzero(can_reach(chain.K, chain.goal) & (np.arange(chain.states) != chain.goal))
    if inner.size and chain.gamma > 0:
        rows = chain.K[inner]
        arrive = chain.gamma * rows[:, [chain.goal]].toarray()[:, 0]
        result[inner] = solve(_generator(rows, inner, chain.gamma), arrive)
    return result


def hitting_variance(chain: Chain) -> np.ndarray:
    """Var(T), infinite where E[T] is.

    By the law of total variance, Var(s) = E[Var(s′)] + E[(d(s′) − d(s) + 1)²]: no difference of large numbers, exactly 0 without chance.
    """
    d = hitting_time(chain)
    result = np.where(np.isfinite(d), 0.0, np.inf)
    inner = np.flatnonzero(np.isfinite(d) & (np.arange(chain.states) != chain.goal))
    if inner.size:
        rows = chain.K[inner].tocoo()
        i, j, p = rows.coords[0], rows.coords[1], rows.data
        spread = np.bincount(i, p * (d[j] - d[inner[i]] + 1.0) ** 2, minlength=inner.size)
        result[inner] = _mean_times(chain.K[inner], inner, spread, longest=d[inner].max())
    return result


def jensen_gap(chain: Chain) -> np.ndarray:
    """Δ(s) = V(s) − γ^d(s) ≥ 0 (Proposition 1)."""
    return value(chain) - chain.gamma ** hitting_time(chain)


def visitation(chain: Chain) -> np.ndarray:
    """ρ_π(s) = (1 − γ) Σ_t γ^t P(s_t = s); the goal's mass is its one visit, the rest of 1 is in s̄, which is left out."""
    result = np.zeros(chain.states)
    inner = np.flatnonzero(charged(chain))
    system = _generator(chain.K[inner], inner, chain.gamma, goal=chain.goal).T.tocsr()
    result[inner] = np.maximum(solve(system, (1.0 - chain.gamma) * chain.start[inner]), 0.0)
    return result


def charged(chain: Chain) -> np.ndarray:
    """Which states ρ_π charges: those met from a start (at γ = 0 the starts only)."""
    starts = chain.start > 0
    return starts if chain.gamma == 0 else np.isfinite(hops(chain.K, np.flatnonzero(starts), directed=True))


def hop_distance(chain: Chain) -> np.ndarray:
    """Steps to the goal over possible transitions of π's chain, each usable in both directions."""
    return hops(chain.K, [chain.goal], directed=False)


def hops(graph: Sparse, sources: np.ndarray | list[int], *, directed: bool) -> np.ndarray:
    """Number of edges from the nearest source to every state, infinite where there is no path."""
    from scipy.sparse.csgraph import dijkstra

    if not len(sources):
        return np.full(graph.shape[0], np.inf)
    return dijkstra(graph, directed=directed, indices=sources, unweighted=True, min_only=True)


def can_reach(K: Sparse, target: int) -> np.ndarray:
    """Which states reach `target` with a positive probability."""
    return np.isfinite(hops(K.T.tocsr(), [target], directed=True))


def _hitting_time(K: Sparse, target: int) -> np.ndarray:
    possible = can_reach(K, target)
    # Surely = no way, before the target, to a state from which it can't be reached. An empty row (the goal, when not the target) is one.
    onwards = _rows(K, np.arange(K.shape[0]) != target)
    sure = ~np.isfinite(hops(onwards.T.tocsr(), np.flatnonzero(~possible), directed=True))
    result = np.where(sure, 0.0, np.inf)
    inner = np.flatnonzero(sure & (np.arange(K.shape[0]) != target))
    if inner.size:
        result[inner] = _mean_times(K[inner], inner)
    return result


def _mean_times(rows: Sparse, inner: np.ndarray, cost: np.ndarray | None = None, longest: float | None = None) -> np.ndarray:
    """x = cost + Kx on states that surely leave `inner` (cost 1 unless told): the expected total cost until then.

    The condition number is about twice the longest expected time (given, or found here): beyond 1e6 plain elimination isn't trusted.
    """
    times = _try_solve(_generator(rows, inner), np.ones(inner.size) if cost is None else cost)
    longest = float(times.max()) if longest is None else longest
    if longest < (ILL_CONDITIONED if inner.size <= GTH_STATES else HOPELESS):
        return times
    if inner.size > GTH_STATES:
        raise UserError(f"expected times to the goal exceed {HOPELESS:g} steps: float64 can't resolve them with {inner.size} states")
    exits = rows.toarray()
    exits[:, inner] = 0.0
    return _eliminate(rows[:, inner].toarray(), exits.sum(1), np.ones(inner.size) if cost is None else cost)


def _try_solve(A: Sparse, b: np.ndarray) -> np.ndarray:
    """A⁻¹ b of an M-matrix and b ≥ 0; infinite throughout where rounding made that singular or negative."""
    try:
        x = solve(A, b)
    except (np.linalg.LinAlgError, RuntimeError):
        return np.full(b.size, np.inf)
    return x if x.min() >= 0 else np.full(b.size, np.inf)


def _eliminate(moves: np.ndarray, exits: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """The same solution without a single subtraction (Grassmann, Taksar and Heyman 1985): every digit holds, however rare the exit."""
    moves, exits, cost = moves.copy(), exits.copy(), cost.astype(float)
    np.fill_diagonal(moves, 0.0)
    pivots = np.zeros(cost.size)
    for k in range(cost.size - 1, -1, -1):
        pivots[k] = exits[k] + moves[k, :k].sum()
        share = moves[:k, k] / pivots[k]
        moves[:k, :k] += np.outer(share, moves[k, :k])
        moves[np.arange(k), np.arange(k)] = 0.0
        exits[:k] += share * exits[k]
        cost[:k] += share * cost[k]
    result = np.zeros(cost.size)
    for k in range(cost.size):
        result[k] = (cost[k] + moves[k, :k] @ result[:k]) / pivots[k]
    return result


def _surely_reachable(matrices: list[Sparse], goal: int) -> tuple[np.ndarray, np.ndarray]:
    """(states from which some policy surely reaches the goal, [A, S] actions that never leave those states)."""
    states = matrices[0].shape[0]
    safe = np.ones(states, bool)
    while True:
        leak = (~safe).astype(float)
        allowed = np.stack([(P @ leak == 0) & safe for P in matrices])  # P ≥ 0, so zero means no successor outside
        allowed[:, goal] = False
        union = sum((_rows(P, ok) for P, ok in zip(matrices, allowed)), _rows(matrices[0], np.zeros(states, bool)))
        reach = can_reach(union, goal)
        if (reach == safe).all():
            return safe, allowed
        safe = reach


def _rows(matrix: Sparse, keep: np.ndarray) -> Sparse:
    """`matrix` with the rows outside `keep` emptied."""
    from scipy.sparse import csr_array

    result = csr_array(
        (matrix.data * np.repeat(keep, np.diff(matrix.indptr)), matrix.indices, matrix.indptr), shape=matrix.shape, copy=True
    )
    result.eliminate_zeros()
    return result


def _least_next(P: Sparse, level: np.ndarray) -> np.ndarray:
    """min over successors s′ of level(s′); infinite for an empty row."""
    rows = np.repeat(np.arange(P.shape[0]), np.diff(P.indptr))
    least = np.full(P.shape[0], np.inf)
    np.minimum.at(least, rows, level[P.indices])
    return least


def _generator(rows: Sparse, inner: np.ndarray, gamma: float = 1.0, goal: int = -1) -> Sparse:
    """I − γK on the states `inner`, given their full rows.

    The diagonal is 1 − γ plus γ times the chance of leaving, a sum of non-negative numbers: 1 − γK(s, s) would lose a rare way out.
    """
    from scipy.sparse import csr_array, diags_array

    size, columns = inner.size, rows.shape[1]
    source = np.repeat(np.arange(size), np.diff(rows.indptr))
    moves = csr_array((rows.data * (rows.indices != inner[source]), rows.indices, rows.indptr), shape=(size, columns), copy=True)
    leave = moves.sum(1)
    leave[inner == goal] = 1.0  # the goal's one step leaves for s̄
    return csr_array(diags_array((1.0 - gamma) + gamma * leave) - gamma * moves[:, inner])


def solve(A: Sparse, b: np.ndarray) -> np.ndarray:
    """A⁻¹ b: dense where small or full, else sparse LU."""
    size = A.shape[0]
    if size <= DENSE_STATES or A.nnz > 0.05 * size * size:
        return np.linalg.solve(A.toarray(), b)
    from scipy.sparse.linalg import splu

    return splu(A.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}).solve(b)
