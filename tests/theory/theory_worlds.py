"""Random goal MDPs of every kind the theory must hold for, from explicit seeds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from aimrl.theory import GoalMDP

KINDS = ("deterministic", "stochastic", "sparse", "self-loops", "unreachable", "start is goal", "several starts")
GAMMAS = (0.0, 0.1, 0.5, 0.9, 0.99, 0.999)


def random_mdp(rng: np.random.Generator, kind: str, gamma: float, states: int = 6, actions: int = 2) -> GoalMDP:
    """One MDP of `kind`; the goal is any state, its rows are garbage on purpose."""
    goal = int(rng.integers(states))
    if kind == "deterministic":
        P = np.eye(states)[rng.integers(states, size=(states, actions))]
    elif kind == "sparse":
        P = rng.dirichlet(np.full(states, 0.1), size=(states, actions)).round(3)
        P[..., 0] += 1.0 - P.sum(-1)
        P = np.abs(P)
        P /= P.sum(-1, keepdims=True)
    else:
        P = rng.dirichlet(np.ones(states), size=(states, actions))
    if kind == "self-loops":
        P = 0.1 * P + 0.9 * np.eye(states)[:, None]
    if kind == "unreachable":  # one state is a trap, and another one falls into it with some probability
        trap, victim = [s for s in range(states) if s != goal][:2]
        P = np.eye(states)[rng.integers(states, size=(states, actions))] if rng.random() < 0.5 else P
        P[trap] = np.eye(states)[trap]
        P[victim, 0] = 0.5 * P[victim, 0] + 0.5 * np.eye(states)[trap]
    P[goal] = np.nan
    start = np.eye(states)[goal if kind == "start is goal" else int(rng.integers(states))]
    if kind == "several starts":
        start = rng.dirichlet(np.ones(states))
    return GoalMDP(P, start, goal, gamma)


def random_policy(rng: np.random.Generator, mdp: GoalMDP) -> np.ndarray:
    """A deterministic policy one time in three, else a random one."""
    if rng.random() < 1 / 3:
        return np.eye(mdp.actions)[rng.integers(mdp.actions, size=mdp.states)]
    return rng.dirichlet(np.ones(mdp.actions), size=mdp.states)


def worlds(count: int, seed: int) -> Iterator[tuple[GoalMDP, np.ndarray]]:
    """`count` MDPs with policies, going round every kind and discount."""
    rng = np.random.default_rng(seed)
    for (kind, gamma), _ in zip(itertools.cycle(itertools.product(KINDS, GAMMAS)), range(count)):
        mdp = random_mdp(rng, kind, gamma, states=int(rng.integers(3, 8)), actions=int(rng.integers(1, 4)))
        yield mdp, random_policy(rng, mdp)


def deterministic_policies(mdp: GoalMDP) -> Iterator[np.ndarray]:
    """Every deterministic policy (the goal's action doesn't matter and is fixed)."""
    for choice in itertools.product(*(range(mdp.actions) if s != mdp.goal else (0,) for s in range(mdp.states))):
        yield np.eye(mdp.actions)[list(choice)]


def random_walk(width: int, height: int, gamma: float = 0.99) -> GoalMDP:
    """An open grid with four moves as sparse matrices, goal in the middle, start in a corner."""
    from scipy.sparse import csr_array

    states = width * height
    x, y = np.arange(states) % width, np.arange(states) // width
    moves = []
    for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        to = np.clip(x + dx, 0, width - 1) + width * np.clip(y + dy, 0, height - 1)
        moves.append(csr_array((np.ones(states), (np.arange(states), to)), shape=(states, states)))
    return GoalMDP(moves, np.eye(1, states)[0], width // 2 + width * (height // 2), gamma)
