"""Statements of the paper, and what decides them: means over seeds with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# What the words of the paper are taken to mean.
REACHES, CONFIDENT, UNABLE = 0.5, 0.9, 0.1  # mean success: "reaches the goal", "confidently", "unable" (at most)
CLOSE = 0.1  # two methods are alike when their mean success over training differs by less
LEARNED = 0.15  # below this best success nothing has been learned that could be compared
MIN_SEEDS = 3  # a bootstrap over fewer says nothing


@dataclass(frozen=True)
class Verdict:
    """A statement of the paper, whether the data bear it out (None: they can't tell), and the numbers."""

    claim: str
    holds: bool | None
    evidence: str
    exact: bool = False  # computed, not sampled: decided at every budget


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, or a difference of two, with its bootstrap interval; without enough seeds there is none."""

    mid: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        if math.isnan(self.mid):
            return "no data"
        return (
            f"{self.mid:.2f} ("
            + ("" if math.isnan(self.low) else f"95 % {self.low:.2f} … {self.high:.2f}, ")
            + f"{many(self.seeds, 'seed')})"
        )

    def above(self, bound: float) -> bool | None:
        return True if self.low > bound else False if self.high <= bound else None

    def below(self, bound: float) -> bool | None:
        return True if self.high < bound else False if self.low >= bound else None

    def within(self, margin: float) -> bool | None:
        return True if self.low > -margin and self.high < margin else False if self.low >= margin or self.high <= -margin else None


def interval(x: Sequence[float] | np.ndarray | None, minus: Sequence[float] | np.ndarray | None = ()) -> Interval:
    """Mean of x, less the mean of `minus` where given; seeds are resampled, episodes are not."""
    from aimrl.stats import bootstrap_interval

    samples = [np.asarray(s, float) for s in (x, minus) if s is not None and len(s)]
    if x is None or not len(x) or minus is None:
        return Interval(math.nan, math.nan, math.nan, 0)

    def mean(first: np.ndarray, *second: np.ndarray, axis: int = 0) -> Any:
        return first.mean(axis) - sum(s.mean(axis) for s in second)

    mid, least = float(mean(*samples)), min(map(len, samples))
    low, high = bootstrap_interval(samples, np.random.default_rng(0), mean) if least >= MIN_SEEDS else (math.nan, math.nan)
    return Interval(mid, float(low), float(high), least)


def many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def at_least(n: int, verdicts: Sequence[bool | None]) -> bool | None:
    """Whether n of the verdicts are true, as far as that is known."""
    yes, unknown = sum(v is True for v in verdicts), sum(v is None for v in verdicts)
    return True if yes >= n else False if yes + unknown < n else None


def every(verdicts: Sequence[bool | None]) -> bool | None:
    return at_least(len(verdicts), verdicts)


def negate(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict
