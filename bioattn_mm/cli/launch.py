"""`torchrun` for tools/dist_*.sh, with a folder for `restarts`, and without a traceback where input was refused."""

import os
import sys
from pathlib import Path
from signal import Signals
from tempfile import TemporaryDirectory

from torch.distributed.elastic.multiprocessing.api import PContext, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from .restarts import REFUSED, STARTS

# Seconds that processes have after a signal, for a step or validation and a checkpoint; PyTorch gives them 30.
TIME_TO_SAVE = 3600
close_processes = PContext.close


def close(context: PContext, death_sig: Signals | None = None, timeout: int = 30) -> None:
    """`PContext.close` with `TIME_TO_SAVE` after a signal; after the failure of a process the others may hang."""
    is_signal = isinstance(sys.exc_info()[1], SignalException)
    close_processes(context, death_sig, TIME_TO_SAVE if is_signal else timeout)


def main() -> None:
    PContext.close = close
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
        except SignalException as error:  # the processes got the signal as well, and have saved a checkpoint
            sys.exit(128 + error.sigval)


if __name__ == '__main__':
    main()
