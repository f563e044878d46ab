"""The paper's appendix: one mixed model an environment, all pairwise contrasts, Holm inside it, Bonferroni across environments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from aimrl.stats.data import Counts, Table
from aimrl.stats.glmm import Fit, fit

LEVEL = 0.05
SMALLEST = float(np.finfo(float).tiny)  # what a p-value too small for a float is reported as; decisions are made on its logarithm


def log_p_normal(z: float) -> float:
    """log of 2 P(Z > |z|): finite where the p-value itself underflows."""
    return float(min(0.0, np.log(2) + stats.norm.logsf(abs(z))))


def holm(log_p: Sequence[float]) -> NDArray[np.float64]:
    """Holm's step-down adjustment of log p-values: the k-th smallest of m is multiplied by m − k + 1, made monotone, at most 1."""
    values = np.asarray(log_p, float)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(0.0, np.maximum.accumulate(values[order] + np.log(np.arange(len(values), 0, -1))))
    return adjusted


def p_value(log_p: float) -> float:
    return max(float(np.exp(log_p)), SMALLEST)


def separated(counts: Counts) -> dict[str, float]:
    """Algorithms whose episodes all succeed (+∞ log odds) or all fail (−∞)."""
    wins, plays = counts.successes.sum(0), counts.episodes.sum(0)
    return {name: float(np.inf if w else -np.inf) for name, w, n in zip(counts.algorithms, wins, plays) if w in (0, n)}


def _fit_mixed(successes: NDArray, episodes: NDArray) -> Fit | None:
    """Fit the columns that have a maximum; the others' likelihood tends to 1 and adds nothing. None if no column is left."""
    wins, plays = successes.sum(0), episodes.sum(0)
    kept = (wins > 0) & (wins < plays)
    return fit(successes[:, kept], episodes[:, kept]) if kept.any() else None


def _merged_loglik(counts: Counts, i: int, j: int) -> float:
    """Log-likelihood under H₀: β_i = β_j, the two columns added up."""
    columns = [np.delete(x, j, axis=1) for x in (counts.successes, counts.episodes)]
    for merged, x in zip(columns, (counts.successes, counts.episodes)):
        merged[:, i] += x[:, j]  # combinations() gives i < j, so that deleting j does not move i
    model = _fit_mixed(*columns)
    return model.loglik if model else 0.0


def _contrast(counts: Counts, model: Fit | None, i: int, j: int) -> dict[str, Any]:
    """β_i − β_j: Wald's test from the fit, or a likelihood-ratio test where an estimate is infinite."""
    infinite = separated(counts)
    a, b = counts.algorithms[i], counts.algorithms[j]
    finite = [name for name in counts.algorithms if name not in infinite]
    if model and not model.diverged and a in finite and b in finite:
        c = np.zeros(len(finite))
        c[finite.index(a)], c[finite.index(b)] = 1.0, -1.0
        estimate, se = float(c @ model.beta), float(np.sqrt(c @ model.cov @ c))
        return {"a": a, "b": b, "estimate": estimate, "se": se, "z": estimate / se, "log_p": log_p_normal(estimate / se), "test": "wald"}
    beta = {name: infinite.get(name, 0.0) for name in counts.algorithms}
    if model:
        beta |= dict(zip(finite, model.beta.tolist()))
    # Two algorithms that both always succeed are equally likely at any difference: 0 is reported.
    estimate = 0.0 if beta[a] == beta[b] else beta[a] - beta[b]
    ratio = max(0.0, 2 * ((model.loglik if model else 0.0) - _merged_loglik(counts, i, j)))
    root = float(np.sqrt(ratio))  # the root of a χ²₁ is a normal's size
    tested = {"estimate": estimate, "se": float("inf"), "z": float(np.sign(estimate)) * root, "log_p": log_p_normal(root)}
    return {"a": a, "b": b, **tested, "test": "likelihood ratio"}


