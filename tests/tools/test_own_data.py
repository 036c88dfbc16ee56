"""Training on own data: folders of three classes, to predictions on new images."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmdet.apis import DetInferencer
from mmengine.config import Config
from mmseg.apis import MMSegInferencer
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from bioattn_mm.checkpoints import read_checkpoint, write_checkpoint

from ..own_folders import (
    CLASSES,
    MASK_CLASSES,
    NUM_OBJECTS_OF_SCENE,
    draw,
    labels,
    write_coco_folder,
    write_mask_folder,
)
from .random_weights import random_checkpoint
from .running import ROOT, InProcess, last_validation, metrics_of_test
from .small_images import DETECTOR, NO_WORKERS, SMALL

SEEDS = range(50)
NEW_SEEDS = range(500, 510)  # of images that no training has seen
SEGMENTOR = str(ROOT / 'tests/tools/upernet_small.py')


def log_of(work_dir: Path) -> str:
    (log,) = work_dir.glob('*/*.log')
    return log.read_text()


def majority_miou(seeds: range) -> float:
    """mIoU in percent of the most frequent class, predicted everywhere."""
    pixels = sum(np.bincount(labels(seed).ravel(), minlength=256) for seed in seeds)[: len(MASK_CLASSES)]
    return float(100 * pixels.max() / pixels.sum() / len(MASK_CLASSES))


def constant_ap50(ann_file: Path) -> float:
    """Box AP50 in percent of one prediction for all images: of each class its mean box, nine times over the image."""
    truth = COCO(str(ann_file))
    for annotation in truth.anns.values():
        annotation.update(iscrowd=0, area=annotation['bbox'][2] * annotation['bbox'][3])
    predictions = []
    for category in truth.getCatIds():
        boxes = np.array([each['bbox'] for each in truth.loadAnns(truth.getAnnIds(catIds=category))])
        size, centre = boxes[:, 2:].mean(0), (boxes[:, :2] + boxes[:, 2:] / 2).mean(0)
        for offset in np.ndindex(3, 3):
            box = [*(centre - size / 2 + (np.array(offset) - 1) * size / 2), *size]
            predictions += [dict(image_id=i, category_id=category, bbox=box, score=1.0) for i in truth.getImgIds()]
    evaluation = COCOeval(truth, truth.loadRes(predictions), 'bbox')
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return float(100 * evaluation.stats[1])


def test_a_segmentor(tmp_path: Path, tool: InProcess) -> None:
    write_mask_folder(tmp_path / 'scenes', SEEDS)
    write_mask_folder(tmp_path / 'new', NEW_SEEDS)
    before = sorted((tmp_path / 'scenes').rglob('*'))
    options = ('--mini', '--epochs', 3, '--cfg-options', *NO_WORKERS)
    tool(tmp_path, 'train.py', SEGMENTOR, '--data', 'scenes', *options)
    work_dir = tmp_path / 'work_dirs/upernet_small_scenes_mini'
    assert sorted((tmp_path / 'scenes').rglob('*')) == before
    assert 'scenes/images: 5 images drawn for validation with seed 0' in log_of(work_dir)
    assert '3 classes: table, bolt, nut' in log_of(work_dir)
    assert len((work_dir / 'data/val.txt').read_text().split()) == 5

    # The config of the work dir needs nothing more: the same metric again.
    config, checkpoint = str(work_dir / 'upernet_small.py'), str(work_dir / 'iter_69.pth')
    tool(tmp_path, 'test.py', config, checkpoint, '--work-dir', 'again')
    validated = last_validation(work_dir)
    assert metrics_of_test(tmp_path / 'again') == validated
    # The config that the training took does with the data.
    tool(tmp_path, 'test.py', SEGMENTOR, checkpoint, '--mini', '--data', 'scenes', '--work-dir', 'with_data')
    assert metrics_of_test(tmp_path / 'with_data') == validated

    tool(tmp_path, 'test.py', SEGMENTOR, checkpoint, '--mini', '--val-data', 'new', '--work-dir', 'on_new')
    assert metrics_of_test(tmp_path / 'on_new')['mIoU'] > 2 * majority_miou(NEW_SEEDS)

    # mmseg's own inference has the names and colours, too.
    inferencer = MMSegInferencer(config, checkpoint, device='cpu')
    assert tuple(inferencer.model.dataset_meta['classes']) == MASK_CLASSES
    palette = Config.fromfile(config).val_dataloader.dataset.metainfo.palette
    np.testing.assert_array_equal(inferencer.model.dataset_meta['palette'], palette)
    image, truth = draw(NEW_SEEDS[0], NUM_OBJECTS_OF_SCENE)[0], labels(NEW_SEEDS[0])
    sample = inferencer(cv2.cvtColor(image, cv2.COLOR_RGB2BGR), return_datasamples=True)
    correct = sample.pred_sem_seg.data[0].numpy() == truth
    assert correct[truth != 255].mean() > (truth == 0).sum() / (truth != 255).sum()


@pytest.fixture(scope='module')
def detector_of_coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the small detector with COCO's 80 classes and random weights."""
    path = tmp_path_factory.mktemp('coco') / 'coco.pth'
    random_checkpoint(path, DETECTOR)
    return path


