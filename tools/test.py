#!/usr/bin/env python
"""Test a checkpoint of any mmdet, mmseg or mmpretrain config: print its metrics, draw its predictions."""

import argparse
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401

import torch
from mmengine.config import Config, ConfigDict
from mmengine.dist import is_main_process

from bioattn_mm.checkpoints import read_checkpoint, weights_for, weights_of
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import write_contact_sheet
from bioattn_mm.data.formats.arguments import DataArguments, data_arguments
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.files import check_new
from bioattn_mm.training.amp import autocast_dtype
from bioattn_mm.training.bad_data import FinitePredictionsHook
from bioattn_mm.training.config.data_check import check_annotations
from bioattn_mm.training.config.loading import default_work_dir, load_config
from bioattn_mm.training.config.model_check import model_of
from bioattn_mm.training.config.own_data import check_classes
from bioattn_mm.training.config.pipelines import add_hook, as_list, load_ground_truth, type_name
from bioattn_mm.training.config.testing import TEST_SETS
from bioattn_mm.training.cuda_graphs import set_cuda_graphs
from bioattn_mm.training.runner import build_runner, failures_in_one_line
from bioattn_mm.training.step_log import NO_METRIC, not_finite, numbers_of
from bioattn_mm.training.trackers import set_trackers

# Metrics of mmseg that write what is predicted.
FILE_WRITERS = ('IoUMetric', 'CityscapesMetric', 'DepthMetric')


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'test.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth',
        'test.py configs/transnext/upernet_tiny_ade20k.py iter_200.pth --mini --show-dir images',
        'test.py configs/transnext/mask_rcnn_tiny_coco.py epoch_20.pth --data DIR',
        'test.py configs/transnext/transnext-micro_8xb128_in1k.py transnext_micro_224_1k.pth --test-set r',
    )
    parser.add_shared('config', 'checkpoint')
    parser.add_argument(
        '--work-dir',
        help="folder for logs (default: test, beside the checkpoint; for a URL in the training's work dir)",
    )
    parser.add_argument(
        '--out',
        metavar='PATH',
        help='write the predictions: label maps of a segmentor into the folder PATH, those of a detector or '
        'classifier into the pickle file PATH (.pkl)',
    )
    parser.add_argument(
        '--show-dir', metavar='DIR', help='draw ground truth and prediction of every image, side by side, into DIR'
    )
    parser.add_argument('--tta', action='store_true', help='multi-scale and flip testing, as the config defines it')
    parser.add_shared('--bias-mode', '--amp', '--cuda-graphs', '--log', '--shards')
    parser.add_data()
    parser.add_argument(
        '--test-set',
        choices=TEST_SETS,
        metavar='NAME',
        help=f'test a classifier of ImageNet-1k on another test set: {", ".join(TEST_SETS)} (docs/training.md)',
    )
    parser.add_argument(
        '--test-root', metavar='DIR', help=f'folder with its images (default of a: {TEST_SETS["a"][1]}, and so on)'
    )
    parser.add_config_options()
    parser.add_shared('--launcher', '--local-rank')
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    data = data_arguments(args)
    if args.test_root and not args.test_set:
        raise InputError('--test-root is the folder of --test-set: name that, too')
    config = load_config(
        args.config,
        data=data,
        mini=args.mini,
        cfg_options=args.cfg_options,
        dataloaders=('test_dataloader',),
        bias_mode=args.bias_mode,
        tta=args.tta,
        test_set=args.test_set,
        test_root=args.test_root,
        shards=args.shards,
        launcher=args.launcher,
    )
    if data:
        for note in check_annotations(config, ('test_dataloader',)):
            print(note)
    model = model_of(config)
    checkpoint = read_checkpoint(args.checkpoint)
    weights = weights_of(args.checkpoint, checkpoint)
    if data:
        check_classes(args.checkpoint, checkpoint, config)
    weights_for(model, args.checkpoint, weights)
    set_options(config, args, data)

    with failures_in_one_line(config) as hook:
        runner = build_runner(config)
        runner.register_hook(hook)
        runner.register_hook(FinitePredictionsHook())
        metrics = runner.test()
    if not is_main_process():
        return

    print(f'\n{args.config} {args.checkpoint}')
    figures = '  '.join(f'{name} {value:.4g}' for name, value in numbers_of(metrics).items() if 'time' not in name)
    print(figures or 'no metric: nothing was detected')
    if args.show_dir:
        sheet = Path(args.show_dir, 'predictions.png')
        drawn = (path for path in sheet.parent.rglob('*') if path.suffix in ('.png', '.jpg'))
        write_contact_sheet(sorted(drawn), sheet)
        print(f'images (ground truth | prediction): {sheet}')
    if names := not_finite(metrics):
        raise InputError(f'{names}: {NO_METRIC}')


def set_options(config: Config, args: argparse.Namespace, data: DataArguments | None) -> None:
    """Let the config test the checkpoint, and do what the options say."""
    config.load_from = args.checkpoint
    config.resume = False
    is_remote = '://' in args.checkpoint
    folder = default_work_dir(args.config, args.mini, data) if is_remote else Path(args.checkpoint).parent
    config.work_dir = args.work_dir or str(Path(folder) / 'test')
    if args.out:
        set_out(config, args.out)
    if args.show_dir:
        set_show_dir(config, args.show_dir)
    if args.tta:
        config.model = ConfigDict(**config.tta_model, module=config.model)
        config.test_dataloader.dataset.pipeline = config.tta_pipeline
    if args.amp:
        autocast_dtype(args.amp, 'cuda' if torch.cuda.is_available() else 'cpu')
        add_hook(config, 'MixedPrecisionTestHook', dtype=args.amp)
    set_cuda_graphs(config, args.cuda_graphs)
    set_trackers(config, args.log, 'test')


def set_out(config: Config, out: str) -> None:
    path = check_new(out, '--out')
    evaluators = as_list(config.test_evaluator)
    if config.default_scope == 'mmseg':
        writers = [evaluator for evaluator in evaluators if type_name(evaluator) in FILE_WRITERS]
        if not writers:
            raise InputError(f'--out needs one of {", ".join(FILE_WRITERS)} in test_evaluator, which write files')
        for evaluator in writers:
            evaluator.output_dir = out
        return
    if path.suffix not in ('.pkl', '.pickle'):
        raise InputError(f'--out must end in .pkl with a detection or classification config, got {out}')
    kind = 'DumpDetResults' if config.default_scope == 'mmdet' else 'DumpResults'
    config.test_evaluator = [*evaluators, dict(type=kind, out_file_path=out)]


def set_show_dir(config: Config, show_dir: str) -> None:
    check_new(show_dir, '--show-dir')
    hook = config.default_hooks.get('visualization')
    if hook is None:
        raise InputError('--show-dir needs default_hooks.visualization in the config, and this one has none')
    hook.update(draw=True, interval=1)
    # Curves of --log stay in the work dir.
    for backend in config.visualizer.get('vis_backends') or []:
        backend.save_dir = str(Path(show_dir, 'vis_data'))
    load_ground_truth(config)


if __name__ == '__main__':
    main()
