"""What the page shows of a model, computed: predictions, attention, receptive fields. Nothing here knows Gradio."""

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
import torch
from mmengine.structures import BaseDataElement

from ..analysis.attention import Attention, attention_of, attention_of_token
from ..analysis.images import ImageReader, PreparedImage, stride_of
from ..analysis.receptive_field import receptive_fields
from ..errors import InputError
from ..inference import Predictor
from ..runtime.batches import ImagePrediction, keeping_error
from ..runtime.images import read_image
from ..systems.common.attention_maps import Recording
from ..systems.common.attention_recorder import record_attention
from ..systems.common.backbone import Backbone
from ..training.runner import now

# (height, width) of the input that shows which maps and heads the layers have.
PROBE_SIZE = (64, 64)
# Longer side in pixels that images are shrunk to: more than the configs resize them to. The scores of every class in
# every pixel of a photograph of 20 megapixels would take 12 GB.
MAX_SIDE = 1600
# How many results of each kind are kept: a click asks again for those of the image before.
KEPT = 4


@dataclass
class Prediction:
    """A prediction for one image.

    Attributes:
        sample: mmdet's or mmseg's data sample, in pixels of the image.
        seconds: Time that the model took, without reading the image.
        prepared: The image as the model got it.
    """

    sample: BaseDataElement
    seconds: float
    prepared: PreparedImage


@dataclass
class Layer:
    """What there is to look at in an attention layer: names of its maps, first the attention itself, and heads."""

    maps: list[str]
    heads: int


class Explorer:
    """Looks at images with one model. Results are kept for a while; for one thread at a time.

    Segmentors predict whole images, also where the config slides a window: so the prediction is made by the attention
    that is shown.

    Args:
        predictor: The model, which is changed.

    Attributes:
        predictor: As given.
        layers: The attention layers by name.
        outputs: Stages of the backbone's outputs.

    Raises:
        InputError: The model is a classifier, or for images that are not RGB in 8 bits, or its backbone is none of
            this package's.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        config, backbone = predictor.config, predictor.model.backbone
        if predictor.task == 'classification':
            raise InputError(f'{config.filename} is a classifier: the page is for detectors and segmentors')
        if predictor.kind is not None:
            raise InputError(
                f'{config.filename} takes images of {predictor.kind}, and the page shows RGB in 8 bits: take '
                'predict.py'
            )
        if not isinstance(backbone, Backbone):
            raise InputError(
                f'{config.filename} has the backbone {type(backbone).__name__}: expected a subclass of Backbone'
            )
        predictor.model.requires_grad_(False)
        if predictor.task == 'segmentation':
            predictor.model.test_cfg.mode = 'whole'
        self._backbone, self._prepare = backbone, ImageReader(config, None, predictor.device)
        self.outputs, self.layers = list(backbone.out_indices), {}
        noise = torch.randn(1, 3, *PROBE_SIZE, generator=torch.Generator().manual_seed(0)).to(predictor.device)
        for recording in record_attention(backbone, noise):
            attention = attention_of_token(recording, (0, 0), stride_of(recording.grid, PROBE_SIZE))
            heads = max(len(panel.values) for panel in attention.panels)
            self.layers[recording.name] = Layer(list(attention.parts), heads)
        # Caches of this object; around the methods in the class they would be those of all objects.
        self.read = lru_cache(KEPT)(_read)
        self.predict = lru_cache(KEPT)(self._predict)
        self.fields = lru_cache(KEPT)(self._fields)
        self._record = lru_cache(KEPT)(self._record_layer)

    def attention(self, path: str, layer: str, query: tuple[int, int]) -> Attention:
        """What a pixel (row, column) of an image file attends to in one of `layers`."""
        return attention_of(self._record(path, layer), self.predict(path).prepared, query)

    def _predict(self, path: str) -> Prediction:
        """Predict for an image; an `InputError` says that it cannot be read, or that the model cannot take it."""
        image = self.read(path)
        attempt = ImagePrediction(path, image)
        with keeping_error(attempt):
            prepared = self._prepare(image)
        if attempt.error:
            raise attempt.error
        start = now()
        (sample,) = self.predictor.test_step(prepared.batch)
        seconds = now() - start
        if 'seg_logits' in sample:
            del sample.seg_logits  # the scores of every class in every pixel: too much to be kept
        return Prediction(sample.cpu(), seconds, prepared)

    def _fields(self, path: str, query: tuple[int, int]) -> list[np.ndarray]:
        """Effective receptive field of a pixel in each of `outputs`, float64 of the input's size."""
        prepared = self.predict(path).prepared
        return receptive_fields(self._backbone, [prepared.inputs], prepared.input_pixel(query))

    def _record_layer(self, path: str, layer: str) -> Recording:
        """What goes into one attention layer: of all layers it would take much memory."""
        recordings = record_attention(self._backbone, self.predict(path).prepared.inputs)
        return next(recording for recording in recordings if recording.name == layer)


def _read(path: str) -> np.ndarray:
    """Read an image, BGR, uint8 (H, W, 3), shrunk to at most `MAX_SIDE`."""
    image = read_image(path)
    factor = MAX_SIDE / max(image.shape)
    if factor >= 1:
        return image
    height, width = (max(1, round(length * factor)) for length in image.shape[:2])
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
