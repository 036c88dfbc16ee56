"""What the tools change in pipelines."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from mmengine.config import Config
from mmengine.dataset import BaseDataset, RepeatDataset
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import BaseLoop

from bioattn_mm.data.mini import make_mini_datasets
from bioattn_mm.data.transforms import (
    CheckedLoadAnnotations,
    CheckedLoadImageFromFile,
    CheckedLoadPanopticAnnotations,
)
from bioattn_mm.training.bad_data import NameBadFilesHook
from bioattn_mm.training.config.pipelines import load_ground_truth


def read(root: Path, name: str) -> Config:
    return Config.fromfile(root / f'configs/_base_/datasets/{name}.py')


@pytest.mark.parametrize('scope', ['mmseg', 'mmdet'])
def test_errors_name_files_wherever_a_dataset_loads(scope: str) -> None:
    init_default_scope(scope)
    checked = [CheckedLoadAnnotations, CheckedLoadPanopticAnnotations][: 1 if scope == 'mmseg' else 2]
    names = [kind.__name__.removeprefix('Checked') for kind in checked]
    load = [dict(type='LoadImageFromFile', color_type='grayscale'), *(dict(type=name) for name in names)]
    augmented = dict(type='TestTimeAug', transforms=[[dict(type='Resize', scale=(8, 8))], [dict(type=names[0])]])
    hook, loops = NameBadFilesHook(), []
    for steps in (load, load[:1], [augmented]):
        dataset = BaseDataset(pipeline=steps, lazy_init=True)
        loader = SimpleNamespace(dataset=RepeatDataset(dataset, 2, lazy_init=True))
        loops.append(Mock(BaseLoop, dataloader=loader))
    for _ in range(2):  # a second time changes nothing
        hook.before_run(SimpleNamespace(_train_loop=loops[0], _val_loop=loops[1], _test_loop=dict()))
        hook.before_run(SimpleNamespace(_train_loop=None, _val_loop=None, _test_loop=loops[2]))
    train, val, test = (each.dataloader.dataset.dataset.pipeline.transforms for each in loops)
    assert [type(step) for step in train] == [CheckedLoadImageFromFile, *checked]
    assert train[0].color_type == 'grayscale'
    # What loads is the library's own, but of mmseg one that refuses values beyond 8 bits.
    found = [type(step.load).__name__ for step in train[1:]]
    assert found == (['WideLoadAnnotations'] if scope == 'mmseg' else names)
    assert [type(step) for step in val] == [CheckedLoadImageFromFile]
    assert type(test[0].subroutines[0].transforms[1]) is CheckedLoadAnnotations


@pytest.mark.parametrize('name, with_mask', [('coco_instance', True), ('coco_detection', False)])
def test_ground_truth_is_loaded_once_as_in_training(root: Path, tmp_path: Path, name: str, with_mask: bool) -> None:
    config = read(root, name)
    for _ in range(2):
        load_ground_truth(config)
        types = [step['type'] for step in config.test_dataloader.dataset.pipeline]
        assert types == ['LoadImageFromFile', 'Resize', 'bioattn_mm.CheckedLoadAnnotations', 'PackDetInputs']

    init_default_scope('mmdet')
    folder = make_mini_datasets(tmp_path, 2, 2, progress=False)['coco']
    config.test_dataloader.dataset.data_root = str(folder)
    sample = DATASETS.build(config.test_dataloader.dataset)[0]['data_samples']
    assert len(sample.gt_instances) and ('masks' in sample.gt_instances) == with_mask
    # In pixels of the file, not of the resized image.
    height, width = sample.ori_shape
    boxes = sample.gt_instances.bboxes.tensor
    assert sample.img_shape[0] > height and boxes[:, 2].max() <= width and boxes[:, 3].max() <= height
    assert not with_mask or sample.gt_instances.masks.masks.shape[1:] == (height, width)


def test_ground_truth_without_training_is_boxes_and_of_segmentation_is_there(root: Path) -> None:
    config = Config(dict(test_dataloader=dict(dataset=dict(data_root='', pipeline=[dict(type='PackDetInputs')]))))
    load_ground_truth(config)
    assert config.test_dataloader.dataset.pipeline[0] == dict(type='LoadAnnotations', with_bbox=True)
    config = read(root, 'ade20k')
    before = config.pretty_text
    load_ground_truth(config)
    assert config.pretty_text == before


@pytest.mark.parametrize('with_mask', [False, True])
def test_image_without_annotations_has_none(with_mask: bool) -> None:
    init_default_scope('mmdet')
    results = CheckedLoadAnnotations(with_bbox=True, with_mask=with_mask)(dict(img_path='x.jpg', ori_shape=(4, 6)))
    assert results['gt_bboxes'].tensor.shape == (0, 4)
    assert not with_mask or results['gt_masks'].masks.shape == (0, 4, 6)
