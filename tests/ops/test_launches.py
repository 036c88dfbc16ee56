"""What a GPU would have to launch: sizes of chunks, counts of benchmarks/launches.py, and that nothing waits."""

import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bioattn_mm.ops.constants import cached_constant
from bioattn_mm.ops.peripheral_attention import query_chunks
from bioattn_mm.systems.transnext import TransNeXt
from tests.benchmark_scripts import names_of
from tests.ops.conftest import needs_library
from tests.ops.cuda_on_cpu import CUDAOnCPU
from tests.ops.kernels import KERNELS
from tests.systems.common.small_backbones import CASES, build


@pytest.fixture(scope='module')
def launches() -> SimpleNamespace:
    return names_of('launches.py')


def test_a_gpu_has_larger_chunks() -> None:
    for device, number in dict(cpu=64, cuda=1, mps=1, meta=1).items():
        assert len([*query_chunks((32, 32), heads=4, channels=16, batch=8, device=torch.device(device))]) == number


def test_constants_of_an_export_of_fake_tensors_and_of_a_transform_are_not_kept() -> None:
    @cached_constant
    def constant(size: int) -> torch.Tensor:
        return torch.ones(size)

    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + constant(3)

    exported = torch.export.export(Sum(), (torch.zeros(3),), strict=False)
    assert exported.module()(torch.zeros(3)).tolist() == [1, 1, 1]
    with FakeTensorMode():
        assert isinstance(constant(3), FakeTensor)
    assert torch.func.grad(lambda x: (x * constant(3)).sum())(torch.zeros(3)).tolist() == [1, 1, 1]
    assert constant(3).data_ptr() and constant(3) is constant(3)  # tensors of a transform have none


