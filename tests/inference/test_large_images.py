"""Large images: labels without the logits of every pixel, masks as run lengths, and drawings of fewer pixels."""

from pathlib import Path
from types import SimpleNamespace

import mmcv
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmdet.structures import DetDataSample
from mmengine.hub import get_config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from pycocotools import mask as coco_mask

from bioattn_mm import Predictor
from bioattn_mm.errors import InputError
from bioattn_mm.inference.label_maps import LabelMap
from bioattn_mm.inference.results import Results
from bioattn_mm.inference.run_lengths import encode_masks
from bioattn_mm.runtime import drawing
from bioattn_mm.runtime.tasks import Segmentation

from .conftest import CONFIGS


@pytest.mark.parametrize('align_corners', [False, True])
def test_labels_from_strips_are_those_of_all_logits(align_corners: bool) -> None:
    draw = np.random.default_rng(0)
    for number in range(60):
        classes = int(draw.integers(2, 6))
        (height, new_height), (width, new_width) = draw.integers(1, 40, (2, 2)).tolist()
        if number % 3 == 0:
            new_height, new_width = (1 + number % 2) * height, width
        top, bottom, left, right = draw.integers(0, 6, 4).tolist()
        logits = torch.randn(classes, top + height + bottom, left + width + right)
        inside = slice(top, top + height), slice(left, left + width)
        label_map = LabelMap(inside, (new_height, new_width), align_corners)
        cuts = [0, *sorted(draw.integers(0, logits.shape[1] + 1, 2).tolist()), logits.shape[1]]
        for start, end in zip(cuts, cuts[1:]):
            label_map.add(logits[:, start:end])
        expected = F.interpolate(
            logits[None, :, inside[0], inside[1]],
            (new_height, new_width),
            mode='bilinear',
            align_corners=align_corners,
        )[0]
        reached = expected.gather(0, label_map.labels[None])[0]
        torch.testing.assert_close(reached, expected.amax(0), rtol=0, atol=1e-4)


@pytest.mark.parametrize('mode', ['slide', 'whole'])
def test_labels_are_those_of_mmseg(mode: str, checkpoints: dict[str, str], image: np.ndarray) -> None:
    options = {'test_dataloader.dataset.pipeline.1.scale': (300, 200)}
    predictor = Predictor(
        CONFIGS['segmentation'], checkpoints['segmentation'], device='cpu', mode=mode, cfg_options=options
    )
    predictor.model.test_cfg.update(crop_size=(96, 120), stride=(64, 70))
    images = [image, image[::-1].copy()]
    for sample, expected in zip(predictor(images, 2), predictor(images, 2, return_logits=True)):
        assert 'seg_logits' not in sample
        logits, labels = expected.seg_logits.data, sample.pred_sem_seg.data
        assert labels.dtype == torch.int64 and labels.shape == (1, 40, 60) and len(labels.unique()) > 1
        torch.testing.assert_close(logits.gather(0, labels)[0], logits.amax(0), rtol=0, atol=1e-4)


def test_a_window_adds_to_its_own_rows_alone(checkpoints: dict[str, str], image: np.ndarray) -> None:
    """No array has the logits of all of the input, where a window slides."""
    options = {'test_dataloader.dataset.pipeline.1.scale': (450, 300)}
    predictor = Predictor(
        CONFIGS['segmentation'], checkpoints['segmentation'], device='cpu', mode='slide', cfg_options=options
    )
    predictor.model.test_cfg.update(crop_size=(64, 64), stride=(64, 64))
    strip = 4 * 150 * 64 * 450
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('bioattn_mm.inference.label_maps.free_memory', lambda device: 3 * strip)
        with torch.profiler.profile(profile_memory=True) as profile:
            (sample,) = predictor(image)
        assert sample.pred_sem_seg.data.shape == (1, 40, 60)
        assert max(event.self_cpu_memory_usage for event in profile.events()) < 1.1 * strip
        patch.setattr('bioattn_mm.inference.label_maps.free_memory', lambda device: 3 * strip - 1)
        with pytest.raises(InputError, match=r'60 x 40 pixels: the scores of 150 classes in 450 x 64 pixels need .*'):
            predictor(image)
        predictor.model.test_cfg.mode = 'whole'
        with pytest.raises(InputError, match=r'in 450 x 300 pixels need .*: make it smaller, or slide a window'):
            predictor(image)


