"""What is measured of maps of attention, of receptive fields and of position biases, which are arrays (H, W)."""

import math

import numpy as np

# A fit that has come so far without an end wanders in a flat valley: it started from the wrong sign, or fits noise.
MAX_EVALUATIONS = 1000
FIT_COLUMNS = ('r_squared', 'sigma_x', 'sigma_y', 'amplitude', 'center_x', 'center_y', 'offset')
TOP_SHARE = 0.2  # of the pixels, which `overlap` compares


def consistency(one: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """How much of a map stays the same when the image changes: Pearson's `correlation` and `iou` of two maps.

    The correlation is NaN if one of the maps is constant.
    """
    with np.errstate(divide='ignore', invalid='ignore'):
        correlation = np.corrcoef(np.ravel(one), np.ravel(other))[0, 1]
    return dict(correlation=float(correlation), iou=overlap(one, other))


def overlap(one: np.ndarray, other: np.ndarray, share: float = TOP_SHARE) -> float:
    """Intersection over union of the pixels with the largest values, at most `share` of all in each map.

    Pixels with the smallest value of a map never count, as in fields that are mostly 0. NaN if a map is constant.
    """
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    tops = []
    for values in (one, other):
        number = min(math.ceil(share * values.size), np.count_nonzero(values > values.min()))
        tops.append(np.argsort(-values, axis=None, kind='stable')[:number])
    return len(np.intersect1d(*tops)) / len(np.union1d(*tops))


def fit_gaussian(values: np.ndarray, from_minimum: bool = False) -> dict[str, float]:
    """Fit `offset + amplitude * exp(-(x - cx)^2 / (2 sx^2) - (y - cy)^2 / (2 sy^2))` by least squares, with lmfit.

    Args:
        values: The map, (H, W); the origin of the coordinates is its middle.
        from_minimum: Fit a peak alone, of any width, above the least value of the map, as in table 1 of GAB (Kim et
            al., BMVC 2023). Otherwise the offset is fitted, too, and there may be a dip.

    Returns:
        R^2 and the parameters, by the names of `FIT_COLUMNS`, all NaN if the map is constant.
    """
    spread = np.square(values - values.mean()).sum()
    if spread <= 1e-12 * max(1.0, np.square(values).sum()):
        return dict.fromkeys(FIT_COLUMNS, math.nan)
    if from_minimum:
        lowest = values.min()
        fit = _minimize(values - lowest, np.ptp(values), with_offset=False)
    else:
        # The map may have a peak or a dip: try both as starting points, keep the better fit.
        lowest = 0.0
        fit = min((_minimize(values, sign * np.ptp(values)) for sign in (1, -1)), key=lambda fit: fit.chisqr)
    found = fit.params.valuesdict()
    names = ('sigmax', 'sigmay', 'height', 'centerx', 'centery')
    results = (1 - fit.chisqr / spread, *(found[name] for name in names), found.get('c', lowest))
    return dict(zip(FIT_COLUMNS, map(float, results), strict=True))


def _minimize(values: np.ndarray, peak: float, with_offset: bool = True) -> object:
    """Fit once, starting from a Gaussian in the middle with this peak: lmfit's `ModelResult`."""
    # Imported here, because the other measures do without the extra `analysis`.
    from lmfit.models import ConstantModel, Gaussian2dModel

    height, width = values.shape
    y, x = (axis.ravel() for axis in np.mgrid[:height, :width])
    y, x = y - (height - 1) / 2, x - (width - 1) / 2
    model = Gaussian2dModel()
    sigma_x, sigma_y = (axis.max() / 2 for axis in (x, y))
    # A Gaussian many times wider than the map is flat: beside an offset its width would be undetermined.
    widest = 20 if with_offset else math.inf
    settings = dict(
        amplitude=peak * 2 * math.pi * sigma_x * sigma_y,  # the volume under the Gaussian
        # A centre outside of the map would fit the tail of a Gaussian to it.
        centerx=dict(value=0, min=x.min(), max=x.max()),
        centery=dict(value=0, min=y.min(), max=y.max()),
        sigmax=dict(value=sigma_x, min=0.1, max=widest * x.max()),
        sigmay=dict(value=sigma_y, min=0.1, max=widest * y.max()),
    )
    if with_offset:
        model = model + ConstantModel()
        settings['c'] = values.max() if peak < 0 else values.min()
    # lmfit's default method creeps up to a bound, such as a centre at the border, until its evaluations run out.
    options = dict(method='least_squares', max_nfev=MAX_EVALUATIONS, calc_covar=False)
    return model.fit(values.ravel(), model.make_params(**settings), x=x, y=y, **options)
