"""A day in a user's life, with real data: look at them, train, go on, test, predict, export, run without PyTorch.

`make test-real DATA=FOLDER` runs it on the archives of `benchmarks/results.py`, whose folder it is.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from PIL import Image

from ..needs import module_needs
from ..tools.running import ROOT, InProcess, metrics_of_test, scalars

pytestmark = module_needs('real data', 'mmdeploy', 'onnx', 'onnxruntime')

NUM_TEST, NUM_PREDICTED = 4, 2
KINDS = dict(
    camvid=SimpleNamespace(
        config='configs/transnext/upernet_micro_ade20k.py',
        deploy='configs/deploy/segmentation_onnxruntime_dynamic.py',
        problem='',  # what is wrong with the data
        number=367,  # of training images
        classes='sky building pole road pavement tree sign_symbol fence car pedestrian bicyclist'.split(),
        metric='mIoU',
        images='images/test',
        short=('model.decode_head.channels=64', 'model.auxiliary_head.channels=32'),
    ),
    bccd=SimpleNamespace(
        config='configs/transnext/dino_4scale_micro_coco.py',
        deploy='configs/deploy/detection_onnxruntime_dynamic.py',
        # One of the published boxes is empty.
        problem='box without area: data/bccd/train/BloodImage_00343.jpg: annotation 2288: bbox [181, 329, 0, 0]',
        number=205,
        classes=['RBC', 'WBC', 'Platelets'],
        metric='coco/bbox_mAP_50',
        images='test',
        short=('model.num_queries=50', 'model.encoder.num_layers=2', 'model.decoder.num_layers=2'),
    ),
)


@pytest.fixture(scope='module')
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the data below `data`."""
    folder = tmp_path_factory.mktemp('real')
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / 'benchmarks')
        import results

        for name in KINDS:
            results.prepare(name, folder / 'data' / name, Path(os.environ['BIOATTN_REAL_DATA']))
    for name in [name for name in sys.modules if name.startswith('results')]:
        del sys.modules[name]
    return folder


@pytest.mark.parametrize('name', KINDS)
def test_a_day(name: str, place: Path, tool: InProcess) -> None:
    from bioattn_mm.runtime import Model

    kind = KINDS[name]
    config, data, run = ROOT / kind.config, f'data/{name}', place / f'run_{name}'
    seen = f'inspected_{name}'
    look = ('inspect_data.py', config, '--data', data, '--number', '2', '--out', seen)
    if kind.problem:
        with pytest.raises(SystemExit, match='1'):
            tool(place, *look)
        assert kind.problem in tool.capsys.readouterr().out
    else:
        assert 'nothing is wrong' in tool(place, *look)
    statistics = json.loads((place / seen / 'statistics.json').read_text())
    assert statistics['summary']['images'] == kind.number
    assert [each['class'].replace(' ', '_') for each in statistics['classes']] == kind.classes

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
    losses = {step['step']: step['loss'] for step in steps if 'loss' in step}
    assert list(losses) == list(range(1, 9)) and np.isfinite(list(losses.values())).all()
    assert steps[-1]['summary']['starts'] == 2 and scalars(run)

    own_config, checkpoint = run / config.name, run / 'iter_8.pth'
    printed = tool(place, 'test.py', own_config, checkpoint)
    assert kind.metric in metrics_of_test(run / 'test') and kind.metric in printed

    # Overlays, and label maps or boxes of the data's classes.
    segments = kind.metric == 'mIoU'
    images = sorted((place / data / kind.images).iterdir())[:NUM_PREDICTED]
    options = ('--device', 'cpu', *(() if segments else ('--score-thr', '0.0')))
    out = run / 'predicted'
    tool(place, 'predict.py', own_config, checkpoint, *images, '--out', out, *options)
    assert sorted(path.stem for path in (out / 'overlays').iterdir()) == [path.stem for path in images]
    document = json.loads((out / 'predictions.json').read_text())
    assert [category['name'].replace(' ', '_') for category in document['categories']] == kind.classes

    # The exported file predicts the same without PyTorch as the checkpoint.
    tool(place, 'export.py', own_config, checkpoint, '--deploy-cfg', ROOT / kind.deploy, '--out', run / 'exported')
    results = Model(run / 'exported/end2end.onnx')([cv2.imread(str(path)) for path in images])
    for number, (path, result) in enumerate(zip(images, results), start=1):
        if segments:
            labels = np.asarray(Image.open(out / f'labels/{path.stem}.png'))
            assert labels.shape == (360, 480) and labels.max() < len(kind.classes)
            assert (np.asarray(result.labels) == labels).mean() > 0.999
        else:
            scores = [each['score'] for each in document['annotations'] if each['image_id'] == number]
            highest = [np.sort(values)[::-1][:20] for values in (result.scores, scores)]
            assert len(scores) and np.abs(highest[0] - highest[1]).max() < 1e-3
