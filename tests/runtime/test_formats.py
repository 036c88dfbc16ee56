"""Results in YOLO's format and label maps: read as own data, they are the predictions again."""

from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmpretrain.structures import DataSample
from PIL import Image

from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.data.formats.detectors import read_objects
from bioattn_mm.data.formats.label_maps import read_label_map, read_masks
from bioattn_mm.inference import Prediction
from bioattn_mm.inference import results as inference
from bioattn_mm.runtime.formats import outline
from bioattn_mm.runtime.predictions import Classification, Detections, Segmentation
from bioattn_mm.runtime.results import Results

from ..own_folders import contents, objects_of

CLASSES = ('bolt', 'nut: "small"', 'Müller')
SIZES = {'a': (61, 83), 'b': (40, 37), 'c.d': (50, 50)}
PALETTE = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
NUM_OBJECTS = 4


def detections(seed: int, size: tuple[int, int], with_masks: bool) -> Detections:
    """Boxes of any size; those of masks around masks of several parts with holes."""
    rng = np.random.default_rng(seed)
    boxes, masks = np.sort(rng.uniform(0, size[::-1], (NUM_OBJECTS, 2, 2)), axis=1), None
    if with_masks:
        owners = rng.integers(0, NUM_OBJECTS + 1, (7, 7)).astype(np.uint8)
        owners = cv2.resize(owners, size[::-1], interpolation=cv2.INTER_NEAREST)
        masks = np.stack([owners == index for index in range(NUM_OBJECTS)])
        boxes = np.array([(*np.argwhere(mask.T).min(0), *np.argwhere(mask.T).max(0) + 1) for mask in masks])
    scores = rng.permutation(NUM_OBJECTS) / 10 + 0.3
    return Detections(boxes.reshape(-1, 4).astype(np.float32), scores, rng.integers(0, len(CLASSES), 4), masks)


def write(folder: Path, task: str, results: dict[str, object], images: str, **options: object) -> Path:
    """Write results as a run does, and the images where own data have them."""
    (folder / images).mkdir(parents=True)
    files = Results(
        folder, SimpleNamespace(task=task, classes=CLASSES, palette=PALETTE, draw=lambda i, *_, **__: i), **options
    )
    for name, result in results.items():
        image = np.zeros((*SIZES[name], 3), np.uint8)
        Image.fromarray(image).save(folder / images / f'{name}.png')
        files.add_image(SimpleNamespace(image=image, result=result, source=f'{name}.png'))
    files.write()
    return folder


@pytest.mark.parametrize(
    ('task', 'first'), [('detection', 1), ('panoptic', 1), ('segmentation', 0), ('classification', 0)]
)
def test_ids_of_categories_are_those_of_the_data(task: str, first: int, tmp_path: Path) -> None:
    predictor = SimpleNamespace(task=task, classes=CLASSES, palette=PALETTE)
    assert [category['id'] for category in Results(tmp_path, predictor).categories] == [first, first + 1, first + 2]


@pytest.mark.parametrize('with_masks', [False, True], ids=['boxes', 'masks'])
def test_detections_are_read_back(with_masks: bool, tmp_path: Path) -> None:
    written = {stem: detections(seed, size, with_masks) for seed, (stem, size) in enumerate(SIZES.items())}
    written['b'] = written['b'].keep(np.zeros(NUM_OBJECTS, bool))  # an image without objects
    folder = write(tmp_path / 'found', 'detection', written, 'images', formats=['yolo'])
    assert not (folder / 'predictions.json').exists()
    own = read_objects(DataArguments(str(folder)), with_mask=with_masks)
    assert own.classes == CLASSES
    files = contents(own).values()
    found = {stem: objects for content in files for stem, objects in objects_of(content).items()}
    assert set(found) == set(written)
    for stem, result in written.items():
        order = result.best_first()
        assert [name for name, _, _ in found[stem]] == [CLASSES[label] for label in result.labels[order]]
        for (_, box, mask), index in zip(found[stem], order, strict=True):
            np.testing.assert_allclose([*box[:2], *(box[:2] + box[2:])], result.boxes[index], atol=1e-5)
            assert (mask == result.masks[index]).all() if with_masks else mask is None
    for content in files if with_masks else ():
        pixels = sorted(mask.sum() for objects in objects_of(content).values() for *_, mask in objects)
        np.testing.assert_allclose(sorted(each.area for each in content.annotations), pixels, atol=1e-3)


def test_label_maps_are_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    written = {name: Segmentation(rng.integers(0, 3, size)) for name, size in SIZES.items()}
    folder = write(tmp_path / 'found', 'segmentation', written, 'images', classes=CLASSES[:2])
    own = read_masks(DataArguments(str(folder)))
    assert own.classes == CLASSES
    names = [Path(dataset['ann_file']).read_text().split() for dataset in own.datasets.values()]
    assert sorted(sum(names, [])) == [f'{name}.png' for name in SIZES]
    for name in SIZES:
        labels = read_label_map(Path(own.datasets['val']['data_prefix']['seg_map_path']) / f'{name}.png')
        assert (labels == np.where(written[name].labels == 2, 255, written[name].labels)).all()


def test_an_empty_mask_has_no_outline() -> None:
    assert outline(np.zeros((3, 4), bool)).shape == (0, 2)


@pytest.mark.parametrize('in_pytorch', [False, True])
def test_the_best_kept_class_is_drawn(in_pytorch: bool, tmp_path: Path) -> None:
    drawn, scores = [], np.float32([0.125, 0.625, 0.25])
    draw = lambda image, result, **options: drawn.append(result) or image  # noqa: E731
    predictor = SimpleNamespace(task='classification', classes=CLASSES, palette=PALETTE, draw=draw)
    image = np.zeros((8, 9, 3), np.uint8)
    if in_pytorch:
        prediction = Prediction('a.png', image, sample=DataSample().set_pred_score(torch.from_numpy(scores)))
    else:
        prediction = SimpleNamespace(image=image, source='a.png', result=Classification(scores))
    kept = (CLASSES[0], CLASSES[2])
    files = (inference.Results if in_pytorch else Results)(tmp_path, predictor, classes=kept)
    files.add_image(prediction)
    (entry,), (result,) = files.images, drawn
    assert (entry['category_id'], entry['score'], entry['scores']) == (2, 0.25, [0.125, 0.625, 0.25])
    assert result.scores.argmax() == 2 and result.scores[2] == 0.25
