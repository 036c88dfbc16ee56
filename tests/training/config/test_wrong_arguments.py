"""What the options of a training refuse."""

from collections.abc import Callable

import pytest
from mmengine.config import Config

from bioattn_mm.errors import InputError
from bioattn_mm.training.config.classes import set_classes
from bioattn_mm.training.config.computation import set_computation
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.mini import make_mini
from bioattn_mm.training.config.samples import set_fraction

from ...needs import needs

UPERNET, MASK_RCNN = 'transnext/upernet_micro_ade20k', 'transnext/mask_rcnn_tiny_coco'
PLAIN = Config(dict(model=dict(backbone=dict(num_classes=10)), optim_wrapper={}))
FEW = dict(dataloaders=('train_dataloader',), cfg_options={'model.auxiliary_head.num_classes': 149})
CITYSCAPES = {'train_dataloader.dataset.type': 'CityscapesDataset'}
REFUSED = [
    (lambda: load_config('mask_rcnn', backbone='vit_small_patch14_dinov2'), '--backbone takes timm/NAME'),
    (lambda: load_config('mask_rcnn', backbone='timm/vit_smal'), "has no model 'vit_smal'"),
    (lambda: load_config('mask_rcnn', backbone='timm/levit_128s'), 'of strides 16, 32, .* wants 4, 8, 16, 32'),
    (lambda: load_config('gab/upernet_vit_small_ade20k', bias_mode='linear'), '--bias-mode is for .*TransNeXt'),
    (lambda: load_config(UPERNET, bias_mode='cubic'), "extrapolate, interpolate, linear, unscaled, got 'cubic'"),
    (lambda: load_config(UPERNET, **FEW), '^model.auxiliary_head has num_classes=149: expected .* 150$'),
    (lambda: set_classes(PLAIN, ()), 'no classes'),
    (lambda: set_classes(PLAIN, ('bolt', 'nut', 'bolt')), "the class 'bolt' stands twice"),
    (lambda: set_classes(PLAIN, ('bolt', 'nut'), [(255, 0, 0)]), 'the palette has 1 colours for 2 classes'),
    (lambda: set_classes(PLAIN, ('bolt', 'nut')), 'the model of None states no num_classes'),
    (lambda: set_computation(PLAIN, compile='gcc'), "has no backend 'gcc': expected one of .*inductor"),
    (lambda: set_computation(PLAIN, cuda_graphs=16, strategy='fsdp.py'), '--cuda-graphs goes with data parallel'),
    pytest.param(lambda: set_computation(PLAIN, cuda_graphs=16), '--cuda-graphs needs a GPU', marks=needs('no GPU')),
    (lambda: set_fraction(load_config(MASK_RCNN), 0.5), 'one class an image; mask_rcnn_tiny_coco.py has CocoDataset'),
    (lambda: set_fraction(PLAIN, 10.0), 'above 0 and at most 1, got 10.0'),
    (lambda: make_mini(load_config(UPERNET, cfg_options=CITYSCAPES)), 'no miniature of CityscapesDataset: expected'),
]


@pytest.mark.parametrize(('call', 'message'), REFUSED)
def test_what_is_refused(call: Callable[[], None], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
