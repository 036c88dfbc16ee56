"""Backbone and neck as CUDA graphs: all their kernels, forward and backward, in one launch each.

PyTorch's `torch.cuda.make_graphed_callables` does it: it warms up, captures forward and backward pass of a function
of tensors for one size, and gives a function that autograd knows. The other mechanism that PyTorch has,
`torch.compile(mode='reduce-overhead')`, compiles for minutes before it captures, rounds otherwise than the eager run,
and does not accumulate gradients over several replays. What is added here is what `make_graphed_callables` leaves to
its caller: a graph for each input size, and what keeps a replay equal to an eager pass.
"""

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from ..errors import InputError
from ..ops.constants import capture_of_constants
from ..ops.whole_layers import has_hooks
from ..registry import HOOKS
from .compilation import PARTS
from .ema import unwrapped

MAX_SIZES = 16
# Passes before the capture; with DistributedDataParallel PyTorch asks for eleven.
NUM_WARMUP, NUM_WARMUP_DISTRIBUTED = 3, 11


class Features(nn.Module):
    """Backbone and neck of a model, whose own method `extract_feat` runs them.

    Args:
        model: A model of mmdet, mmseg or mmpretrain.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        parts = [getattr(model, name, None) for name in PARTS]
        self.parts = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))
        self.extract = partial(type(model).extract_feat, model)

    def forward(self, images: Tensor) -> object:
        """(B, C, H, W) to what the model's heads take: nested tuples, lists or dicts of tensors."""
        return self.extract(images)


class Graph:
    """A captured pass: the function that replays it, and what has to live as long as it.

    Attributes:
        replay: Takes images and all parameters, and gives the features.
        constants: Cached tensors that the graph reads.
        gradients: Where in memory the graph writes the gradients of the parameters; empty before the first one.
    """

    def __init__(self, replay: Callable[..., object], constants: list[Tensor]) -> None:
        self.replay, self.constants = replay, constants
        self.gradients: set[int] = set()

    def note_gradients(self, gradients: tuple[Tensor | None, ...], _: object) -> None:
        """A hook of autograd after the backward pass."""
        self.gradients.update(gradient.data_ptr() for gradient in gradients if gradient is not None)


