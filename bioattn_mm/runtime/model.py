"""`Model`: an exported model with what comes before and after it, from `pipeline.json` alone."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from ..errors import InputError
from . import tasks
from .backends import open_backend
from .channels import read_channels, shown
from .description import FILE, read_description
from .drawing import OPACITY, draw
from .images import check_array, image_error, kind_of, prepare, read_image

SUFFIXES = ('.onnx', '.xml')
TASKS = ('segmentation', 'detection', 'classification')
MODES = ('slide', 'whole')
Result = tasks.Segmentation | tasks.Detections | tasks.Classification


@dataclass
class Prediction:
    """What became of one image.

    Attributes:
        source: The path or the array that was given.
        image: BGR, uint8 (H, W, 3), or of the model's own kind; None if it could not be read.
        result: The prediction; None after an error.
        error: Why there is no prediction; None if there is one.
    """

    source: object
    image: np.ndarray | None = None
    result: Result | None = None
    error: InputError | None = None


class Model:
    """Predicts on images with a segmentor, detector or classifier that `tools/export.py` exported.

    What comes before and after the network is in the `pipeline.json` beside its file. The predictions are those of
    the checkpoint in PyTorch, in coordinates of the image as a viewer shows it. Arrays are BGR, as OpenCV reads them.
    Images of a model for others than RGB in 8 bits (`kind`) have its channels, in the order of the files, and its
    dtype, and what is drawn shows three of them.

    Examples:
        >>> from bioattn_mm.runtime import Model
        >>> model = Model('exported/end2end.onnx')
        >>> (result,) = model('street.jpg')
        >>> {model.classes[index] for index in np.unique(result.labels)}
        >>> cv2.imwrite('drawn.png', model.draw(cv2.imread('street.jpg'), result))

    Args:
        path: The file of the model, .onnx, or .xml of OpenVINO.
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
        about = read_description(self.path)
        if about.task not in TASKS:
            raise InputError(
                f'{path} is a model for {about.task}, and the runtime is for {", ".join(TASKS)}: '
                'tools/predict.py CONFIG MODEL runs models of mmdeploy with PyTorch'
            )
        self.task, self.classes, self.palette = about.task, about.classes, about.palette
        self._steps, self._settings = about.preprocessing, about.postprocessing
        self.kind = kind_of(self._steps)
        self._takes = dict(minimum=about.minimum, multiple=about.multiple)
        self.mode = self._mode(mode)
        self._backend = open_backend(backend, self.path, num_threads, bfloat16=bfloat16)
        if len(self._backend.shape) != 4:
            raise InputError(
                f'{path} takes an input of shape {self._backend.shape}, expected (batch, channels, height, width)'
            )
        self._fixed_batch, _, *self._fixed_size = self._backend.shape
        if None in self._fixed_size:
            self._fixed_size = None

    def __call__(
        self,
        images: str | Path | np.ndarray | Sequence[str | Path | np.ndarray],
        batch_size: int = 1,
        return_logits: bool = False,
    ) -> list[Result]:
        """Predict on images.

        Args:
            images: A path or an array (BGR, uint8 (H, W, 3), or of the model's `kind`), or several in a list.
            batch_size: Number of images, or windows of a segmentor, that the model takes at once, if it was exported
                for any number; only neighbours whose inputs have the same size go together.
            return_logits: Segmentors: also the logits of every class in every pixel, which take much memory.

        Raises:
            InputError: An image cannot be read or predicted on.
        """
        results = []
        images = [images] if isinstance(images, (str, Path, np.ndarray)) else images
        for prediction in self.iterate(images, batch_size, return_logits):
            if prediction.error is not None:
                raise prediction.error
            results.append(prediction.result)
        return results

    def iterate(
        self, images: Iterable[str | Path | np.ndarray], batch_size: int = 1, return_logits: bool = False
    ) -> Iterator[Prediction]:
        """Predict on images one after the other, as many as there are: also frames of a video.

        Args:
            images: Paths or arrays, as in a call.
            batch_size: As in a call.
            return_logits: As in a call.

        Yields:
            The prediction for each image, in their order. An image that cannot be read or predicted on has an `error`
            instead, and the others go on.
        """
        batch = []
        # Windows that go together come from one image; images that go together have inputs of one size.
        fixed_size = self._fixed_size if self.mode != 'slide' else None
        for source in images:
            prediction = Prediction(source)
            try:
                is_array = isinstance(source, np.ndarray)
                prediction.image = check_array(source, self.kind) if is_array else self.read(source)
                prepared = prepare(prediction.image, self._steps, fixed_size)
            except (InputError, MemoryError, cv2.error) as error:
                yield from self._predict(batch, batch_size, return_logits)
                batch = []
                prediction.error = image_error(error, prediction.image)
                yield prediction
                continue
            if batch and batch[0][1].inputs.shape != prepared.inputs.shape:
                yield from self._predict(batch, batch_size, return_logits)
                batch = []
            batch.append((prediction, prepared))
            if len(batch) >= batch_size:
                yield from self._predict(batch, batch_size, return_logits)
                batch = []
        yield from self._predict(batch, batch_size, return_logits)

    def draw(self, image: np.ndarray, result: Result, score_thr: float = 0.3, opacity: float = OPACITY) -> np.ndarray:
        """Draw a prediction over its image, with the names of the classes.

        Args:
            image: The image that was predicted on, BGR, uint8 (H, W, 3), or of the model's `kind`, of which three
                channels are drawn (see `channels.shown`).
            result: Its prediction.
            score_thr: Leave out detections with a lower score.
            opacity: Of classes and masks, from 0, where they are not seen, to 1, where the image is not.

        Returns:
            BGR, uint8 (H, W, 3).
        """
        if isinstance(result, tasks.Detections):
            result = result.keep(result.scores >= score_thr)
        image = image if self.kind is None else shown(image)
        return draw(image, result, self.classes, self.palette, opacity)

    def read(self, path: str | Path) -> np.ndarray:
        """Read an image file as the model takes it; an `InputError` says why one cannot be used."""
        return read_image(path) if self.kind is None else read_channels(path, self.kind)

    @property
    def input_name(self) -> str:
        """Name of the model's input."""
        return self._backend.input_name

    def inputs_of(self, image: np.ndarray) -> np.ndarray:
        """What the model computes on, float32 (1, channels, H, W): if it slides a window, the middle one."""
        prepared = prepare(image, self._steps, self._fixed_size if self.mode != 'slide' else None).inputs
        if self.mode == 'slide':
            window = self._fixed_size or self._settings['crop_size']
            missing = [max(own - length, 0) for own, length in zip(self._fixed_size or (0, 0), prepared.shape[1:])]
            prepared = np.pad(prepared, ((0, 0), (0, missing[0]), (0, missing[1])))
            top, left = (max(length - side, 0) // 2 for length, side in zip(prepared.shape[1:], window))
            prepared = prepared[:, top : top + window[0], left : left + window[1]]
        return np.repeat(tasks.padded(prepared[None], **self._takes), self._fixed_batch or 1, axis=0)

    def run(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """The model's outputs, by name.

        Args:
            inputs: float32 (B, channels, H, W), as the preprocessing makes them. A model that was exported for one
                batch size takes them piece by piece.

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
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
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

    def _predict(
        self, batch: list[tuple[Prediction, object]], batch_size: int, return_logits: bool
    ) -> Iterator[Prediction]:
        """Predict on inputs of one size."""
        if not batch:
            return
        try:
            outputs = self._outputs(np.stack([prepared.inputs for _, prepared in batch]), batch_size)
            for index, (prediction, prepared) in enumerate(batch):
                own, size = {name: value[index] for name, value in outputs.items()}, prediction.image.shape[:2]
                if self.task == 'segmentation':
                    result = tasks.segmentation(own['logits'], prepared.size, size, self._settings, return_logits)
                elif self.task == 'detection':
                    result = tasks.detections(own, prepared.size, size, self._settings)
                else:
                    (logits,) = own.values()
                    result = tasks.classification(logits)
                prediction.result = result
        except (InputError, MemoryError, cv2.error) as error:
            if len(batch) > 1:
                for one in batch:
                    yield from self._predict([one], batch_size, return_logits)
                return
            ((prediction, _),) = batch
            prediction.error = image_error(error, prediction.image)
        yield from (prediction for prediction, _ in batch)

    def _outputs(self, inputs: np.ndarray, batch_size: int) -> dict[str, np.ndarray]:
        """The outputs for inputs of one size; of segmentors the logits of every pixel of the input."""
        if self.task != 'segmentation':
            return self.run(tasks.padded(inputs, **self._takes))
        align_corners = self._settings.get('align_corners', False)
        if self.mode == 'whole':
            return dict(logits=tasks.whole(self.run, inputs, align_corners, **self._takes))
        crop_size, stride = self._settings['crop_size'], self._settings['stride']
        height, width = inputs.shape[2:]
        if self._fixed_size:
            # Its windows have the one size that it takes, also of a smaller image, and overlap in proportion.
            stride = [max(step * own // side, 1) for step, own, side in zip(stride, self._fixed_size, crop_size)]
            crop_size = self._fixed_size
            missing = [max(own - length, 0) for own, length in zip(crop_size, (height, width))]
            inputs = np.pad(inputs, ((0, 0), (0, 0), (0, missing[0]), (0, missing[1])))
        logits = tasks.slide(self.run, inputs, crop_size, stride, align_corners, batch_size, **self._takes)
        return dict(logits=logits[:, :, :height, :width])
