"""The blocks of a stage: one layer after the other, or their halves as functions that call operators alone.

Everything that looks into a model takes the layers: exporters and compilers, hooks, adapters and quantised layers,
transforms of torch.func, ablations, processors without compiled operators. Which of both it is, is decided once for
a stage in each forward pass.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.checkpoint import checkpoint

from ...ops.add_norm import MAX_CHANNELS, MIN_CHANNELS
from ...ops.arguments import autocast_dtype
from ...ops.backends import choose_backend
from ...ops.constants import cached_constant
from ...ops.portable import is_portable, is_traced, is_transformed, size_of_cells
from ..common.blocks import Block, run_block
from .attention import AggregatedAttention, LengthScaledAttention, ScaledCosineQuery
from .conv_glu import ConvGLU
from .functions import AfterAttention, Aggregate, call
from .half_precision import LayerNorm, copies_of
from .position_bias import LogCPB, tables_of

# Layers of a block: the path of each, its exact class (an adapter derives its own), and the parameters that functions
# take of it, each with its dtype there: 'branch', that of the branches, 'norm', that of the norms, or 'full', float32
# or, where branches are float64, float64. The functions take them in this order: slices of parameters count on it.
Layers = list[tuple[tuple[str, ...], type, dict[str, str]]]
BRANCH, NORM, FULL = (dict(weight=kind, bias=kind) for kind in ('branch', 'norm', 'full'))
EVERY: Layers = [
    ((), Block, {}),
    (('norm1',), LayerNorm, NORM),
    (('attn', 'proj'), nn.Linear, BRANCH),
    (('norm2',), LayerNorm, NORM),
    (('mlp',), ConvGLU, {}),
    (('mlp', 'fc1'), nn.Linear, dict(weight='branch', bias='full')),
    (('mlp', 'dwconv'), nn.Conv2d, FULL),
    (('mlp', 'fc2'), nn.Linear, BRANCH),
]
OF_ALL_PAIRS: Layers = [(('attn',), LengthScaledAttention, {}), (('attn', 'scale'), ScaledCosineQuery, {})]
OF_AGGREGATION: Layers = [
    (('attn', 'q'), nn.Linear, BRANCH),
    (('attn', 'kv'), nn.Linear, BRANCH),
    (('attn', 'pool_proj'), nn.Conv2d, BRANCH),
    (('attn', 'pool_norm'), LayerNorm, NORM),
    (('attn', 'scale'), ScaledCosineQuery, dict(query_embedding='full')),
    (('attn',), AggregatedAttention, dict(window_bias='full', learnable_tokens='full', learnable_bias='full')),
    (('attn', 'scale'), ScaledCosineQuery, dict(temperature='full')),  # of which the function takes the softplus
]
OF_LOG_CPB: Layers = [
    (('attn', 'position_bias', 'fc1'), nn.Linear, FULL),
    (('attn', 'position_bias', 'fc2'), nn.Linear, FULL),
]


class Blocks(nn.ModuleList):
    """The blocks of a stage.

    Args:
        blocks: One or more.
        with_cp: Compute the activations of each block again in the backward pass instead of keeping them.
    """

    def __init__(self, blocks: list[Block], with_cp: bool) -> None:
        super().__init__(blocks)
        self.with_cp = with_cp

    def forward(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Tokens, (B, H, W, C), to the `norm` of the last block's tokens."""
        parameters = parameters_of(self, norm, x) if _may_be_functions(x) else None
        if parameters is not None:
            return self._functions(x, norm, *parameters)
        for block in self:
            x = run_block(block, x, self.with_cp)
        return norm(x)

    def _functions(self, x: Tensor, norm: nn.LayerNorm, values: list[Tensor], kinds: list[str]) -> Tensor:
        blocks, dtype = [*self._modules.values()], autocast_dtype(x)
        *values, weight, bias = _in_their_dtypes(values, kinds, x, dtype)
        size = len(values) // len(blocks)
        own = [values[start : start + size] for start in range(0, len(values), size)]
        next_norms = [parameters[:2] for parameters in own[1:]] + [[weight, bias]]
        options = norm.eps, _has_fused_norms(x, dtype)
        of_attentions = _of_attentions(blocks, [parameters[12:] for parameters in own], x, options[1])
        run = _block
        if self.with_cp and torch.is_grad_enabled():
            run = partial(checkpoint, _block, use_reentrant=False, preserve_rng_state=False)
        normed = blocks[0].norm1(x)
        for block, of_attention, parameters, next_norm, factors in zip(
            blocks, of_attentions, own, next_norms, _drop_path(blocks, x), strict=True
        ):
            after_attention = *parameters[2:12], *next_norm, *factors, *options
            x, normed = run(x, normed.to(dtype), block.attn, of_attention, after_attention)
        return normed


