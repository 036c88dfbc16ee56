#!/usr/bin/env python
"""Launches and memory traffic of one layer of each system on a GPU, counted without one: attention, and ConvGLU.

The layers run on meta tensors, which have sizes and no data, and take the path of a GPU: the operators compiled
for CUDA (or, with --formulas, PyTorch's, as in a build without CUDA), PyTorch's fused attention, and chunks of the
size for GPUs. What is counted is every operator that PyTorch executes, except those that only make another view of a
tensor or a tensor without data: each is one launch, and reads its inputs and writes its outputs once. Copies from the
CPU to the GPU count as launches.

Both numbers are lower bounds: some operators, such as Fourier transforms and backward passes, run in several kernels.

With --step, the launches of a whole training step of backbones in bfloat16: forward, backward, clipped gradients and
AdamW, by the CPU, on small tensors, as their number hardly depends on sizes. Here the kernels of operators that are
known to have several count one by one. ViT-S and Swin-S are timm's.
"""

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from unittest.mock import patch

import timm
import torch
import torch.nn.functional as F
from measure import print_header, print_row
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bioattn_mm.ops import backends
from bioattn_mm.ops.registration import RESULTS
from bioattn_mm.systems.convit import ConViT
from bioattn_mm.systems.gab import GABSwin, GABViT
from bioattn_mm.systems.pervit import PerViT
from bioattn_mm.systems.transnext import TransNeXt, half_precision
from bioattn_mm.systems.transnext import attention as layers
from bioattn_mm.systems.vars import VARS

DEVICE = 'meta'
WITHOUT_LAUNCH = {
    f'aten::{name}'
    for name in '_unsafe_view empty empty_like empty_strided new_empty new_empty_strided lift_fresh'.split()
}
BACKBONES = {
    'VARS-S': partial(VARS, 'rvt-tiny', 'vars_s'),
    'VARS-D': partial(VARS, 'rvt-tiny', 'vars_d'),
    'VARS-SD': partial(VARS, 'rvt-tiny', 'vars_sd'),
    'ConViT-Ti': partial(ConViT, 'tiny'),
    'GABViT-S': partial(GABViT, 'small'),
}
TIMM = partial(timm.create_model, features_only=True, img_size=64)
STEPS = {
    'TransNeXt-T': partial(TransNeXt, 'tiny', drop_path_rate=0.3),
    'ViT-S': partial(TIMM, 'vit_small_patch16_224'),
    'ConViT-S': partial(ConViT, 'small'),
    'GABViT-S': partial(GABViT, 'small'),
    'PerViT-S': partial(PerViT, 'small'),
    'VARS-SD in RVT-S': partial(VARS, 'rvt-small', 'vars_sd', pretrain_size=64),
    'Swin-S': partial(TIMM, 'swin_small_patch4_window7_224'),
    'GABSwin-S': partial(GABSwin, 'small'),
}
GATE = 'ConvGLU of TransNeXt-T stage 1'
LAYERS = (*(f'TransNeXt-T stage {stage}' for stage in range(1, 5)), GATE, 'PerViT-T', *BACKBONES)
PASSES = ('forward, new size', 'forward, size seen before', 'forward + backward')
# Kernels of operators that have several: of ours, tests count them (tests/ops/test_launches.py); of PyTorch's
# LayerNorm, one for the gradient of the input and one for those of the parameters.
KERNELS = {
    'bioattn_mm::add_norm_backward': 2,
    # Two joint tensors, two products, pooling, attention; backward attention, four products, pooling, a joint tensor,
    # two sums over tokens, and two of two tensors.
    'bioattn_mm::aggregate': 2 + 2 + 1 + 4,
    'bioattn_mm::aggregate_backward': 15 + 4 + 2 + 1 + 2 + 2,
    # Three products, two norms, the gate.
    'bioattn_mm::after_attention': 3 + 2 + 1,
    'bioattn_mm::after_attention_backward': 6 + 2 * 2 + 3,
    'bioattn_mm::cosine_attention': 4,
    'bioattn_mm::cosine_attention_backward': 15,
    'bioattn_mm::deformable_attention_backward': 2,
    'bioattn_mm::gated_convolution_backward': 3,
    'bioattn_mm::gelu_pool_norm_backward': 2,
    'bioattn_mm::log_cpb_table_backward': 2,
    # Three steps: a product of matrices each, and four thresholds; backward a product and two sums more.
    'bioattn_mm::sparse_codes': 3 + 4,
    'bioattn_mm::sparse_codes_backward': 3 + 4 + 1 + 2,
    'aten::native_layer_norm_backward': 2,
    'aten::_foreach_norm': 2,
}
# What PyTorch's operators on lists of tensors launch (MultiTensorApply.cuh): a launch has so many tensors, by the
# number of lists, and so many blocks, each for a chunk of a tensor.
TENSORS_OF_A_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
BLOCKS_OF_A_LAUNCH, CHUNK = 320, 65536
ON_LISTS = ('aten::_foreach', 'aten::_fused')


