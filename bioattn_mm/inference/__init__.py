"""Prediction on one's own images: `Predictor`, the inputs of `tools/predict.py`, and the files that it writes."""

from .predictor import Prediction, Predictor

__all__ = ['Prediction', 'Predictor']
