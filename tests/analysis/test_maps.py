"""Consistency of maps: closed forms."""

import math

import numpy as np
import pytest

from bioattn_mm.analysis.maps import consistency, overlap


def test_correlation() -> None:
    noise = np.random.default_rng(0).normal(size=(2, 30, 40))
    wanted = np.corrcoef(noise.reshape(2, -1))[0, 1]
    assert consistency(*noise)['correlation'] == pytest.approx(wanted)
    assert math.isnan(consistency(noise[0], np.ones((30, 40)))['correlation'])


def test_overlap() -> None:
    """The top fifth of 20 pixels are four: of which two, all or none are the same."""
    values = np.arange(20.0).reshape(4, 5)
    other = values.copy()
    other[3, 3:] = -1
    assert overlap(values, other) == pytest.approx(2 / 6)
    assert overlap(values, values**3) == 1
    assert overlap(values, -values) == 0
    # Two pixels are not 0, one of them in both.
    one, two = np.zeros((4, 5)), np.zeros((4, 5))
    one[0, :2], two[0, 1:3] = 1, 2
    assert overlap(one, two) == pytest.approx(1 / 3)
    assert overlap(values, values, share=0.5) == 1
    assert math.isnan(overlap(values, np.zeros((4, 5))))
