"""Classifiers: trained on the miniature ImageNet, tested, drawn, and taken to dense prediction."""

import pickle
import shutil
from pathlib import Path

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

from bioattn_mm.data.class_names import IMAGENET_CLASSES
from bioattn_mm.data.mini.imagenet import write_image

from ..conftest import NUM_TRAIN, NUM_VAL
from .running import ROOT, InProcess, last_validation, metrics_of_test
from .small_images import NO_WORKERS

UPERNET = str(ROOT / 'tests/tools/upernet_small.py')
CHANNELS = Config.fromfile(UPERNET).channels
# Small ones, whose last maps or vectors the head takes: `arch`, the place of their output and its type.
BACKBONES = dict(
    TransNeXt=(dict(embed_dims=CHANNELS, num_heads=(1, 2, 2, 2), depths=(1, 1, 1, 1)), 3, None),  # as UPERNET's
    ConViT=(dict(embed_dims=96, num_layers=12, num_heads=4), 11, 'cls_token'),
    PerViT=(dict(embed_dims=(32, 32, 64, 64), depths=[2] * 4, stem_channels=(32, 32, 32), num_heads=4), 3, None),
    GABViT=(dict(embed_dims=96, num_layers=3, num_heads=3), 2, 'avg_featmap'),
    VARS=(
        dict(block='rvt', embed_dims=[24, 48], depths=[1] * 2, num_heads=[2] * 2, feature_ratio=1),
        1,
        'avg_featmap',
    ),
)
ITERATIONS = 120
CHANCE = 100 / len(IMAGENET_CLASSES)
NUM_VALIDATED = 80


