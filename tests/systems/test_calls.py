"""Python calls of a training step and of inference, for which a GPU waits; they are the same on every machine.

`benchmarks/host.py` has those of timm's ViT, 2,012, and of Swin-T, 2,514, in inference 2,403.
"""

import cProfile
import gc
import pstats
from collections.abc import Callable
from functools import partial

import pytest
import torch

from bioattn_mm import VARS, ConViT, GABSwin, GABViT, PerViT, TransNeXt
from tests.ops.conftest import needs_library

SWIN = 2514
# The backbone, whether it trains in mixed precision, and how many calls it may make.
BACKBONES = {
    'ConViT': (partial(ConViT, 'tiny'), False, 2213),
    'GABSwin': (partial(GABSwin, 'tiny'), False, 1.5 * SWIN),
    'GABViT': (partial(GABViT, 'small'), False, 3018),
    'PerViT': (partial(PerViT, 'tiny'), False, 2890),
    'VARS-S in RVT': (partial(VARS, 'rvt-tiny', pretrain_size=64), False, 3018),
    'VARS-D in DeiT': (partial(VARS, 'deit-tiny', 'vars_d', pretrain_size=64), False, 2640),
    'TransNeXt': (partial(TransNeXt, 'tiny'), False, 1.25 * SWIN),
    'TransNeXt in bfloat16': (partial(TransNeXt, 'tiny'), True, 1.33 * SWIN),
    'TransNeXt in bfloat16 with dropped paths': (partial(TransNeXt, 'tiny', drop_path_rate=0.2), True, 1.35 * SWIN),
}


def calls_of(run: Callable[[], object]) -> int:
    """Calls of functions, of Python and of C, that Python makes in the second run of `run`."""
    run()
    profile = cProfile.Profile()
    gc.collect()
    gc.disable()  # what it frees of other tests' objects calls their callbacks
    try:
        profile.runcall(run)
    finally:
        gc.enable()
    return pstats.Stats(profile).total_calls


@needs_library
@pytest.mark.parametrize('name', BACKBONES)
def test_number_of_calls(name: str) -> None:
    build, autocast, limit = BACKBONES[name]
    backbone, image = build(), torch.randn(1, 3, 64, 64)
    parameters = list(backbone.parameters())

    def train() -> None:
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            outputs = backbone(image)
        sum(output.sum() for output in outputs).backward()
        for parameter in parameters:
            parameter.grad = None

    assert calls_of(train) < limit
    if name.startswith('TransNeXt'):
        backbone.eval()
        with torch.no_grad():
            assert calls_of(lambda: backbone(image)) < 1.1 * 2403


@pytest.mark.parametrize('called', ['hook', 'hook of the block', 'derived layer', 'of itself'])
@pytest.mark.parametrize('system', [ConViT, GABViT, PerViT])
def test_what_is_computed_for_all_blocks_is_what_each_computes(system: type, called: str) -> None:
    arch, arguments = dict(embed_dims=24, num_layers=4, num_heads=2), {}
    if system is ConViT:
        arguments, num_arguments, layer = dict(local_up_to_layer=3), 4, 'qk'
    elif system is GABViT:
        arguments, num_arguments, layer = dict(gaussian_per_head=True), 1, 'rel_pos.mlp.fc1'
    else:
        arch = dict(embed_dims=(24, 32, 24, 24), depths=(1, 1, 1, 1), stem_channels=(8, 8, 8), num_heads=2)
        num_arguments, layer = 3, 'position.conv1'
    backbone = system(arch, out_indices=(1, 3), **arguments).double().eval()  # without dropout
    for parameter in backbone.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    image = torch.randn(2, 3, 48, 80).double()

    def values_and_gradients() -> list[torch.Tensor]:
        outputs = backbone(image)
        trained = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
        return [*outputs, *torch.autograd.grad(sum(output.square().sum() for output in outputs), trained)]

    arguments = backbone.arguments_of_blocks

    def number() -> int:
        return len([each for each in next(iter(arguments(backbone.embed(image), True))) if each is not None])

    together = values_and_gradients()
    assert number() == num_arguments
    attn, inputs = backbone.blocks[0].attn, []
    if called == 'hook':
        attn.register_forward_pre_hook(lambda _, given, named: inputs.append((len(given), *named)), with_kwargs=True)
    elif called == 'hook of the block':  # as FSDP2 has one
        backbone.blocks[0].register_forward_hook(lambda *_: None)
    elif called == 'derived layer':
        derived = attn.get_submodule(layer)
        derived.__class__ = type('Layer', (type(derived),), {})  # as an adapter derives it
    else:
        backbone.arguments_of_blocks = lambda x, at_once: arguments(x, False)
    torch.testing.assert_close(values_and_gradients(), together, rtol=1e-10, atol=1e-10)
    alone = (2, 'distances') if system is PerViT else (1,)
    assert inputs == ([alone] if called == 'hook' else [])
    if called != 'of itself':
        assert number() == (2 if system is PerViT else 0)


@pytest.mark.parametrize('system', [ConViT, GABViT, PerViT])
def test_frozen_blocks_keep_nothing_for_a_backward_pass(system: type) -> None:
    arch = 'tiny' if system is PerViT else dict(embed_dims=24, num_layers=12, num_heads=2)
    first, last = system(arch, out_indices=(1, 3), frozen_stages=1).train()(torch.randn(2, 3, 48, 80))
    assert last.requires_grad and not first.requires_grad
