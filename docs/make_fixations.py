#!/usr/bin/env python
"""Write points on the objects of a COCO file as if people had looked there, in the layout of MIT1003.

Nobody has looked: the points are drawn from a normal distribution around the middle of each object, to show what
`tools/analysis/attention_segmentation.py --fixations` draws.

Example:
  python docs/make_fixations.py annotations/instances_val.json --out work_dirs/fixations
"""

import argparse
import json
from pathlib import Path

import cv2
import numpy as np

POINTS_OF_AN_OBJECT = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('annotations', type=Path, help='JSON with the boxes of images')
    parser.add_argument('--out', type=Path, required=True, help='folder for NAME_fixPts.jpg of each image')
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    truth = json.loads(args.annotations.read_text(encoding='utf-8'))
    rng = np.random.default_rng(0)
    for image in truth['images']:
        points = np.zeros((image['height'], image['width']), np.uint8)
        for left, top, width, height in (a['bbox'] for a in truth['annotations'] if a['image_id'] == image['id']):
            middle, spread = (left + width / 2, top + height / 2), (width / 5, height / 5)
            for x, y in rng.normal(middle, spread, (POINTS_OF_AN_OBJECT, 2)).round().astype(int):
                cv2.circle(points, (int(x), int(y)), 1, 255, -1)
        path = args.out / f'{Path(image["file_name"]).stem}_fixPts.jpg'
        cv2.imwrite(str(path), points, [cv2.IMWRITE_JPEG_QUALITY, 100])


if __name__ == '__main__':
    main()
