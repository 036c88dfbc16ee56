"""Heads of mmseg whose loss is computed in parts, beside mmseg's own."""

import pytest
import torch
from mmengine.structures import PixelData
from mmseg.models.decode_heads import FCNHead as MMSegFCNHead
from mmseg.structures import SegDataSample
from torch import Tensor

from bioattn_mm.training import segmentation_heads
from bioattn_mm.training.segmentation_heads import FCNHead

OHEM = dict(type='mmseg.OHEMPixelSampler', thresh=0.7, min_kept=50)
LOSSES = ({}, dict(avg_non_ignore=True, loss_weight=0.4), dict(class_weight=[0.0, 1.0, 2.0]), dict(use_sigmoid=True))


def losses(head: type, logits: Tensor, size: tuple[int, int], loss: dict | None = None, **options: object) -> dict:
    """Of 3 classes, for labels of which a tenth is ignored, in parts of 900 logits."""
    options = dict(options, channels=1, num_convs=0, concat_input=False, num_classes=3)
    head = head(in_channels=1, loss_decode=dict(type='mmseg.CrossEntropyLoss', **loss or {}), **options)
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (len(logits), 1, *size), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = head.ignore_index
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segmentation_heads, 'ON_CPU', 900)
        return head.loss_by_feat(logits, [SegDataSample(gt_sem_seg=PixelData(data=data)) for data in labels])


@pytest.mark.filterwarnings('ignore:When align_corners=True', 'ignore:``build_pixel_sampler``')
@pytest.mark.parametrize('options', [{}, dict(align_corners=True), dict(ignore_index=0), dict(sampler=OHEM)], ids=str)
@pytest.mark.parametrize('loss', LOSSES, ids=str)
@pytest.mark.parametrize('sizes', [(8, 9, 31, 40), (16, 16, 64, 64), (1, 1, 5, 5), (9, 7, 9, 7), (12, 10, 7, 6)])
def test_loss_accuracy_and_gradient_are_mmsegs(sizes: tuple[int, ...], loss: dict, options: dict) -> None:
    found = []
    for head in (FCNHead, MMSegFCNHead):
        logits = (3 * torch.randn(2, 3, *sizes[:2], generator=torch.manual_seed(0))).requires_grad_()
        values = losses(head, logits, sizes[2:], loss, **options)
        (2 * values['loss_ce']).backward()
        found.append({**values, 'gradient': logits.grad})
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)


def test_double_half_precision_and_nothing_to_count() -> None:
    logits = torch.randn(1, 3, 4, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: losses(FCNHead, x, (9, 11))['loss_ce'], logits)
    half, single = (logits.detach().bfloat16().to(x).requires_grad_() for x in (torch.bfloat16, torch.float32))
    for each in (half, single):
        losses(FCNHead, each, (9, 11))['loss_ce'].backward()
    torch.testing.assert_close(half.grad.float(), single.grad, atol=1e-4, rtol=2**-8)
    with pytest.raises(RuntimeError, match='out of bounds'):  # a label that is no class
        losses(FCNHead, logits[:, :2], (8, 8))
    weightless = losses(FCNHead, logits, (9, 11), dict(class_weight=[0.0, 0.0, 0.0]))
    assert weightless['loss_ce'] == 0 and not torch.autograd.grad(weightless['loss_ce'], logits)[0].any()
