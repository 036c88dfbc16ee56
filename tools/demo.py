#!/usr/bin/env python
"""Try a model in the browser: drop an image, see the prediction, and click a pixel to see what it attends to.

You see the classes under the pointer and the time that the model took, and can download what predict.py writes. Of
the pixel that you click you see its attention in any layer, and its receptive field. Segmentors take whole images.
"""

import argparse
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401

from bioattn_mm.cli.command_line import ToolParser, model_options, run_tool
from bioattn_mm.errors import InputError

MAX_PORT = 65535


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'demo.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth',
        'demo.py configs/transnext/upernet_tiny_ade20k.py --mini',
    )
    parser.add_model()
    parser.add_argument(
        '--host',
        default='127.0.0.1',
        help='address to listen at (default: %(default)s, for this machine only); with 0.0.0.0 everyone who reaches '
        'this machine can use the model',
    )
    parser.add_argument(
        '--allow-host',
        action='append',
        default=[],
        metavar='NAME',
        help='host name in the address of the page, such as that of a proxy; repeat the option for more (default: '
        'localhost only)',
    )
    parser.add_integer(
        '--port', minimum=1, metavar='N', help='port to listen at (default: the first free one from 7860)'
    )
    parser.add_integer(
        '--max-upload', minimum=1, default=20, metavar='MB', help='size limit of an image file (default: 20)'
    )
    parser.add_shared('--bias-mode', '--amp')
    parser.add_config_options()
    parser.add_shared('--device')
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    if find_spec('gradio') is None:
        raise InputError("the page needs gradio, which is not installed: pip install 'bioattn_mm[demo]'")
    if args.port is not None and args.port > MAX_PORT:
        raise InputError(f'--port must be at most {MAX_PORT}, got {args.port}')
    from bioattn_mm import Predictor
    from bioattn_mm.page.explorer import Explorer
    from bioattn_mm.page.server import serving

    predictor = Predictor(args.config, args.checkpoint, **model_options(args))
    explorer = Explorer(predictor)
    title = f'{Path(args.config).stem}, {Path(predictor.checkpoint).name}'
    # `kill` would else leave the temporary files behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with serving(explorer, title, args.host, args.port, args.max_upload * 2**20, args.allow_host) as url:
        print(f'{title}: {url}  (Ctrl+C ends it)', flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            pass


if __name__ == '__main__':
    main()
