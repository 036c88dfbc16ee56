#!/usr/bin/env python
"""Write the weights of a checkpoint to a file that you can publish, without the optimizer's state."""

import argparse

import bioattn_mm.cli.threads_and_memory  # noqa: F401

from bioattn_mm.checkpoints import read_checkpoint, weights_of, write_checkpoint
from bioattn_mm.checkpoints.files import SAFETENSORS, write_safetensors
from bioattn_mm.cli.command_line import CHECKPOINT_KINDS, ToolParser, run_tool
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.files import check_new_file


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'publish_model.py work_dirs/transnext/upernet_tiny_ade20k/iter_160000.pth upernet_tiny.safetensors',
        'publish_model.py work_dirs/transnext/upernet_base_ade20k/iter_160000.pth upernet_base.pth',
    )
    parser.add_argument(
        'input',
        metavar='IN',
        help=f'checkpoint: {CHECKPOINT_KINDS}, or the folder of a run with --strategy; EMA weights if it has some',
    )
    parser.add_argument(
        'output',
        metavar='OUT',
        help='file to write: .safetensors with only the weights, or .pth with the config and the classes, too',
    )
    parser.add_shared('--trust-checkpoint')
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    output = check_new_file(args.output)
    if output.suffix not in (SAFETENSORS, '.pth'):
        raise InputError(f'OUT must end with {SAFETENSORS} or .pth, got {output.name}')
    checkpoint = read_checkpoint(args.input)
    weights = weights_of(args.input, checkpoint)
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.suffix == SAFETENSORS:
        write_safetensors(weights, output)
    else:
        meta = checkpoint.get('meta') if isinstance(checkpoint.get('meta'), dict) else {}
        meta = {key: meta[key] for key in ('cfg', 'dataset_meta') if key in meta}  # what inference needs
        write_checkpoint(dict(meta=meta, state_dict=weights), output)
    print(f'{len(weights)} tensors, {output.stat().st_size / 2**20:.1f} MiB: {output}')


if __name__ == '__main__':
    main()
