"""Own data, from folders of three classes to predictions on new images, and the commands of docs/own_data.md."""

import itertools
import json
import re
import shlex
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmdet.apis import DetInferencer
from mmengine.config import Config
from mmseg.apis import MMSegInferencer
from PIL import Image
from torch.nn.modules.module import register_module_forward_hook

from bioattn_mm import Predictor
from bioattn_mm.checkpoints import read_checkpoint, read_state_dict
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.mini import make_mini

from ..docs.blocks import read_blocks
from ..needs import needs
from ..own_folders import (
    CLASSES,
    MASK_CLASSES,
    convert_images,
    write_coco_folder,
    write_images,
    write_mask_folder,
    write_voc_folder,
    write_yolo_folder,
)
from .random_weights import random_checkpoint
from .running import ROOT, InProcess, last_validation, metrics_of_test
from .small_images import DETECTOR, NO_WORKERS, SMALL

SEEDS = range(50)
NEW_SEEDS = range(500, 530)  # of images that no training has seen
SEGMENTOR = str(ROOT / 'tests/tools/upernet_small.py')


def test_a_segmentor(tmp_path: Path, tool: InProcess) -> None:
    write_mask_folder(tmp_path / 'scenes', SEEDS)
    write_mask_folder(tmp_path / 'new', NEW_SEEDS)
    before = sorted((tmp_path / 'scenes').rglob('*'))
    options = ('--mini', '--epochs', 3, '--cfg-options', *NO_WORKERS)
    tool(tmp_path, 'train.py', SEGMENTOR, '--data', 'scenes', *options)
    work_dir = tmp_path / 'work_dirs/upernet_small_scenes_mini'
    assert sorted((tmp_path / 'scenes').rglob('*')) == before
    log = next(work_dir.glob('*/*.log')).read_text()
    assert 'scenes/images: 5 images drawn for validation with seed 0' in log and '3 classes: table, bolt, nut' in log
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


@pytest.mark.usefixtures('bfloat16_anywhere')
def test_a_detector_from_weights_of_other_classes(tmp_path: Path, tool: InProcess) -> None:
    write_coco_folder(tmp_path / 'parts', SEEDS)
    new = write_coco_folder(tmp_path / 'new', NEW_SEEDS)
    random_checkpoint(tmp_path / 'coco.pth', DETECTOR)
    start = (DETECTOR, '--data', 'parts', '--mini', '--epochs', 3, '--load-from', 'coco.pth')
    printed = tool(tmp_path, 'train.py', *start, '--dry-run', '--amp', 'bfloat16')
    assert 'coco.pth, but 6 of another number of classes' in printed
    assert re.search(r'iterations +69: 3\.\d epochs', printed)

    tool(tmp_path, 'train.py', *start, '--cfg-options', *SMALL)
    work_dir = tmp_path / 'work_dirs/mask_rcnn_small_parts_mini'
    log = next(work_dir.glob('*/*.log')).read_text()
    (left_out,) = re.findall(r'left out, as of another number of classes: (.*)', log)
    heads = ('bbox_head.fc_cls', 'bbox_head.fc_reg', 'mask_head.conv_logits')
    assert left_out.split(', ') == [f'roi_head.{head}.{kind}' for head in heads for kind in ('weight', 'bias')]
    assert 'size mismatch' not in log
    assert len(json.loads((work_dir / 'data/val.json').read_text())['images']) == 5

    def tested(name: str, *amp: str) -> float:
        arguments = ('--mini', '--val-data', 'new', '--work-dir', name, *amp, '--cfg-options', *SMALL)
        tool(tmp_path, 'test.py', DETECTOR, checkpoint, *arguments)
        return 100 * metrics_of_test(tmp_path / name)['coco/bbox_mAP_50']

    (checkpoint,) = work_dir.glob('iter_*.pth')
    assert read_checkpoint(str(checkpoint))['meta']['dataset_meta']['classes'] == CLASSES
    ap50, dtypes = tested('on_new'), set()
    assert ap50 > 20  # the mean box of each class, all over the image, would give less than 10
    with register_module_forward_hook(lambda module, _, output: dtypes.add(getattr(output, 'dtype', None))):
        mixed = tested('mixed', '--amp', 'bfloat16')
    assert torch.bfloat16 in dtypes and mixed == pytest.approx(ap50, abs=5)  # one is worth a third of a point
    tta = ('--mini', '--val-data', 'new', '--tta', '--work-dir', 'tta', '--cfg-options', *NO_WORKERS)
    tool(tmp_path, 'test.py', DETECTOR, checkpoint, *tta)
    assert 'coco/segm_mAP' not in metrics_of_test(tmp_path / 'tta')  # mmdet merges no masks

    config = str(work_dir / 'mask_rcnn_small.py')
    inferencer = DetInferencer(config, str(checkpoint), device='cpu', show_progress=False)
    assert tuple(inferencer.model.dataset_meta['classes']) == CLASSES

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
    (drawn, *_) = (tmp_path / 'shown').rglob('vis_image/*.png')
    assert np.asarray(Image.open(drawn)).std() > 10