class FeatureGraphs:
    """A model's `extract_feat`, by CUDA graphs: `model.extract_feat = FeatureGraphs(model)`.

    There is a graph for each shape of the images, and for training, evaluation, each dtype of autocast and whatever
    else changes what is computed. It is captured when its shape comes for the second time. The graphs share one pool
    of memory, so that together they take little more than the largest, and each its feature maps and a set of
    gradients.

    A pass runs eagerly if its shape came for the first time, beyond `max_sizes` shapes, with other arguments than
    images, for images that get a gradient, while a module of backbone or neck has hooks, and between the two passes
    of a training step, where a replay would overwrite what the backward pass reads.

    - Autocast casts the weights in the graph, each once: its cache, which might hold casts of old weights, is emptied
      before and after the capture.
    - Running statistics and random numbers are after a capture what they were before. A replay draws the numbers that
      an eager pass would draw.
    - Parameters go into a graph by tensors that share their memory. So a model that DistributedDataParallel has
      wrapped can be captured, too: autograd would otherwise wait, in the capture, for the stream of its hooks.
    - PyTorch makes the memory of a graph's gradients that of `parameter.grad`. Any replay, forward passes among them,
      may write there, because graphs put what they need for a while into memory that later ones put their results
      into. Where gradients are accumulated, they are copied before the next replay.

    Args:
        model: The model, with a `backbone` and perhaps a `neck`.
        max_sizes: Number of shapes in training, and as many in evaluation.

    Raises:
        InputError: `max_sizes` is too small. In the first call, if the model cannot be captured.
    """

    def __init__(self, model: nn.Module, max_sizes: int = MAX_SIZES) -> None:
        if max_sizes < 1:
            raise InputError(f'max_sizes of CUDA graphs must be at least 1, got {max_sizes}')
        self.model, self.max_sizes = model, max_sizes
        self.num_calls = self.num_replays = 0
        self._seen: set[Hashable] = set()
        self._full: set[str] = set()
        self._graphs: dict[Hashable, Graph] = {}
        self._last: Callable[[], object] = lambda: None
        self._awaits_backward = False

    def __deepcopy__(self, memo: dict) -> 'FeatureGraphs':
        # A copy of the model, such as an average of its weights, gets its own graphs: they are of one model's memory.
        return FeatureGraphs(memo.get(id(self.model), self.model), self.max_sizes)

    def __call__(self, images: Tensor, *args: object, **kwargs: object) -> object:
        """What the model's own `extract_feat` returns; the tensors of a replay are overwritten by the next one.

        Args:
            images: (B, C, H, W).
            *args: Other arguments of `extract_feat`, with which it runs eagerly.
            **kwargs: The same.
        """
        self.num_calls += 1
        key = None if args or kwargs else self._key(images)
        graph = None if key is None or self._is_between_passes() else self._graph(key, images)
        if graph is None:
            return type(self.model).extract_feat(self.model, images, *args, **kwargs)
        self.num_replays += 1
        self._keep_gradients()
        features = graph.replay(images, *self._parameters.values())
        node = next((leaf.grad_fn for leaf in tree_leaves(features) if leaf.grad_fn is not None), None)
        if node is not None:
            self._last, self._awaits_backward = weakref.ref(node), True
            node.register_prehook(partial(self._before_backward, self._last))
            if not graph.gradients:
                node.register_hook(graph.note_gradients)
        return features

    def summary(self) -> str:
        """How much of the work the graphs did, in one line."""
        share = self.num_replays / max(1, self.num_calls)
        return f'CUDA graphs: {len(self._graphs)}, which ran {share:.0%} of {self.num_calls} passes'

    @cached_property
    def _features(self) -> Features:
        check_capturable(self.model)
        return Features(self.model)

    @cached_property
    def _modules(self) -> list[nn.Module]:
        return list(self._features.modules())

    @cached_property
    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._features.named_parameters())

    @cached_property
    def _buffers(self) -> list[Tensor]:
        return list(self._features.buffers())

    @cached_property
    def _pool(self) -> object:
        return torch.cuda.graph_pool_handle()

    def _key(self, images: Tensor) -> Hashable | None:
        """Everything that one graph cannot be used for two values of; None where there can be no graph."""
        if has_hooks(*self._modules) or images.requires_grad:
            return None
        kind = images.device.type
        return (
            torch.is_grad_enabled(),
            images.shape,
            images.dtype,
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind),
            (self.model.training, *[module.training for module in self._modules]),
            tuple([parameter.requires_grad for parameter in self._parameters.values()]),
            tuple([buffer.data_ptr() for buffer in self._buffers]),
        )

    def _is_between_passes(self) -> bool:
        """Whether a backward pass that reads the memory of the graphs is still to come."""
        # A forward pass whose outputs are gone, as after an exception, has no backward pass any more.
        return self._awaits_backward and self._last() is not None

    def _graph(self, key: Hashable, images: Tensor) -> Graph | None:
        """The graph of a key, which is captured if it is time; None for an eager pass."""
        if key in self._graphs:
            return self._graphs[key]
        if key not in self._seen:
            self._seen.add(key)
            return None
        number = sum(key[0] == other[0] for other in self._graphs)
        kind = 'training' if key[0] else 'evaluation'
        if number == self.max_sizes:
            if kind not in self._full:
                self._full.add(kind)
                print_log(
                    f'CUDA graphs: {number} sizes of {kind} are captured, others run without one; more by '
                    '--cuda-graphs N, fewer sizes by a larger model.data_preprocessor.pad_size_divisor, such as 64',
                    'current',
                )
            return None
        try:
            graph = self._graphs[key] = self._capture(images)
        except Exception as error:
            # PyTorch cannot be trusted to go on: its random numbers may still belong to the capture.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f'--cuda-graphs cannot capture backbone and neck for images of {tuple(images.shape)}: leave it out'
                + (f', or allow fewer sizes than {number + 1}' if number else '')
                + f' ({reason})'
            ) from error
        print_log(f'CUDA graph {number + 1} of {kind}: images of {tuple(images.shape)}', 'current')
        return graph

    def _capture(self, images: Tensor) -> Graph:
        """Capture the passes for images of one shape in the present modes."""
        names, kind = list(self._parameters), images.device.type
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

        def extract(images: Tensor, *values: Tensor) -> object:
            torch.clear_autocast_cache()
            with torch.autocast(kind, dtype, enabled):
                features = functional_call(self._features, dict(zip(names, values)), (images,))
            torch.clear_autocast_cache()
            return features

        aliases = [nn.Parameter(value.detach(), value.requires_grad) for value in self._parameters.values()]
        before = [buffer.clone() for buffer in self._buffers]
        devices = [images.device] if images.is_cuda else []
        with (
            torch.random.fork_rng(devices),
            torch.autocast(kind, enabled=False),
            beside_other_threads(),
            capture_of_constants() as constants,
        ):
            replay = torch.cuda.make_graphed_callables(
                extract,
                (images.detach().clone(), *aliases),
                num_warmup_iters=NUM_WARMUP if get_world_size() == 1 else NUM_WARMUP_DISTRIBUTED,
                allow_unused_input=True,
                pool=self._pool,
            )
        with torch.no_grad():
            for buffer, value in zip(self._buffers, before):
                buffer.copy_(value)
        return Graph(replay, constants)

    def _keep_gradients(self) -> None:
        """Copy the gradients of earlier passes that are in the memory of the graphs."""
        kept = [parameter for parameter in self._parameters.values() if parameter.grad is not None]
        in_graphs = set().union(*(graph.gradients for graph in self._graphs.values())) if kept else ()
        for parameter in kept:
            if parameter.grad.data_ptr() in in_graphs:
                parameter.grad = parameter.grad.clone()

    def _before_backward(self, node: Callable[[], object], _: object) -> None:
        """A hook of autograd before the backward pass of a replay."""
        if node is not self._last:
            raise RuntimeError(
                'the backward pass of features whose memory a later replay of a CUDA graph has overwritten: run each '
                'backward pass before the next forward pass, or leave out --cuda-graphs'
            )
        self._awaits_backward = False


