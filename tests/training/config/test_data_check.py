"""What is said of annotations before a training: nothing is dropped, replaced or renumbered in silence."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import init_default_scope
from PIL import Image

from bioattn_mm.data.checks import BadDataError
from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.data.formats.coco import read_coco_file
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.data_check import check_annotations
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.pipelines import build_dataset

from ...conftest import ROOT
from ...own_folders import write_coco_folder, write_mask_folder

DETECTOR, SEGMENTOR = (str(ROOT / f'tests/tools/{name}_small.py') for name in ('mask_rcnn', 'upernet'))
LOADERS = ('train_dataloader', 'val_dataloader')
SEEDS = range(8)


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    return write_coco_folder(tmp_path / 'parts', SEEDS)


def changed(folder: Path, change: Callable[[dict], object]) -> dict:
    """Change the annotations of a folder; return them."""
    path = folder / 'annotations.json'
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return document


def notes_of(folder: Path, config: str = DETECTOR, **options: object) -> list[str]:
    """What a training says of own data."""
    loaded = load_config(config, data=DataArguments(str(folder)), dataloaders=LOADERS)
    return [*loaded.own_data, *check_annotations(loaded, LOADERS, **options)]


WRONG_TYPES = {
    'image 11: file_name 3: expected `str`': lambda d: d['images'][1].update(file_name=3),
    'image 12: width "120": expected `int`, got': lambda d: d['images'][2].update(width='120'),
    'image 13: width -120: expected `int` >= 1': lambda d: d['images'][3].update(width=-120),
    r'images\[8\]: "a.jpg"': lambda d: d['images'].append('a.jpg'),
    r'annotation 5: bbox \[1, 2, 3\]': lambda d: d['annotations'][4].update(bbox=[1, 2, 3]),
    r'annotation 6: bbox \[.*NaN': lambda d: d['annotations'][5].update(bbox=[1, 2, 3, np.nan]),
    'annotation 7: iscrowd "0"': lambda d: d['annotations'][6].update(iscrowd='0'),
    r'annotations\[16\]: 7: Expected': lambda d: d['annotations'].append(7),
    'category 7: no name': lambda d: d['categories'][1].pop('name'),
}


def test_wrong_types_are_named(coco: Path, tmp_path: Path) -> None:
    path, config = coco / 'annotations.json', tmp_path / 'config.py'
    document = changed(coco, lambda document: [change(document) for change in WRONG_TYPES.values()])
    dataset = f"dict(data_root='{coco}', ann_file='annotations.json', data_prefix=dict(img='images'))"
    config.write_text(f"_base_ = '{DETECTOR}'\ntrain_dataloader = dict(dataset={dataset})\n")
    for check in (lambda: notes_of(coco), lambda: check_annotations(load_config(config), LOADERS[:1])):
        with pytest.raises(InputError, match=rf'^{path}: image 11: .* \(and 8 more\)'):
            check()
    # Those that can be used are read.
    content = read_coco_file(path)
    for fault, message in zip(content.faults, WRONG_TYPES, strict=True):
        assert re.match(f'{path}: {message}', str(fault))
    read = len(content.images) + len(content.annotations) + len(content.categories)
    assert read == sum(map(len, document.values())) - len(WRONG_TYPES)


def test_all_that_is_left_out_is_counted(coco: Path) -> None:
    def change(document: dict) -> None:
        first, *others = document['annotations']
        first['image_id'] = 999
        others[0]['category_id'] = others[1]['category_id'] = 999
        others[2]['bbox'] = [500, 500, 5, 5]
        others[3]['bbox'] = [5, 5, 0.5, 5]
        for each in document['annotations']:
            each['id'] = 1

    changed(coco, change)
    lines = '\n'.join(notes_of(coco))
    assert 'all 16 annotations were numbered, as 16 had no number of their own from 1 on' in lines
    assert re.search(r'1 of 7 images without annotations are left out \(filter_cfg\), such as part_000.jpg', lines)
    left_out = re.findall(r'annotations.json: (\d) of \d+ annotations are left out, as they (.*)', lines)
    assert sum(int(count) for count, _ in left_out) == 5
    reasons = ' '.join(reason for _, reason in left_out)
    for reason in (
        'of images that the file does not have, such as image_id 999', 'such as category_id 999',
        'have a box without area or outside of the image', 'have a box of less than a pixel',
    ):  # fmt: skip
        assert reason in reasons


UNUSABLE = {
    'ids of two types': (lambda d: [i.update(id=str(i['id'])) for i in d['images']], 'nothing is .* are of images'),
    'crowds alone': (lambda d: [each.update(iscrowd=1) for each in d['annotations']], 'nothing is labelled in the'),
    'image twice': (lambda d: d['images'][1].update(id=d['images'][0]['id']), '{path}: image id twice: .* 2 times'),
    'category twice': (lambda d: d['categories'][1].update(id=2), '{path}: category id twice: .* 2 times'),
    'masks of two points': (
        lambda d: [each.update(segmentation=[[1, 2, 3]]) for each in d['annotations'][:4]],
        r'{path}: annotation \d of the image part_\d+.jpg: no polygon of three points',
    ),
}  # fmt: skip


@pytest.mark.parametrize(('change', 'message'), UNUSABLE.values(), ids=UNUSABLE)
def test_annotations_that_cannot_be_used(change: Callable, message: str, coco: Path) -> None:
    changed(coco, change)
    with pytest.raises(InputError, match='^' + message.format(path=coco / 'annotations.json')):
        notes_of(coco)
    if 'polygon' in message:
        assert notes_of(coco, skip_bad_data=True)


def test_label_maps_without_labels_and_files_that_are_alone(tmp_path: Path) -> None:
    def unlabel(folder: Path) -> None:
        for path in (folder / 'masks').iterdir():
            Image.fromarray(np.full_like(np.array(Image.open(path)), 255)).save(path)

    train, val = (write_mask_folder(tmp_path / name, SEEDS) for name in ('train', 'val'))
    assert not any('nothing is labelled in' in note for note in notes_of(train, SEGMENTOR))
    unlabel(val)
    config = load_config(SEGMENTOR, data=DataArguments(train_data=str(train), val_data=str(val)))
    (note,) = check_annotations(config, LOADERS)
    assert note.startswith('nothing is labelled in the images of val_dataloader')
    (train / 'masks/part_003.png').unlink()
    (train / 'images/part_004.jpg').unlink()
    lines = '\n'.join(notes_of(train, SEGMENTOR))
    assert f'1 left out: image without label map, such as {train}/images/part_003.png' in lines
    assert f'1 left out: label map without image, such as {train}/masks/part_004.png' in lines
    unlabel(train)
    with pytest.raises(
        InputError, match='^nothing is labelled .*: no pixel of the [56] label maps such as .*/masks/part'
    ):
        notes_of(train, SEGMENTOR)


@pytest.mark.parametrize('encoding', ['utf-8-sig', 'utf-16', 'utf-8'])
def test_other_encodings_beside_a_damaged_file(encoding: str, coco: Path) -> None:
    document = changed(coco, lambda document: document['categories'][0].update(name='Müller'))
    (coco / 'annotations.json').write_bytes(json.dumps(document, ensure_ascii=False).encode(encoding))
    (coco / 'damaged.json').write_text('{')
    config = load_config(DETECTOR, data=DataArguments(str(coco)), dataloaders=LOADERS)
    assert any(note.startswith(f'not used: {coco}/damaged.json is no JSON file') for note in config.own_data)
    assert config.train_dataloader.dataset.metainfo.classes[0] == 'Müller'
    assert 'Müller' in Path(config.train_dataloader.dataset.ann_file).read_bytes().decode()
    assert not check_annotations(config, LOADERS)


@pytest.mark.parametrize(('dtype', 'value'), [(np.uint8, 7), (np.uint16, 257), (np.int32, 257)])
def test_a_value_that_is_no_class_is_named_when_it_is_loaded(dtype: type, value: int, tmp_path: Path) -> None:
    """The lowest 8 bits of 257 are a class. Not all label maps are looked at before."""
    scenes = write_mask_folder(tmp_path / 'scenes', range(50))
    config = load_config(SEGMENTOR, data=DataArguments(str(scenes)))
    init_default_scope('mmseg')
    dataset = build_dataset(config.train_dataloader.dataset)
    path = Path(dataset.get_data_info(1)['seg_map_path'])
    labels = np.array(Image.open(path)).astype(dtype)
    Image.fromarray(labels).save(path, 'TIFF')
    assert dataset[1]['data_samples'].gt_sem_seg.data.max() == labels.max()
    labels[3, 4] = value
    Image.fromarray(labels).save(path, 'TIFF')
    with pytest.raises(BadDataError, match=f'map {path} has the value {value}, expected 0 to 2 for 3 classes'):
        dataset[1]
    # A map of one row stays a map.
    Image.new('L', (30, 1)).save(path)
    with pytest.raises(BadDataError, match=r'is of shape \(1, 30\), its image of'):
        dataset[1]


def test_odd_file_names(coco: Path, tmp_path: Path) -> None:
    names = ['line\nbreak.jpg', 'not_utf8_\udce9.jpg']
    for index, name in enumerate(names):
        os.rename(coco / f'images/part_{index:03d}.jpg', coco / 'images' / name)
        changed(coco, lambda document, index=index, name=name: document['images'][index].update(file_name=name))
    config = load_config(DETECTOR, data=DataArguments(str(coco)))
    assert not check_annotations(config, LOADERS)
    files = [each.file_name for key in LOADERS for each in read_coco_file(config[key].dataset.ann_file).images]
    assert set(names) < set(files)

    scenes = write_mask_folder(tmp_path / 'scenes', SEEDS)
    data = DataArguments(train_data=str(scenes), val_data=str(scenes))
    for folder, suffix in (('masks', '.png'), ('images', '.jpg')):
        os.rename(scenes / f'{folder}/part_000{suffix}', scenes / folder / f'not_utf8_\udce9{suffix}')
    config = load_config(SEGMENTOR, data=data)
    init_default_scope('mmseg')
    dataset = build_dataset(config.val_dataloader.dataset)
    assert names[1] in [Path(dataset[index]['data_samples'].img_path).name for index in range(len(dataset))]
    os.rename(scenes / 'images' / names[1], scenes / 'images' / names[0])
    with pytest.raises(InputError, match=r'the name of .*/line\\nbreak.jpg has a line break: rename the file'):
        load_config(SEGMENTOR, data=data)
