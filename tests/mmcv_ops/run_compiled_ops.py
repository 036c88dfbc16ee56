"""Make the calls of mmcv_op_cases in a process whose mmcv has its compiled ops.

`python run_compiled_ops.py ARGUMENTS RESULTS`, with files of torch.save.
"""

import sys

import torch

import bioattn_mm  # noqa: F401  (provides mmcv._ext where there is none)

torch.set_num_threads(1)
from mmcv_op_cases import CASES  # noqa: E402

if sys.modules['mmcv._ext'].__spec__.origin == 'bioattn_mm.mmcv_ops.stand_ins':
    sys.exit('bioattn_mm has replaced compiled ops, or there are none')
arguments_by_case = torch.load(sys.argv[1])
torch.save({name: CASES[name][0](**arguments) for name, arguments in arguments_by_case.items()}, sys.argv[2])
