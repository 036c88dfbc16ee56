"""Large images: labels without the logits of every pixel, and drawings of fewer pixels."""

from pathlib import Path

import mmcv
import numpy as np
import pytest
import torch
from mmseg.structures import SegDataSample

from bioattn_mm import Predictor
from bioattn_mm.inference.label_maps import labels_alone
from bioattn_mm.inference.results import Results
from bioattn_mm.runtime import drawing

from .conftest import CONFIGS


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('padding', [None, (3, 5, 2, 4)])
def test_labels_without_logits_are_mmsegs(
    align_corners: bool, padding: tuple[int, ...] | None, segmentor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = segmentor.model
    monkeypatch.setattr(model, 'align_corners', align_corners)
    meta = dict(ori_shape=(37, 61)) | (dict(img_padding_size=padding) if padding else {})
    logits = torch.randn(2, 5, 24, 32, generator=torch.Generator().manual_seed(0))
    expected = model.postprocess_result(logits, [SegDataSample(metainfo=meta) for _ in logits])
    with labels_alone(model):
        found = model.postprocess_result(logits, [SegDataSample(metainfo=meta) for _ in logits])
    for one, other in zip(found, expected):
        assert 'seg_logits' not in one and 'seg_logits' in other
        assert torch.equal(one.pred_sem_seg.data, other.pred_sem_seg.data)


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
