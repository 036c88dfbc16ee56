"""Costs of a model: parameters, and the passes whose FLOPs, time and memory are measured.

mmdet, mmseg and mmpretrain are imported inside functions: a model needs one of them.
"""

import copy
import statistics

import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from timm.layers import to_2tuple
from torch import Tensor, nn

from ..errors import InputError
from ..run_config.runner import now, without_initial_values
from .flops import count_multiply_adds
from .models import SEED
from .saved_activations import saved_bytes

SCOPES = ('mmdet', 'mmseg', 'mmpretrain')
# What counters of modules count.
LAYERS = (nn.Linear, nn.Conv2d)
# Images of segmentors and detectors, and of classifiers whose test pipeline does not say.
DENSE_SIZE, CLASSIFIER_SIZE = (512, 512), (224, 224)
# Objects in the ground truth of a training step: an image of COCO has about 7.
NUM_OBJECTS = 7


class Network(nn.Module):
    """The measured passes of a model with random weights.

    The forward pass ends before post-processing: at the logits of a classifier, at those of a segmentor, resized to
    the image, or at the head outputs of a detector. The second stage of a two-stage detector runs on the proposals of
    the first, its mask head on 100 of them.

    Args:
        config: Config of a whole model, of mmdet, mmseg or mmpretrain.
        backbone_only: Take only the backbone, of any library.

    Raises:
        InputError: The whole model is of another library.

    Attributes:
        in_channels (int): Channels of the images that the backbone takes.
    """

    def __init__(self, config: Config, backbone_only: bool = False) -> None:
        super().__init__()
        self.scope = None if backbone_only else config.default_scope
        if self.scope not in (None, *SCOPES):
            raise InputError(
                f'{config.filename} is of {self.scope}: expected one of {", ".join(SCOPES)}, or add --backbone'
            )
        init_default_scope(config.default_scope)
        settings = copy.deepcopy(config.model)
        settings.pop('pretrained', None)
        settings.pop('init_cfg', None)
        settings.backbone.init_cfg = None
        if self.scope == 'mmpretrain':  # what mixes images is no part of the model
            settings.train_cfg = None
        torch.manual_seed(SEED)
        model = MODELS.build(settings.backbone if backbone_only else settings)
        with without_initial_values():
            model.init_weights()
        self.model = revert_sync_batchnorm(model)
        self.in_channels = settings.backbone.get('in_channels', 3)

    def forward(self, x: Tensor) -> object:
        """Normalised images, (B, 3, H, W), to the model's outputs."""
        if self.scope is None:
            return self.model(x)
        samples = [sample_of(x, self.scope) for _ in x]
        if self.scope == 'mmseg':
            return self.model.encode_decode(x, [sample.metainfo for sample in samples])
        return self.model(x, samples, mode='tensor')

    def training_forward(self, x: Tensor) -> object:
        """Normalised images, (B, 3, H, W), to the losses; of only a backbone to its outputs."""
        if self.scope is None:
            return self.model(x)
        return self.model(x, [annotated_sample_of(x, self.scope) for _ in x], mode='loss')


def sample_of(x: Tensor, scope: str) -> BaseDataElement:
    """The data sample of an image that was not resized, from a batch (B, 3, H, W)."""
    if scope == 'mmseg':
        from mmseg.structures import SegDataSample as DataSample
    elif scope == 'mmpretrain':
        from mmpretrain.structures import DataSample
    else:
        from mmdet.structures import DetDataSample as DataSample
    size = tuple(x.shape[2:])
    about = dict(img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size, scale_factor=(1.0, 1.0))
    return DataSample(metainfo=about)


