"""Nonlinear least squares of simulated against measured log figures, with standard errors.

The residual of a figure is ``log simulated - log measured``; the unknowns are logarithms of constants. Figures are of
classes (TPOT, TTFT, shape), each with its own noise, found by iterated reweighting: the squared noise of a class is its
sum of squares over its degrees of freedom (its figures less their leverages), moderated towards the nominal ratio of
the classes, since few figures say little. Standard errors are those of ``(J' W J)^-1``, widened by Student's factor so
that 1.645 of them hold 90 % however few the figures are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares
from scipy.stats import t as student

from inferometer.steptime.profile import NINETY_PERCENT

Floats = npt.NDArray[np.float64]

NOMINAL_NOISE = {"tpot": 0.01, "ttft": 0.03, "shape": 0.03}
"""Shares: what repeated runs of one point scatter by; used where the figures are too few to tell."""
LEAST_NOISE = 0.05
"""Of the nominal noise: the simulator itself is no smoother."""
PRIOR_FIGURES = 2.0
"""The nominal ratio of the classes' noises weighs as much as so many figures."""
ROUNDS = 8
STEP = 2e-3
"""Of a logarithm, for the derivatives: large against the simulator's small jumps."""
COARSE_STEP = 2e-2
"""The same for the first search, that is to see past the jumps."""
ASIDE = 0.25
"""Of a logarithm: how far beside the family's values a poor fit is tried again."""
POOR = 4.0
"""Squares over the nominal noise, per degree of freedom, from which a fit is poor."""
WIDEST = np.log(30.0)
"""No constant moves further from the family's value than so many times."""


