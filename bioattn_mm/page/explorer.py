"""What the page shows of a model, computed: predictions, attention, receptive fields. Nothing here knows Gradio."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
import torch
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from PIL import Image

from ..analysis.attention_panels import Attention, attention_of, gates_of, named_panels, panels_of
from ..analysis.images import ImageReader, PreparedImage, shorter_side, stride_of
from ..analysis.receptive_field import receptive_fields
from ..engine.amp import in_float32
from ..errors import InputError
from ..inference import Predictor
from ..inference.images import read_image
from ..inference.predictor import EXPORTED_SUFFIX, number_labels
from ..layers import record_attention
from ..layers.attention_maps import Recording
from ..models.backbones import Backbone
from ..models.backbones.transnext import BIAS_MODES
from ..registry import MODELS
from ..run_config.runner import now

# Input sizes to choose from, as multiples of the config's.
SIZE_FACTORS = (0.5, 0.75, 1, 1.25, 1.5, 2)
# (height, width) of the input that shows which maps and heads the layers have.
PROBE_SIZE = (64, 64)
# Longer side in pixels that images are shrunk to: more than the configs resize them to. The scores of every class in
# every pixel of a photograph of 20 megapixels would take 12 GB.
MAX_SIDE = 1600
# How many results of each kind are kept: one click asks for those of two views again.
KEPT = 4
# Images of more pixels are refused before they are decoded: a file of some MB may stand for many GB. The largest
# sensors of cameras have 150 million.
MAX_PIXELS = 160_000_000
KEPT_RECORDINGS = 2


@dataclass(frozen=True)
class View:
    """How the model looks at an image.

    Attributes:
        bias_mode: Position bias of TransNeXt, see `BIAS_MODES`; None for other backbones.
        size: Length of the image's shorter side in pixels; None as the config's test pipeline has it.
    """

    bias_mode: str | None = None
    size: int | None = None


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
    """What there is to look at in an attention layer.

    Attributes:
        maps: Names of its maps, first that of the attention itself.
        heads: Number of heads.
        gates: Share of position of each head, where the layer has gates.
    """

    maps: list[str]
    heads: int
    gates: list[float] | None


class Explorer:
    """Looks at images with one model, under several position biases and input sizes.

    Segmentors predict whole images, also where the config slides a window: so the prediction is made by the attention
    that is shown, and both follow the input size. Results are kept for a while, so that showing them in another way
    costs nothing. For one thread at a time.

    Args:
        make_predictor: Makes the predictor of one config and checkpoint with a position bias; None for the config's
            own.

    Attributes:
        predictor: The one with the config's own position bias.
        bias_modes: Position biases to choose from, the config's own first; empty without TransNeXt.
        sizes: Lengths of the shorter side to choose from; empty if the config's test pipeline has no plain resize.
        size: The config's own.
        layers: The attention layers by name.
        outputs: Stages of the backbone's outputs.

    Raises:
        InputError: The model is a classifier, or for images that are not RGB in 8 bits, or its backbone is none of
            this package's.
    """

    def __init__(self, make_predictor: Callable[[str | None], Predictor]) -> None:
        self._make_predictor = make_predictor
        self.predictor = _ready(make_predictor(None))
        if self.predictor.checkpoint.endswith(EXPORTED_SUFFIX):
            raise InputError(
                f'the page looks into the model, which {self.predictor.checkpoint} hides: name the checkpoint'
            )
        config, backbone = self.predictor.config, self.predictor.model.backbone
        if self.predictor.task == 'classification':
            raise InputError(f'{config.filename} is a classifier: the page is for detectors and segmentors')
        if self.predictor.kind is not None:
            raise InputError(
                f'{config.filename} takes images of {self.predictor.kind}, and the page shows RGB in 8 bits: take '
                'predict.py'
            )
        if not isinstance(backbone, Backbone):
            raise InputError(
                f'{config.filename} has the backbone {type(backbone).__name__}: expected a subclass of Backbone'
            )
        own = _bias_mode(config)
        self.bias_modes = [own, *(mode for mode in BIAS_MODES if mode != own)] if own else []
        self._predictors = {own: self.predictor}
        self.size = shorter_side(config)
        self.sizes = [round(self.size * factor) for factor in SIZE_FACTORS] if self.size else []
        self.layers = self._look_into_layers()
        self.outputs = list(backbone.out_indices)
        # Caches of this object; around the methods in the class they would be those of all objects.
        self.read = lru_cache(KEPT)(_read)
        self.predict = lru_cache(KEPT)(self._predict)
        self.fields = lru_cache(KEPT)(self._fields)
        self._record = lru_cache(KEPT_RECORDINGS)(self._record_layer)

    def attention(self, path: str, view: View, layer: str, query: tuple[int, int]) -> Attention:
        """What a pixel of an image attends to.

        Args:
            path: File of the image.
            view: How the model looks at it.
            layer: One of `layers`.
            query: Row and column of the pixel in the file.
        """
        recording = self._record(path, view, layer)
        return attention_of(recording, self.predict(path, view).prepared, query)

    def _look_into_layers(self) -> dict[str, Layer]:
        noise = torch.randn(1, 3, *PROBE_SIZE, generator=torch.Generator().manual_seed(0)).to(self._device)
        layers = {}
        for recording in record_attention(self.predictor.model.backbone, noise):
            panels = panels_of(recording, (0, 0), stride_of(recording.grid, PROBE_SIZE))
            heads = max(len(panel.values) for panel in panels)
            layers[recording.name] = Layer(list(named_panels(panels)), heads, gates_of(recording))
        return layers

    def _predict(self, path: str, view: View) -> Prediction:
        """Predict for an image.

        Raises:
            InputError: The file is no image that can be read, or the model cannot take it.
        """
        predictor = self._predictor_of(view)
        image = self.read(path)
        try:
            prepared = ImageReader(predictor.config, view.size, self._device)(image)
        except cv2.error as error:
            size = f'{image.shape[1]} x {image.shape[0]} pixels'
            raise InputError(f'an image of {size} cannot be resized to what the model takes') from error
        start = now()
        with torch.no_grad(), predictor.autocast():
            (sample,) = predictor.model.test_step(prepared.batch)
        seconds = now() - start
        if 'seg_logits' in sample:
            del sample.seg_logits  # the scores of every class in every pixel: too much to be kept
        number_labels(sample)
        return Prediction(in_float32(sample.cpu()), seconds, prepared)

    def _fields(self, path: str, view: View, query: tuple[int, int]) -> list[np.ndarray]:
        """Effective receptive field of a pixel in each of the backbone's `outputs` (see `receptive_fields`).

        Returns:
            float64, of the size of the model's input.
        """
        prepared = self.predict(path, view).prepared
        backbone = self._predictor_of(view).model.backbone
        return receptive_fields(backbone, [prepared.inputs], prepared.input_pixel(query))

    def _record_layer(self, path: str, view: View, layer: str) -> Recording:
        """What goes into one attention layer: of all layers it would take much memory."""
        backbone = self._predictor_of(view).model.backbone
        recordings = record_attention(backbone, self.predict(path, view).prepared.inputs)
        return next(recording for recording in recordings if recording.name == layer)

    def _predictor_of(self, view: View) -> Predictor:
        """The predictor with the position bias of a view. All have the same tensors of weights."""
        mode = view.bias_mode if self.bias_modes else None
        if mode not in self._predictors:
            other = _ready(self._make_predictor(mode))
            other.model.load_state_dict(self.predictor.model.state_dict(), assign=True)
            self._predictors[mode] = other
        return self._predictors[mode]

    @property
    def _device(self) -> torch.device:
        return next(self.predictor.model.parameters()).device


def _read(path: str) -> np.ndarray:
    """Read an image, BGR, uint8 (H, W, 3), shrunk to at most `MAX_SIDE`.

    Raises:
        InputError: The file cannot be decoded, or has more than `MAX_PIXELS`.
    """
    check_number_of_pixels(path)
    image = read_image(path, LoadImageFromFile())
    factor = MAX_SIDE / max(image.shape)
    if factor >= 1:
        return image
    height, width = (max(1, round(length * factor)) for length in image.shape[:2])
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)


def check_number_of_pixels(path: str) -> None:
    """Raise an `InputError` for an image of more than `MAX_PIXELS`, by its header alone, or without a header."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', Image.DecompressionBombWarning)
            with Image.open(path) as image:
                pixels = image.width * image.height
    except Image.DecompressionBombError:  # Pillow's own limit, which is higher
        pixels = float('inf')
    except FileNotFoundError as error:
        raise InputError(f'image not found: {path}') from error
    except Exception as error:  # of many kinds, one for each format
        raise InputError(f'cannot decode the image {path}: damaged, or not an image') from error
    if pixels > MAX_PIXELS:
        raise InputError(f'the image {path} has too many pixels: expected at most {MAX_PIXELS // 10**6} million')


def _ready(predictor: Predictor) -> Predictor:
    """The predictor; a segmentor takes whole images, and no gradients of parameters take memory."""
    predictor.model.requires_grad_(False)
    if predictor.task == 'segmentation':
        predictor.model.test_cfg.mode = 'whole'
    return predictor


def _bias_mode(config: Config) -> str | None:
    """The one of `BIAS_MODES` that a config sets; None if its backbone has none."""
    backbone = config.model.backbone
    backbone_type = MODELS.get(str(backbone.type))
    if not hasattr(backbone_type, 'position_bias_settings'):
        return None
    return 'linear' if backbone.get('pool_size') is not None else backbone.get('bias_mode', 'extrapolate')
