"""What the page shows of a model, computed: predictions, attention, receptive fields. Nothing here knows Gradio."""

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import torch

from ..analysis.attention import Attention, attention_of, attention_of_token
from ..analysis.attention_recorder import record_attention
from ..analysis.images import ImageReader, PreparedImage, find_images, stride_of
from ..analysis.receptive_field import receptive_fields
from ..errors import InputError
from ..inference import Predictor, predictor
from ..inference.results import Results
from ..runtime.batches import keeping_error
from ..runtime.images import read_image
from ..systems.common.attention_maps import Recording
from ..systems.common.backbone import Backbone
from ..training.runner import now

# (height, width) of the input that shows which maps and heads the layers have.
PROBE_SIZE = (64, 64)
# Longer side in pixels that images are shrunk to: more than the configs resize them to. The scores of every class in
# every pixel of a photograph of 20 megapixels would take 12 GB.
MAX_SIDE = 1600
# How many results of each kind are kept: a click asks again for those of the image before.
KEPT = 4
# Examples: a photograph of scikit-image (CC0, by Stefan van der Walt), and images of the config's validation set.
PHOTOGRAPH = Path(__file__).with_name('chelsea.jpg')
NUM_EXAMPLES = 3


@dataclass
class Prediction(predictor.Prediction):
    """A prediction, the image as the model got it, and the seconds that the model took, without reading it."""

    prepared: PreparedImage | None = None
    seconds: float = 0.0


class Explorer:
    """Looks at images with one model. Results are kept for a while; for one thread at a time.

    Segmentors predict whole images, also where the config slides a window: so the prediction is made by the attention
    that is shown.

    Args:
        predictor: The model, which is changed.

    Attributes:
        predictor: As given.
        layers: The attention layers by name: names of their maps, first the attention itself, and number of heads.
        outputs: Stages of the backbone's outputs.

    Raises:
        InputError: The model is a classifier, or for images that are not RGB in 8 bits, or its backbone is none of
            this package's.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        name, backbone, kind = predictor.config.filename, predictor.model.backbone, predictor.kind
        if predictor.task == 'classification':
            raise InputError(f'{name} is a classifier: the page is for detectors and segmentors')
        if kind is not None:
            raise InputError(f'{name} takes images of {kind}, and the page shows RGB in 8 bits: take predict.py')
        if not isinstance(backbone, Backbone):
            raise InputError(f'{name} has the backbone {type(backbone).__name__}: expected a subclass of Backbone')
        predictor.model.requires_grad_(False)
        if predictor.task == 'segmentation':
            predictor.model.test_cfg.mode = 'whole'
        self._backbone, self._prepare = backbone, ImageReader(predictor.config, None, predictor.device)
        self.outputs, self.layers = list(backbone.out_indices), {}
        noise = torch.randn(1, 3, *PROBE_SIZE, generator=torch.Generator().manual_seed(0)).to(predictor.device)
        for recording in record_attention(backbone, noise):
            attention = attention_of_token(recording, (0, 0), stride_of(recording.grid, PROBE_SIZE))
            heads = max(len(panel.values) for panel in attention.panels)
            self.layers[recording.name] = list(attention.parts), heads
        # Caches of this object; around the methods in the class they would be those of all objects.
        self.read = lru_cache(KEPT)(_read)
        self.predict = lru_cache(KEPT)(self._predict)
        self.fields = lru_cache(KEPT)(self._fields)
        self._record = lru_cache(KEPT)(self._record_layer)

    def attention(self, path: str, layer: str, query: tuple[int, int]) -> Attention:
        """What a pixel (row, column) of an image file attends to in one of `layers`."""
        return attention_of(self._record(path, layer), self.predict(path).prepared, query)

    def examples(self) -> list[Path]:
        """Images to try: the first ones of the config's validation set, if it is there, and a photograph."""
        with suppress(InputError):
            return [*find_images(self.predictor.config, None, NUM_EXAMPLES), PHOTOGRAPH]
        return [PHOTOGRAPH]

    def write(self, path: str, score_thr: float, folder: Path) -> list[Path]:
        """Write what `predict.py` writes for an image into a folder, and return the files, first the overlay."""
        results = Results(folder, self.predictor, score_thr)
        results.add_image(self.predict(path))
        results.write()
        (overlay,) = folder.glob('overlays/*')
        overlay = overlay.rename(folder / f'{overlay.stem}_overlay.png')  # a label map has the same name
        return [overlay, *sorted(file for file in folder.rglob('*') if file.is_file() and file != overlay)]

    def _predict(self, path: str) -> Prediction:
        """Predict for an image; an `InputError` says that it cannot be read, or that the model cannot take it."""
        prediction = Prediction(Path(path).name, self.read(path))
        with keeping_error(prediction):
            prediction.prepared = self._prepare(prediction.image)
        if prediction.error:
            raise prediction.error
        start = now()
        (sample,) = self.predictor.test_step(prediction.prepared.batch)
        prediction.seconds = now() - start
        if 'seg_logits' in sample:
            del sample.seg_logits  # the scores of every class in every pixel: too much to be kept
        prediction.sample = sample.cpu()
        return prediction

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