@pytest.fixture(scope='module')
def place(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the miniatures; images of ImageNet are smaller, to load faster, and more to validate on."""
    folder = tmp_path_factory.mktemp('imagenet')
    shutil.copytree(workplace / 'data/mini/imagenet', folder / 'data/mini/imagenet')
    for name in ('ADEChallengeData2016', 'coco'):
        (folder / 'data/mini' / name).symlink_to(workplace / 'data/mini' / name)
    root = folder / 'data/mini/imagenet'
    lines = [write_image(root, 'val', 0, index) for index in range(NUM_VAL, NUM_VALIDATED)]
    with open(root / 'meta/val.txt', 'a') as file:
        file.write('\n'.join(lines) + '\n')
    for path in root.rglob('*.JPEG'):
        image = Image.open(path)
        image.resize([round(side * 64 / min(image.size)) for side in image.size]).save(path, quality=95)
    return folder


def small_config(path: Path, backbone: str) -> Path:
    """Write the config of a small classifier of ImageNet's 1000 classes."""
    config = Config.fromfile(ROOT / 'configs/_base_/recipes/in1k.py')
    arch, place, out_type = BACKBONES[backbone]
    config.model.backbone = dict(type=f'bioattn_mm.{backbone}', arch=arch, out_indices=(place,))
    if out_type:
        config.model.neck, config.model.backbone.out_type = None, out_type
    config.model.head.in_channels = np.ravel(arch['embed_dims'])[-1].item()
    config.dump(path)
    return path


def of_ten_classes(path: Path) -> Path:
    """Change a config to the classes that are drawn: so the network need not learn that the others do not occur."""
    config = Config.fromfile(path)
    wnids = sorted(wnid for wnid, _ in IMAGENET_CLASSES.values())
    config.model.head.num_classes = config.model.data_preprocessor.num_classes = len(wnids)
    for split in ('train', 'val', 'test'):
        dataset = config[f'{split}_dataloader'].dataset
        folder = dataset.pop('split')
        dataset.update(data_prefix=folder, metainfo=dict(classes=wnids))
    config.dump(path)
    return path


def short(iterations: int) -> list[str]:
    """Options for a miniature run of fewer iterations, at a rate for narrow networks."""
    warm_up = iterations // 10
    return [
        f'train_cfg.max_iters={iterations}', f'train_cfg.val_interval={iterations}',
        f'default_hooks.checkpoint.interval={iterations}', 'default_hooks.checkpoint.save_best=None',
        f'param_scheduler.0.end={warm_up}', f'param_scheduler.1.begin={warm_up}',
        f'param_scheduler.1.end={iterations}',
        'optim_wrapper.optimizer.lr=2e-3', 'train_dataloader.dataset.pipeline.1.crop_ratio_range=(0.8,1.0)',
    ]  # fmt: skip


# The one of several stages; the others are in `make test-all`.
MARKS = {name: pytest.mark.slow if name == 'TransNeXt' else pytest.mark.every_config for name in BACKBONES}


@pytest.mark.parametrize('backbone', [pytest.param(name, marks=mark) for name, mark in MARKS.items()])
def test_every_system_learns(backbone: str, place: Path, tool: InProcess, tmp_path: Path) -> None:
    """To tell images apart that it has not seen."""
    config = of_ten_classes(small_config(tmp_path / f'{backbone}.py', backbone))
    tool(place, 'train.py', config, '--mini', '--work-dir', tmp_path / 'run', '--cfg-options', *short(ITERATIONS))
    assert last_validation(tmp_path / 'run')['accuracy/top1'] >= 2.5 * CHANCE


@pytest.fixture
def trained(place: Path, tool: InProcess) -> Path:
    """The work dir of a miniature run of a small TransNeXt with an average of its weights, one for all tests."""
    folder = place / 'trained'
    if not folder.exists():
        folder.mkdir()
        config = Config.fromfile(small_config(folder / 'in1k.py', 'TransNeXt'))
        config.custom_hooks.append(dict(type='bioattn_mm.ShardableEMAHook', momentum=1e-4))
        config.dump(folder / 'in1k.py')
        options = ('--cfg-options', *short(30), *NO_WORKERS)
        tool(place, 'train.py', folder / 'in1k.py', '--mini', '--work-dir', folder, *options)
    return folder


def test_what_was_validated_is_tested_written_and_drawn(trained, place: Path, tool: InProcess, tmp_path) -> None:
    arguments = ('test.py', trained / 'in1k.py', trained / 'iter_30.pth', '--mini')
    tool(place, *arguments, '--work-dir', tmp_path / 'test', '--out', tmp_path / 'out.pkl')
    metrics = metrics_of_test(tmp_path / 'test')
    # The average of the weights was validated, is in the checkpoint, and is tested.
    assert metrics == last_validation(trained)
    predictions = pickle.loads((tmp_path / 'out.pkl').read_bytes())
    right = [prediction['pred_label'].item() == prediction['gt_label'].item() for prediction in predictions]
    assert len(right) == NUM_VALIDATED and 100 * np.mean(right) == pytest.approx(metrics['accuracy/top1'])

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


def test_fraction(place: Path, tool: InProcess, tmp_path: Path) -> None:
    config = small_config(tmp_path / 'in1k.py', 'TransNeXt')
    printed = tool(
        place, 'train.py', config, '--dry-run', '--fraction', '0.2', '--cfg-options',
        *(f'{split}_dataloader.dataset.data_root=data/mini/imagenet' for split in ('train', 'val', 'test')),
        *NO_WORKERS, 'train_dataloader.batch_size=8', 'val_dataloader.batch_size=1',
    )  # fmt: skip
    number = round(0.2 * NUM_TRAIN / len(IMAGENET_CLASSES)) * len(IMAGENET_CLASSES)
    assert f' 8 of {number}: ' in printed
    assert f' 1500 epochs of {number // 8}\n' in printed


def test_images_without_classes(place: Path, tool: InProcess, tmp_path: Path) -> None:
    """As the archive of the validation images unpacks."""
    config = small_config(tmp_path / 'in1k.py', 'TransNeXt')
    for split in ('train', 'val'):
        (tmp_path / 'data/imagenet' / split).mkdir(parents=True)
    line = tool.error(tmp_path, 'train.py', config)
    assert 'The number of subfolders (0) doesn' in line
    shutil.rmtree(tmp_path / 'data')
    line = tool.refused(tmp_path, 'train.py', config)
    assert 'no data for ImageNet at data/imagenet ' in line
