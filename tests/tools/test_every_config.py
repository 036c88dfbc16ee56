"""Every config trains, is tested, and comes back from its checkpoint."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config

from .every_config import CLASSIFIERS, CONFIGS
from .running import ROOT, InProcess, last_validation, metrics_of_test, run_forked, scalars
from .small_images import NO_WORKERS, small_training

# Of each system, and of each framework that the other tests of tools leave out: TransNeXt, DINO and mmdet's
# Mask2Former are in test_real_run.py, Mask R-CNN in test_train_and_test.py. `make test-all` runs the rest.
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


def marked(names: list[str]) -> list:
    marks = {True: pytest.mark.slow, False: pytest.mark.every_config}
    return [pytest.param(name, marks=marks[name in REPRESENTATIVES]) for name in names]


def options_of_two_images(mode: str, name: str) -> list[str]:
    """Options that make a 'train', 'val' or 'test' dataloader, and its metric, read the same two training images."""
    dataset = f'{mode}_dataloader.dataset'
    if re.search('mask2former.*(coco|_instance|_panoptic)$', name):
        return options_of_two_segmented(mode, name)
    if 'ade20k' in name:
        folders = ('img_path=images/training', 'seg_map_path=annotations/training')
        options = [f'{dataset}.indices=2', *(f'{dataset}.data_prefix.{folder}' for folder in folders)]
        return [*options, *(small_training(name) if mode == 'train' else [f'{dataset}.pipeline.1.scale=(256,64)'])]
    options = [f'{dataset}.ann_file=annotations/two_images.json', f'{dataset}.data_prefix.img=train2017/']
    if mode != 'train':
        evaluated = f'{mode}_evaluator.ann_file=data/mini/coco/annotations/two_images.json'
        return [*options, evaluated, f'{dataset}.pipeline.1.scale=(160,120)']
    # Those that train at several scales choose one of a list.
    steps = ['2.scale']
    if 'dino' in name or (name.startswith('gab/') and 'mask_rcnn_swin' in name):
        steps = [f'3.transforms.{place}.scales' for place in ('0.0', '1.0', '1.2')]
    sizes = dict(scale='(160,120)', scales='[(160,120)]')
    return [*options, *(f'{dataset}.pipeline.{step}={sizes[step.split(".")[-1]]}' for step in steps)]


def options_of_two_segmented(mode: str, name: str) -> list[str]:
    """The same for Mask2Former in mmdet, of instances or panoptic, on COCO or ADE20K."""
    dataset, evaluator = f'{mode}_dataloader.dataset', f'{mode}_evaluator'
    kind = 'panoptic' if 'panoptic' in name else 'instance'
    root, file = 'data/mini/ADEChallengeData2016', f'two_{kind}.json'
    images, maps = 'images/training/', 'ade20k_panoptic_train/'
    if 'coco' in name:
        root, file = 'data/mini/coco', f'annotations/{"panoptic_two" if kind == "panoptic" else "two_images"}.json'
        images, maps = 'train2017/', 'annotations/panoptic_train2017/'
    options = [f'{dataset}.ann_file={file}', f'{dataset}.data_prefix.img={images}']
    if kind == 'panoptic':
        options.append(f'{dataset}.data_prefix.seg={maps}')
    if mode == 'train':
        return [*options, *small_training(name)]
    options.append(f'{dataset}.pipeline.1.scale=(96,96)')
    if name.endswith('coco_panoptic'):
        options.append(f'{evaluator}.1.ann_file=data/mini/coco/annotations/two_images.json')
        evaluator += '.0'
    if kind == 'panoptic':
        options.append(f'{evaluator}.seg_prefix={root}/{maps}')
    return [*options, f'{evaluator}.ann_file={root}/{file}']


@pytest.fixture(scope='module')
def two_images(workplace: Path) -> None:
    """The annotation files of two images of the miniature COCO and of the miniature ADE20K."""
    coco, ade20k = workplace / 'data/mini/coco/annotations', workplace / 'data/mini/ADEChallengeData2016'
    for path, file in (
        (coco / 'instances_train2017.json', 'two_images.json'),
        (coco / 'panoptic_train2017.json', 'panoptic_two.json'),
        (ade20k / 'ade20k_instance_train.json', 'two_instance.json'),
        (ade20k / 'ade20k_panoptic_train.json', 'two_panoptic.json'),
    ):
        content = json.loads(path.read_text())
        content['images'] = content['images'][:2]
        ids = [image['id'] for image in content['images']]
        content['annotations'] = [a for a in content['annotations'] if a['image_id'] in ids]
        (path.parent / file).write_text(json.dumps(content))


@pytest.mark.usefixtures('two_images')
@pytest.mark.parametrize('name', marked(CONFIGS))
def test_every_config_learns_and_comes_back(name: str, workplace: Path, tool: InProcess) -> None:
    """A few steps on two images, whose metric is no zero; what is saved gives the same metric again."""
    config, work_dir = f'configs/{name}.py', workplace / name
    iterations, warmup, options = 14, 20, []
    if 'dino' in name:  # learns later than the others: more steps, a shorter warm-up, a higher rate
        iterations, warmup, options = 40, 3, ['optim_wrapper.optimizer.lr=5e-4']
    model = next((options for pattern, options in MODEL.items() if re.search(pattern, name)), ())
    # As a user trains it; UperNet and Mask R-CNN are in test_train_and_test.py, DINO is below.
    train = run_forked if 'mask2former' in name else tool
    train(
        workplace, 'train.py', config, '--mini', '--work-dir', name,
        '--cfg-options', f'train_cfg.max_iters={iterations}', 'default_hooks.logger.interval=1',
        f'param_scheduler.0.end={warmup}', f'param_scheduler.1.begin={warmup}',
        *options_of_two_images('train', name), *options_of_two_images('val', name),
        'default_hooks.checkpoint.save_optimizer=False', 'default_hooks.checkpoint.save_best=None',
        *model, *options,
    )  # fmt: skip
    losses = [line['loss'] for line in scalars(work_dir) if 'loss' in line]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-3:]) < 0.95 * np.mean(losses[:3])

    tool(
        workplace, 'test.py', config, f'{name}/iter_{iterations}.pth', '--mini', '--work-dir', f'{name}/tested',
        '--cfg-options', *options_of_two_images('test', name), *NO_WORKERS, *model,
    )  # fmt: skip
    tested = metrics_of_test(work_dir / 'tested')
    assert tested == last_validation(work_dir)
    # Equal zeros would say nothing; mmdet's Mask2Former needs more steps for more (test_panoptic.py has them).
    if not re.search('mask2former.*(coco|_instance|_panoptic)$', name):
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


@pytest.mark.every_config
def test_mini_dino_learns(workplace: Path, tool: InProcess) -> None:
    """The queries and the schedule that `--mini` gives DINO let it find objects in images that it has not seen."""
    config = str(ROOT / 'tests/tools/dino_small.py')
    # A narrow model needs a higher rate.
    tool(
        workplace, 'train.py', config, '--mini', '--work-dir', 'dino',
        '--cfg-options', 'optim_wrapper.optimizer.lr=1e-3', 'train_cfg.val_interval=200',
    )  # fmt: skip
    assert last_validation(workplace / 'dino')['coco/bbox_mAP_50'] > 0.03
