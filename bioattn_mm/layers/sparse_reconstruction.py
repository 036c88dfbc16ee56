"""Attention as recurrent sparse reconstruction: VARS-D and VARS-SD, and VARS-S."""

from collections import deque
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..ops.arguments import without_autocast
from ..ops.portable import hypot, is_same_grid
from ..registry import MODELS
from .arguments import full_precision, head_dims_of
from .attention_maps import AttentionMap, AttentionMaps
from .baseline_attention import RandomFeatures
from .fourier import FourierKernels, circular_convolution
from .grid import Grid
from .heads import merge_heads, split_heads
from .resizing import resize_bicubic

# Elements of the derivatives that analysis computes at once: queries times elements of the values.
MAX_DERIVATIVES = 2**22


def soft_threshold(x: Tensor, threshold: Tensor | float) -> Tensor:
    """sign(x) max(|x| - threshold, 0), the proximal operator of the L1 norm: steps with it never raise eq. 10."""
    return x.sign() * F.relu(x.abs() - threshold)


def gelu_threshold(x: Tensor, threshold: Tensor | float) -> Tensor:
    """sign(x) GELU(|x| - threshold), the smooth version that the released VARS-D and VARS-SD were trained with."""
    return x.sign() * F.gelu(x.abs() - threshold)


THRESHOLDS = {'soft': soft_threshold, 'gelu': gelu_threshold}


def sparse_codes(
    gram: Callable[[Tensor], Tensor],
    target: Tensor,
    step: Tensor,
    penalty: Tensor | float,
    num_steps: int,
    threshold: Callable[[Tensor, Tensor | float], Tensor] = soft_threshold,
) -> Iterator[Tensor]:
    """The recurrence of VARS: proximal gradient steps on `|x - P u|^2 / 2 + penalty |u|_1` (eq. 10 and 12).

    The first state is a step of length 1 from u = 0, where the gradient is -target. Without a penalty it is P^T x,
    and its reconstruction P P^T x is attention with the kernel P P^T (section 3.4). `num_steps` steps of the length
    `step` follow.

    Args:
        gram: Function that multiplies a state by P^T P.
        target: P^T x, of any shape.
        step: Step length; the objective never rises if it is at most 2 / (largest eigenvalue of P^T P).
        penalty: Weight of the L1 norm.
        num_steps: Number of steps after the first.
        threshold: `soft_threshold` or `gelu_threshold`.

    Yields:
        num_steps + 1 states of the shape of `target`.
    """
    codes = threshold(target, penalty)
    yield codes
    for _ in range(num_steps):
        codes = threshold(codes - step * (gram(codes) - target), step * penalty)
        yield codes


