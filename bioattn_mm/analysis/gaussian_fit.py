"""Fitting a two-dimensional Gaussian to a map, with lmfit, and drawing it over the map."""

import math

import lmfit
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse
from matplotlib.patheffects import Normal, Stroke

# A fit that has come so far without an end wanders in a flat valley: it started from the wrong sign, or fits noise.
MAX_EVALUATIONS = 1000
FIT_COLUMNS = ('r_squared', 'sigma_x', 'sigma_y', 'amplitude', 'center_x', 'center_y', 'offset')


def fit_gaussian(values: np.ndarray, from_minimum: bool = False) -> tuple[dict[str, float], np.ndarray]:
    """Fit `offset + amplitude * exp(-(x - cx)^2 / (2 sx^2) - (y - cy)^2 / (2 sy^2))` by least squares.

    Args:
        values: The map, (H, W); the origin of the coordinates is its middle.
        from_minimum: Fit a peak alone, of any width, above the least value of the map, which is the offset then: as
            in table 1 of GAB (Kim et al., BMVC 2023), where maps without a pattern get widths of hundreds of patches.
            Otherwise the offset is fitted, too, and there may be a dip.

    Returns:
        R^2 and the parameters, by the names of `FIT_COLUMNS`, all NaN if the map is constant; and the values of the
        fit, (H, W).
    """
    height, width = values.shape
    y, x = (axis.ravel() for axis in np.mgrid[:height, :width])
    y, x = y - (height - 1) / 2, x - (width - 1) / 2
    spread = np.square(values - values.mean()).sum()
    if spread <= 1e-12 * max(1.0, np.square(values).sum()):
        return dict.fromkeys(FIT_COLUMNS, math.nan), values
    if from_minimum:
        best = _minimize(values.ravel() - values.min(), x, y, np.ptp(values), with_offset=False)
    else:
        # The map may have a peak or a dip: try both as starting points, keep the better fit.
        fits = [_minimize(values.ravel(), x, y, sign * np.ptp(values)) for sign in (1, -1)]
        best = min(fits, key=lambda fit: fit.chisqr)
    lowest = values.min() if from_minimum else 0.0
    parameters = best.params.valuesdict()
    # lmfit's amplitude is the volume under the Gaussian.
    peak = parameters['amplitude'] / (2 * math.pi * parameters['sigmax'] * parameters['sigmay'])
    results = (
        1 - best.chisqr / spread,
        parameters['sigmax'],
        parameters['sigmay'],
        peak,
        parameters['centerx'],
        parameters['centery'],
        parameters.get('c', lowest),
    )
    return dict(zip(FIT_COLUMNS, map(float, results), strict=True)), best.best_fit.reshape(values.shape) + lowest


def draw_ellipses(axis: Axes, middle: tuple[float, float], fit: dict[str, float]) -> None:
    """Outline a fitted Gaussian at one and two sigma; nothing if there is none.

    Args:
        axis: Where the map is drawn.
        middle: x and y of the middle of the map.
        fit: What `fit_gaussian` gave, in the units of the axis.
    """
    if math.isnan(fit['r_squared']):
        return
    center = middle[0] + fit['center_x'], middle[1] + fit['center_y']
    for factor, style in ((1, '-'), (2, '--')):
        size = 2 * factor * fit['sigma_x'], 2 * factor * fit['sigma_y']
        ellipse = Ellipse(center, *size, fill=False, color='white', linestyle=style)
        ellipse.set_path_effects([Stroke(linewidth=2.5, foreground='black'), Normal()])
        axis.add_patch(ellipse)


def _minimize(
    values: np.ndarray, x: np.ndarray, y: np.ndarray, peak: float, with_offset: bool = True
) -> lmfit.model.ModelResult:
    """Fit once, starting from a Gaussian in the middle with this peak."""

    def plane(x: np.ndarray, y: np.ndarray, c: float) -> np.ndarray:
        return np.full(x.shape, c)

    model = lmfit.models.Gaussian2dModel()
    sigma_x, sigma_y = (axis.max() / 2 for axis in (x, y))
    # A Gaussian many times wider than the map is flat: beside an offset its width would be undetermined.
    widest = 20 if with_offset else math.inf
    settings = dict(
        amplitude=peak * 2 * math.pi * sigma_x * sigma_y,
        # A centre outside of the map would fit the tail of a Gaussian to it.
        centerx=dict(value=0, min=x.min(), max=x.max()),
        centery=dict(value=0, min=y.min(), max=y.max()),
        sigmax=dict(value=sigma_x, min=0.1, max=widest * x.max()),
        sigmay=dict(value=sigma_y, min=0.1, max=widest * y.max()),
    )
    if with_offset:
        model = model + lmfit.Model(plane, independent_vars=['x', 'y'])
        settings['c'] = values.max() if peak < 0 else values.min()
    return model.fit(values, model.make_params(**settings), x=x, y=y, max_nfev=MAX_EVALUATIONS)
