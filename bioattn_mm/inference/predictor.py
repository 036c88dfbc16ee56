"""Prediction with a model of any task, through the inferencers of mmdet, mmseg and mmpretrain."""

import contextlib
import copy
import functools
import math
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from mmdet.apis import DetInferencer
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.infer import BaseInferencer
from mmengine.registry import MODELS, TRANSFORMS, init_default_scope
from mmengine.runner import find_latest_checkpoint
from mmengine.structures import BaseDataElement, PixelData
from mmseg.apis import MMSegInferencer
from torch import nn

from ..checkpoints import check_fit, dataset_meta_of, read_checkpoint, weights_of
from ..datasets.transforms import LoadChannelsFromFile
from ..engine.amp import autocast_dtype, in_float32
from ..engine.hooks import check_predictions
from ..errors import InputError
from ..run_config.classes import take_classes
from ..run_config.config import default_work_dir, load_config
from ..run_config.model_check import state_dict_of
from ..run_config.pipelines import (
    data_preprocessor_of,
    image_kind,
    is_panoptic,
    name_host_loading,
    type_name,
    without_annotations,
)
from ..run_config.runner import is_out_of_memory
from ..runtime.channels import as_input, shown
from ..runtime.drawing import OPACITY, draw, drawn_size, resized_labels, shrunk
from ..runtime.images import check_array, image_error
from ..runtime.tasks import Classification, Segmentation
from .images import free_memory, read_image
from .label_maps import can_predict_labels, predict_labels
from .rasters import Raster, blocks, is_raster
from .run_lengths import decode_mask, encode_arrays, encode_masks
from .tiles import Tiling, merge

EXPORTED_SUFFIX = '.onnx'
# Side of the blocks in which a segmentor takes an image that is larger than memory.
BLOCK = 2048


@dataclass
class Prediction:
    """What became of one image.

    Attributes:
        source: The path or the array that was given.
        image: The image as the model's pipeline loaded it, BGR, uint8 (H, W, 3), or of the predictor's `kind`, or
            what reads windows of a large file; None if it could not be read.
        sample: mmdet's, mmseg's or mmpretrain's data sample; None after an error.
        error: Why there is no prediction; None if there is one.
    """

    source: object
    image: np.ndarray | Raster | None = None
    sample: BaseDataElement | None = None
    error: InputError | None = None


