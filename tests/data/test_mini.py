"""The files of the miniatures: reproducible, complete, never in place of others; the tool; ImageNet in mmpretrain."""

from pathlib import Path

import pytest
import timm.data
from mmpretrain.datasets import ImageNet
from mmpretrain.datasets.categories import IMAGENET_CATEGORIES
from PIL import Image

from bioattn_mm.data.class_names import IMAGENET_CLASSES
from bioattn_mm.data.mini import make_mini_datasets
from bioattn_mm.errors import InputError

from ..files import contents
from .conftest import NUM_TRAIN, NUM_VAL


def make(out_dir, num_train=1, num_val=1, **kwargs):
    return make_mini_datasets(out_dir, num_train, num_val, progress=False, **kwargs)


def test_same_bytes_on_every_run_and_others_for_another_seed(tmp_path):
    for name, seed in dict(a=0, b=0, c=1).items():
        make(tmp_path / name, 2, 1, seed=seed)
    assert contents(tmp_path / 'a') == contents(tmp_path / 'b')
    image = 'ADEChallengeData2016/images/training/ADE_train_00000001.jpg'
    assert (tmp_path / 'a' / image).read_bytes() != (tmp_path / 'c' / image).read_bytes()


def test_what_is_there_stays_and_what_is_missing_is_made(tmp_path, capsys):
    folders = make(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')}
    make_mini_datasets(tmp_path, 1, 1)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')} == before
    assert capsys.readouterr().out.count('exists already') == len(folders) == 3
    folders['coco'].rename(tmp_path / 'elsewhere')
    make(tmp_path)
    assert contents(folders['coco']) == contents(tmp_path / 'elsewhere')
    assert all(path.stat().st_mtime_ns == before[path] for path in folders['ade20k'].rglob('*'))
    with pytest.raises(InputError, match='num_train 1 instead of 2'):  # another miniature is not replaced
        make(tmp_path, num_train=2)
    assert contents(folders['coco']) == contents(tmp_path / 'elsewhere')


def test_refused_before_anything_is_written(tmp_path):
    for kwargs in ({'num_train': 0}, {'num_val': -1}, {'seed': -1}):
        with pytest.raises(InputError, match='must be at least'):
            make(tmp_path / 'data', **kwargs)
    (tmp_path / 'coco').mkdir()
    (tmp_path / 'coco/mine.txt').write_text('mine')
    with pytest.raises(InputError, match=r'coco holds something else than this miniature \(format None instead of'):
        make(tmp_path)
    assert contents(tmp_path) == {'coco/mine.txt': b'mine'} and list(tmp_path.iterdir()) == [tmp_path / 'coco']


def test_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr('bioattn_mm.data.mini.coco.draw_scene', lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ['ADEChallengeData2016']


def test_tool(root, tmp_path, tool):
    printed = tool(root, 'make_mini_datasets.py', '--out-dir', tmp_path, '--num-train', 2, '--num-val', 1)
    assert '% mIoU' in printed and 'train:' in printed and 'of 10 classes: balloon' in printed
    (tmp_path / 'file').write_text('')
    assert tool.refused(tmp_path, 'make_mini_datasets.py', '--out-dir', tmp_path / 'file').startswith('error: ')


def test_classes_are_those_of_imagenet():
    info = timm.data.ImageNetInfo()
    for name, (wnid, label) in IMAGENET_CLASSES.items():
        assert info.index_to_label_name(label) == wnid
        assert name in IMAGENET_CATEGORIES[label]


@pytest.mark.parametrize(('split', 'number'), [('train', NUM_TRAIN), ('val', NUM_VAL)])
def test_imagenet_is_read_as_the_real_one(mini, split, number):
    dataset = ImageNet(data_root=str(mini['imagenet']), split=split)
    assert len(dataset) == number and len(dataset.CLASSES) == 1000
    labels = dict(IMAGENET_CLASSES.values())
    for index in range(number):
        info = dataset.get_data_info(index)
        assert info['gt_label'] == labels[Path(info['img_path']).parent.name]
        with Image.open(info['img_path']) as image:
            assert image.format == 'JPEG' and min(image.size) >= 128
    counts = [int((dataset.get_gt_labels() == label).sum()) for label in labels.values()]
    assert max(counts) - min(counts) <= 1  # the classes take turns
