"""tools/train.py and tools/test.py: the whole path on miniature data, and bad input."""

import json
import pickle
import re
import runpy
import shutil
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import Mock

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.modules.module import register_module_forward_hook

from bioattn_mm.data.mini.ade20k import majority_baseline
from bioattn_mm.errors import InputError

from ..conftest import NUM_VAL
from ..needs import needs
from .random_weights import random_checkpoint
from .running import ROOT, InProcess, last_validation, metrics_of_test, read_csv, run_forked, scalars
from .small_images import DETECTOR, NO_WORKERS

CONFIG = str(ROOT / 'tests/tools/upernet_narrow.py')


@pytest.fixture(scope='module')
def trained(workplace: Path) -> Path:
    """The work dir of a miniature run of UperNet with TransNeXt-Micro, shorter than `--mini` alone."""
    run_forked(
        workplace, 'train.py', CONFIG, '--mini', '--work-dir', 'trained', '--cfg-options',
        'train_cfg.max_iters=60', 'train_cfg.val_interval=60', 'param_scheduler.1.end=60',
        'default_hooks.checkpoint.interval=60', *NO_WORKERS,
    )  # fmt: skip
    return workplace / 'trained'


def test_mini_run_learns(trained: Path) -> None:
    losses = [line['loss'] for line in scalars(trained) if 'loss' in line]
    assert np.mean(losses[-3:]) < 0.7 * losses[0]
    _, baseline = majority_baseline(trained.parent / 'data' / 'mini' / 'ADEChallengeData2016')
    assert last_validation(trained)['mIoU'] > 4 * baseline
    (log,) = trained.glob('*/*.log')
    assert re.search(r'Iter\(train\) \[ *10/60\].* eta: \d+:\d\d:\d\d ', log.read_text())


