"""Run a script of another library unchanged, after `import bioattn_mm`."""

import argparse
import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(
        prog='python -m bioattn_mm',
        description='Run a script of another library, such as mmdet or mmseg, unchanged after `import bioattn_mm`, '
        'which provides mmcv.ops if mmcv was installed without them.',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The package's own tools are the command `bioattn`.\n\n"
        'Examples:\n'
        '  python -m bioattn_mm mmdet/.mim/tools/train.py configs/transnext/mask_rcnn_tiny_coco.py\n'
        '  torchrun --nproc_per_node 8 -m bioattn_mm mmseg/.mim/tools/train.py '
        'configs/transnext/upernet_tiny_ade20k.py --launcher pytorch',
    )
    parser.add_argument(
        'script', metavar='SCRIPT', help='path of the script, from here or from where packages are installed'
    )
    parser.add_argument('args', nargs=argparse.REMAINDER, metavar='...', help='arguments of the script')
    args = parser.parse_args()
    candidates = (Path(folder, args.script).absolute() for folder in ('.', *sys.path))
    script = next((path for path in candidates if path.is_file()), None)
    if script is None:
        parser.error(f'script not found: {args.script}; searched in {Path.cwd()} and where packages are installed')

    sys.argv = [str(script), *args.args]
    # `python SCRIPT` puts the folder of the script first, too.
    sys.path.insert(0, str(script.resolve().parent))
    os.environ['BIOATTN_MM_SCRIPT'] = str(script)
    from . import registry  # noqa: F401, here, because it takes seconds that --help need not take
    from .checkpoints import mmengine_reads_all

    with mmengine_reads_all():
        runpy.run_module('bioattn_mm.cli.script', run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    main()
