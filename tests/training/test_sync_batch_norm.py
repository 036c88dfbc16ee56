"""SyncBN in processes without a GPU is the batch norm of all images together."""

from pathlib import Path

import pytest
import torch
from torch import nn

from bioattn_mm.training.sync_batch_norm import CPUSyncBatchNorm

from .ranks import reasons, run_ranks

# Each process has images of its own number and size.
SHAPES = [(2, 5, 4, 6), (1, 5, 7, 3)]


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=torch.double) * 3 + 50 for shape in SHAPES]


def loss(outputs: list[torch.Tensor]) -> torch.Tensor:
    return sum((output * torch.arange(output.numel()).view_as(output).sin()).sum() for output in outputs)


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
    x = inputs()[0].bfloat16()
    torch.testing.assert_close(layer(x), layer(x.float()).bfloat16())
    with pytest.raises(ValueError, match='Expected more than 1 value per channel when training'):
        layer(x[:1, :, :1, :1].float())
    assert layer.running_var.isfinite().all()


def one_rank(momentum: float | None) -> None:
    torch.distributed.init_process_group('gloo')
    rank = torch.distributed.get_rank()
    layer = batch_norm(CPUSyncBatchNorm, momentum=momentum)
    x = inputs()[rank].requires_grad_()
    for _ in range(2):
        output = layer(x)
    x.grad = None
    loss([output]).backward()
    gradients = [layer.weight.grad, layer.bias.grad]
    for gradient in gradients:
        torch.distributed.all_reduce(gradient)
    evaluated = layer.eval()(x.detach())
    torch.save([output, x.grad, *gradients, layer.running_mean, layer.running_var, evaluated], f'out{rank}.pth')


def test_statistics_and_gradients_are_those_of_all_images_together(tmp_path: Path) -> None:
    for momentum in (0.1, None):
        codes = run_ranks(one_rank, momentum, folder=tmp_path, world_size=2)
        assert codes == [0, 0], reasons(tmp_path)
        layer = batch_norm(nn.BatchNorm1d, momentum=momentum)
        images = [x.requires_grad_() for x in inputs()]
        for _ in range(2):
            # All pixels of all images as one batch.
            pixels = layer(torch.cat([x.permute(0, 2, 3, 1).flatten(0, 2) for x in images]))
        parts = pixels.split([x.numel() // 5 for x in images])
        outputs = [part.view(x.shape[0], *x.shape[2:], 5).permute(0, 3, 1, 2) for part, x in zip(parts, images)]
        loss(outputs).backward()
        for rank, (output, x) in enumerate(zip(outputs, images)):
            evaluated = nn.functional.batch_norm(
                x, layer.running_mean, layer.running_var, layer.weight, layer.bias, eps=layer.eps
            )
            expected = [output, x.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var]
            got = torch.load(tmp_path / f'out{rank}.pth')
            for a, b in zip(got, [*expected, evaluated], strict=True):
                torch.testing.assert_close(a, b)