@contextmanager
def beside_other_threads() -> Iterator[None]:
    """Context in which `make_graphed_callables` forbids its own thread alone what a graph cannot have.

    By default a capture and what another thread does meanwhile both fail, as a data loader's thread that pins the
    memory of the next batch. `make_graphed_callables` has no argument for it.
    """
    before, torch.cuda.graph = torch.cuda.graph, partial(torch.cuda.graph, capture_error_mode='thread_local')
    try:
        yield
    finally:
        torch.cuda.graph = before


def check_capturable(model: nn.Module) -> None:
    """Raise an `InputError` if it is known beforehand that a model cannot be captured."""
    if not hasattr(model, 'backbone') or not hasattr(model, 'extract_feat'):
        raise InputError(f'--cuda-graphs needs a model with a backbone: {type(model).__name__} has none')
    for module in Features(model).modules():
        if getattr(module, 'with_cp', False) or getattr(module, 'grad_checkpointing', False):
            raise InputError(
                '--cuda-graphs cannot capture activations that are recomputed (with_cp=True), as that stores the '
                'state of random numbers: leave out one of them'
            )
        if isinstance(module, nn.SyncBatchNorm) and get_world_size() > 1:
            raise InputError(
                '--cuda-graphs cannot capture synchronised batch norm in backbone or neck: take another norm_cfg '
                'there, or leave it out'
            )


def require_gpu() -> None:
    """Raise an `InputError` if there is no GPU."""
    if not torch.cuda.is_available():
        raise InputError('--cuda-graphs needs a GPU, and PyTorch finds none: leave it out')


def set_cuda_graphs(config: Config, max_sizes: int) -> None:
    """Run a config with CUDA graphs.

    Args:
        config: Changed in place.
        max_sizes: As in `FeatureGraphs`.

    Raises:
        InputError: There is no GPU.
    """
    require_gpu()
    hook = dict(type='bioattn_mm.CudaGraphsHook', max_sizes=max_sizes)
    config.custom_hooks = [*config.get('custom_hooks', []), hook]


@HOOKS.register_module()
class CudaGraphsHook(Hook):
    """Train and test with backbone and neck as CUDA graphs; see `FeatureGraphs`.

    Args:
        max_sizes: Number of shapes of images that are captured for training, and as many for evaluation.

    Raises:
        InputError: Before the run, if there is no GPU, or the model is one that cannot be captured.
    """

    def __init__(self, max_sizes: int = MAX_SIZES) -> None:
        self.max_sizes = max_sizes

    def before_train(self, runner: Runner) -> None:
        require_gpu()
        model = model_of(runner)
        check_capturable(model)
        model.extract_feat = FeatureGraphs(model, self.max_sizes)

    def after_train(self, runner: Runner) -> None:
        model = model_of(runner)
        print_log(model.extract_feat.summary(), 'current')
        del model.extract_feat  # the class's own again

    before_test, after_test = before_train, after_train


def model_of(runner: Runner) -> nn.Module:
    """The model of a run without what wraps it, for several processes or for test-time augmentation."""
    model = unwrapped(runner.model)
    return model if hasattr(model, 'backbone') else getattr(model, 'module', model)
