"""Every config trains, is tested, and comes back from its checkpoint; and it starts at full size."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config

from bioattn_mm.data.mini import make_mini_datasets
from bioattn_mm.training.config.model_check import model_of

from .. import parity
from .running import ROOT, InProcess, last_validation, make_user_folder, metrics_of_test, run_forked, scalars
from .small_images import NO_WORKERS, small_training

# Classifiers on data sets that `--mini` has no miniature of.
NO_MINIATURE = re.compile('_(in100|cifar100|pet|caltech101|cars|dogs|pacs)$')
NAMES = sorted(
    str(path.relative_to(ROOT / 'configs').with_suffix(''))
    for path in (*(ROOT / 'configs').glob('[!_]*/*.py'), *(ROOT / 'configs').glob('*/ablations/*.py'))
    if path.parent.name != 'deploy' and not NO_MINIATURE.search(path.stem)
)
CLASSIFIERS = [name for name in NAMES if '_in1k' in name]
CONFIGS = [name for name in NAMES if name not in CLASSIFIERS]
# Of each system, and of each framework that the other tests of tools leave out: TransNeXt, DINO and mmdet's
# Mask2Former are in test_train_and_test.py, Mask R-CNN in test_own_data.py. `make test-all` runs the rest.
REPRESENTATIVES = (
    'convit/upernet_tiny_ade20k',
    'pervit/upernet_tiny_ade20k',
    'gab/upernet_vit_small_ade20k',
    'vars/mask2former_rvt_tiny_vars_sd_ade20k',
    'transnext/transnext-micro_8xb128_in1k',
)
# So few steps may leave every score of a detector below its threshold, and the metric empty. The heads of UperNet and
# Mask2Former are mmseg's, and would take most of the time.
MODEL = {
    'mask_rcnn': ['model.test_cfg.rcnn.score_thr=0.0'],
    'retinanet': ['model.test_cfg.score_thr=0.0'],
    'panoptic': ['model.test_cfg.object_mask_thr=0.0', 'model.test_cfg.iou_thr=0.0'],
    'mask2former.*_ade20k$': ['model.decode_head.transformer_decoder.num_layers=3'],
    'upernet': ['model.decode_head.channels=96', 'model.auxiliary_head.channels=48'],
}
MASK2FORMER_OF_MMDET = re.compile('mask2former.*(coco|_instance|_panoptic)$')


def marked(names: list[str]) -> list:
    marks = {True: pytest.mark.slow, False: pytest.mark.every_config}
    return [pytest.param(name, marks=marks[name in REPRESENTATIVES]) for name in names]


def small_images(mode: str, name: str) -> Sequence[str]:
    """Options that make the images of a 'train', 'val' or 'test' dataloader small."""
    pipeline = f'{mode}_dataloader.dataset.pipeline'
    if mode != 'train':
        scale = '(96,96)' if MASK2FORMER_OF_MMDET.search(name) else '(256,64)' if 'ade20k' in name else '(160,120)'
        return [f'{pipeline}.1.scale={scale}']
    if 'ade20k' in name or 'mask2former' in name:
        return small_training(name)
    # Those that train at several scales choose one of a list.
    if 'dino' in name or re.match('gab/.*mask_rcnn_swin', name):
        return [f'{pipeline}.3.transforms.{place}.scales=[(160,120)]' for place in ('0.0', '1.0', '1.2')]
    return [f'{pipeline}.2.scale=(160,120)']


@pytest.fixture(scope='module')
def two_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configs and miniatures of two training images, which are those for validation, too."""
    folder = tmp_path_factory.mktemp('two_images')
    (folder / 'configs').symlink_to(ROOT / 'configs')
    make_mini_datasets(folder / 'data/mini', num_train=2, num_val=2, progress=False, names=('ade20k', 'coco'))
    for path in [*folder.glob('data/**/*train*')]:
        other = path.with_name(path.name.replace('training', 'validation').replace('train', 'val'))
        if other.exists():
            other.rename(other.with_name(f'unused_{other.name}'))
            other.symlink_to(path)
    return folder


