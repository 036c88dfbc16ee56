"""The blocks of a stage: one layer after the other, or two operators a block.

Everything that looks into a model takes the layers: exporters and compilers, hooks, adapters and quantised layers,
transforms of torch.func, ablations, processors without compiled operators. Which of both it is, is decided once for
a stage in each forward pass.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, islice, repeat

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...ops.add_norm import MAX_CHANNELS, MIN_CHANNELS, add_norm
from ...ops.arguments import autocast_dtype, without_autocast
from ...ops.backends import choose_backend
from ...ops.constants import cached_constant
from ...ops.gated_convolution import gated_convolution
from ...ops.portable import size_of_cells
from ...ops.registration import call
from ..common.blocks import Block, run_block
from ..common.hooks import Layers, is_eager, parameters_of
from .attention import AggregatedAttention, LengthScaledAttention, ScaledCosineQuery
from .conv_glu import ConvGLU
from .half_precision import LayerNorm, copies_of
from .position_bias import LogCPB, tables_of

# The layers of a block, and the parameters that operators take of each, with their dtypes there: 'branch', that of
# the branches, 'norm', that of the norms, 'pool norm', or 'full', float32 or, where branches are float64, float64.
# They come in this order: slices of columns count on it.
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
    (('attn', 'pool_norm'), LayerNorm, dict(weight='pool norm', bias='pool norm')),
    (('attn', 'scale'), ScaledCosineQuery, dict(query_embedding='full')),
    (('attn',), AggregatedAttention, dict(window_bias='full', learnable_tokens='full', learnable_bias='full')),
    (('attn', 'scale'), ScaledCosineQuery, dict(temperature='full')),  # of which the operator takes the softplus
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
        columns = columns_of(self, norm, x) if _may_be_operators(x) else None
        if columns is not None:
            return self._operators(x, norm, columns)
        for block in self:
            x = run_block(block, x, self.with_cp)
        return norm(x)

    def _operators(self, x: Tensor, norm: nn.LayerNorm, columns: list[list[Tensor]]) -> Tensor:
        blocks, dtype, run = [*self._modules.values()], autocast_dtype(x), _block
        next_norms = [column[1:] for column in columns[:2]]
        options = repeat(norm.eps), repeat(torch.is_grad_enabled())
        after_attentions = zip(*columns[2:12], *next_norms, *zip(*_drop_path(blocks, x)), *options)
        if self.with_cp and torch.is_grad_enabled():
            run = partial(checkpoint, _block, use_reentrant=False, preserve_rng_state=False)
        normed = blocks[0].norm1(x)
        for block, *arguments in zip(blocks, _of_attentions(blocks, columns[12:], x), after_attentions):
            x, normed = run(x, normed.to(dtype), block.attn, *arguments)
        return normed


def _may_be_operators(x: Tensor) -> bool:
    """Whether nothing looks into the model that runs now, and the device has compiled operators."""
    return is_eager(x) and choose_backend(x.device, None) != 'reference'


def columns_of(stage: Blocks, norm: nn.LayerNorm, x: Tensor) -> list[list[Tensor]] | None:
    """What operators take of the layers: a column for each parameter, with that of each block.

    The first two, those of `norm1`, end with the parameters of the norm after the blocks.

    Returns:
        The columns, in the dtypes that operators take; None where layers have to be called.
    """
    blocks = [*stage._modules.values()]
    attn = getattr(blocks[0], 'attn', None)
    aggregates = type(attn) is AggregatedAttention
    wanted = EVERY + (OF_AGGREGATION if aggregates else OF_ALL_PAIRS)
    wanted += OF_LOG_CPB if type(getattr(attn, 'position_bias', None)) is LogCPB else []
    columns = parameters_of(blocks, wanted, norm)
    is_known = columns and type(norm) is LayerNorm and _are_alike(blocks, norm.eps, aggregates)
    if not (is_known and _fits_kernels(blocks[0], aggregates, x)):
        return None
    columns[0] += [norm.weight]
    columns[1] += [norm.bias]
    return _in_their_dtypes(columns, [kind for *_, kinds in wanted for kind in kinds.values()], x)


def _are_alike(blocks: list[Block], eps: float, aggregates: bool) -> bool:
    """Whether all blocks have one eps, one pooled grid, and a stochastic depth that scales the branches it keeps."""
    drops = [block._modules['drop_path'] for block in blocks]
    keeps = {drop.drop_prob < 1 and drop.scale_by_keep for drop in drops if type(drop) is DropPath}
    if not (keeps <= {True} and {*map(type, drops)} <= {nn.Identity, DropPath}):
        return False
    if {block._modules[name].eps for block in blocks for name in ('norm1', 'norm2')} != {eps}:
        return False
    attentions = [block._modules['attn'] for block in blocks if aggregates]
    return len({(attn.sr_ratio, attn.pool_size, attn._modules['pool_norm'].eps) for attn in attentions}) <= 1


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


def _in_their_dtypes(columns: list[list[Tensor]], kinds: list[str], x: Tensor) -> list[list[Tensor]]:
    """Parameters as the operators take them, with one launch for all that are copied to a dtype."""
    dtype = autocast_dtype(x)
    full = torch.promote_types(dtype, torch.float32)
    wanted = {'branch': dtype, 'full': full, 'norm': x.dtype, 'pool norm': dtype}
    if x.device.type == 'cpu':  # norms take float32 weights for bfloat16 tokens there alone
        wanted.update({'norm': full, 'pool norm': full})
    for target in {*wanted.values()}:
        found = [column for column, kind in zip(columns, kinds) if wanted[kind] is target]
        found = [column for column in found if {value.dtype for value in column} != {target}]
        copies = iter(copies_of([*chain(*found)], target))
        for column in found:
            column[:] = islice(copies, len(column))
    return columns


def _of_attentions(blocks: list[Block], columns: list[list[Tensor]], x: Tensor) -> Sequence[tuple[object, ...]]:
    """The arguments after the tokens of each block's `aggregate` or `LengthScaledAttention.attend`.

    `columns` are the parameters from those of the attention on.
    """
    grid, attentions = tuple(x.shape[1:3]), [block.attn for block in blocks]
    biases = [attn.position_bias for attn in attentions]
    if type(attentions[0]) is LengthScaledAttention:
        return tables_of(biases, grid, None, columns)
    layers, (embeddings, window_biases, tokens, token_biases, temperatures) = columns[:8], columns[8:13]
    scales = F.softplus(torch.stack(temperatures)).flatten(1).unbind()
    tables = zip(*tables_of(biases, grid, attentions[0].pooled_grid(grid), columns[13:]))
    of_scores = scales, embeddings, window_biases, *tables, tokens, token_biases
    options = repeat(attentions[0].pool_norm.eps), repeat(torch.is_grad_enabled())
    return [*zip(*layers, *of_scores, *options)]


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
    attended = call('aggregate', normed, *of_attention)[0] if aggregates else attn.attend(normed, *of_attention)
    if x.dtype == attended.dtype:
        normed, x, *_ = call('after_attention', x, attended, *others)
        return x, normed
    *parameters, attention_factor, mlp_factor, eps, _ = others
    proj, norm2, (fc1_weight, fc1_bias), conv, fc2, next_norm = zip(parameters[::2], parameters[1::2])
    with without_autocast(x):  # the branches of a GPU in float16 have less precision than the tokens
        x, normed = add_norm(x, F.linear(attended, *proj).to(x.dtype), *norm2, eps, attention_factor)
        gated = gated_convolution(F.linear(normed.to(attended.dtype), fc1_weight), *conv, x_bias=fc1_bias)
        return add_norm(x, F.linear(gated, *fc2).to(x.dtype), *next_norm, eps, mlp_factor)
