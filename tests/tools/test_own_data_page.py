"""docs/own_data.md: its commands, run as they are written."""

import itertools
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bioattn_mm import Predictor
from bioattn_mm.errors import InputError

from ..docs.blocks import read_blocks
from ..needs import needs
from ..own_folders import (
    CLASSES,
    convert_images,
    write_coco_folder,
    write_images,
    write_mask_folder,
    write_voc_folder,
    write_yolo_folder,
)
from .running import ROOT, InProcess

# The configs of the page, and what the tests put in their place.
CONFIG = 'configs/transnext/mask_rcnn_tiny_coco.py'
WITHOUT_WORKERS = """
train_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
"""
SMALL_CONFIG = f"""
_base_ = '{ROOT}/tests/tools/mask_rcnn_small.py'
size = dict(type='Resize', scale=(160, 128), keep_ratio=True)
train_pipeline = [*_base_.train_pipeline[:2], size, *_base_.train_pipeline[3:]]
test_pipeline = [_base_.test_pipeline[0], size, *_base_.test_pipeline[2:]]
model = dict(backbone=dict(init_cfg=None)){WITHOUT_WORKERS}auto_scale_lr = dict(base_batch_size=1)
"""
SEGMENTOR = 'configs/transnext/upernet_tiny_ade20k.py'
SMALL_SEGMENTOR = f"""
_base_ = '{ROOT}/tests/tools/upernet_small.py'
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    backbone=dict(init_cfg=None), data_preprocessor=dict(size=(96, 96)), decode_head=dict(norm_cfg=norm_cfg),
    auxiliary_head=dict(norm_cfg=norm_cfg), test_cfg=dict(mode='whole'),
)
train_pipeline = [*_base_.train_pipeline[:2], dict(type='RandomCrop', crop_size=(96, 96)), *_base_.train_pipeline[4:]]
test_pipeline = [_base_.test_pipeline[0], *_base_.test_pipeline[2:]]{WITHOUT_WORKERS}
optim_wrapper = dict(optimizer=dict(lr=1e-3))
auto_scale_lr = dict(base_batch_size=2)
"""
CLASSIFIER = 'configs/convit/convit-tiny_8xb128_in1k.py'


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


def write_config(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(text)


def inspected(folder: Path) -> list[str]:
    """The rows of the table of classes; the samples show something."""
    assert np.asarray(Image.open(folder / 'samples.png')).std() > 10
    return (folder / 'classes.csv').read_text().splitlines()[1:]


@pytest.mark.slow
def test_the_five_commands(tmp_path: Path, tool: InProcess) -> None:
    write_config(tmp_path, CONFIG, SMALL_CONFIG)
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
    write_config(tmp_path, CONFIG, SMALL_CONFIG)
    write_yolo_folder(tmp_path / 'parts_yolo', train=range(6), val=range(50, 52))
    write_voc_folder(tmp_path / 'VOCdevkit/VOC2012', train=range(6), val=range(50, 52))
    before = sorted(tmp_path.rglob('*'))
    of_yolo, dry_run = run_section('YOLO and Pascal VOC', tmp_path, tool).values()
    assert 'nothing is wrong' in of_yolo and 'annotations of parts_yolo/data.yaml' in of_yolo
    assert [row.split(',')[0] for row in inspected(tmp_path / 'inspected_yolo')] == list(CLASSES)
    assert dry_run.startswith(f'3 classes: {", ".join(CLASSES)}\n')
    new = {path.relative_to(tmp_path).parts[0] for path in set(tmp_path.rglob('*')) - set(before)}
    assert new == {'inspected_yolo'}


@needs('tifffile')
def test_other_channels(tmp_path: Path, tool: InProcess) -> None:
    """What there is to see is in the low byte of the fourth channel alone."""
    import tifffile

    def write(path: Path, image: np.ndarray) -> None:
        red = image[..., 0].astype(np.uint16)
        grey = np.full_like(red, 30000)
        tifffile.imwrite(path, np.stack([grey, grey + 1, grey + 2, grey + red], axis=-1))

    write_config(tmp_path, SEGMENTOR, SMALL_SEGMENTOR)
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
    write_config(tmp_path, CLASSIFIER, f"_base_ = '{ROOT}/tests/tools/convit_small.py'\n")
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
