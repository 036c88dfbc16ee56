"""Prediction with a model of any task of mmdet, mmseg and mmpretrain."""

import copy
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS, TRANSFORMS, init_default_scope
from mmengine.runner import find_latest_checkpoint
from mmengine.structures import BaseDataElement
from torch import nn

from ..checkpoints import check_fit, dataset_meta_of, read_checkpoint, weights_of
from ..errors import InputError
from ..runtime.batches import BatchPredictor, ImagePrediction
from ..runtime.images import as_input, read_image, reading
from ..runtime.predictions import Classification, Detections, Panoptic, Result, Segmentation
from ..training.amp import autocast_dtype, in_float32
from ..training.bad_data import check_predictions
from ..training.config.classes import take_classes
from ..training.config.loading import default_work_dir, load_config
from ..training.config.model_check import state_dict_of
from ..training.config.pipelines import (
    data_preprocessor_of,
    image_kind,
    is_panoptic,
    name_host_loading,
    type_name,
    without_annotations,
)
from ..training.runner import is_out_of_memory
from .label_maps import labels_alone

TASKS = dict(mmdet='detection', mmseg='segmentation', mmpretrain='classification')
EXPORTED_SUFFIX = '.onnx'


@dataclass
class Prediction(ImagePrediction):
    """What became of one image.

    Attributes:
        source, image, error: Those of `ImagePrediction`.
        sample: mmdet's, mmseg's or mmpretrain's data sample; None after an error.
    """

    sample: BaseDataElement | None = None

    @property
    def result(self) -> Result:
        """The sample as arrays."""
        return arrays_of(self.sample)


