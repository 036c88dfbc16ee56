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


@pytest.mark.parametrize(
    ('steps', 'preprocessor', 'reason'),
    [
        ([], dict(test_cfg=dict(size=(64, 64))), 'pads images to a size .*: take size_divisor'),
        ([dict(type='LoadImageFromFile', color_type='grayscale')], {}, 'a step LoadImageFromFile, .*grayscale'),
        (
            [dict(type='mmcv.LoadImageFromFile', imdecode_backend='tifffile')],
            {},
            'a step LoadImageFromFile, .*tifffile',
        ),
        ([dict(type='CenterCrop', crop_size=64, auto_pad=True)], {}, 'a step CenterCrop, .*auto_pad'),
    ],
)
def test_what_it_cannot_describe_is_refused(steps: list[dict], preprocessor: dict, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        preprocessing_of(config_of(*steps, **preprocessor))


@pytest.mark.parametrize(
    ('head', 'threshold'),
    [
        (dict(num_classes=2, out_channels=1), 0.3),
        (dict(num_classes=2, out_channels=1, threshold=0.0), 0.0),
        (dict(num_classes=1), 0.3),
        (dict(num_classes=2), None),
    ],
)
def test_one_output_channel_has_mmsegs_threshold(head: dict, threshold: float | None) -> None:
    found = postprocessing_of(Config(dict(model=dict(decode_head=head))), 'segmentation')
    assert found.get('threshold') == threshold
