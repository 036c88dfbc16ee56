"""What a model costs: its size, and the passes whose FLOPs, time and memory are measured.

mmdet and mmseg are imported where they are used: a model needs one of them.
"""

import copy
import statistics
import time

import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from torch import Tensor, nn

from ..errors import InputError
from .flops import count_multiply_adds
from .models import SEED
from .saved_activations import saved_bytes

SCOPES = ('mmdet', 'mmseg')
# Of the ground truth of a training step: an image of COCO has about 7.
NUM_OBJECTS = 7


class Network(nn.Module):
    """A model's forward pass, from normalised images to what its head puts out.

    Of a segmentor the logits, resized to the image; of a detector the head's outputs, without post-processing: in
    two stages the second one's for the regions that the first proposes, masks for 100 of them.

    Args:
        config: Config of a whole model, of mmdet or mmseg. Its weights are random.
        backbone_only: The backbone alone, of any library.

    Raises:
        InputError: The whole model of another library.
    """

    def __init__(self, config: Config, backbone_only: bool = False) -> None:
        super().__init__()
        self.scope = None if backbone_only else config.default_scope
        if self.scope not in (None, *SCOPES):
            raise InputError(
                f'{config.filename} is of {self.scope}: expected {" or ".join(SCOPES)}, or add --backbone'
            )
        init_default_scope(config.default_scope)
        settings = copy.deepcopy(config.model)
        settings.pop('pretrained', None)
        settings.backbone.init_cfg = None
        torch.manual_seed(SEED)
        model = MODELS.build(settings.backbone if backbone_only else settings)
        model.init_weights()
        self.model = revert_sync_batchnorm(model)

    def forward(self, x: Tensor) -> object:
        """(B, 3, H, W) to what the model puts out."""
        if self.scope is None:
            return self.model(x)
        samples = [sample_of(x, self.scope) for _ in x]
        if self.scope == 'mmseg':
            return self.model.encode_decode(x, [sample.metainfo for sample in samples])
        return self.model(x, samples, mode='tensor')

    def training_forward(self, x: Tensor) -> object:
        """(B, 3, H, W) to the losses, of a backbone alone to its outputs.

        The ground truth of each image is in vertical stripes: 7 objects of a class, or regions of two classes.
        """
        if self.scope is None:
            return self.model(x)
        return self.model(x, [annotated_sample_of(x, self.scope) for _ in x], mode='loss')


def sample_of(x: Tensor, scope: str) -> BaseDataElement:
    """What goes with an image of a batch, (B, 3, H, W), that was not resized."""
    if scope == 'mmseg':
        from mmseg.structures import SegDataSample as DataSample
    else:
        from mmdet.structures import DetDataSample as DataSample
    size = tuple(x.shape[2:])
    about = dict(img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size, scale_factor=(1.0, 1.0))
    return DataSample(metainfo=about)


def annotated_sample_of(x: Tensor, scope: str) -> BaseDataElement:
    """The same with ground truth: vertical stripes, of two classes in turn or as many objects of the first class."""
    sample = sample_of(x, scope)
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


def random_images(batch_size: int, size: tuple[int, int], device: str) -> Tensor:
    """Normalised images of noise, the same in every run: (B, 3, height, width)."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(batch_size, 3, *size, generator=generator).to(device)


def num_parameters(module: nn.Module) -> int:
    """Parameters of a module, each once."""
    return sum(parameter.numel() for parameter in module.parameters())


def multiply_adds(network: Network, image: Tensor) -> tuple[dict[str, int], int]:
    """Multiply-adds of the forward pass of an image, in eval mode (see `count_multiply_adds`).

    Returns:
        Those of an image whose size was seen before, by the module's name; and how many more a size takes once.
    """
    network.eval()
    first, later = count_multiply_adds(network, image), count_multiply_adds(network, image)
    return later, first[''] - later['']


def activation_bytes(network: Network, x: Tensor) -> int:
    """Memory of what a training step keeps for its backward pass, in bytes (see `saved_bytes`).

    Raises:
        InputError: A norm has a single value of a channel, which it takes more images to normalise.
    """
    network.train()
    try:
        return saved_bytes(lambda: network.training_forward(x), network)
    except ValueError as error:
        if 'more than 1 value per channel' not in str(error):
            raise
        raise InputError(f'training takes more than {len(x)} image here: raise --batch-size ({error})') from error


@torch.no_grad()
def images_per_second(network: Network, x: Tensor, repeats: int) -> float:
    """Images per second of the forward pass in eval mode: the median of some passes, after one that warms up."""
    network.eval()

    def seconds() -> float:
        start = time.perf_counter()
        network(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds()
    return len(x) / statistics.median(seconds() for _ in range(repeats))
