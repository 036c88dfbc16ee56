"""The functions that bioattn_mm.mmcv_ops provides as mmcv._ext."""

import importlib.machinery
import importlib.util
import math
import os
import subprocess
import sys
import zipfile
from functools import partial
from itertools import product
from pathlib import Path

import mmcv
import pytest
import torch
import torchvision
from mmcv import ops
from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch
from mmcv_op_cases import CASES, IN_HALF_PRECISION, gradients, random_rois
from mmengine.utils.dl_utils.misc import mmcv_full_available
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._pytree import tree_map_only

from bioattn_mm import mmcv_ops
from bioattn_mm.mmcv_ops import regions
from bioattn_mm.mmcv_ops.stand_ins import MMCV_EXT
from bioattn_mm.ops.portable import portable_formulas
from tests.needs import needs

if mmcv._ext.__spec__.loader is not MMCV_EXT:
    pytest.skip('mmcv has its compiled ops here', allow_module_level=True)

ROOT = Path(__file__).parents[2]
FORMULA = 'mmcv.ops.multi_scale_deform_attn.multi_scale_deformable_attn_pytorch'


@pytest.fixture(params=['cpu', pytest.param('cuda', marks=needs('GPU'))])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope='session')
def compiled_results(tmp_path_factory) -> dict[str, dict[str, Tensor]]:
    """Results of all cases with the compiled ops of the wheel, from a process of its own."""
    wheels = (ROOT.parent / 'shared' / 'wheels').glob('onedl_mmcv-*.whl')
    fitting = [wheel for wheel in wheels if parse_wheel_filename(wheel.name)[3].intersection(sys_tags())]
    if not fitting:
        pytest.skip(
            'no wheel of onedl-mmcv with compiled ops in ../shared/wheels; to make it: MMCV_WITH_OPS=1 pip wheel -w '
            f'../shared/wheels --no-deps --no-build-isolation --no-binary onedl-mmcv onedl-mmcv=={mmcv.__version__}'
        )

    folder = tmp_path_factory.mktemp('mmcv_with_ops')
    with zipfile.ZipFile(fitting[0]) as wheel:
        wheel.extractall(folder / 'packages')
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(folder / 'packages'), str(ROOT)])}
    command = [sys.executable, Path(__file__).with_name('mmcv_op_cases.py'), folder / 'results.pt']
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    # The script fails where bioattn_mm replaces compiled ops.
    assert run.returncode == 0, run.stderr
    return torch.load(folder / 'results.pt')


def assert_close(results: list[Tensor], expected: list[Tensor], name: str, atol: float) -> None:
    torch.testing.assert_close(results, expected, rtol=1e-5, atol=atol, msg=lambda message: f'{name}: {message}')


@pytest.mark.parametrize('name', CASES)
def test_results_of_compiled_ops(name: str, compiled_results) -> None:
    results = [*CASES[name]()]
    assert results, 'accepted'
    is_sum_of_samples = 'deform' in name or 'max' in name
    assert_close(results, compiled_results[name], name, atol=1e-5 if is_sum_of_samples else 1e-6)


def converted(case: partial, device: str = 'cpu', dtype: torch.dtype | None = None) -> partial:
    """A case on a device, with floating-point numbers of a type."""

    def convert(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if dtype and tensor.is_floating_point() else tensor.dtype)

    arguments, options = tree_map_only(Tensor, convert, (case.args, case.keywords))
    return partial(case.func, *arguments, **options)


@needs('GPU')
def test_results_on_gpu() -> None:
    for name, case in CASES.items():
        if not name.startswith('refused'):  # on a GPU mmcv refuses other things
            results = [each.cpu() for each in converted(case, 'cuda')()]
            assert_close(results, [*case()], name, atol=1e-5)  # a GPU adds in another order


# mmcv has no CPU kernels of the following ops: they are compared with their definition under autograd.


