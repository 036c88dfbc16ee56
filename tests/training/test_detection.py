"""Panoptic quality of cases worked out by hand, and what the visualizers draw."""

import json
import pickle
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np
import panopticapi
import pytest
import torch
from mmdet.datasets import CocoPanopticDataset
from mmdet.evaluation.metrics import coco_panoptic_metric
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmdet.visualization import DetLocalVisualizer
from mmengine.structures import InstanceData, PixelData

from bioattn_mm.data.mini.coco import PANOPTIC_CATEGORIES
from bioattn_mm.data.panoptic import PanopticMap
from bioattn_mm.mmcv_ops.panoptic import PQStat, id2rgb, rgb2id
from bioattn_mm.mmcv_ops.stand_ins import STAND_INS
from bioattn_mm.training.detection import CocoPanopticMetric, DetVisualizer, PanopticVisualizer

CLASSES = CocoPanopticDataset.METAINFO['classes']
IDS = {category['name']: category['id'] for category in PANOPTIC_CATEGORIES}
SKY, CAR, PERSON, DOG = 'sky-other-merged', 'car', 'person', 'dog'
VOID = len(CLASSES)

# Segments of 4 x 10 pixels: name, rows and columns. In the ground truth, the persons are a crowd, and 4 pixels lower
# right are unlabelled. The second image has a car.
TRUE = [
    [
        (SKY, slice(0, 2), slice(0, 10)),
        (CAR, slice(2, 4), slice(0, 4)),
        (CAR, slice(2, 4), slice(4, 6)),
        (PERSON, slice(2, 4), slice(6, 8)),
    ],
    [(CAR, slice(0, 1), slice(0, 8))],
]
PREDICTED = [
    [
        (SKY, slice(0, 1), slice(0, 10)),  # with the next, 15 of 20 pixels: IoU 0.75
        (SKY, slice(1, 2), slice(0, 5)),
        (CAR, slice(1, 2), slice(5, 10)),  # no car there
        (CAR, slice(2, 4), slice(0, 5)),  # 8 pixels of the first, 2 of the second: IoU 8 / 10 with the first
        (PERSON, slice(2, 4), slice(6, 8)),  # in a crowd: does not count
        (DOG, slice(2, 4), slice(8, 10)),  # where nothing is labelled: does not count
    ],
    [(CAR, slice(0, 1), slice(0, 4))],  # IoU 0.5: matches only above that
]
# Cars: one match, of IoU 0.8, one other prediction, one other object; then one more of each. Sky: one match. Others:
# neither matched nor counted.
STUFF = dict(PQ_st=0.75, SQ_st=0.75, RQ_st=1)
EXPECTED = {
    number: dict(
        PQ=(0.8 / (number + 1) + 0.75) / 2, SQ=(0.8 + 0.75) / 2, RQ=(1 / (number + 1) + 1) / 2,
        PQ_th=0.8 / (number + 1), SQ_th=0.8, RQ_th=1 / (number + 1), **STUFF,
    )
    for number in (1, 2)
}  # fmt: skip


@pytest.fixture
def annotations(tmp_path: Path) -> Path:
    """A folder with annotations of the ground truth."""
    images, entries = [], []
    for index, segments in enumerate(TRUE):
        panoptic = PanopticMap((4, 10))
        for name, rows, columns in segments:
            mask = np.zeros((4, 10), bool)
            mask[rows, columns] = True
            panoptic.add(mask, IDS[name], crowd=name == PERSON)
        panoptic.image().save(tmp_path / f'{index}.png')
        images.append(dict(id=index, file_name=f'{index}.jpg', height=4, width=10))
        entries.append(dict(image_id=index, file_name=f'{index}.png', segments_info=panoptic.segments()))
    content = dict(images=images, annotations=entries, categories=PANOPTIC_CATEGORIES)
    (tmp_path / 'panoptic.json').write_text(json.dumps(content))
    return tmp_path


def prediction(index: int) -> torch.Tensor:
    """A prediction as Mask2Former gives it, (1, 4, 10): class + 1000 times the number of the object."""
    segments = torch.full((1, 4, 10), VOID, dtype=torch.int32)
    for number, (name, rows, columns) in enumerate(PREDICTED[index], start=1):
        label = CLASSES.index(name)
        segments[0, rows, columns] = label if name == SKY else label + 1000 * number
    return segments


def sample(index: int) -> dict:
    panoptic = dict(sem_seg=prediction(index))
    return dict(img_id=index, img_path=f'{index}.jpg', ori_shape=(4, 10), pred_panoptic_seg=panoptic)


def metric_after(folder: Path, indices: list[int], **arguments: object) -> CocoPanopticMetric:
    metric = CocoPanopticMetric(str(folder / 'panoptic.json'), str(folder), **arguments)
    metric.dataset_meta = CocoPanopticDataset.METAINFO
    samples = [sample(index) for index in indices]
    metric.process({}, samples)
    # What is drawn after it must be what was predicted.
    assert all((each['pred_panoptic_seg']['sem_seg'] == prediction(each['img_id'])).all() for each in samples)
    return metric


def expected(number: int) -> dict[str, float]:
    return {f'coco_panoptic/{name}': pytest.approx(100 * value) for name, value in EXPECTED[number].items()}


