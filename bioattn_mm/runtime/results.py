"""The files of `tools/predict.py`: overlays, COCO's JSON, index images with a palette."""

import functools
from collections.abc import Collection, Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from ..errors import InputError
from ..files import PARTIAL, unique_name, write_json
from .channels import shown
from .drawing import drawn_size, shrunk
from .formats import VocFiles, YoloFiles, check_formats, write_png, write_text
from .inputs import Video, opencv_path
from .tasks import Classification, Detections

DOCUMENT = 'predictions.json'
CLASSES = 'classes.txt'  # names of the values in label maps, as own data have it
# Codecs that browsers play, then one that every player does. The wheels of OpenCV have no encoder for H.264 (avc1).
CODECS = ('vp09', 'avc1', 'mp4v')
LEFT_OUT = 255  # in index images: a class that was not asked for
MAX_PALETTE = 256


class Files:
    """The folder of a run, whatever predicts.

    A subclass says with `add` what it writes of a prediction besides the overlay.

    Args:
        folder: The folder, which is made with the first file.
        predictor: What predicts: it has a `task`, `classes` and a `palette`.
        score_thr: Leave out detections with a lower score.
        classes: Names of the classes to keep; None for all.
        formats: What a detector writes, of `formats.FORMATS`; None for COCO's.
        save_conf: Whether the lines of YOLO's format end with the score.

    Raises:
        InputError: The model does not write one of the formats.
    """

    def __init__(
        self,
        folder: Path,
        predictor: object,
        score_thr: float = 0.3,
        classes: Collection[str] | None = None,
        formats: Sequence[str] | None = None,
        save_conf: bool = False,
    ) -> None:
        check_formats(formats or (), predictor.task, len(predictor.classes))
        others = dict(yolo=functools.partial(YoloFiles, save_conf=save_conf), voc=VocFiles)
        self.writers = [others[name](folder, predictor.classes) for name in formats or () if name in others]
        self.has_document = not self.writers or 'coco' in formats
        self.folder, self.predictor, self.score_thr = folder, predictor, score_thr
        kept = predictor.classes if classes is None else classes
        self.kept = [index for index, name in enumerate(predictor.classes) if name in kept]
        first_id = int(predictor.task in ('detection', 'panoptic'))
        self.images, self.annotations = [], []
        self.categories = [
            dict(id=index + first_id, name=name, color=list(color))
            for index, (name, color) in enumerate(zip(predictor.classes, predictor.palette))
        ]
        self._names: set[str] = set()

    def add(self, prediction: object, name: str, entry: dict) -> np.ndarray:
        """Keep a prediction for the document and write its files.

        Args:
            prediction: The prediction.
            name: Of its files.
            entry: Of the image in the document.

        Returns:
            The overlay, BGR, uint8 (H, W, 3).
        """
        raise NotImplementedError

    def add_image(self, prediction: object) -> None:
        """Write the prediction for an image file."""
        name = self._name_of(str(prediction.source))
        overlay = self._add(prediction, name, dict(file_name=str(prediction.source)))
        write_png(self.path(f'overlays/{name}.png'), Image.fromarray(overlay[..., ::-1]))

    def add_detected(self, path: str, size: tuple[int, int], result: Detections) -> None:
        """Write the detections for an image file of a size (height, width), without overlay."""
        entry = dict(id=len(self.images) + 1, file_name=path, width=size[1], height=size[0])
        self.add_detections(self._name_of(path), entry, result)
        self.images.append(entry)

    def add_video(self, video: Video) -> 'VideoFile':
        """Write the predictions for the frames of a video: a context, to which they are given one by one."""
        return VideoFile(self, self._name_of(video.name if video.is_camera else str(video.source)), video)

    def write(self) -> None:
        """Write what is in no file yet."""
        for writer in self.writers:
            writer.finish()
        if self.predictor.task == 'segmentation':
            write_text(self.folder / CLASSES, ''.join(f'{name}\n' for name in self.predictor.classes))
        if not self.has_document:
            return
        document = dict(images=self.images, categories=self.categories)
        if self.predictor.task in ('detection', 'panoptic'):
            document['annotations'] = self.annotations
        write_json(self.path(DOCUMENT), document, indent=None)

    def path(self, name: str) -> Path:
        """Where to write a file, in a folder that exists."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write_labels(self, name: str, entry: dict, labels: np.ndarray) -> None:
        """Write the label map of a segmentor, int (H, W), and its path into the entry of the image."""
        entry['label_map'] = f'labels/{name}.png'
        write_png(self.path(entry['label_map']), index_image(labels, self.predictor.palette))

    def add_scores(self, entry: dict, scores: np.ndarray) -> np.ndarray:
        """Write the scores of a classifier, (classes,), and the best kept class into the entry of the image.

        Returns:
            The scores to draw: -1 for classes that are not kept.
        """
        drawn = np.full_like(scores, -1)
        drawn[self.kept] = scores[self.kept]
        kept = int(drawn.argmax())
        entry.update(category_id=kept, score=float(scores[kept]), scores=scores.tolist())
        return drawn

    def add_detections(self, name: str, entry: dict, result: Detections) -> None:
        """Keep the detections of an image for the document, and write its files of other formats."""
        self.add_annotations(entry, coco_annotations(result))
        for writer in self.writers:
            writer.add(name, entry, result)

    def add_annotations(self, entry: dict, annotations: list[dict]) -> None:
        """Keep the annotations of an image in COCO's format for the document."""
        for annotation in annotations:
            self.annotations.append(dict(id=len(self.annotations) + 1, image_id=entry['id'], **annotation))

    def relabel(self, labels: np.ndarray) -> np.ndarray:
        """A label map with the classes that are not kept marked as left out, uint8 or uint16."""
        number = len(self.categories)
        left_out = LEFT_OUT if number <= LEFT_OUT else number
        # A segmentor of one class marks its pixels with 0 and the others with 1.
        table = np.full(max(number, 2), left_out, np.uint8 if left_out == LEFT_OUT else np.uint16)
        table[self.kept] = self.kept
        return table[labels]

    def _name_of(self, path: str) -> str:
        name = unique_name(path, self._names)
        self._names.add(name)
        return name

    def _add(self, prediction: object, name: str, entry: dict) -> np.ndarray:
        height, width = prediction.image.shape[:2]
        entry = dict(id=len(self.images) + 1, **entry, width=width, height=height)
        overlay = self.add(prediction, name, entry)
        self.images.append(entry)
        return overlay


