"""What is said of an op of mmcv that is not provided."""

from typing import NoReturn


def refuse(name: str) -> NoReturn:
    """Raise the error of an op that is not provided.

    Raises:
        NotImplementedError: With the name of the op, and how to install mmcv with its compiled ops.
    """
    import mmcv

    raise NotImplementedError(
        f'bioattn_mm.compat does not provide the mmcv op {name!r}; install mmcv with its '
        'compiled ops, in an environment with torch: MMCV_WITH_OPS=1 pip install --force-reinstall '
        '--no-deps --no-cache-dir --no-build-isolation --no-binary onedl-mmcv '
        f'onedl-mmcv=={mmcv.__version__} (and FORCE_CUDA=1 for CUDA ops where no GPU is present)'
    )
