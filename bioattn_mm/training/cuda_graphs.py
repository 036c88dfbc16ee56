"""Backbone and neck as CUDA graphs: all their kernels, forward and backward, in one launch each.

PyTorch's `torch.cuda.make_graphed_callables` captures forward and backward pass of a function of tensors for one
size. What is added here is what it leaves to its caller: a graph for each input size, and what keeps a replay equal
to an eager pass.
"""

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from ..registry import HOOKS
from ..systems.common.hooks import has_hooks
from .compilation import PARTS
from .config.pipelines import add_hook, remove_hook
from .ema import unwrapped

MAX_SIZES = 16
# Passes before the capture; with DistributedDataParallel PyTorch asks for eleven.
NUM_WARMUP, NUM_WARMUP_DISTRIBUTED = 3, 11


class Features(nn.Module):
    """Backbone and neck of a model, whose own `extract_feat` runs them: (B, C, H, W) to what the heads take."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        parts = [getattr(model, name, None) for name in PARTS]
        self.parts = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))
        self.extract = partial(type(model).extract_feat, model)
        self.all_modules, self.all_buffers = list(self.modules()), list(self.buffers())
        self.all_parameters = dict(self.named_parameters())

    def forward(self, images: Tensor) -> object:
        return self.extract(images)


@dataclass
class Graph:
    replay: Callable[..., object]  # takes images and all parameters, and gives the features
    constants: list[Tensor]  # cached tensors that the graph reads, and that have to live as long as it
    gradients: set[int] = field(default_factory=set)  # addresses that the graph writes the parameters' gradients to

    def note_gradients(self, gradients: tuple[Tensor | None, ...], _: object) -> None:
        self.gradients.update(gradient.data_ptr() for gradient in gradients if gradient is not None)


class FeatureGraphs:
    """A model's `extract_feat`, by CUDA graphs: `model.extract_feat = FeatureGraphs(model)`.

    There is a graph for each shape of the images, and for training, evaluation, each dtype of autocast and whatever
    else changes what is computed. It is captured when its shape comes for the second time. The graphs share one pool
    of memory, so that together they take little more than the largest.

    A pass runs eagerly if its shape came for the first time, beyond `max_sizes` shapes, with other arguments than
    images, for images that get a gradient, while a module of backbone or neck has hooks, and between the two passes
    of a training step, where a replay would overwrite what the backward pass reads. Running statistics and random
    numbers are after a capture what they were before, and a replay draws the numbers that an eager pass would draw.

    Args:
        model: The model, with a `backbone` and perhaps a `neck`.
        max_sizes: Number of shapes in training, and as many in evaluation.

    Raises:
        InputError: In the first call, if the model cannot be captured.
    """

    def __init__(self, model: nn.Module, max_sizes: int = MAX_SIZES) -> None:
        self.model, self.max_sizes = model, max_sizes
        self.num_calls = self.num_replays = 0
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, Graph] = {}
        self._last: Callable[[], object] = lambda: None
        self._awaits_backward = False
        self._pool = None

    def __deepcopy__(self, memo: dict) -> 'FeatureGraphs':
        # A copy of the model, such as an average of its weights, gets its own graphs: they are of one model's memory.
        return FeatureGraphs(memo.get(id(self.model), self.model), self.max_sizes)

    def __call__(self, images: Tensor, *args: object, **kwargs: object) -> object:
        """What the model's own `extract_feat` returns; the tensors of a replay are overwritten by the next one."""
        self.num_calls += 1
        # A forward pass whose outputs are gone, as after an exception, has no backward pass any more.
        is_between_passes = self._awaits_backward and self._last() is not None
        key = None if args or kwargs else self._key(images)
        graph = None if key is None or is_between_passes else self._graph(key, images)
        if graph is None:
            return type(self.model).extract_feat(self.model, images, *args, **kwargs)
        self.num_replays += 1
        self._keep_gradients()
        features = graph.replay(images, *self._features.all_parameters.values())
        node = next((leaf.grad_fn for leaf in tree_leaves(features) if leaf.grad_fn is not None), None)
        if node is not None:
            self._last, self._awaits_backward = weakref.ref(node), True
            node.register_prehook(partial(self._before_backward, self._last))
            if not graph.gradients:
                node.register_hook(graph.note_gradients)
        return features

    @cached_property
    def _features(self) -> Features:
        check_capturable(self.model)
        return Features(self.model)

    def _key(self, images: Tensor) -> Hashable | None:
        """Everything that one graph cannot be used for two values of; None where there can be no graph."""
        if has_hooks(*self._features.all_modules) or images.requires_grad:
            return None
        kind = images.device.type
        return (
            torch.is_grad_enabled(),
            images.shape,
            images.dtype,
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind),
            (self.model.training, *[module.training for module in self._features.all_modules]),
            tuple([parameter.requires_grad for parameter in self._features.all_parameters.values()]),
            tuple([buffer.data_ptr() for buffer in self._features.all_buffers]),
        )

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
        line = f'CUDA graph {number + 1} of {kind}: images of {tuple(images.shape)}'
        if number + 1 == self.max_sizes:
            line += (
                '; other sizes run without one: more by --cuda-graphs N, fewer sizes by a larger '
                'model.data_preprocessor.pad_size_divisor, such as 64'
            )
        print_log(line, 'current')
        return graph

    def _capture(self, images: Tensor) -> Graph:
        names, kind = list(self._features.all_parameters), images.device.type
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

        def extract(images: Tensor, *values: Tensor) -> object:
            torch.clear_autocast_cache()  # it might hold casts of old weights
            with torch.autocast(kind, dtype, enabled):
                features = functional_call(self._features, dict(zip(names, values)), (images,))
            torch.clear_autocast_cache()
            return features

        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # They share the parameters' memory: autograd would wait, in the capture, for the stream of the hooks that
        # DistributedDataParallel gives to the parameters themselves.
        aliases = [
            nn.Parameter(value.detach(), value.requires_grad) for value in self._features.all_parameters.values()
        ]
        before = [buffer.clone() for buffer in self._features.all_buffers]
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
            for buffer, value in zip(self._features.all_buffers, before):
                buffer.copy_(value)
        return Graph(replay, constants)

    def _keep_gradients(self) -> None:
        """Copy gradients that are in the memory of the graphs, where any replay may write, as they are accumulated.

        PyTorch makes the memory of a graph's gradients that of `parameter.grad`, and graphs share memory.
        """
        kept = [parameter for parameter in self._features.all_parameters.values() if parameter.grad is not None]
        in_graphs = set().union(*(graph.gradients for graph in self._graphs.values())) if kept else ()
        for parameter in kept:
            if parameter.grad.data_ptr() in in_graphs:
                parameter.grad = parameter.grad.clone()

    def _before_backward(self, node: Callable[[], object], _: object) -> None:
        if node is not self._last:
            raise RuntimeError(
                'the backward pass of features whose memory a later replay of a CUDA graph has overwritten: run each '
                'backward pass before the next forward pass, or leave out --cuda-graphs'
            )
        self._awaits_backward = False


