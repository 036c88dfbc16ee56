"""docs/own_data.md: its commands, run as they are written."""

import json
import re
import shlex
from pathlib import Path

from bioattn_mm.run_config.own_data import LAYOUTS

from ..own_folders import CLASSES, write_coco_folder, write_images, write_voc_folder, write_yolo_folder
from .running import ROOT, InProcess

PAGE = (ROOT / 'docs/own_data.md').read_text()
OTHER_FORMATS = '## YOLO and Pascal VOC'
CONFIG = 'configs/transnext/mask_rcnn_tiny_coco.py'
# What the tests put in the place of the page's config.
SMALL_CONFIG = f"""
_base_ = '{ROOT}/tests/tools/mask_rcnn_small.py'
size = dict(type='Resize', scale=(160, 128), keep_ratio=True)
train_pipeline = [*_base_.train_pipeline[:2], size, *_base_.train_pipeline[3:]]
test_pipeline = [_base_.test_pipeline[0], size, *_base_.test_pipeline[2:]]
model = dict(backbone=dict(init_cfg=None))
train_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
auto_scale_lr = dict(base_batch_size=1)
"""


def commands(page: str) -> list[list[str]]:
    """The arguments of a page's commands after `python tools/`, with fewer epochs."""
    blocks = re.findall(r'```bash\n(.*?)```', page, flags=re.DOTALL)
    lines = ''.join(blocks).replace('\\\n', ' ').strip().splitlines()
    assert all(line.startswith('python tools/') for line in lines)
    text = '\n'.join(lines).replace('python tools/', '')
    return [shlex.split(line) for line in re.sub(r'--epochs \d+', '--epochs 2', text).splitlines()]


def write_config(folder: Path) -> None:
    (folder / CONFIG).parent.mkdir(parents=True)
    (folder / CONFIG).write_text(SMALL_CONFIG)


def test_the_five_commands(tmp_path: Path, tool: InProcess) -> None:
    write_config(tmp_path)
    write_coco_folder(tmp_path / 'parts', range(24))
    names = write_images(tmp_path / 'new_images', range(500, 503))

    printed = {}
    for name, *arguments in commands(PAGE.partition(OTHER_FORMATS)[0]):
        # As a shell does with a pattern.
        expanded = [
            path
            for argument in arguments
            for path in (sorted(map(str, tmp_path.glob(argument))) if '*' in argument else [argument])
        ]
        printed[name, '--dry-run' in arguments] = tool(tmp_path, name, *expanded)
    assert len(printed) == 5

    assert (tmp_path / 'inspected/samples.png').is_file()
    rows = (tmp_path / 'inspected/classes.csv').read_text().splitlines()
    assert [row.split(',')[0] for row in rows[1:]] == list(CLASSES)
    assert printed['train.py', True].startswith(f'3 classes: {", ".join(CLASSES)}\n')
    assert 'coco/bbox_mAP' in printed['test.py', False].splitlines()[-2]
    assert (tmp_path / 'compared/predictions.png').is_file()
    predictions = json.loads((tmp_path / 'predicted/predictions.json').read_text())
    assert [category['name'] for category in predictions['categories']] == list(CLASSES)
    assert [Path(image['file_name']).name for image in predictions['images']] == names


def test_other_formats(tmp_path: Path, tool: InProcess) -> None:
    write_config(tmp_path)
    write_yolo_folder(tmp_path / 'parts_yolo', train=range(6), val=range(50, 52))
    write_voc_folder(tmp_path / 'VOCdevkit/VOC2012', train=range(6), val=range(50, 52))
    before = sorted(tmp_path.rglob('*'))
    inspected, dry_run = (tool(tmp_path, *words) for words in commands(PAGE.partition(OTHER_FORMATS)[2]))
    assert 'nothing is wrong' in inspected and 'annotations of parts_yolo/data.yaml' in inspected
    rows = (tmp_path / 'inspected_yolo/classes.csv').read_text().splitlines()
    assert [row.split(',')[0] for row in rows[1:]] == list(CLASSES)
    assert dry_run.startswith(f'3 classes: {", ".join(CLASSES)}\n')
    new = {path.relative_to(tmp_path).parts[0] for path in set(tmp_path.rglob('*')) - set(before)}
    assert new == {'inspected_yolo'}


def test_the_page_has_the_layouts_of_the_help() -> None:
    assert f'```text\n{LAYOUTS}```' in PAGE
