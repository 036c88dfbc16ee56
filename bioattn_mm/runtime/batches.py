"""What `Model` and `bioattn_mm.Predictor` share: they predict on image after image, in batches of one size."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from ..errors import InputError
from .drawing import OPACITY, draw
from .images import ImageKind, check_array, shown
from .predictions import Detections, Result

Source = str | Path | np.ndarray


@dataclass
class ImagePrediction:
    """What became of one image; a subclass has the prediction itself.

    Attributes:
        source: The path or the array that was given.
        image: BGR, uint8 (H, W, 3), or of the model's `kind`; None if it could not be read.
        error: Why there is no prediction; None if there is one.
    """

    source: object
    image: np.ndarray | None = None
    error: InputError | None = None


Batch = list[tuple[ImagePrediction, object]]  # the second is what `_prepare` made of the image


class BatchPredictor:
    """Predicts on images in batches and draws what it predicts; a subclass reads images and computes.

    It has `read(path)`, which gives an image, `_prepare(prediction)`, which reads the image of a prediction and gives
    what is computed on, of one `shape` in a batch, and `_compute(batch, batch_size, return_logits)`, which puts the
    outputs into the predictions of a `Batch`.

    Attributes:
        prediction_type: The class of its predictions.
        output: Name of what a call returns of each.
    """

    prediction_type: type[ImagePrediction]
    output: str
    kind: ImageKind | None
    classes: tuple[str, ...]
    palette: list[tuple[int, int, int]]

    def __call__(self, images: Source | Sequence[Source], batch_size: int = 1, return_logits: bool = False) -> list:
        """Predict on images.

        Args:
            images: A path or an array (BGR, uint8 (H, W, 3), or of the model's `kind`), or several in a list.
            batch_size: Number of images, or windows of an exported segmentor, that the model takes at once; only
                neighbours of the same size go together.
            return_logits: Segmentors: also the logits of every class in every pixel, which take much memory.

        Returns:
            The prediction for each image.

        Raises:
            InputError: An image cannot be read or predicted on.
        """
        results = []
        images = [images] if isinstance(images, (str, Path, np.ndarray)) else images
        for prediction in self.iterate(images, batch_size, return_logits):
            if prediction.error is not None:
                raise prediction.error
            results.append(getattr(prediction, self.output))
        return results

    def iterate(
        self, images: Iterable[Source], batch_size: int = 1, return_logits: bool = False
    ) -> Iterator[ImagePrediction]:
        """Predict on images one after the other, as many as there are: also frames of a video.

        Arguments are those of a call.

        Yields:
            The prediction for each image, in their order. An image that cannot be read or predicted on has an `error`
            instead, and the others go on.
        """
        options, batch = (batch_size, return_logits), []
        for source in images:
            prediction = self.prediction_type(source)
            with keeping_error(prediction):
                inputs = self._prepare(prediction)
            if batch and (prediction.error or inputs.shape != batch[0][1].shape):
                yield from self._computed(batch, options)
                batch = []
            if prediction.error:
                yield prediction
                continue
            batch.append((prediction, inputs))
            if len(batch) >= batch_size:
                yield from self._computed(batch, options)
                batch = []
        yield from self._computed(batch, options)

    def draw(self, image: Source, result: object, score_thr: float = 0.3, opacity: float = OPACITY) -> np.ndarray:
        """Draw a prediction over its image, with the names of the classes.

        Args:
            image: The image that was predicted on, a path or an array. Of other images than RGB in 8 bits three
                channels are drawn (see `images.shown`).
            result: Its prediction, as a call returns it.
            score_thr: Leave out detections with a lower score.
            opacity: Of classes and masks, from 0, where they are not seen, to 1, where the image is not.

        Returns:
            BGR, uint8 (H, W, 3), smaller for images of more than `drawing.MAX_PIXELS`.
        """
        image, result = self.read(image) if isinstance(image, (str, Path)) else image, self._arrays(result)
        if isinstance(result, Detections):
            result = result.keep(result.scores >= score_thr)
        pixels = image.astype(np.uint8, copy=False) if self.kind is None else shown(image)
        return draw(pixels, result, self.classes, self.palette, opacity)

    def _arrays(self, result: object) -> Result:
        """What a call returns as one of the classes of `predictions`."""
        return result

    def _image_of(self, source: Source) -> np.ndarray:
        return check_array(source, self.kind) if isinstance(source, np.ndarray) else self.read(source)

    def _computed(self, batch: Batch, options: tuple) -> Iterator[ImagePrediction]:
        """The predictions of a batch; if it fails, of each image alone, so that only those fail that must."""
        if not batch:
            return
        first = batch[0][0]
        with keeping_error(first):
            self._compute(batch, *options)
        if first.error and len(batch) > 1:
            first.error = None
            for one in batch:
                yield from self._computed([one], options)
        else:
            yield from (prediction for prediction, _ in batch)


@contextmanager
def keeping_error(prediction: ImagePrediction) -> Iterator[None]:
    """Context in which an error that one image causes becomes that of its prediction, and the run goes on."""
    try:
        yield
    except (InputError, MemoryError, cv2.error) as error:
        image = prediction.image
        what = 'the image' if image is None else f'an image of {image.shape[1]} x {image.shape[0]} pixels'
        if isinstance(error, MemoryError):
            text = f'{what} needs more memory than there is: make it smaller, or cut it into pieces'
        elif isinstance(error, cv2.error):  # OpenCV raises it when it resizes
            text = f'{what} cannot be resized to what the model takes: its sides differ too much, or it is too large'
        elif image is None or str(error).startswith(what):
            text = str(error)
        else:
            text = f'{what}: {error}'
        prediction.error = InputError(text)
