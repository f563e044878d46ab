"""What AIM's penalties really bound: the dual's objective under weaker potentials than `eqn:KRdual` allows.

`eqn:lip_mdp` asks for E|f(s) − f(s′)| ≤ 1, `eqn:f_loss` for |f(s) − f(s′)| ≤ 1 on every transition, so
w1_hop ≤ w1_eq4 ≤ w1_dual: each constraint implies the next one's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aimrl.theory.distances import charged, hop_distance, visitation
from aimrl.theory.interior import maximise_potential
from aimrl.theory.transport import SCALE, minimise, weighted

if TYPE_CHECKING:
    from aimrl.theory.mdp import Chain

HIGHS_EDGES = 2000  # above, HiGHS needs minutes where `interior.py` needs seconds


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
        f = _eq4_highs(edges, rho[inner]) if D.shape[0] <= HIGHS_EDGES else maximise_potential(D, B, rho[inner])
        f = f / max(1.0, (B @ np.abs(D @ f)).max())  # feasible to the last digit: the value is never above the true one
        potential[inner] = f
    return (weighted(rho, -potential, seen) if linked[seen].all() else float("inf")), potential


def _eq4_highs(edges: _Edges, rho: np.ndarray) -> np.ndarray:
    """Over (f, u): ±Df ≤ u, Bu ≤ 1, the latter times SCALE: HiGHS drops small coefficients."""
    from scipy.sparse import block_array, eye_array

    _, D, B = edges
    unit = eye_array(D.shape[0])
    A = block_array([[D, -unit], [-D, -unit], [None, SCALE * B]], format="csr")
    b = np.concatenate([np.zeros(2 * D.shape[0]), np.full(B.shape[0], SCALE)])
    lower = np.concatenate([np.full(rho.size, -np.inf), np.zeros(D.shape[0])])
    return minimise(np.concatenate([rho, np.zeros(D.shape[0])]), A, b, lower=lower)[: rho.size]