def write_small(folder: Path, name: str, base: str) -> None:
    """Write the miniature of a small config in the place of one of the page; from random weights, without workers."""
    config = make_mini(Config.fromfile(base))
    config.model.backbone.init_cfg = None
    for split in ('train', 'val', 'test'):
        config[f'{split}_dataloader'].update(num_workers=0, persistent_workers=False)
    path = folder / f'configs/{name}.py'
    path.parent.mkdir(parents=True)
    config.dump(path)


def run_section(heading: str, folder: Path, tool: InProcess) -> dict[tuple[str, bool], str]:
    """Run the commands under a heading, with fewer epochs: what each printed, by the tool and `--dry-run`."""
    blocks = [block for block in read_blocks('docs/own_data.md') if block.name.partition(', ')[0] == heading]
    printed = {}
    for line in (line for block in blocks for line in block.lines()):
        assert line.startswith('python tools/')
        name, *arguments = shlex.split(re.sub(r'--epochs \d+', '--epochs 2', line).removeprefix('python tools/'))
        paths = (sorted(map(str, folder.glob(each))) if '*' in each else [each] for each in arguments)
        printed[name, '--dry-run' in arguments] = tool(folder, name, *itertools.chain(*paths))
    return printed


def inspected(folder: Path) -> list[str]:
    """The rows of the table of classes; the samples show something."""
    assert np.asarray(Image.open(folder / 'samples.png')).std() > 10
    return (folder / 'classes.csv').read_text().splitlines()[1:]


@pytest.mark.slow
def test_the_five_commands(tmp_path: Path, tool: InProcess) -> None:
    write_small(tmp_path, 'transnext/mask_rcnn_tiny_coco', DETECTOR)
    write_coco_folder(tmp_path / 'parts', range(24))
    names = write_images(tmp_path / 'new_images', range(500, 503))

    printed = run_section('Train on your own data', tmp_path, tool)
    assert len(printed) == 5
    assert [row.split(',')[0] for row in inspected(tmp_path / 'inspected')] == list(CLASSES)
    assert printed['train.py', True].startswith(f'3 classes: {", ".join(CLASSES)}\n')
    assert 'coco/bbox_mAP' in printed['test.py', False].splitlines()[-2]
    assert (tmp_path / 'compared/predictions.png').is_file()
    predictions = json.loads((tmp_path / 'predicted/predictions.json').read_text())
    assert [category['name'] for category in predictions['categories']] == list(CLASSES)
    assert [Path(image['file_name']).name for image in predictions['images']] == names


def test_other_formats(tmp_path: Path, tool: InProcess) -> None:
    write_small(tmp_path, 'transnext/mask_rcnn_tiny_coco', DETECTOR)
    write_yolo_folder(tmp_path / 'parts_yolo', train=range(6), val=range(50, 52))
    write_voc_folder(tmp_path / 'VOCdevkit/VOC2012', train=range(6), val=range(50, 52))
    of_yolo, dry_run = run_section('YOLO and Pascal VOC', tmp_path, tool).values()
    assert 'nothing is wrong' in of_yolo and 'annotations of parts_yolo/data.yaml' in of_yolo
    assert [row.split(',')[0] for row in inspected(tmp_path / 'inspected_yolo')] == list(CLASSES)
    assert dry_run.startswith(f'3 classes: {", ".join(CLASSES)}\n')


