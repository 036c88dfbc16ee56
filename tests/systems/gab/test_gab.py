"""GAB: the Gaussian bias against the paper's sliced table; GABSwin and GABViT against their hosts; their files."""

from pathlib import Path

import pytest
import timm
import torch
from mmdet.models.backbones.swin import SwinTransformer as MMDetSwin
from mmdet.models.backbones.swin import swin_converter
from mmengine.registry import DefaultScope
from mmpretrain.models import SwinTransformer as MMPretrainSwin
from torch import Tensor, nn

from bioattn_mm.checkpoints import check_fit
from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.errors import InputError
from bioattn_mm.systems.gab import GABSwin, GABViT, GaussianBias, GaussianRelPosAttention
from tests.needs import needs
from tests.systems.common.small_backbones import CASES, loaded
from tests.systems.layers import check_formula
from tests.systems.timm_models.classifiers import classifier

SWIN, VIT = CASES['GABSwin'].arch, CASES['GABViT'].arch


def values_of_gaussians(backbone: nn.Module) -> list[tuple[float, float]]:
    """Amplitude and sigma of each layer."""
    layers = [module for module in backbone.modules() if isinstance(module, GaussianBias)]
    return [(layer.amplitude.item(), layer.sigma.item()) for layer in layers]


def sliced_table(amplitude: Tensor, sigma: Tensor, grid: tuple[int, int]) -> Tensor:
    """Eq. 3 of the paper: each query slices the bias of its keys from a table of all offsets."""
    height, width = grid
    dy = torch.arange(1 - height, height, dtype=sigma.dtype)[:, None]
    dx = torch.arange(1 - width, width, dtype=sigma.dtype)
    table = amplitude**2 * torch.exp(-(dx**2 + dy**2) / (2 * sigma**2))
    queries = [
        table[height - 1 - row : 2 * height - 1 - row, width - 1 - column : 2 * width - 1 - column].flatten()
        for row in range(height)
        for column in range(width)
    ]
    return torch.stack(queries)


@pytest.mark.parametrize('grid', [(1, 1), (1, 5), (4, 4), (3, 7), (6, 2)], ids=str)
def test_equals_equation_3_in_values_and_gradients(grid: tuple[int, int]) -> None:
    layer = GaussianBias(2.3, -1.4).double()
    layer.sigma.data.neg_()  # training may give it any sign
    parameters = list(layer.parameters())
    tolerances = dict(values=dict(rtol=0, atol=1e-13), gradients=dict(rtol=0, atol=1e-12))
    check_formula(layer(grid), sliced_table(*parameters, grid), parameters, **tolerances)


def test_a_gaussian_of_each_head() -> None:
    """`num_heads` Gaussians are those of as many layers, in the bias and in a ViT's attention."""
    layer = GaussianBias(2.0, num_heads=2)
    layer.sigma.data[1], layer.amplitude.data[1] = 0.7, 1.5
    wanted = torch.stack([GaussianBias(2.0, 1.0)((3, 4)), GaussianBias(0.7, 1.5)((3, 4))])
    torch.testing.assert_close(layer((3, 4)), wanted)
    assert layer.head_parameters()['gaussian_sigma'] == pytest.approx([2.0, 0.7])
    layer.load_state_dict(layer.state_dict())

    attention = GaussianRelPosAttention(8, 2, sigma=2.0, gaussian_per_head=True).eval()
    shared = GaussianRelPosAttention(8, 2, sigma=2.0).eval()
    gaussian = shared.rel_pos.gaussian
    shared.load_state_dict({**attention.state_dict(), **gaussian.state_dict(prefix='rel_pos.gaussian.')})
    x, queries = torch.randn(1, 3, 4, 8), torch.tensor([5, 0])
    torch.testing.assert_close(attention(x), shared(x))
    for module, heads in ((attention, 2), (shared, 1)):
        weights = module.attention_maps(x, queries)['Gaussian'].weights.flatten(3)
        wanted = sliced_table(gaussian.amplitude, gaussian.sigma, (3, 4))[queries].softmax(-1)
        torch.testing.assert_close(weights, wanted.expand(1, heads, 2, 12))


def test_half_precision_on_a_long_axis() -> None:
    """Squares of offsets overflow in float16: the Gaussian has to be computed in float32."""
    bias = GaussianBias(200.0).half().table((1, 400))
    torch.testing.assert_close(bias, GaussianBias(200.0).table((1, 400)))


