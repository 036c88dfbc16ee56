"""Results in YOLO's and Pascal VOC's format and label maps: read as own data, they are the predictions again."""

from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
from mmpretrain.structures import DataSample
from mmseg.datasets import PascalVOCDataset
from PIL import Image
from pycocotools import mask as coco_mask

from bioattn_mm.datasets.coco_file import mask_of, read_coco_file
from bioattn_mm.datasets.label_maps import read_label_map
from bioattn_mm.errors import InputError
from bioattn_mm.inference import results as inference
from bioattn_mm.run_config.own_data import DataArguments, OwnData
from bioattn_mm.run_config.own_data.coco import read_coco
from bioattn_mm.run_config.own_data.masks import read_masks
from bioattn_mm.runtime.formats import VocFiles, check_formats, outline
from bioattn_mm.runtime.results import Results
from bioattn_mm.runtime.tasks import Classification, Detections, Segmentation
from bioattn_mm.runtime.voc import voc_palette

CLASSES = ('bolt', 'nut: "small"', 'Müller')
SIZES = {'a': (61, 83), 'b': (40, 37), 'c.d': (50, 50)}
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
    palette = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    files = Results(
        folder, SimpleNamespace(task=task, classes=CLASSES, palette=palette, draw=lambda i, *_, **__: i), **options
    )
    for name, result in results.items():
        image = np.zeros((*SIZES[name], 3), np.uint8)
        Image.fromarray(image).save(folder / images / f'{name}.png')
        files.add_image(SimpleNamespace(image=image, result=result, source=f'{name}.png'))
    files.write()
    return folder


def read_back(own: OwnData) -> dict[str, Detections]:
    """The objects of own data, all of them, in the order of their files."""
    assert own.classes == CLASSES
    found = {}
    for dataset in own.datasets.values():
        content = read_coco_file(dataset['ann_file'])
        assert not content.faults
        for image in content.images:
            objects = [each for each in content.annotations if each.image_id == image.id]
            boxes = np.array([each.bbox for each in objects]).reshape(-1, 4)
            segmentations = [mask_of(each) for each in objects]
            masks = None
            if all(segmentations) and objects:
                runs = [
                    coco_mask.frPyObjects(each, image.height, image.width)[0] if isinstance(each, list) else each
                    for each in segmentations
                ]
                masks = np.stack([coco_mask.decode(each).astype(bool) for each in runs])
                assert np.allclose([each.area for each in objects], masks.sum((1, 2)), atol=1e-3)
            boxes[:, 2:] += boxes[:, :2]
            labels = [each.category_id - 1 for each in objects]
            found[image.file_name.removesuffix('.png')] = Detections(boxes, None, np.array(labels), masks)
    return found


@pytest.mark.parametrize('with_masks', [False, True], ids=['boxes', 'masks'])
@pytest.mark.parametrize(('name', 'images', 'error'), [('yolo', 'images', 1e-5), ('voc', 'JPEGImages', 0.0051)])
def test_detections_are_read_back(name: str, images: str, error: float, with_masks: bool, tmp_path: Path) -> None:
    written = {stem: detections(seed, size, with_masks) for seed, (stem, size) in enumerate(SIZES.items())}
    written['b'] = written['b'].keep(np.zeros(NUM_OBJECTS, bool))  # an image without objects
    folder = write(tmp_path / 'found', 'detection', written, images, formats=[name], save_conf=with_masks)
    assert not (folder / 'predictions.json').exists()
    own = read_coco(DataArguments(str(folder)), with_mask=with_masks)
    assert any('8 lines end with a score' in note for note in own.notes) == (name == 'yolo' and with_masks)
    found = read_back(own)
    assert set(found) == set(written)
    for stem, result in written.items():
        order = result.best_first()
        assert found[stem].labels.tolist() == result.labels[order].tolist()
        np.testing.assert_allclose(found[stem].boxes, result.boxes[order], atol=error)
        if with_masks and order:
            assert (found[stem].masks == result.masks[order]).all()


def test_label_maps_are_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    written = {name: Segmentation(rng.integers(0, 3, size)) for name, size in SIZES.items()}
    folder = write(tmp_path / 'found', 'segmentation', written, 'images', classes=CLASSES[:2], formats=['labels'])
    own = read_masks(DataArguments(str(folder)))
    assert own.classes == CLASSES
    names = [Path(dataset['ann_file']).read_text().split() for dataset in own.datasets.values()]
    assert sorted(sum(names, [])) == [f'{name}.png' for name in SIZES]
    for name in SIZES:
        labels = read_label_map(Path(own.datasets['val']['data_prefix']['seg_map_path']) / f'{name}.png')
        assert (labels == np.where(written[name].labels == 2, 255, written[name].labels)).all()