@pytest.mark.parametrize(('gamma', 'alpha', 'weighted'), [(2.0, 0.25, False), (0.0, 0.5, False), (1.5, 0.75, True)])
def test_sigmoid_focal_loss(device: str, gamma: float, alpha: float, weighted: bool) -> None:
    target = torch.randint(0, 7 if weighted else 8, (40,), device=device)  # class 7 is background
    weight = torch.rand(7, device=device) if weighted else None
    labels = torch.nn.functional.one_hot(target, 8)[:, :7].float()
    scale = weight[target, None] if weighted else 1

    def expected(logits: Tensor) -> Tensor:
        return torchvision.ops.sigmoid_focal_loss(logits, labels, alpha, gamma) * scale

    logits = [4 * torch.randn(40, 7, device=device)]
    loss = gradients(ops.sigmoid_focal_loss, logits, target, gamma, alpha, weight, 'none')
    torch.testing.assert_close(loss, gradients(expected, logits), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('gamma', [0.0, 0.5, 2.0])
def test_focal_loss_of_saturated_logits_is_finite(gamma: float) -> None:
    logits = torch.tensor([[200.0, -200.0], [-200.0, 200.0]])
    value, grad = gradients(ops.sigmoid_focal_loss, [logits], torch.tensor([0, 0]), gamma, 0.25, None, 'sum')
    assert value.isfinite() and value > 20 and grad.isfinite().all()


def test_deformable_attention(device: str) -> None:
    case = converted(IN_HALF_PRECISION['deformable_attention'], device)

    def expected(value: Tensor, locations: Tensor, weights: Tensor, shapes: Tensor, _: Tensor) -> Tensor:
        return multi_scale_deformable_attn_pytorch.__wrapped__(value, shapes, locations, weights)

    torch.testing.assert_close(case(), gradients(expected, *case.args[1:]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('autocast', [False, True])
def test_layer_of_deformable_attention_keeps_no_samples(device: str, autocast: bool, monkeypatch) -> None:
    layer = ops.MultiScaleDeformableAttention(
        32, num_heads=4, num_levels=2, num_points=8, dropout=0, batch_first=True
    )
    layer = layer.to(device)
    shapes = torch.tensor([[6, 9], [3, 5]], device=device)
    query, value, centres = torch.rand(2, 50, 32), torch.randn(2, 69, 32), torch.rand(2, 50, 2, 2)
    query, value, centres = (tensor.to(device) for tensor in (query, value, centres))
    numels = []

    def run() -> list[Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (numels.append(t.numel()), t)[1], lambda t: t):
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                output = layer(query, value=value, reference_points=centres, spatial_shapes=shapes)
        return [output, *torch.autograd.grad(output.square().sum(), [*layer.parameters()])]

    results, num_samples = run(), 2 * 50 * 2 * 8 * 32
    assert max(numels) < num_samples / 2, max(numels)
    with portable_formulas():  # as an exporter
        exported = run()
    monkeypatch.setattr(FORMULA, multi_scale_deformable_attn_pytorch.__wrapped__)
    expected = run()
    assert max(numels) >= num_samples / 2
    torch.testing.assert_close(exported, expected, rtol=0, atol=0)
    for result, other in zip(results, expected, strict=True):
        scale = other.abs().max().item()
        torch.testing.assert_close(result, other, rtol=0, atol=scale * (4e-2 if autocast else 1e-5))


def roi_pool_by_loops(maps: Tensor, rois: Tensor, bins: tuple[int, int], scale: float) -> Tensor:
    height, width = maps.shape[2:]
    output = []
    for image, x1, y1, x2, y2 in rois.tolist():
        left, top = x1 * scale, y1 * scale
        bin_width, bin_height = (x2 + 1 - x1) * scale / bins[1], (y2 + 1 - y1) * scale / bins[0]
        for row, column in product(range(bins[0]), range(bins[1])):
            first_y, end_y = math.floor(top + row * bin_height), math.ceil(top + (row + 1) * bin_height)
            first_x, end_x = math.floor(left + column * bin_width), math.ceil(left + (column + 1) * bin_width)
            pixels = maps[int(image), :, max(first_y, 0) : max(end_y, 0), max(first_x, 0) : max(end_x, 0)].flatten(1)
            output.append(pixels.amax(1) if pixels.numel() else maps.new_zeros(maps.size(1)))
    return torch.stack(output).view(len(rois), *bins, -1).permute(0, 3, 1, 2)


@pytest.mark.parametrize('chunk', [2**24, 100])
def test_roi_pool(device: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, 'CHUNK', chunk)
    rois = random_rois(12).double()
    rois[-1, 1:] = torch.tensor([200.0, 200, 220, 220])  # outside
    maps = [torch.randn(2, 3, 16, 20, device=device)]
    pooled = gradients(ops.roi_pool, maps, rois.float().to(device), (3, 5), 0.25)
    torch.testing.assert_close(pooled, gradients(roi_pool_by_loops, maps, rois, (3, 5), 0.25), rtol=1e-5, atol=1e-6)
    assert ops.roi_pool(*maps, rois[:0].float().to(device), (3, 5), 0.25).shape == (0, 3, 3, 5)


@pytest.mark.parametrize('sampling_ratio', [0, 2])
def test_deform_roi_pool(device: str, sampling_ratio: int) -> None:
    """Without offsets it is RoIAlign; an offset of all bins moves the region."""
    maps, rois = [torch.randn(2, 3, 16, 20, device=device)], random_rois(12).to(device)
    aligned = partial(torchvision.ops.roi_align, output_size=(3, 5), spatial_scale=0.25, aligned=True)
    aligned = partial(aligned, sampling_ratio=sampling_ratio)
    pooled = gradients(ops.deform_roi_pool, maps, rois, None, (3, 5), 0.25, sampling_ratio, 0.1)
    torch.testing.assert_close(pooled, gradients(aligned, maps, rois), rtol=1e-5, atol=1e-5)
    shift = torch.tensor([2.0, -1.0], device=device)
    pooled = ops.deform_roi_pool(
        *maps, rois, shift.view(1, 2, 1, 1).repeat(12, 1, 3, 5), (3, 5), 0.25, sampling_ratio, 0.1
    )
    rois[:, 1:] += (0.1 * (rois[:, 3:] - rois[:, 1:3]) * shift).repeat(1, 2)
    torch.testing.assert_close(pooled, aligned(*maps, rois), rtol=1e-4, atol=1e-5)


def carafe(maps: Tensor, masks: Tensor) -> Tensor:
    """By its definition: the pixel around which a patch is lies below each of four masks; two groups of channels."""
    patches = torch.nn.functional.unfold(maps, 3, padding=1).unflatten(2, maps.shape[2:])
    patches = torch.nn.functional.interpolate(patches, scale_factor=2).unflatten(1, (2, 2, 9))
    return (patches * masks.unflatten(1, (2, 1, 9))).sum(3).flatten(1, 2)


def test_carafe(device: str) -> None:
    inputs = [torch.randn(2, 4, 3, 5, device=device), torch.rand(2, 18, 6, 10, device=device)]
    expected = gradients(carafe, inputs)
    torch.testing.assert_close(gradients(ops.carafe, inputs, 3, 2, 2), expected, rtol=1e-5, atol=1e-6)
    if device == 'cpu':  # where mmcv asserts that there is a GPU in the backward pass
        torch.testing.assert_close(ops.carafe_naive(*inputs, 3, 2, 2), expected[0])
    else:
        torch.testing.assert_close(gradients(ops.carafe_naive, inputs, 3, 2, 2), expected, rtol=1e-5, atol=1e-6)


def test_masked_convolution(device: str) -> None:
    layer = ops.MaskedConv2d(3, 4, 3, padding=1).to(device)
    image, mask = torch.randn(1, 3, 6, 7, device=device), torch.rand(1, 6, 7, device=device) > 0.5
    expected = torch.nn.functional.conv2d(image, layer.weight, layer.bias, padding=1) * mask
    torch.testing.assert_close(layer(image, mask), expected, rtol=1e-5, atol=1e-5)
    assert not layer(image, torch.zeros_like(mask)).any()


@pytest.mark.parametrize('weighted', [False, True])
def test_softmax_focal_loss(device: str, weighted: bool) -> None:
    target = torch.randint(-1, 5, (20,), device=device)
    weight = torch.rand(5, device=device) if weighted else None
    scale = (weight[target.clamp(min=0)] if weighted else 1) * (target >= 0)

    def expected(logits: Tensor) -> Tensor:
        p = logits.softmax(1).gather(1, target.clamp(min=0)[:, None])[:, 0]
        return -0.25 * (1 - p) ** 2 * p.log() * scale

    logits = [torch.randn(20, 5, device=device)]
    arguments = target, 2.0, 0.25, weight
    torch.testing.assert_close(ops.softmax_focal_loss(*logits, *arguments, 'none'), expected(*logits))
    total = gradients(ops.softmax_focal_loss, logits, *arguments, 'sum')  # by mmcv it alone has right gradients
    torch.testing.assert_close(total, gradients(lambda logits: expected(logits).sum(), logits), rtol=1e-5, atol=1e-6)


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gradcheck() -> None:
    image, offset, mask, weight = double(2, 4, 5, 4), double(2, 36, 5, 4), double(2, 18, 5, 4), double(4, 2, 3, 3)
    geometry = (1, 1, 1, 2, 2)
    assert gradcheck(ops.deform_conv2d, (image, offset, weight, *geometry))
    assert gradcheck(ops.modulated_deform_conv2d, (image, offset, mask, weight, double(4), *geometry))
    assert gradcheck(lambda x: ops.PSAMask('collect', (3, 3))(x), double(1, 9, 3, 4))
    rois = torch.tensor([[0, 1.3, 0.7, 9.1, 7.4], [0, 2.2, 2.9, 5.3, 8.8]], dtype=torch.float64)
    assert gradcheck(ops.roi_pool, (double(1, 2, 6, 5), rois, (2, 2), 0.5))
    assert gradcheck(ops.roi_align, (double(1, 2, 6, 5), rois, (2, 2), 0.5, 2, 'max', True))
    assert gradcheck(ops.deform_roi_pool, (double(1, 2, 6, 5), rois, double(2, 2, 2, 2), (2, 2), 0.5, 2, 0.1))


@pytest.mark.parametrize('name', IN_HALF_PRECISION)
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_is_float32_rounded_once(name: str, dtype: torch.dtype) -> None:
    case = converted(IN_HALF_PRECISION[name], dtype=dtype)
    expected = [tensor.to(dtype) for tensor in converted(case, dtype=torch.float32)()]
    torch.testing.assert_close([*case()], expected, rtol=0, atol=0)


# Installation.


def test_the_module_that_stands_in() -> None:
    assert mmcv_full_available()
    assert importlib.util.find_spec('mmcv._ext') is sys.modules['mmcv._ext'].__spec__
    before = list(sys.meta_path)
    mmcv_ops.install()
    assert sys.meta_path == before and before.count(MMCV_EXT) == 1
    # Compiled operators come first.
    assert before.index(importlib.machinery.PathFinder) < before.index(MMCV_EXT)
    with pytest.raises(NotImplementedError, match=r"'box_iou_rotated'.*MMCV_WITH_OPS=1 pip install"):
        ops.box_iou_rotated(torch.zeros(1, 5), torch.zeros(1, 5))
    for name in ('__path__', '__file__', '_private'):
        with pytest.raises(AttributeError, match=name):
            getattr(mmcv._ext, name)
    assert ops.get_compiler_version() == ops.get_compiling_cuda_version() == 'n/a (ops over PyTorch)'
