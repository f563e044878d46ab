"""Finite goal MDPs, exactly: step distances, value, visitation, W1 and what AIM's penalties bound. See docs/theory.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from aimrl.theory.bounds import eq4_potential, w1_eq4, w1_hop
from aimrl.theory.distances import (
    all_hitting_times,
    hitting_time,
    hitting_variance,
    hop_distance,
    jensen_gap,
    optimal_hitting_time,
    value,
    visitation,
)
from aimrl.theory.mdp import Chain, GoalMDP, check_policy, induced_chain, load_npz, load_policy, uniform_policy
from aimrl.theory.transport import w1_closed_form, w1_coupling, w1_dual, w1_primal

__all__ = [
    "Chain",
    "GoalMDP",
    "all_hitting_times",
    "analyse",
    "check_policy",
    "eq4_potential",
    "hitting_time",
    "hitting_variance",
    "hop_distance",
    "induced_chain",
    "jensen_gap",
    "load_npz",
    "load_policy",
    "optimal_hitting_time",
    "to_json",
    "uniform_policy",
    "value",
    "visitation",
    "w1_closed_form",
    "w1_coupling",
    "w1_dual",
    "w1_eq4",
    "w1_hop",
    "w1_primal",
]


def analyse(mdp: GoalMDP, policy: np.ndarray) -> dict[str, np.ndarray | float]:
    """Every number of `aimrl theory`, under the names of its JSON."""
    chain = induced_chain(mdp, policy)
    dual, potential = w1_dual(chain)
    return {
        "d": hitting_time(chain),
        "d_opt": optimal_hitting_time(mdp),
        "V": value(chain),
        "var_T": hitting_variance(chain),
        "jensen": jensen_gap(chain),
        "rho": visitation(chain),
        "potential": potential,
        "w1_primal": w1_primal(chain),
        "w1_dual": dual,
        "w1_closed_form": w1_closed_form(chain),
        "w1_eq4": w1_eq4(chain),
        "w1_hop": w1_hop(chain),
    }


def to_json(result: dict[str, np.ndarray | float]) -> dict[str, Any]:
    """`result` as plain lists and numbers, infinities as the strings "inf" and "-inf" (JSON has none)."""

    def plain(x: float) -> float | str:
        return float(x) if np.isfinite(x) else str(float(x))

    return {key: [plain(x) for x in item] if isinstance(item, np.ndarray) else plain(item) for key, item in result.items()}
