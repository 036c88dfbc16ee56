"""Attention as sparse reconstruction (VARS), and the softmax and Performer attention that it is compared with."""

from collections import deque
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from .arguments import channels_of_head, full_precision
from .attention_maps import AttentionMap, AttentionMaps
from .resizing import resize_bicubic

# Atoms of each channel's dictionary in VARS-S.
NUM_ATOMS = 5
# Derivatives of queries by values that are taken at once, for analysis.
MAX_DERIVATIVES = 2**22

Grid = tuple[int, int]


def soft_threshold(x: Tensor, threshold: Tensor | float) -> Tensor:
    """sign(x) max(|x| - threshold, 0): the proximal operator of the L1 norm, for which eq. 10 never rises."""
    return x.sign() * F.relu(x.abs() - threshold)


def gelu_threshold(x: Tensor, threshold: Tensor | float) -> Tensor:
    """sign(x) GELU(|x| - threshold): the smooth threshold that the released VARS-D and VARS-SD were trained with."""
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
    """The recurrent states of VARS: proximal gradient steps on `|x - P u|^2 / 2 + penalty |u|_1` (eq. 10 and 12).

    The first state is the step of length 1 from u = 0, where the gradient is -target. Without a penalty it is P^T x,
    and its reconstruction P P^T x is attention with the kernel P P^T (section 3.4). What follows are `num_steps`
    steps of the length `step`.

    Args:
        gram: Applies P^T P to a state.
        target: P^T x, of any shape.
        step: Length of a step; the objective cannot rise while it is at most 2 / (largest eigenvalue of P^T P).
        penalty: Weight of the L1 norm.
        num_steps: Steps after the first.
        threshold: `soft_threshold` or a smooth version of it.

    Yields:
        num_steps + 1 states of the shape of `target`.
    """
    codes = threshold(target, penalty)
    yield codes
    for _ in range(num_steps):
        codes = threshold(codes - step * (gram(codes) - target), step * penalty)
        yield codes


class RandomFeatures(nn.Module):
    """Positive random features of the softmax kernel: `E[phi(x) . phi(y)] = exp(x . y)` for unit vectors x and y.

    Source: Performer (Choromanski et al., ICLR 2021), lemma 1: `phi(x) = exp(W x - |x|^2 / 2) / sqrt(m)`, W fixed. As
    in the release of VARS, x is normalised first, which makes every scale of queries and keys meaningless.

    Args:
        num_heads: Attention heads.
        head_channels: Channels of each.
        num_features: Features of each, m.
    """

    def __init__(self, num_heads: int, head_channels: int, num_features: int) -> None:
        super().__init__()
        self.register_buffer('projection', torch.randn(num_heads, head_channels, num_features))

    def forward(self, x: Tensor) -> Tensor:
        """phi of the normalised queries or keys: float32 or float64, (B, heads, N, d) to (B, heads, N, m)."""
        num_features = self.projection.shape[-1]
        logits = F.normalize(x, dim=-1) @ self.projection.to(x.dtype) - 0.5
        return logits.exp() * num_features**-0.5


class SoftmaxAttention(nn.Module):
    """Multi-head self-attention.

    Args:
        channels: Input and output channels.
        num_heads: Attention heads.
    """

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        channels_of_head(channels, num_heads)
        self.num_heads = num_heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        query, key, value = _split_heads(self.qkv(x), 3, self.num_heads)
        return self.proj(_merge_heads(F.scaled_dot_product_attention(query, key, value), x))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries, for analysis: 'attention'.

        Args:
            x: (B, H, W, C).
            queries: Their places in the row-major order of the grid, int64 (queries,).
        """
        query, key, _ = _split_heads(self.qkv(x), 3, self.num_heads)
        weights = (query[:, :, queries] @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
        return dict(attention=AttentionMap.of_grid(weights, tuple(x.shape[1:3])))


class PerformerAttention(nn.Module):
    """Attention with random features in place of the softmax, linear in the number of tokens N.

    Source: Performer (Choromanski et al., ICLR 2021), eq. 4: `phi(q) (phi(k)^T v)`, divided by `phi(q) (phi(k)^T 1)`.
    Features and sums over tokens are float32 in half precision, too.

    Args:
        channels: Input and output channels.
        num_heads: Attention heads.
        feature_ratio: Random features for each channel of a head.
    """

    def __init__(self, channels: int, num_heads: int, feature_ratio: float = 2) -> None:
        super().__init__()
        head_channels = channels_of_head(channels, num_heads)
        self.num_heads = num_heads
        self.features = RandomFeatures(num_heads, head_channels, int(feature_ratio * head_channels))
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        qkv = self.qkv(x)
        with torch.autocast(x.device.type, enabled=False):
            query, key, value = _split_heads(full_precision(qkv), 3, self.num_heads)
            query, key = self.features(query), self.features(key)
            weighted = query @ (key.transpose(-2, -1) @ value)
            output = weighted / (query @ key.sum(-2).unsqueeze(-1))
        return self.proj(_merge_heads(output, x).to(qkv.dtype))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries, which `forward` never has, for analysis: 'attention'.

        Args:
            x: (B, H, W, C).
            queries: Their places in the row-major order of the grid, int64 (queries,).
        """
        qkv = self.qkv(x)
        with torch.autocast(x.device.type, enabled=False):
            query, key, _ = _split_heads(full_precision(qkv), 3, self.num_heads)
            weights = self.features(query[:, :, queries]) @ self.features(key).transpose(-2, -1)
            weights = weights / weights.sum(-1, keepdim=True)
        return dict(attention=AttentionMap.of_grid(weights, tuple(x.shape[1:3])))


