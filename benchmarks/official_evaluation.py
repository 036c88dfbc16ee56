#!/usr/bin/env python
"""COCO's own evaluation of predictions in the official format of results, without bioattn_mm and OpenMMLab.

Boxes and masks by pycocotools, panoptic segmentation by panopticapi, which is installed from its repository:
`pip install git+https://github.com/cocodataset/panopticapi`. Prints AP, AP50 and PQ in percent as JSON.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('annotations', help="COCO's JSON of instances, or of panoptic segmentation")
    parser.add_argument('results', help='JSON of results, NAME.bbox.json, NAME.segm.json or NAME.panoptic.json')
    parser.add_argument(
        '--segments', nargs=2, metavar='DIR', help='panoptic: folders of PNGs, of the annotations and of the results'
    )
    args = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):  # what the two packages print
        found = panoptic_quality(args) if args.segments else average_precision(args.annotations, args.results)
    print(json.dumps(found))


def average_precision(annotations: str, results: str) -> dict[str, float]:
    """AP of boxes or masks."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    kind = Path(results).name.split('.')[-2]
    truth = COCO(annotations)
    evaluation = COCOeval(truth, truth.loadRes(results), kind)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return {f'{kind}_mAP': 100 * float(evaluation.stats[0]), f'{kind}_mAP_50': 100 * float(evaluation.stats[1])}


def panoptic_quality(args: argparse.Namespace) -> dict[str, float]:
    """PQ of all classes."""
    from panopticapi.evaluation import pq_compute

    found = pq_compute(args.annotations, args.results, *args.segments)
    return {'PQ': 100 * found['All']['pq']}


if __name__ == '__main__':
    main()
