"""Whole models: compilation gives the same loss."""

import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import init_default_scope
from torch._dynamo.utils import counters

from bioattn_mm.registry import MODELS
from bioattn_mm.training.compilation import compile_parts
from bioattn_mm.training.config.mini import make_mini
from tests.conftest import ROOT
from tests.hosts.inputs import inputs_for

CONFIGS = ['upernet_small', 'mask_rcnn_small']


def build(name: str) -> BaseModel:
    """A model without dropout, whose weights are the same each time."""
    config = make_mini(Config.fromfile(ROOT / 'tests' / 'tools' / f'{name}.py'))
    init_default_scope(config.default_scope)
    if 'decode_head' in config.model:
        for head in (config.model.decode_head, config.model.auxiliary_head):
            head.update(dropout_ratio=0.0, channels=32)
    torch.manual_seed(0)
    return MODELS.build(config.model).train()


def loss_and_gradient(model: BaseModel) -> tuple[float, torch.Tensor]:
    """The total loss, and the gradient of the backbone's first weight."""
    scope = Config(dict(default_scope='mmdet' if hasattr(model, 'rpn_head') else 'mmseg'))
    torch.manual_seed(1)
    data = model.data_preprocessor(inputs_for(scope, (96, 128), with_mask=True), training=True)
    torch.manual_seed(2)  # the detector samples its regions
    loss, _ = model.parse_losses(model(**data, mode='loss'))
    (gradient,) = torch.autograd.grad(loss, [next(model.backbone.parameters())])
    return loss.item(), gradient


@pytest.mark.slow
@pytest.mark.parametrize('name', [CONFIGS[0], pytest.param(CONFIGS[1], marks=pytest.mark.every_compilation)])
def test_compiled_backbone_and_neck(name: str) -> None:
    loss, gradient = loss_and_gradient(build(name))
    model = build(name)
    torch.compiler.reset()
    counters.clear()
    names = compile_parts(model, 'aot_eager', dynamic=False)
    assert names == (['backbone', 'neck'] if hasattr(model, 'rpn_head') else ['backbone'])
    compiled_loss, compiled_gradient = loss_and_gradient(model)
    assert compiled_loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(compiled_gradient, gradient, rtol=1e-3, atol=1e-4 * gradient.abs().max().item())
    assert counters['stats']['unique_graphs'] == len(names)
    assert not counters['graph_break']