@pytest.mark.parametrize('name', marked(CONFIGS))
def test_every_config_learns_and_comes_back(name: str, two_images: Path, tool: InProcess) -> None:
    """A few steps on two images, whose metric is no zero; what is saved gives the same metric again."""
    config, work_dir = f'configs/{name}.py', two_images / name
    iterations, warmup, options = 14, 20, []
    if 'dino' in name:  # learns later than the others: more steps, a shorter warm-up, a higher rate
        iterations, warmup, options = 40, 3, ['optim_wrapper.optimizer.lr=5e-4']
    model = next((options for pattern, options in MODEL.items() if re.search(pattern, name)), ())
    # As a user trains it; UperNet is in test_train_and_test.py, Mask R-CNN in test_own_data.py.
    train = run_forked if 'mask2former' in name else tool
    train(
        two_images, 'train.py', config, '--mini', '--work-dir', name,
        '--cfg-options', f'train_cfg.max_iters={iterations}', 'default_hooks.logger.interval=1',
        f'param_scheduler.0.end={warmup}', f'param_scheduler.1.begin={warmup}',
        *small_images('train', name), *small_images('val', name),
        'default_hooks.checkpoint.save_optimizer=False', 'default_hooks.checkpoint.save_best=None',
        *model, *options,
    )  # fmt: skip
    losses = [line['loss'] for line in scalars(work_dir) if 'loss' in line]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-3:]) < 0.95 * np.mean(losses[:3])

    tool(
        two_images, 'test.py', config, f'{name}/iter_{iterations}.pth', '--mini', '--work-dir', f'{name}/tested',
        '--cfg-options', *small_images('test', name), *NO_WORKERS, *model,
    )  # fmt: skip
    tested = metrics_of_test(work_dir / 'tested')
    assert tested == last_validation(work_dir)
    # Equal zeros would say nothing; mmdet's Mask2Former needs more steps for more (test_train_and_test.py has them).
    if not MASK2FORMER_OF_MMDET.search(name):
        assert tested['mIoU' if 'ade20k' in name else 'coco/bbox_mAP_50'] > 0
    shutil.rmtree(work_dir)


@pytest.mark.parametrize('name', marked(CLASSIFIERS))
def test_every_classifier_learns_and_comes_back(name: str, workplace: Path, tool: InProcess) -> None:
    """In a few steps it learns that there are 10 of 1000 classes; what is saved gives the same metric again."""
    config, work_dir = f'configs/{name}.py', workplace / name
    # Where averaged weights are tested, they are to be recent ones.
    hooks = [hook.type for hook in Config.fromfile(ROOT / config).custom_hooks]
    options = ['custom_hooks.1.momentum=0.5'] if 'bioattn_mm.ShardableEMAHook' in hooks else []
    iterations = 12 if 'without-cpe' in name else 8  # without position encoding it learns later than the others
    tool(
        workplace, 'train.py', config, '--mini', '--work-dir', name,
        '--cfg-options', *options, 'optim_wrapper.optimizer.lr=1e-3', f'train_cfg.max_iters={iterations}',
        f'train_cfg.val_interval={iterations}', 'default_hooks.logger.interval=1', 'param_scheduler.0.end=2',
        'param_scheduler.1.begin=2', f'default_hooks.checkpoint.interval={iterations}',
        'default_hooks.checkpoint.save_optimizer=False', 'default_hooks.checkpoint.save_best=None',
    )  # fmt: skip
    losses = [line['loss'] for line in scalars(work_dir) if 'loss' in line]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-3:]) < 0.9 * losses[0]

    tool(workplace, 'test.py', config, f'{name}/iter_{iterations}.pth', '--mini', '--work-dir', f'{name}/tested')
    tested = metrics_of_test(work_dir / 'tested')
    assert tested == last_validation(work_dir) and tested['accuracy/top5'] > 0
    shutil.rmtree(work_dir)


@pytest.mark.dry_run
@pytest.mark.parametrize('name', CONFIGS)
def test_every_config_starts_at_full_size(name: str, workplace: Path, tmp_path: Path) -> None:
    """It takes its first training step and predicts for its first validation image; the weights are made up."""
    config, weights = Config.fromfile(ROOT / f'configs/{name}.py'), tmp_path / 'weights.pth'
    prefix = config.model.backbone.init_cfg.get('prefix', '')  # of ConvNeXt's, a whole classifier of mmpretrain's
    made_up = {
        prefix + key: (parity.fill_value(key, value.shape) * value.is_floating_point()).to(
            value.dtype
        )  # indices are 0
        for key, value in model_of(config).backbone.state_dict().items()
    }
    torch.save(dict(state_dict=made_up), weights)
    options = [f'model.backbone.init_cfg.checkpoint={weights}']
    if 'in1k' in name:  # 128 images a process are for GPUs; some start from a whole classifier
        options += ['model.init_cfg=None', 'train_dataloader.batch_size=2']
    if re.search(r'mask2former_\w+_coco', name):  # each image, 1024 x 1024 pixels, takes gigabytes
        options += ['train_dataloader.batch_size=1']
    user, call = make_user_folder(tmp_path, workplace), ('train.py', f'configs/{name}.py', '--dry-run')
    printed = run_forked(user, *call, '--cfg-options', *options)
    told = dict(re.findall(r'^(\w[\w ]*?) {2,}(\S.*)$', printed, flags=re.MULTILINE))
    assert told['weights'].startswith(f'{weights}; ')
    print(f'\n{name}: ' + '; '.join(f'{column} {told[column]}' for column in ('first step', 'peak memory')))
