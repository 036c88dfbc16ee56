"""The functions that bioattn_mm.mmcv_ops provides as mmcv._ext."""

import importlib.machinery
import importlib.util
import math
import os
import subprocess
import sys
import zipfile
from itertools import product
from pathlib import Path

import mmcv
import mmcv.ops
import pytest
import torch
import torchvision
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction, multi_scale_deformable_attn_pytorch
from mmcv_op_cases import CASES, features, random_rois
from mmengine.utils.dl_utils.misc import mmcv_full_available
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename
from torch import Tensor
from torch.autograd import gradcheck

from bioattn_mm import mmcv_ops
from bioattn_mm.mmcv_ops import regions
from bioattn_mm.mmcv_ops.stand_ins import MMCV_EXT
from tests.needs import needs

if mmcv._ext.__spec__.loader is not MMCV_EXT:
    pytest.skip('mmcv has its compiled ops here', allow_module_level=True)

ROOT = Path(__file__).parents[2]


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
    files = folder / 'arguments.pt', folder / 'results.pt'
    torch.save({name: arguments for name, (_, arguments) in CASES.items()}, files[0])
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(folder / 'packages'), str(ROOT)])}
    command = [sys.executable, Path(__file__).with_name('run_compiled_ops.py'), *files]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    # The script fails where bioattn_mm replaces compiled ops.
    assert run.returncode == 0, run.stderr
    return torch.load(files[1])


@pytest.mark.parametrize('name', CASES)
def test_results_of_compiled_ops(name: str, compiled_results) -> None:
    function, arguments = CASES[name]
    results = function(**arguments)
    assert results, 'accepted'
    is_sum_of_samples = 'deform' in name or 'maximum' in name
    assert_close(results, compiled_results[name], name, atol=1e-5 if is_sum_of_samples else 1e-6)


@needs('GPU')
def test_results_on_gpu() -> None:
    for name, (function, arguments) in CASES.items():
        if name.startswith('refused'):
            continue  # on a GPU mmcv refuses other things
        on_gpu = {k: v.cuda() if isinstance(v, Tensor) else v for k, v in arguments.items()}
        results = {k: v.cpu() for k, v in function(**on_gpu).items()}
        assert_close(results, function(**arguments), name, atol=1e-5)  # a GPU adds in another order


def assert_close(results: dict[str, Tensor], expected: dict[str, Tensor], name: str, atol: float = 1e-6) -> None:
    torch.testing.assert_close(results, expected, rtol=1e-5, atol=atol, msg=lambda message: f'{name}: {message}')


# mmcv has no CPU kernels of the following ops: they are compared with their definition under autograd.


def assert_same_value_and_gradients(
    output: Tensor, expected: Tensor, inputs: list[Tensor], atol: float = 1e-6
) -> None:
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=atol)
    grads, expected_grads = (
        torch.autograd.grad(each, inputs, torch.linspace(-1, 1, each.numel()).view_as(each).to(each))
        for each in (output, expected)
    )
    torch.testing.assert_close(grads, expected_grads, rtol=1e-5, atol=atol)


@pytest.mark.parametrize(('gamma', 'alpha', 'weighted'), [(2.0, 0.25, False), (0.0, 0.5, False), (1.5, 0.75, True)])
def test_sigmoid_focal_loss(device: str, gamma: float, alpha: float, weighted: bool) -> None:
    logits = (4 * torch.randn(40, 7, device=device)).requires_grad_()
    target = torch.randint(0, 7 if weighted else 8, (40,), device=device)  # class 7 is background
    weight = torch.rand(7, device=device) if weighted else None
    loss = mmcv.ops.sigmoid_focal_loss(logits, target, gamma, alpha, weight, 'none')
    labels = torch.nn.functional.one_hot(target, 8)[:, :7].float()
    expected = torchvision.ops.sigmoid_focal_loss(logits, labels, alpha, gamma)
    assert_same_value_and_gradients(loss, expected * weight[target, None] if weighted else expected, [logits])


@pytest.mark.parametrize('gamma', [0.0, 0.5, 2.0])
def test_focal_loss_of_saturated_logits_is_finite(gamma: float) -> None:
    logits = torch.tensor([[200.0, -200.0], [-200.0, 200.0]], requires_grad=True)
    value = mmcv.ops.sigmoid_focal_loss(logits, torch.tensor([0, 0]), gamma, 0.25, None, 'sum')
    value.backward()
    assert value.isfinite() and value > 20
    assert logits.grad.isfinite().all()


