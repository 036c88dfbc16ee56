"""docs/adding_a_backbone.md: one file is all that a backbone needs, and the page shows the backbone in it."""

import json
import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn
from torch.distributed.fsdp import FSDPModule

from bioattn_mm.training.strategies import FSDP2Strategy

from ..needs import needs
from ..tools.random_weights import random_checkpoint
from ..tools.running import ROOT, InProcess

FOLDER = Path(__file__).parent
CONFIG = FOLDER / 'upernet_toy.py'


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of `toy_vit.py` is where Python looks for modules, as a user's own folder is."""
    monkeypatch.syspath_prepend(FOLDER)


@pytest.fixture
def model() -> nn.Module:
    config = Config.fromfile(CONFIG)
    init_default_scope(config.default_scope)
    return MODELS.build(config.model)


def test_the_page_shows_the_file() -> None:
    (code,) = re.findall(r'```python\n(.*?)```', (ROOT / 'docs/adding_a_backbone.md').read_text(), flags=re.DOTALL)
    assert (FOLDER / 'toy_vit.py').read_text().endswith(code)


def test_a_subclass_loads_the_released_file(model: nn.Module, tmp_path: Path) -> None:
    released = {}
    for name, value in model.backbone.state_dict().items():
        name = re.sub(r'^blocks\.(\d+)', lambda m: f'layer{int(m[1]) + 1}', name)
        name = name.replace('patch_embed.proj.', 'embed.').replace('.slope', '.log_slope')
        released[name] = torch.randn_like(value)
    torch.save(dict(model={**released, 'head.weight': torch.zeros(10, 24)}), tmp_path / 'toy.pth')
    backbone = type('Renamed', (type(model.backbone),), {})(
        init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'toy.pth'))
    )
    backbone.init_weights()
    torch.testing.assert_close(backbone.blocks[3].attn.slope.data, released['layer4.attn.log_slope'].exp())
    torch.testing.assert_close(backbone.patch_embed.proj.weight.data, released['embed.weight'])
    assert backbone.loaded_weights.endswith('not used: head.weight')


def test_freezes(model: nn.Module) -> None:
    backbone = type(model.backbone)(frozen_stages=1)
    for name, parameter in backbone.named_parameters():
        assert parameter.requires_grad == name.startswith(('blocks.2', 'blocks.3', 'norm'))


def test_each_block_is_a_unit_of_fsdp(model: nn.Module, one_process: None, tmp_path: Path) -> None:
    image = torch.randn(1, 3, 64, 96)
    expected = model.eval()(image, mode='tensor')
    sharded = FSDP2Strategy(work_dir=str(tmp_path))._wrap_model(model)
    units = [module for module in sharded.modules() if isinstance(module, FSDPModule)]
    assert units == [sharded, *sharded.backbone.blocks]
    output = sharded(image, mode='tensor')
    torch.testing.assert_close(output, expected)
    output.square().mean().backward()
    assert all(parameter.grad.full_tensor().any() for block in units[1:] for parameter in block.parameters())


def test_analysis_looks_into_it(workplace: Path, tool: InProcess, tmp_path: Path) -> None:
    tool(workplace, 'analysis/locality.py', CONFIG, '--mini', '--max-images', 1, '--out', tmp_path)
    heads = json.loads((tmp_path / 'locality.json').read_text())['heads']
    assert [head['slope'] for head in heads] == pytest.approx([0.01, 0.1] * 4)
    # The steeper slope reaches less far.
    assert all(far['nonlocality'] > near['nonlocality'] for far, near in zip(heads[::2], heads[1::2]))


def test_trains(workplace: Path, tool: InProcess, tmp_path: Path) -> None:
    options = ('train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'val_dataloader.dataset.indices=2')
    tool(workplace, 'train.py', CONFIG, '--mini', '--work-dir', tmp_path, '--cfg-options', *options)
    assert (tmp_path / 'iter_2.pth').is_file()


@pytest.mark.slow
@needs('mmdeploy', 'onnx', 'onnxruntime')
def test_exports(workplace: Path, tool: InProcess, tmp_path: Path) -> None:
    random_checkpoint(tmp_path / 'toy.pth', CONFIG)
    tool(
        workplace, 'export.py', CONFIG, tmp_path / 'toy.pth', '--mini', '--verify', '--out', tmp_path / 'exported',
        '--deploy-cfg', ROOT / 'configs/deploy/segmentation_onnxruntime_dynamic.py',
        '--cfg-options', 'test_dataloader.dataset.indices=2',
    )  # fmt: skip
    assert (tmp_path / 'exported/end2end.onnx').is_file()
