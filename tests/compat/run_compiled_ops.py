"""Make the calls of mmcv_op_cases in a process whose mmcv has its compiled ops.

`python run_compiled_ops.py ARGUMENTS RESULTS`, with files of torch.save.
"""

import sys

import torch

from bioattn_mm import compat


def main(arguments_file: str, results_file: str) -> None:
    torch.set_num_threads(1)
    if compat.install() or 'mmcv._ext' in sys.modules:
        sys.exit('install() has replaced compiled ops, or there are none')

    # Imports mmcv.ops, with the compiled functions if install() did nothing.
    from mmcv_op_cases import CASES

    arguments_by_case = torch.load(arguments_file)
    results = {name: CASES[name][0](**arguments) for name, arguments in arguments_by_case.items()}
    torch.save(results, results_file)


if __name__ == '__main__':
    main(*sys.argv[1:])
