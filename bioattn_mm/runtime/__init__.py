"""Running an exported model: no PyTorch, no mmdet, no mmseg, no config.

The rest of the package is not needed, either: the distribution `bioattn_mm_runtime` installs this subpackage alone.
"""

from .model import Model, Prediction
from .predictions import Classification, Detections, Segmentation

__all__ = ['Classification', 'Detections', 'Model', 'Prediction', 'Segmentation']