class Predictor:
    """Predicts on images with a detector, segmentor, panoptic model or classifier of any config.

    The predictions are those of `tools/test.py`; boxes, masks and label maps have the size and the coordinates of the
    image as a viewer shows it, turned as its EXIF data say. Arrays are BGR, as OpenCV reads them, going in and out.
    Images of a model for others than RGB in 8 bits (`kind`) have its channels, in the order of the files, and its
    dtype, and what is drawn shows three of them.

    Examples:
        >>> import bioattn_mm
        >>> predictor = bioattn_mm.Predictor('configs/transnext/upernet_tiny_ade20k.py', 'iter_160000.pth')
        >>> (sample,) = predictor('street.jpg')

        The classes that were found, and in a notebook the picture:

        >>> {predictor.classes[index] for index in sample.pred_sem_seg.data.unique()}
        >>> import cv2, matplotlib.pyplot as plt
        >>> plt.imshow(predictor.draw('street.jpg', sample)[..., ::-1])

        Of a detector:

        >>> sample.pred_instances[sample.pred_instances.scores > 0.3].bboxes    # x1, y1, x2, y2 in pixels

    Of a panoptic model, the segment of each pixel, its class + 1000 times the number of the object:

        >>> sample.pred_panoptic_seg.sem_seg

    Of a classifier, the most probable class and the probability of each:

        >>> predictor.classes[sample.pred_label], sample.pred_score

    Args:
        config: Config file, or a config that was read.
        checkpoint: Checkpoint of the whole model, a file, a URL or `hf://OWNER/NAME/FILE` of a Hugging Face
            repository; its classes and palette are taken if it names some. Or an ONNX file that `tools/export.py`
            wrote, which runs in onnxruntime: whole images, one at a time.
        device: Device to compute on, such as 'cpu' or 'cuda:0'. Default: the GPU if there is one, else the CPU.
        mini: Take the miniature of the config (see `run_config.mini.make_mini`), and without a checkpoint the newest
            one of `tools/train.py CONFIG --mini` or `make demo`.
        cfg_options: Values that replace those of the config, by dotted key.
        bias_mode: Position bias of TransNeXt: 'extrapolate', 'interpolate' or 'linear'. Default: the config's.
        tta: Multi-scale and flip testing, as the config defines it; of Mask R-CNN the boxes alone.
        amp: Compute in mixed precision, 'float16' or 'bfloat16'; float16 needs a GPU, and bfloat16 a CPU
            or GPU with instructions for it.
        mode: Of segmentors: 'slide' moves a window over the image, 'whole' takes it at once. Default: the config's.
        run_lengths: Of Mask R-CNN and its kin: make masks of detections with at least this score alone, and give them
            as a list of COCO's run lengths, which take little memory of large images. Default: arrays, of all.
        tiling: Of detectors: predict on overlapping tiles of each image and on the whole of it, and merge what is
            found (see `tiles.merge`); for small objects in large images. Masks are run lengths. Default: the
            whole image alone.

    Attributes:
        config (Config): The config after all changes.
        checkpoint (str): The file or URL of the weights.
        model (nn.Module): The model, in eval mode; of an ONNX file mmdeploy's model of a backend.
        task (str): 'detection', 'segmentation', 'panoptic' or 'classification'.
        classes (tuple[str, ...]): Names of the classes in the order of their indices.
        palette (list[tuple[int, int, int]]): R, G and B of each class.
        device (torch.device): Where the model is.
        kind (ImageKind | None): Channels and dtype of the model's images; None: RGB in 8 bits.
        on_tile (Callable | None): Called with the number of tiles that are done and of all, for each image.

    Raises:
        InputError: The config or the checkpoint cannot be used, or an argument does not go with them. The message is
            one line that says why.
    """

    def __init__(
        self,
        config: str | Path | Config,
        checkpoint: str | Path | None = None,
        *,
        device: str | None = None,
        mini: bool = False,
        cfg_options: dict[str, object] | None = None,
        bias_mode: str | None = None,
        tta: bool = False,
        amp: str | None = None,
        mode: str | None = None,
        run_lengths: float | None = None,
        tiling: Tiling | None = None,
    ) -> None:
        self.config = load_config(config, mini=mini, cfg_options=cfg_options, bias_mode=bias_mode, tta=tta)
        self.task = _task_of(self.config)
        if 'pipeline' not in self.config.test_dataloader.get('dataset', {}):
            raise InputError(f'the test dataset of {self.config.filename} has no pipeline of its own')
        self.checkpoint = str(checkpoint) if checkpoint is not None else _miniature_checkpoint(self.config, mini)
        is_exported = self.checkpoint.endswith(EXPORTED_SUFFIX)
        if is_exported:
            self._check_exported(bias_mode=bias_mode, tta=tta, amp=amp, mode=mode if mode != 'whole' else None)
        if mode is not None:
            _set_mode(self.config, mode)
        self.kind = image_kind(self.config)
        if tiling is not None and self.task != 'detection':
            raise InputError(
                f'tiles are for detectors of boxes and masks, {self.config.filename} is none: of segmentors slide a '
                'window'
            )
        self.tiling = tiling
        self.on_tile: Callable[[int, int], None] | None = None
        name_host_loading(self.config)
        init_default_scope(self.config.default_scope)

        if is_exported:
            self.model, self.device = self._load_exported(device)
        else:
            self.device = torch.device(device or ('cuda' if torch.cuda.is_available() else 'cpu'))
            self.model = self._load_model()
        self._encodes_masks = run_lengths is not None or tiling is not None
        if self._encodes_masks:
            encode_masks(self.model, run_lengths or 0.0)
        self.amp = autocast_dtype(amp, self.device) if amp else None
        self.model.dataset_meta = dict(classes=self.classes, palette=self.palette)
        self._prepare_inference(tta)

    def _check_exported(self, **options: object) -> None:
        """Raise an `InputError` if an exported model of this task does not run here, or cannot have these options."""
        if self.task == 'classification':
            raise InputError(f'an exported classifier is run without a config: predict.py {self.checkpoint}')
        given = [name for name, value in options.items() if value]
        if given:
            raise InputError(f'an exported model is as it was exported: {", ".join(given)} needs the checkpoint')

    def _prepare_inference(self, tta: bool) -> None:
        """Set up the upstream library's inferencer, and what says how images are read and cut."""
        steps = self.config.tta_pipeline if tta else self.config.test_dataloader.dataset.pipeline
        self.config.test_dataloader.dataset.pipeline = without_annotations(steps)
        model = self.model
        if tta:
            model = MODELS.build(dict(**self.config.tta_model, module=self.model)).eval()
            model.dataset_meta = self.model.dataset_meta
        self._num_views = _num_views(steps) if tta else 1
        self._predicts_labels = not tta and can_predict_labels(self.model)
        self._slides = self.task == 'segmentation' and self.config.model.get('test_cfg', {}).get('mode') == 'slide'
        self._load = (
            LoadChannelsFromFile(**vars(self.kind))
            if self.kind
            else TRANSFORMS.build(_loading_step(self.config, steps))
        )
        self._inferencer = _build_inferencer(self.config, model, self.device)

    def __call__(
        self,
        images: str | Path | np.ndarray | Sequence[str | Path | np.ndarray],
        batch_size: int = 1,
        return_logits: bool = False,
    ) -> list[BaseDataElement]:
        """Predict on images.

        Args:
            images: A path or an array (BGR, uint8 (H, W, 3), or of the model's `kind`), or several in a list.
            batch_size: Number of images that the model takes at once; only neighbours of the same size go together,
                so that the number does not change what is predicted.
            return_logits: Segmentors: also the logits of every class in every pixel, which take much memory.

        Returns:
            For each image the data sample of mmdet (`pred_instances` with `bboxes`, `scores`, `labels` and `masks`,
            `pred_panoptic_seg`), mmseg (`pred_sem_seg`, with the logits `seg_logits`) or mmpretrain (`pred_label`,
            `pred_score`), on the device.

        Raises:
            InputError: An image cannot be read or predicted on.
        """
        if isinstance(images, (str, Path, np.ndarray)):
            images = [images]
        samples = []
        for prediction in self.iterate(images, batch_size, return_logits):
            if prediction.error is not None:
                raise prediction.error
            samples.append(prediction.sample)
        return samples

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
        if self.tiling is not None:
            yield from self._iterate_tiled(images, batch_size)
            return
        batch = []
        for source in images:
            if self._slides and is_raster(source):
                yield from self._predict(batch, return_logits)
                batch = []
                yield self._label_raster(source)
                continue
            prediction = Prediction(source)
            with _keeping_error(prediction):
                image = self._read(source)
                largest_batch = int(min(batch_size, self._number_that_fits(image, return_logits)))
                prediction.image = image
            if batch and (prediction.error or image.shape != batch[0].image.shape):
                yield from self._predict(batch, return_logits)
                batch = []
            if prediction.error:
                yield prediction
                continue
            batch.append(prediction)
            if len(batch) >= largest_batch:
                yield from self._predict(batch, return_logits)
                batch = []
        yield from self._predict(batch, return_logits)

    def _iterate_tiled(self, images: Iterable[str | Path | np.ndarray], batch_size: int) -> Iterator[Prediction]:
        """What `iterate` gives, by tiles."""
        for source in images:
            prediction = Prediction(source)
            with _keeping_error(prediction):
                prediction.image = Raster(source, self.kind) if is_raster(source) else self._read(source)
                prediction.sample = self._detect_in_tiles(source, prediction.image, batch_size)
            yield prediction

    def _label_raster(self, source: str | Path) -> Prediction:
        """Predict the label map of a file that is larger than memory, block by block; the map lies in a file, too."""
        prediction = Prediction(source)
        with _keeping_error(prediction):
            prediction.image = raster = Raster(source, self.kind)
            height, width = raster.shape[:2]
            margin = max(self.config.model.test_cfg.crop_size)
            # The file is gone with the last array that shows it.
            with tempfile.TemporaryFile() as file:
                dtype = np.uint8 if len(self.classes) <= 256 else np.uint16
                labels = np.memmap(file, dtype, 'w+', shape=(height, width))
            parts = list(blocks(height, width, BLOCK, margin))
            for number, (own, outer, inner) in enumerate(parts, 1):
                (sample,) = self._run([raster[outer]], False)
                labels[own] = sample.pred_sem_seg.data[0][inner].cpu().numpy()
                if self.on_tile is not None:
                    self.on_tile(number, len(parts))
            sample.set_metainfo(dict(img_path=str(source), ori_shape=(height, width)))
            prediction.sample = type(sample)(metainfo=sample.metainfo)
            prediction.sample.pred_sem_seg = PixelData(data=torch.from_numpy(labels)[None])
        return prediction

    def _detect_in_tiles(self, source: object, image: np.ndarray | Raster, batch_size: int) -> BaseDataElement:
        """Predict on the tiles of an image and on the whole of it, and merge the detections.

        Raises:
            InputError: There is not enough memory.
        """
        height, width = image.shape[:2]
        windows, everything = self.tiling.windows(height, width), (slice(0, height), slice(0, width))
        windows = windows if windows == [everything] else [*windows, everything]
        whole = image.reduced if isinstance(image, Raster) else image
        # The masks of the whole image take most.
        self._number_that_fits(whole, False)
        samples = []
        # The last one has a size of its own.
        for batch in [*_batches(windows[:-1], batch_size), windows[-1:]]:
            is_whole = len(samples) == len(windows) - 1
            crops = [whole] if is_whole else [np.ascontiguousarray(image[window]) for window in batch]
            samples += [sample.cpu() for sample in self._run(crops, False)]
            for sample in samples[-len(crops) :]:
                encode_arrays(sample.pred_instances)
            if self.on_tile is not None:
                self.on_tile(len(samples), len(windows))
        sample = samples[-1]
        parts = [sample.pred_instances for sample in samples]
        sample.pred_instances = merge(parts, windows, [sample.ori_shape for sample in samples], (height, width))
        sample.set_metainfo(dict(ori_shape=(height, width)))
        if not isinstance(source, np.ndarray):
            sample.set_metainfo(dict(img_path=str(source)))
        return sample

    def draw(
        self,
        image: str | Path | np.ndarray,
        sample: BaseDataElement,
        score_thr: float = 0.3,
        opacity: float = OPACITY,
    ) -> np.ndarray:
        """Draw a prediction over its image, with the names of the classes.

        Args:
            image: The image that was predicted on, a path or an array.
            sample: Its data sample.
            score_thr: Leave out detections whose score is not above this.
            opacity: Of classes and masks, from 0, where they are not seen, to 1, where the image is not.

        Returns:
            BGR, uint8 (H, W, 3), smaller for images of more than `runtime.drawing.MAX_PIXELS`.
        """
        if isinstance(image, Raster):
            image = image.reduced
        image = image if isinstance(image, np.ndarray) else read_image(image, self._load)
        if self.kind is not None:
            image = shown(image)
        elif image.dtype.kind == 'f':  # 8 bits, which pipelines may load so
            image = image.astype(np.uint8)
        sample = sample.cpu()
        if self.task == 'segmentation':
            # Not by mmseg, which sorts the pixels of a class in a list to find a place for its name.
            labels = Segmentation(resized_labels(sample.pred_sem_seg.data[0].numpy(), image.shape[:2]))
            return draw(image, labels, self.classes, self.palette, opacity)
        if self.task == 'classification':
            scores = Classification(sample.pred_score.numpy())
            return draw(image, scores, self.classes, self.palette, opacity)
        size = drawn_size(image)
        image, sample = shrunk(image, size), _of_size(sample, size)
        rgb = np.ascontiguousarray(image[..., ::-1])
        self._inferencer.visualizer.alpha = opacity
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', message='.* is out of bounds')  # a name at the border of the image
            (drawn,) = self._inferencer.visualize([rgb], [sample], return_vis=True, pred_score_thr=score_thr)
        return np.ascontiguousarray(drawn[..., ::-1])

    def autocast(self) -> contextlib.AbstractContextManager:
        """Context in which the model computes in mixed precision, if that was asked for."""
        return torch.autocast(self.device.type, self.amp) if self.amp else contextlib.nullcontext()

    def _read(self, source: str | Path | np.ndarray) -> np.ndarray:
        """The image of a path, or an array that was checked."""
        return check_array(source, self.kind) if isinstance(source, np.ndarray) else read_image(source, self._load)

    def _load_model(self) -> nn.Module:
        """Build the model with the weights and the classes of the checkpoint."""
        checkpoint = read_checkpoint(self.checkpoint)
        weights = weights_of(self.checkpoint, checkpoint)
        self._take_classes(checkpoint)
        check_fit(self.checkpoint, weights, state_dict_of(self.config))
        self.config.model.pop('pretrained', None)
        if self.task == 'classification':
            self.config.model.data_preprocessor = data_preprocessor_of(self.config)
        model = MODELS.build(copy.deepcopy(self.config.model))
        model.load_state_dict(weights, strict=False)
        model.cfg = self.config
        return model.to(self.device).eval()

    def _load_exported(self, device: str | None) -> tuple[nn.Module, torch.device]:
        """Load the exported model, and resize images to its size if it takes one alone."""
        if not Path(self.checkpoint).is_file():
            raise InputError(f'exported model not found: {self.checkpoint}')
        from ..mmdeploy_rewriters.exported import default_device, exported_size, load_exported

        # tools/export.py leaves the checkpoint, without what inference does not need, beside the exported file.
        weights = sorted(Path(self.checkpoint).parent.glob('*.pth'))
        self._take_classes(read_checkpoint(str(weights[0])) if len(weights) == 1 else {})
        device = device or default_device()
        model = load_exported(self.checkpoint, self.config, device)
        _, height, width = exported_size(model)
        if height and width:
            for step in self.config.test_dataloader.dataset.pipeline:
                if step['type'] == 'Resize':
                    step.update(scale=(width, height), keep_ratio=False)
        return model, torch.device(device)

    def _take_classes(self, checkpoint: dict) -> None:
        """Set the classes and the palette: those of the checkpoint if it names some, else those of the config."""
        self.classes, self.palette = take_classes(
            self.config, dataset_meta_of(self.checkpoint, checkpoint), self.checkpoint
        )

    def _number_that_fits(self, image: np.ndarray, return_logits: bool) -> float:
        """How many images of the size of this one fit into memory with their scores or masks.

        Raises:
            InputError: Not even one.
        """
        if self._predicts_labels and not return_logits:
            # The index of the class, int64, twice while classes are left out, and the rest of what is written.
            per_pixel = 2 * 8 + 8
        elif self.task == 'segmentation':
            # The score of every class in every pixel, float32, of each view, and the index of the highest, int64.
            per_pixel = 4 * len(self.classes) * self._num_views + 8
        elif 'panoptic_head' in self.config.model:
            # The mask of every query in the size of the image, float32: logits, probabilities, and these with scores.
            per_pixel = 32 + 3 * 4 * self.config.model.panoptic_head.get('num_queries', 100)
        else:
            # What drawing takes, and a byte of every mask, or what making one takes.
            per_pixel = 32 + (16 if self._encodes_masks else _max_masks(self.config))
        needed, free = image.shape[0] * image.shape[1] * per_pixel, free_memory(self.device)
        if needed > free:
            raise InputError(
                f'an image of {image.shape[1]} x {image.shape[0]} pixels needs {needed / 2**30:.3g} GiB for its '
                f'prediction and {free / 2**30:.3g} GiB are free: make it smaller, or cut it into pieces'
            )
        return free / needed

    def _predict(self, batch: list[Prediction], return_logits: bool) -> Iterator[Prediction]:
        """Predict on a batch; if that fails, on each image alone, so that only those fail that must."""
        if not batch:
            return
        attempt, samples = Prediction(None, batch[0].image), []
        with _keeping_error(attempt):
            samples = self._run([prediction.image for prediction in batch], return_logits)
        if attempt.error and len(batch) > 1:
            for prediction in batch:
                yield from self._predict([prediction], return_logits)
        elif attempt.error:
            batch[0].error = attempt.error
            yield batch[0]
        for prediction, sample in zip(batch, samples):
            if not isinstance(prediction.source, np.ndarray):
                sample.set_metainfo(dict(img_path=str(prediction.source)))
            prediction.sample = sample
            yield prediction

    def _run(self, images: list[np.ndarray], return_logits: bool) -> list[BaseDataElement]:
        """Run the inferencer on images of one size."""
        if self._predicts_labels and not return_logits:
            self.model.predict = functools.partial(predict_labels, self.model)
        try:
            return self._inferred(images)
        finally:
            vars(self.model).pop('predict', None)

    def _inferred(self, images: list[np.ndarray]) -> list[BaseDataElement]:
        images = [as_input(image) for image in images]
        # An exported model takes as many images as it was exported for.
        batch_size = 1 if self.checkpoint.endswith(EXPORTED_SUFFIX) else len(images)
        with self.autocast():
            if self.task == 'classification':  # not by a call, which shows a progress bar for each
                (batch,) = self._inferencer.preprocess(images, batch_size)
                samples = self._inferencer.forward(batch)
            else:
                samples = self._inferencer(images, batch_size=batch_size, return_datasamples=True)
        if self.task in ('detection', 'panoptic'):
            samples = samples['predictions']
        samples = samples if isinstance(samples, list) else [samples]
        for sample in samples:
            check_predictions(sample)
            number_labels(sample)
        return [in_float32(sample) for sample in samples] if self.amp else samples


