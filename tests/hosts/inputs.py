"""Images with annotations for models of mmdet and mmseg."""

import torch
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample


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
