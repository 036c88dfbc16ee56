"""tools/predict.py: what it writes for images and videos."""

import json
import re
import shutil
from pathlib import Path

import cv2
import mmcv
import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from bioattn_mm import Predictor
from bioattn_mm.runtime.results import index_image

from .random_weights import random_checkpoint
from .running import ROOT, InProcess

UPERNET, MASK_RCNN = (str(ROOT / f'tests/tools/{name}_small.py') for name in ('upernet', 'mask_rcnn'))
ON_CPU = ('--mini', '--device', 'cpu')
FRAME_SIZE = (48, 64)


@pytest.fixture(scope='module')
def place(workplace: Path) -> Path:
    """A folder with checkpoints, and with images and a video to predict on."""
    folder = workplace / 'prediction'
    for name, images in (('a', 'coco/val2017'), ('b', 'coco/train2017')):
        (folder / name).mkdir(parents=True)
        for number, path in enumerate(sorted((workplace / 'data/mini' / images).glob('*.jpg'))[:2]):
            shutil.copy(path, folder / name / f'{number}.jpg')
    random_checkpoint(folder / 'segmentor.pth', UPERNET)
    random_checkpoint(folder / 'detector.pth', MASK_RCNN)
    writer = cv2.VideoWriter(str(folder / 'clip.mp4'), cv2.VideoWriter_fourcc(*'mp4v'), 5, FRAME_SIZE[::-1])
    for value in (40, 120, 200):
        frame = np.full((*FRAME_SIZE, 3), value, np.uint8)
        frame[:20, :30] += 50
        writer.write(frame)
    writer.release()
    (folder / 'text.png').write_text('no image')
    return folder


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file())


def frames_of(path: Path) -> tuple[cv2.VideoCapture, list[np.ndarray]]:
    capture, frames = cv2.VideoCapture(str(path)), []
    while (read := capture.read())[0]:
        frames.append(read[1])
    return capture, frames


