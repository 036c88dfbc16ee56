"""What `--mini` makes of a config."""

from functools import partial
from pathlib import Path

import pytest
from mmengine.config import Config

from bioattn_mm.data.mini import make_mini_datasets
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.mini import MINI_FOLDERS, ensure_mini_data, make_mini

from ...conftest import ROOT


def read(name: str) -> Config:
    return Config.fromfile(ROOT / f'configs/{name}.py')


@pytest.fixture
def config() -> Config:
    return read('transnext/upernet_base_ade20k')


def test_data_sizes_and_schedule_shrink_and_the_architecture_stays(config: Config) -> None:
    before = config.pretty_text
    mini = make_mini(config)
    assert config.pretty_text == before
    for dataloader in (mini.train_dataloader, mini.val_dataloader, mini.test_dataloader):
        assert dataloader.dataset.data_root == 'data/mini/ADEChallengeData2016'
    crop = next(t for t in mini.train_dataloader.dataset.pipeline if t.type == 'bioattn_mm.CountedRandomCrop')
    resize = next(t for t in mini.test_dataloader.dataset.pipeline if t.type == 'Resize')
    assert crop.crop_size == mini.model.data_preprocessor.size == (128, 128)
    assert tuple(resize.scale) == (512, 128)
    assert mini.model.test_cfg == dict(mode='slide', crop_size=(128, 128), stride=(85, 85))
    assert mini.train_cfg == dict(type='IterBasedTrainLoop', max_iters=200, val_interval=100)
    assert mini.param_scheduler == [
        dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=20),
        dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=20, end=200),
    ]
    loader, hooks = mini.train_dataloader, mini.default_hooks
    assert (loader.batch_size, loader.num_workers, loader.persistent_workers) == (2, 2, True)
    assert loader.sampler == dict(type='InfiniteSampler', shuffle=True)
    assert not mini.val_dataloader.persistent_workers and mini.val_dataloader.num_workers == 1
    assert (hooks.logger.interval, hooks.logger.log_metric_by_epoch) == (10, False)
    assert (hooks.checkpoint.interval, hooks.checkpoint.by_epoch, hooks.checkpoint.max_keep_ckpts) == (100, False, 1)
    assert mini.log_processor == dict(by_epoch=False) and not mini.env_cfg.cudnn_benchmark
    assert mini.randomness == dict(seed=0)

    backbone = mini.model.backbone
    assert (backbone.arch, backbone.init_cfg, backbone.drop_path_rate) == ('base', None, 0)
    assert mini.model.decode_head.channels == 512
    assert 'SyncBN' not in mini.pretty_text


def test_paths_inside_the_data_root_move_with_it(config: Config) -> None:
    config.val_evaluator.ann_file = 'data/ade/ADEChallengeData2016/annotations.json'
    config.val_evaluator.other_file = 'data/ade/ADEChallengeData2016b/annotations.json'
    mini = make_mini(config)
    assert mini.val_evaluator.ann_file == 'data/mini/ADEChallengeData2016/annotations.json'
    assert mini.val_evaluator.other_file == config.val_evaluator.other_file


def test_only_sizes_in_pixels_shrink(config: Config) -> None:
    """Not what has such a name elsewhere, and not small numbers."""
    unchanged = dict(scales=[256], stride=(128, 128), size=512, num=1000)
    config.model.decode_head.update(unchanged)
    config.train_dataloader.dataset.pipeline.append(dict(type='Grid', size=(7, 7)))
    mini = make_mini(config)
    assert {key: mini.model.decode_head[key] for key in unchanged} == unchanged
    assert mini.train_dataloader.dataset.pipeline[-1].size == (7, 7)


def test_configs_of_other_datasets_and_heads(config: Config) -> None:
    """Inside of dataset wrappers, of other steps, and of lists of heads."""
    dataset = config.train_dataloader.dataset
    mosaic = dict(type='MultiImageMixDataset', dataset=dataset, pipeline=[dict(type='Mosaic', img_scale=(640, 640))])
    config.train_dataloader.dataset = dict(type='RepeatDataset', dataset=dict(datasets=[mosaic, dataset]))
    config.model.data_preprocessor.batch_augments = [dict(type='BatchSyncRandomResize', size=(640, 640))]
    config.model.train_cfg = dict(rcnn=[dict(sampler=dict(num=512)), dict(sampler=dict(num=32))])
    config.model.decode_head.img_size = (768, 768)
    config.model.roi_head = dict(bbox_head=[dict(test_cfg=dict(max_per_img=100))])
    mini = make_mini(config)
    mosaic, dataset = mini.train_dataloader.dataset.dataset.datasets
    assert mosaic.pipeline[0].img_scale == (160, 160)
    for pipeline in (mosaic.dataset.pipeline, dataset.pipeline):
        assert next(step for step in pipeline if step.type == 'bioattn_mm.CountedRandomCrop').crop_size == (128, 128)
    assert [resize.scale for resize in mini.tta_pipeline[1].transforms[0]][:2] == [(256, 64), (384, 96)]
    assert mini.model.data_preprocessor.batch_augments[0].size == (160, 160)
    assert [head.sampler.num for head in mini.model.train_cfg.rcnn] == [64, 32]
    assert mini.model.decode_head.img_size == (192, 192)
    assert mini.model.roi_head.bbox_head[0].test_cfg.max_per_img == 64


