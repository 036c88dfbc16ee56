"""Setting the classes of a config."""

import numpy as np
import pytest
from mmengine.config import Config
from scipy.spatial.distance import pdist
from skimage.color import rgb2lab

from bioattn_mm.training.config.classes import classes_of, default_palette, leaf_dataset_configs, set_classes
from bioattn_mm.training.config.model_check import state_dict_of

from ...conftest import ROOT

CLASSES = ('bolt', 'nut', 'washer')
PALETTE = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]

# All parameters that change with the number of classes, and the first number of their shape for three of them.
HEADS = {
    'upernet_micro_ade20k': dict.fromkeys(('decode_head.conv_seg', 'auxiliary_head.conv_seg'), 3),
    'mask2former_micro_ade20k': {'decode_head.cls_embed': 4},  # and 'no object'
    'mask_rcnn_micro_coco': {
        'roi_head.bbox_head.fc_cls': 4, 'roi_head.bbox_head.fc_reg': 12, 'roi_head.mask_head.conv_logits': 3
    },
    # One for each of 6 decoder layers, and one for the encoder's proposals.
    'dino_4scale_micro_coco': {'dn_query_generator.label_embedding': 3}
    | {f'bbox_head.cls_branches.{i}': 3 for i in range(7)},
}  # fmt: skip


@pytest.mark.parametrize('name', HEADS)
def test_heads_of_the_configs_here(name: str) -> None:
    config = Config.fromfile(ROOT / f'configs/transnext/{name}.py')
    before = state_dict_of(config)
    set_classes(config, CLASSES, PALETTE)
    after = state_dict_of(config)
    assert list(before) == list(after)
    changed = {key: len(value) for key, value in after.items() if value.shape != before[key].shape}
    weights = {key.removesuffix('.weight'): length for key, length in changed.items() if not key.endswith('bias')}
    assert weights == HEADS[name]
    for dataloader in (config.train_dataloader, config.val_dataloader, config.test_dataloader):
        assert dataloader.dataset.metainfo == dict(classes=CLASSES, palette=PALETTE)


def test_lists_of_heads_and_wrapped_datasets() -> None:
    heads = [dict(num_classes=80, loss_cls=dict(class_weight=[1.0] * 81)) for _ in range(3)]
    dataset = dict(type='CocoDataset', ann_file='a.json', metainfo=dict(sensor='left'))
    mosaic = dict(type='MultiImageMixDataset', dataset=dataset, pipeline=[dict(type='Mosaic')])
    balanced = dict(type='ClassBalancedDataset', oversample_thr=0.1, dataset=dataset)
    joined = dict(type='ConcatDataset', datasets=[mosaic, balanced])
    model = dict(
        backbone=dict(num_classes=1000),
        rpn_head=dict(num_classes=1),
        roi_head=dict(bbox_head=heads, mask_iou_head=dict(num_classes=80)),
        panoptic_head=dict(num_things_classes=80, num_stuff_classes=53),
        panoptic_fusion_head=dict(num_things_classes=0, num_stuff_classes=150),
    )
    loader = dict(dataset=dict(type='RepeatDataset', times=2, dataset=joined))
    config = Config(dict(model=model, train_dataloader=loader, val_dataloader=None))
    set_classes(config, CLASSES, [*PALETTE, (9, 9, 9)])  # mmdet's checkpoints have more colours than classes
    model = config.model
    assert [head.num_classes for head in model.roi_head.bbox_head] == [3, 3, 3]
    assert model.roi_head.bbox_head[0].loss_cls.class_weight == [1.0] * 4
    assert model.roi_head.mask_iou_head.num_classes == 3
    assert model.panoptic_head == dict(num_things_classes=3, num_stuff_classes=0)
    assert model.panoptic_fusion_head == dict(num_things_classes=0, num_stuff_classes=3)
    assert model.backbone.num_classes == 1000 and model.rpn_head.num_classes == 1
    leaves = list(leaf_dataset_configs(config.train_dataloader.dataset))
    assert [leaf.metainfo for leaf in leaves] == [dict(sensor='left', classes=CLASSES, palette=PALETTE)] * 2
    config.update(default_scope='mmdet', test_dataloader=config.train_dataloader)
    assert classes_of(config) == (CLASSES, PALETTE)


def test_segmentation_heads() -> None:
    binary = dict(num_classes=2, out_channels=1, threshold=0.3)
    queries = dict(num_classes=150, out_channels=256, loss_mask=dict(class_weight=2.0))  # channels of feature maps
    weights = dict(loss_cls=dict(class_weight=[1.0] * 150 + [0.1]), loss_dice=dict(class_weight=[0.5] * 150))
    of_three = dict(loss_cls=dict(class_weight=[1.0, 1.0, 1.0, 0.1]), loss_dice=dict(class_weight=None))
    for stated, number, expected in (
        (dict(num_classes=150, out_channels=150), 3, dict(num_classes=3, out_channels=3)),
        (binary, 3, dict(num_classes=3, out_channels=3)),
        (binary, 2, binary),
        (queries | weights, 3, queries | of_three | dict(num_classes=3)),
    ):
        config = Config(dict(model=dict(decode_head=stated)))
        set_classes(config, CLASSES[:number])
        assert config.model.decode_head == expected


def test_classifiers() -> None:
    config = Config(
        dict(
            model=dict(head=dict(num_classes=1000, topk=(1, 5)), train_cfg=dict(augments=dict(num_classes=1000))),
            data_preprocessor=dict(num_classes=1000),
            val_evaluator=[dict(type='Accuracy', topk=(1, 3, 5)), dict(type='Accuracy', topk=5)],
            test_evaluator=dict(type='Accuracy', topk=(5,)),
        )
    )
    set_classes(config, CLASSES)
    assert config.model == dict(head=dict(num_classes=3, topk=(1,)), train_cfg=dict(augments=dict(num_classes=3)))
    assert config.data_preprocessor.num_classes == 3
    assert [each.topk for each in config.val_evaluator] == [(1, 3), 3]
    assert config.test_evaluator.topk == (1,)


def test_default_palette() -> None:
    """As scikit-image measures how different colours look: CIE76, where 2.3 is just to be seen."""
    palette = default_palette(1203)  # LVIS has as many classes
    colours = rgb2lab(np.array(palette) / 255)
    for number, least in ((11, 50), (20, 40), (150, 10)):
        assert palette[:number] == default_palette(number)
        assert pdist(colours[:number]).min() > least
    assert {value for colour in palette for value in colour} <= {*range(256)}
