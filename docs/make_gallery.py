#!/usr/bin/env python
"""Make the pictures of docs/gallery.md and docs/systems/*.md by the commands that stand beside them there.

A page names a picture, `![...](NAME.png)`, and below it the command that draws it, which ends with
`--out work_dirs/gallery/NAME`. This runs the commands of all pages from top to bottom, `make gallery` from the
beginning, and puts what they drew, with fewer colours, beside the pages: of several drawings the one whose name ends
that of the picture, else the first. A command whose folder is there already is not run again.

Example:
  python docs/make_gallery.py                       # all pictures whose models and data are there
  python docs/make_gallery.py transnext erf         # these alone, with the trainings in their blocks
"""

import argparse
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parent
PAGES = ('gallery.md', *(f'systems/{name}.md' for name in ('transnext', 'convit', 'pervit', 'gab', 'vars')))
OUT = 'work_dirs/gallery'
# Drawings get fewer colours until they are as small as the first of these, and must be as small as the second.
WANTED_BYTES, MAX_BYTES = 250_000, 300_000
COLORS = (256, 128, 64, 32)
NEARLY_WHITE = 248


@dataclass
class Step:
    """A command of a page.

    Attributes:
        command: Its words.
        names: The picture that it draws; of a training and of data those of its block, which need it.
        out: Folder that it writes to, if it draws.
        picture: Picture that it draws; None for a training, which ends at once if it is done, and for data.
    """

    command: list[str]
    names: list[str]
    out: Path | None = None
    picture: Path | None = None

    def missing(self) -> list[str]:
        """The models and data in work_dirs that it takes and that are not there."""
        words = [word for last, word in itertools.pairwise(self.command) if last != '--out']
        return [word for word in words if word.startswith('work_dirs/') and not (DOCS.parent / word).exists()]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('names', nargs='*', metavar='NAME', help='pictures to make again, such as erf (default: all)')
    return parser.parse_args()


def main() -> None:
    names = parse_args().names
    steps = [step for page in PAGES for step in steps_of(DOCS / page)]
    known = [step.out.name for step in steps if step.out]
    if not set(names) <= set(known):
        sys.exit(f'error: no picture {" ".join(set(names) - set(known))}: expected some of {" ".join(known)}')
    for step in steps:
        if names and not set(names) & set(step.names):
            continue
        if missing := step.missing():
            what = f'{step.picture.name} stays as it is' if step.picture else shlex.join(step.command[:3])
            print(f'{what}: no {missing[0]}, which docs/gallery.md says how to make')
            continue
        if step.out and names:
            shutil.rmtree(DOCS.parent / step.out, ignore_errors=True)
        if not step.out or not (DOCS.parent / step.out).exists():
            print('$', shlex.join(step.command), flush=True)
            run(step.command)
        if step.picture:
            shrink(drawing_in(DOCS.parent / step.out, step.picture.stem), step.picture)


def steps_of(page: Path) -> list[Step]:
    """The commands of a page that draw its pictures, and the trainings that they need, in their order.

    Raises:
        ValueError: A picture has no command, or a command to `OUT` no picture.
    """
    text = page.read_text(encoding='utf-8')
    pictures = {
        Path(path).stem: page.parent / path for path in re.findall(r'^!\[[^]]*\]\(([^)]+\.png)\)', text, re.M)
    }
    steps = []
    for block in re.findall(r'^```bash\n(.*?)^```', text, re.M | re.S):
        names = re.findall(rf'--out {OUT}/(\w+)', block)
        for line in block.replace('\\\n', ' ').splitlines():
            words = shlex.split(line, comments=True)
            out = words[words.index('--out') + 1] if '--out' in words else ''
            if out.startswith(f'{OUT}/'):
                name = Path(out).name
                steps.append(Step(words, [name], Path(out), pictures.pop(name)))
            elif 'tools/train.py' in words and '--resume' in words or 'docs/make_fixations.py' in words:
                steps.append(Step(words, names))
    if pictures:
        raise ValueError(f'{page}: no command to {OUT} for {", ".join(pictures)}')
    return steps


def run(command: list[str]) -> None:
    """Run a command in the root of the repository, with this Python."""
    path = f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}'
    subprocess.run(command, cwd=DOCS.parent, env={**os.environ, 'PATH': path}, check=True)


def drawing_in(folder: Path, name: str) -> Path:
    """The drawing that a tool wrote into a folder: the one whose name ends `name`, else the first by name."""
    drawings = sorted(folder.glob('*.png'))
    return next((drawing for drawing in drawings if name.endswith(drawing.stem)), drawings[0])


def shrink(drawing: Path, picture: Path) -> None:
    """Save a drawing with as many of `COLORS`, fitted to it, as fit into `WANTED_BYTES`; the most are dithered first.

    Raises:
        ValueError: With the fewest it is larger than `MAX_BYTES`.
    """
    with Image.open(drawing) as image:
        full = image.convert('RGB')
    picture.parent.mkdir(exist_ok=True)
    most = COLORS[0]
    for colors, dither in [(most, Image.Dither.FLOYDSTEINBERG), *((number, Image.Dither.NONE) for number in COLORS)]:
        fitted = full.quantize(colors)
        # The background stays white.
        fitted.putpalette([255 if value >= NEARLY_WHITE else value for value in fitted.getpalette()])
        full.quantize(palette=fitted, dither=dither).save(picture, optimize=True)
        size = picture.stat().st_size
        if size <= WANTED_BYTES:
            break
    if size > MAX_BYTES:
        raise ValueError(f'{picture} has {size / 1000:.0f} kB, more than {MAX_BYTES / 1000:.0f} kB')
    print(f'{picture}  {size / 1000:.0f} kB', flush=True)


if __name__ == '__main__':
    main()