def test_detections(place: Path, tool: InProcess, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as exit_:
        tool(
            place, 'predict.py', MASK_RCNN, 'detector.pth', 'a', *ON_CPU, '--score-thr', '0.1', '--batch-size', '2',
            '--out', 'found', 'text.png', 'b/*.jpg', 'clip.mp4', '--format', 'coco', 'yolo',
        )  # fmt: skip
    assert exit_.value.code == 1
    printed = capsys.readouterr()
    found = re.search(r'\n7 images, (\d+) objects of score 0.1 or more, .*/s; results in found\n$', printed.out)
    assert re.search(r'images .* 5/5 [\d.]+ images/s', printed.out) and re.search(r'clip .* 3/3 ', printed.out)
    line = 'text.png: cannot decode the image text.png: damaged, too large, or not an image'
    assert printed.err.endswith(f'1 of 8 could not be used:\n  {line}\n')

    # Two inputs of one name.
    names = ['0', '1', 'b/0', 'b/1']
    frames = [f'clip/{number:06d}' for number in range(3)]
    assert files(place / 'found') == sorted([
        *(f'overlays/{name}.png' for name in names), 'overlays/clip.mp4',
        'predictions.json', 'data.yaml', *(f'labels/{name}.txt' for name in (*names, *frames)),
    ])  # fmt: skip
    coco = COCO(str(place / 'found/predictions.json'))
    assert int(found[1]) == len(coco.anns) > 0
    images = coco.dataset['images']
    paths = ['a/0.jpg', 'a/1.jpg', 'b/0.jpg', 'b/1.jpg']
    assert [image['file_name'] for image in images] == [*paths, *['clip.mp4'] * 3]
    assert [image.get('frame') for image in images] == [None] * 4 + [0, 1, 2] and images[6]['seconds'] == 0.4
    assert [category['id'] for category in coco.dataset['categories']] == list(range(1, 81))

    predictor = Predictor(MASK_RCNN, place / 'detector.pth', mini=True, device='cpu')
    for image, name in zip(images, names):
        pixels = mmcv.imread(str(place / image['file_name']))
        assert (image['height'], image['width']) == pixels.shape[:2]
        (sample,) = predictor(place / image['file_name'])
        instances = sample.pred_instances[sample.pred_instances.scores >= 0.1].numpy()
        annotations = coco.imgToAnns[image['id']]
        assert [each['score'] for each in annotations] == instances.scores.tolist() != []
        assert [each['category_id'] - 1 for each in annotations] == instances.labels.tolist()
        instances.bboxes[:, 2:] -= instances.bboxes[:, :2]
        np.testing.assert_allclose([each['bbox'] for each in annotations], instances.bboxes, atol=1e-3)
        masks = np.stack([coco.annToMask(annotation) for annotation in annotations])
        assert (masks == instances.masks).all()
        assert [each['area'] for each in annotations] == masks.sum((1, 2)).tolist()
        # In YOLO's format without those whose mask is empty.
        lines = (place / f'found/labels/{name}.txt').read_text().splitlines()
        assert [int(line.split()[0]) for line in lines] == instances.labels[masks.any((1, 2))].tolist()
        drawn = mmcv.imread(str(place / f'found/overlays/{name}.png'))
        assert drawn.shape == pixels.shape and (drawn != pixels).any()

    capture, frames = frames_of(place / 'found/overlays/clip.mp4')
    assert [frame.shape for frame in frames] == [(*FRAME_SIZE, 3)] * 3 and capture.get(cv2.CAP_PROP_FPS) == 5
    # Browsers play it.
    assert int(capture.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, 'little') in (b'VP90', b'vp09', b'avc1', b'h264')


def test_label_maps(place: Path, tool: InProcess) -> None:
    predictor = Predictor(UPERNET, place / 'segmentor.pth', mini=True, device='cpu')
    (sample,) = predictor(place / 'a/0.jpg')
    labels = sample.pred_sem_seg.data[0].numpy()
    values, counts = np.unique(labels, return_counts=True)
    kept = values[counts.argmin()]
    for out, classes in (('all', []), ('one', ['--classes', predictor.classes[kept]])):
        printed = tool(
            place, 'predict.py', UPERNET, 'segmentor.pth', 'a/0.jpg', 'clip.mp4', '--max-frames', '2', *ON_CPU,
            '--out', out, *classes,
        )  # fmt: skip
        assert printed.splitlines()[-1].startswith('3 images, ')
        assert files(place / out) == [
            'classes.txt', 'labels/0.png', 'labels/clip/000000.png', 'labels/clip/000001.png', 'overlays/0.png',
            'overlays/clip.mp4', 'predictions.json',
        ]  # fmt: skip
        document = json.loads((place / out / 'predictions.json').read_text())
        assert [image['label_map'] for image in document['images']] == files(place / out)[1:4]
        assert document['categories'][1] == dict(id=1, name='building', color=[180, 120, 120])
        with Image.open(place / out / 'labels/0.png') as image:
            assert image.mode == 'P'
            written, palette = np.asarray(image), np.reshape(image.getpalette(), (256, 3))
        assert (palette[:150] == predictor.palette).all()
        expected = labels if not classes else np.where(labels == kept, labels, 255)
        assert (written == expected).all()
    pixels, drawn = (mmcv.imread(str(place / path)) for path in ('a/0.jpg', 'all/overlays/0.png'))
    assert drawn.shape == pixels.shape and (drawn != mmcv.imread(str(place / 'one/overlays/0.png'))).any()


@pytest.mark.usefixtures('bfloat16_anywhere')
def test_the_miniature_runs_checkpoint_and_a_new_folder_beside_it(place: Path, tool: InProcess) -> None:
    folder = place / 'work_dirs/mask_rcnn_small_mini'
    folder.mkdir(parents=True)
    shutil.copy(place / 'detector.pth', folder / 'iter_200.pth')
    (folder / 'last_checkpoint').write_text(str(folder / 'iter_200.pth'))
    call = ('predict.py', MASK_RCNN, 'a/0.jpg', 'a/1.jpg', *ON_CPU, '--amp', 'bfloat16', '--tta')
    for name in ('predictions', 'predictions_2'):
        printed = tool(place, *call, '--classes', 'person', '--score-thr', '0')
        assert re.search(rf'\n2 images, .*{folder.relative_to(place)}/{name}\n$', printed)
        annotations = json.loads((folder / name / 'predictions.json').read_text())['annotations']
        assert {annotation['category_id'] for annotation in annotations} == {1}
        assert not any('segmentation' in annotation for annotation in annotations)  # mmdet merges no masks
    line = tool.refused(place, *call, '--out', folder / 'predictions')
    assert line.endswith('name another folder for --out') and 'is there already and not empty' in line


def test_an_interruption_keeps_what_is_there(place: Path, tool: InProcess, monkeypatch, capsys) -> None:
    run = Predictor._run
    calls = []

    def run_and_interrupt(*args: object) -> list:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(*args)

    monkeypatch.setattr(Predictor, '_run', run_and_interrupt)
    with pytest.raises(SystemExit) as exit_:
        tool(place, 'predict.py', UPERNET, 'segmentor.pth', 'clip.mp4', 'clip.mp4', *ON_CPU, '--out', 'interrupted')
    assert exit_.value.code == 130
    assert 'interrupted: what was predicted so far is kept' in capsys.readouterr().out
    assert len(frames_of(place / 'interrupted/overlays/clip.mp4')[1]) == 2
    assert len(json.loads((place / 'interrupted/predictions.json').read_text())['images']) == 2

    # It is how a camera ends.
    calls.clear()
    open_capture = cv2.VideoCapture
    monkeypatch.setattr(cv2, 'VideoCapture', lambda source: open_capture('clip.mp4' if source == 0 else source))
    printed = tool(place, 'predict.py', UPERNET, 'segmentor.pth', '0', *ON_CPU, '--out', 'camera')
    assert printed.splitlines()[-1].startswith('2 images, ')
    assert len(frames_of(place / 'camera/overlays/camera_0.mp4')[1]) == 2


def test_index_images_of_many_classes() -> None:
    palette = [(index % 256, index // 256, 7) for index in range(300)]
    labels = np.arange(300).reshape(20, 15)
    assert (np.asarray(index_image(labels, palette)) == labels).all()
