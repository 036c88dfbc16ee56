"""What `pipeline.json` says of a config, and what it cannot say."""

import pytest
from mmengine.config import Config

from bioattn_mm.errors import InputError
from bioattn_mm.export.pipeline import postprocessing_of, preprocessing_of


def config_of(*steps: dict, scope: str = 'mmdet', **preprocessor: object) -> Config:
    dataset = dict(pipeline=[dict(type='LoadImageFromFile'), *steps])
    model = dict(data_preprocessor=preprocessor, backbone=dict())
    return Config(dict(default_scope=scope, model=model, test_dataloader=dict(dataset=dataset)))


@pytest.mark.parametrize('swap', ['bgr_to_rgb', 'rgb_to_bgr'])
def test_the_order_of_channels_without_normalisation(swap: str) -> None:
    for mean in (dict(), dict(mean=None, std=None)):
        assert preprocessing_of(config_of(**mean)) == []
        (step,) = preprocessing_of(config_of(**{swap: True}, **mean))
        assert step == dict(type='normalize', mean=[0.0] * 3, std=[1.0] * 3, channels='RGB')


def test_what_it_cannot_describe_is_refused() -> None:
    with pytest.raises(InputError, match='pads images to a size .*: take size_divisor'):
        preprocessing_of(config_of(test_cfg=dict(size=(64, 64))))
    for option in (dict(color_type='grayscale'), dict(imdecode_backend='tifffile')):
        with pytest.raises(InputError, match=f'a step LoadImageFromFile, .*{next(iter(option.values()))}'):
            preprocessing_of(config_of(dict(type='mmcv.LoadImageFromFile', **option)))
    with pytest.raises(InputError, match='a step CenterCrop, .*auto_pad'):
        preprocessing_of(config_of(dict(type='CenterCrop', crop_size=64, auto_pad=True)))


def test_one_output_channel_has_mmsegs_threshold() -> None:
    for head, threshold in (
        (dict(num_classes=2, out_channels=1), 0.3),
        (dict(num_classes=2, out_channels=1, threshold=0.0), 0.0),
        (dict(num_classes=1), 0.3),
        (dict(num_classes=2), None),
    ):
        found = postprocessing_of(Config(dict(model=dict(decode_head=head))), 'segmentation')
        assert found.get('threshold') == threshold
