"""Backbone and neck as CUDA graphs: everything is as in an eager run."""

import copy

import pytest
import torch
from mmengine.config import Config
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bioattn_mm.errors import InputError
from bioattn_mm.systems.transnext import TransNeXt
from bioattn_mm.training.cuda_graphs import FeatureGraphs, check_capturable, set_cuda_graphs

from ..needs import needs
from .graphs_on_cpu import graphs_on_cpu  # noqa: F401

# How far losses may be apart.
LOSS = dict(cpu=1e-5, cuda=0.02)
SMALL = dict(embed_dims=(4, 8, 8, 8), num_heads=(1, 1, 1, 1), depths=(1, 1, 1, 1))


@pytest.fixture(params=['cpu', pytest.param('cuda', marks=needs('CUDA operators'))])
def device(request: pytest.FixtureRequest) -> str:
    """A GPU, and the CPU with a stand-in for its graphs."""
    if request.param == 'cpu':
        request.getfixturevalue('graphs_on_cpu')
    return request.param


def test_the_config_of_a_work_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the hook of its training: a run has one of its own, or none."""
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    config = Config(dict(custom_hooks=[dict(type='bioattn_mm.SeedingHook')]))
    for sizes in (2, 5):
        set_cuda_graphs(config, sizes)
        assert config.custom_hooks[1:] == [dict(type='bioattn_mm.CudaGraphsHook', max_sizes=sizes)]
    set_cuda_graphs(config, None)
    assert config.custom_hooks == [dict(type='bioattn_mm.SeedingHook')]


class Neck(nn.Module):
    """Channels of two feature maps to four, with batch normalisation and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)) for _ in range(2))
        self.unused = nn.Parameter(torch.ones(1))

    def forward(self, features: tuple[Tensor, ...]) -> list[Tensor]:
        return [conv(feature) for conv, feature in zip(self.convs, features)]


class Model(nn.Module):
    """A model as mmdet and mmseg have them."""

    def __init__(self, device: str = 'cpu', **options) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = TransNeXt(SMALL, out_indices=(1, 3), drop_path_rate=0.5, **options)
        self.neck = Neck()
        self.head = nn.Conv2d(4, 2, 1)
        self.to(device)

    def extract_feat(self, images: Tensor) -> list[Tensor]:
        return self.neck(self.backbone(images))

    def forward(self, images: Tensor) -> Tensor:
        return sum(self.head(feature).float().square().mean() for feature in self.extract_feat(images))


def twins(device: str, max_sizes: int = 2, **options) -> tuple[Model, Model]:
    """The same model eagerly and by graphs."""
    eager, graphed = Model(device, **options).train(), Model(device, **options).train()
    graphed.extract_feat = FeatureGraphs(graphed, max_sizes)
    return eager, graphed


def images_of(seed: int, size: tuple[int, int] = (32, 48), device: str = 'cpu') -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(seed)).to(device)


def train(
    model: Model, steps: int, device: str, *, accumulate=1, sizes=((32, 48),), dtype=None, set_to_none=True
) -> list[float]:
    """Losses of some steps of SGD, seeded as the tools seed each."""
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model(images_of(step, sizes[step % len(sizes)], device)) / accumulate
        loss.backward()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none)
        losses.append(loss.item())
    return losses


OPTIONS = {
    'one size': dict(),
    'frozen stages': dict(frozen_stages=0),
    'accumulated': dict(accumulate=3, sizes=((32, 48), (48, 32))),
    'zeroed gradients': dict(set_to_none=False),
    'bfloat16': dict(dtype=torch.bfloat16),
    'one size more than graphs': dict(sizes=((32, 48), (48, 32), (64, 32))),
}


@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
def test_losses_of_the_eager_run(device: str, options: dict) -> None:
    steps, options = 9, dict(options)
    eager, graphed = twins(device, frozen_stages=options.pop('frozen_stages', -1))
    losses = train(eager, steps, device, **options)
    assert train(graphed, steps, device, **options) == pytest.approx(losses, rel=LOSS[device])
    assert len(set(losses)) == steps
    # Parameters and running statistics; kernels of a GPU add in another order in each run.
    tolerance = dict(rtol=1e-5, atol=1e-6) if device == 'cpu' else dict(rtol=0.02, atol=0.02)
    torch.testing.assert_close(dict(graphed.state_dict()), dict(eager.state_dict()), **tolerance)
    # The first image of each size is not worth a graph, and there are two graphs.
    num_sizes = len(options.get('sizes', 'x'))
    expected = sum(step >= num_sizes and step % num_sizes < 2 for step in range(steps))
    assert (graphed.extract_feat.num_calls, graphed.extract_feat.num_replays) == (steps, expected)


