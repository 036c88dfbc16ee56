"""What every backbone keeps: any input size, gradients everywhere, and OpenMMLab's switches."""

import copy
import math
from pathlib import Path

import pytest
import torch
from timm.layers import Attention, DropPath
from torch import nn

from bioattn_mm.analysis.attention_recorder import record_attention
from bioattn_mm.systems.common.attention_maps import whole_attention

from .small_backbones import ABLATIONS, CASES, VARIANTS, build, every_backbone, every_variant


@pytest.mark.parametrize(
    ('name', 'size', 'device'),
    [
        *((name, size, 'cpu') for name in VARIANTS for size in ((32, 32), (33, 47), (32, 200), (97, 161))),
        *((name, (97, 70), 'cpu') for name in ABLATIONS),
        # Without data there are shapes, as for a count of operations.
        *((name, (64, 90), 'meta') for name in CASES),
    ],
    ids=str,
)
def test_any_input_size(name: str, size: tuple[int, int], device: str) -> None:
    case = (VARIANTS | ABLATIONS)[name]
    with torch.device(device):
        backbone, images = build(name), torch.randn(2, 3, *size)
    assert backbone.out_channels == case.out_channels
    outputs = backbone(images)
    for output, channels, stride in zip(outputs, case.out_channels, case.strides, strict=True):
        assert output.shape == (2, channels, -(-size[0] // stride), -(-size[1] // stride))
        assert output.device.type == device and (output.is_meta or output.isfinite().all())
    sum(output.square().sum() for output in outputs).backward()
    # A parameter without a gradient stops distributed training, and FSDP2 refuses scalars.
    for key, parameter in backbone.named_parameters():
        assert parameter.ndim and parameter.grad.device.type == device
        assert parameter.is_meta or parameter.grad.isfinite().all()
        # A bias that all keys have is without effect, and so is much on maps that are not pooled.
        assert parameter.is_meta or min(size) < 64 or key.endswith('bias') or parameter.grad.any(), key
    if name.startswith('PerViT '):  # no row of a table has the parameters of the whole model
        assert backbone.state_dict().keys() != build('PerViT').state_dict().keys()


class Adapted(nn.Linear):
    """A linear layer as a library of adapters derives it: plus a product of low rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x @ self.down @ self.up


@every_backbone
def test_adapters_of_all_linear_layers(name: str) -> None:
    """Those of position biases, too, which are no layers of tokens."""
    backbone = build(name)
    layers = [layer for layer in backbone.modules() if type(layer) is nn.Linear]
    for layer in layers:
        layer.__class__ = Adapted
        layer.down, layer.up = (
            nn.Parameter(0.1 * torch.randn(sizes)) for sizes in ((layer.in_features, 1), (1, layer.out_features))
        )
    sum(output.square().sum() for output in backbone(torch.randn(2, 3, 64, 90))).backward()
    without = [key for key, parameter in backbone.named_parameters() if parameter.grad is None]
    assert layers and not without


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.skipif(not torch.backends.quantized.supported_engines[1:], reason='PyTorch without quantised layers')
@every_backbone
@torch.no_grad()
def test_quantised_linear_layers(name: str) -> None:
    backbone, image = build(name).eval(), torch.randn(1, 3, 64, 90)
    quantised = torch.ao.quantization.quantize_dynamic(backbone, {nn.Linear})
    for one, other in zip(quantised(image), backbone(image), strict=True):
        assert (one - other).square().mean() < 0.1 * other.square().mean()


@every_backbone
@torch.no_grad()
def test_what_is_cached_of_a_size_follows_the_parameters(name: str) -> None:
    backbone, image = build(name).eval(), torch.randn(1, 3, 64, 90)
    backbone(image)
    for parameter in backbone.parameters():
        parameter.add_(torch.rand_like(parameter), alpha=0.1)
    torch.testing.assert_close(backbone(image), copy.deepcopy(backbone)(image), rtol=0, atol=0)  # a copy has no cache


@pytest.mark.parametrize(
    'name',  # the weights of spatial reduction cannot be read
    [*CASES, 'TransNeXt A-A-A-A', 'VARS rvt vars_sd', *(name for name in ABLATIONS if 'reduction' not in name)],
)
@torch.no_grad()
def test_attention_of_every_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith('PerViT'):
        monkeypatch.setenv('BIOATTN_MM_BACKEND', 'reference')  # caches in eval mode
    backbone, image = build(name).eval(), torch.randn(2, 3, 97, 70)
    # Padding is at the bottom and right: to whole patches where all maps have their stride.
    padded = nn.functional.pad(image, (0, 10, 0, 15)) if CASES[name.split()[0]].num_stages == 12 else image
    torch.testing.assert_close(backbone(image), backbone(padded))
    recordings = record_attention(backbone, image)
    assert len(recordings) == len(backbone.block_modules())
    for recording in recordings:
        assert backbone.get_submodule(recording.name) is recording.layer
        stride = backbone.stage_strides[int(recording.name.split('.')[1])]
        assert recording.grid == (-(-97 // stride), -(-70 // stride))
        maps = recording.maps(torch.tensor([0, math.prod(recording.grid) - 1]))
        assert all(part.weights.isfinite().all() and part.weights.shape[2] == 2 for part in maps.values())
        sums = sum(part.weights.sum((-2, -1)) for part in whole_attention(maps))
        if isinstance(recording.layer, Attention):
            assert (sums < 1).all()  # the class token has the rest
        elif not name.startswith('VARS'):
            torch.testing.assert_close(sums, torch.ones_like(sums))


@every_backbone
def test_gradients_of_each_image_by_torch_func(name: str) -> None:
    backbone, images = build(name).eval().double(), torch.randn(2, 3, 64, 96, dtype=torch.float64)
    parameters, buffers = dict(backbone.named_parameters()), dict(backbone.named_buffers())

    def total(parameters: dict, images: torch.Tensor) -> torch.Tensor:
        outputs = torch.func.functional_call(backbone, (parameters, buffers), (images,))
        return sum(output.square().sum() for output in outputs)

    of_each = torch.func.vmap(torch.func.grad(total), in_dims=(None, 0))(parameters, images[:, None])
    want = torch.autograd.grad(total(parameters, images), list(parameters.values()))
    for got, gradient in zip(of_each.values(), want, strict=True):
        torch.testing.assert_close(got.sum(0), gradient)


@pytest.mark.parametrize('name', [name for name, case in VARIANTS.items() if case.num_stages == 12])
def test_second_derivatives_of_formulas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in ('ConViT', 'VARS rvt softmax'):
        pytest.skip('PyTorch has no second derivative of its attention on the CPU')
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'reference')
    image = torch.randn(1, 3, 32, 48, requires_grad=True)
    outputs = build(name, out_indices=(1,))(image)
    (gradient,) = torch.autograd.grad(outputs[0].square().sum(), image, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), image)
    assert second.isfinite().all() and second.any()


@every_variant
def test_out_indices(name: str, tmp_path: Path) -> None:
    """A backbone ends with its last output, takes the weights of a whole one, and gives maps in its own order."""
    whole = build(name, out_indices=(1, 2, VARIANTS[name].num_stages - 1)).eval()
    torch.save(whole.state_dict(), tmp_path / 'whole.pth')
    part = build(name, out_indices=(2, 1), init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'whole.pth')))
    part.init_weights()
    assert len(part.state_dict()) < len(whole.state_dict())
    image = torch.randn(1, 3, 48, 64)
    outputs = part.eval()(image)
    torch.testing.assert_close(outputs, whole(image)[:2])
    assert part.out_channels == tuple(output.shape[1] for output in outputs)
    sum(output.square().sum() for output in outputs).backward()
    assert all(parameter.grad is not None for parameter in part.parameters())


@every_variant
def test_with_cp_gives_the_same_gradients(name: str) -> None:
    image = torch.randn(2, 3, 64, 96)
    plain, recomputed = build(name), build(name, with_cp=True)
    recomputed.load_state_dict(plain.state_dict())
    for backbone in (plain, recomputed):
        torch.manual_seed(1)  # timm's position bias has dropout
        sum(output.square().mean() for output in backbone(image)).backward()
    for a, b in zip(plain.parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize('bfloat16', [False, True], ids=['float32', 'bfloat16'])
@pytest.mark.parametrize('name', [name for name in VARIANTS if name in CASES or name.startswith('VARS rvt ')])
def test_gradients_of_padded_images(name: str, bfloat16: bool) -> None:
    """A batch is padded with zeros behind the normalisation: no backbone may answer with exploding gradients."""
    backbone = build(name)
    images = torch.randn(2, 3, 128, 128)
    right, bottom, one_image = (images.clone() for _ in range(3))
    right[..., 64:] = 0
    bottom[..., 64:, :] = 0
    one_image[1] = 0

    def gradient_norm(images: torch.Tensor) -> float:
        backbone.zero_grad()
        with torch.autocast('cpu', torch.bfloat16, enabled=bfloat16):
            outputs = backbone(images)
        weights = torch.Generator().manual_seed(0)
        sum((output * torch.randn(output.shape, generator=weights)).mean() for output in outputs).backward()
        return nn.utils.get_total_norm([parameter.grad for parameter in backbone.parameters()]).item()

    unpadded = gradient_norm(images)
    for padded in map(gradient_norm, (right, bottom, one_image)):
        assert 0.1 * unpadded < padded < 10 * unpadded


@pytest.mark.parametrize(
    ('name', 'mode'), [*((name, 'autocast') for name in VARIANTS), *((name, 'half weights') for name in CASES)]
)
def test_bfloat16(name: str, mode: str) -> None:
    backbone, image = build(name).eval(), torch.randn(1, 3, 64, 96)
    exact = backbone(image)
    if mode == 'half weights':
        backbone, image = backbone.bfloat16(), image.bfloat16()
    with torch.autocast('cpu', torch.bfloat16, enabled=mode == 'autocast'):
        outputs = backbone(image)
    for output, want in zip(outputs, exact, strict=True):
        assert (output.float() - want).abs().max() < 0.05 * want.abs().max()
    sum(output.float().square().mean() for output in outputs).backward()
    assert all(parameter.grad.isfinite().all() for parameter in backbone.parameters())


@pytest.mark.parametrize('last', [0, 1])
@every_backbone
def test_frozen_stages_stay_frozen_in_training(name: str, last: int) -> None:
    backbone = build(name, frozen_stages=last, drop_path_rate=0.5).train()
    stages = backbone.stages if CASES[name].num_stages == 4 else backbone.blocks
    for index, stage in enumerate(stages):
        assert all(parameter.requires_grad == (index > last) for parameter in stage.parameters())
        assert stage.training == (index > last)
    # What comes before the stages is frozen with them.
    embeddings = ('patch_embed', 'stem', 'pos_embed', 'distance_embedding')
    before = [module for name, module in backbone.named_children() if name in embeddings]
    assert not any(parameter.requires_grad for module in before for parameter in module.parameters())
    assert not any(module.training for module in before)
    sum(output.square().sum() for output in backbone(torch.randn(2, 3, 64, 64))).backward()
    assert all((p.grad is not None) == p.requires_grad for p in backbone.parameters())


@every_backbone
def test_drop_path_rises_linearly_over_all_blocks(name: str) -> None:
    backbone = build(name, drop_path_rate=0.4)
    rates = {module.drop_prob for module in backbone.modules() if type(module).__name__ == DropPath.__name__}
    rising = torch.linspace(0, 0.4, len(backbone.block_modules())).tolist()
    assert sorted(rates | {0.0}) == pytest.approx(rising)
