"""`Model`: an exported model with what comes before and after it, from the `pipeline.json` beside it alone.

`bioattn_mm.export.pipeline` documents that file key by key.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import InputError, first_line
from . import postprocessing
from .backends import open_backend
from .batches import BatchPredictor, ImagePrediction
from .files import check_entries, read_json
from .images import read_image
from .predictions import Result
from .preprocessing import Prepared, kind_of, prepare

FILE, FORMAT = 'pipeline.json', 'bioattn_mm/1'
SUFFIX = '.onnx'
TASKS = ('segmentation', 'detection', 'classification')
MODES = ('slide', 'whole')


@dataclass
class Prediction(ImagePrediction):
    """What became of one image: an `ImagePrediction` with the `result`, which is None after an error."""

    result: Result | None = None


class Model(BatchPredictor):
    """Predicts on images with a segmentor, detector or classifier that `tools/export.py` exported.

    The predictions are those of the checkpoint in PyTorch, in pixels of the image as a viewer shows it. Arrays are
    BGR, as OpenCV reads them; of a model for other images than RGB in 8 bits (`kind`) they have its channels, in the
    order of the files, and its dtype.

    Examples:
        >>> from bioattn_mm.runtime import Model
        >>> model = Model('exported/end2end.onnx')
        >>> (result,) = model('street.jpg')
        >>> {model.classes[index] for index in np.unique(result.labels)}
        >>> cv2.imwrite('drawn.png', model.draw(cv2.imread('street.jpg'), result))

    Args:
        path: The ONNX file.
        backend: What computes: 'onnxruntime' or 'openvino'.
        mode: Of segmentors: 'slide' moves a window over the image, 'whole' takes it at once. Default: as exported.
        num_threads: Threads to compute with. Default: as many as there are cores.
        bfloat16: Compute in bfloat16, with the backend 'openvino': faster on CPUs that have it, and less exact.

    Attributes:
        path (Path): The file.
        task (str): 'segmentation', 'detection' or 'classification'.
        classes (tuple[str, ...]): Names of the classes in the order of their indices.
        palette (list[tuple[int, int, int]]): R, G and B of each class.
        mode (str | None): Of segmentors 'slide' or 'whole'.
        kind (ImageKind | None): Channels and dtype of its images; None: RGB in 8 bits.

    Raises:
        InputError: The model or its `pipeline.json` is missing or of another kind, or the backend cannot load it.
    """

    prediction_type, output = Prediction, 'result'

    def __init__(
        self,
        path: str | Path,
        backend: str = 'onnxruntime',
        *,
        mode: str | None = None,
        num_threads: int | None = None,
        bfloat16: bool = False,
    ) -> None:
        self.path = Path(path)
        about = _read_description(self.path)
        self.task = about['task']
        if self.task not in TASKS:
            raise InputError(f'{path} is a model for {self.task}, and the runtime is for {", ".join(TASKS)}')
        self.classes, self.palette = tuple(about['classes']), [tuple(color) for color in about['palette']]
        self._steps, self._settings = about['preprocessing'], about['postprocessing']
        self.kind = kind_of(self._steps)
        (image, *_) = about.get('inputs') or [{}]
        self._takes = dict(minimum=(image.get('minimum', 1),) * 2, multiple=image.get('multiple', 1))
        self.mode = self._mode(mode)
        self._backend = open_backend(backend, self.path, num_threads, bfloat16=bfloat16)
        if len(self._backend.shape) != 4:
            raise InputError(
                f'{path} takes an input of shape {self._backend.shape}, expected (batch, channels, height, width)'
            )
        self._fixed_batch, _, *self._fixed_size = self._backend.shape
        if None in self._fixed_size:
            self._fixed_size = None

    def read(self, path: str | Path) -> np.ndarray:
        """Read an image file as the model takes it; an `InputError` says why one cannot be used."""
        return read_image(path, self.kind)

    @property
    def input_name(self) -> str:
        """Name of the model's input."""
        return self._backend.input_name

    def inputs_of(self, image: np.ndarray) -> np.ndarray:
        """What the model computes on, float32 (1, channels, H, W): if it slides a window, the middle one."""
        inputs = self._prepared(image).inputs[None]
        if self.mode == 'slide':
            inputs = postprocessing.padded(inputs, self._fixed_size or (1, 1))
            window = self._fixed_size or self._settings['crop_size']
            top, left = (max(length - side, 0) // 2 for length, side in zip(inputs.shape[2:], window))
            inputs = inputs[:, :, top : top + window[0], left : left + window[1]]
        return np.repeat(postprocessing.padded(inputs, **self._takes), self._fixed_batch or 1, axis=0)

    def run(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """The model's outputs, by name, of float32 (B, channels, H, W), as the preprocessing makes them.

        A model that was exported for one batch size takes them piece by piece.

        Raises:
            InputError: The backend cannot compute this, or an output is NaN.
        """
        number = self._fixed_batch or len(inputs)
        pieces = [inputs[first : first + number] for first in range(0, len(inputs), number)]
        missing = -len(inputs) % number
        pieces[-1] = np.pad(pieces[-1], ((0, missing), (0, 0), (0, 0), (0, 0)))
        try:
            outputs = [self._backend.run(np.ascontiguousarray(piece)) for piece in pieces]
        except Exception as error:  # each backend has classes of its own
            reason = first_line(error)
            raise InputError(f'{self.path} does not take an input of shape {inputs.shape}: {reason}') from error
        found = {name: np.concatenate([piece[name] for piece in outputs])[: len(inputs)] for name in outputs[0]}
        for name, value in found.items():
            if value.dtype.kind == 'f' and np.isnan(value).any():
                raise InputError(
                    f'{self.path} predicts NaN ({name}): its weights are of a training that has failed, or the image '
                    'has extreme values'
                )
        return found

    def _mode(self, mode: str | None) -> str | None:
        if mode is not None and self.task != 'segmentation':
            raise InputError(f'{mode} is for segmentors, and {self.path} is for {self.task}')
        if mode not in (None, *MODES):
            raise InputError(f"mode must be 'slide' or 'whole', got {mode!r}")
        mode = mode or self._settings.get('mode')
        if mode == 'slide' and 'crop_size' not in self._settings:
            raise InputError(
                f'{self.path.with_name(FILE)} says no size of a sliding window: export the model with '
                '--cfg-options model.test_cfg.mode=slide model.test_cfg.crop_size=... model.test_cfg.stride=...'
            )
        return mode

    def _prepared(self, image: np.ndarray) -> Prepared:
        """The model's input of an image, from which windows are cut if it slides."""
        return prepare(image, self._steps, self._fixed_size if self.mode != 'slide' else None)

    def _prepare(self, prediction: Prediction) -> Prepared:
        prediction.image = self._image_of(prediction.source)
        return self._prepared(prediction.image)

    def _compute(self, batch: list[tuple[Prediction, Prepared]], batch_size: int, return_logits: bool) -> None:
        outputs = self._outputs(np.stack([prepared.inputs for _, prepared in batch]), batch_size)
        for index, (prediction, prepared) in enumerate(batch):
            own, size = {name: value[index] for name, value in outputs.items()}, prediction.image.shape[:2]
            if self.task == 'segmentation':
                prediction.result = postprocessing.segmentation(
                    own['logits'], prepared.size, size, self._settings, return_logits
                )
            elif self.task == 'detection':
                prediction.result = postprocessing.detections(own, prepared.size, size, self._settings)
            else:
                prediction.result = postprocessing.classification(*own.values())

    def _outputs(self, inputs: np.ndarray, batch_size: int) -> dict[str, np.ndarray]:
        """The outputs for inputs of one size; of segmentors the logits of every pixel of the input."""
        if self.task != 'segmentation':
            return self.run(postprocessing.padded(inputs, **self._takes))
        align_corners = self._settings.get('align_corners', False)
        if self.mode == 'whole':
            return dict(logits=postprocessing.whole(self.run, inputs, align_corners, **self._takes))
        crop_size, stride = self._settings['crop_size'], self._settings['stride']
        height, width = inputs.shape[2:]
        if self._fixed_size:
            # Its windows have the one size that it takes, also of a smaller image, and overlap in proportion.
            stride = [max(step * own // side, 1) for step, own, side in zip(stride, self._fixed_size, crop_size)]
            crop_size = self._fixed_size
            inputs = postprocessing.padded(inputs, crop_size)
        logits = postprocessing.slide(self.run, inputs, crop_size, stride, align_corners, batch_size, **self._takes)
        return dict(logits=logits[:, :, :height, :width])


def _read_description(model: Path) -> dict:
    """Read the `pipeline.json` beside the file of a model."""
    path = model.with_name(FILE)
    if not model.is_file():
        raise InputError(f'exported model not found: {model}')
    if not path.is_file():
        raise InputError(f'{path} not found: it is exported with the model and says how to run it; copy both')
    again, kinds = 'export the model again', dict(task=str, preprocessing=list, postprocessing=dict)
    document = read_json(path, again)
    if document.get('format') != FORMAT:
        raise InputError(f'{path} has the format {document.get("format")}, expected {FORMAT}: {again}')
    check_entries(path, document, again, **kinds, classes=list, palette=list)
    return document