class Fit(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What was found: logarithms of the constants over their start, and how well they are known."""

    logs: Floats
    covariance: Floats
    """Of ``logs``, not widened; infinite for a constant that no figure depends on."""
    widening: Floats
    """Student's factor of each."""
    residuals: Floats
    noise: dict[str, float]
    """Standard deviation of each class."""
    freedom: float
    """Figures less constants."""

    @property
    def errors(self) -> Floats:
        """Standard error of each logarithm, widened."""
        return np.asarray(self.plain_errors * self.widening)

    @property
    def plain_errors(self) -> Floats:
        """The same without widening: what tells whether the data identify a constant."""
        return np.asarray(np.sqrt(np.diag(self.covariance)))

    @property
    def correlations(self) -> Floats:
        """Of the logarithms."""
        scale = self.plain_errors
        with np.errstate(invalid="ignore"):  # an infinite variance over itself, on the diagonal
            return np.asarray(self.covariance / np.outer(scale, scale))


def fit(residuals: Callable[[Floats], Floats], unknowns: int, classes: Sequence[str]) -> Fit:
    """Minimise the weighted squares of ``residuals(logs)``, reweighting until the noise of each class is steady."""
    names = np.array(classes)
    noise = {name: NOMINAL_NOISE[name] for name in dict.fromkeys(classes)}
    logs = _start(residuals, unknowns, _each(noise, names))
    for _ in range(ROUNDS):
        logs, left, jacobian = _solve(residuals, logs, _each(noise, names), STEP)
        found = _noise(left, jacobian, names, noise)
        steady = all(abs(np.log(found[name] / noise[name])) < 0.02 for name in noise)
        noise = found
        if steady:
            break
    normal = _normal(jacobian, _each(noise, names))
    covariance = np.asarray(np.linalg.pinv(normal), dtype=np.float64)
    return Fit(
        logs=logs,
        covariance=covariance + np.diag(np.where(np.diag(normal) > 0, 0.0, np.inf)),
        widening=_widening(jacobian, covariance, names, noise),
        residuals=left,
        noise=noise,
        freedom=float(len(left) - unknowns),
    )


def _each(noise: dict[str, float], names: npt.NDArray[np.str_]) -> Floats:
    return np.array([noise[str(name)] for name in names])


def _start(residuals: Callable[[Floats], Floats], unknowns: int, sigma: Floats) -> Floats:
    """Where to fit from: the family's values, and where that ends in a poor fit the best of some beside them.

    A queue's waits jump as constants move, so that a fit may stop at the foot of a jump.
    """
    best: tuple[float, Floats] = (np.inf, np.zeros(unknowns))
    for start in (np.zeros(unknowns), *(sign * ASIDE * row for row in np.eye(unknowns) for sign in (1, -1))):
        logs, left, _ = _solve(residuals, start, sigma, COARSE_STEP)
        best = min(best, (float(((left / sigma) ** 2).sum()), logs), key=lambda each: each[0])
        if best[0] <= POOR * max(len(left) - unknowns, 1):
            break
    return best[1]


def _solve(
    residuals: Callable[[Floats], Floats], start: Floats, sigma: Floats, size: float
) -> tuple[Floats, Floats, Floats]:
    """The best logarithms under these noises, the residuals and their derivatives there, by steps of this size."""

    def slopes(x: Floats) -> Floats:
        steps = size * np.eye(len(x))
        columns = [(residuals(x + step) - residuals(x - step)) / (2 * size) for step in steps]
        return np.asarray(np.stack(columns, axis=1))

    def weighted(x: Floats) -> Floats:
        return np.asarray(residuals(x) / sigma)

    def weighted_slopes(x: Floats) -> Floats:
        return np.asarray(slopes(x) / sigma[:, None])

    limits = (np.full(len(start), -WIDEST), np.full(len(start), WIDEST))
    found = least_squares(weighted, start, jac=weighted_slopes, bounds=limits, xtol=1e-5, ftol=1e-7, max_nfev=40)
    return np.asarray(found.x), np.asarray(found.fun * sigma), np.asarray(found.jac * sigma[:, None])


def _normal(jacobian: Floats, sigma: Floats) -> Floats:
    scaled = jacobian / sigma[:, None]
    return np.asarray(scaled.T @ scaled)


def _leverages(jacobian: Floats, sigma: Floats) -> Floats:
    scaled = jacobian / sigma[:, None]
    return np.asarray(np.einsum("ij,jk,ik->i", scaled, np.linalg.pinv(scaled.T @ scaled), scaled))


def _noise(left: Floats, jacobian: Floats, names: npt.NDArray[np.str_], noise: dict[str, float]) -> dict[str, float]:
    """Each class's noise: its own scatter, moderated by the scatter of all in units of the nominal noises."""
    nominal = _each(NOMINAL_NOISE, names)
    free = len(left) - jacobian.shape[1]
    if free < 1:
        return {name: NOMINAL_NOISE[name] for name in noise}
    lever = _leverages(jacobian, _each(noise, names))
    common = max(float(((left / nominal) ** 2).sum() / free), LEAST_NOISE**2)
    found = {}
    for name in noise:
        mine = names == name
        freedom = max(float(mine.sum() - lever[mine].sum()), 0.0)
        scatter = float((left[mine] ** 2).sum() + PRIOR_FIGURES * common * NOMINAL_NOISE[name] ** 2)
        found[name] = float(np.sqrt(scatter / (freedom + PRIOR_FIGURES)))
    return found


def _widening(jacobian: Floats, covariance: Floats, names: npt.NDArray[np.str_], noise: dict[str, float]) -> Floats:
    """Student's 95 % point over 1.645, with each constant's degrees of freedom by Welch and Satterthwaite."""
    free = len(names) - jacobian.shape[1]
    if free < 1:
        return np.ones(jacobian.shape[1])
    sigma = _each(noise, names)
    gain = covariance @ (jacobian / sigma[:, None] ** 2).T
    parts = (gain * sigma) ** 2
    lever = _leverages(jacobian, sigma)
    total = parts.sum(axis=1)
    scatter = np.zeros_like(total)
    for name in noise:
        mine = names == name
        own = max(float(mine.sum() - lever[mine].sum()), 0.0) + PRIOR_FIGURES
        scatter += parts[:, mine].sum(axis=1) ** 2 / min(own, free)
    freedom = np.clip(np.divide(total**2, scatter, out=np.full_like(total, free), where=scatter > 0), 1.0, free)
    return np.asarray(student.ppf(0.95, freedom) / NINETY_PERCENT)