class LaunchCounter(TorchDispatchMode):
    """Counts what a GPU would do for the operators that run within.

    Args:
        device: Type of the device whose operators are counted.

    Attributes:
        launches: Number of launches, by the name of the operator, which is one, or several on lists of tensors.
        bytes: What they read and write.
    """

    def __init__(self, device: str = DEVICE) -> None:
        super().__init__()
        self.device = device
        self.launches = Counter()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        results = func(*args, **(kwargs or {}))
        name = func._schema.name
        outputs, lists = tensors_of(results), [argument for argument in args if isinstance(argument, (list, tuple))]
        lists = [tensors for tensors in map(tensors_of, lists) if tensors] if name.startswith(ON_LISTS) else []
        on_the_gpu = any(tensor.device.type == self.device for tensor in [*outputs, *sum(lists, [])])
        if on_the_gpu and not func.is_view and name not in WITHOUT_LAUNCH:
            self.launches[name] += launches_on_lists(lists) if lists else 1
            # What is changed in place is an input and an output.
            self.bytes += sum(map(bytes_of, [*tensors_of((args, kwargs)), *outputs]))
        return results

    def kernels(self) -> int:
        """Number of launches, where operators with several kernels are known."""
        return sum(number * KERNELS.get(name, 1) for name, number in self.launches.items())

    def by_operator(self) -> str:
        """The launches of each operator, for a table."""
        return ', '.join(f'{number} {operator}' for operator, number in self.launches.most_common())


def tensors_of(arguments: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]