@contextmanager
def beside_other_threads() -> Iterator[None]:
    """Context in which `make_graphed_callables` forbids its own thread alone what a graph cannot have.

    Else the data loader's thread that pins memory makes a capture fail. There is no argument for it.
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
    if not torch.cuda.is_available():
        raise InputError('--cuda-graphs needs a GPU, and PyTorch finds none: leave it out')


def set_cuda_graphs(config: Config, max_sizes: int | None) -> None:
    """Run a config with CUDA graphs for so many sizes (see `FeatureGraphs`), or without them."""
    remove_hook(config, 'CudaGraphsHook')
    if max_sizes:
        require_gpu()
        add_hook(config, 'CudaGraphsHook', max_sizes=max_sizes)


@HOOKS.register_module()
class CudaGraphsHook(Hook):
    """Train and test with backbone and neck as CUDA graphs; see `FeatureGraphs`."""

    def __init__(self, max_sizes: int = MAX_SIZES) -> None:
        self.max_sizes = max_sizes

    def before_train(self, runner: Runner) -> None:
        require_gpu()
        model = model_of(runner)
        check_capturable(model)
        model.extract_feat = FeatureGraphs(model, self.max_sizes)

    def after_train(self, runner: Runner) -> None:
        model = model_of(runner)
        replays, calls = model.extract_feat.num_replays, model.extract_feat.num_calls
        print_log(f'CUDA graphs ran {replays} of {calls} passes', 'current')
        del model.extract_feat  # the class's own again

    before_test, after_test = before_train, after_train


def model_of(runner: Runner) -> nn.Module:
    """The model of a run without what wraps it, for several processes or for test-time augmentation."""
    model = unwrapped(runner.model)
    return model if hasattr(model, 'backbone') else getattr(model, 'module', model)