@needs('tifffile')
def test_other_channels(tmp_path: Path, tool: InProcess) -> None:
    """What there is to see is in the low byte of the fourth channel alone."""
    import tifffile

    def write(path: Path, image: np.ndarray) -> None:
        red = image[..., 0].astype(np.uint16)
        grey = np.full_like(red, 30000)
        tifffile.imwrite(path, np.stack([grey, grey + 1, grey + 2, grey + red], axis=-1))

    write_small(tmp_path, 'transnext/upernet_tiny_ade20k', SEGMENTOR)
    convert_images(write_mask_folder(tmp_path / 'fields', range(16)), write, '.tif')
    convert_images(write_mask_folder(tmp_path / 'new', range(500, 502)), write, '.tif')
    (tmp_path / 'new/images').rename(tmp_path / 'new_fields')
    printed = run_section('Other channels and more than 8 bits', tmp_path, tool)
    assert len(printed) == 3 and len(inspected(tmp_path / 'inspected_fields')) == 3
    for text in ('images of 4 channels of uint16: mean 30000, 30001, 30002, 30', 'nothing is wrong'):
        assert text in printed['inspect_data.py', False]

    # The prediction goes by what the low byte of the fourth channel says.
    work_dir = tmp_path / 'work_dirs/transnext/upernet_tiny_ade20k_fields'
    (config,), (checkpoint,) = work_dir.glob('*.py'), work_dir.glob('best*.pth')
    predictor = Predictor(config, checkpoint, device='cpu')
    file, _ = sorted((tmp_path / 'new_fields').iterdir())
    image = tifffile.imread(file)
    darker = image - np.array([0, 0, 0, 50], np.uint16)
    of_file, of_array, of_darker = predictor([file, image, darker], return_logits=True)
    assert torch.equal(of_file.seg_logits.data, of_array.seg_logits.data)
    assert (of_array.seg_logits.data - of_darker.seg_logits.data).abs().max() > 1e-3
    labels = np.asarray(Image.open(tmp_path / f'predicted_fields/labels/{file.stem}.png'))
    assert np.array_equal(labels, of_file.pred_sem_seg.data[0])
    assert len(list((tmp_path / 'predicted_fields/overlays').iterdir())) == 2


def test_channels_of_a_classifier(tmp_path: Path, tool: InProcess) -> None:
    """The classes differ in the fifth channel alone."""
    for folder, number in (('leaves', 12), ('new_leaves', 1)):
        for label, name in enumerate(('birch', 'oak')):
            (tmp_path / folder / name).mkdir(parents=True)
            for index in range(number):
                values = np.random.default_rng(index).normal(size=(48, 40, 5)).astype(np.float32) / 1000
                values[..., 4] += label
                np.save(tmp_path / folder / name / f'{name}_{index}.npy', values)
    write_small(tmp_path, 'convit/convit-tiny_8xb128_in1k', f'{ROOT}/tests/tools/convit_small.py')
    printed = run_section('Channels of a classifier', tmp_path, tool)
    for text in ('nothing is wrong', 'needs RGB in 8 bits is left out: RandAugment, RandomErasing'):
        assert text in printed['inspect_data.py', False]
    assert len(printed) == 2 and inspected(tmp_path / 'inspected_leaves') == ['birch,11', 'oak,11']
    work_dir = tmp_path / 'work_dirs/convit/convit-tiny_8xb128_in1k_leaves'
    (config,), (checkpoint,) = work_dir.glob('*.py'), work_dir.glob('best*.pth')
    tested = tool(tmp_path, 'test.py', str(config), str(checkpoint), '--show-dir', 'compared_leaves')
    assert 'accuracy/top1 100' in tested and (tmp_path / 'compared_leaves/predictions.png').is_file()
    tool(tmp_path, 'predict.py', str(config), str(checkpoint), 'new_leaves', '--out', 'predicted_leaves')

    document = json.loads((tmp_path / 'predicted_leaves/predictions.json').read_text())
    predictor = Predictor(config, checkpoint, device='cpu')
    for label, entry in enumerate(document['images']):
        (sample,) = predictor(np.load(tmp_path / entry['file_name']))
        assert entry['category_id'] == sample.pred_label == label
        assert entry['scores'] == pytest.approx(sample.pred_score.tolist(), abs=1e-6)
    assert len(list((tmp_path / 'predicted_leaves/overlays').iterdir())) == 2
    with pytest.raises(InputError, match='the array has 3 channels of uint8, expected 5 channels of float32'):
        predictor(np.zeros((64, 64, 3), np.uint8))
