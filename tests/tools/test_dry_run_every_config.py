"""Every config takes its first training step and predicts for its first validation image, at full size."""

import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from bioattn_mm.training.config.model_check import model_of

from .. import parity
from .every_config import CONFIGS
from .running import ROOT, run
from .user_folder import make_user_folder

MANIFESTS = {
    'bioattn_mm.TransNeXt': 'transnext_{arch}',
    'bioattn_mm.ConViT': 'convit_{arch}',
    'bioattn_mm.PerViT': 'pervit_{arch}',
    'bioattn_mm.VARS': 'vars_{arch}_{attention}',
}


@pytest.fixture(scope='module')
def user(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_user_folder(tmp_path_factory.mktemp('user'), workplace)


def write_weights(config: Config, path: Path) -> None:
    """A file in place of the ImageNet weights: the released names where they are recorded, random values."""
    backbone = {key: value for key, value in config.model.backbone.items() if key != 'init_cfg'}
    manifest = MANIFESTS.get(backbone['type'], '').format(**backbone).replace('-', '_')
    if (parity.FOLDER / f'manifest_{manifest}.json').is_file():
        state_dict = parity.released_state_dict(manifest)
    else:
        shapes = {name: value.shape for name, value in model_of(config).backbone.state_dict().items()}
        state_dict = {name: parity.fill_value(name, shape) for name, shape in shapes.items()}
    if prefix := config.model.backbone.init_cfg.get('prefix'):  # ConvNeXt's is a whole classifier of mmpretrain's
        torch.save(dict(state_dict={prefix + name: value for name, value in state_dict.items()}), path)
    else:
        torch.save(dict(model=state_dict), path)


@pytest.mark.dry_run
@pytest.mark.parametrize('name', CONFIGS)
def test_every_config_starts_at_full_size(name: str, user: Path) -> None:
    weights = user / 'weights.pth'
    write_weights(Config.fromfile(ROOT / f'configs/{name}.py'), weights)
    options = [f'model.backbone.init_cfg.checkpoint={weights}']
    if 'in1k' in name:  # 128 images a process are for GPUs; some start from a whole classifier
        options += ['model.init_cfg=None', 'train_dataloader.batch_size=2']
    if re.search(r'mask2former_\w+_coco', name):  # each image, 1024 x 1024 pixels, takes gigabytes
        options += ['train_dataloader.batch_size=1']
    printed = run(user, 'train.py', f'configs/{name}.py', '--dry-run', '--cfg-options', *options)
    told = dict(re.findall(r'^(\w[\w ]*?) {2,}(\S.*)$', printed, flags=re.MULTILINE))
    assert told['weights'].startswith(f'{weights}; ')
    print(f'\n{name}: ' + '; '.join(f'{column} {told[column]}' for column in ('first step', 'peak memory')))