class Predictor(BatchPredictor):
    """Predicts on images with a detector, segmentor, panoptic model or classifier of any config.

    The predictions are those of `tools/test.py`, in pixels of the image as a viewer shows it, turned as its EXIF data
    say. A call returns for each image the data sample of mmdet, mmseg or mmpretrain, on the device. Arrays are BGR,
    as OpenCV reads them; of a model for other images than RGB in 8 bits (`kind`) they have its channels, in the order
    of the files, and its dtype.

    Examples:
        >>> import bioattn_mm
        >>> predictor = bioattn_mm.Predictor('configs/transnext/upernet_tiny_ade20k.py', 'iter_160000.pth')
        >>> (sample,) = predictor('street.jpg')

        >>> {predictor.classes[index] for index in sample.pred_sem_seg.data.unique()}
        >>> predictor.draw('street.jpg', sample)

        Of a detector, a panoptic model (class + 1000 times the number of the object), and a classifier:

        >>> sample.pred_instances[sample.pred_instances.scores > 0.3].bboxes    # x1, y1, x2, y2 in pixels
        >>> sample.pred_panoptic_seg.sem_seg
        >>> predictor.classes[sample.pred_label], sample.pred_score

    Args:
        config: Config file, or a config that was read.
        checkpoint: Checkpoint of the whole model, a file, a URL or `hf://OWNER/NAME/FILE` of a Hugging Face
            repository; its classes and palette are taken if it names some.
        device: Device to compute on, such as 'cpu' or 'cuda:0'. Default: the GPU if there is one, else the CPU.
        mini: Take the miniature of the config (see `training.config.mini.make_mini`), and without a checkpoint the
            newest one of `tools/train.py CONFIG --mini` or `make demo`.
        cfg_options: Values that replace those of the config, by dotted key.
        bias_mode: Position bias of TransNeXt: 'extrapolate', 'interpolate' or 'linear'. Default: the config's.
        tta: Multi-scale and flip testing, as the config defines it; of Mask R-CNN the boxes alone.
        amp: Compute in mixed precision, 'float16', which needs a GPU, or 'bfloat16'.
        mode: Of segmentors: 'slide' moves a window over the image, 'whole' takes it at once. Default: the config's.

    Attributes:
        config (Config): The config after all changes.
        checkpoint (str): The file or URL of the weights.
        model (nn.Module): The model, in eval mode.
        task (str): 'detection', 'segmentation', 'panoptic' or 'classification'.
        classes (tuple[str, ...]): Names of the classes in the order of their indices.
        palette (list[tuple[int, int, int]]): R, G and B of each class.
        device (torch.device): Where the model is.
        kind (ImageKind | None): Channels and dtype of the model's images; None: RGB in 8 bits.

    Raises:
        InputError: The config or the checkpoint cannot be used, or an argument does not go with them.
    """

    prediction_type, output = Prediction, 'sample'

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
    ) -> None:
        self.config = load_config(config, mini=mini, cfg_options=cfg_options, bias_mode=bias_mode, tta=tta)
        self.task = _task_of(self.config)
        if 'pipeline' not in self.config.test_dataloader.get('dataset', {}):
            raise InputError(f'the test dataset of {self.config.filename} has no pipeline of its own')
        self.checkpoint = str(checkpoint) if checkpoint is not None else _miniature_checkpoint(self.config, mini)
        if self.checkpoint.endswith(EXPORTED_SUFFIX):
            raise InputError(f'an exported model is run without a config: predict.py {self.checkpoint}')
        if mode is not None:
            _set_mode(self.config, mode)
        self.kind = image_kind(self.config)
        name_host_loading(self.config)
        init_default_scope(self.config.default_scope)

        self.device = torch.device(device or ('cuda' if torch.cuda.is_available() else 'cpu'))
        self.model = self._load_model()
        self.amp = autocast_dtype(amp, self.device) if amp else None
        self.model.dataset_meta = dict(classes=self.classes, palette=self.palette)

        steps = without_annotations(self.config.tta_pipeline if tta else self.config.test_dataloader.dataset.pipeline)
        loading = [step for step in steps if type_name(step) == 'LoadImageFromFile']
        if not loading:
            raise InputError(f'the test pipeline of {self.config.filename} has no LoadImageFromFile')
        self._load = TRANSFORMS.build(dict(loading[0]))
        self._pipeline = Compose([step for step in steps if step not in loading])
        self._tested = self.model
        if tta:
            self._tested = MODELS.build(dict(**self.config.tta_model, module=self.model)).eval()
            self._tested.dataset_meta = self.model.dataset_meta
        self._labels_alone = self.task == 'segmentation' and not tta

    def read(self, path: str | Path) -> np.ndarray:
        """Read an image file as the pipeline does, turned as its EXIF data say; see `runtime.images.read_image`."""
        if self.kind is not None:
            return read_image(path, self.kind)
        with reading(path):
            return self._load(dict(img_path=str(path)))['img']

    def _arrays(self, result: BaseDataElement | Result) -> Result:
        return arrays_of(result) if isinstance(result, BaseDataElement) else result

    def _prepare(self, prediction: Prediction) -> np.ndarray:
        prediction.image = image = self._image_of(prediction.source)
        return image

    def _compute(self, batch: list[tuple[Prediction, np.ndarray]], batch_size: int, return_logits: bool) -> None:
        try:
            samples = self._run([image for _, image in batch], return_logits)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise MemoryError from error
            raise
        for (prediction, _), sample in zip(batch, samples):
            if not isinstance(prediction.source, np.ndarray):
                sample.set_metainfo(dict(img_path=str(prediction.source)))
            prediction.sample = sample

    def _run(self, images: list[np.ndarray], return_logits: bool) -> list[BaseDataElement]:
        """Predict on images of one size."""
        loaded = [
            dict(img=as_input(image), img_path=None, img_shape=image.shape[:2], ori_shape=image.shape[:2])
            for image in images
        ]
        with labels_alone(self.model) if self._labels_alone and not return_logits else nullcontext():
            return self.test_step(pseudo_collate([self._pipeline(each) for each in loaded]))

    def test_step(self, batch: dict) -> list[BaseDataElement]:
        """Predict on a batch of the config's test pipeline, in mixed precision if that was asked for."""
        with torch.no_grad(), torch.autocast(self.device.type, self.amp, enabled=self.amp is not None):
            samples = self._tested.test_step(batch)
        for sample in samples:
            check_predictions(sample)
            if 'pred_sem_seg' in sample:  # a segmentor of one output channel gives it as floats
                sample.pred_sem_seg.data = sample.pred_sem_seg.data.long()
        return [in_float32(sample) for sample in samples] if self.amp else samples

    def _load_model(self) -> nn.Module:
        """Build the model with the weights and the classes of the checkpoint."""
        checkpoint = read_checkpoint(self.checkpoint)
        weights = weights_of(self.checkpoint, checkpoint)
        self.classes, self.palette = take_classes(self.config, dataset_meta_of(checkpoint), self.checkpoint)
        check_fit(self.checkpoint, weights, state_dict_of(self.config))
        self.config.model.pop('pretrained', None)
        if self.task == 'classification':
            self.config.model.data_preprocessor = data_preprocessor_of(self.config)
        model = MODELS.build(copy.deepcopy(self.config.model))
        model.load_state_dict(weights, strict=False)
        model.cfg = self.config
        return model.to(self.device).eval()


def arrays_of(sample: BaseDataElement) -> Result:
    """The prediction in a data sample, as NumPy arrays."""
    sample = sample.cpu()
    if 'pred_sem_seg' in sample:
        return Segmentation(sample.pred_sem_seg.data[0].numpy())
    if 'pred_panoptic_seg' in sample:
        return Panoptic(sample.pred_panoptic_seg.sem_seg[0].numpy())
    if 'pred_score' in sample:
        return Classification(sample.pred_score.numpy())
    objects = sample.pred_instances
    masks = objects.masks.bool().numpy() if 'masks' in objects else None
    return Detections(objects.bboxes.numpy(), objects.scores.numpy(), objects.labels.numpy(), masks)


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
    found = found and str(Path(folder) / Path(found).name)  # the folder may have been moved
    if not found or not Path(found).is_file():
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
