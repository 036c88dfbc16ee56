#!/usr/bin/env python
"""Draw what `AttentionStatisticsHook` logged in trainings, as figures 5 and 6 of ConViT (d'Ascoli et al., ICML 2021).

A panel for each training on one scale, in which a layer has a colour by its depth, from the first, dark, to the last,
pale lines for its heads, and their mean; with --by-layer a panel for each layer.

Example:
  python docs/make_attention_curves.py work_dirs/gates --measure gate --by-layer --out gates
"""

import argparse
import json
import re
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('work_dirs', nargs='+', type=Path, metavar='WORK_DIR', help='folders of trainings')
    parser.add_argument('--measure', required=True, help='what to draw, such as gate or nonlocality')
    parser.add_argument('--by-layer', action='store_true', help='draw a panel for each layer')
    parser.add_argument('--out', type=Path, required=True, help='folder for attention_curves.png')
    args = parser.parse_args()
    panels = {}  # curves by layer, by title
    for folder in args.work_dirs:
        layers = read_curves(folder, args.measure)
        if args.by_layer:
            panels |= {f'{folder.name}, layer {layer}': {layer: curves} for layer, curves in layers.items()}
        else:
            panels[folder.name] = layers
    deepest = max(layer for layers in panels.values() for layer in layers)
    columns = min(4, len(panels))
    figure = Figure(figsize=(4 * columns, 3 * -(-len(panels) // columns)), layout='constrained')
    axes = figure.subplots(-(-len(panels) // columns), columns, squeeze=False, sharey=True).flat
    for axis, (title, layers) in zip(axes, panels.items()):
        for layer, curves in layers.items():
            color = matplotlib.colormaps['viridis'](0.9 * layer / max(1, deepest))
            steps = sorted(set.intersection(*map(set, curves)))
            for curve in curves if len(curves) > 1 else ():
                axis.plot(steps, [curve[step] for step in steps], color=color, alpha=0.4, linewidth=0.8)
            axis.plot(steps, [np.mean([curve[step] for curve in curves]) for step in steps], color=color)
        axis.set(title=title, xlabel='iteration', ylabel=args.measure)
        axis.grid(alpha=0.3)
    args.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out / 'attention_curves.png', dpi=120)


def read_curves(folder: Path, measure: str) -> dict[int, list[dict[int, float]]]:
    """Of each layer a curve for each head, or one of their mean, by iteration, over all starts of a training."""
    curves: dict[tuple[int, str], dict[int, float]] = {}
    for file in sorted(folder.glob('*/vis_data/scalars.json')):
        for line in map(json.loads, file.read_text(encoding='utf-8').splitlines()):
            for key, value in line.items():
                if match := re.fullmatch(rf'attention/{measure}/layer(\d+)(/head\d+)?', key):
                    curves.setdefault((int(match[1]), match[2] or ''), {})[line['iter']] = value
    if not curves:
        raise SystemExit(f'error: no attention/{measure} in the logs of {folder}: train with AttentionStatisticsHook')
    return {layer: [curve for (of, _), curve in curves.items() if of == layer] for layer, _ in sorted(curves)}


if __name__ == '__main__':
    main()