@needs_library
def test_counts(launches: SimpleNamespace, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = 'ConvGLU of TransNeXt-T stage 1'
    names = ['TransNeXt-T stage 1', 'TransNeXt-T stage 4', gate, 'PerViT-T', 'VARS-SD']
    monkeypatch.setattr('sys.argv', ['launches.py', '--sizes', '512', '--layers', *names])
    launches.main()
    rows = [re.split(' *[|] *', row)[1:-1] for row in capsys.readouterr().out.splitlines() if row.startswith('|')]
    counts = {(layer, each): int(number) for layer, _, each, number, *_ in rows[2:]}
    assert {layer for layer, _ in counts} == set(names)
    _, seen, training = launches.PASSES
    # Of TransNeXt's, five are linear; GELU, pooling, the norm of pooled tokens, softplus and attention are one each.
    # A new size takes the table's operator; then what the device keeps: coordinates and indices.
    stage_1, stage_4 = ([counts[name, each] for each in launches.PASSES] for name in names[:2])
    assert stage_1[1] <= 5 + 5 and stage_1[2] <= 40
    assert stage_1[0] - stage_1[1] <= 1 + 2 + 5 and stage_4[0] - stage_4[1] <= 1 + 2
    # Two linear layers, with the gate in between; backward two products and a sum for each, and the gate.
    assert counts[gate, seen] == 3 and counts[gate, training] == 3 + 2 * 3 + 1
    # Position-based attention is kept: two linear layers, and PyTorch's attention.
    assert counts['PerViT-T', seen] == 3 and counts['VARS-SD', training] < 250
    assert max(counts.values()) < 300  # a chunk of the size for CPUs would be one of hundreds
    monkeypatch.setattr('sys.argv', ['launches.py', '--sizes', '64', '--formulas', '--operators', '--layers', *names])
    launches.main()
    output = capsys.readouterr().out
    assert 'aten::addmm' in output and 'bioattn_mm::' not in output


@needs_library
def test_a_step(launches: SimpleNamespace) -> None:
    # The model has the depths of TransNeXt-T; the number of channels does not matter.
    arch = dict(embed_dims=(24, 24, 24, 24), num_heads=(3, 3, 3, 3), depths=(2, 2, 15, 2))
    counts = launches.count_step(TransNeXt(arch, drop_path_rate=0.3))
    forward, backward = counts['forward'].launches, counts['backward'].launches
    # Position biases are computed once for a stage.
    for operator, number in dict(after_attention=21, aggregate=19, log_cpb_table=4).items():
        name = f'bioattn_mm::{operator}'
        assert forward[name] == backward[f'{name}_backward'] == number
    assert kernels_of(counts) <= 1351


def kernels_of(counts: dict) -> int:
    """Of the forward and the backward pass."""
    return counts['forward'].kernels() + counts['backward'].kernels()


@pytest.mark.parametrize(
    ('name', 'limit'), {'ConViT-S': 1.31, 'GABViT-S': 1.34, 'PerViT-S': 2.27, 'VARS-SD in RVT-S': 2.75}.items()
)
def test_a_step_of_plain_backbones_beside_vit(launches: SimpleNamespace, name: str, limit: float) -> None:
    ours, vit = (kernels_of(launches.count_step(launches.STEPS[each]())) for each in (name, 'ViT-S'))
    assert ours < limit * vit, (ours, vit)


@pytest.mark.parametrize(
    'name',
    ['add_norm', 'cosine_attention', 'deformable_attention', 'gated_convolution', 'gelu_pool_norm', 'log_cpb_table']
    + ['sparse_codes'],
)
def test_kernels_of_an_operator(name: str, cuda_on_cpu: CUDAOnCPU, launches: SimpleNamespace) -> None:
    """Its own, and what PyTorch computes in between."""
    operator, sizes, dtype = KERNELS[name], {}, torch.float32
    if name == 'cosine_attention':  # which pads the table of other widths
        sizes, dtype = dict(grid=(9, 16), pooled_grid=(3, 8), channels=24), torch.bfloat16
    inputs = operator.inputs(sizes, 'cpu', dtype)
    leaves = [t.requires_grad_() for t in operator.leaves(inputs)]

    def check(direction: str, run: Callable[[], object]) -> object:
        before = cuda_on_cpu.operators.launches()
        with launches.LaunchCounter('cpu') as counter:
            result = run()
        del counter.launches['aten::copy_']  # of the emulation, which puts its inputs between guard pages
        kernels = cuda_on_cpu.operators.launches() - before + counter.launches.total()
        assert kernels == launches.KERNELS.get(f'bioattn_mm::{name}{direction}', 1), counter.launches
        return result

    output = check('', lambda: operator.run(*inputs, backend='cuda'))
    grad = torch.ones_like(output)
    check('_backward', lambda: torch.autograd.grad(output, leaves, grad))


def test_what_is_counted(launches: SimpleNamespace) -> None:
    x = torch.empty(8, 16, device='meta')
    with launches.LaunchCounter() as counter:
        x.T.reshape(2, 64).view(-1)  # one copy
        torch.empty_like(x)
        torch.ones(3)  # on the CPU
        torch.ones(4).to('meta')
        x.add_(1)
        x[:, :1].expand(8, 100) + 1
    assert counter.launches == {'aten::clone': 1, 'aten::_to_copy': 1, 'aten::add_': 1, 'aten::add': 1}
    assert counter.bytes == 2 * 512 + 2 * 16 + 2 * 512 + 4 * (8 + 800)
    tensors = [torch.zeros(3) for _ in range(111)]  # of which a launch has 110
    with launches.LaunchCounter('cpu') as counter:
        torch._foreach_add_(tensors, 1)
    assert counter.launches == {'aten::_foreach_add_': 2}


class NoWaiting(TorchDispatchMode):
    """Refuses operators for which the processor waits for the GPU: a CUDA graph can have none of them.

    Those that read a number, or make a tensor whose size depends on values, are not there for meta tensors. Copies
    from one device to the other are refused here, also those from pageable memory to the GPU.
    """

    def __torch_dispatch__(
        self, function: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        results = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, results)) if isinstance(leaf, torch.Tensor)]
        # A number of the CPU, a tensor without axes, is an argument of the kernel.
        devices = {tensor.device.type for tensor in tensors if tensor.dim() or tensor.device.type != 'cpu'}
        assert len(devices) <= 1, f'{function} has tensors on {devices}'
        return results


@needs_library
@pytest.mark.parametrize(
    ('name', 'options'),
    [
        *((name, {}) for name in CASES),
        ('TransNeXt', dict(position_bias=dict(type='bioattn_mm.LogCPBOfBothPaths'))),
        ('TransNeXt', dict(position_bias=dict(type='bioattn_mm.RelativePositionBias'))),
    ],
    ids=str,
)
def test_backbones_do_not_wait_for_the_gpu(name: str, options: dict, launches: SimpleNamespace) -> None:
    with torch.device(launches.DEVICE):
        backbone = build(name, drop_path_rate=0.5, out_indices=(0, 3), **options).train()
        image = torch.empty(2, 3, 64, 80)
    outputs = ()
    with launches.as_on_a_gpu(formulas=False):
        backbone(image)  # makes the constants of this size, which are kept
        with NoWaiting():
            outputs = backbone(image)
            torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
            with torch.no_grad():
                backbone.eval()(image)
    assert all(parameter.grad is not None for parameter in backbone.parameters())