@pytest.mark.usefixtures('bfloat16_anywhere')
def test_a_detector_from_weights_of_other_classes(tmp_path: Path, tool: InProcess, detector_of_coco: Path) -> None:
    write_coco_folder(tmp_path / 'parts', SEEDS)
    new = write_coco_folder(tmp_path / 'new', NEW_SEEDS)
    tool(
        tmp_path, 'train.py', DETECTOR, '--data', 'parts', '--mini', '--epochs', 3, '--load-from', detector_of_coco,
        '--cfg-options', *SMALL,
    )  # fmt: skip
    work_dir = tmp_path / 'work_dirs/mask_rcnn_small_parts_mini'
    (left_out,) = re.findall(r'left out, as of another number of classes: (.*)', log_of(work_dir))
    heads = ('bbox_head.fc_cls', 'bbox_head.fc_reg', 'mask_head.conv_logits')
    assert left_out.split(', ') == [f'roi_head.{head}.{kind}' for head in heads for kind in ('weight', 'bias')]
    assert 'size mismatch' not in log_of(work_dir)
    assert len(json.loads((work_dir / 'data/val.json').read_text())['images']) == 5

    def tested(name: str, *amp: str) -> float:
        arguments = ('--mini', '--val-data', 'new', '--work-dir', name, *amp, '--cfg-options', *SMALL)
        tool(tmp_path, 'test.py', DETECTOR, checkpoint, *arguments)
        return 100 * metrics_of_test(tmp_path / name)['coco/bbox_mAP_50']

    (checkpoint,) = work_dir.glob('iter_*.pth')
    assert read_checkpoint(str(checkpoint))['meta']['dataset_meta']['classes'] == CLASSES
    config = work_dir / 'mask_rcnn_small.py'
    ap50, mixed = (tested(name, *amp) for name, amp in (('on_new', ()), ('mixed', ('--amp', 'bfloat16'))))
    assert ap50 > 2 * constant_ap50(new / 'annotations.json') and ap50 > 20
    assert mixed == pytest.approx(ap50, abs=5)  # one detection more or less is worth a point

    inferencer = DetInferencer(str(config), str(checkpoint), device='cpu', show_progress=False)
    assert tuple(inferencer.model.dataset_meta['classes']) == CLASSES
    image, objects = draw(NEW_SEEDS[0])
    (predictions,) = inferencer(cv2.cvtColor(image, cv2.COLOR_RGB2BGR), no_save_vis=True)['predictions']
    best = predictions['labels'][int(np.argmax(predictions['scores']))]
    assert best in {label for label, _ in objects}

    # The same images with other names of the classes are other data.
    annotations = new / 'annotations.json'
    annotations.write_text(annotations.read_text().replace('washer', 'screw'))
    line = tool.error(tmp_path, 'test.py', DETECTOR, checkpoint, '--mini', '--val-data', 'new')
    assert 'was trained on the classes bolt, nut, washer, the data have bolt, nut, screw' in line


@pytest.mark.usefixtures('bfloat16_anywhere')
def test_a_dry_run_writes_nothing(tmp_path: Path, tool: InProcess, detector_of_coco: Path) -> None:
    write_coco_folder(tmp_path / 'parts', SEEDS[:20])
    arguments = (DETECTOR, '--data', 'parts', '--mini', '--epochs', 5, '--load-from', detector_of_coco)
    before = sorted(tmp_path.rglob('*'))
    printed = tool(tmp_path, 'train.py', *arguments, '--dry-run', '--amp', 'bfloat16')
    assert sorted(tmp_path.rglob('*')) == before
    assert printed.startswith('3 classes: bolt, nut, washer\n')
    assert 'coco.pth, but 6 of another number of classes' in printed
    assert re.search(r'iterations +45: 5.0 epochs', printed)


def test_start_from_another_model(tmp_path: Path, tool: InProcess, detector_of_coco: Path) -> None:
    weights = read_checkpoint(str(detector_of_coco))['state_dict']
    name = 'roi_head.bbox_head.fc_cls.weight'
    write_checkpoint({**weights, name: torch.zeros(81, 7)}, tmp_path / 'narrow.pth')
    write_coco_folder(tmp_path / 'parts', SEEDS[:4])
    line = tool.refused(tmp_path, 'train.py', DETECTOR, '--data', 'parts', '--mini', '--load-from', 'narrow.pth')
    assert f'1 of another shape: {name} (file (81, 7), model (4, 64))' in line


BAD_ARGUMENTS = {
    '--reduce-zero-label': '--reduce-zero-label is for own data: name them with',
    '--data parts --epochs 0': '--epochs must be at least 1, got 0',
    '--data parts --reduce-zero-label': '--reduce-zero-label is for label',
    '--data scenes': "no annotations in COCO's format in scenes",
}


@pytest.mark.parametrize(('args', 'message'), BAD_ARGUMENTS.items())
def test_bad_arguments(args: str, message: str, tmp_path: Path, tool: InProcess) -> None:
    write_coco_folder(tmp_path / 'parts', SEEDS[:2])
    write_mask_folder(tmp_path / 'scenes', SEEDS[:2])
    assert tool.refused(tmp_path, 'train.py', DETECTOR, *args.split()).startswith(f'error: {message}')