@MODELS.register_module()
class SparseReconstructionAttention(nn.Module):
    """VARS-D and VARS-SD: sparse reconstruction of the values from a dictionary that depends on the input.

    Source: VARS (Shi et al., ICML 2022), eq. 12, 16 and 17, with the release's parametrisation. The dictionary P of a
    head is an N x m matrix, whose columns are the m random features of the N queries; VARS-SD appends m columns of a
    learned static dictionary. All columns are normalised to unit length. With the Gram matrix G = P^T P, b = P^T v
    and L = 1 + the largest absolute row sum of G, an upper bound of its eigenvalues, the recurrence is

        u <- threshold(b, w1 lambda), then num_steps times
        u <- threshold(u - (Gamma G Gamma u - b) w2 / L, w1 lambda w2 / L),

    and the output is P u; x, the residual of eq. 11 and 17, is that of the block. Gamma (shared by the heads), w1 and
    w2 are learned, as in the paper; L gets no gradient. Where the release departs from eq. 12, it is followed: its w2
    is one over the paper's; Gamma is not transposed; the first state is thresholded, too; L is 1 + the largest row
    sum instead of the largest singular value; and the threshold is smooth. Time and memory are linear in N.
    Dictionary, Gram matrix and states are float32 also when the model runs in half precision.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        static_grid: Token grid (height, width) of the pre-training, for which VARS-SD learns the static dictionary;
            it is resized to other grids (bicubic). None for VARS-D, which has no static dictionary.
        num_steps: Number of steps after the first; 3 in the paper, 5 by default in the release.
        sparsity: lambda, the weight of the L1 norm.
        feature_ratio: Number of random features m, relative to the width of a head.
        threshold: 'gelu' as in the release, or 'soft', the exact proximal operator.
    """

    min_steps = 1  # without steps Gamma and w2 would have no use

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        static_grid: Grid | None = None,
        num_steps: int = 3,
        sparsity: float = 0.3,
        feature_ratio: float = 2,
        threshold: str = 'gelu',
    ) -> None:
        super().__init__()
        head_dims = head_dims_of(embed_dims, num_heads)
        _check_recurrence(num_steps, self.min_steps, sparsity, threshold)
        self.num_heads = num_heads
        self.static_grid = static_grid
        self.num_steps = num_steps
        self.sparsity = sparsity
        self.threshold = THRESHOLDS[threshold]

        num_features = int(feature_ratio * head_dims)
        num_columns = num_features if static_grid is None else 2 * num_features
        self.features = RandomFeatures(num_heads, head_dims, num_features)
        if static_grid is not None:
            self.static = nn.Parameter(torch.randn(num_heads, static_grid[0] * static_grid[1], num_features))
        self.gram_weight = nn.Parameter(torch.eye(num_columns))  # Gamma
        self.sparsity_scale = nn.Parameter(torch.ones(1))  # w1
        self.step_scale = nn.Parameter(torch.ones(1))  # w2
        self.qkv = nn.Linear(embed_dims, 2 * embed_dims)  # queries, which are also the keys, and values
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        query, value = split_heads(self.qkv(x), 2, self.num_heads)
        with without_autocast(x):
            dictionary = self.dictionary(full_precision(query), tuple(x.shape[1:3]))
            output = dictionary @ _last(self.states(dictionary, full_precision(value)))
        return self.proj(merge_heads(output, x.shape).to(value.dtype))

    def dictionary(self, query: Tensor, grid: Grid) -> Tensor:
        """The dictionary P, with columns of unit length.

        Args:
            query: (B, heads, H * W, d), float32 or float64.
            grid: (H, W).

        Returns:
            (B, heads, H * W, columns).
        """
        columns = self.features(query)
        if self.static_grid is not None:
            columns = torch.cat(
                (columns, self._static_columns(grid, query.dtype).expand(query.shape[0], -1, -1, -1)), -1
            )
        return F.normalize(columns, dim=-2)

    def states(self, dictionary: Tensor, value: Tensor) -> Iterator[Tensor]:
        """The recurrent states u, num_steps + 1 tensors (B, heads, columns, d).

        Args:
            dictionary: (B, heads, N, columns), float32 or float64.
            value: (B, heads, N, d), of the same dtype.
        """
        dtype = value.dtype
        gram = dictionary.transpose(-2, -1) @ dictionary
        step = self.step_scale.to(dtype) / self.step_bound(gram)
        gamma = self.gram_weight.to(dtype)
        gram = gamma @ gram @ gamma
        target = dictionary.transpose(-2, -1) @ value
        penalty = self.sparsity_scale.to(dtype) * self.sparsity
        return sparse_codes(lambda codes: gram @ codes, target, step, penalty, self.num_steps, self.threshold)

    @staticmethod
    def step_bound(gram: Tensor) -> Tensor:
        """L, at least the largest eigenvalue of the Gram matrix: (B, heads, m, m) to (B, heads, 1, 1), detached."""
        return gram.detach().abs().sum(-1).amax(-1)[..., None, None] + 1

    @torch.no_grad()
    def recurrent_states(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The states of the recurrence, for analysis.

        Args:
            x: (B, H, W, C).

        Returns:
            The dictionary P, (B, heads, H * W, columns), and the states u, (num_steps + 1, B, heads, columns, d),
            float32 or float64; the reconstruction after step i is `dictionary @ states[i]`.
        """
        query, value = split_heads(self.qkv(x), 2, self.num_heads)
        with without_autocast(x):
            dictionary = self.dictionary(full_precision(query), tuple(x.shape[1:3]))
            return dictionary, torch.stack(list(self.states(dictionary, full_precision(value))))

    @torch.no_grad()
    def reconstruction_norms(self, x: Tensor) -> Tensor:
        """Euclidean norm of each token's reconstruction P u after each step, over the channels of a head.

        Args:
            x: (B, H, W, C).

        Returns:
            (num_steps + 1, B, heads, H, W), float32 or float64.
        """
        dictionary, states = self.recurrent_states(x)
        return torch.stack([(dictionary @ codes).norm(dim=-1).unflatten(-1, x.shape[1:3]) for codes in states])

    @torch.inference_mode(False)  # the weights are derivatives, which that mode does not compute
    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries after each step, for analysis, without gradients.

        A weight is the derivative of what is reconstructed at the query by the value at the key, the dictionary held
        fixed, averaged over the channels of the head. Without a penalty, reconstruction is linear in the values: the
        weights are those of an attention, P P^T after step 0.

        Args:
            x: (B, H, W, C).
            queries: Their indices in the row-major order of the grid, int64 (queries,).

        Returns:
            'step 0' to 'step num_steps - 1', and 'attention' for the last one.
        """
        grid = tuple(x.shape[1:3])
        with torch.no_grad():
            query, value = split_heads(self.qkv(x), 2, self.num_heads)
            query, value = full_precision(query), full_precision(value)
        with without_autocast(x):
            dictionary = self.dictionary(query, grid).detach()

            def reconstruct(value: Tensor) -> Iterator[Tensor]:
                return ((dictionary @ codes).sum((0, 1, 3)) for codes in self.states(dictionary, value))

            steps = _derivatives(reconstruct, value, queries, channel_axis=3)
        return _maps_of_steps([weights.permute(1, 2, 0, 3) for weights in steps], grid)

    def _static_columns(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        """The static dictionary, resized to a grid: (heads, H * W, m)."""
        static = self.static.to(dtype)
        if is_same_grid(grid, self.static_grid):
            return static
        return self._resized(static, grid)

    def _resized(self, static: Tensor, grid: Grid) -> Tensor:
        """`_static_columns` for a grid other than `static_grid`."""
        heads, _, num_columns = static.shape
        static = static.transpose(0, 1).reshape(*self.static_grid, heads * num_columns)
        return resize_bicubic(static, grid).reshape(-1, heads, num_columns).transpose(0, 1)


@MODELS.register_module()
class IstaReconstructionAttention(SparseReconstructionAttention):
    """VARS-D and VARS-SD with a recurrence of which nothing is learned.

    Source: VARS (Shi et al., ICML 2022), eq. 12 without what the paper learns there, w1, w2 and Gamma: the iterative
    shrinkage-thresholding algorithm (ISTA):

        u <- threshold(b, lambda), then num_steps times
        u <- threshold(u - (G u - b) / L, lambda / L),

    which is `SparseReconstructionAttention` with Gamma = I and w1 = w2 = 1. The authors' first code (the folder `rvt`
    of github.com/bfshi/VARS) has it with the exact threshold, 3 steps and lambda = 2, the defaults here. With
    `num_steps=0` and `sparsity=0.0` it is the special case of section 3.4, attention with the kernel P P^T: one step
    and no penalty. The arguments are those of `SparseReconstructionAttention`.
    """

    min_steps = 0

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        static_grid: Grid | None = None,
        num_steps: int = 3,
        sparsity: float = 2.0,
        feature_ratio: float = 2,
        threshold: str = 'soft',
    ) -> None:
        super().__init__(embed_dims, num_heads, static_grid, num_steps, sparsity, feature_ratio, threshold)
        del self.gram_weight, self.sparsity_scale, self.step_scale

    def states(self, dictionary: Tensor, value: Tensor) -> Iterator[Tensor]:
        gram = dictionary.transpose(-2, -1) @ dictionary
        target = dictionary.transpose(-2, -1) @ value
        step = 1 / self.step_bound(gram)
        return sparse_codes(lambda codes: gram @ codes, target, step, self.sparsity, self.num_steps, self.threshold)


@MODELS.register_module()
class ConvolutionalSparseReconstruction(FourierKernels):
    """VARS-S: sparse reconstruction of each channel from the shifts of a few learned kernels, in Fourier space.

    Source: VARS (Shi et al., ICML 2022), eq. 10 to 12 with a static dictionary, as in the release: P^T is the
    circular convolution of a channel with a few kernels as large as the grid, and the step length is 1 / L. The
    reconstruction P u goes through a second circular convolution, BatchNorm and a projection, see `with_mixing`.

    The kernels of the dictionary are divided by their norm here; the release normalises the parameters after each
    optimizer step instead. L of a channel is the largest eigenvalue, over all frequencies, of the real part of the
    Gram matrix K K^H of its kernels. That is at least half the largest eigenvalue of K K^H, so the objective never
    rises. The release's file contains a running average of it.

    Fourier transforms and states are float32 also when the model runs in half precision.

    Args:
        embed_dims: Width of the tokens.
        grid: As in `FourierKernels`.
        num_steps: Number of steps after the first.
        sparsity: lambda, the weight of the L1 norm; 3.5 in the release, 0.3 in the paper.
        num_kernels: Number of kernels in the dictionary of each channel; 5 in the release. Shapes have K.
        threshold: 'soft', the exact proximal operator, as in the release, or 'gelu'.
        with_mixing: Whether there are a projection to values before the reconstruction, and the second convolution
            and a projection after it, as in the release. Without them the layer has the parameters of GFNet's filter
            with one kernel, as in table 2 of the paper.
    """

    def __init__(
        self,
        embed_dims: int,
        grid: Grid,
        num_steps: int = 3,
        sparsity: float = 3.5,
        num_kernels: int = 5,
        threshold: str = 'soft',
        with_mixing: bool = True,
    ) -> None:
        super().__init__(grid)
        _check_recurrence(num_steps, 1, sparsity, threshold)
        self.num_steps = num_steps
        self.sparsity = sparsity
        self.threshold = THRESHOLDS[threshold]
        self.kernel = nn.Parameter(torch.randn(embed_dims, num_kernels, *self.half_spectrum))
        mix_kernel = nn.Parameter(0.02 * torch.randn(embed_dims, *self.half_spectrum)) if with_mixing else None
        self.register_parameter('mix_kernel', mix_kernel)
        self.v = nn.Linear(embed_dims, embed_dims) if with_mixing else nn.Identity()
        self.norm = nn.BatchNorm2d(embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims) if with_mixing else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        value = self.v(x).permute(0, 3, 1, 2)
        grid = tuple(x.shape[1:3])
        with without_autocast(x):
            spectrum = self.dictionary(grid, full_precision(value).dtype)
            output = _decode(_last(self.states(spectrum, full_precision(value))), spectrum)
            if self.mix_kernel is not None:
                output = circular_convolution(output, self._spectrum(self.mix_kernel, grid, output.dtype))
        output = self.norm(output.to(value.dtype))
        return self.proj(output.permute(0, 2, 3, 1))

    def dictionary(self, grid: Grid, dtype: torch.dtype = torch.float32) -> Tensor:
        """Half-spectra of the normalised kernels on a grid: (C, K, H, W // 2 + 1), complex.

        Args:
            grid: (H, W) in tokens.
            dtype: float32 or float64.
        """
        kernel = self.kernel.to(dtype)
        # Parseval; the factor 2 counts the frequencies of the half that is not stored.
        squared_norm = 2 / (self.grid[0] * self.grid[1]) * kernel.square().sum((-3, -2, -1), keepdim=True)
        return self._spectrum(kernel * squared_norm.rsqrt(), grid, dtype)

    def states(self, spectrum: Tensor, value: Tensor) -> Iterator[Tensor]:
        """The recurrent states u, num_steps + 1 tensors (B, C, K, H, W).

        Args:
            spectrum: Result of `dictionary`.
            value: (B, C, H, W), float32 or float64 as `spectrum`.
        """
        target = circular_convolution(value[:, :, None], spectrum)
        step = 1 / self.step_bound(spectrum)
        return sparse_codes(
            lambda codes: _gram(codes, spectrum), target, step, self.sparsity, self.num_steps, self.threshold
        )

    @staticmethod
    def step_bound(spectrum: Tensor) -> Tensor:
        """L of each channel: (C, K, H, W // 2 + 1) to (C, 1, 1, 1), detached."""
        spectrum = spectrum.detach()
        real, imaginary = spectrum.real, spectrum.imag
        # Re(K K^H) = a a^T + b b^T with K = a + i b. Its rank is 2: the largest eigenvalue is that of a 2 x 2 matrix.
        aa, bb, ab = ((p * q).sum(1) for p, q in ((real, real), (imaginary, imaginary), (real, imaginary)))
        largest = (aa + bb) / 2 + hypot((aa - bb) / 2, ab)
        return largest.amax((1, 2))[:, None, None, None]

    @torch.no_grad()
    def recurrent_states(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The states of the recurrence, for analysis.

        Args:
            x: (B, H, W, C).

        Returns:
            The reconstructions P u, (num_steps + 1, B, C, H, W), and the states u, (num_steps + 1, B, C, K, H, W),
            float32 or float64.
        """
        value = self.v(x).permute(0, 3, 1, 2)
        with without_autocast(x):
            value = full_precision(value)
            spectrum = self.dictionary(tuple(x.shape[1:3]), value.dtype)
            states = list(self.states(spectrum, value))
            return torch.stack([_decode(codes, spectrum) for codes in states]), torch.stack(states)

    def reconstruction_norms(self, x: Tensor) -> Tensor:
        """Euclidean norm of each token's reconstruction P u after each step, over all channels.

        Args:
            x: (B, H, W, C).

        Returns:
            (num_steps + 1, B, 1, H, W), float32 or float64; the layer counts as one with a single head.
        """
        return self.recurrent_states(x)[0].norm(dim=2, keepdim=True)

    @torch.inference_mode(False)  # the weights are derivatives, which that mode does not compute
    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries after each step, as `SparseReconstructionAttention.attention_maps` defines them.

        The channels are those of a single head. The second convolution, which follows the reconstruction, is not a
        part of the weights.
        """
        grid = tuple(x.shape[1:3])
        with torch.no_grad():
            # A copy: without mixing, the values are the tokens, which autograd does not take from inference mode.
            value = full_precision(self.v(x).permute(0, 3, 1, 2)).clone()
        with without_autocast(x):
            spectrum = self.dictionary(grid, value.dtype).detach()

            def reconstruct(value: Tensor) -> Iterator[Tensor]:
                return (_decode(codes, spectrum).sum((0, 1)).flatten() for codes in self.states(spectrum, value))

            steps = _derivatives(reconstruct, value, queries, channel_axis=1)
        return _maps_of_steps([weights.flatten(2).transpose(0, 1)[:, None] for weights in steps], grid)


def _decode(codes: Tensor, spectrum: Tensor) -> Tensor:
    """P u, a sum over the kernels: (B, C, K, H, W) to (B, C, H, W)."""
    transform = (torch.fft.rfft2(codes) * spectrum.conj()).sum(2)
    return torch.fft.irfft2(transform, s=codes.shape[-2:])


def _gram(codes: Tensor, spectrum: Tensor) -> Tensor:
    """P^T P u: (B, C, K, H, W) to the same."""
    # Not `circular_convolution(_decode(...))`: the half-spectra of the release have parts that belong to no real
    # kernel. The transform to a real image in `_decode` would drop these, and the results of the release depend on
    # them.
    transform = (torch.fft.rfft2(codes) * spectrum.conj()).sum(2, keepdim=True)
    return torch.fft.irfft2(transform * spectrum, s=codes.shape[-2:])


def _derivatives(
    reconstruct: Callable[[Tensor], Iterator[Tensor]], value: Tensor, queries: Tensor, channel_axis: int
) -> list[Tensor]:
    """Derivatives of the reconstruction at some queries by the values at all tokens, after each step.

    Args:
        reconstruct: Function of `value` that yields the reconstruction after each step, (H * W,). It is summed over
            images, heads and channels; these are independent, so one backward pass gives the derivatives of all.
        value: Values, of any shape.
        queries: Indices of the queries in the row-major order of the grid, int64 (queries,).
        channel_axis: Axis of `value` over which the derivatives are averaged.

    Returns:
        For each step (queries, *shape of `value` without the channels).
    """
    value = value.detach().requires_grad_()
    queries_at_once = max(1, MAX_DERIVATIVES // value.numel())
    with torch.enable_grad():
        steps = list(reconstruct(value))
    selections = F.one_hot(queries, len(steps[0])).to(value.dtype).split(queries_at_once)

    def derivative(step: Tensor, selection: Tensor) -> Tensor:
        (derivatives,) = torch.autograd.grad(step, value, selection, retain_graph=True, is_grads_batched=True)
        return derivatives.mean(channel_axis + 1)

    return [torch.cat([derivative(step, selection) for selection in selections]) for step in steps]


def _maps_of_steps(steps: list[Tensor], grid: Grid) -> AttentionMaps:
    """Name the maps of the weights after each step, (B, heads, queries, H * W) each."""
    names = [*(f'step {index}' for index in range(len(steps) - 1)), 'attention']
    return {name: AttentionMap.of_grid(weights, grid) for name, weights in zip(names, steps)}


def _last(states: Iterator[Tensor]) -> Tensor:
    """The last state; the others are not kept in memory."""
    return deque(states, maxlen=1).pop()


def _check_recurrence(num_steps: int, min_steps: int, sparsity: float, threshold: str) -> None:
    if num_steps < min_steps:
        raise InputError(f'num_steps must be at least {min_steps}, got {num_steps}')
    if sparsity < 0:
        raise InputError(f'sparsity must not be negative, got {sparsity}')
    if threshold not in THRESHOLDS:
        raise InputError(f'threshold must be one of {", ".join(THRESHOLDS)}, got {threshold!r}')
