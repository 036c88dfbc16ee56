"""PyTorch's launcher `torchrun` for tools/dist_train.sh and tools/dist_test.sh; its arguments are torchrun's.

It gives the processes a folder in which they note what `restarts` needs, and keeps torchrun's traceback from the user
whose input was refused: the one-line error is there.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from .restarts import REFUSED, STARTS


def main() -> None:
    with TemporaryDirectory(prefix='bioattn_mm_') as folder:
        os.environ[STARTS] = folder
        # A store that torchrun shares with the processes still holds the addresses of those before a restart.
        os.environ['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'] = '1'
        try:
            torchrun(sys.argv[1:])
        except ChildFailedError:
            if not Path(folder, REFUSED).exists():
                raise
            sys.exit(2)
        except SignalException as error:  # the processes got the signal, too, and have saved a checkpoint
            sys.exit(128 + error.sigval)


if __name__ == '__main__':
    main()
