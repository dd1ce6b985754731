"""The statistics of verdicts: exact binomial tests and order statistics, nothing that assumes a shape.

"p99 ≤ T" is the same question as "at most 1 % of requests are slower than T". So every latency and
availability claim becomes a number of violations `k` among `n` requests against a share `q`, and is
decided by one-sided Clopper–Pearson bounds: pass, fail, or not enough evidence either way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from drills.lang import t
from drills.model import Verdict

CONFIDENCE = 0.95
_RANK_SLACK = 1e-9  # 0.07 * 100 is 7.000000000000001 in binary, and its rank is 7


def upper_bound(k: int, n: int, confidence: float = CONFIDENCE) -> float:
    """Return the one-sided upper Clopper–Pearson bound of a share of which k of n were seen (1.0 for n = 0)."""
    if k >= n:
        return 1.0
    from scipy import special  # costs half a second to import, and only judging needs it

    return float(special.betaincinv(k + 1, n - k, confidence))


def lower_bound(k: int, n: int, confidence: float = CONFIDENCE) -> float:
    """Return the one-sided lower Clopper–Pearson bound of a share of which k of n were seen (0.0 for n = 0)."""
    if k <= 0 or n <= 0:
        return 0.0
    from scipy import special

    return float(special.betaincinv(k, n - k + 1, 1.0 - confidence))


def share_interval(k: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the two-sided exact interval of a share."""
    one_sided = (1.0 + confidence) / 2.0
    return lower_bound(k, n, one_sided), upper_bound(k, n, one_sided)


def judge_share(k: int, n: int, q: float, confidence: float = CONFIDENCE) -> Verdict:
    """Judge "the true share of violations is at most q" from k violations among n."""
    if n <= 0 or not 0 <= k <= n or math.isnan(q):
        return Verdict.INCONCLUSIVE
    if lower_bound(k, n, confidence) > q:
        return Verdict.FAIL
    return Verdict.PASS if upper_bound(k, n, confidence) <= q else Verdict.INCONCLUSIVE


def judge_counted(k: int, n: int, q: float, confidence: float = CONFIDENCE) -> Verdict:
    """Judge "at most the share q" where every case of a run was counted, and there may be only a few.

    What was counted within q is within it. Over q it fails when more than chance is needed to explain it.
    """
    if n <= 0 or not 0 <= k <= n or math.isnan(q):
        return Verdict.INCONCLUSIVE
    if k <= q * n + _RANK_SLACK:
        return Verdict.PASS
    return Verdict.FAIL if lower_bound(k, n, confidence) > q else Verdict.INCONCLUSIVE


def chance_of_more(k: float, mean: float) -> float:
    """Return the chance that a count with that mean (Poisson) comes out as k or more."""
    if k <= 0:
        return 1.0
    from scipy import special

    return float(special.pdtrc(math.floor(k + _RANK_SLACK) - 1, mean)) if k >= 1 else 1.0


def claim_minimum(quantile: float, confidence: float = CONFIDENCE) -> int:
    """Return the fewest requests, all of them good, that support a claim on this quantile (p99: 299)."""
    return math.ceil(math.log(1.0 - confidence) / math.log(quantile))


def shortage(n: int, q: float) -> str:
    """Say that n are too few to show "at most the share q", however they ended; empty when they may be enough."""
    if not 0.0 < q < 1.0 or n >= (least := claim_minimum(1.0 - q)):
        return ""
    return t("too few to show it: {n} are needed at least", n=least)


def rank(quantile: float, n: int) -> int:
    """Return the nearest rank (1-based) of a quantile among n values."""
    return min(n, max(1, math.ceil(quantile * n - _RANK_SLACK)))


def nearest_rank(ordered: Sequence[float], quantile: float) -> float | None:
    """Return the nearest-rank quantile of values in ascending order (failures are +inf); None without values."""
    return float(ordered[rank(quantile, len(ordered)) - 1]) if len(ordered) else None


def quantile_interval(
    ordered: Sequence[float], quantile: float, confidence: float = CONFIDENCE
) -> tuple[float | None, float | None]:
    """Return the two-sided order-statistic interval of a quantile; None is an open end."""
    n = len(ordered)
    tail = (1.0 - confidence) / 2.0
    low = lowest_rank(n, quantile, confidence)
    high = _first_above(n, quantile, 1.0 - tail, or_equal=True) + 1
    return (float(ordered[low - 1]) if low >= 1 else None, float(ordered[high - 1]) if high <= n else None)


def lowest_rank(n: int, quantile: float, confidence: float = CONFIDENCE) -> int:
    """Return the rank (1-based) of the value at the low end of a quantile's interval; 0: there is none."""
    # P(Bin(n, q) <= j - 1) is the chance that the j-th smallest value lies above the true quantile.
    return _first_above(n, quantile, (1.0 - confidence) / 2.0)


def _first_above(n: int, p: float, level: float, *, or_equal: bool = False) -> int:
    """Return the smallest j in 0..n with P(Bin(n, p) <= j) above (or at) the level."""
    from scipy import special

    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        below = float(special.bdtr(middle, n, p))
        if below > level or (or_equal and below >= level):
            high = middle
        else:
            low = middle + 1
    return low
