# UperNet with an auxiliary FCN head; a config adds the backbone and the `in_channels` of both heads.
_base_ = './imagenet_pixels.py'
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', size=(512, 512), pad_val=0, seg_pad_val=255),
    decode_head=dict(
        type='bioattn_mm.UPerHead',
        in_index=[0, 1, 2, 3],
        pool_scales=(1, 2, 3, 6),
        channels=512,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    auxiliary_head=dict(
        type='bioattn_mm.FCNHead',
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=0.4),
    ),
    train_cfg=dict(),
    # At one scale, a window of the training size slides over the image; `tools/test.py --tta` takes whole images.
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)),
)
tta_overrides = dict(model=dict(test_cfg=dict(mode='whole')))