class SparseReconstructionAttention(nn.Module):
    """VARS-D and VARS-SD: the values' sparse reconstruction from a dictionary of the input's random features.

    Source: VARS (Shi et al., ICML 2022), eq. 10 to 13, with the release's parametrisation. For each head, the N x m
    dictionary P has the random features of the queries as columns, each of unit length; VARS-SD adds as many columns
    of a learned static dictionary. With the Gram matrix G = P^T P, b = P^T v and L = 1 + the largest absolute row sum
    of G, a bound of its largest eigenvalue, the states are

        u <- threshold(b, w1 lambda), then num_steps times
        u <- threshold(u - (Gamma G Gamma u - b) w2 / L, w1 lambda w2 / L),

    and the output is P u. Gamma (shared by the heads), w1 and w2 are learned; L gets no gradient. Nothing has N x N
    elements: time and memory are linear in N. Dictionary, Gram matrix and states are float32 in half precision, too.

    Args:
        channels: Input and output channels.
        num_heads: Attention heads.
        static_grid: Token grid (height, width) of the static dictionary, that of the pre-training: VARS-SD. Other
            grids get it resized (bicubic). None: VARS-D.
        num_steps: Steps after the first; the paper has 3, the default of the release is 5.
        sparsity: lambda, the weight of the L1 norm.
        feature_ratio: Columns of each dictionary for each channel of a head.
        threshold: 'gelu' as in the release or 'soft', the exact proximal operator.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        static_grid: Grid | None = None,
        num_steps: int = 3,
        sparsity: float = 0.3,
        feature_ratio: float = 2,
        threshold: str = 'gelu',
    ) -> None:
        super().__init__()
        head_channels = channels_of_head(channels, num_heads)
        _check_steps(num_steps, sparsity)
        if threshold not in THRESHOLDS:
            raise InputError(f'threshold must be one of {", ".join(THRESHOLDS)}, got {threshold!r}')
        self.num_heads = num_heads
        self.static_grid = static_grid
        self.num_steps = num_steps
        self.sparsity = sparsity
        self.threshold = THRESHOLDS[threshold]

        num_features = int(feature_ratio * head_channels)
        num_columns = num_features if static_grid is None else 2 * num_features
        self.features = RandomFeatures(num_heads, head_channels, num_features)
        if static_grid is not None:
            self.static = nn.Parameter(torch.randn(num_heads, static_grid[0] * static_grid[1], num_features))
        self.gram_weight = nn.Parameter(torch.eye(num_columns))  # Gamma
        self.sparsity_scale = nn.Parameter(torch.ones(1))  # w1
        self.step_scale = nn.Parameter(torch.ones(1))  # w2
        self.qkv = nn.Linear(channels, 2 * channels)  # queries, which are the keys as well, and values
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        query, value = _split_heads(self.qkv(x), 2, self.num_heads)
        with torch.autocast(x.device.type, enabled=False):
            dictionary = self.dictionary(full_precision(query), tuple(x.shape[1:3]))
            output = dictionary @ _last(self.states(dictionary, full_precision(value)))
        return self.proj(_merge_heads(output, x).to(value.dtype))

    def dictionary(self, query: Tensor, grid: Grid) -> Tensor:
        """P, with columns of unit length.

        Args:
            query: (B, heads, H * W, d), float32 or float64.
            grid: (H, W).

        Returns:
            (B, heads, H * W, columns).
        """
        columns = self.features(query)
        if self.static_grid is not None:
            columns = torch.cat((columns, self._static_columns(grid, query.dtype).expand(len(query), -1, -1, -1)), -1)
        return F.normalize(columns, dim=-2)

    def states(self, dictionary: Tensor, value: Tensor) -> Iterator[Tensor]:
        """The recurrent states: num_steps + 1 of (B, heads, columns, d).

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
        """L, no less than the largest eigenvalue: (B, heads, m, m) to (B, heads, 1, 1), without a gradient."""
        return gram.detach().abs().sum(-1).amax(-1)[..., None, None] + 1

    @torch.no_grad()
    def recurrent_states(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the attention of an input goes through, for analysis.

        Args:
            x: (B, H, W, C).

        Returns:
            The dictionary, (B, heads, H * W, columns), and the states, (num_steps + 1, B, heads, columns, d), float32
            or float64; `dictionary @ states[i]` is what state i reconstructs.
        """
        query, value = _split_heads(self.qkv(x), 2, self.num_heads)
        with torch.autocast(x.device.type, enabled=False):
            dictionary = self.dictionary(full_precision(query), tuple(x.shape[1:3]))
            return dictionary, torch.stack(list(self.states(dictionary, full_precision(value))))

    @torch.no_grad()
    def reconstruction_norms(self, x: Tensor) -> Tensor:
        """How strongly each state reconstructs each token: the Euclidean norm of P u over the channels of a head.

        Args:
            x: (B, H, W, C).

        Returns:
            (num_steps + 1, B, heads, H, W), float32 or float64.
        """
        dictionary, states = self.recurrent_states(x)
        return torch.stack([(dictionary @ codes).norm(dim=-1).unflatten(-1, x.shape[1:3]) for codes in states])

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries after each step, for analysis, without gradients.

        A weight is the derivative of what is reconstructed at the query by the value at the key, the dictionary held
        fixed, averaged over the channels of the head. Without a penalty, reconstruction is linear in the values: the
        weights are those of an attention, P P^T after step 0.

        Args:
            x: (B, H, W, C).
            queries: Their places in the row-major order of the grid, int64 (queries,).

        Returns:
            'step 0' to 'step num_steps - 1', and 'attention' for the last one.
        """
        grid = tuple(x.shape[1:3])
        with torch.no_grad():
            query, value = _split_heads(self.qkv(x), 2, self.num_heads)
            query, value = full_precision(query), full_precision(value)
        with torch.autocast(x.device.type, enabled=False):
            dictionary = self.dictionary(query, grid).detach()

            def reconstruct(value: Tensor) -> Iterator[Tensor]:
                return ((dictionary @ codes).sum((0, 1, 3)) for codes in self.states(dictionary, value))

            steps = _derivatives(reconstruct, value, queries, channel_axis=3)
        return _maps_of_steps([weights.permute(1, 2, 0, 3) for weights in steps], grid)

    def _static_columns(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        """The static dictionary on a grid: (heads, H * W, m)."""
        static = self.static.to(dtype)
        if grid == self.static_grid:
            return static
        return self._resized(static, grid)

    def _resized(self, static: Tensor, grid: Grid) -> Tensor:
        heads, _, num_columns = static.shape
        static = static.transpose(0, 1).reshape(*self.static_grid, heads * num_columns)
        return resize_bicubic(static, grid).reshape(-1, heads, num_columns).transpose(0, 1)


class ConvolutionalSparseReconstruction(nn.Module):
    """VARS-S: each channel's sparse reconstruction from the shifts of a few learned kernels, in Fourier space.

    Source: VARS (Shi et al., ICML 2022), eq. 10 to 13 with a static dictionary, as in the release: P^T is the
    circular convolution of a channel with 5 kernels as large as the grid, the step is 1 / L, and the threshold is
    exact. The reconstruction P u goes through a second circular convolution, a BatchNorm and a projection.

    Kernels are half-spectra. Those of the dictionary are divided by their norm, which the release does to the
    parameters after each step of the optimiser. L of a channel is the largest eigenvalue, over all frequencies, of
    the real part of the 5 x 5 Gram matrix K K^H, which is at least half of the largest eigenvalue of K K^H itself:
    enough for the objective never to rise. The release's file has a running average of it.

    Another grid than that of the pre-training gets the kernels of that grid, as functions of the offset in tokens,
    on its own larger or smaller circle. Fourier transforms and states are float32 in half precision, too.

    Args:
        channels: Input and output channels.
        grid: Token grid (height, width) of the kernels, that of the pre-training.
        num_steps: Steps after the first.
        sparsity: lambda, the weight of the L1 norm.
    """

    def __init__(self, channels: int, grid: Grid, num_steps: int = 3, sparsity: float = 3.5) -> None:
        super().__init__()
        _check_steps(num_steps, sparsity)
        self.grid = grid
        self.num_steps = num_steps
        self.sparsity = sparsity
        half = (grid[0], grid[1] // 2 + 1, 2)  # of real and imaginary parts
        self.kernel = nn.Parameter(torch.randn(channels, NUM_ATOMS, *half))
        self.mix_kernel = nn.Parameter(0.02 * torch.randn(channels, *half))
        self.v = nn.Linear(channels, channels)
        self.norm = nn.BatchNorm2d(channels)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        value = self.v(x).permute(0, 3, 1, 2)
        grid = tuple(x.shape[1:3])
        with torch.autocast(x.device.type, enabled=False):
            spectrum = self.dictionary(grid, full_precision(value).dtype)
            output = _decode(_last(self.states(spectrum, full_precision(value))), spectrum)
            output = _filter(output, self._spectrum(self.mix_kernel, grid, output.dtype))
        output = self.norm(output.to(value.dtype))
        return self.proj(output.permute(0, 2, 3, 1))

    def dictionary(self, grid: Grid, dtype: torch.dtype = torch.float32) -> Tensor:
        """The half-spectra of the normalised kernels on a grid: (C, 5, H, W // 2 + 1), complex.

        Args:
            grid: (H, W) in tokens.
            dtype: float32 or float64.
        """
        kernel = self.kernel.to(dtype)
        # Frequencies come in pairs, of which the half-spectrum has one.
        squared_norm = 2 / (self.grid[0] * self.grid[1]) * kernel.square().sum((-3, -2, -1), keepdim=True)
        return self._spectrum(kernel * squared_norm.rsqrt(), grid, dtype)

    def states(self, spectrum: Tensor, value: Tensor) -> Iterator[Tensor]:
        """The recurrent states: num_steps + 1 of (B, C, 5, H, W).

        Args:
            spectrum: What `dictionary` returned.
            value: (B, C, H, W), of its dtype.
        """
        return sparse_codes(
            lambda codes: _gram(codes, spectrum),
            _filter(value[:, :, None], spectrum),
            1 / self.step_bound(spectrum),
            self.sparsity,
            self.num_steps,
        )

    @staticmethod
    def step_bound(spectrum: Tensor) -> Tensor:
        """L of each channel: (C, 5, H, W // 2 + 1) to (C, 1, 1, 1), without a gradient."""
        spectrum = spectrum.detach()
        real, imaginary = spectrum.real, spectrum.imag
        # Re(K K^H) = a a^T + b b^T with the parts a and b of K, so its eigenvalues are those of a 2 x 2 matrix.
        aa, bb, ab = ((p * q).sum(1) for p, q in ((real, real), (imaginary, imaginary), (real, imaginary)))
        largest = (aa + bb) / 2 + torch.hypot((aa - bb) / 2, ab)
        return largest.amax((1, 2))[:, None, None, None]

    @torch.no_grad()
    def recurrent_states(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the attention of an input goes through, for analysis.

        Args:
            x: (B, H, W, C).

        Returns:
            The reconstructions P u, (num_steps + 1, B, C, H, W), and the states u, (num_steps + 1, B, C, 5, H, W),
            float32 or float64.
        """
        value = self.v(x).permute(0, 3, 1, 2)
        with torch.autocast(x.device.type, enabled=False):
            value = full_precision(value)
            spectrum = self.dictionary(tuple(x.shape[1:3]), value.dtype)
            states = list(self.states(spectrum, value))
            return torch.stack([_decode(codes, spectrum) for codes in states]), torch.stack(states)

    def reconstruction_norms(self, x: Tensor) -> Tensor:
        """How strongly each state reconstructs each token: the Euclidean norm of P u over the channels.

        Args:
            x: (B, H, W, C).

        Returns:
            (num_steps + 1, B, 1, H, W), float32 or float64; the channels are those of a single head.
        """
        return self.recurrent_states(x)[0].norm(dim=2, keepdim=True)

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries after each step, as `SparseReconstructionAttention.attention_maps` defines them.

        The channels are those of a single head. The second convolution, which follows the reconstruction, is not a
        part of the weights.
        """
        grid = tuple(x.shape[1:3])
        with torch.no_grad():
            value = full_precision(self.v(x).permute(0, 3, 1, 2))
        with torch.autocast(x.device.type, enabled=False):
            spectrum = self.dictionary(grid, value.dtype).detach()

            def reconstruct(value: Tensor) -> Iterator[Tensor]:
                return (_decode(codes, spectrum).sum((0, 1)).flatten() for codes in self.states(spectrum, value))

            steps = _derivatives(reconstruct, value, queries, channel_axis=1)
        return _maps_of_steps([weights.flatten(2).transpose(0, 1)[:, None] for weights in steps], grid)

    def _spectrum(self, kernel: Tensor, grid: Grid, dtype: torch.dtype) -> Tensor:
        """Half-spectrum of kernels, (..., h, w // 2 + 1, 2), on another grid: (..., H, W // 2 + 1), complex."""
        spectrum = torch.view_as_complex(kernel.to(dtype).contiguous())
        if grid == self.grid:
            return spectrum
        kernel = torch.fft.irfft2(spectrum, s=self.grid)
        for axis, (own, length) in enumerate(zip(self.grid, grid), start=-2):
            # Tokens -own / 2 to own / 2 around the centre, on a circle of another length.
            place = (torch.arange(own, device=kernel.device) + own // 2) % own - own // 2
            shape = [*kernel.shape]
            shape[axis] = length
            kernel = kernel.new_zeros(shape).index_add(axis, place % length, kernel)
        return torch.fft.rfft2(kernel)


def _filter(x: Tensor, spectrum: Tensor) -> Tensor:
    """Circular convolution over the last two axes, (..., H, W), with kernels of the half-spectra `spectrum`."""
    return torch.fft.irfft2(torch.fft.rfft2(x) * spectrum, s=x.shape[-2:])


def _decode(codes: Tensor, spectrum: Tensor) -> Tensor:
    """P u, the sum over the atoms: (B, C, 5, H, W) to (B, C, H, W)."""
    transform = (torch.fft.rfft2(codes) * spectrum.conj()).sum(2)
    return torch.fft.irfft2(transform, s=codes.shape[-2:])


def _gram(codes: Tensor, spectrum: Tensor) -> Tensor:
    """P^T P u: (B, C, 5, H, W) to the same."""
    # Not `_filter(_decode(...))`: the half-spectra of the release need not be those of real kernels, and the rest of
    # them counts here.
    transform = (torch.fft.rfft2(codes) * spectrum.conj()).sum(2, keepdim=True)
    return torch.fft.irfft2(transform * spectrum, s=codes.shape[-2:])


def _derivatives(
    reconstruct: Callable[[Tensor], Iterator[Tensor]], value: Tensor, queries: Tensor, channel_axis: int
) -> list[Tensor]:
    """What the value at each token does to the reconstruction at some queries, after each step.

    Args:
        reconstruct: Gives the reconstruction of a value at each step, summed over images, heads and channels, none
            of which knows of the others: (H * W,).
        value: Of any shape.
        queries: Places of the queries, int64 (queries,).
        channel_axis: Axis of `value` to average over.

    Returns:
        For each step the derivatives, (queries, *shape of `value` without the channels).
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
    """Name the weights after each step, (B, heads, queries, H * W)."""
    names = [*(f'step {index}' for index in range(len(steps) - 1)), 'attention']
    return {name: AttentionMap.of_grid(weights, grid) for name, weights in zip(names, steps)}


def _last(states: Iterator[Tensor]) -> Tensor:
    """The last state, without keeping the others."""
    return deque(states, maxlen=1).pop()


def _check_steps(num_steps: int, sparsity: float) -> None:
    if num_steps < 1:
        raise InputError(f'num_steps must be at least 1, got {num_steps}')
    if sparsity < 0:
        raise InputError(f'sparsity must not be negative, got {sparsity}')


def _split_heads(x: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """(B, H, W, parts * C) to `parts` of (B, heads, H * W, d)."""
    return x.flatten(1, 2).unflatten(-1, (parts, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()


def _merge_heads(x: Tensor, like: Tensor) -> Tensor:
    """(B, heads, H * W, d) to (B, H, W, C), the shape of `like`."""
    return x.transpose(1, 2).reshape(like.shape)
