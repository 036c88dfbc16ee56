"""What the tools change in pipelines."""

from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from bioattn_mm.datasets.mini import make_mini_datasets
from bioattn_mm.datasets.transforms import CheckedLoadAnnotations
from bioattn_mm.run_config.pipelines import load_ground_truth, name_bad_files

MASKS = dict(type='LoadAnnotations', with_bbox=True, with_mask=True, poly2mask=False)


def read(root: Path, name: str) -> Config:
    return Config.fromfile(root / f'configs/_base_/datasets/{name}.py')


def types(steps: list[dict]) -> list[str]:
    return [step['type'] for step in steps]


def test_loading_names_files_wherever_a_config_loads() -> None:
    load = [dict(type='LoadImageFromFile', color_type='color'), MASKS]
    augmented = [dict(type='TestTimeAug', transforms=[[dict(type='Resize')], [dict(type='LoadAnnotations')]])]
    inner = dict(type='MultiImageMixDataset', dataset=dict(type='CocoDataset', pipeline=load), pipeline=[])
    config = Config(
        dict(
            train_dataloader=dict(dataset=dict(type='RepeatDataset', dataset=inner)),
            val_dataloader=dict(dataset=dict(datasets=[dict(pipeline=load), dict(pipeline=load[:1])])),
            tta_pipeline=augmented,
            model=dict(type='LoadAnnotationsNet'),
        )
    )
    name_bad_files(config)
    ours = [
        dict(type='bioattn_mm.CheckedLoadImageFromFile', color_type='color'),
        {**MASKS, 'type': 'bioattn_mm.CheckedLoadAnnotations'},
    ]
    assert config.train_dataloader.dataset.dataset.dataset.pipeline == ours
    assert [dataset.pipeline for dataset in config.val_dataloader.dataset.datasets] == [ours, ours[:1]]
    assert types(config.tta_pipeline[0].transforms[1]) == ['bioattn_mm.CheckedLoadAnnotations']
    assert config.model.type == 'LoadAnnotationsNet'
    before = config.pretty_text
    name_bad_files(config)
    assert config.pretty_text == before


@pytest.mark.parametrize('name, with_mask', [('coco_instance', True), ('coco_detection', False)])
def test_ground_truth_is_loaded_as_in_training_and_once(
    root: Path, tmp_path: Path, name: str, with_mask: bool
) -> None:
    config = read(root, name)
    assert not any(type_.endswith('LoadAnnotations') for type_ in types(config.test_dataloader.dataset.pipeline))
    load_ground_truth(config)
    load_ground_truth(config)
    assert types(config.test_dataloader.dataset.pipeline) == [
        'LoadImageFromFile', 'Resize', 'bioattn_mm.CheckedLoadAnnotations', 'PackDetInputs',
    ]  # fmt: skip

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


def test_ground_truth_without_training_is_boxes() -> None:
    config = Config(dict(test_dataloader=dict(dataset=dict(data_root='', pipeline=[dict(type='PackDetInputs')]))))
    load_ground_truth(config)
    assert config.test_dataloader.dataset.pipeline[0] == dict(
        type='bioattn_mm.CheckedLoadAnnotations', with_bbox=True
    )


def test_ground_truth_of_segmentation_is_there(root: Path) -> None:
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
