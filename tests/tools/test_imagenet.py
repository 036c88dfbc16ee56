"""Classifiers: trained on the miniature ImageNet, tested and drawn; files of the authors, and of no classes."""

import pickle
from pathlib import Path

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from .. import parity
from ..conftest import NUM_VAL
from .running import ROOT, InProcess, last_validation, metrics_of_test
from .small_images import NO_WORKERS

# A small classifier, of which an average of its weights is validated.
CONFIG = f"""
_base_ = '{ROOT}/configs/_base_/recipes/in1k.py'
arch = dict(embed_dims=(24, 48, 48, 48), num_heads=(1, 2, 2, 2), depths=(1, 1, 1, 1))
model = dict(backbone=dict(type='bioattn_mm.TransNeXt', arch=arch, out_indices=(3,)), head=dict(in_channels=48))
custom_hooks = [*_base_.custom_hooks, dict(type='bioattn_mm.ShardableEMAHook', momentum=1e-4)]
"""


def test_what_was_validated_is_tested_written_and_drawn(workplace: Path, tool: InProcess, tmp_path: Path) -> None:
    config, trained = tmp_path / 'in1k.py', tmp_path / 'trained'
    config.write_text(CONFIG)
    tool(
        workplace, 'train.py', config, '--mini', '--work-dir', trained, '--cfg-options', 'train_cfg.max_iters=15',
        'train_cfg.val_interval=15', 'default_hooks.checkpoint.interval=15', 'param_scheduler.0.end=2',
        'param_scheduler.1.begin=2', 'param_scheduler.1.end=15', 'optim_wrapper.optimizer.lr=2e-3', *NO_WORKERS,
    )  # fmt: skip
    arguments = ('test.py', config, trained / 'iter_15.pth', '--mini')
    tool(workplace, *arguments, '--work-dir', tmp_path / 'test', '--out', tmp_path / 'out.pkl')
    metrics = metrics_of_test(tmp_path / 'test')
    # The average of the weights was validated, is in the checkpoint, and is tested.
    assert metrics == last_validation(trained)
    predictions = pickle.loads((tmp_path / 'out.pkl').read_bytes())
    right = [prediction['pred_label'].item() == prediction['gt_label'].item() for prediction in predictions]
    assert len(right) == NUM_VAL and 100 * np.mean(right) == pytest.approx(metrics['accuracy/top1'])

    tool(
        workplace, *arguments, '--tta', '--out', tmp_path / 'flipped.pkl', '--show-dir', tmp_path / 'drawn',
        '--work-dir', tmp_path / 'tta', '--cfg-options', 'test_dataloader.dataset.indices=4',
    )  # fmt: skip
    flipped = pickle.loads((tmp_path / 'flipped.pkl').read_bytes())
    assert all(0 < (a['pred_score'] - b['pred_score']).abs().max() < 1 for a, b in zip(predictions, flipped))
    drawn = [path for path in (tmp_path / 'drawn').rglob('*.png') if path.name != 'predictions.png']
    assert len(drawn) == len(flipped) == 4 and (tmp_path / 'drawn/predictions.png').exists()
    for path in drawn:
        (source,) = workplace.glob(f'data/mini/imagenet/val/*/{path.stem.rpartition("_")[0]}.JPEG')
        image, drawing = mmcv.imread(str(source)), mmcv.imread(str(path))
        lower = [pixels[len(pixels) // 2 :].mean((0, 1)) for pixels in (image, drawing)]
        assert np.abs(lower[0] - lower[1]).max() < 3  # no text there, and the colours are right


def test_a_file_of_the_authors(workplace: Path, tool: InProcess, tmp_path: Path) -> None:
    """It is tested as the model is that starts from it, also by a config without a visualizer."""
    config = Config.fromfile(ROOT / 'configs/convit/convit-tiny_8xb128_in1k.py')
    config.pop('visualizer')
    config.dump(tmp_path / 'convit.py')
    torch.save({'model': parity.released_state_dict('convit_tiny'), 'epoch': 299}, tmp_path / 'released.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'released.pth'))
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(dict(config.model, init_cfg=init_cfg))
    model.init_weights()
    torch.save(model.state_dict(), tmp_path / 'own.pth')
    few = ('--cfg-options', 'test_dataloader.dataset.indices=2', *NO_WORKERS)
    for name in ('released', 'own'):
        options = ('--work-dir', tmp_path / name, '--out', tmp_path / f'{name}.pkl')
        tool(workplace, 'test.py', tmp_path / 'convit.py', tmp_path / f'{name}.pth', '--mini', *options, *few)
    released, own = (pickle.loads((tmp_path / f'{name}.pkl').read_bytes()) for name in ('released', 'own'))
    assert all(torch.equal(a['pred_score'], b['pred_score']) for a, b in zip(released, own, strict=True))
    assert released[0]['pred_score'].std() > 1e-5


def test_images_without_classes(tool: InProcess, tmp_path: Path) -> None:
    """As the archive of the validation images unpacks."""
    config = ROOT / 'configs/convit/convit-tiny_8xb128_in1k.py'
    assert 'no data for ImageNet at data/imagenet ' in tool.refused(tmp_path, 'train.py', config)
    for split in ('train', 'val'):
        (tmp_path / 'data/imagenet' / split).mkdir(parents=True)
    assert 'The number of subfolders (0) doesn' in tool.error(tmp_path, 'train.py', config)
