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
from PIL import Image

from bioattn_mm.checkpoints import read_checkpoint, read_state_dict

from ..own_folders import (
    CLASSES,
    MASK_CLASSES,
    NUM_OBJECTS_OF_SCENE,
    convert_images,
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
    assert metrics_of_test(tmp_path / 'again') == last_validation(work_dir)
    tool(tmp_path, 'test.py', SEGMENTOR, checkpoint, '--mini', '--val-data', 'new', '--work-dir', 'on_new')
    assert metrics_of_test(tmp_path / 'on_new')['mIoU'] > 50  # the most frequent class alone would give less than 30

    # mmseg's own inference has the names and colours, too.
    inferencer = MMSegInferencer(config, checkpoint, device='cpu')
    assert tuple(inferencer.model.dataset_meta['classes']) == MASK_CLASSES
    palette = Config.fromfile(config).val_dataloader.dataset.metainfo.palette
    np.testing.assert_array_equal(inferencer.model.dataset_meta['palette'], palette)
    image = draw(NEW_SEEDS[0], NUM_OBJECTS_OF_SCENE)[0]
    sample = inferencer(cv2.cvtColor(image, cv2.COLOR_RGB2BGR), return_datasamples=True)
    assert (sample.pred_sem_seg.data[0].numpy() == labels(NEW_SEEDS[0])).mean() > 0.7


@pytest.mark.usefixtures('bfloat16_anywhere')
def test_a_detector_from_weights_of_other_classes(tmp_path: Path, tool: InProcess) -> None:
    write_coco_folder(tmp_path / 'parts', SEEDS)
    new = write_coco_folder(tmp_path / 'new', NEW_SEEDS)
    random_checkpoint(tmp_path / 'coco.pth', DETECTOR)
    start = (DETECTOR, '--data', 'parts', '--mini', '--epochs', 3, '--load-from', 'coco.pth')
    before = sorted(tmp_path.rglob('*'))
    printed = tool(tmp_path, 'train.py', *start, '--dry-run', '--amp', 'bfloat16')
    assert sorted(tmp_path.rglob('*')) == before
    assert 'coco.pth, but 6 of another number of classes' in printed
    assert re.search(r'iterations +69: 3\.\d epochs', printed)

    tool(tmp_path, 'train.py', *start, '--cfg-options', *SMALL)
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
    ap50, mixed = (tested(name, *amp) for name, amp in (('on_new', ()), ('mixed', ('--amp', 'bfloat16'))))
    assert ap50 > 20  # the mean box of each class, all over the image, would give less than 10
    assert mixed == pytest.approx(ap50, abs=5)  # one detection more or less is worth a point

    config = str(work_dir / 'mask_rcnn_small.py')
    inferencer = DetInferencer(config, str(checkpoint), device='cpu', show_progress=False)
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


def write_grey(path: Path, image: np.ndarray) -> None:
    cv2.imwrite(str(path), image[..., 0].astype(np.uint16) * 3 + 40000)


def test_a_detector_of_one_channel_of_16_bits(tmp_path: Path, tool: InProcess) -> None:
    convert_images(write_coco_folder(tmp_path / 'parts', range(8)), write_grey, '.png')
    random_checkpoint(tmp_path / 'rgb.pth', DETECTOR)
    start = ('--data', 'parts', '--mini', '--load-from', 'rgb.pth')
    few = ('train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2')
    tool(tmp_path, 'train.py', DETECTOR, *start, '--cfg-options', *SMALL, *few)
    work_dir = tmp_path / 'work_dirs/mask_rcnn_small_parts_mini'
    config, checkpoint = work_dir / 'mask_rcnn_small.py', work_dir / 'iter_2.pth'
    saved = Config.fromfile(config)
    assert saved.model.backbone.in_channels == 1 and 40000 < saved.model.data_preprocessor.mean[0] < 41000
    # It begins with the weights of an RGB model; two steps change them little.
    name = 'backbone.stages.0.patch_embed.proj.weight'
    rgb, weight = (read_state_dict(str(path))[name] for path in (tmp_path / 'rgb.pth', checkpoint))
    torch.testing.assert_close(weight, rgb.sum(1, keepdim=True), atol=0.005, rtol=0)
    assert weight.std() > 0.03

    tool(tmp_path, 'test.py', config, checkpoint, '--work-dir', 'tested', '--show-dir', 'shown')
    assert 'coco/bbox_mAP' in metrics_of_test(tmp_path / 'tested')
    (drawn, *_) = (tmp_path / 'shown').rglob('vis_image/*.png')
    assert np.asarray(Image.open(drawn)).std() > 10
    tool(tmp_path, 'predict.py', config, checkpoint, 'parts/images', '--out', 'predicted')
    assert len(list((tmp_path / 'predicted/overlays').iterdir())) == 8


BAD_ARGUMENTS = {
    '--data parts --mini --load-from narrow.pth': '.*1 of another shape: roi_head.bbox_head.fc_cls.weight',
    '--reduce-zero-label': '--reduce-zero-label is for own data: name them with',
    '--data parts --epochs 0': '--epochs must be at least 1, got 0',
    '--data parts --reduce-zero-label': '--reduce-zero-label is for label',
    '--data scenes': "no annotations in COCO's format in scenes",
}


@pytest.mark.parametrize(('args', 'message'), BAD_ARGUMENTS.items())
def test_bad_arguments(args: str, message: str, tmp_path: Path, tool: InProcess) -> None:
    write_coco_folder(tmp_path / 'parts', SEEDS[:2])
    write_mask_folder(tmp_path / 'scenes', SEEDS[:2])
    random_checkpoint(tmp_path / 'narrow.pth', DETECTOR)
    checkpoint = torch.load(tmp_path / 'narrow.pth')
    checkpoint['state_dict']['roi_head.bbox_head.fc_cls.weight'] = torch.zeros(81, 7)
    torch.save(checkpoint, tmp_path / 'narrow.pth')
    assert re.match(f'error: {message}', tool.refused(tmp_path, 'train.py', DETECTOR, *args.split()))