def test_evaluation_takes_the_new_weights(device: str) -> None:
    # A position bias is kept for each size in evaluation, and a graph must not go on with an old one.
    eager, graphed = twins(device)
    image = images_of(0, device=device)
    for model in (eager, graphed):
        train(model, 3, device)
        model.eval()
    for _ in range(2):
        for _ in range(3):
            with torch.no_grad():
                features, expected = graphed.extract_feat(image), eager.extract_feat(image)
            torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-4)
        for model in (eager, graphed):
            train(model.train(), 1, device)
            model.eval()
    assert graphed.extract_feat.num_replays == 2 + 5 + 2  # training, evaluation, training


def test_between_forward_and_backward_passes_nothing_is_replayed(device: str) -> None:
    eager, graphed = twins(device)
    for model in (eager, graphed):
        train(model, 2, device)
        for _ in range(2):  # in the second round there is a graph of evaluation, too
            torch.manual_seed(0)
            first = model(images_of(0, device=device))
            with torch.no_grad():
                model.extract_feat(images_of(1, device=device))
            (first + model(images_of(2, device=device))).backward()
    gradients, expected = ({n: p.grad for n, p in model.named_parameters()} for model in (graphed, eager))
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-5)
    replays = graphed.extract_feat.num_replays
    model(images_of(0, device=device))  # whose gradient nobody asks for
    model(images_of(0, device=device)).backward()
    assert graphed.extract_feat.num_replays == replays + 2


def test_what_a_graph_does_not_do(device: str) -> None:
    """Call hooks, give the gradient of images, go back after the next forward pass, and serve a copy of the model."""
    _, graphed = twins(device)
    image = images_of(0, device=device)
    train(graphed, 3, device)
    replays = graphed.extract_feat.num_replays
    seen = []
    handle = graphed.backbone.stages[0].blocks[0].attn.register_forward_hook(lambda *args: seen.append(args))
    graphed(image).backward()
    handle.remove()
    assert len(seen) == 1
    graphed(image.requires_grad_()).backward()
    assert image.grad.abs().sum() > 0
    assert graphed.extract_feat.num_replays == replays
    graphed(image.detach()).backward()
    assert graphed.extract_feat.num_replays == replays + 1

    loss = graphed.extract_feat(image.detach())[0].sum()
    loss.backward(retain_graph=True)
    graphed(images_of(1, device=device)).backward()
    with pytest.raises(RuntimeError, match='has overwritten: run each backward pass before the next forward pass'):
        loss.backward()

    other = copy.deepcopy(graphed)
    assert other.extract_feat.model is other and other.extract_feat.num_replays == 0
    before = copy.deepcopy(other.state_dict())
    train(graphed, 1, device)
    torch.testing.assert_close(other.state_dict(), before)


@pytest.mark.usefixtures('graphs_on_cpu')  # a GPU's random numbers would still belong to the capture that fails
def test_what_cannot_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r'recomputed \(with_cp=True\), .* leave out one of them'):
        check_capturable(Model(with_cp=True))
    with pytest.raises(InputError, match='needs a model with a backbone: Linear has none'):
        check_capturable(nn.Linear(1, 1))
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(Model())
    check_capturable(synchronised)
    with monkeypatch.context() as patch, pytest.raises(InputError, match='cannot capture synchronised batch norm'):
        patch.setattr('bioattn_mm.training.cuda_graphs.get_world_size', lambda: 2)
        check_capturable(synchronised)
    _, graphed = twins('cpu')
    graphed.neck.convs[0][1].forward = lambda x: x * x.mean().item()  # which waits for a number
    graphed(images_of(0))
    message = r'cannot capture backbone and neck for images of \(2, 3, 32, 48\): .*captur'
    with pytest.raises(InputError, match=message):
        graphed(images_of(0))


@pytest.mark.usefixtures('one_process')
def test_distributed_data_parallel(device: str) -> None:
    # Capturing after wrapping, and accumulating without exchanging gradients.
    losses = []
    for model in twins(device):
        wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        losses.append(train(wrapped, 4, device))
        with wrapped.no_sync():
            wrapped(images_of(0, device=device)).backward()
        wrapped(images_of(1, device=device)).backward()
        losses.append([parameter.grad for parameter in model.parameters()])
    assert losses[2] == pytest.approx(losses[0], rel=LOSS[device])
    torch.testing.assert_close(losses[3], losses[1], rtol=1e-3, atol=1e-4)
    assert model.extract_feat.num_replays == 3 + 2
