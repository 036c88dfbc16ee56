"""Classifiers: trained on the miniature ImageNet, tested, drawn, and taken to dense prediction."""

import pickle
import shutil
from pathlib import Path

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from .. import parity
from ..conftest import NUM_VAL
from .running import ROOT, InProcess, last_validation, metrics_of_test
from .small_images import NO_WORKERS

UPERNET = str(ROOT / 'tests/tools/upernet_small.py')
# A small classifier with the backbone of UPERNET; an average of its weights is validated.
CONFIG = f"""
_base_ = '{ROOT}/configs/_base_/recipes/in1k.py'
arch = dict(embed_dims=(24, 48, 48, 48), num_heads=(1, 2, 2, 2), depths=(1, 1, 1, 1))
model = dict(backbone=dict(type='bioattn_mm.TransNeXt', arch=arch, out_indices=(3,)), head=dict(in_channels=48))
custom_hooks = [*_base_.custom_hooks, dict(type='bioattn_mm.ShardableEMAHook', momentum=1e-4)]
"""


@pytest.fixture(scope='module')
def place(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config and the miniatures; images of ImageNet are smaller, to load faster."""
    folder = tmp_path_factory.mktemp('imagenet')
    (folder / 'in1k.py').write_text(CONFIG)
    shutil.copytree(workplace / 'data/mini/imagenet', folder / 'data/mini/imagenet')
    for name in ('ADEChallengeData2016', 'coco'):
        (folder / 'data/mini' / name).symlink_to(workplace / 'data/mini' / name)
    for path in (folder / 'data/mini/imagenet').rglob('*.JPEG'):
        image = Image.open(path)
        image.resize([round(side * 64 / min(image.size)) for side in image.size]).save(path, quality=95)
    return folder


@pytest.fixture
def trained(place: Path, tool: InProcess) -> Path:
    """The work dir of a short miniature run, one for all tests."""
    folder = place / 'trained'
    if not folder.exists():
        tool(
            place, 'train.py', 'in1k.py', '--mini', '--work-dir', 'trained', '--cfg-options',
            'train_cfg.max_iters=30', 'train_cfg.val_interval=30', 'default_hooks.checkpoint.interval=30',
            'param_scheduler.0.end=3', 'param_scheduler.1.begin=3', 'param_scheduler.1.end=30',
            'optim_wrapper.optimizer.lr=2e-3', *NO_WORKERS,
        )  # fmt: skip
    return folder


def test_what_was_validated_is_tested_written_and_drawn(trained, place: Path, tool: InProcess, tmp_path) -> None:
    arguments = ('test.py', 'in1k.py', trained / 'iter_30.pth', '--mini')
    tool(place, *arguments, '--work-dir', tmp_path / 'test', '--out', tmp_path / 'out.pkl')
    metrics = metrics_of_test(tmp_path / 'test')
    # The average of the weights was validated, is in the checkpoint, and is tested.
    assert metrics == last_validation(trained)
    predictions = pickle.loads((tmp_path / 'out.pkl').read_bytes())
    right = [prediction['pred_label'].item() == prediction['gt_label'].item() for prediction in predictions]
    assert len(right) == NUM_VAL and 100 * np.mean(right) == pytest.approx(metrics['accuracy/top1'])

    tool(
        place, *arguments, '--tta', '--out', tmp_path / 'flipped.pkl', '--show-dir', tmp_path / 'drawn',
        '--work-dir', tmp_path / 'tta', '--cfg-options', 'test_dataloader.dataset.indices=4',
    )  # fmt: skip
    flipped = pickle.loads((tmp_path / 'flipped.pkl').read_bytes())
    assert all(0 < (a['pred_score'] - b['pred_score']).abs().max() < 1 for a, b in zip(predictions, flipped))
    drawn = [path for path in (tmp_path / 'drawn').rglob('*.png') if path.name != 'predictions.png']
    assert len(drawn) == len(flipped) == 4 and (tmp_path / 'drawn/predictions.png').exists()
    for path in drawn:
        (source,) = place.glob(f'data/mini/imagenet/val/*/{path.stem.rpartition("_")[0]}.JPEG')
        image, drawing = mmcv.imread(str(source)), mmcv.imread(str(path))
        lower = [pixels[len(pixels) // 2 :].mean((0, 1)) for pixels in (image, drawing)]
        assert np.abs(lower[0] - lower[1]).max() < 3  # no text there, and the colours are right


def test_from_pre_training_to_a_segmentor(trained: Path, place: Path, tool: InProcess, tmp_path: Path) -> None:
    """The checkpoint is what `init_cfg` takes; with --mini, too, which starts from random weights by itself."""
    checkpoint = trained / 'iter_30.pth'
    tool(
        place, 'train.py', UPERNET, '--mini', '--work-dir', tmp_path, '--cfg-options',
        f'model.backbone.init_cfg.checkpoint={checkpoint}', 'optim_wrapper.optimizer.lr=0', 'train_cfg.max_iters=1',
        'train_cfg.val_begin=1000', 'default_hooks.checkpoint.interval=1',
    )  # fmt: skip
    pretrained = torch.load(checkpoint, weights_only=False)['state_dict']
    trained_on = torch.load(tmp_path / 'iter_1.pth', weights_only=False)['state_dict']
    names = [name for name in trained_on if name.startswith('backbone.')]
    assert names == [name for name in pretrained if name.startswith('backbone.')]
    for name in names:
        torch.testing.assert_close(trained_on[name], pretrained[name])
    (log,) = tmp_path.glob('*/*.log')
    line = f'TransNeXt: loaded {checkpoint}; {len(names)} entries used, not used: head.* (2 entries)'
    assert log.read_text().count(line) == 1


def test_a_file_of_the_authors(place: Path, tool: InProcess, tmp_path: Path) -> None:
    """It is tested as the model is that starts from it."""
    config = ROOT / 'configs/convit/convit-tiny_8xb128_in1k.py'
    torch.save({'model': parity.released_state_dict('convit_tiny'), 'epoch': 299}, tmp_path / 'released.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'released.pth'))
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(dict(Config.fromfile(config).model, init_cfg=init_cfg))
    model.init_weights()
    torch.save(model.state_dict(), tmp_path / 'own.pth')
    few = ('--cfg-options', 'test_dataloader.dataset.indices=2', *NO_WORKERS)
    for name in ('released', 'own'):
        options = ('--work-dir', tmp_path / name, '--out', tmp_path / f'{name}.pkl')
        tool(place, 'test.py', config, tmp_path / f'{name}.pth', '--mini', *options, *few)
    released, own = (pickle.loads((tmp_path / f'{name}.pkl').read_bytes()) for name in ('released', 'own'))
    assert all(torch.equal(a['pred_score'], b['pred_score']) for a, b in zip(released, own, strict=True))
    assert released[0]['pred_score'].std() > 1e-5


def test_images_without_classes(place: Path, tool: InProcess, tmp_path: Path) -> None:
    """As the archive of the validation images unpacks."""
    config = place / 'in1k.py'
    assert 'no data for ImageNet at data/imagenet ' in tool.refused(tmp_path, 'train.py', config)
    for split in ('train', 'val'):
        (tmp_path / 'data/imagenet' / split).mkdir(parents=True)
    assert 'The number of subfolders (0) doesn' in tool.error(tmp_path, 'train.py', config)