@pytest.mark.parametrize('number', EXPECTED)
def test_panoptic_quality_by_hand(annotations: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    monkeypatch.setattr(coco_panoptic_metric, 'print_log', lambda text, logger: texts.append(text))
    found = metric_after(annotations, list(range(number)), classwise=True).evaluate(number)
    assert found == expected(number)
    cells = [cell.strip() for cell in texts[1].replace('\n', '|').split('|')]
    # Each class with its own quality.
    assert cells[cells.index(CAR) + 1] == f'{100 * EXPECTED[number]["PQ_th"]:.3f}'
    assert cells[cells.index(SKY) + 1] == '75.000' and cells[cells.index(DOG) + 1] == '0.000'


def test_results_of_two_processes_are_those_of_one(annotations: Path) -> None:
    """As mmengine collects them: pickled, then all in the first process."""
    results = [pickle.loads(pickle.dumps(metric_after(annotations, [index]).results)) for index in range(2)]
    metric = metric_after(annotations, [])
    metric.results = [stat for of_process in results for stat in of_process]
    assert metric.evaluate(2) == expected(2)


def test_sums_are_pickled_and_added() -> None:
    first, second = PQStat(), PQStat()
    first[3].tp, first[3].iou, second[3].fn, second[5].fp = 1, 0.8, 2, 1
    first += pickle.loads(pickle.dumps(second))
    means, classes = first.pq_average({3: dict(isthing=1), 5: dict(isthing=0), 7: dict(isthing=0)}, None)
    assert means == dict(pq=0.2, sq=0.4, rq=0.25, n=2)
    assert classes[3] == dict(pq=0.4, sq=0.8, rq=0.5) and classes[7] == dict(pq=0, sq=0, rq=0)
    means, _ = first.pq_average({7: dict(isthing=0)}, None)
    assert means['n'] == 0 and np.isnan(means['pq'])


def test_ids_are_colours_and_back() -> None:
    ids = np.array([[0, 255, 256], [65_536, 70_001, 2**24 - 1]], np.int32)
    colours = id2rgb(ids)
    assert colours.dtype == np.uint8 and colours[0, 2].tolist() == [0, 1, 0]
    assert (rgb2id(colours) == ids).all()
    assert id2rgb(70_001) == colours[1, 1].tolist() and rgb2id(colours[1, 1]) == 70_001


def test_an_installed_package_takes_precedence() -> None:
    assert panopticapi.__spec__.loader in STAND_INS, 'panopticapi is installed: the rest is tested with it'
    assert all(sys.meta_path.index(PathFinder) < sys.meta_path.index(stand_in) for stand_in in STAND_INS)


@pytest.fixture
def visualizer() -> PanopticVisualizer:
    visualizer = PanopticVisualizer(alpha=1.0)
    visualizer.dataset_meta = CocoPanopticDataset.METAINFO
    return visualizer


def colour_of(name: str) -> list[int]:
    return list(CocoPanopticDataset.METAINFO['palette'][CLASSES.index(name)])


def test_ground_truth_and_prediction_are_drawn_as_segments(visualizer: PanopticVisualizer) -> None:
    """Beside each other, each in its class's colour, unlabelled pixels as they are; boxes and masks are not drawn."""
    image = np.full((80, 120, 3), 99, np.uint8)
    labels = np.full((1, 80, 120), 255)
    labels[:, :40] = CLASSES.index(SKY)
    mask = np.zeros((1, 80, 120), np.uint8)
    mask[:, 50:, :60] = 1
    drawn = DetDataSample(
        gt_sem_seg=PixelData(sem_seg=torch.from_numpy(labels)),
        gt_instances=InstanceData(
            bboxes=torch.tensor([[0.0, 50, 60, 80]]),
            labels=torch.tensor([CLASSES.index(CAR)]),
            masks=BitmapMasks(mask, 80, 120),
        ),
        pred_instances=InstanceData(
            bboxes=torch.tensor([[0.0, 0, 120, 80]]), labels=torch.tensor([CLASSES.index(DOG)]), scores=torch.ones(1)
        ),
        pred_panoptic_seg=PixelData(sem_seg=torch.where(torch.from_numpy(mask) > 0, CLASSES.index(DOG) + 1000, VOID)),
    )
    visualizer.add_datasample('both', image, drawn)
    truth, predicted = np.split(visualizer.get_image(), 2, axis=1)
    assert truth[5, 5].tolist() == colour_of(SKY) and truth[75, 5].tolist() == colour_of(CAR)
    assert truth[75, 115].tolist() == [99] * 3
    assert predicted[75, 5].tolist() == colour_of(DOG) and (predicted[:40] == 99).all()


def test_an_image_without_segments_is_drawn_as_it_is(visualizer: PanopticVisualizer) -> None:
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    nothing = DetDataSample(pred_panoptic_seg=PixelData(sem_seg=torch.full((1, 20, 30), VOID)))
    visualizer.add_datasample('nothing', image, nothing, draw_gt=False)
    assert (visualizer.get_image() == image).all()


def test_masks_are_drawn_as_mmengine_draws_them() -> None:
    draw = np.random.default_rng(0)
    image = draw.integers(0, 256, (37, 61, 3), dtype=np.uint8)
    masks = np.zeros((4, 37, 61), bool)
    masks[0, 5:20, 3:50], masks[1, 15:37, 40:61], masks[2] = True, draw.random((22, 21)) < 0.5, False
    masks[3, 36, 0] = True
    colors = [(255, 0, 3), (20, 200, 90), (1, 2, 3), (0, 0, 255)]
    for alphas in (0.5, 0.8, [0.1, 0.9, 0.5, 1.0]):
        drawn = []
        for kind in (DetLocalVisualizer, DetVisualizer):
            visualizer = kind()
            visualizer.set_image(image)
            visualizer.draw_binary_masks(masks, colors, alphas)
            drawn.append(visualizer.get_image().astype(int))
        assert np.abs(drawn[0] - drawn[1]).max() <= 1
        assert (drawn[1] != image).any()