class Results(Files):
    """The results of a run of a `Model`, in a folder.

    - `overlays/NAME.png`, of videos `overlays/NAME.mp4`: the image with its prediction.
    - `labels/NAME.png`, of videos `labels/NAME/FRAME.png`, of segmentors: the index of the class in every pixel, with
      the palette; 255 for classes that were left out. `classes.txt`: the names of the classes.
    - `predictions.json`: of detectors COCO's format, with the index of the class plus 1 as category id, `bbox` as x,
      y, width and height in pixels, and where there are masks `segmentation` in run lengths; of segmentors the label
      map of each image, and of classifiers its class and the score of every class, with the index of the class as
      category id.
    - of detectors in place of it, or beside it, what `formats.YoloFiles` and `formats.VocFiles` write.

    NAME is that of the file, with its folder or a number where several inputs share it.
    """

    def add(self, prediction: object, name: str, entry: dict) -> np.ndarray:
        result = prediction.result
        if self.predictor.task == 'segmentation':
            result.labels = self.relabel(result.labels)
            self.write_labels(name, entry, result.labels)
        elif self.predictor.task == 'detection':
            result = result.keep((result.scores >= self.score_thr) & np.isin(result.labels, self.kept))
            self.add_detections(name, entry, result)
        else:
            result = Classification(self.add_scores(entry, result.scores))
        # What is below the threshold is left out already.
        return self.predictor.draw(prediction.image, result, score_thr=-1.0)


