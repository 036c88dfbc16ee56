"""Attention as recurrent sparse reconstruction (VARS, Shi et al., ICML 2022): VARS-D, VARS-SD and VARS-S."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import InputError
from ...ops import sparse_codes
from ...ops.arguments import full_precision, without_autocast
from ...ops.constants import cached_constant
from ...ops.portable import hypot, is_same_grid, is_symbol
from ...ops.sparse_codes import code_steps, gelu_threshold, last_of, proximal_steps, soft_threshold
from ...registry import MODELS
from ..common.attention_maps import AttentionMap, AttentionMaps
from ..common.layout import Grid, head_dims_of, merge_heads, split_heads
from ..common.resizing import resize_bicubic

# Elements of the derivatives that analysis computes at once: queries times elements of the values.
MAX_DERIVATIVES = 2**22
THRESHOLDS = {'soft': soft_threshold, 'gelu': gelu_threshold}


class SparseReconstruction(nn.Module):
    """Base of the layers: values are encoded in a dictionary P as sparse codes u, and P u comes out.

    A subclass sets `channel_axis`, that of the values' channels, and `projection`, the name of its first layer.
    `encode(projected)` gives P and the values in float32 or float64, `states(dictionary, value)` the num_steps + 1
    states u, `decode(dictionary, codes)` P u, of the values' shape.
    """

    channel_axis: int
    projection: str
    min_steps = 1
    default_sparsity = 0.3
    default_threshold = 'soft'

    def set_recurrence(self, num_steps: int, sparsity: float | None, threshold: str | None) -> None:
        """Set how many steps follow the first, lambda, and the threshold; None for the defaults of the class."""
        self.num_steps = num_steps
        self.sparsity = self.default_sparsity if sparsity is None else sparsity
        threshold = threshold or self.default_threshold
        if num_steps < self.min_steps:
            raise InputError(f'num_steps must be at least {self.min_steps}, got {num_steps}')
        if self.sparsity < 0:
            raise InputError(f'sparsity must not be negative, got {sparsity}')
        if threshold not in THRESHOLDS:
            raise InputError(f'threshold must be one of {", ".join(THRESHOLDS)}, got {threshold!r}')
        self.threshold = THRESHOLDS[threshold]

    def reconstruct(self, projected: Tensor) -> Tensor:
        """P u of the last state."""
        dictionary, value = self.encode(projected)
        return self.decode(dictionary, last_of(self.states(dictionary, value)))

    @torch.no_grad()
    def recurrent_states(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The dictionary P and all states u, (num_steps + 1, ...), of tokens (B, H, W, C), for analysis."""
        projected = self.get_submodule(self.projection)(x)
        with without_autocast(x):
            dictionary, value = self.encode(projected)
            return dictionary, torch.stack(list(self.states(dictionary, value)))

    def reconstruction_norms(self, x: Tensor) -> Tensor:
        """Euclidean norm of each token's reconstruction P u, over the channels of a head, after each step.

        Of tokens (B, H, W, C): (num_steps + 1, B, heads, H, W), float32 or float64.
        """
        dictionary, states = self.recurrent_states(x)
        norms = [self.decode(dictionary, codes).norm(dim=self.channel_axis) for codes in states]
        return torch.stack(norms).reshape(len(norms), len(x), -1, *x.shape[1:3])

    @torch.inference_mode(False)  # the weights are derivatives, which that mode does not compute
    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries after each step: 'step 0' and so on, and 'attention' for the last one.

        A weight is the derivative of what is reconstructed at the query by the value at the key, the dictionary held
        fixed, averaged over the channels of the head: without a penalty, P P^T after step 0.
        """
        grid, axis = tuple(x.shape[1:3]), self.channel_axis
        with torch.no_grad():
            projected = self.get_submodule(self.projection)(x)
        with without_autocast(x):
            with torch.no_grad():
                dictionary, value = self.encode(projected)
            # A copy, because autograd does not take values that are tokens of inference mode.
            value = value.clone().requires_grad_()
            with torch.enable_grad():
                # Images, heads and channels are independent: a backward pass of their sum has the derivatives of all.
                steps = [
                    self.decode(dictionary, codes).sum(axis).reshape(-1, grid[0] * grid[1]).sum(0)
                    for codes in self.states(dictionary, value)
                ]
            selections = F.one_hot(queries, len(steps[0])).to(value.dtype)
            maps = []
            for step in steps:
                chunks = [
                    torch.autograd.grad(step, value, chunk, retain_graph=True, is_grads_batched=True)[0].mean(
                        axis + 1
                    )
                    for chunk in selections.split(max(1, MAX_DERIVATIVES // value.numel()))
                ]
                weights = torch.cat(chunks).reshape(len(queries), len(x), -1, grid[0] * grid[1]).permute(1, 2, 0, 3)
                maps.append(AttentionMap.of_grid(weights, grid))
        names = [*(f'step {index}' for index in range(self.num_steps)), 'attention']
        return dict(zip(names, maps, strict=True))


def normalize(x: Tensor, dim: int) -> Tensor:
    """`F.normalize`, which makes several times as many calls, and three more kernel launches backward."""
    return x / (torch.linalg.vector_norm(x, dim=dim, keepdim=True) + 1e-12)


class RandomFeatures(nn.Module):
    """Positive random features of the softmax kernel: `E[phi(x) . phi(y)] = exp(x . y)`.

    Source: Performer (Choromanski et al., ICLR 2021), lemma 1: `phi(x) = exp(W x - |x|^2 / 2) / sqrt(m)` with a fixed
    random matrix W.

    Args:
        num_heads: Number of attention heads.
        head_dims: Width of a head.
        num_features: Number of features of each head, m.
        unit_queries: Normalise x to unit length first, as the release of VARS does since its weights were published.
    """

    def __init__(self, num_heads: int, head_dims: int, num_features: int, unit_queries: bool = True) -> None:
        super().__init__()
        self.unit_queries = unit_queries
        self.register_buffer('projection', torch.randn(num_heads, head_dims, num_features))

    def forward(self, x: Tensor) -> Tensor:
        """Features of queries or keys: (B, heads, N, d), float32 or float64, to (B, heads, N, m)."""
        if self.unit_queries:
            x, half_square = normalize(x, -1), 0.5
        else:
            half_square = x.square().sum(-1, keepdim=True) / 2
        shift = half_square + math.log(self.projection.shape[-1]) / 2  # of the exponent, for the factor 1 / sqrt(m)
        return (x @ self.projection.to(x.dtype) - shift).exp()


@MODELS.register_module()
class SparseReconstructionAttention(SparseReconstruction):
    """VARS-D and VARS-SD: sparse reconstruction of the values from a dictionary that depends on the input.

    Source: VARS (Shi et al., ICML 2022), eq. 12, 16 and 17, as in the release, whose departures are in
    docs/papers/vars.md. The dictionary P of a head is an N x m matrix, whose columns are the m random features of the
    N queries; VARS-SD appends m columns of a learned static dictionary. All columns have unit length. With the Gram
    matrix G = P^T P, b = P^T v and L = 1 + the largest absolute row sum of G, a bound of its eigenvalues, it is

        u <- threshold(b, w1 lambda), then num_steps times
        u <- threshold(u - (Gamma G Gamma u - b) w2 / L, w1 lambda w2 / L),

    and the output is P u; x, the residual of eq. 11 and 17, is that of the block. Gamma (shared by the heads), w1 and
    w2 are learned; L gets no gradient. Time and memory are linear in N. Dictionary, Gram matrix and states are
    float32 also in half precision.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        static_grid: Token grid (height, width) of VARS-SD's static dictionary, which is resized to others (bicubic).
            None for VARS-D.
        num_steps: Number of steps after the first; 3 in the paper, 5 by default in the release.
        sparsity: lambda, the weight of the L1 norm; 0.3 by default.
        feature_ratio: Number of random features m, relative to the width of a head.
        threshold: 'gelu', as in the release, the default, or 'soft', the exact proximal operator.
        unit_queries: See `RandomFeatures`.
    """

    channel_axis = 3
    projection = 'qkv'
    default_threshold = 'gelu'
    is_learned = True

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        static_grid: Grid | None = None,
        num_steps: int = 3,
        sparsity: float | None = None,
        feature_ratio: float = 2,
        threshold: str | None = None,
        unit_queries: bool = True,
    ) -> None:
        super().__init__()
        head_dims = head_dims_of(embed_dims, num_heads)
        self.set_recurrence(num_steps, sparsity, threshold)
        self.num_heads, self.static_grid = num_heads, static_grid
        num_features = int(feature_ratio * head_dims)
        num_columns = num_features if static_grid is None else 2 * num_features
        self.features = RandomFeatures(num_heads, head_dims, num_features, unit_queries)
        if static_grid is not None:
            self.static = nn.Parameter(torch.randn(num_heads, static_grid[0] * static_grid[1], num_features))
        if self.is_learned:
            self.gram_weight = nn.Parameter(torch.eye(num_columns))  # Gamma
            self.sparsity_scale = nn.Parameter(torch.ones(1))  # w1
            self.step_scale = nn.Parameter(torch.ones(1))  # w2
        self.qkv = nn.Linear(embed_dims, 2 * embed_dims)  # queries, which are also the keys, and values
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        projected = self.qkv(x)
        with without_autocast(x):
            output = self.reconstruct(projected)
        return self.proj(merge_heads(output, x.shape).to(x.dtype))

    def encode(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """P, (B, heads, H * W, columns), and the values, (B, heads, H * W, d)."""
        query, value = split_heads(full_precision(projected), 2, self.num_heads)
        return self.dictionary(query, tuple(projected.shape[1:3])), value

    def dictionary(self, query: Tensor, grid: Grid) -> Tensor:
        """P with columns of unit length, (B, heads, H * W, columns), of queries (B, heads, H * W, d)."""
        columns = self.features(query)
        if self.static_grid is not None:
            static = self._static_columns(grid, query.dtype)
            # The batch by its axis: `len` would make it a constant of an exported graph.
            columns = torch.cat((columns, static.expand(query.shape[0], -1, -1, -1)), -1)
        return normalize(columns, -2)

    def reconstruct(self, projected: Tensor) -> Tensor:
        if self.threshold is not gelu_threshold:
            return super().reconstruct(projected)
        dictionary, value = self.encode(projected)
        return self.decode(dictionary, sparse_codes(*self.problem(dictionary, value), self.num_steps))

    def states(self, dictionary: Tensor, value: Tensor) -> Iterator[Tensor]:
        """(B, heads, columns, d) each."""
        return code_steps(*self.problem(dictionary, value), self.num_steps, self.threshold)

    def problem(self, dictionary: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gram matrix, target, length of a step, (B, heads, 1, 1), and penalty, (1,), of `code_steps`."""
        transposed = dictionary.transpose(-2, -1)
        gram, target = transposed @ dictionary, transposed @ value
        bound = self.step_bound(gram)
        if not self.is_learned:
            return gram, target, bound.reciprocal(), value.new_full((1,), self.sparsity)
        gamma = self.gram_weight.to(value.dtype)
        length = self.step_scale.to(value.dtype) / bound
        return gamma @ gram @ gamma, target, length, self.sparsity_scale.to(value.dtype) * self.sparsity

    def decode(self, dictionary: Tensor, codes: Tensor) -> Tensor:
        return dictionary @ codes

    @staticmethod
    def step_bound(gram: Tensor) -> Tensor:
        """L, at least the largest eigenvalue of the Gram matrix: (B, heads, m, m) to (B, heads, 1, 1), detached."""
        return torch.linalg.vector_norm(gram.detach(), 1, -1, keepdim=True).amax(-2, keepdim=True) + 1

    def _static_columns(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        """The static dictionary, resized to a grid: (heads, H * W, m)."""
        static = self.static.to(dtype)
        if is_same_grid(grid, self.static_grid):
            return static
        heads, _, num_columns = static.shape
        static = static.transpose(0, 1).reshape(*self.static_grid, heads * num_columns)
        return resize_bicubic(static, grid).reshape(-1, heads, num_columns).transpose(0, 1)


@MODELS.register_module()
class IstaReconstructionAttention(SparseReconstructionAttention):
    """VARS-D and VARS-SD with a recurrence of which nothing is learned: Gamma = I and w1 = w2 = 1.

    Source: VARS (Shi et al., ICML 2022), eq. 12 without them, as in the authors' first code with its defaults.
    With `num_steps=0` and `sparsity=0.0` it is attention with the kernel P P^T (section 3.4).
    """

    min_steps = 0  # with Gamma and w2, which steps alone use, it is 1
    default_sparsity = 2.0
    default_threshold = 'soft'
    is_learned = False


class FourierKernels(nn.Module):
    """Base of layers whose kernels are half-spectra: Fourier transforms at non-negative horizontal frequencies.

    On another grid than that of the pre-training, each kernel weight keeps its offset in tokens, and the circle of
    the convolution becomes longer or shorter.
    """

    def set_grid(self, grid: Grid) -> None:
        """Set the token grid (height, width) of the pre-training, the size of the kernels."""
        self.grid = grid
        self.half_spectrum = (grid[0], grid[1] // 2 + 1, 2)  # real and imaginary parts

    def _spectrum(self, kernel: Tensor, grid: Grid) -> Tensor:
        """Half-spectra of kernels on a grid: (..., h, w // 2 + 1, 2) to (..., H, W // 2 + 1), complex."""
        spectrum = torch.view_as_complex(kernel)
        if is_same_grid(grid, self.grid):
            return spectrum
        kernel = torch.fft.irfft2(spectrum, s=self.grid)
        moved = kernel.new_zeros(*kernel.shape[:-2], grid[0] * grid[1])
        moved = moved.index_add(-1, _places(self.grid, grid, kernel.device), kernel.flatten(-2))
        moved = torch.fft.rfft2(moved.reshape(*kernel.shape[:-2], *grid))
        if not any(map(is_symbol, grid)):
            return moved
        # A graph for all sizes runs at the kernels' own, too, where they keep the parts that no real kernel has.
        lost = spectrum - torch.fft.rfft2(kernel)
        height, width = (kernel.new_ones(length).sum() for length in grid)  # a graph compares tensors alone
        rows, columns = (
            torch.arange(length, device=kernel.device).clamp(max=own - 1)
            for length, own in zip(moved.shape[-2:], lost.shape[-2:])
        )
        return moved + lost[..., rows[:, None], columns] * ((height == self.grid[0]) & (width == self.grid[1]))


@cached_constant
def _places(own: Grid, grid: Grid, device: torch.device) -> Tensor:
    """Indices on a grid of the weights of a kernel of size `own`, whose offsets are -own / 2 to own / 2, int64."""
    rows, columns = (
        ((torch.arange(size, device=device) + size // 2) % size - size // 2) % length
        for size, length in zip(own, grid)
    )
    return (rows[:, None] * grid[1] + columns).flatten()


@MODELS.register_module()
class ConvolutionalSparseReconstruction(SparseReconstruction, FourierKernels):
    """VARS-S: sparse reconstruction of each channel from the shifts of a few learned kernels, in Fourier space.

    Source: VARS (Shi et al., ICML 2022), eq. 10 to 12 with a static dictionary, as in the release: P^T is the
    circular convolution of a channel with a few kernels as large as the grid, of unit norm, and the step length is
    1 / L. L of a channel is the largest eigenvalue, over all frequencies, of the real part of the Gram matrix K K^H
    of its kernels, at least half of that of K K^H, so the objective never rises. Fourier transforms and states are
    float32 also in half precision.

    Args:
        embed_dims: Width of the tokens.
        grid: Token grid (height, width) of the pre-training, the size of the kernels.
        num_steps: Number of steps after the first.
        sparsity: lambda, by default the paper's 0.3. With the release's 3.5 an untrained network has blocks whose
            codes are all zero, and which get no gradient.
        num_kernels: Number of kernels in the dictionary of each channel; 5 in the release.
        threshold: 'soft', as in the release, the default, or 'gelu'.
        with_mixing: Project the tokens to values, and send P u through a second circular convolution and, after
            BatchNorm, a projection, as in the release. Without, one kernel has the parameters of GFNet's filter.
    """

    channel_axis = 1
    projection = 'v'

    def __init__(
        self,
        embed_dims: int,
        grid: Grid,
        num_steps: int = 3,
        sparsity: float | None = None,
        num_kernels: int = 5,
        threshold: str | None = None,
        with_mixing: bool = True,
    ) -> None:
        super().__init__()
        self.set_grid(grid)
        self.set_recurrence(num_steps, sparsity, threshold)
        self.kernel = nn.Parameter(torch.randn(embed_dims, num_kernels, *self.half_spectrum))
        mix_kernel = nn.Parameter(0.02 * torch.randn(embed_dims, *self.half_spectrum)) if with_mixing else None
        self.register_parameter('mix_kernel', mix_kernel)
        self.v = nn.Linear(embed_dims, embed_dims) if with_mixing else nn.Identity()
        self.norm = nn.BatchNorm2d(embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims) if with_mixing else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        output = self.reconstruct(self.v(x))  # of nothing that autocast changes
        if self.mix_kernel is not None:
            mix, grid = self._spectrum(full_precision(self.mix_kernel).contiguous(), x.shape[1:3]), output.shape[2:]
            output = torch.fft.irfft2(torch.fft.rfft2(output) * mix, s=grid)
        return self.proj(self.norm(output.to(x.dtype)).permute(0, 2, 3, 1))

    def encode(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """P as half-spectra, (C, kernels, H, W // 2 + 1), complex, and the values, (B, C, H, W)."""
        return self.dictionary(tuple(projected.shape[1:3])), full_precision(projected).permute(0, 3, 1, 2)

    def dictionary(self, grid: Grid) -> Tensor:
        """Half-spectra of the normalised kernels on a grid: (C, kernels, H, W // 2 + 1), complex."""
        kernel = full_precision(self.kernel)
        # Parseval; the factor 2 counts the frequencies of the half that is not stored.
        squared_norm = 2 / (self.grid[0] * self.grid[1]) * kernel.square().sum((-3, -2, -1), keepdim=True)
        return self._spectrum(kernel * squared_norm.rsqrt(), grid)

    def states(self, dictionary: Tensor, value: Tensor) -> Iterator[Tensor]:
        """(B, C, kernels, H, W) each."""
        conjugate, grid = dictionary.conj(), value.shape[-2:]
        # The circular convolution of a channel with its kernels.
        target = torch.fft.irfft2(torch.fft.rfft2(value[:, :, None]) * dictionary, s=grid)

        def advance(codes: Tensor) -> Tensor:
            # Not the convolution of what `decode` gives: the half-spectra of the release have parts that belong to no
            # real kernel, which the transform to a real image would drop, and its results depend on them.
            transform = (torch.fft.rfft2(codes) * conjugate).sum(2, keepdim=True)
            return codes - step * (torch.fft.irfft2(transform * dictionary, s=grid) - target)

        step = self.step_bound(dictionary).reciprocal()
        return proximal_steps(advance, target, step, self.sparsity, self.num_steps, self.threshold)

    def decode(self, dictionary: Tensor, codes: Tensor) -> Tensor:
        """P u, a sum over the kernels: (B, C, H, W)."""
        transform = (torch.fft.rfft2(codes) * dictionary.conj()).sum(2)
        return torch.fft.irfft2(transform, s=codes.shape[-2:])

    @staticmethod
    def step_bound(dictionary: Tensor) -> Tensor:
        """L of each channel: (C, kernels, H, W // 2 + 1) to (C, 1, 1, 1), detached."""
        dictionary = dictionary.detach()
        a, b = dictionary.real, dictionary.imag
        # Re(K K^H) = a a^T + b b^T with K = a + i b has rank 2: its largest eigenvalue is that of a 2 x 2 matrix.
        aa, bb, ab = (a * a).sum(1), (b * b).sum(1), (a * b).sum(1)
        return ((aa + bb) / 2 + hypot((aa - bb) / 2, ab)).amax((1, 2))[:, None, None, None]
