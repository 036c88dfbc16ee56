"""A panoptic model through the tools: trained, tested, drawn, predicted with, exported; and what cannot be done."""

import json
import re
import subprocess
import sys
from pathlib import Path

import mmcv
import numpy as np
import pytest
from PIL import Image

from bioattn_mm import Predictor
from bioattn_mm.mmcv_ops.panoptic import rgb2id

from ..conftest import NUM_VAL
from ..needs import needs
from .running import ROOT, InProcess, last_validation, metrics_of_test

CONFIG = str(ROOT / 'tests/tools/mask2former_panoptic_small.py')
PIPELINE = 'train_dataloader.dataset.pipeline'
CHECKPOINT = 'panoptic/iter_60.pth'
IMAGES = 'data/mini/coco/val2017'


@pytest.fixture
def trained(workplace: Path, tool: InProcess) -> Path:
    """The work dir of a miniature run, shorter than `--mini` alone; the first test that needs it trains."""
    work_dir = workplace / 'panoptic'
    if not work_dir.exists():
        tool(
            workplace, 'train.py', CONFIG, '--mini', '--work-dir', 'panoptic', '--cfg-options',
            'optim_wrapper.optimizer.lr=2e-3', 'train_cfg.max_iters=60', 'train_cfg.val_interval=60',
            'param_scheduler.1.end=60', 'default_hooks.checkpoint.interval=60', f'{PIPELINE}.4.crop_size=(128,128)',
            'model.data_preprocessor.batch_augments.0.size=(128,128)',
        )  # fmt: skip
    return work_dir


@pytest.mark.slow
def test_it_learns_and_comes_back(workplace: Path, trained: Path, tool: InProcess) -> None:
    validated = last_validation(trained)
    assert validated['coco_panoptic/PQ_st'] > 3
    # From shards, where no data are.
    tool(workplace, 'make_shards.py', CONFIG, '--mini', '--splits', 'val', '--out', 'panoptic/shards')
    (empty := workplace / 'panoptic/no_data').mkdir()
    tool(
        empty, 'test.py', CONFIG, workplace / CHECKPOINT, '--mini', '--shards', '../shards', '--show-dir', '../drawn',
        '--work-dir', '../test',
    )  # fmt: skip
    assert not list(empty.iterdir())
    tested = metrics_of_test(trained / 'test')
    assert {'coco_panoptic/PQ', 'coco/segm_mAP'} <= set(tested)
    assert tested == validated
    # Left the ground truth, whose segments cover the image; right another picture.
    drawn = list((trained / 'drawn').rglob('vis_image/*.png'))
    assert len(drawn) == NUM_VAL
    for path in drawn:
        image = mmcv.imread(str(workplace / IMAGES / f'{int(path.stem.split("_")[-1]):012d}.jpg'))  # counted from 1
        truth, predicted = np.split(mmcv.imread(str(path)), 2, axis=1)
        assert (np.abs(truth.astype(int) - image).max(axis=-1) > 3).mean() > 0.5 and (truth != predicted).any()


@pytest.mark.slow
def test_prediction_is_coco_s_panoptic_format(workplace: Path, trained: Path, tool: InProcess) -> None:
    predictor = Predictor(CONFIG, workplace / CHECKPOINT, mini=True, device='cpu')
    (sample,) = predictor(workplace / IMAGES / '000000000001.jpg')
    segments = sample.pred_panoptic_seg.sem_seg[0].numpy()
    found = [segment for segment in np.unique(segments).tolist() if segment % 1000 < 133]
    kept = found[-1] % 1000
    for out, classes in (('all', []), ('one', ['--classes', predictor.classes[kept]])):
        tool(
            workplace, 'predict.py', CONFIG, CHECKPOINT, f'{IMAGES}/000000000001.jpg', '--mini', '--device', 'cpu',
            '--out', f'panoptic/{out}', *classes,
        )  # fmt: skip
        document = json.loads((trained / out / 'predictions.json').read_text())
        (annotation,) = document['annotations']
        ids = rgb2id(np.asarray(Image.open(trained / out / annotation['file_name'])))
        things = [category['id'] for category in document['categories'] if category['isthing']]
        assert things == list(range(1, 81)) and len(document['categories']) == 133
        # Every segment has the pixels that the model found, and no other pixel has an ID.
        expected = [segment for segment in found if not classes or segment % 1000 == kept]
        for each, segment in zip(annotation['segments_info'], expected, strict=True):
            assert each['category_id'] == segment % 1000 + 1
            assert ((ids == each['id']) == (segments == segment)).all()
            assert each['area'] == (segments == segment).sum()
        assert set(np.unique(ids)) - {0} == {each['id'] for each in annotation['segments_info']}
        assert (mmcv.imread(str(trained / out / 'overlays/000000000001.png')).shape[:2]) == ids.shape