def deformable_attention_inputs(device: str = 'cpu', dtype: torch.dtype = torch.float32) -> tuple:
    """Arguments of mmcv's function; a part of the sampling points is outside the levels."""
    shapes = torch.tensor([[6, 4], [3, 2], [1, 1]], device=device)
    sizes = shapes.prod(1)
    value = torch.randn(2, int(sizes.sum()), 2, 4, device=device, dtype=dtype)
    locations = torch.rand(2, 5, 2, 3, 4, 2, device=device, dtype=dtype) * 1.4 - 0.2
    weights = torch.rand(2, 5, 2, 3, 4, device=device, dtype=dtype)
    for tensor in (value, locations, weights):
        tensor.requires_grad_()
    return value, shapes, sizes.cumsum(0) - sizes, locations, weights, 64


def test_deformable_attention(device: str) -> None:
    inputs = deformable_attention_inputs(device)
    value, shapes, _, locations, weights, _ = inputs
    output = MultiScaleDeformableAttnFunction.apply(*inputs)
    expected = multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)
    assert_same_value_and_gradients(output, expected, [value, locations, weights])


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
    maps = torch.randn(2, 3, 16, 20, device=device).requires_grad_()
    rois = random_rois(12, 2).double().to(device)
    rois[-1, 1:] = torch.tensor([200.0, 200, 220, 220])  # outside
    output = mmcv.ops.roi_pool(maps, rois.float(), (3, 5), 0.25)
    expected = roi_pool_by_loops(maps.cpu(), rois, (3, 5), 0.25).to(device)
    assert_same_value_and_gradients(output, expected, [maps])
    assert mmcv.ops.roi_pool(maps, rois[:0].float(), (3, 5), 0.25).shape == (0, 3, 3, 5)


