"""Binomial mixed model with one random intercept per seed, fitted by adaptive Gauss–Hermite quadrature (lme4's glmer, nAGQ = 15)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

NODES = 15
LARGEST_SD = 50.0  # a seed effect beyond this many log odds has run off to infinity
FloatArray = NDArray[np.floating]


class Fit(NamedTuple):
    """Maximum likelihood fit of logit p_ij = r_i + β_j with r_i ~ N(0, σ²); `cov` is the covariance of β."""

    beta: FloatArray
    cov: FloatArray
    sd: float
    loglik: float
    diverged: bool  # σ has no finite estimate: β is the last one seen, good for its order only


def _logistic(eta: NDArray) -> tuple[NDArray, NDArray]:
    """p = 1 / (1 + e^−η) and log(1 + e^η), without overflow and analytic in η, so that complex steps may pass."""
    positive = np.real(eta) > 0
    small = np.exp(np.where(positive, -eta, eta))
    return np.where(positive, 1.0, small) / (1 + small), np.where(positive, eta, 0.0) + np.log1p(small)


def log_likelihood(params: NDArray, successes: FloatArray, episodes: FloatArray, nodes: int = NODES) -> NDArray:
    """Σ_i log ∫ Π_j p_ij^s_ij (1 − p_ij)^(n_ij − s_ij) φ(u) du with logit p_ij = β_j + σu, for each row (σ, β) of `params`.

    `successes` and `episodes` are seeds × algorithms; no binomial coefficients, as for 0/1 observations. Nodes are centred at
    each seed's mode and scaled by its curvature.
    """
    sd, beta = params[:, None, :1], params[:, None, 1:]  # rows × 1 × (1 or algorithms)
    mode = np.zeros((len(params), len(successes)), params.dtype)
    curvature = np.ones_like(mode)
    limit = 2 / np.maximum(np.abs(np.real(sd[..., 0])), 2.0)  # at most two log odds a step: the logistic's flat ends make Newton overshoot
    left = 3  # two more rounds once the steps are small: quadratic convergence ends them, complex parts included
    for _ in range(200):
        p, _ = _logistic(beta + sd * mode[..., None])
        slope = (sd * (successes - episodes * p)).sum(-1) - mode
        curvature = 1 + (sd**2 * episodes * p * (1 - p)).sum(-1)
        step = slope / curvature
        size = np.abs(np.real(step))
        mode = mode + step * np.minimum(1.0, limit / np.maximum(size, limit))
        left -= bool(size.max(initial=0.0) < 1e-8)
        if left == 0:
            break
    z, weight = np.polynomial.hermite_e.hermegauss(nodes)
    u = mode[..., None] + z / np.sqrt(curvature)[..., None]  # rows × seeds × nodes
    eta = beta[..., None, :] + sd[..., None] * u[..., None]
    _, log_normaliser = _logistic(eta)
    joint = (successes[:, None, :] * eta - episodes[:, None, :] * log_normaliser).sum(-1) - u**2 / 2
    terms = joint + z**2 / 2 + np.log(weight / np.sqrt(2 * np.pi))
    top = np.real(terms).max(-1, keepdims=True)
    return (np.log(np.exp(terms - top).sum(-1)) + top[..., 0] - np.log(curvature) / 2).sum(-1)


def _gradient(params: FloatArray, successes: FloatArray, episodes: FloatArray) -> FloatArray:
    """Gradients for each row of `params` by complex steps: exact to rounding, quadrature's moving nodes included."""
    rows, size = params.shape
    shifted = params[:, None, :] + 1e-30j * np.eye(size)
    return np.imag(log_likelihood(shifted.reshape(rows * size, size), successes, episodes)).reshape(rows, size) / 1e-30


def _hessian(x: FloatArray, successes: FloatArray, episodes: FloatArray) -> FloatArray:
    """Central differences of the exact gradient."""
    h = 1e-5 * np.maximum(1.0, np.abs(x))
    up, down = _gradient(x + np.diag(h), successes, episodes), _gradient(x - np.diag(h), successes, episodes)
    hessian = (up - down) / (2 * h[:, None])
    return (hessian + hessian.T) / 2


def _climb(x0: FloatArray, successes: FloatArray, episodes: FloatArray) -> FloatArray:
    """Trust-region Newton ascent, then plain Newton steps down to rounding error."""
    found = optimize.minimize(
        lambda x: -log_likelihood(x[None], successes, episodes)[0],
        x0,
        jac=lambda x: -_gradient(x[None], successes, episodes)[0],
        hess=lambda x: -_hessian(x, successes, episodes),
        method="trust-exact",
        options={"gtol": 1e-5, "maxiter": 60},
    )
    x = np.asarray(found.x, float)
    for _ in range(5):
        hessian = _hessian(x, successes, episodes)
        if np.linalg.eigvalsh(hessian)[-1] > -1e-8:
            break
        step = np.linalg.solve(hessian, _gradient(x[None], successes, episodes)[0])
        if np.abs(step).max() > 0.1:
            break
        x = x - step
    return x


def fit(successes: FloatArray, episodes: FloatArray) -> Fit:
    """Fit counts, seeds × algorithms (a missing cell has 0 episodes); no algorithm may have all or none of its episodes successful.

    Standard errors come from the Hessian in (σ, β) jointly, lme4's default for glmer. At σ = 0 the likelihood, even in σ, has no cross
    derivatives with β, so that the covariance is the plain logistic regression's.
    """
    successes, episodes = np.asarray(successes, float), np.asarray(episodes, float)
    wins, plays = successes.sum(0), episodes.sum(0)
    if np.any(wins <= 0) or np.any(wins >= plays):
        raise ValueError("every algorithm needs at least one success and one failure")
    pooled = np.log(wins) - np.log(plays - wins)
    at_zero = float(log_likelihood(np.concatenate([[0.0], pooled])[None], successes, episodes)[0])
    # The likelihood may have a second, lower top far from the first: two starts, the higher end wins.
    ends = [_climb(np.concatenate([[sd], pooled * np.sqrt(1 + 0.35 * sd**2)]), successes, episodes) for sd in (0.4, 2.5)]
    heights = log_likelihood(np.stack(ends), successes, episodes)
    best = ends[int(np.argmax(heights))]
    loglik = float(heights.max())
    if loglik <= at_zero + 1e-9 or abs(best[0]) < 1e-5:  # the boundary
        return Fit(pooled, np.diag(1 / wins + 1 / (plays - wins)), 0.0, at_zero, False)
    information = -_hessian(best, successes, episodes)
    diverged = bool(abs(best[0]) > LARGEST_SD or np.linalg.eigvalsh(information)[0] < 1e-5)
    cov = np.full((len(pooled), len(pooled)), np.inf) if diverged else np.linalg.inv(information)[1:, 1:]
    return Fit(best[1:], cov, float("inf") if diverged else abs(float(best[0])), loglik, diverged)
