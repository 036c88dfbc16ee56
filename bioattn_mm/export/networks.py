"""What of a model an exported file holds: the network, from the normalised image to its outputs."""

from collections.abc import Sequence

import torch
from mmengine.config import Config
from torch import Tensor, nn

from ..errors import InputError


class Features(nn.Module):
    """A backbone in eval mode: the feature maps of its stages, whose number is that for an example, `image`."""

    task = 'features'

    def __init__(self, model: nn.Module, image: Tensor) -> None:
        super().__init__()
        self.backbone = model.eval()
        with torch.no_grad():
            self.names = [f'stage{index}' for index, _ in enumerate(model(image))]

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.backbone(image))


class Network(nn.Module):
    """Base of the networks with a head."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class Classifier(Network):
    """A classifier of mmpretrain: logits, (B, classes)."""

    task, names = 'classification', ['logits']

    def forward(self, image: Tensor) -> tuple[Tensor]:
        return (self.model(image, mode='tensor'),)


class Segmentor(Network):
    """A segmentor of mmseg: logits in the size of the head, (B, classes, h, w)."""

    task, names = 'segmentation', ['logits']

    def forward(self, image: Tensor) -> tuple[Tensor]:
        return (self.model.decode_head(self.model.extract_feat(image)),)


def network_of(model: nn.Module, config: Config) -> nn.Module:
    """The network of a model that a file can hold, in eval mode, with `task` and `names` of its outputs.

    Raises:
        InputError: The model is of a kind that is not exported so.
    """
    scope = config.default_scope
    if scope == 'mmdet':
        raise InputError(
            f'{type(model).__name__}: --via torch exports classifiers, segmentors and backbones (--backbone), no '
            'detectors, whose heads choose boxes in Python; --via mmdeploy exports them'
        )
    if scope == 'mmpretrain':
        from mmpretrain.models.heads import MultiLabelClsHead

        if isinstance(getattr(model, 'head', None), MultiLabelClsHead):
            raise InputError(
                f'{type(model.head).__name__}: exported are classifiers of one class an image, such as with '
                'LinearClsHead, whose scores are a softmax'
            )
        return Classifier(model).eval()
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead

    head = getattr(model, 'decode_head', None)
    if not isinstance(head, BaseDecodeHead) or 'Mask2Former' in type(head).__name__:
        found = type(model).__name__ if head is None or isinstance(head, Sequence) else type(head).__name__
        raise InputError(
            f'{found}: --via torch exports segmentors whose decode_head gives logits, such as UPerHead; '
            '--via mmdeploy exports it'
        )
    return Segmentor(model).eval()


def check_any_size(model: nn.Module) -> None:
    """Raise an `InputError` if a model's backbone can be exported for one size only."""
    backbone = getattr(model, 'backbone', model)
    if not getattr(backbone, 'exports_any_size', True):
        raise InputError(
            f'{type(backbone).__name__} is exported for images of one size only: name it, such as --size 512x512'
        )