@pytest.mark.parametrize('sampling_ratio', [0, 2])
def test_deform_roi_pool(device: str, sampling_ratio: int) -> None:
    """Without offsets it is RoIAlign; an offset of all bins moves the region."""
    maps = torch.randn(2, 3, 16, 20, device=device).requires_grad_()
    rois = random_rois(12, 2).to(device)
    pooled = mmcv.ops.deform_roi_pool(maps, rois, None, (3, 5), 0.25, sampling_ratio, 0.1)
    expected = torchvision.ops.roi_align(maps, rois, (3, 5), 0.25, sampling_ratio, aligned=True)
    assert_same_value_and_gradients(pooled, expected, [maps], atol=1e-5)
    offset = torch.zeros(12, 2, 3, 5, device=device)
    offset[:, 0], offset[:, 1] = 2.0, -1.0
    moved = rois.clone()
    size = rois[:, 3:] - rois[:, 1:3]
    moved[:, 1:] += (0.1 * size * size.new_tensor([2.0, -1.0])).repeat(1, 2)
    pooled = mmcv.ops.deform_roi_pool(maps, rois, offset, (3, 5), 0.25, sampling_ratio, 0.1)
    expected = torchvision.ops.roi_align(maps, moved, (3, 5), 0.25, sampling_ratio, aligned=True)
    torch.testing.assert_close(pooled, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', ['carafe', 'carafe_naive'])
def test_carafe(device: str, name: str) -> None:
    maps = torch.randn(2, 4, 3, 5, device=device).requires_grad_()
    masks = torch.rand(2, 2 * 9, 6, 10, device=device).requires_grad_()
    expected = torch.zeros(2, 4, 6, 10, device=device)
    padded = torch.nn.functional.pad(maps, (1, 1, 1, 1))
    for channel, y, x in product(range(4), range(6), range(10)):
        patch = padded[:, channel, y // 2 : y // 2 + 3, x // 2 : x // 2 + 3].flatten(1)
        group = channel // 2
        expected[:, channel, y, x] = (patch * masks[:, 9 * group : 9 * group + 9, y, x]).sum(1)
    if name == 'carafe_naive' and device == 'cpu':  # whose backward pass mmcv asserts to be on a GPU
        torch.testing.assert_close(mmcv.ops.carafe_naive(maps, masks, 3, 2, 2), expected)
        return
    assert_same_value_and_gradients(getattr(mmcv.ops, name)(maps, masks, 3, 2, 2), expected, [maps, masks])


def test_masked_convolution(device: str) -> None:
    layer = mmcv.ops.MaskedConv2d(3, 4, 3, padding=1).to(device)
    image, mask = torch.randn(1, 3, 6, 7, device=device), torch.rand(1, 6, 7, device=device) > 0.5
    expected = torch.nn.functional.conv2d(image, layer.weight, layer.bias, padding=1) * mask
    torch.testing.assert_close(layer(image, mask), expected, rtol=1e-5, atol=1e-5)
    assert not layer(image, torch.zeros_like(mask)).any()


@pytest.mark.parametrize('weighted', [False, True])
def test_softmax_focal_loss(device: str, weighted: bool) -> None:
    logits = torch.randn(20, 5, device=device).requires_grad_()
    target = torch.randint(-1, 5, (20,), device=device)
    weight = torch.rand(5, device=device) if weighted else None
    loss = mmcv.ops.softmax_focal_loss(logits, target, 2.0, 0.25, weight, 'none')
    p = logits.softmax(1).gather(1, target.clamp(min=0)[:, None])[:, 0]
    expected = -0.25 * (1 - p) ** 2 * p.log() * (target >= 0)
    expected = expected * weight[target.clamp(min=0)] if weighted else expected
    torch.testing.assert_close(loss, expected)
    loss = mmcv.ops.softmax_focal_loss(logits, target, 2.0, 0.25, weight, 'sum')
    assert_same_value_and_gradients(loss, expected.sum(), [logits])


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gradcheck() -> None:
    image, offset, mask, weight = double(2, 4, 5, 4), double(2, 36, 5, 4), double(2, 18, 5, 4), double(4, 2, 3, 3)
    geometry = (1, 1, 1, 2, 2)
    target, class_weight = torch.randint(0, 4, (6,)), torch.rand(4, dtype=torch.float64)
    focal = mmcv.ops.sigmoid_focal_loss
    assert gradcheck(lambda logits: focal(logits, target, 2.0, 0.25, class_weight, 'mean'), double(6, 4))
    assert gradcheck(MultiScaleDeformableAttnFunction.apply, deformable_attention_inputs(dtype=torch.float64))
    assert gradcheck(mmcv.ops.deform_conv2d, (image, offset, weight, *geometry))
    assert gradcheck(mmcv.ops.modulated_deform_conv2d, (image, offset, mask, weight, double(4), *geometry))
    assert gradcheck(lambda x: mmcv.ops.PSAMask('collect', (3, 3))(x), double(1, 9, 3, 4))
    assert gradcheck(mmcv.ops.carafe, (double(1, 4, 3, 3), double(1, 18, 6, 6), 3, 2, 2))
    rois = torch.tensor([[0, 1.3, 0.7, 9.1, 7.4], [0, 2.2, 2.9, 5.3, 8.8]], dtype=torch.float64)
    assert gradcheck(mmcv.ops.roi_pool, (double(1, 2, 6, 5), rois, (2, 2), 0.5))
    assert gradcheck(mmcv.ops.roi_align, (double(1, 2, 6, 5), rois, (2, 2), 0.5, 2, 'max', True))
    assert gradcheck(mmcv.ops.deform_roi_pool, (double(1, 2, 6, 5), rois, double(2, 2, 2, 2), (2, 2), 0.5, 2, 0.1))


# Half precision: the result is that of float32 arithmetic on the same inputs, rounded once.


def deformable_attention(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    _, shapes, starts, *_ = deformable_attention_inputs()
    return MultiScaleDeformableAttnFunction.apply(value, shapes, starts, locations, weights, 64)


IN_HALF_PRECISION = {
    'sigmoid_focal_loss': (
        lambda logits: mmcv.ops.sigmoid_focal_loss(logits, torch.arange(8), 2.0, 0.25, None, 'none'),
        lambda: [torch.randn(8, 7)],
    ),
    'roi_align': (
        lambda maps, rois: mmcv.ops.roi_align(maps, rois, (3, 5), 0.25, 0, 'avg', True),
        lambda: [features(2), random_rois(12, 2)],
    ),
    'deformable_attention': (deformable_attention, lambda: [deformable_attention_inputs()[i] for i in (0, 3, 4)]),
}


@pytest.mark.parametrize('name', IN_HALF_PRECISION)
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_values_and_gradients_in_half_precision(name: str, dtype: torch.dtype) -> None:
    function, make_inputs = IN_HALF_PRECISION[name]
    inputs = [tensor.detach().to(dtype).requires_grad_() for tensor in make_inputs()]
    exact = [tensor.detach().float().requires_grad_() for tensor in inputs]
    output, expected = function(*inputs), function(*exact)
    torch.testing.assert_close(output, expected.to(dtype), rtol=0, atol=0)
    grads, wanted = (
        torch.autograd.grad(each.sum(), tensors, allow_unused=True, materialize_grads=True)
        for each, tensors in ((output, inputs), (expected, exact))
    )
    torch.testing.assert_close(grads, tuple(each.to(dtype) for each in wanted), rtol=0, atol=0)


def test_nms_in_half_precision() -> None:
    boxes, scores = CASES['nms, threshold 0.3, offset 1'][1]['boxes'].half(), torch.linspace(0, 1, 300).half()
    kept = mmcv._ext.nms(boxes, scores, iou_threshold=0.3, offset=1)
    assert kept.tolist() == mmcv._ext.nms(boxes.float(), scores.float(), iou_threshold=0.3, offset=1).tolist()


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
        mmcv.ops.box_iou_rotated(torch.zeros(1, 5), torch.zeros(1, 5))
    for name in ('__path__', '__file__', '_private'):
        with pytest.raises(AttributeError, match=name):
            getattr(mmcv._ext, name)
    assert mmcv.ops.get_compiler_version() == mmcv.ops.get_compiling_cuda_version() == 'n/a (ops over PyTorch)'
