"""ONNX files at sizes at which axes of different meaning have one length, and what notices that a file is wrong."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ..needs import module_needs

pytestmark = module_needs('onnx', 'onnxscript', 'onnxslim', 'onnxruntime')
from bioattn_mm.errors import InputError  # noqa: E402
from bioattn_mm.export.formats import check_outputs, runner_of  # noqa: E402
from bioattn_mm.export.onnx_file import write_onnx  # noqa: E402
from bioattn_mm.export.program import trace_portable  # noqa: E402
from bioattn_mm.systems.gab.vit_attention import GaussianRelPosAttention  # noqa: E402
from bioattn_mm.systems.transnext import AggregatedAttention, LengthScaledAttention, LogCPB  # noqa: E402

HEADS = PATCH = 4


class Attention(nn.Module):
    """Layers of attention with heads of 4 channels, on patches of 4 x 4 pixels."""

    def __init__(self) -> None:
        super().__init__()
        dims = HEADS * HEADS
        self.patches = nn.Conv2d(3, dims, PATCH, PATCH)
        aggregated = AggregatedAttention(dims, HEADS, LogCPB(HEADS, (7, 7)), 2)
        length_scaled = LengthScaledAttention(dims, HEADS, LogCPB(HEADS, (7, 7)))
        gaussian = GaussianRelPosAttention(dims, HEADS, sigma=1.5)
        self.layers = nn.ModuleList([aggregated, length_scaled, gaussian])

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        tokens = self.patches(image).permute(0, 2, 3, 1)
        return tuple(layer(tokens) for layer in self.layers)


@pytest.mark.parametrize('grid', [(4, 4), pytest.param((4, 7), marks=pytest.mark.slow)])
def test_axes_of_one_length(grid: tuple[int, int], tmp_path: Path) -> None:
    """As many rows of tokens as heads, and as channels of a head."""
    network = Attention().eval()
    with torch.no_grad():
        for parameter in network.parameters():  # what starts alike in all heads
            parameter.add_(torch.randn_like(parameter) / 2)
    size, file = tuple(PATCH * length for length in grid), tmp_path / 'model.onnx'
    write_onnx(trace_portable(network, size), ('first', 'second', 'third'), file, any_size=False)
    assert check_outputs(network, runner_of(file), [(1, *size)]) < 1e-5


def test_wrong_files_are_refused() -> None:
    """A difference is no rounding, unless it is PyTorch's own in float32."""

    class Smooth(nn.Module):
        def forward(self, image: Tensor) -> tuple[Tensor, ...]:
            return image, image.mean((2, 3))

    class Jumps(nn.Module):
        def forward(self, image: Tensor) -> tuple[Tensor, ...]:
            return (torch.floor(image * 1e7) % 2,)

    def check(network: nn.Module, relative: float) -> float:
        return check_outputs(network, lambda x: [each * (1 - relative) for each in network(x)], [(1, 8, 8)])

    assert check(Smooth(), 5e-5) == pytest.approx(5e-5, rel=0.01)
    for relative in (5e-4, float('nan')):
        with pytest.raises(InputError, match='the exported file differs from the model by .* at 1 x 8 x 8'):
            check(Smooth(), relative)
    assert check(Jumps(), 5e-4) == pytest.approx(5e-4, rel=0.01)