def number_labels(sample: BaseDataElement) -> None:
    """Give the label map of a segmentor as integers; those of one output channel come as floats."""
    if 'pred_sem_seg' in sample:
        sample.pred_sem_seg.data = sample.pred_sem_seg.data.long()


class _BuiltModel:
    """Lets an inferencer take a model that is built already, with its weights and its `dataset_meta`."""

    def __init__(self, config: Config, model: nn.Module, device: torch.device) -> None:
        self._model = model
        super().__init__(config, device=str(device), show_progress=False)

    def _init_model(self, cfg: Config, weights: None, device: str) -> nn.Module:
        return self._model

    def _init_collate(self, cfg: Config) -> Callable:
        # The one that both take; mmengine looks for it in a registry that they do not have, and warns.
        return pseudo_collate


class _DetInferencer(_BuiltModel, DetInferencer):
    """mmdet's inferencer."""


class _MMSegInferencer(_BuiltModel, MMSegInferencer):
    """mmseg's inferencer."""


INFERENCERS = dict(detection=_DetInferencer, panoptic=_DetInferencer, segmentation=_MMSegInferencer)
TASKS = dict(mmdet='detection', mmseg='segmentation', mmpretrain='classification')


def _build_inferencer(config: Config, model: nn.Module, device: torch.device) -> BaseInferencer:
    if _task_of(config) == 'classification':
        from mmpretrain import ImageClassificationInferencer  # here: the other models do without mmpretrain

        model._config = config
        return ImageClassificationInferencer(model)
    config = copy.deepcopy(config)
    name = {'detection': 'DetVisualizer', 'panoptic': 'PanopticVisualizer', 'segmentation': 'SegVisualizer'}
    # It draws, and what it drew is written elsewhere.
    config.visualizer = dict(type=f'bioattn_mm.{name[_task_of(config)]}', vis_backends=None)
    return INFERENCERS[_task_of(config)](config, model, device)