def annotated_sample_of(x: Tensor, scope: str) -> BaseDataElement:
    """A data sample with ground truth: 7 vertical stripes, of two alternating classes or as objects of one class.

    That of a classifier is of the first class.
    """
    sample = sample_of(x, scope)
    if scope == 'mmpretrain':
        return sample.set_gt_label(0).to(x.device)
    height, width = x.shape[2:]
    stripes = torch.arange(width) * NUM_OBJECTS // width
    if scope == 'mmseg':
        sample.gt_sem_seg = PixelData(data=(stripes % 2).expand(1, height, width).to(x.device))
        return sample
    from mmdet.structures.mask import BitmapMasks

    edges = torch.arange(NUM_OBJECTS + 1) * (width / NUM_OBJECTS)
    top, bottom = torch.zeros(NUM_OBJECTS), torch.full((NUM_OBJECTS,), float(height))
    inside = (stripes == torch.arange(NUM_OBJECTS)[:, None]).numpy().astype(np.uint8)
    sample.gt_instances = InstanceData(
        bboxes=torch.stack((edges[:-1], top, edges[1:], bottom), dim=1).to(x.device),
        labels=torch.zeros(NUM_OBJECTS, dtype=torch.long, device=x.device),
        masks=BitmapMasks(np.repeat(inside[:, None], height, axis=1), height, width),
    )
    return sample


def random_images(batch_size: int, size: tuple[int, int], device: str, channels: int = 3) -> Tensor:
    """Images of Gaussian noise, (B, channels, height, width), the same in every run."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(batch_size, channels, *size, generator=generator).to(device)


def num_parameters(module: nn.Module) -> int:
    """Number of parameters of a module; shared ones count once."""
    return sum(parameter.numel() for parameter in module.parameters())


def multiply_adds(network: Network, image: Tensor) -> dict[str, int]:
    """Multiply-adds of the forward pass of an image in eval mode (see `count_multiply_adds`).

    Returns:
        By the names of columns of the tool: those of an image of a size that was seen before ('flops'), of the
        backbone ('backbone_flops', only of a whole model), of convolutions and linear layers alone, as modules
        ('layer_flops'), and the additional ones of the first image of a size, whose position biases and the like are
        then cached ('flops_of_size').
    """
    network.eval()
    first, later = count_multiply_adds(network, image), count_multiply_adds(network, image)
    backbone = {} if network.scope is None else dict(backbone_flops=later['model.backbone'])
    layers = (name for name, module in network.named_modules() if isinstance(module, LAYERS))
    return dict(
        flops=later[''],
        **backbone,
        layer_flops=sum(later.get(name, 0) for name in layers),
        flops_of_size=first[''] - later[''],
    )


def default_size(config: Config) -> tuple[int, int]:
    """Height and width of the images that a model is measured with: of a classifier its test images', else 512."""
    if config.default_scope != 'mmpretrain':
        return DENSE_SIZE
    sizes = [
        step[key]
        for step in config.test_dataloader.dataset.pipeline
        for key in ('scale', 'crop_size')
        if isinstance(step.get(key), (int, tuple, list))
    ]
    return to_2tuple(sizes[-1])[::-1] if sizes else CLASSIFIER_SIZE  # pipelines have (width, height)


def activation_bytes(network: Network, x: Tensor) -> int:
    """Memory of the activations that a training step saves for its backward pass, in bytes (see `saved_bytes`).

    Raises:
        InputError: A BatchNorm gets a single value per channel: it needs more images.
    """
    network.train()
    try:
        return saved_bytes(lambda: network.training_forward(x), network)
    except ValueError as error:
        if 'more than 1 value per channel' not in str(error):
            raise
        raise InputError(f'training needs more than {len(x)} image: raise --batch-size ({error})') from error


@torch.no_grad()
def images_per_second(network: Network, x: Tensor, repeats: int) -> float:
    """Images per second of the forward pass in eval mode: the median of `repeats` passes after a warm-up pass."""
    network.eval()

    def seconds() -> float:
        start = now()
        network(x)
        return now() - start

    seconds()
    return len(x) / statistics.median(seconds() for _ in range(repeats))
