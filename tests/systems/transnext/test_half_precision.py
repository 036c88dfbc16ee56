"""LayerNorm and copies of weights under autocast."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from bioattn_mm.systems.transnext import TransNeXt, blocks, half_precision
from bioattn_mm.systems.transnext.half_precision import LayerNorm, copies_of
from bioattn_mm.training.strategies import FSDP2Strategy
from tests.needs import needs
from tests.training.ranks import reasons, run_ranks

SMALL = dict(embed_dims=(24, 24, 48, 48), num_heads=(1, 1, 2, 2), depths=(1, 1, 2, 1))


def model(**options) -> TransNeXt:
    torch.manual_seed(0)
    return TransNeXt(SMALL, drop_path_rate=0.5, **options).train()


def step(backbone: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and gradients of a step under autocast."""
    torch.manual_seed(1)
    with torch.autocast('cpu', torch.bfloat16):
        outputs = backbone(torch.randn(2, 3, 64, 48))
    sum(output.float().square().mean() for output in outputs).backward()
    return list(outputs), [parameter.grad for parameter in backbone.parameters()]


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """LayerNorm takes bfloat16 on the CPU as it does on a GPU."""
    monkeypatch.setattr(half_precision, 'takes_bfloat16', torch.is_autocast_enabled)


def test_gradients_are_accumulated() -> None:
    backbone = model()
    once = [gradient.clone() for gradient in step(backbone)[1]]
    twice = step(backbone)[1]
    torch.testing.assert_close(twice, [2 * gradient for gradient in once], rtol=0, atol=0)


@pytest.mark.usefixtures('as_on_a_gpu')
def test_layer_norm_in_bfloat16() -> None:
    torch.manual_seed(0)
    norm, x = LayerNorm(64), 3 + torch.randn(5, 64)
    nn.init.normal_(norm.weight, 1, 0.1)
    nn.init.normal_(norm.bias)
    expected = norm(x)
    with torch.autocast('cpu', torch.bfloat16):
        output = norm(x)
    assert output.dtype == torch.bfloat16
    # The input, weights and output are rounded to 1/256; of the input 3 is the mean.
    torch.testing.assert_close(output.float(), expected, rtol=0.02, atol=0.03)

    results = step(model())
    assert [{tensor.dtype for tensor in tensors} for tensors in results] == [{torch.bfloat16}, {torch.float32}]


@pytest.mark.usefixtures('as_on_a_gpu')
def test_losses_follow_those_of_float32() -> None:
    losses = []
    for enabled in (False, True):
        backbone = model()
        optimizer = torch.optim.AdamW(backbone.parameters(), 1e-3)
        losses.append([])
        for seed in range(4):
            torch.manual_seed(seed)
            with torch.autocast('cpu', torch.bfloat16, enabled):
                outputs = backbone(torch.randn(2, 3, 64, 48))
            loss = sum((output.float() - 1).square().mean() for output in outputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert losses[1] != losses[0]


def test_scaled_gradients_of_float16() -> None:
    def train() -> tuple[list[bool], list[float], list[Tensor]]:
        """Which steps are taken, losses, and the weights after the last of them."""
        backbone = model()
        optimizer = torch.optim.SGD(backbone.parameters(), 0.1)
        # A scale with which the first gradients are infinite, halved in each such step.
        scaler = torch.amp.GradScaler('cpu', init_scale=2.0**24, backoff_factor=2.0**-6)
        taken, losses = [], []
        for seed in range(4):
            torch.manual_seed(seed)
            with torch.autocast('cpu', torch.float16):
                outputs = backbone(torch.randn(2, 3, 64, 48))
            loss = sum(output.float().square().mean() for output in outputs)
            before = backbone.stages[0].patch_embed.proj.weight.detach().clone()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(backbone.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            taken.append(not torch.equal(before, backbone.stages[0].patch_embed.proj.weight))
            losses.append(loss.item())
        return taken, losses, [parameter.detach() for parameter in backbone.parameters()]

    results = train()
    taken = results[0]
    assert taken == sorted(taken) and set(taken) == {False, True}
    assert all(weight.isfinite().all() for weight in results[2])
    torch.testing.assert_close(results, train(), rtol=0, atol=0)


class Wrapped(nn.Module):
    """A model with a backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = model()

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.backbone(images)


def step_in_a_rank() -> None:
    """Write the gradients of a step in this process alone, in DDP and in FSDP, all of the same images."""
    torch.distributed.init_process_group('gloo')
    gradients = dict(ddp_alone=step(Wrapped())[1])
    # FSDP has parts of the parameters, which layers gather when they are called.
    may_be_functions, blocks._may_be_functions = blocks._may_be_functions, lambda x: False
    gradients['fsdp_alone'] = step(Wrapped())[1]
    blocks._may_be_functions = may_be_functions
    for name, wrap in dict(ddp=DistributedDataParallel, fsdp=FSDP2Strategy()._wrap_model).items():
        gradients[name] = [
            gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            for gradient in step(wrap(Wrapped()))[1]
        ]
    torch.save(gradients, f'gradients{torch.distributed.get_rank()}.pth')
    torch.distributed.barrier()  # else one may end while the other still connects


def test_several_processes(tmp_path: Path) -> None:
    assert run_ranks(step_in_a_rank, folder=tmp_path, world_size=2) == [0, 0], reasons(tmp_path)
    for rank in range(2):
        gradients = torch.load(tmp_path / f'gradients{rank}.pth')
        for name in ('ddp', 'fsdp'):
            torch.testing.assert_close(gradients[name], gradients[f'{name}_alone'], rtol=1e-6, atol=0)


class Casts(TorchDispatchMode):
    """Counts casts from one dtype to another, by that of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.number = Counter()

    def __torch_dispatch__(
        self, function: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default and args[0].is_floating_point():
            self.number[result.dtype] += 1
        return result


@needs('operators')  # without them, autocast also casts what each block computes
def test_weights_are_cast_once_for_a_stage() -> None:
    def casts_of(depth: int) -> int:
        torch.manual_seed(0)
        backbone = TransNeXt(dict(SMALL, depths=(1, 1, depth, 1)))
        step(backbone)  # makes the constants of this size
        with Casts() as casts:
            step(backbone)
        return casts.number.total()

    assert casts_of(4) == casts_of(2)


def test_copies_have_the_gradients_of_casts() -> None:
    tensors = [torch.randn(3, requires_grad=True), torch.randn(2, 2, dtype=torch.float64, requires_grad=True)]
    copies = copies_of(tensors, torch.bfloat16)
    torch.testing.assert_close(list(copies), [tensor.bfloat16() for tensor in tensors])
    gradients = torch.autograd.grad(sum(copy.square().sum() for copy in copies), tensors)
    torch.testing.assert_close(list(gradients), [2 * copy.to(of.dtype) for copy, of in zip(copies, tensors)])
    assert len(copies_of([], torch.bfloat16)) == 0


def test_a_gpu_takes_bfloat16_and_keeps_float16_apart() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        norm, x = LayerNorm(8, device='cuda'), torch.empty(2, 8, device='cuda')
        dtypes = []
        for dtype in (torch.bfloat16, torch.float16):
            torch.set_autocast_enabled('cuda', True)
            torch.set_autocast_dtype('cuda', dtype)
            try:
                dtypes.append(norm(x.to(dtype)).dtype)
            finally:
                torch.set_autocast_enabled('cuda', False)
                torch.set_autocast_dtype('cuda', torch.float16)
                torch.clear_autocast_cache()
    assert dtypes == [torch.bfloat16, torch.float32]
