#!/usr/bin/env python
"""Make docs/demo_page.png, the picture of the page of tools/demo.py in the README.

It needs Chromium, and `make setup EXTRA=demo`. Example:
  python docs/make_demo_picture.py configs/transnext/upernet_tiny_ade20k.py --mini
"""

import argparse
from functools import partial
from pathlib import Path

import cv2
from PIL import Image

from bioattn_mm import Predictor
from bioattn_mm.page.browser import choose, click, open_browser, source, upload, visit, wait_for_change
from bioattn_mm.page.explorer import Explorer
from bioattn_mm.page.server import serving

MINI_IMAGE = 'data/mini/ADEChallengeData2016/images/validation/ADE_val_00000004.jpg'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', nargs='?', help='checkpoint (default with --mini: the newest)')
    parser.add_argument('--mini', action='store_true', help='take the miniature of the config')
    parser.add_argument('--image', default=MINI_IMAGE, help='image that is uploaded (default: %(default)s)')
    parser.add_argument('--click', type=int, nargs=2, metavar=('ROW', 'COLUMN'), help='pixel (default: the middle)')
    parser.add_argument('--size', help='shorter side of the input in the right column, one of those on the page')
    parser.add_argument('--layer', help='name of the attention layer, one of those on the page')
    parser.add_argument('--out', default='docs/demo_page.png', help='file to write (default: %(default)s)')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    make_predictor = partial(Predictor, args.config, args.checkpoint, mini=args.mini)
    explorer = Explorer(lambda bias_mode: make_predictor(bias_mode=bias_mode))
    title = f'{Path(args.config).stem}, {Path(explorer.predictor.checkpoint).name}'
    height, width = cv2.imread(args.image).shape[:2]
    row, column = args.click or (height // 2, width // 2)
    with serving(explorer, title, '127.0.0.1', None, 2**24) as url, open_browser() as browser:
        page = browser.new_page(viewport=dict(width=1360, height=900))
        visit(page, url)
        if args.layer:
            choose(page, 'attention_layer', args.layer)
        upload(page, args.image)
        before = source(page, 'prediction_1')
        if args.size:
            choose(page, 'size_1', f'{args.size} pixels')
            wait_for_change(page, 'prediction_1', before)
        click(page, 'prediction_0', (row + 0.5) / height, (column + 0.5) / width)
        source(page, 'field_1')
        page.mouse.move(0, 0)
        # Every picture is decoded, and none is being computed.
        page.wait_for_function('[...document.images].every((image) => image.complete && image.naturalWidth)')
        page.wait_for_function("!document.querySelector('.generating, .pending, .eta-bar, .progress-text')")
        page.screenshot(path=args.out, full_page=True)
    with Image.open(args.out) as image:
        # 256 colours that are fitted to the picture: a third of the size, and no difference to be seen.
        image.convert('RGB').quantize(256, kmeans=4, dither=Image.Dither.NONE).save(args.out, optimize=True)
    print(f'{args.out}  {Path(args.out).stat().st_size / 1000:.0f} kB')


if __name__ == '__main__':
    main()