def test_vocs_label_maps_are_those_of_a_segmentor(tmp_path: Path) -> None:
    """With the background as a class of its own."""
    written = {stem: detections(seed, size, True) for seed, (stem, size) in enumerate(SIZES.items())}
    folder = write(tmp_path / 'found', 'detection', written, 'JPEGImages', formats=['coco', 'voc'])
    assert (folder / 'predictions.json').exists()
    own = read_masks(DataArguments(str(folder)))
    assert own.classes == ('background', *CLASSES)
    result = written['a']
    expected = np.zeros(SIZES['a'], int)
    for mask, label in zip(result.masks, result.labels):
        expected[mask] = label + 1
    with Image.open(folder / 'SegmentationClass/a.png') as image:
        assert (np.asarray(image) == expected).all()
        assert (np.asarray(image.convert('RGB')) == np.array([(0, 0, 0), *own.palette[1:]])[expected]).all()


def test_of_overlapping_masks_the_better_one_is_in_the_label_maps(tmp_path: Path) -> None:
    masks = np.zeros((2, *SIZES['a']), bool)
    masks[0, :20, :20], masks[1, 10:30, 10:30] = True, True
    boxes = np.float32([[0, 0, 20, 20], [10, 10, 30, 30]])
    result = Detections(boxes, np.array([0.4, 0.9]), np.array([0, 2]), masks)
    folder = write(tmp_path / 'found', 'detection', dict(a=result), 'JPEGImages', formats=['voc'])
    objects, labels = (np.asarray(Image.open(folder / f'Segmentation{kind}/a.png')) for kind in ('Object', 'Class'))
    # The better one is the first in the XML file.
    assert (objects == np.where(masks[1], 1, np.where(masks[0], 2, 0))).all()
    assert (labels == np.where(masks[1], 3, np.where(masks[0], 1, 0))).all()


def test_an_outline_is_the_mask() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        height, width = rng.integers(1, 40, 2).tolist()
        mask = rng.random((height, width)) < rng.random()
        corners = outline(mask)
        if not mask.any():
            assert not len(corners)
            continue
        (runs,) = coco_mask.frPyObjects([corners.ravel().astype(float).tolist()], height, width)
        assert (coco_mask.decode(runs) == mask).all()


def test_vocs_colours() -> None:
    assert voc_palette()[:21].tolist() == PascalVOCDataset.METAINFO['palette']
    assert voc_palette()[255].tolist() == [224, 224, 192] and len(np.unique(voc_palette(), axis=0)) == 256


@pytest.mark.parametrize('in_pytorch', [False, True])
def test_the_best_kept_class_is_drawn(in_pytorch: bool, tmp_path: Path) -> None:
    drawn, scores = [], np.float32([0.125, 0.625, 0.25])
    palette = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    draw = lambda image, result, **options: drawn.append(result) or image  # noqa: E731
    predictor = SimpleNamespace(task='classification', classes=CLASSES, palette=palette, draw=draw)
    prediction = SimpleNamespace(image=np.zeros((8, 9, 3), np.uint8), source='a.png')
    prediction.result, prediction.sample = Classification(scores), DataSample().set_pred_score(scores)
    kept = (CLASSES[0], CLASSES[2])
    files = (inference.Results if in_pytorch else Results)(tmp_path, predictor, classes=kept)
    files.add_image(prediction)
    (entry,), (result,) = files.images, drawn
    assert (entry['category_id'], entry['score'], entry['scores']) == (2, 0.25, [0.125, 0.625, 0.25])
    found = result.pred_score.numpy() if in_pytorch else result.scores
    assert found.argmax() == 2 and found[2] == 0.25


def test_a_file_name_that_xml_cannot_hold(tmp_path: Path) -> None:
    entry = dict(width=83, height=61, file_name='caf\udce9.png')
    VocFiles(tmp_path, CLASSES).add('a', entry, detections(0, (61, 83), False))
    assert ElementTree.parse(tmp_path / 'Annotations/a.xml').findtext('filename') == r'caf\udce9.png'


@pytest.mark.parametrize(
    ('formats', 'task', 'message'),
    [
        (['coco', 'labels'], 'detection', '--format labels is not of a model of detection: expected coco, yolo, voc'),
        (['yolo'], 'segmentation', '--format yolo is not of a model of segmentation: expected labels'),
        (['voc'], 'panoptic', '--format voc is not of a model of panoptic: expected coco'),
        (['coco'], 'classification', '--format coco is not of a model of classification: expected none'),
        (['voc'], 'detection', "VOC's label maps hold 254 classes, the model has 300: take --format coco"),
    ],
)
def test_formats_that_a_model_does_not_write(formats: list[str], task: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_formats(formats, task, 300)