def _may_be_functions(x: Tensor) -> bool:
    """Whether nothing looks into the model that runs now, and the device has compiled operators."""
    return (
        type(x) is Tensor
        and not (is_traced() or is_portable() or is_transformed() or _has_any_global_hook())
        and forward_ad._current_level < 0
        and choose_backend(x.device, None) != 'reference'
    )


def parameters_of(stage: Blocks, norm: nn.LayerNorm, x: Tensor) -> tuple[list[Tensor], list[str]] | None:
    """The parameters that functions take of each block, one after the other, and of the norm after them.

    Returns:
        The parameters, and the name of the dtype of each, as in `EVERY`; None where layers have to be called.
    """
    blocks, layers, values, kinds = [*stage._modules.values()], [norm], [], []
    attn = getattr(blocks[0], 'attn', None)
    aggregates = type(attn) is AggregatedAttention
    wanted = EVERY + (OF_AGGREGATION if aggregates else OF_ALL_PAIRS)
    wanted += OF_LOG_CPB if type(getattr(attn, 'position_bias', None)) is LogCPB else []
    try:
        for block in blocks:  # without a call for each layer and parameter
            for path, kind, names in wanted:
                layer = block
                for name in path:
                    layer = layer._modules[name]
                if type(layer) is not kind:
                    return None
                layers += [layer]
                for name in names:
                    values += [layer._parameters[name]]
                    kinds += [names[name]]
    except KeyError:  # a replica of DataParallel has no parameters, and an ablation may lack one
        return None
    # A hook expects the call of its layer, and so does who has put another `forward` in its place.
    if type(norm) is not LayerNorm or [
        layer
        for layer in layers
        if layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or 'forward' in layer.__dict__
    ]:
        return None
    if not (_are_alike(blocks, norm.eps, aggregates) and _fits_kernels(blocks[0], aggregates, x)):
        return None
    values += norm.weight, norm.bias
    # Parameters of other types are parts of tensors, as FSDP2 has them.
    return (values, [*kinds, 'norm', 'norm']) if {*map(type, values)} <= {nn.Parameter, Tensor} else None


def _are_alike(blocks: list[Block], eps: float, aggregates: bool) -> bool:
    """Whether all blocks have one eps, one pooled grid, and a stochastic depth that scales the branches it keeps."""
    drops = [block._modules['drop_path'] for block in blocks]
    keeps = {drop.drop_prob < 1 and drop.scale_by_keep for drop in drops if type(drop) is DropPath}
    of_norms = {block._modules[name].eps for block in blocks for name in ('norm1', 'norm2')}
    of_pools = set()
    if aggregates:
        attentions = [block._modules['attn'] for block in blocks]
        of_pools = {(attn.sr_ratio, attn.pool_size, attn._modules['pool_norm'].eps) for attn in attentions}
    is_known = {*map(type, drops)} <= {nn.Identity, DropPath}
    return is_known and keeps <= {True} and of_norms == {eps} and len(of_pools) <= 1


def _fits_kernels(block: Block, aggregates: bool, x: Tensor) -> bool:
    """Whether the kernels of a device take tokens and a block's widths."""
    attn, dtype = block.attn, autocast_dtype(x)
    channels, hidden_dims = attn.proj.out_features, block.mlp.dwconv.in_channels
    if x.device.type == 'cpu':
        dtypes = torch.float32, torch.bfloat16, torch.float64
        return dtype in dtypes and hidden_dims % 16 == 0 and channels >= MIN_CHANNELS
    fits = dtype != torch.float64 and hidden_dims % 2 == 0 and channels % 2 == 0 and channels <= MAX_CHANNELS
    if not aggregates:
        return fits
    # Pooling to a grid that does not divide the tokens has a backward pass of its own on the CPU alone.
    grid = tuple(x.shape[1:3])
    pools = not torch.is_grad_enabled() or None not in map(size_of_cells, grid, attn.pooled_grid(grid))
    return fits and pools and channels // attn.num_heads in range(8, 65, 8) and attn.window_size <= 9


