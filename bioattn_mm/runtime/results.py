"""The files of `tools/predict.py`: overlays, label maps, and a JSON document."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from .drawing import reduced
from .files import unique_name, write_json
from .formats import check_formats, coco_annotations, index_image, write_png, write_text, yolo_lines, yolo_names
from .images import shown
from .predictions import Classification, Detections, Result, Segmentation
from .videos import Mp4Writer, Video

LEFT_OUT = 255  # the index of a class that was not asked for


class Results:
    """The results of a run, in a folder.

    - `overlays/NAME.png`, of videos `overlays/NAME.mp4`: the image with its prediction.
    - `labels/NAME.png`, of videos `labels/NAME/FRAME.png`, of segmentors: the index of the class in every pixel, with
      the palette; 255 for classes that were left out. `classes.txt`: the names of the classes, as own data have it.
    - `predictions.json`: of detectors COCO's format, with the index of the class plus 1 as category id; of segmentors
      the label map of each image; of classifiers its class and the score of every class.
    - `labels/NAME.txt` and `data.yaml`, of detectors: YOLO's format, if it is asked for.

    NAME is that of the file, with its folder or a number where several inputs share it.

    Args:
        folder: The folder, which is made with the first file.
        predictor: What predicts: it has a `task`, `classes` and a `palette`.
        score_thr: Leave out detections with a lower score.
        classes: Names of the classes to keep; None for all.
        formats: What a detector writes, of `formats.FORMATS`; None for COCO's.

    Raises:
        InputError: There are formats, and the model is no detector.
    """

    def __init__(
        self,
        folder: Path,
        predictor: object,
        score_thr: float = 0.3,
        classes: Collection[str] | None = None,
        formats: Sequence[str] | None = None,
    ) -> None:
        check_formats(formats, predictor.task)
        self.formats = formats or ('coco',)
        self.folder, self.predictor, self.score_thr = folder, predictor, score_thr
        kept = predictor.classes if classes is None else classes
        self.kept = [index for index, name in enumerate(predictor.classes) if name in kept]
        first_id = int(predictor.task in ('detection', 'panoptic'))
        self.images, self.annotations, self.num_objects = [], [], 0
        self.categories = [
            dict(id=index + first_id, name=name, color=list(color))
            for index, (name, color) in enumerate(zip(predictor.classes, predictor.palette))
        ]
        self._names: set[str] = set()

    def add_image(self, prediction: object) -> None:
        """Write the prediction for an image file."""
        name = self._name_of(str(prediction.source))
        overlay = self._add(prediction, name, dict(file_name=str(prediction.source)))
        write_png(self.folder / f'overlays/{name}.png', Image.fromarray(overlay[..., ::-1]))

    def add_video(self, video: Video, predictions: Iterable) -> Iterator:
        """Write the predictions for the frames of a video; of a frame without one, the frame as it is.

        Yields:
            Each prediction after it was written.
        """
        name = self._name_of(video.name if video.is_camera else str(video.source))
        with Mp4Writer(self.folder / f'overlays/{name}.mp4', video.frame_rate) as file:
            for number, prediction in enumerate(predictions):
                if prediction.error is None:
                    seconds = round(number / video.frame_rate, 3)
                    entry = dict(file_name=str(video.source), frame=number, seconds=seconds)
                    file.write(self._add(prediction, f'{name}/{number:06d}', entry))
                else:
                    frame = prediction.source if prediction.image is None else prediction.image
                    file.write(reduced(frame if self.predictor.kind is None else shown(frame)))
                yield prediction

    def write(self) -> None:
        """Write what is in no file yet."""
        if 'yolo' in self.formats:
            write_text(self.folder / 'data.yaml', yolo_names(self.predictor.classes))
        if self.predictor.task == 'segmentation':
            write_text(self.folder / 'classes.txt', ''.join(f'{name}\n' for name in self.predictor.classes))
        if 'coco' in self.formats:
            document = dict(images=self.images, categories=self.categories)
            if self.predictor.task in ('detection', 'panoptic'):
                document['annotations'] = self.annotations
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / 'predictions.json', document, indent=None)

    def _name_of(self, path: str) -> str:
        name = unique_name(path, self._names)
        self._names.add(name)
        return name

    def _add(self, prediction: object, name: str, entry: dict) -> np.ndarray:
        """Write the files of a prediction, keep its entry for the document, and return the overlay, BGR."""
        height, width = prediction.image.shape[:2]
        entry = dict(id=len(self.images) + 1, **entry, width=width, height=height)
        kept = self._write(name, entry, prediction.result)
        self.images.append(entry)
        # What is below the threshold is left out already.
        return self.predictor.draw(prediction.image, kept, score_thr=-1.0)

    def _write(self, name: str, entry: dict, result: Result) -> Result:
        """Write the files of a prediction and what the document says of it into its entry; returns what is drawn."""
        if isinstance(result, Detections):
            result = result.keep((result.scores >= self.score_thr) & np.isin(result.labels, self.kept))
            self.num_objects += len(result.scores)
            for annotation in coco_annotations(result) if 'coco' in self.formats else ():
                self.annotations.append(dict(id=len(self.annotations) + 1, image_id=entry['id'], **annotation))
            if 'yolo' in self.formats:
                lines = yolo_lines(result, entry['height'], entry['width'])
                write_text(self.folder / f'labels/{name}.txt', lines)
            return result
        if isinstance(result, Classification):
            # Classes that are not kept lose to all others.
            drawn = np.full_like(result.scores, -1)
            drawn[self.kept] = result.scores[self.kept]
            label = int(drawn.argmax())
            entry.update(category_id=label, score=float(result.scores[label]), scores=result.scores.tolist())
            return Classification(drawn)
        number = len(self.categories)
        left_out = LEFT_OUT if number <= LEFT_OUT else number
        # A segmentor of one class marks its pixels with 0 and the others with 1.
        table = np.full(max(number, 2), left_out, np.uint8 if left_out == LEFT_OUT else np.uint16)
        table[self.kept] = self.kept
        labels, entry['label_map'] = table[result.labels], f'labels/{name}.png'
        write_png(self.folder / entry['label_map'], index_image(labels, self.predictor.palette))
        return Segmentation(labels)
