#!/usr/bin/env python
"""A page in the browser on which one drops images and sees what a model makes of them.

The prediction as a layer over the image, its classes, and the time it took; after a click on a pixel, what it attends
to in a layer, and the pixels on which it depends; two input sizes, or two position biases of TransNeXt, side by side.
Segmentors take whole images, also where the config slides a window.
"""

import argparse
import signal
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import bioattn_mm.process_settings  # noqa: F401

from bioattn_mm.cli.command_line import CHECKPOINT_KINDS, ToolParser, run_tool
from bioattn_mm.errors import InputError
from bioattn_mm.page.hosts import check_host

MAX_PORT = 65535


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'demo.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth',
        'demo.py configs/transnext/upernet_tiny_ade20k.py --mini',
    )
    parser.add_config()
    parser.add_argument(
        'checkpoint',
        nargs='?',
        help=f'checkpoint of the whole model: {CHECKPOINT_KINDS} (default with --mini: the newest of the miniature '
        'run)',
    )
    parser.add_argument(
        '--host',
        default='127.0.0.1',
        help='address to listen at; 0.0.0.0 lets other machines open the page, too, and whoever reaches it can use '
        'the model (default: %(default)s, this machine alone)',
    )
    parser.add_argument(
        '--allow-host',
        action='append',
        default=[],
        metavar='NAME',
        help='another name under which browsers open the page, such as that of a proxy or of the machine around a '
        'container; may be given several times. Known are localhost and, if the page listens beyond this machine, '
        "its name and any IP address; requests with another name, and those of other sites' pages, are refused",
    )
    parser.add_integer(
        '--port', minimum=1, metavar='N', help='port to listen at (default: the first free one from 7860 on)'
    )
    parser.add_integer(
        '--max-upload', minimum=1, default=20, metavar='MB', help='largest image file in megabytes (default: 20)'
    )
    parser.add_amp()
    parser.add_config_options()
    parser.add_device()
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    if find_spec('gradio') is None:
        raise InputError("the page needs gradio, which is not installed: pip install 'bioattn_mm[demo]'")
    if args.port is not None and args.port > MAX_PORT:
        raise InputError(f'--port must be at most {MAX_PORT}, got {args.port}')
    check_host(args.host)
    from bioattn_mm import Predictor
    from bioattn_mm.page.explorer import Explorer
    from bioattn_mm.page.server import serving

    make_predictor = partial(
        Predictor,
        args.config,
        args.checkpoint,
        device=args.device,
        mini=args.mini,
        cfg_options=args.cfg_options,
        amp=args.amp,
    )
    explorer = Explorer(lambda bias_mode: make_predictor(bias_mode=bias_mode))
    title = f'{Path(args.config).stem}, {Path(explorer.predictor.checkpoint).name}'
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