@pytest.mark.slow
@needs('panopticapi')
def test_panopticapi_gives_the_same_quality(workplace: Path, trained: Path, tool: InProcess) -> None:
    """Predictions in the official format of results, evaluated without this package and OpenMMLab."""
    results = trained / 'official' / 'results'
    tool(
        workplace, 'test.py', CONFIG, CHECKPOINT, '--mini', '--work-dir', 'panoptic/official', '--cfg-options',
        f'test_evaluator.0.outfile_prefix={results}',
    )  # fmt: skip
    annotations = workplace / 'data/mini/coco/annotations'
    segments = ('--segments', annotations / 'panoptic_val2017', f'{results}.panoptic')
    script, truth = ROOT / 'benchmarks/official_evaluation.py', annotations / 'panoptic_val2017.json'
    command = (script, truth, f'{results}.panoptic.json', *segments)
    process = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    found = json.loads(process.stdout)
    assert found == {'PQ': pytest.approx(metrics_of_test(trained / 'official')['coco_panoptic/PQ'])}
    assert found['PQ'] > 1


@pytest.mark.every_config
@needs('mmdeploy', 'onnx', 'onnxruntime')
@pytest.mark.filterwarnings('ignore:You are using the legacy TorchScript-based ONNX export')
@pytest.mark.usefixtures('trained')
def test_exported_predicts_the_same(workplace: Path, tool: InProcess) -> None:
    printed = tool(
        workplace, 'export.py', CONFIG, CHECKPOINT, '--mini', '--out', 'panoptic/exported', '--verify',
        '--verify-images', '2', '--deploy-cfg', 'configs/deploy/panoptic-seg_onnxruntime_dynamic.py',
    )  # fmt: skip
    assert float(re.search('largest difference of the outputs: (.*)', printed)[1]) < 1e-3


OF_ANOTHER_TASK = 'configs/deploy/instance-seg_onnxruntime_dynamic.py'
REFUSED = {
    f'test.py {CONFIG} {CHECKPOINT} --mini --tta': 'multi-scale testing needs tta_model and tta_pipeline',
    f'train.py {CONFIG} --data data/mini/coco': 'learns panoptic segmentation: take a config of either',
    f'inspect_data.py {CONFIG} --mini --out inspected': 'panoptic annotations cannot be inspected',
    f'test.py configs/transnext/mask2former_tiny_ade20k_panoptic.py {CHECKPOINT}': 'docs/training.md says under Data',
    f'export.py {CONFIG} {CHECKPOINT} --mini --out panoptic/refused --deploy-cfg {OF_ANOTHER_TASK}': (
        'take one of configs/deploy/panoptic-seg_*'
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures('trained')
@pytest.mark.parametrize(
    ('call', 'message'),
    [pytest.param(*row, marks=needs('mmdeploy', 'onnx') if 'export' in row[0] else ()) for row in REFUSED.items()],
)
def test_what_cannot_be_done_is_said_in_a_line(call: str, message: str, workplace: Path, tool: InProcess) -> None:
    run = tool.error if call.startswith('export') else tool.refused
    assert message in run(workplace, *call.split())