def test_counts_and_rates_of_mask_rcnn() -> None:
    config = read('transnext/mask_rcnn_tiny_coco')
    mini = make_mini(config)
    assert mini.model.train_cfg.rcnn.sampler.num == mini.model.test_cfg.rpn.max_per_img == 64
    assert mini.model.rpn_head.anchor_generator == config.model.rpn_head.anchor_generator
    assert mini.val_evaluator.ann_file == 'data/mini/coco/annotations/instances_val2017.json'
    assert mini.optim_wrapper.optimizer.lr == 1e-3


def test_counts_and_rates_of_dino() -> None:
    config = read('transnext/dino_5scale_tiny_coco')
    mini = make_mini(config)
    assert (mini.model.num_queries, mini.model.test_cfg.max_per_img) == (300, 64)
    assert [(scheduler.begin, scheduler.end) for scheduler in mini.param_scheduler] == [(0, 20), (140, 200)]
    assert mini.model.encoder == config.model.encoder
    resize = mini.train_dataloader.dataset.pipeline[3].transforms[0][0]
    assert (tuple(resize.scales[0]), tuple(resize.scales[-1])) == ((120, 333), (200, 333))
    assert mini.optim_wrapper.optimizer.lr == 2e-4
    assert mini.optim_wrapper.paramwise_cfg.custom_keys.backbone.lr_mult == 1.0


def test_counts_of_mask2former() -> None:
    mini = make_mini(read('transnext/mask2former_tiny_ade20k'))
    head = mini.model.decode_head
    assert (head.num_queries, head.train_cfg.num_points) == (64, 12544 // 16)
    assert head.pixel_decoder.encoder.layer_cfg.self_attn_cfg.num_points == 4  # of deformable attention, not of masks
    assert [(scheduler.begin, scheduler.end) for scheduler in mini.param_scheduler] == [(0, 20), (20, 200)]


def test_one_rate_for_all_parameters() -> None:
    config = read('gab/upernet_vit_small_ade20k')
    assert config.optim_wrapper.paramwise_cfg.layer_decay_rate < 1
    assert make_mini(config).optim_wrapper.paramwise_cfg.layer_decay_rate == 1.0


def test_classifiers() -> None:
    config = read('transnext/transnext-micro_8xb128_in1k')
    config.model.init_cfg = dict(type='Pretrained', checkpoint='classifier.pth')
    config.custom_hooks.append(dict(type='bioattn_mm.ShardableEMAHook', momentum=1e-4))
    mini = make_mini(config)
    for dataloader in (mini.train_dataloader, mini.val_dataloader, mini.test_dataloader):
        assert dataloader.dataset.data_root == 'data/mini/imagenet'
    steps = {step.type: step for step in mini.train_dataloader.dataset.pipeline}
    assert list(steps) == ['LoadImageFromFile', 'RandomResizedCrop', 'RandomFlip', 'PackInputs']
    assert steps['RandomResizedCrop'].scale == 56
    steps = {step.type: step for step in mini.test_dataloader.dataset.pipeline}
    assert (steps['ResizeEdge'].scale, steps['CenterCrop'].crop_size) == (64, 56)
    assert mini.model.train_cfg is mini.model.init_cfg is None
    assert mini.model.head.num_classes == 1000
    assert mini.train_dataloader.batch_size == 16
    assert mini.optim_wrapper.optimizer.lr == 4e-4
    assert [hook.get('momentum') for hook in mini.custom_hooks] == [None, 0.1]


def test_dataset_without_a_miniature(config: Config) -> None:
    config.train_dataloader.dataset.type = 'CityscapesDataset'
    with pytest.raises(InputError, match='no miniature of CityscapesDataset: expected one of ADE20KDataset'):
        make_mini(config)


@pytest.mark.parametrize(
    ('manifest', 'message'),
    [
        ('{"format": 1, "num_files": 3}', 'drawn by another version of bioattn_mm: remove it, to draw'),
        ('{', 'miniature.json is damaged, .*: remove '),
    ],
)
def test_miniature_that_cannot_be_used(manifest: str, message: str, tmp_path: Path) -> None:
    for folder in set(MINI_FOLDERS.values()):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / 'miniature.json').write_text(manifest)
    with pytest.raises(InputError, match=message):
        ensure_mini_data(str(tmp_path))


def test_only_absent_miniatures_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of an earlier version has two, maybe made with other arguments than these are made with."""
    make_mini_datasets(tmp_path, 2, 1, progress=False, names=('ade20k', 'coco'))
    monkeypatch.setattr(
        'bioattn_mm.training.config.mini.make_mini_datasets', partial(make_mini_datasets, num_train=1, num_val=1)
    )
    ensure_mini_data(str(tmp_path))
    numbers = {folder: len(list((tmp_path / folder).rglob('*.[jJ]*[gG]'))) for folder in MINI_FOLDERS.values()}
    assert numbers == dict(ADEChallengeData2016=3, coco=3, imagenet=2)
