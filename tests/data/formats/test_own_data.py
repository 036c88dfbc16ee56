"""What own data change in a config."""

from pathlib import Path

import pytest
from mmengine.config import Config

from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.own_data import keep_data_files

from ...own_folders import images_of, write_coco_folder, write_mask_folder
from .conftest import VAL_SEEDS

ROOT = Path(__file__).parents[3]
DETECTOR, SEGMENTOR = (str(ROOT / f'tests/tools/{name}_small.py') for name in ('mask_rcnn', 'upernet'))


def test_a_config_of_a_detector(parts: Path, tmp_path: Path) -> None:
    path = str(ROOT / 'configs/transnext/mask_rcnn_tiny_coco.py')
    before = Config.fromfile(path)
    config = load_config(path, data=DataArguments(str(parts)))
    assert config.model.roi_head.mask_head.num_classes == 3
    assert config.auto_scale_lr == dict(enable=True, base_batch_size=16)
    named = load_config(path, data=DataArguments(str(parts)), cfg_options={'optim_wrapper.optimizer.lr': 1e-3})
    assert named.optim_wrapper.optimizer.lr == 1e-3 and not named.auto_scale_lr.enable
    dataset = config.train_dataloader.dataset
    assert dataset.type == 'CocoDataset' and dataset.filter_cfg == before.train_dataloader.dataset.filter_cfg
    assert len(dataset.pipeline) == len(load_config(path).train_dataloader.dataset.pipeline)
    for evaluator in (config.val_evaluator, config.test_evaluator):
        assert evaluator.ann_file == config.val_dataloader.dataset.ann_file
        assert evaluator.metric == ['bbox', 'segm']

    # The files of the split move to the work dir.
    keep_data_files(config, str(tmp_path / 'run'))
    files = {config.test_evaluator.ann_file, config.test_dataloader.dataset.ann_file}
    assert files == {f'{tmp_path}/run/data/val.json'}
    assert len(images_of(config.val_dataloader.dataset)) == 1


def test_wrapped_datasets_and_other_evaluators(parts: Path, tmp_path: Path) -> None:
    path = tmp_path / 'config.py'
    path.write_text(
        f"_base_ = '{ROOT}/configs/transnext/dino_4scale_micro_coco.py'\n"
        "inner = dict(type='VOCDataset', data_root='data/voc', ann_file='a.txt', pipeline=[dict(type='Resize')])\n"
        "wrapped = dict(type='ConcatDataset', datasets=[inner, inner])\n"
        "mosaic = dict(type='MultiImageMixDataset', dataset=wrapped, pipeline=[dict(type='Mosaic')])\n"
        "train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=3, dataset=mosaic))\n"
        "val_evaluator = dict(_delete_=True, type='VOCMetric', metric='mAP')\n"
        "test_evaluator = [dict(type='VOCMetric', metric='mAP')]\n"
    )
    config = load_config(str(path), data=DataArguments(str(parts)))
    assert config.train_dataloader.dataset.type == 'MultiImageMixDataset'
    inner = config.train_dataloader.dataset.dataset
    assert inner.type == 'CocoDataset' and inner.pipeline == [dict(type='Resize')]
    ann_file = config.val_dataloader.dataset.ann_file
    assert config.val_evaluator == dict(type='CocoMetric', metric='bbox', ann_file=ann_file)
    assert config.test_evaluator == [config.val_evaluator]
    assert config.default_hooks.checkpoint.save_best == 'auto'


def test_validation_on_the_training_images_is_said(scenes: Path, parts: Path, tmp_path: Path) -> None:
    link = tmp_path / 'link'
    link.symlink_to(scenes)
    for config, data, val_data, said in (
        (SEGMENTOR, scenes, scenes, 1),
        (SEGMENTOR, scenes, link, 1),
        (SEGMENTOR, scenes, write_mask_folder(tmp_path / 'more', VAL_SEEDS), 0),
        (DETECTOR, parts, parts / 'annotations.json', 1),
        (DETECTOR, parts, write_coco_folder(tmp_path / 'new', VAL_SEEDS), 0),
    ):
        lines = load_config(config, data=DataArguments(str(data), val_data=str(val_data))).own_data
        assert sum('validated on the images that are trained on' in line for line in lines) == said


def test_what_is_refused(scenes: Path, tmp_path: Path) -> None:
    path = tmp_path / 'config.py'
    path.write_text("model = dict()\ndefault_scope = 'mmpose'\ntest_dataloader = test_evaluator = dict()\n")
    with pytest.raises(InputError, match='own data are for .* and classifiers, .* is a config of mmpose'):
        load_config(str(path), data=DataArguments(str(scenes)))
    with pytest.raises(InputError, match='no training images: found val alone; name them with --train-data'):
        load_config(SEGMENTOR, data=DataArguments(val_data=str(scenes)), dataloaders=('train_dataloader',))