def launches_on_lists(lists: list[list[Tensor]]) -> int:
    """Launches of an operator on lists of tensors; the counters of a fused optimizer's steps are no such list."""
    lists = [tensors for tensors in lists if tensors[0].dim() or len(lists) == 1]
    blocks = sum(-(-tensor.numel() // CHUNK) for tensor in lists[0])
    return max(-(-len(lists[0]) // TENSORS_OF_A_LAUNCH[len(lists)]), -(-blocks // BLOCKS_OF_A_LAUNCH))


def bytes_of(tensor: Tensor) -> int:
    """Bytes of memory of a tensor: an expanded axis has one element."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride()):
        elements *= size if stride else min(size, 1)
    return elements * tensor.element_size()


def fused_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None) -> Tensor:
    """PyTorch's attention as the operator that a GPU takes for any bias."""
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    fused = torch.ops.aten._scaled_dot_product_efficient_attention
    return fused(query, key, value, attn_mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale)[0]


@contextmanager
def as_on_a_gpu(formulas: bool) -> Iterator[None]:
    """Operators on meta tensors choose what they would choose on a GPU.

    Args:
        formulas: As in a build without CUDA.
    """

    def why_not_compiled(device: torch.device) -> str | None:
        return 'they are counted without' if formulas else backends.WHY_NOT_LOADED

    with (
        patch.object(backends, 'why_not_compiled', why_not_compiled),
        # On meta tensors PyTorch takes its attention apart into matrix products; there is no autocast for them.
        patch.object(F, 'scaled_dot_product_attention', fused_attention),
        patch.object(torch, 'autocast', lambda *args, **kwargs: nullcontext()),
        patch.object(torch, 'is_autocast_enabled', lambda *args: False),
    ):
        yield


@contextmanager
def as_a_gpu_trains(formulas: bool) -> Iterator[None]:
    """Layers on CPU tensors take the path of a GPU in mixed precision, where it is another one.

    Args:
        formulas: Operators run in PyTorch: only those of TransNeXt and VARS have kernels for a GPU.
    """

    def attention(query: Tensor, *_: object, **__: object) -> tuple[Tensor, ...]:
        numbers = (query.new_empty(size) for size in (query.shape[:3], (), ()))
        return torch.empty_like(query), *numbers

    def attention_backward(
        grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, ...]:
        return *map(torch.empty_like, (query, key, value)), bias if bias is None else torch.empty_like(bias)

    ours, others = (torch.library.Library(name, 'IMPL') for name in ('bioattn_mm', 'aten'))
    try:
        # The CPU has no kernels of them for a GPU's dtypes. What tensors hold is not looked at here.
        for name in ('aggregate', 'after_attention'):
            for each in (name, f'{name}_backward'):
                ours.impl(each, RESULTS[each], 'CPU', allow_override=True)
        others.impl('_scaled_dot_product_efficient_attention', attention, 'CPU')
        others.impl('_scaled_dot_product_efficient_attention_backward', attention_backward, 'CPU')
        with ExitStack() as patches:
            if formulas:
                patches.enter_context(patch.dict(os.environ, {backends.ENVIRONMENT_VARIABLE: 'reference'}))
            for module, name, value in (
                (half_precision, 'takes_bfloat16', torch.is_autocast_enabled),
                (F, 'scaled_dot_product_attention', fused_attention),
                (layers, 'relative_bias_attention', partial(layers.relative_bias_attention, backend='reference')),
            ):
                patches.enter_context(patch.object(module, name, value))
            yield
    finally:
        ours._destroy()
        others._destroy()


def count_step(backbone: nn.Module) -> dict[str, LaunchCounter]:
    """Counts of the parts of a second training step: the first makes constants and the optimizer's state."""
    backbone.train()
    optimizer = torch.optim.AdamW(backbone.parameters(), fused=True)
    image = torch.randn(2, 3, 64, 64)
    for _ in range(2):
        counts = {name: LaunchCounter('cpu') for name in ('forward', 'backward', 'clipped gradients', 'AdamW')}
        optimizer.zero_grad()
        with as_a_gpu_trains(formulas=not isinstance(backbone, (TransNeXt, VARS))):
            with torch.autocast('cpu', torch.bfloat16), counts['forward']:
                outputs = backbone(image)
            gradients = [torch.zeros_like(output) for output in outputs]
            with counts['backward']:
                torch.autograd.backward(outputs, gradients)
        for parameter in backbone.parameters():
            parameter.grad = torch.zeros_like(parameter)
        with counts['clipped gradients']:
            nn.utils.clip_grad_norm_(backbone.parameters(), 1.0)
        with counts['AdamW']:
            optimizer.step()
    return counts


def layer_and_pass(name: str, batch: int, pixels: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The first layer of a system, and a function that runs it for square images."""
    system, _, variant = name.partition(' ')
    arguments = ()
    if system == 'ConvGLU':
        layer, stride = TransNeXt('tiny').stages[0].blocks[0].mlp, 4
    elif system == 'TransNeXt-T':
        stage = int(variant.removeprefix('stage ')) - 1
        layer, stride = TransNeXt('tiny').stages[stage].blocks[0].attn, 4 * 2**stage
    elif system == 'PerViT-T':
        backbone, stride = PerViT('tiny'), 16
        layer, arguments = backbone.blocks[0].attn, (backbone.distance_embedding,)
    else:
        layer, stride = BACKBONES[system]().blocks[0].attn, 16
    length = -(-pixels // stride)
    embed_dims = layer.fc1.in_features if system == 'ConvGLU' else layer.proj.in_features
    x = torch.empty(batch, length, length, embed_dims, requires_grad=True)
    return layer, partial(layer, x, *arguments)


def count(layer: nn.Module, run: Callable[[], Tensor]) -> dict[str, LaunchCounter]:
    """Counts of each pass."""
    counts = {name: LaunchCounter() for name in PASSES}
    layer.eval()
    with torch.no_grad():
        for name in PASSES[:2]:
            with counts[name]:
                run()
    layer.train()
    with counts[PASSES[2]]:
        output = run()
        output.backward(torch.empty_like(output))
    return counts


def print_steps(names: list[str], operators: bool) -> None:
    """Print the launches of a training step of each backbone."""
    print(f'A training step in bfloat16, operators compiled for CUDA, torch {torch.__version__}\n')
    for number, name in enumerate(names):
        counts = count_step(STEPS[name]())
        if not number:
            print_header('backbone', *counts, 'all')
        kernels = [counter.kernels() for counter in counts.values()]
        print_row(name, *kernels, sum(kernels))
        if operators:
            print_row('', *(counter.by_operator() for counter in counts.values()), '')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    layers_help = f'of {", ".join(LAYERS)} (default: all)'
    parser.add_argument('--layers', nargs='+', choices=LAYERS, default=LAYERS, metavar='NAME', help=layers_help)
    parser.add_argument('--sizes', type=int, nargs='+', default=[512, 1344], help='pixels a side (default: 512 1344)')
    parser.add_argument('--batch', type=int, default=1, help='images (default: 1)')
    parser.add_argument('--formulas', action='store_true', help='as in a build without CUDA')
    parser.add_argument('--operators', action='store_true', help='print the launches of each operator, too')
    steps_help = f'training steps of backbones instead of layers: of {", ".join(STEPS)} (default: all)'
    parser.add_argument('--step', nargs='*', choices=STEPS, metavar='NAME', help=steps_help)
    args = parser.parse_args()
    if args.step is not None:
        print_steps(args.step or list(STEPS), args.operators)
        return

    build = 'PyTorch alone' if args.formulas else 'operators compiled for CUDA'
    print(f'One layer, batch {args.batch}, float32, {build}, torch {torch.__version__}\n')
    print_header('layer', 'pixels', 'pass', 'launches', 'MiB read and written', 'MiB a launch')
    for name in args.layers:
        for pixels in args.sizes:
            with torch.device(DEVICE):
                layer, run = layer_and_pass(name, args.batch, pixels)
            with as_on_a_gpu(args.formulas):
                counts = count(layer, run)
            for pass_name, counter in counts.items():
                launches, mebibytes = counter.launches.total(), counter.bytes / 2**20
                print_row(name, pixels, pass_name, launches, f'{mebibytes:.1f}', f'{mebibytes / launches:.2f}')
                if args.operators:
                    print_row('', '', counter.by_operator())


if __name__ == '__main__':
    main()
