"""SyncBN in processes without a GPU is the batch norm of all images together."""

from pathlib import Path

import pytest
import torch
from torch import nn

from bioattn_mm.training.sync_batch_norm import CPUSyncBatchNorm

from .ranks import run_ranks

# Each process has images of its own size.
SHAPES = [(2, 5, 4, 6), (2, 5, 7, 3)]


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    images = [torch.randn(shape, generator=generator, dtype=torch.double) * 3 + 50 for shape in SHAPES]
    return [image.requires_grad_() for image in images]


def batch_norm(kind: type[nn.Module], **kwargs) -> nn.Module:
    torch.manual_seed(4)
    layer = kind(5, **kwargs).double()
    with torch.no_grad():
        layer.weight.uniform_(0.5, 2)
        layer.bias.normal_()
    return layer


@pytest.mark.usefixtures('one_process')
def test_half_precision_has_statistics_of_float32_and_one_value_has_no_variance() -> None:
    """One value as where one process pools a map of 1 x 1 from one image: its running variance would be NaN."""
    layer = batch_norm(CPUSyncBatchNorm).float()
    x = inputs()[0].detach().bfloat16()
    torch.testing.assert_close(layer(x), layer(x.float()).bfloat16())
    with pytest.raises(ValueError, match='Expected more than 1 value per channel when training'):
        layer(x[:1, :, :1, :1].float())
    assert layer.running_var.isfinite().all()


def compare_with_one_batch() -> None:
    torch.distributed.init_process_group('gloo')
    rank = torch.distributed.get_rank()
    for momentum in (0.1, None):
        layer, alone = (batch_norm(kind, momentum=momentum) for kind in (CPUSyncBatchNorm, nn.BatchNorm1d))
        images, x = inputs(), inputs()[rank]
        for _ in range(2):
            output = layer(x)
            pixels = alone(torch.cat([image.flatten(2) for image in images], 2))
        outputs = [part.reshape(shape) for part, shape in zip(pixels.split([4 * 6, 7 * 3], 2), SHAPES)]
        for each in (output, *outputs):
            (each * torch.arange(each.numel()).view_as(each).sin()).sum().backward(retain_graph=True)
        for gradient in (layer.weight.grad, layer.bias.grad):
            torch.distributed.all_reduce(gradient)
        evaluated = layer.eval()(x.detach())
        expected = alone.eval()(x.detach().flatten(2)).view_as(x)
        for a, b in (
            (output, outputs[rank]), (x.grad, images[rank].grad), (evaluated, expected),
            (layer.weight.grad, alone.weight.grad), (layer.bias.grad, alone.bias.grad),
            (layer.running_mean, alone.running_mean), (layer.running_var, alone.running_var),
        ):  # fmt: skip
            torch.testing.assert_close(a, b)


def test_statistics_and_gradients_are_those_of_all_images_together(tmp_path: Path) -> None:
    run_ranks(compare_with_one_batch, folder=tmp_path, world_size=2)