def _over_runs(counts: Counts, i: int, j: int) -> dict[str, Any]:
    """The same difference with one number a run: shares of successes, paired by seed, Student's t.

    The model gives all algorithms of a seed one effect, so what a run owes to its own luck counts as the algorithm's: with few seeds its
    p-values are too small. This is the check on them.
    """
    both = (counts.episodes[:, [i, j]] > 0).all(1)
    shares = counts.successes[both][:, [i, j]] / counts.episodes[both][:, [i, j]]
    gaps = shares[:, 0] - shares[:, 1]
    n, p = len(gaps), None
    if n > 1 and np.ptp(gaps) > 1e-9:  # else there is no spread to test against
        p = float(2 * stats.t.sf(abs(gaps.mean()) / (gaps.std(ddof=1) / n**0.5), n - 1))
    return {"runs": n, "difference": float(gaps.mean()) if n else None, "p_runs": p}


def _problem(counts: Counts, model: Fit | None) -> str | None:
    alone = [name for name, n in zip(counts.algorithms, (counts.episodes > 0).sum(0)) if n == 1]
    lines = []
    if len(counts.algorithms) == 1:
        lines.append(f"only one algorithm ({counts.algorithms[0]}): nothing to compare")
    if alone:
        lines.append(f"one seed only for {', '.join(alone)}: its variation between seeds is taken from the others")
    if model and model.diverged:
        lines.append("no finite seed effect (whole seeds succeed or fail): likelihood-ratio tests decide, read them with care")
    return "; ".join(lines) or None


def analyse_env(counts: Counts) -> dict[str, Any]:
    """One environment: fit, contrasts with Holm's adjustment, no Bonferroni yet."""
    rates = {
        name: {"successes": int(w), "episodes": int(n), "seeds": int(k), "log_odds": None, "se": None}
        for name, w, n, k in zip(counts.algorithms, counts.successes.sum(0), counts.episodes.sum(0), (counts.episodes > 0).sum(0))
    }
    entry: dict[str, Any] = {"contrasts": [], "sd_seed": None, "loglik": None, "separated": list(separated(counts)), "problem": None}
    entry |= {"algorithms": rates, "seeds": len(counts.seeds), "step": counts.step}
    if (counts.episodes > 0).sum(0).max() < 2:  # each algorithm's
        return entry | {"problem": f"one seed only ({', '.join(counts.seeds)}): the variation between seeds is unknown, nothing is tested"}
    model = _fit_mixed(counts.successes, counts.episodes)
    for name, sign in separated(counts).items():
        rates[name] |= {"log_odds": sign, "se": float("inf")}
    if model:
        finite = [name for name in counts.algorithms if name not in entry["separated"]]
        for name, beta, variance in zip(finite, model.beta, np.diag(model.cov)):
            rates[name] |= {"log_odds": float(beta), "se": float(np.sqrt(variance))}
    # With every algorithm separated any σ fits equally well, perfectly: 0 is reported.
    entry |= {"sd_seed": model.sd if model else 0.0, "loglik": model.loglik if model else 0.0, "problem": _problem(counts, model)}
    pairs = combinations(range(len(counts.algorithms)), 2)
    contrasts = [_contrast(counts, model, i, j) | _over_runs(counts, i, j) for i, j in pairs]
    for contrast, adjusted in zip(contrasts, holm([c["log_p"] for c in contrasts])):
        contrast["log_p_holm"] = float(adjusted)
    return entry | {"contrasts": contrasts}


def analyse(table: Table, level: float = LEVEL) -> dict[str, dict[str, Any]]:
    """The result of `aimrl stats`: by environment the contrasts (each unordered pair once), `sd_seed`, `loglik` and `separated`.

    Bonferroni's factor is the number of environments in which something is tested.
    """
    result = {env: analyse_env(counts) for env, counts in table.envs.items()}
    factor = sum(bool(entry["contrasts"]) for entry in result.values())
    for entry in result.values():
        entry["environments"] = factor
        for c in entry["contrasts"]:
            log_final = min(0.0, c["log_p_holm"] + float(np.log(factor)))
            log_p, log_holm = c.pop("log_p"), c.pop("log_p_holm")
            c |= {"p": p_value(log_p), "p_holm": p_value(log_holm), "p_final": p_value(log_final)}
            c |= {"significant": bool(log_final < np.log(level)), "log10_p_final": log_final / float(np.log(10))}
    return result
