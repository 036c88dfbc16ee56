"""The files of `tools/predict.py`: overlays, COCO's JSON, index images with a palette, panoptic maps."""

from collections.abc import Collection
from pathlib import Path

import cv2
import numpy as np
import torch
from mmdet.structures import INSTANCE_OFFSET
from mmdet.structures.mask import encode_mask_results
from mmengine.structures import BaseDataElement
from PIL import Image
from pycocotools import mask as coco_mask

from ..cli.reports import unique_name, write_json
from ..datasets.panoptic import PanopticMap
from ..files import PARTIAL, atomic_path
from .inputs import Video
from .predictor import Prediction, Predictor

DOCUMENT = 'predictions.json'
# Codecs that browsers play, then one that every player does. The wheels of OpenCV have no encoder for H.264 (avc1).
CODECS = ('vp09', 'avc1', 'mp4v')
LEFT_OUT = 255  # in index images: a class that was not asked for
MAX_PALETTE = 256


class Results:
    """The results of a run, in a folder.

    - `overlays/NAME.png`, of videos `overlays/NAME.mp4`: the image with its prediction.
    - `labels/NAME.png`, of videos `labels/NAME/FRAME.png`, of segmentors: the index of the class in every pixel, with
      the palette; 255 for classes that were left out.
    - `panoptic/NAME.png`, of videos `panoptic/NAME/FRAME.png`, of panoptic models: the ID of the segment of every
      pixel, R + 256 G + 256^2 B; 0 for pixels of none and of classes that were left out.
    - `predictions.json`: of detectors COCO's format, with the index of the class plus 1 as category id, `bbox` as x,
      y, width and height in pixels, and where there are masks `segmentation` in run lengths; of panoptic models
      COCO's panoptic format, with the same category ids; of segmentors the label map of each image, with the index of
      the class as category id.

    NAME is that of the file, with its folder or a number where several inputs share it.

    Args:
        folder: The folder, which is made with the first file.
        predictor: What predicts.
        score_thr: Leave out detections with a lower score. Segments of panoptic models have none.
        classes: Names of the classes to keep; None for all.
    """

    def __init__(
        self, folder: Path, predictor: Predictor, score_thr: float = 0.3, classes: Collection[str] | None = None
    ) -> None:
        self.folder, self.predictor, self.score_thr = folder, predictor, score_thr
        kept = predictor.classes if classes is None else classes
        self.kept = [index for index, name in enumerate(predictor.classes) if name in kept]
        first_id = int(predictor.task != 'segmentation')
        self.images, self.annotations = [], []
        self.categories = [
            dict(id=index + first_id, name=name, color=list(color))
            for index, (name, color) in enumerate(zip(predictor.classes, predictor.palette))
        ]
        if predictor.task == 'panoptic':
            num_things = predictor.config.model.panoptic_fusion_head.num_things_classes
            for index, category in enumerate(self.categories):
                category['isthing'] = int(index < num_things)
        self._names: set[str] = set()

    def add_image(self, prediction: Prediction) -> None:
        """Write the prediction for an image file."""
        name = self._name_of(str(prediction.source))
        overlay = self._add(prediction, name, dict(file_name=str(prediction.source)))
        _write_png(self._path(f'overlays/{name}.png'), Image.fromarray(overlay[..., ::-1]))

    def add_video(self, video: Video) -> 'VideoResults':
        """Write the predictions for the frames of a video: a context, to which they are given one by one."""
        return VideoResults(self, self._name_of(video.name if video.is_camera else str(video.source)), video)

    def write(self) -> None:
        """Write what is in no file yet."""
        document = dict(images=self.images, categories=self.categories)
        if self.predictor.task != 'segmentation':
            document['annotations'] = self.annotations
        write_json(self._path(DOCUMENT), document, indent=None)

    def _name_of(self, path: str) -> str:
        name = unique_name(path, self._names)
        self._names.add(name)
        return name

    def _path(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _add(self, prediction: Prediction, name: str, entry: dict) -> np.ndarray:
        """Keep a prediction for the document, write its label map, and return the overlay, BGR uint8 (H, W, 3)."""
        height, width = prediction.image.shape[:2]
        entry = dict(id=len(self.images) + 1, **entry, width=width, height=height)
        sample = prediction.sample.cpu()
        if self.predictor.task == 'detection':
            sample.pred_instances = self._keep(sample)
            for annotation in coco_annotations(sample):
                number = len(self.annotations) + 1
                self.annotations.append(dict(id=number, image_id=entry['id'], **annotation))
        elif self.predictor.task == 'panoptic':
            segments = sample.pred_panoptic_seg.sem_seg
            segments[~torch.isin(segments % INSTANCE_OFFSET, torch.tensor(self.kept))] = len(self.categories)
            panoptic = panoptic_map(segments[0].numpy(), len(self.categories))
            file_name = f'panoptic/{name}.png'
            _write_png(self._path(file_name), panoptic.image())
            self.annotations.append(
                dict(image_id=entry['id'], file_name=file_name, segments_info=panoptic.segments())
            )
        else:
            sample.pred_sem_seg.data = self._relabel(sample.pred_sem_seg.data.long())
            entry['label_map'] = f'labels/{name}.png'
            labels = sample.pred_sem_seg.data[0].numpy()
            _write_png(self._path(entry['label_map']), index_image(labels, self.predictor.palette))
        self.images.append(entry)
        # What is below the threshold is left out already.
        return self.predictor.draw(prediction.image, sample, score_thr=-1.0)

    def _keep(self, sample: BaseDataElement) -> BaseDataElement:
        """The detections of the kept classes whose score is high enough."""
        instances = sample.pred_instances
        return instances[(instances.scores >= self.score_thr) & torch.isin(instances.labels, torch.tensor(self.kept))]

    def _relabel(self, labels: torch.Tensor) -> torch.Tensor:
        """The label map with the classes that are not kept marked as left out."""
        left_out = LEFT_OUT if len(self.categories) <= LEFT_OUT else len(self.categories)
        return torch.where(torch.isin(labels, torch.tensor(self.kept)), labels, left_out)


class VideoResults:
    """The results of a video: a context, at whose end the MP4 is complete.

    Args:
        results: The results of the run.
        name: Name of the video in them.
        video: The video.
    """

    def __init__(self, results: Results, name: str, video: Video) -> None:
        self.results, self.name, self.video = results, name, video
        self.num_frames = 0
        self._path = results._path(f'overlays/{name}.mp4')
        # OpenCV chooses the container by the suffix.
        self._partial = self._path.with_name(f'.{self._path.stem}{PARTIAL}.mp4')
        self._writer = None

    def __enter__(self) -> 'VideoResults':
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            # Also after an interruption the frames so far are a video.
            self._writer.release()
            self._partial.replace(self._path)

    def add_frame(self, prediction: Prediction) -> None:
        """Write the prediction for the next frame; of a frame without one, the frame as it is."""
        frame = prediction.source if prediction.image is None else prediction.image
        if prediction.error is None:
            entry = dict(
                file_name=str(self.video.source),
                frame=self.num_frames,
                seconds=round(self.num_frames / self.video.frame_rate, 3),
            )
            frame = self.results._add(prediction, f'{self.name}/{self.num_frames:06d}', entry)
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
    """
    for codec in CODECS:
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), frame_rate, size)
        if writer.isOpened():
            return writer
    raise OSError(f'OpenCV cannot write an MP4 of {size[0]} x {size[1]} pixels: none of {", ".join(CODECS)}')


def coco_annotations(sample: BaseDataElement) -> list[dict]:
    """The detections of an image in COCO's format, by falling score, without ids."""
    instances = sample.pred_instances.numpy()
    boxes = [[left, top, right - left, bottom - top] for left, top, right, bottom in instances.bboxes.tolist()]
    annotations = [
        dict(category_id=label + 1, bbox=box, score=score, area=box[2] * box[3], iscrowd=0)
        for label, box, score in zip(instances.labels.tolist(), boxes, instances.scores.tolist())
    ]
    if 'masks' in instances:
        for annotation, mask in zip(annotations, encode_mask_results(instances.masks)):
            annotation['area'] = int(coco_mask.area(mask))
            annotation['segmentation'] = dict(size=mask['size'], counts=mask['counts'].decode())
    return sorted(annotations, key=lambda annotation: -annotation['score'])


def panoptic_map(segments: np.ndarray, num_classes: int) -> PanopticMap:
    """The segments of an image in COCO's form, with the index of the class plus 1 as category id.

    Args:
        segments: (H, W) int, class + `INSTANCE_OFFSET` * number of the object; `num_classes` is no segment.
        num_classes: Number of classes.
    """
    panoptic = PanopticMap(segments.shape)
    for segment in np.unique(segments).tolist():
        label = segment % INSTANCE_OFFSET
        if label < num_classes:
            panoptic.add(segments == segment, label + 1)
    return panoptic


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


def _write_png(path: Path, image: Image.Image) -> None:
    with atomic_path(path) as partial:
        image.save(partial, format='PNG')