def test_masks_as_run_lengths(checkpoints: dict[str, str], image: np.ndarray, detector: Predictor) -> None:
    (expected,) = detector(image)
    scores = expected.pred_instances.scores
    threshold = float(scores.sort(descending=True).values[4])
    expected = expected.pred_instances[scores >= threshold]
    encoding = Predictor(
        CONFIGS['detection'], checkpoints['detection'], mini=True, device='cpu', run_lengths=threshold
    )
    (sample,) = encoding(image)
    found = sample.pred_instances
    assert len(found) == len(expected) == 5
    for name in ('scores', 'labels', 'bboxes'):
        torch.testing.assert_close(found[name], expected[name])
    masks = np.stack([coco_mask.decode(mask) for mask in found.masks]).astype(bool)
    assert (masks != expected.masks.numpy()).mean() < 1e-3 and masks.any()
    assert encoding.draw(image, sample, score_thr=0.0).shape == image.shape


def test_masks_of_a_head_that_is_called_by_name() -> None:
    """HTC and SCNet name the arguments that others give by place."""
    config = get_config('mmdet::htc/htc-without-semantic_r50_fpn_1x_coco.py')
    for head in config.model.roi_head.bbox_head:
        head.fc_out_channels = 16
    init_default_scope('mmdet')
    torch.manual_seed(0)
    roi_head = MODELS.build(dict(config.model.roi_head, test_cfg=config.model.test_cfg.rcnn)).eval()
    features = [torch.randn(1, 256, 64 // stride, 64 // stride) for stride in (1, 2, 4, 8, 16)]
    boxes = 60 * torch.rand(20, 4) + torch.tensor([0, 0, 60, 60])
    proposals = [InstanceData(bboxes=boxes, scores=torch.rand(20))]
    about = dict(img_shape=(256, 256), ori_shape=(256, 256), scale_factor=(1.0, 1.0))
    samples = [DetDataSample(metainfo=about)]
    roi_head.test_cfg.score_thr = 0.0
    with torch.no_grad():
        (expected,) = roi_head.predict(features, proposals, samples, rescale=True)
        threshold = float(expected.scores.sort(descending=True).values[2])
        encode_masks(SimpleNamespace(roi_head=roi_head), threshold)
        (found,) = roi_head.predict(features, proposals, samples, rescale=True)
    expected = expected[expected.scores >= threshold]
    torch.testing.assert_close(found.bboxes, expected.bboxes)
    assert len(found) == 3
    assert np.array_equal([coco_mask.decode(mask) for mask in found.masks], expected.masks)


@pytest.mark.parametrize('task', CONFIGS)
def test_a_large_image_is_drawn_smaller(
    task: str, image: np.ndarray, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = request.getfixturevalue(dict(segmentation='segmentor', detection='detector')[task])
    mmcv.imwrite(image, str(tmp_path / 'large.png'))
    (prediction,) = predictor.iterate([tmp_path / 'large.png'])
    whole = predictor.draw(image, prediction.sample, score_thr=0.1)
    monkeypatch.setattr(drawing, 'MAX_PIXELS', 20 * 30)
    drawn = predictor.draw(image, prediction.sample, score_thr=0.1)
    assert whole.shape == (40, 60, 3) and drawn.shape == (20, 30, 3)
    results = Results(tmp_path / 'out', predictor, 0.1)
    results.add_image(prediction)
    results.write()
    assert mmcv.imread(str(tmp_path / 'out/overlays/large.png')).shape == (20, 30, 3)
    if task == 'segmentation':
        labels = mmcv.imread(str(tmp_path / 'out/labels/large.png'), 'unchanged')
        assert labels.shape[:2] == (40, 60)


def test_drawing_finds_a_place_for_names_in_few_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.zeros((200, 300), np.uint8)
    labels[:, 150:] = 1
    image = np.full((200, 300, 3), 90, np.uint8)
    palette = [(255, 0, 0), (0, 0, 255)]
    whole = drawing.draw(image, Segmentation(labels), ('a', 'b'), palette, 0.5)
    monkeypatch.setattr(drawing, 'MAX_SOUGHT', 600)
    sought = drawing.draw(image, Segmentation(labels), ('a', 'b'), palette, 0.5)
    # The plates have moved by less than the step.
    differs = np.argwhere((whole != sought).any(-1))
    assert len(differs) < 0.02 * labels.size
