"""Finite goal MDPs with the paper's absorbing state, the chain a policy makes of one, and how both are read from files."""

from __future__ import annotations

import warnings
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aimrl.types import UserError

if TYPE_CHECKING:
    Matrices = np.ndarray | Sequence[Any]

Sparse = Any  # a scipy.sparse.csr_array; SciPy carries no types

ROW_TOLERANCE = (
    1e-6  # rows may miss 1 by float32 rounding; they are then rescaled, so that float64 results are exact for the rescaled chain
)
MAX_ENTRIES = 2**25  # of one array in a file, 256 MiB of float64 (checking takes three times that): a hostile header asks for terabytes
NPZ_KEYS = ("P", "start", "goal", "gamma", "policy")


@dataclass(frozen=True, eq=False)
class GoalMDP:
    """⟨S, A, P, ρ₀, γ⟩ with one goal. The goal leads to the absorbing state s̄, so its rows of P are ignored and may hold anything.

    `P` is an array [S, A, S] or a sequence of A sparse matrices [S, S]. Merge several goals into one state before coming here.
    """

    P: Matrices
    start: np.ndarray
    goal: int
    gamma: float

    def __post_init__(self) -> None:
        goal, gamma = _goal(self.goal), _gamma(self.gamma)
        start = _numbers(self.start, "start", 1)
        P = _dense(self.P, goal) if isinstance(self.P, np.ndarray) else _sparse(self.P, goal)
        states = P.shape[0] if isinstance(P, np.ndarray) else P[0].shape[0]
        if not 0 <= goal < states:
            raise UserError(f"goal {goal} is not one of the {states} states (0 to {states - 1})")
        if start.shape != (states,):
            raise UserError(f"start has shape {start.shape}, but P has {states} states: it must be ({states},)")
        for name, value in (("P", P), ("start", _stochastic(start, "start")), ("goal", goal), ("gamma", gamma)):
            object.__setattr__(self, name, value)

    @property
    def states(self) -> int:
        return self.start.shape[0]

    @property
    def actions(self) -> int:
        return self.P.shape[1] if isinstance(self.P, np.ndarray) else len(self.P)

    def matrices(self) -> list[Sparse]:
        """One sparse matrix [S, S] an action; the goal's row is empty (its mass has gone to s̄, which is left out)."""
        from scipy.sparse import csr_array

        return [csr_array(self.P[:, a]) for a in range(self.actions)] if isinstance(self.P, np.ndarray) else list(self.P)


@dataclass(frozen=True, eq=False)
class Chain:
    """The Markov chain of one policy: K(s, s′) = Σ_a π(a|s) P(s′|s, a), the goal's row empty (it leads to s̄)."""

    K: Sparse
    start: np.ndarray
    goal: int
    gamma: float

    @property
    def states(self) -> int:
        return self.start.shape[0]


def induced_chain(mdp: GoalMDP, policy: np.ndarray) -> Chain:
    """K of `policy` [S, A] in `mdp`."""
    from scipy.sparse import csr_array, diags_array

    policy = check_policy(mdp, policy)
    if isinstance(mdp.P, np.ndarray):
        K = csr_array(np.einsum("sa,sat->st", policy, mdp.P))
    else:
        K = csr_array((mdp.states, mdp.states))
        for a, P_a in enumerate(mdp.P):
            K = K + diags_array(policy[:, a]) @ P_a
    K = csr_array(K)
    K.eliminate_zeros()  # csgraph would take a stored zero for an edge
    return Chain(K, mdp.start, mdp.goal, mdp.gamma)


def uniform_policy(mdp: GoalMDP) -> np.ndarray:
    """π(a|s) = 1 / A."""
    return np.full((mdp.states, mdp.actions), 1.0 / mdp.actions)


def check_policy(mdp: GoalMDP, policy: np.ndarray) -> np.ndarray:
    """`policy` as float64 rows that sum to 1; the goal's row is ignored, no action is taken there."""
    policy = _numbers(policy, "policy", 2)
    if policy.shape != (mdp.states, mdp.actions):
        raise UserError(f"policy has shape {policy.shape}, but the MDP has {mdp.states} states and {mdp.actions} actions")
    policy = policy.copy()
    policy[mdp.goal] = 1.0 / mdp.actions
    return _stochastic(policy, "policy")