def _in_their_dtypes(values: list[Tensor], kinds: list[str], x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Parameters as the functions take them, with one launch for all that are copied to a dtype."""
    full = torch.promote_types(dtype, torch.float32)
    # Norms take float32 weights for bfloat16 tokens on the CPU alone.
    wanted = dict(branch=dtype, full=full, norm=full if x.device.type == 'cpu' else x.dtype)
    targets = [wanted[kind] for kind in kinds]
    for target in {dtype, full, x.dtype}:
        found = [i for i, value in enumerate(values) if targets[i] is target and value.dtype != target]
        for i, copy in zip(found, copies_of([values[i] for i in found], target)):
            values[i] = copy
    return values


def _of_attentions(
    blocks: list[Block], own: list[list[Tensor]], x: Tensor, is_one_kernel: bool
) -> Sequence[tuple[object, ...]]:
    """The arguments after the tokens of each block's `Aggregate` or `LengthScaledAttention.attend`.

    `own` are the parameters of each block from those of its attention on.
    """
    grid, attentions = tuple(x.shape[1:3]), [block.attn for block in blocks]
    biases, columns = [attn.position_bias for attn in attentions], [*zip(*own)]
    if type(attentions[0]) is LengthScaledAttention:
        if not columns or {bias.bias_mode for bias in biases} != {'extrapolate'}:
            return [()] * len(biases)
        return [(table,) for table, *_ in tables_of(biases, grid, grid, columns)]
    pooled_grid = attentions[0].pooled_grid(grid)
    tables = tables_of(biases, grid, pooled_grid, columns[13:])
    scales = F.softplus(torch.stack(columns[12])).flatten(1).unbind()
    # Weights and biases of the three layers of tokens, q, kv and pool_proj, one after the other.
    weights = torch.cat([weight for q, _, kv, _, pool, *_ in own for weight in (q, kv, pool.flatten(1))])
    biases = torch.cat([bias for values in own for bias in values[1:6:2]])
    projections = zip(weights.view(len(own), -1, weights.shape[1]).unbind(), biases.view(len(own), -1).unbind())
    options = (
        attentions[0].pool_norm.eps,
        is_one_kernel and _has_fused_pooling(x) and None not in map(size_of_cells, grid, pooled_grid),
    )
    return [
        (*projection, *values[6:8], scale, *values[8:10], *table, *values[10:12], *options)
        for values, projection, scale, table in zip(own, projections, scales, tables)
    ]


def _drop_path(blocks: list[Block], x: Tensor) -> Iterable[tuple[Tensor | None, Tensor | None]]:
    """Factors of the two branches of each block, (B,), drawn for all at once; None where nothing is dropped."""
    drops = [block._modules['drop_path'] for block in blocks]
    dropped = [drop.drop_prob if isinstance(drop, DropPath) and drop.training else 0.0 for drop in drops]
    if not any(dropped):
        return [(None, None)] * len(drops)
    keep = _keep_probabilities(tuple(dropped), x.device)
    factors = (torch.bernoulli(keep.expand(-1, 2, len(x))) / keep).flatten(0, 1).unbind()
    return zip(factors[::2], factors[1::2])


@cached_constant
def _keep_probabilities(dropped: tuple[float, ...], device: torch.device) -> Tensor:
    """One minus some probabilities, float32 (N, 1, 1)."""
    return 1 - torch.tensor(dropped, device=device)[:, None, None]


def _block(
    x: Tensor, normed: Tensor, attn: nn.Module, of_attention: tuple[object, ...], others: tuple[object, ...]
) -> tuple[Tensor, Tensor]:
    """A block's tokens, and these after the norm that follows; the last two are the arguments of its two halves."""
    aggregates = type(attn) is AggregatedAttention
    attended = call(Aggregate, normed, *of_attention) if aggregates else attn.attend(normed, *of_attention)
    return call(AfterAttention, x, attended, *others)


def _has_fused_norms(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether residuals run in one kernel with the norm after them, for branches of a dtype."""
    return x.dtype == dtype


def _has_fused_pooling(x: Tensor) -> bool:
    """Whether GELU and pooling run in one kernel with the norm after them."""
    return x.device.type != 'cpu'
