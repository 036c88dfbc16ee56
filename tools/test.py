#!/usr/bin/env python
"""Test a checkpoint of any mmdet, mmseg or mmpretrain config: print its metrics, draw its predictions."""

import argparse
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.dist import is_main_process
from mmengine.runner import Runner

from bioattn_mm.checkpoints import check_fit, read_state_dict
from bioattn_mm.cli.bias_mode import BIAS_MODES
from bioattn_mm.cli.command_line import parse, run_tool
from bioattn_mm.cli.config import load_config
from bioattn_mm.cli.contact_sheet import write_contact_sheet
from bioattn_mm.cli.model_check import state_dict_of
from bioattn_mm.cli.pipelines import load_ground_truth
from bioattn_mm.errors import InputError


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='Example: python tools/test.py configs/transnext/upernet_tiny_ade20k.py '
        'work_dirs/transnext/upernet_tiny_ade20k_mini/iter_200.pth --mini --show-dir images',
    )
    parser.add_argument('config', help='config file, such as configs/transnext/upernet_tiny_ade20k.py')
    parser.add_argument('checkpoint', help='checkpoint file of the whole model')
    parser.add_argument('--work-dir', help='folder for logs; default: test, beside the checkpoint')
    parser.add_argument(
        '--out',
        metavar='PATH',
        help='write the predictions for offline evaluation: label maps (.png) into the folder PATH for segmentation, '
        'the pickle PATH (.pkl) for detection',
    )
    parser.add_argument('--show-dir', metavar='DIR', help='draw ground truth | prediction of every image into DIR')
    parser.add_argument('--tta', action='store_true', help='multi-scale and flip testing, as the config defines it')
    parser.add_argument(
        '--bias-mode',
        choices=BIAS_MODES,
        help='position bias of TransNeXt at sizes that it was not trained on, instead of what the config says',
    )
    return parse(parser)


@run_tool
def main() -> None:
    args = parse_args()
    config = load_config(args, ('test_dataloader',), args.bias_mode, args.tta)
    check_fit(args.checkpoint, read_state_dict(args.checkpoint), state_dict_of(config))

    config.load_from = args.checkpoint
    config.resume = False
    config.work_dir = args.work_dir or str(Path(args.checkpoint).parent / 'test')
    config.launcher = args.launcher
    if args.out:
        set_out(config, args.out)
    if args.show_dir:
        set_show_dir(config, args.show_dir)
    if args.tta:
        set_tta(config)

    metrics = Runner.from_cfg(config).test()
    if not is_main_process():
        return

    print(f'\n{args.config} {args.checkpoint}')
    figures = '  '.join(f'{name} {value:.4g}' for name, value in metrics.items() if 'time' not in name)
    print(figures or 'no metric: nothing was detected')
    if args.show_dir:
        print(f'images (ground truth | prediction): {draw_sheet(Path(args.show_dir))}')


def set_out(config: Config, out: str) -> None:
    """Write predictions beside the metrics, in the form of the config's library."""
    path = Path(out)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise InputError(f'{out} is there already: name another path for --out')
    if config.default_scope == 'mmseg':
        config.test_evaluator.output_dir = out
        return
    if path.suffix not in ('.pkl', '.pickle'):
        raise InputError(f'--out of a detection config must end in .pkl, got {out}')
    evaluators = config.test_evaluator if isinstance(config.test_evaluator, list) else [config.test_evaluator]
    config.test_evaluator = [*evaluators, dict(type='DumpDetResults', out_file_path=out)]


def set_show_dir(config: Config, show_dir: str) -> None:
    """Draw every image of the test into a folder."""
    path = Path(show_dir)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise InputError(f'{show_dir} is there already and not empty: name another folder for --show-dir')
    hook = config.default_hooks.get('visualization')
    if hook is None:
        raise InputError('--show-dir needs default_hooks.visualization in the config, and this one has none')
    hook.update(draw=True, interval=1)
    config.visualizer.save_dir = show_dir
    load_ground_truth(config)


def set_tta(config: Config) -> None:
    """Test images at several scales and flipped: `tta_model` and `tta_pipeline` of the config."""
    config.model = ConfigDict(**config.tta_model, module=config.model)
    config.test_dataloader.dataset.pipeline = config.tta_pipeline


def draw_sheet(show_dir: Path) -> Path:
    """Tile some of the images that the visualizer wrote below `show_dir`."""
    sheet = show_dir / 'predictions.png'
    images = sorted(path for path in show_dir.rglob('*') if path.suffix in ('.png', '.jpg'))
    write_contact_sheet(images, sheet)
    return sheet


if __name__ == '__main__':
    main()