def load_npz(path: str | Path, *, gamma: float | None = None, policy: np.ndarray | None = None) -> tuple[GoalMDP, np.ndarray]:
    """(mdp, policy) from an .npz with `P[S,A,S]`, `start[S]`, `goal`, `gamma`, `policy[S,A]`; arguments replace the file's own."""
    arrays = _read_npz(Path(path))
    if gamma is not None:
        arrays["gamma"] = np.asarray(gamma)
    if policy is not None:
        arrays["policy"] = policy
    missing = [key for key in NPZ_KEYS if key not in arrays]
    if missing:
        raise UserError(f"{path}: no array named {', '.join(missing)} in the file (it needs {', '.join(NPZ_KEYS)})")
    try:
        mdp = GoalMDP(arrays["P"], arrays["start"], _goal(arrays["goal"]), _gamma(arrays["gamma"]))
        return mdp, check_policy(mdp, arrays["policy"])
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def load_policy(path: str | Path) -> np.ndarray:
    """A policy [S, A] from an .npy file."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _read_npy(file, "policy")
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise UserError(f"{path}: not a readable .npy file ({_first_line(error)})") from None


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                key = name.removesuffix(".npy")
                if key in arrays:
                    raise UserError(f"{key} is there twice")
                if key in NPZ_KEYS:  # anything else in the file is none of our business, and isn't read
                    with archive.open(name) as file:
                        arrays[key] = _read_npy(file, key)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: not a readable .npz file ({_first_line(error)})") from None
    return arrays


def _read_npy(file: Any, name: str) -> np.ndarray:
    """One array, after its header was found to be of numbers and of a sane size (so that nothing is allocated for a lie)."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of Python 2
            shape, _, dtype = read_header(file)
    except Exception as error:  # NumPy lets its tokenizer's, its parser's and its dtypes' own errors through
        raise ValueError(f"damaged header: {type(error).__name__}") from None
    if dtype.kind not in "fiub":
        raise UserError(f"{name} holds {dtype}, not real numbers")
    if np.prod([float(n) for n in shape]) > MAX_ENTRIES:
        raise UserError(f"{name} has shape {shape}: more than {MAX_ENTRIES:,} numbers")
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.lib.format.read_array(file, allow_pickle=False)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _numbers(array: Any, name: str, ndim: int) -> np.ndarray:
    try:
        array = np.asarray(array)
    except ValueError:
        raise UserError(f"{name} is ragged, not an array") from None
    if array.dtype.kind not in "fiub":
        raise UserError(f"{name} holds {array.dtype}, not real numbers")
    if array.ndim != ndim or array.size == 0:
        raise UserError(f"{name} has shape {array.shape}: it must have {ndim} axes, none of them empty")
    return array.astype(np.float64, copy=False)


def _scalar(value: Any, name: str, kinds: str, what: str) -> Any:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in kinds:
        raise UserError(f"{name} must be {what}, not {array.dtype} of shape {array.shape}")
    return array.reshape(()).item()


def _goal(value: Any) -> int:
    return int(_scalar(value, "goal", "iu", "one state index"))


def _gamma(value: Any) -> float:
    gamma = float(_scalar(value, "gamma", "fiu", "one number"))
    if not 0.0 <= gamma < 1.0:  # also refuses NaN
        raise UserError(f"gamma is {gamma:g}: it must be at least 0 and below 1")
    return gamma


def _stochastic(rows: np.ndarray, name: str) -> np.ndarray:
    """`rows` scaled to sum to exactly 1, or a UserError that names the first bad one."""
    sums = rows.sum(-1)
    _check_rows(np.asarray(np.isfinite(rows).all(-1)), np.asarray((rows >= 0).all(-1)), sums, name)
    return rows / sums[..., None]


def _check_rows(finite: np.ndarray, positive: np.ndarray, sums: np.ndarray, name: str) -> None:
    for ok, problem in ((finite, "holds NaN or infinity"), (positive, "holds a negative probability")):
        if not ok.all():
            raise UserError(f"{_row(name, ok)} {problem}")
    ok = np.abs(sums - 1) <= ROW_TOLERANCE
    if not ok.all():
        raise UserError(f"{_row(name, ok)} sums to {sums[~ok].flat[0]:.9g}, not 1")


def _row(name: str, ok: np.ndarray) -> str:
    index = np.argwhere(~ok)[0]
    return f"{name}[{', '.join(map(str, index))}]" if index.size else name


def _dense(P: np.ndarray, goal: int) -> np.ndarray:
    P = _numbers(P, "P", 3)
    if P.shape[0] != P.shape[2]:
        raise UserError(f"P has shape {P.shape}: it must be [S, A, S], from state and action to next state")
    P = P.copy()
    if 0 <= goal < P.shape[0]:  # out of range is told by the caller, with the number of states
        P[goal] = 1.0 / P.shape[0]
    P = _stochastic(P, "P")
    if 0 <= goal < P.shape[0]:
        P[goal] = 0.0
    return P


def _sparse(P: Sequence[Any], goal: int) -> tuple[Sparse, ...]:
    from scipy.sparse import csr_array, diags_array, issparse

    if not isinstance(P, Sequence) or not P or not all(issparse(p) for p in P):
        raise UserError("P must be an array [S, A, S] or a sequence of sparse matrices [S, S], one an action")
    shape = P[0].shape
    if shape[0] != shape[1] or any(p.shape != shape for p in P):
        raise UserError(f"P's matrices have shapes {[p.shape for p in P]}: all must be [S, S]")
    matrices = []
    for a, matrix in enumerate(P):
        p = csr_array(matrix, dtype=np.float64, copy=True)
        rows = np.repeat(np.arange(shape[0]), np.diff(p.indptr))
        p.data[rows == goal] = 0.0
        others = np.arange(shape[0]) != goal
        finite, positive = np.ones(shape[0], bool), np.ones(shape[0], bool)
        finite[rows[~np.isfinite(p.data)]] = False
        positive[rows[p.data < 0]] = False
        sums = np.where(others, p.sum(1), 1.0)
        _check_rows(finite, positive, sums, f"P[action {a}], row")
        p = csr_array(diags_array(1.0 / sums) @ p)
        p.sum_duplicates()
        p.eliminate_zeros()
        matrices.append(p)
    return tuple(matrices)
