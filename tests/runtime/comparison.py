"""Images for exported models, and the runtime's predictions beside PyTorch's."""

import shutil
from pathlib import Path

import cv2
import numpy as np
from mmseg.structures import SegDataSample

from bioattn_mm.runtime.predictions import Segmentation


def image_of(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Noise that is smooth enough for classes to form regions."""
    noise = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    return cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)


def few_images(workplace: Path) -> Path:
    """A folder with images to calibrate on."""
    folder = workplace / 'calibration'
    folder.mkdir(exist_ok=True)
    for path in sorted((workplace / 'data/mini/coco/val2017').glob('*.jpg'))[:3]:
        shutil.copy(path, folder)
    return folder


def check_logits(sample: SegDataSample, result: Segmentation) -> None:
    """The runtime's prediction is PyTorch's; a pixel between two classes may fall to either."""
    logits = sample.seg_logits.data.numpy()
    assert np.abs(logits - result.logits).max() < 1e-3
    tied = np.diff(np.sort(logits, axis=0)[-2:], axis=0)[0] < 1e-3
    assert ((sample.pred_sem_seg.data[0].numpy() == result.labels) | tied).all()