def test_scalars_of_older_checkpoints_are_loaded() -> None:
    layer = GaussianBias(2.0)
    weights = dict(amplitude=torch.tensor(1.5), sigma=torch.tensor(3.0))
    check_fit('old.pth', weights, layer.state_dict())
    layer.load_state_dict(weights)
    assert (layer.amplitude.tolist(), layer.sigma.tolist()) == ([1.5], [3])


def plain_swin() -> MMDetSwin:
    host = MMDetSwin(**SWIN, drop_path_rate=0.0)
    host.eval()
    for name, parameter in host.named_parameters():
        # Biases large enough that neighbours differ.
        std = 1.0 if 'bias_table' in name else 0.05
        parameter.data += std * torch.randn(parameter.shape)
    return host


def released_names(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file as the Swin authors lay it out for a state dict of mmdet: the inverse of what mmdet does to theirs."""
    released = {}
    for name, value in state_dict.items():
        if name.startswith(('norm0', 'norm1', 'norm2', 'norm3')):
            continue
        if 'downsample' in name:  # (channel, row, column) to (column, row, channel)
            value = value.unflatten(-1, (-1, 2, 2)).transpose(-1, -3).flatten(-3)
        for old, new in (
            ('stages.', 'layers.'),
            ('attn.w_msa.', 'attn.'),
            ('ffn.layers.0.0.', 'mlp.fc1.'),
            ('ffn.layers.1.', 'mlp.fc2.'),
            ('projection', 'proj'),
        ):
            name = name.replace(old, new)
        released[name] = value
    released['layers.0.blocks.1.attn_mask'] = torch.zeros(64, 49, 49)
    released['norm.weight'], released['norm.bias'] = torch.ones(128), torch.zeros(128)
    released['head.weight'], released['head.bias'] = torch.zeros(1000, 128), torch.zeros(1000)
    return released


@pytest.mark.parametrize(('amplitude', 'size'), [(0.0, (224, 224)), (1.5, (33, 47)), (1.5, (200, 97))], ids=str)
@torch.no_grad()
def test_it_is_the_plain_swin_with_a_bias_of_equation_3(amplitude: float, size: tuple[int, int]) -> None:
    host, backbone = plain_swin(), GABSwin(SWIN, amplitude=amplitude, sigma=2.0).eval()
    backbone.load_state_dict(host.state_dict(), strict=False)
    dy, dx = torch.meshgrid(torch.arange(-6.0, 7), torch.arange(-6.0, 7), indexing='ij')
    for name, parameter in host.named_parameters():
        if 'bias_table' in name:
            parameter += (amplitude**2 * torch.exp(-(dx**2 + dy**2) / 8)).flatten()[:, None]
    image = torch.randn(2, 3, *size)
    torch.testing.assert_close(backbone(image), host(image), rtol=0, atol=1e-5)


@pytest.mark.parametrize('is_released', [True, False], ids=['release', 'mmdet'])
@torch.no_grad()
def test_loads_files_of_two_sources(is_released: bool, tmp_path: Path, lines: list[str]) -> None:
    host = plain_swin()
    checkpoint = dict(host.state_dict())
    if is_released:
        for stage in range(4):  # as mmdet has them after loading an ImageNet file
            host.get_submodule(f'norm{stage}').reset_parameters()
        checkpoint = {'model': released_names(host.state_dict())}
        converted = swin_converter(checkpoint['model'])  # this is how mmdet reads it
        for name, value in host.state_dict().items():
            assert name.startswith('norm') or torch.equal(converted[f'backbone.{name}'], value)
    backbone = loaded(GABSwin, checkpoint, tmp_path, SWIN, amplitude=0.0, sigma=2.5)
    image = torch.randn(1, 3, 90, 130)
    torch.testing.assert_close(backbone(image), host(image), rtol=0, atol=1e-5)
    assert {sigma for _, sigma in values_of_gaussians(backbone)} == {2.5}
    assert 'left at their initial values: stages.0.blocks.0.attn.w_msa.gaussian.amplitude, ' in lines[0]
    unused = 'layers.0.blocks.1.attn_mask, norm.weight, norm.bias, head.weight, head.bias'
    assert (f', not used: {unused};' in lines[0]) == is_released


@torch.no_grad()
def test_whole_classifier_of_the_release_gives_its_logits(tmp_path: Path) -> None:
    host, fc = MMPretrainSwin(SWIN, drop_path_rate=0.0), nn.Linear(128, 10)  # whose last stage does not shift windows
    host.load_state_dict(plain_swin().state_dict(), strict=False)
    host.eval()
    released = released_names(host.state_dict())
    released |= {'norm.weight': host.norm3.weight, 'norm.bias': host.norm3.bias}
    released |= {'head.weight': fc.weight, 'head.bias': fc.bias}
    torch.save({'model': released}, tmp_path / 'swin.pth')
    backbone = dict(type='GABSwin', arch=SWIN, pad_small_map=False, amplitude=0.0)
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'swin.pth'))
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = classifier(backbone, 128, 10, init_cfg=init_cfg)
    model.init_weights()
    image = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(model.eval()(image), fc(host(image)[-1].mean((2, 3))), rtol=0, atol=1e-5)


@pytest.mark.parametrize(('cls', 'arch'), [(cls, arch) for cls in (GABViT, GABSwin) for arch in cls.arch_settings])
def test_names_and_shapes_are_those_of_the_host(cls: type[nn.Module], arch: str) -> None:
    with on_meta():
        backbone = cls(arch)
        if cls is GABSwin:
            host = MMDetSwin(**GABSwin.arch_settings[arch])
        else:
            host = timm.create_model(f'vit_relpos_{arch}_patch16_224', num_classes=0)
    own = {name: value.shape for name, value in backbone.state_dict().items() if 'gaussian' not in name}
    theirs = {name: value.shape for name, value in host.state_dict().items() if not name.startswith('fc_norm')}
    assert own == theirs


@pytest.mark.parametrize('size', [(224, 224), pytest.param((96, 160), marks=needs('timm>=1.0.31'))], ids=str)
@torch.no_grad()
def test_without_amplitude_it_is_the_model_of_timm(size: tuple[int, int], tmp_path: Path) -> None:
    host = timm.create_model('vit_relpos_small_patch16_224', embed_dim=16, num_heads=2).eval()
    for name, parameter in host.named_parameters():
        if name.endswith('gamma'):  # timm's layer scale of 1e-6 hides all the blocks
            nn.init.uniform_(parameter, 0.5, 1)
        elif 'rel_pos.mlp' in name:
            nn.init.normal_(parameter, std=0.5)
    backbone = loaded(GABViT, host.state_dict(), tmp_path, VIT, amplitude=0.0)
    if size != (224, 224):
        host.set_input_size(size)
    image = torch.randn(2, 3, *size)
    outputs = backbone(image)
    wanted = host.forward_intermediates(image, indices=[3, 7, 9, 11], intermediates_only=True)
    torch.testing.assert_close(list(outputs), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(outputs[-1].flatten(2).mT, host.forward_features(image), rtol=0, atol=1e-5)


def test_initial_values() -> None:
    for backbone, values in (
        (GABSwin(SWIN), [(1, 3.5)] * 8),
        (GABSwin(SWIN, window_size=12), [(1, 6)] * 8),
        (GABSwin(SWIN, sigma=2.0, amplitude=0.5), [(0.5, 2)] * 8),
        (GABViT(VIT), [(1, 5)] * 12),
        (GABViT(VIT, sigma=3.0, amplitude=0.5, out_indices=(1,)), [(0.5, 3)] * 2),
    ):
        assert values_of_gaussians(backbone) == values


@pytest.mark.parametrize('with_gaussians', [False, True])
def test_files_with_and_without_gaussians(with_gaussians: bool, tmp_path: Path, lines: list[str]) -> None:
    source = GABViT(VIT, sigma=1.5, amplitude=2.0).state_dict()
    weights = {f'backbone.{n}': value for n, value in source.items() if with_gaussians or 'gaussian' not in n}
    backbone = loaded(GABViT, {'state_dict': weights}, tmp_path, VIT, sigma=2.5)
    assert set(values_of_gaussians(backbone)) == {(2, 1.5) if with_gaussians else (1, 2.5)}
    for name, value in backbone.state_dict().items():
        assert 'gaussian' in name or torch.equal(value, source[name])
    said = 'all of the file' if with_gaussians else 'initial values: blocks.0.attn.rel_pos.gaussian.amplitude'
    assert said in lines[0]


def test_file_that_lacks_more_than_gaussians(tmp_path) -> None:
    weights = GABViT(VIT).state_dict()
    del weights['blocks.3.attn.rel_pos.mlp.fc1.weight']
    with pytest.raises(InputError, match='1 missing in the file: blocks.3.attn.rel_pos.mlp.fc1.weight'):
        loaded(GABViT, weights, tmp_path, VIT)
