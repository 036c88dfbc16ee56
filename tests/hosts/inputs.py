"""Images with annotations for models of mmdet and mmseg, and what each model must do with them."""

import torch
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from torch import nn


def inputs_for(config: Config, size: tuple[int, int], with_mask: bool = False) -> dict:
    """Two images with annotations."""
    if config.default_scope == 'mmdet':
        return demo_mm_inputs(2, [[3, *size]] * 2, num_items=[3, 2], num_classes=80, with_mask=with_mask)
    samples = [
        SegDataSample(
            gt_sem_seg=PixelData(data=torch.randint(19, (1, *size))),
            metainfo=dict(ori_shape=size, img_shape=size, pad_shape=size),
        )
        for _ in range(2)
    ]
    return dict(inputs=[torch.randint(256, (3, *size)) for _ in samples], data_samples=samples)


def after_a_step(config: Config, inputs: dict) -> nn.Module:
    """The model of a config, whose weights come from no file, with the gradients of a finite loss."""
    init_default_scope(config.default_scope)
    model = revert_sync_batchnorm(MODELS.build(config.model)).train()
    model.init_weights()  # else embeddings of levels, such as DINO's, are what memory held
    loss, _ = model.parse_losses(model(**model.data_preprocessor(inputs, training=True), mode='loss'))
    assert loss.isfinite()
    loss.backward()
    return model


@torch.no_grad()
def check_predictions(model: nn.Module, inputs: dict, size: tuple[int, int]) -> None:
    samples = model.eval()(**model.data_preprocessor(inputs, training=False), mode='predict')
    assert len(samples) == 2
    for sample in samples:
        if isinstance(sample, SegDataSample):
            assert sample.pred_sem_seg.shape == size
        else:
            assert 'pred_panoptic_seg' in sample or sample.pred_instances.bboxes.shape[1] == 4
