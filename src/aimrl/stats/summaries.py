"""Aggregates over runs: interquartile mean, bootstrap intervals, probability of improvement, area under the curve, steps to a level.

The unit is the run: scores come one a seed, by environment, and are resampled within their environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

FloatArray = NDArray[np.float64]


def iqm(scores: ArrayLike, axis: int | None = None) -> Any:
    """Interquartile mean: the mean without the lowest and highest quarter."""
    values = np.asarray(scores, float)
    return stats.trim_mean(values.ravel() if axis is None else values, 0.25, axis=axis or 0)


def pooled_iqm(*samples: FloatArray, axis: int = -1) -> Any:
    """IQM over the runs of all environments together."""
    return iqm(np.concatenate(samples, axis=axis), axis=axis)


def bootstrap_interval(
    samples: Sequence[ArrayLike],
    rng: np.random.Generator,
    statistic: Callable[..., Any] = pooled_iqm,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> tuple[Any, Any]:
    """Percentile interval of `statistic(*samples, axis=…)`, seeds (axis 0) resampled within each sample: stratified by environment.

    Samples of shape seeds × steps give an interval a step. Where a sample has fewer than two seeds there is no interval: NaN.
    """
    arrays = [np.asarray(s, float) for s in samples]
    if min(len(a) for a in arrays) < 2:
        gap = np.full(arrays[0].shape[1:], np.nan)[()]
        return gap, gap
    found = stats.bootstrap(
        tuple(arrays), statistic, n_resamples=resamples, vectorized=True, axis=0, confidence_level=confidence, method="percentile", rng=rng
    ).confidence_interval
    return found.low, found.high


def _improvement(x: FloatArray, y: FloatArray) -> Any:
    """P(X > Y) + P(X = Y) / 2 over the last axes."""
    difference = x[..., :, None] - y[..., None, :]
    return ((difference > 0) + 0.5 * (difference == 0)).mean((-1, -2))


def probability_of_improvement(xs: Sequence[ArrayLike], ys: Sequence[ArrayLike]) -> float:
    """Chance that a run of x scores above a run of y in the same environment (ties half), averaged over environments."""
    return float(np.mean([_improvement(np.asarray(x, float), np.asarray(y, float)) for x, y in zip(xs, ys, strict=True)]))


def improvement_interval(
    xs: Sequence[ArrayLike], ys: Sequence[ArrayLike], rng: np.random.Generator, confidence: float = 0.95, resamples: int = 2000
) -> tuple[float, float]:
    """Bootstrap interval of the probability of improvement."""

    def statistic(*samples: FloatArray, axis: int = -1) -> Any:
        last = [np.moveaxis(s, axis, -1) for s in samples]
        half = len(last) // 2
        return np.mean([_improvement(x, y) for x, y in zip(last[:half], last[half:])], axis=0)

    low, high = bootstrap_interval([*xs, *ys], rng, statistic, confidence, resamples)
    return float(low), float(high)


def area_under_curve(steps: ArrayLike, success: ArrayLike, until: float | None = None) -> float:
    """Mean success over training, by trapezoids from the first evaluation to the last (or to `until`): 1 is success from the start."""
    x, y = np.asarray(steps, float), np.asarray(success, float)
    if until is not None:
        stop = min(max(until, x[0]), x[-1])
        y = np.append(y[x < stop], np.interp(stop, x, y))
        x = np.append(x[x < stop], stop)
    return float(np.trapezoid(y, x) / (x[-1] - x[0])) if len(x) > 1 else float(y[0])


def steps_to(steps: ArrayLike, success: ArrayLike, level: float = 0.9) -> float:
    """First evaluated step with at least this success rate; infinite if there is none."""
    reached = np.flatnonzero(np.asarray(success, float) >= level)
    return float(np.asarray(steps, float)[reached[0]]) if len(reached) else float("inf")


def steps_to_summary(curves: Sequence[tuple[ArrayLike, ArrayLike]], level: float = 0.9) -> dict[str, Any]:
    """Steps to `level` of each run and their median (infinite when less than half of the runs get there)."""
    each = [steps_to(steps, success, level) for steps, success in curves]
    return {"runs": each, "median": float(np.median(each)), "reached": sum(np.isfinite(each).tolist()), "level": level}
