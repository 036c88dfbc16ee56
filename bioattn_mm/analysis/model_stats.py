"""Costs of a model: its parameters, and the forward pass whose multiply-adds are counted."""

import copy
import importlib

import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from timm.layers import to_2tuple
from torch import Tensor, nn

from ..errors import InputError
from .flops import count_multiply_adds
from .models import SEED, build_randomly

# The data sample of each library.
SAMPLES = dict(mmdet='DetDataSample', mmseg='SegDataSample', mmpretrain='DataSample')
# What counters of modules count.
LAYERS = (nn.Linear, nn.Conv2d)
# Images of segmentors and detectors, and of classifiers whose test pipeline does not say.
DENSE_SIZE, CLASSIFIER_SIZE = (512, 512), (224, 224)


class Network(nn.Module):
    """A model with random weights, as far as it is measured.

    The forward pass ends before post-processing: at the logits of a classifier, at those of a segmentor, resized to
    the image, or at the head outputs of a detector. The second stage of a two-stage detector runs on the proposals of
    the first, its mask head on 100 of them.

    Args:
        config: Config of a whole model, of mmdet, mmseg or mmpretrain.
        backbone_only: Take only the backbone, of any library.
    """

    def __init__(self, config: Config, backbone_only: bool = False) -> None:
        super().__init__()
        self.scope = None if backbone_only else config.default_scope
        if self.scope not in (None, *SAMPLES):
            expected = f'expected one of {", ".join(SAMPLES)}, or add --backbone'
            raise InputError(f'{config.filename} is of {self.scope}: {expected}')
        if 'backbone' not in config.model:
            raise InputError(f'{config.filename} has no model with a backbone')
        settings = copy.deepcopy(config.model)
        settings.pop('pretrained', None)
        settings.pop('init_cfg', None)
        settings.backbone.init_cfg = None
        if self.scope == 'mmpretrain':  # what mixes images is no part of the model
            settings.train_cfg = None
        part = settings.backbone if backbone_only else settings
        self.model = revert_sync_batchnorm(build_randomly(part, config.default_scope))
        self.in_channels = settings.backbone.get('in_channels', 3)

    def forward(self, x: Tensor) -> object:
        """Normalised images, (B, 3, H, W), to the model's outputs."""
        if self.scope is None:
            return self.model(x)
        size = tuple(x.shape[2:])
        about = dict(img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size, scale_factor=(1.0, 1.0))
        if self.scope == 'mmseg':
            return self.model.encode_decode(x, [about for _ in x])
        # Imported here, because a model needs one library alone.
        data_sample = getattr(importlib.import_module(f'{self.scope}.structures'), SAMPLES[self.scope])
        return self.model(x, [data_sample(metainfo=about) for _ in x], mode='tensor')


def random_image(size: tuple[int, int], channels: int = 3) -> Tensor:
    """Gaussian noise, (1, channels, height, width), the same in every run."""
    return torch.randn(1, channels, *size, generator=torch.Generator().manual_seed(SEED))


def num_parameters(module: nn.Module) -> int:
    """Number of parameters of a module; shared ones count once."""
    return sum(parameter.numel() for parameter in module.parameters())


def multiply_adds(network: Network, image: Tensor) -> dict[str, int]:
    """Multiply-adds of the forward pass of an image in eval mode (see `count_multiply_adds`).

    Returns:
        By the columns of the tool: of a size that was seen before ('flops'), of the backbone ('backbone_flops', only
        of a whole model), of convolutions and linear layers alone ('layer_flops'), and those that the first image of
        a size takes in addition, for position biases and the like ('flops_of_size').
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