def _task_of(config: Config) -> str:
    if config.default_scope not in TASKS:
        raise InputError(
            f'{config.filename} is a config of {config.default_scope}: prediction is for those of mmdet, mmseg and '
            'mmpretrain'
        )
    return 'panoptic' if is_panoptic(config) else TASKS[config.default_scope]


def _miniature_checkpoint(config: Config, mini: bool) -> str:
    """The newest checkpoint of the miniature run of a config."""
    if not mini:
        raise InputError(
            'no checkpoint: name the one to predict with, or take the miniature run of the config (mini)'
        )
    folder = default_work_dir(config.filename, mini=True)
    found = find_latest_checkpoint(folder) if Path(folder).is_dir() else None
    if found is not None and not Path(found).is_file():  # the folder was moved
        found = str(Path(folder) / Path(found).name)
    if found is None or not Path(found).is_file():
        raise InputError(
            f'no checkpoint in {folder}: make one with make demo, or with tools/train.py {config.filename} --mini'
        )
    return found


def _set_mode(config: Config, mode: str) -> None:
    """Let a segmentor slide a window over images, or take them whole."""
    if mode not in ('slide', 'whole'):
        raise InputError(f"mode must be 'slide' or 'whole', got {mode!r}")
    if config.default_scope != 'mmseg':
        raise InputError(f'{mode} is for segmentors, and {config.filename} is none')
    test_cfg = config.model.setdefault('test_cfg', dict())
    test_cfg.mode = mode
    if mode == 'slide' and 'crop_size' not in test_cfg:
        size = config.model.get('data_preprocessor', {}).get('size')
        if size is None:
            raise InputError(
                f'{config.filename} says no size of a sliding window: set model.test_cfg.crop_size and '
                'model.test_cfg.stride'
            )
        test_cfg.update(crop_size=tuple(size), stride=tuple(2 * side // 3 for side in size))


def _loading_step(config: Config, steps: list[dict]) -> dict:
    step = next((step for step in steps if type_name(step) == 'LoadImageFromFile'), None)
    if step is None:
        raise InputError(f'the test pipeline of {config.filename} has no LoadImageFromFile')
    return dict(step)


def _batches(items: Sequence, size: int) -> Iterator[Sequence]:
    """The items in order, so many at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _num_views(steps: list[dict]) -> int:
    """Number of scaled and flipped views of an image that a pipeline of multi-scale testing makes."""
    return math.prod(
        len(choices) for step in steps if step['type'].endswith('TestTimeAug') for choices in step['transforms']
    )


def _max_masks(config: Config) -> int:
    """Number of masks that a detector finds in an image at most."""
    model = config.model
    if 'mask_head' not in model and 'mask_head' not in model.get('roi_head', {}):
        return 0
    test_cfg = model.get('test_cfg') or {}
    return test_cfg.get('rcnn', test_cfg).get('max_per_img', 100)


def _of_size(sample: BaseDataElement, size: tuple[int, int]) -> BaseDataElement:
    """What is drawn of a data sample, for a drawing of a size (height, width), with masks as arrays."""
    drawn = type(sample)()
    if 'pred_panoptic_seg' in sample:
        segments = resized_labels(sample.pred_panoptic_seg.sem_seg[0].numpy(), size)
        drawn.pred_panoptic_seg = PixelData(sem_seg=torch.from_numpy(segments)[None])
        return drawn
    drawn.pred_instances = objects = copy.copy(sample.pred_instances)
    if 'ori_shape' in sample and size != sample.ori_shape[:2]:
        height, width = sample.ori_shape[:2]
        objects.bboxes = objects.bboxes * objects.bboxes.new_tensor((size[1] / width, size[0] / height) * 2)
    if 'masks' in objects:
        masks = [
            decode_mask(mask, size) if isinstance(mask, dict) else resized_labels(mask.numpy(), size)
            for mask in objects.masks
        ]
        objects.masks = torch.from_numpy(np.array(masks, bool).reshape(-1, *size))
    return drawn


@contextlib.contextmanager
def _keeping_error(prediction: Prediction) -> Iterator[None]:
    """Context in which an error that one image causes becomes that of its prediction, and the run goes on."""
    try:
        yield
    except (InputError, MemoryError, cv2.error, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not is_out_of_memory(error):
            raise
        prediction.error = image_error(error, prediction.image)