class VideoFile:
    """The results of a video: a context, at whose end the MP4 is complete.

    Args:
        files: The results of the run.
        name: Name of the video in them.
        video: The video.
    """

    def __init__(self, files: Files, name: str, video: Video) -> None:
        self.files, self.name, self.video = files, name, video
        self.num_frames = 0
        self._path = files.path(f'overlays/{name}.mp4')
        # OpenCV chooses the container by the suffix.
        self._partial = self._path.with_name(f'.{self._path.stem}{PARTIAL}.mp4')
        self._writer = None

    def __enter__(self) -> 'VideoFile':
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            # The frames so far are a whole video, after an interruption, too.
            self._writer.release()
            self._partial.replace(self._path)

    def add_frame(self, prediction: object) -> None:
        """Write the prediction for the next frame; of a frame without one, the frame as it is."""
        frame = prediction.source if prediction.image is None else prediction.image
        frame = frame if self.files.predictor.kind is None else shown(frame)
        frame = shrunk(frame, drawn_size(frame))
        if prediction.error is None:
            entry = dict(
                file_name=str(self.video.source),
                frame=self.num_frames,
                seconds=round(self.num_frames / self.video.frame_rate, 3),
            )
            frame = self.files._add(prediction, f'{self.name}/{self.num_frames:06d}', entry)
        if self._writer is None:
            self._writer = open_writer(self._partial, self.video.frame_rate, (frame.shape[1], frame.shape[0]))
        self._writer.write(frame)
        self.num_frames += 1


def open_writer(path: Path, frame_rate: float, size: tuple[int, int]) -> cv2.VideoWriter:
    """A writer for an MP4 file in the first of `CODECS` that OpenCV can encode.

    Args:
        path: The file.
        frame_rate: Frames per second.
        size: (width, height) in pixels; OpenCV leaves out the last row and column of an odd number.

    Raises:
        OSError: OpenCV can encode none of them.
        InputError: See `opencv_path`.
    """
    for codec in CODECS:
        writer = cv2.VideoWriter(opencv_path(path), cv2.VideoWriter_fourcc(*codec), frame_rate, size)
        if writer.isOpened():
            return writer
    raise OSError(f'OpenCV cannot write an MP4 of {size[0]} x {size[1]} pixels: none of {", ".join(CODECS)}')


def coco_annotations(result: Detections) -> list[dict]:
    """The detections of an image in COCO's format, by falling score, without ids."""
    annotations = []
    for index in result.best_first():
        left, top, right, bottom = result.boxes[index].tolist()
        box = [left, top, right - left, bottom - top]
        label, score = int(result.labels[index]), float(result.scores[index])
        annotations.append(dict(category_id=label + 1, bbox=box, score=score, area=box[2] * box[3], iscrowd=0))
        if result.masks is not None:
            annotations[-1].update(_run_lengths(result.masks[index]))
    return annotations


def _run_lengths(mask: np.ndarray | dict) -> dict:
    try:
        from pycocotools import mask as coco_mask
    except ModuleNotFoundError as error:
        raise InputError('pycocotools, which encodes masks, is not installed: pip install pycocotools') from error
    encoded = mask if isinstance(mask, dict) else coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    segmentation = dict(size=encoded['size'], counts=encoded['counts'].decode())
    return dict(area=int(coco_mask.area(encoded)), segmentation=segmentation)


def index_image(labels: np.ndarray, palette: list[tuple[int, int, int]]) -> Image.Image:
    """An image whose pixels are indices of classes, shown in their colours; in 16 bits and grey if they are many.

    Args:
        labels: (H, W) of ints.
        palette: R, G and B of each class.
    """
    if len(palette) > MAX_PALETTE or labels.max() >= MAX_PALETTE:
        return Image.fromarray(labels.astype(np.uint16))
    image = Image.fromarray(labels.astype(np.uint8))
    # All 256 entries: Pillow packs pixels into as few bits as a shorter palette needs.
    image.putpalette([value for color in palette for value in color] + [0] * 3 * (MAX_PALETTE - len(palette)))
    return image