def check_pairs(drawn: Path, images: Iterable[Path]) -> None:
    """Check that ground truth and prediction of every image are drawn side by side."""
    pairs = [mmcv.imread(str(path)) for path in drawn.rglob('*.png') if path.name != 'predictions.png']
    sizes = sorted(mmcv.imread(str(path)).shape[:2] for path in images)
    assert sorted((pair.shape[0], pair.shape[1] // 2) for pair in pairs) == sizes
    differences = [np.subtract(*np.split(pair.astype(int), 2, axis=1)) for pair in pairs]
    assert np.mean([difference.any() for difference in differences]) > 0.9


def test_checkpoint_gives_the_same_metric_again(workplace: Path, trained: Path, tool: InProcess) -> None:
    printed = tool(
        workplace, 'test.py', CONFIG, 'trained/iter_60.pth', '--mini',
        '--work-dir', 'tested', '--show-dir', 'images', '--out', 'labels',
    )  # fmt: skip
    tested = metrics_of_test(workplace / 'tested')
    assert tested == last_validation(trained)
    assert f'mIoU {tested["mIoU"]:.4g}' in printed.splitlines()[-2]
    assert printed.splitlines()[-1].endswith('images/predictions.png')
    assert mmcv.imread(str(workplace / 'images' / 'predictions.png')).std() > 10
    check_pairs(workplace / 'images', workplace.glob('data/mini/ADEChallengeData2016/images/validation/*.jpg'))
    assert len(list((workplace / 'labels').glob('*.png'))) == NUM_VAL


def curves_of(work_dir: Path) -> EventAccumulator:
    (events,) = work_dir.glob('*/vis_data/events.out.tfevents.*')
    return EventAccumulator(str(events)).Reload()


def test_multi_scale_and_flip(workplace: Path, trained: Path, tool: InProcess) -> None:
    tool(
        workplace, 'test.py', CONFIG, 'trained/iter_60.pth', '--mini', '--tta', '--bias-mode', 'linear',
        '--work-dir', 'tta', '--log', 'tensorboard', '--cfg-options', 'test_dataloader.dataset.indices=2',
        *NO_WORKERS,
    )  # fmt: skip
    (point,) = curves_of(workplace / 'tta').Scalars('test/mIoU')
    assert point.value == pytest.approx(metrics_of_test(workplace / 'tta')['mIoU'], rel=1e-4) and point.value > 0


def test_accuracy_against_input_size(workplace: Path, trained: Path, tool: InProcess) -> None:
    arguments = (
        'analysis/benchmark_extrapolation.py', CONFIG, 'trained/iter_60.pth', '--mini', '--out', 'extrapolation',
        '--sizes', '128', '--cfg-options', 'test_dataloader.dataset.indices=4', *NO_WORKERS,
    )  # fmt: skip
    tool(workplace, *arguments)
    rows = read_csv(workplace / 'extrapolation/table.csv')
    assert [row['bias_mode'] for row in rows] == ['extrapolate', 'interpolate', 'linear', 'unscaled']
    assert all(float(row['value']) > 0 and float(row['seconds_per_image']) > 0 for row in rows)
    assert rows[2]['value'] != rows[0]['value']  # another pooled grid gives other predictions
    assert mmcv.imread(str(workplace / 'extrapolation/plot.png')).std() > 10
    assert 'extrapolation/table.csv is there already' in tool.refused(workplace, *arguments)


def test_a_fresh_start_overwrites_nothing_and_resume_goes_on(workplace: Path, trained: Path, tool: InProcess) -> None:
    copy = workplace / 'resumed'
    copy.mkdir()
    shutil.copy(trained / 'iter_60.pth', copy)
    (copy / 'last_checkpoint').write_text(str(copy / 'iter_60.pth'))
    again = ('train.py', CONFIG, '--mini', '--work-dir', 'resumed')
    line = tool.refused(workplace, *again)
    assert line.startswith('error: resumed already holds iter_60.pth: add --resume')

    printed = tool(
        workplace, *again, '--resume', '--log', 'tensorboard', '--cfg-options', 'train_cfg.max_iters=62',
        'train_cfg.val_begin=1000', 'default_hooks.logger.interval=1', 'model.backbone.init_cfg.checkpoint=gone.pth',
    )  # fmt: skip
    losses = [(line['step'], line['loss']) for line in scalars(copy) if 'loss' in line]
    assert [step for step, _ in losses] == [61, 62] and (copy / 'iter_62.pth').is_file()

    lines = [json.loads(row) for row in (copy / 'steps.jsonl').read_text().splitlines()]
    assert [line['step'] for line in lines if 'iter' in line] == [61, 62]
    assert lines[0]['start']['resumed'] and lines[-1]['summary']['ended'] == 'finished'
    assert 'health of the run' in printed
    curve = [(event.step, event.value) for event in curves_of(copy).Scalars('loss')]
    assert curve == [(step, pytest.approx(loss, rel=1e-4)) for step, loss in losses]


@pytest.mark.usefixtures('bfloat16_anywhere')
def test_a_detector_in_bfloat16_at_several_scales(workplace: Path, tool: InProcess) -> None:
    """That it learns, and what bfloat16 changes, is in test_own_data.py."""
    random_checkpoint(workplace / 'detector.pth', DETECTOR)
    outputs = set()
    with register_module_forward_hook(lambda module, _, output: outputs.add(getattr(output, 'dtype', None))):
        tool(
            workplace, 'test.py', DETECTOR, 'detector.pth', '--mini', '--amp', 'bfloat16', '--tta', '--bias-mode',
            'interpolate', '--work-dir', 'detector', '--out', 'boxes.pkl', '--show-dir', 'boxes', '--cfg-options',
            'test_dataloader.dataset.indices=2', *NO_WORKERS,
        )  # fmt: skip
    assert torch.bfloat16 in outputs
    metrics = metrics_of_test(workplace / 'detector')
    assert 'coco/bbox_mAP' in metrics and 'coco/segm_mAP' not in metrics  # mmdet merges no masks
    assert len(pickle.loads((workplace / 'boxes.pkl').read_bytes())) == 2
    check_pairs(workplace / 'boxes', sorted(workplace.glob('data/mini/coco/val2017/*.jpg'))[:2])


# Arguments of a tool, and what is said of them; those of train.py and test.py begin with a config.
NAN = 'nan.pth cannot be used: 1 of its 2 entries have values that are NaN or infinite: weight; '
BAD_INPUT = {
    'train.py README.md': 'README.md is no config: expected a .py',
    'train.py broken.py': 'cannot read the config broken.py: .+',
    'train.py configs/_base_/datasets/ade20k.py': '.*ade20k.py is no config of a model .*: it has no model',
    'train.py CONFIG': 'no data for ADE20KDataset at data/ade/ADEChallengeData2016 .*download .*--mini',
    'test.py CONFIG x.pth --mini': 'checkpoint not found: x.pth',
    'test.py CONFIG README.md --mini': 'cannot read the checkpoint README.md: ',
    'train.py CONFIG --mini --resume x.pth': 'checkpoint to resume from not found: x.pth',
    'train.py CONFIG --mini --resume other.pth': r'.* is not a checkpoint of this model; \d+ missing .*: backbone',
    'train.py CONFIG --mini --strategy none.py': 'strategy not found: none.py',
    'train.py CONFIG --mini --strategy configs/_base_/models/upernet.py': '.*upernet.py is not a strategy: expected',
    'train.py CONFIG --mini --strategy configs/_base_/strategies/fsdp.py': '.*fsdp.py is for several processes: ',
    'train.py CONFIG --mini --amp': 'mixed precision in float16 needs a GPU: on the CPU take bfloat16',
    'train.py CONFIG --mini --cfg-options optim_wrapper.type=AmpOptimWrapper': '.*AmpOptimWrapper needs a GPU',
    'train.py CONFIG --mini --cfg-options optim_wrapper.optimizer.type=AdamX': '.*=AdamX: there is no such optimizer',
    'train.py CONFIG --mini --cfg-options trian_cfg.max_iters=5': ".*no config has 'trian_cfg': did you mean train_c",
    'train.py CONFIG --mini --seed -1': '--seed must be at least 0, got -1$',
    'predict.py CONFIG x.pth image.jpg --mini --score-thr nan': 'argument --score-thr: expected a number from 0 to 1',
    'test.py CONFIG nan.pth --mini': NAN,
    'train.py CONFIG --mini --load-from nan.pth': NAN,
    'train.py CONFIG --mini --load-from nan.pth --cfg-options resume=True': NAN,
}


@pytest.mark.parametrize(
    ('call', 'message'),
    [pytest.param(*case, marks=needs('no GPU') if 'GPU' in case[1] else ()) for case in BAD_INPUT.items()],
    ids=BAD_INPUT,
)
def test_bad_input(call: str, message: str, workplace: Path, tool: InProcess) -> None:
    (workplace / 'README.md').write_text('no config, no checkpoint')
    (workplace / 'broken.py').write_text('model = dict(')
    torch.save(dict(state_dict=dict(weight=torch.zeros(3)), meta=dict(seed=1)), workplace / 'other.pth')
    torch.save(dict(weight=torch.tensor([1, float('nan')]), bias=torch.zeros(3)), workplace / 'nan.pth')
    line = tool.refused(workplace, *call.replace('CONFIG', CONFIG).split())
    assert re.match(f'(predict.py: )?error: {message}', line)


def test_operation_without_a_deterministic_kernel(workplace: Path, tool: InProcess, monkeypatch, tmp_path) -> None:
    """As PyTorch reports it on a GPU, in the loss of the first step."""
    reported = (
        'nll_loss2d_forward_out_cuda_template does not have a deterministic implementation, but you set '
        "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation."
    )
    monkeypatch.setattr(torch.nn.functional, 'cross_entropy', Mock(side_effect=RuntimeError(reported)))
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    want = 'error: the run would fail: .* nll_loss2d_forward_out_cuda_template does not have a deterministic '
    arguments = ['train.py', CONFIG, '--mini', '--deterministic', '--work-dir', tmp_path]
    try:
        assert re.match(want, tool.error(workplace, *arguments))
        shutil.rmtree(tmp_path)
        assert re.match(want, tool.error(workplace, *arguments, '--dry-run'))
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False


def test_a_training_that_cannot_start_says_what_a_dry_run_says(workplace: Path, tool: InProcess) -> None:
    options = ('--mini', '--work-dir', 'failed', '--cfg-options', 'train_dataloader.batch_size=1')
    line = tool.error(workplace, 'train.py', CONFIG, *options)
    assert re.match('error: batch normalisation cannot train with a single value .*batch_size=1', line)
    assert tool.refused(workplace, 'train.py', CONFIG, *options, '--dry-run') == line
    infinite = 'model.decode_head.loss_decode.loss_weight=1e39'
    line = tool.refused(workplace, 'train.py', CONFIG, *options[:-1], infinite, '--dry-run')
    assert line == 'error: the loss of the first training step is inf'


BAD_TEST = {
    'configs/transnext/upernet_tiny_ade20k.py': '.* of another shape: .*file .24, 3, 7, 7., model .72, ',
    'CONFIG --cfg-options model.test_cfg.mode=whole test_dataloader.dataset.pipeline.1.scale=(64,16) '
    'model.data_preprocessor.test_cfg.size_divisor=1': r'.*H and W of at least 32 pixels, got \(1, 3, 16, ',
    'CONFIG --cfg-options test_dataloader.dataset.data_root=damaged': 'cannot decode .*/ADE_val_00000003',
}


@pytest.mark.usefixtures('trained')
@pytest.mark.parametrize(('args', 'message'), BAD_TEST.items(), ids=BAD_TEST)
def test_test_that_fails(args: str, message: str, workplace: Path, tool: InProcess) -> None:
    config, *options = args.replace('CONFIG', CONFIG).split()
    if args.endswith('=damaged'):
        shutil.copytree(workplace / 'data/mini/ADEChallengeData2016', workplace / 'damaged')
        (workplace / 'damaged/images/validation/ADE_val_00000003.jpg').write_bytes(b'no image')
    line = tool.error(workplace, 'test.py', config, 'trained/iter_60.pth', '--mini', '--work-dir', 'wrong', *options)
    assert re.match(f'error: {message}', line)


def test_label_maps_of_a_list_of_metrics(tmp_path: Path) -> None:
    """They are written by those that can."""
    set_out = runpy.run_path(str(ROOT / 'tools/test.py'))['set_out']
    metrics = [dict(type='mmseg.IoUMetric'), dict(type='DumpResults')]
    config = Config(dict(default_scope='mmseg', test_evaluator=metrics))
    set_out(config, str(tmp_path / 'labels'))
    assert config.test_evaluator == [dict(metrics[0], output_dir=str(tmp_path / 'labels')), metrics[1]]
    config.test_evaluator = metrics[1:]
    with pytest.raises(InputError, match='--out needs one of IoUMetric, CityscapesMetric, DepthMetric in test_eval'):
        set_out(config, str(tmp_path / 'labels'))
