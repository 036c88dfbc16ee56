"""A day in a user's life, with real data: look at them, train, go on, test, predict, export, run without PyTorch.

`make test-real DATA=FOLDER` runs it on the archives of `benchmarks/results.py`, whose folder it is.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest
from PIL import Image

from ..needs import module_needs
from ..tools.running import ROOT, InProcess, metrics_of_test, scalars

pytestmark = module_needs('real data', 'mmdeploy', 'onnx', 'onnxruntime')

NUM_TEST, NUM_PREDICTED = 4, 2


class Kind(NamedTuple):
    """What is done with a data set."""

    config: str
    deploy: str  # deploy config
    problem: str  # what `inspect_data.py` finds to be wrong with the data; '' for nothing
    number: int  # images of the training set
    classes: tuple[str, ...]
    metric: str  # one that the test gives
    images: str  # folder of the test images
    short: tuple[str, ...]  # options that make a training short


KINDS = dict(
    camvid=Kind(
        'configs/transnext/upernet_micro_ade20k.py',
        'configs/deploy/segmentation_onnxruntime_dynamic.py',
        '',
        367,
        (*'sky building pole road pavement tree'.split(), 'sign symbol', *'fence car pedestrian bicyclist'.split()),
        'mIoU',
        'images/test',
        ('model.decode_head.channels=64', 'model.auxiliary_head.channels=32'),
    ),
    bccd=Kind(
        'configs/transnext/dino_4scale_micro_coco.py',
        'configs/deploy/detection_onnxruntime_dynamic.py',
        # One of the published boxes is empty.
        'box without area: data/bccd/train/BloodImage_00343.jpg: annotation 2288: bbox [181, 329, 0, 0]',
        205,
        ('RBC', 'WBC', 'Platelets'),
        'coco/bbox_mAP_50',
        'test',
        ('model.num_queries=50', 'model.encoder.num_layers=2', 'model.decoder.num_layers=2'),
    ),
)  # fmt: skip


@pytest.fixture(scope='module')
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's folder with the data below `data`."""
    folder = tmp_path_factory.mktemp('real')
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / 'benchmarks')
        import results

        for name in KINDS:
            results.prepare(name, folder, os.environ['BIOATTN_REAL_DATA'])
    for name in [name for name in sys.modules if name.startswith('results')]:
        del sys.modules[name]
    yield folder


@pytest.mark.parametrize('name', KINDS)
def test_a_day(name: str, place: Path, tool: InProcess) -> None:
    kind = KINDS[name]
    config, data, run = ROOT / kind.config, f'data/{name}', place / f'run_{name}'
    inspect(kind, config, data, place, tool)

    def train(iterations: int, *options: str) -> str:
        return tool(
            place, 'train.py', config, '--data', data, '--mini', '--seed', '0', '--work-dir', run, *options,
            '--cfg-options', f'train_cfg.max_iters={iterations}', f'train_cfg.val_interval={iterations}',
            'default_hooks.checkpoint.interval=4', 'default_hooks.logger.interval=1',
            'train_dataloader.num_workers=0', 'train_dataloader.persistent_workers=False',
            f'val_dataloader.dataset.indices={NUM_TEST}',
            f'test_dataloader.dataset.indices={NUM_TEST}', *kind.short,
        )  # fmt: skip

    train(4)
    train(8, '--resume')
    steps = [json.loads(line) for line in (run / 'steps.jsonl').read_text().splitlines()]
    losses = [step['loss'] for step in steps if 'loss' in step]
    assert [step['step'] for step in steps if 'loss' in step] == list(range(1, 9)) and np.isfinite(losses).all()
    assert steps[-1]['summary']['starts'] == 2 and scalars(run)

    own_config = run / config.name
    printed = tool(place, 'test.py', own_config, run / 'iter_8.pth')
    assert kind.metric in metrics_of_test(run / 'test') and kind.metric in printed

    names = sorted(path.name for path in (place / data / kind.images).iterdir())[:NUM_PREDICTED]
    images = [place / data / kind.images / image for image in names]
    predict = ('--device', 'cpu', *(() if kind.metric == 'mIoU' else ('--score-thr', '0.0')))
    tool(place, 'predict.py', own_config, run / 'iter_8.pth', *images, '--out', run / 'predicted', *predict)
    check_results(kind, run / 'predicted', names)

    out = run / 'exported'
    tool(place, 'export.py', own_config, run / 'iter_8.pth', '--deploy-cfg', ROOT / kind.deploy, '--out', out)
    check_runtime(kind, run, images)


def inspect(kind: Kind, config: Path, data: str, place: Path, tool: InProcess) -> None:
    """The numbers of the data, and what is wrong with them."""
    out = place / f'inspected_{Path(data).name}'
    arguments = ('inspect_data.py', config, '--data', data, '--number', '2', '--out', out)
    if kind.problem:
        with pytest.raises(SystemExit) as end:
            tool(place, *arguments)
        assert end.value.code == 1 and kind.problem in tool.capsys.readouterr().out
    else:
        assert 'nothing is wrong' in tool(place, *arguments)
    statistics = json.loads((out / 'statistics.json').read_text())
    assert statistics['summary']['images'] == kind.number
    assert [each['class'] for each in statistics['classes']] == list(kind.classes)


def check_results(kind: Kind, out: Path, names: list[str]) -> None:
    """An overlay of each image, and label maps or boxes of the data's classes."""
    stems = [Path(name).stem for name in names]
    assert sorted(path.stem for path in (out / 'overlays').iterdir()) == stems
    document = json.loads((out / 'predictions.json').read_text())
    assert tuple(category['name'] for category in document['categories']) == kind.classes
    if kind.metric == 'mIoU':
        for stem in stems:
            labels = np.asarray(Image.open(out / 'labels' / f'{stem}.png'))
            assert labels.shape == (360, 480) and labels.max() < len(kind.classes)
    else:
        assert {each['category_id'] for each in document['annotations']} <= {1, 2, 3} and document['annotations']


def check_runtime(kind: Kind, run: Path, images: list[Path]) -> None:
    """What the exported file predicts without PyTorch is what the checkpoint predicts."""
    from bioattn_mm.runtime import Model

    results = Model(run / 'exported/end2end.onnx')([cv2.imread(str(path)) for path in images])
    document = json.loads((run / 'predicted/predictions.json').read_text())
    for number, (path, result) in enumerate(zip(images, results), start=1):
        if kind.metric == 'mIoU':
            labels = np.asarray(Image.open(run / f'predicted/labels/{path.stem}.png'))
            assert (np.asarray(result.labels) == labels).mean() > 0.999
        else:
            scores = [each['score'] for each in document['annotations'] if each['image_id'] == number]
            highest = [np.sort(values)[::-1][:20] for values in (result.scores, scores)]
            assert np.abs(highest[0] - highest[1]).max() < 1e-3
