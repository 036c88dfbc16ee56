"""How much of a map stays the same when the image changes: of attention, or of a receptive field."""

import math

import numpy as np

# Share of the pixels that are compared by `overlap`.
TOP_SHARE = 0.2


def consistency(one: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """Both measures of two maps of one shape: `correlation` and `iou`."""
    return dict(correlation=correlation(one, other), iou=overlap(one, other))


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's correlation over all pixels; NaN if one of the maps is constant."""
    one, other = (np.asarray(values, np.float64) - np.mean(values, dtype=np.float64) for values in (one, other))
    norm = math.sqrt(np.square(one).sum() * np.square(other).sum())
    return float((one * other).sum() / norm) if norm else math.nan


def overlap(one: np.ndarray, other: np.ndarray, share: float = TOP_SHARE) -> float:
    """Intersection over union of the pixels with the largest values, at most `share` of all in each map.

    Pixels with the smallest value of a map never count, so that fields which are mostly 0 have nothing in common by
    that. Of equal values at the border those count that come first in the row-major order, so that maps which are
    alike have 1. NaN if one of the maps is constant.
    """
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    tops = []
    for values in (one, other):
        number = min(math.ceil(share * values.size), np.count_nonzero(values > values.min()))
        top = np.zeros(values.size, bool)
        top[np.argsort(-np.asarray(values, np.float64), axis=None, kind='stable')[:number]] = True
        tops.append(top)
    return float(np.logical_and(*tops).sum() / np.logical_or(*tops).sum())
