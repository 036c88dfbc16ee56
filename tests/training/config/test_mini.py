"""What `--mini` makes of a config."""

from functools import partial
from pathlib import Path

import pytest
from mmengine.config import Config

from bioattn_mm.data.mini import make_mini_datasets
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.mini import MINI_FOLDERS, ensure_mini_data, make_mini, with_mini_test_data

from ...conftest import ROOT

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
WARM_UP = dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=20)
DECAY = dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=20, end=200)

# Values of the miniatures. What is of the architecture stays.
MINIATURES = {
    'transnext/upernet_base_ade20k': {
        'train_dataloader.dataset.pipeline.3.crop_size': (128, 128),
        'train_dataloader.sampler': dict(type='InfiniteSampler', shuffle=True),
        'train_dataloader.batch_size': 2, 'train_dataloader.num_workers': 2,
        'train_dataloader.persistent_workers': True,
        'val_dataloader.num_workers': 1, 'val_dataloader.persistent_workers': False,
        'test_dataloader.dataset.pipeline.1.scale': (512, 128),
        'model.backbone': dict(arch='base', init_cfg=None, drop_path_rate=0.0),
        'model.decode_head': dict(channels=512, norm_cfg=dict(type='BN')),
        'model.data_preprocessor.size': (128, 128),
        'model.test_cfg': dict(mode='slide', crop_size=(128, 128), stride=(85, 85)),
        'train_cfg': dict(type='IterBasedTrainLoop', max_iters=200, val_interval=100),
        'param_scheduler': [WARM_UP, DECAY],
        'default_hooks.logger': dict(interval=10, log_metric_by_epoch=False),
        'default_hooks.checkpoint': dict(interval=100, by_epoch=False, max_keep_ckpts=1),
        'log_processor.by_epoch': False, 'env_cfg.cudnn_benchmark': False, 'randomness.seed': 0,
    },
    'transnext/mask_rcnn_tiny_coco': {
        'model.train_cfg.rcnn.sampler.num': 64, 'model.test_cfg.rpn.max_per_img': 64,
        'model.rpn_head.anchor_generator.scales': [8],
        'val_evaluator.ann_file': 'data/mini/coco/annotations/instances_val2017.json',
        'optim_wrapper.optimizer.lr': 1e-3,
    },
    'transnext/dino_5scale_tiny_coco': {
        'model.num_queries': 300, 'model.test_cfg.max_per_img': 64, 'model.encoder.num_layers': 6,
        'param_scheduler': [WARM_UP, dict(DECAY, begin=140)],
        'optim_wrapper.optimizer.lr': 2e-4, 'optim_wrapper.paramwise_cfg.custom_keys.backbone.lr_mult': 1.0,
    },
    'transnext/mask2former_tiny_ade20k': {
        'model.decode_head.num_queries': 64, 'model.decode_head.train_cfg.num_points': 12544 // 16,
        # Of deformable attention, not of masks.
        'model.decode_head.pixel_decoder.encoder.layer_cfg.self_attn_cfg.num_points': 4,
    },
    'gab/gabswin-small_8xb128_in1k': {'model.backbone.pad_small_map': True},
    'gab/upernet_vit_small_ade20k': {'optim_wrapper.paramwise_cfg.layer_decay_rate': 1.0},
    'transnext/transnext-micro_8xb128_in1k': {
        'train_dataloader.dataset.pipeline.1.scale': 56, 'train_dataloader.dataset.pipeline.3.type': 'PackInputs',
        'train_dataloader.batch_size': 16,
        'test_dataloader.dataset.pipeline.1.scale': 64, 'test_dataloader.dataset.pipeline.2.crop_size': 56,
        'model.train_cfg': None, 'model.head.num_classes': 1000, 'optim_wrapper.optimizer.lr': 4e-4,
    },
}  # fmt: skip


def read(name: str) -> Config:
    return Config.fromfile(ROOT / f'configs/{name}.py')


def assert_has(config: Config, values: dict) -> None:
    """Values by dotted key."""
    found = config.to_dict()
    config.merge_from_dict(values)
    assert config.to_dict() == found


@pytest.mark.parametrize('name', MINIATURES)
def test_data_sizes_and_schedule_shrink_and_the_architecture_stays(name: str) -> None:
    config = read(name)
    before = config.pretty_text
    mini = make_mini(config)
    assert config.pretty_text == before and 'SyncBN' not in mini.pretty_text
    assert mini.filename == with_mini_test_data(config).filename == config.filename
    assert_has(mini, MINIATURES[name])
    folders = dict(ade20k='ADEChallengeData2016', coco='coco', in1k='imagenet')
    for loader in LOADERS:
        assert mini[loader].dataset.data_root == f'data/mini/{folders[name.split("_")[-1]]}'


