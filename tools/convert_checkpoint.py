#!/usr/bin/env python
"""Convert a detector or segmentor that TransNeXt's authors released to this package's names."""

import argparse

import bioattn_mm.cli.threads_and_memory  # noqa: F401

from bioattn_mm.checkpoints import check_fit, dataset_meta_of, read_checkpoint, weights_of, write_checkpoint
from bioattn_mm.checkpoints.downstream import convert
from bioattn_mm.checkpoints.files import first_of
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.files import check_new_file
from bioattn_mm.systems.transnext import TransNeXt
from bioattn_mm.training.config.loading import read_config
from bioattn_mm.training.config.model_check import state_dict_of


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'convert_checkpoint.py upernet_transnext_tiny_512x512_160k_ade20k_in1k.pth upernet_tiny.pth '
        '--config configs/transnext/upernet_tiny_ade20k.py',
    )
    parser.add_argument(
        'input',
        metavar='IN',
        help='released file or its URL: Mask R-CNN, DINO, UperNet or Mask2Former, of mmdet 2 or 3, mmseg 0 or 1',
    )
    parser.add_argument('output', metavar='OUT', help='file to write, for test, predict and load_from of a config')
    parser.add_argument('--config', help="check that all names and shapes are those of this config's model")
    parser.add_shared('--trust-checkpoint')
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    output = check_new_file(args.output)
    if not output.parent.is_dir():
        raise InputError(f'no such folder: {output.parent}')
    state_dict = state_dict_of(read_config(args.config)) if args.config else None

    checkpoint = read_checkpoint(args.input)
    conversion = convert(args.input, weights_of(args.input, checkpoint), TransNeXt)
    if state_dict is not None:
        check_fit(f'{args.input} (for {args.config})', conversion.weights, state_dict, strict=True)
    dataset_meta = dataset_meta_of(checkpoint)
    meta = dict(dataset_meta=dataset_meta) if dataset_meta else {}
    write_checkpoint(dict(meta=meta, state_dict=conversion.weights), output)

    print(f'{args.input}: {conversion.framework} with TransNeXt-{conversion.variant.capitalize()}')
    print('mapped: ' + ', '.join(f'{count} {part}' for part, count in conversion.counts.items()))
    print(f'kept beside the weights: {", ".join(dataset_meta) or "nothing"}')
    print(f'left out: {len(conversion.left_out)} {first_of(conversion.left_out)}')
    compared = f'fits {args.config}: every name and shape'
    print(compared if args.config else 'not compared with a model: --config does that, and so does tools/test.py')
    print(f'written: {output}')


if __name__ == '__main__':
    main()