def test_what_shrinks_wherever_it_is_and_what_only_has_such_a_name() -> None:
    """Inside of dataset wrappers, of other steps, and of lists of heads."""
    config = read('transnext/upernet_base_ade20k')
    dataset = config.train_dataloader.dataset
    dataset.pipeline.append(dict(type='Grid', size=(7, 7)))
    steps = [dict(type='Mosaic', img_scale=(640, 640)), dict(type='RandomChoiceResize', scales=[(480, 1333)])]
    mosaic = dict(type='MultiImageMixDataset', dataset=dataset, pipeline=steps)
    config.train_dataloader.dataset = dict(type='RepeatDataset', dataset=dict(datasets=[mosaic, dataset]))
    unchanged = dict(scales=[256], stride=(128, 128), size=512, num=1000)
    config.model.decode_head.update(img_size=(768, 768), **unchanged)
    config.model.update(
        train_cfg=dict(rcnn=[dict(sampler=dict(num=512)), dict(sampler=dict(num=32))], num_points=9),
        roi_head=dict(bbox_head=[dict(test_cfg=dict(max_per_img=100))]),
        init_cfg=dict(type='Pretrained', checkpoint='segmentor.pth'),
    )
    config.model.data_preprocessor.batch_augments = [dict(type='BatchSyncRandomResize', size=(640, 640))]
    config.custom_hooks.append(dict(type='bioattn_mm.ShardableEMAHook', momentum=1e-4))
    other = 'data/ade/ADEChallengeData2016b/annotations.json'
    config.val_evaluator.update(ann_file='data/ade/ADEChallengeData2016/annotations.json', other_file=other)
    mini = make_mini(config)
    mosaic, dataset = mini.train_dataloader.dataset.dataset.datasets
    assert mosaic.pipeline[0].img_scale == (160, 160) and mosaic.pipeline[1].scales == [(120, 333)]
    assert mosaic.dataset == dataset and dataset.pipeline[-1].size == (7, 7)
    expected = {
        'train_dataloader.dataset.dataset.datasets.1.pipeline.3.crop_size': (128, 128),
        'tta_pipeline.1.transforms.0.0.scale': (256, 64), 'tta_pipeline.1.transforms.0.1.scale': (384, 96),
        'model.data_preprocessor.batch_augments.0.size': (160, 160),
        'model.decode_head': dict(unchanged, img_size=(192, 192)), 'model.init_cfg': None,
        'model.train_cfg.rcnn.0.sampler.num': 64, 'model.train_cfg.rcnn.1.sampler.num': 32,
        'model.roi_head.bbox_head.0.test_cfg.max_per_img': 64, 'model.train_cfg.num_points': 1,
        'val_evaluator': dict(ann_file='data/mini/ADEChallengeData2016/annotations.json', other_file=other),
    }  # fmt: skip
    assert_has(mini, expected)
    assert [hook.get('momentum') for hook in mini.custom_hooks] == [None, 0.1]


@pytest.mark.parametrize('left_out', [('env_cfg', 'default_hooks'), ('val_dataloader', 'val_evaluator', 'val_cfg')])
def test_what_a_config_may_leave_out(left_out: tuple[str, ...]) -> None:
    config = read('transnext/upernet_base_ade20k')
    for key in left_out:
        config.pop(key)
    mini = make_mini(config)
    assert mini.env_cfg.cudnn_benchmark is False and mini.default_hooks.checkpoint.interval == 100
    assert ('val_dataloader' in mini) == ('val_dataloader' in config)


def test_miniatures_that_are_there_stay_or_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of an earlier version may have one that was made with other arguments than these are made with."""
    make_mini_datasets(tmp_path, 2, 1, progress=False, names=('ade20k',))
    monkeypatch.setattr(
        'bioattn_mm.training.config.mini.make_mini_datasets', partial(make_mini_datasets, num_train=1, num_val=1)
    )
    config = Config(dict(
        train_dataloader=dict(dataset=dict(datasets=[dict(data_root=f'{tmp_path}/ADEChallengeData2016')])),
        test_dataloader=dict(dataset=dict(data_root=f'{tmp_path}/imagenet')),
        val_dataloader=dict(dataset=dict(data_root=f'{tmp_path}/coco')),
    ))  # fmt: skip
    ensure_mini_data(config, ('train_dataloader', 'test_dataloader'), str(tmp_path))
    numbers = {folder: len(list((tmp_path / folder).rglob('*.[jJ]*[gG]'))) for folder in MINI_FOLDERS.values()}
    assert numbers == dict(ADEChallengeData2016=3, coco=0, imagenet=2)
    for content, message in (('{"format": 1, "num_files": 3}', 'drawn by another version'), ('{', 'is damaged, ')):
        (tmp_path / 'imagenet/miniature.json').write_text(content)
        ensure_mini_data(config, ('train_dataloader', 'val_dataloader'), str(tmp_path))  # do not read it
        with pytest.raises(InputError, match=f'{message}.*: remove '):
            ensure_mini_data(config, LOADERS, str(tmp_path))
