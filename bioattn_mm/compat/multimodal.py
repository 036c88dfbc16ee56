"""mmpretrain beside a `transformers` that is too new for its multimodal models.

mmpretrain imports them wherever `transformers` is installed, and with version 5, in which functions that they need
are gone, `import mmpretrain.models` fails: none of its backbones and heads can be used, and no config that names one.
Here they are left out then, as mmpretrain leaves them out where `transformers` is not installed.
"""

from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from .after_import import AfterImport

FIRST_TOO_NEW = 5  # major version of transformers


def leave_out(dependency: ModuleType) -> None:
    """Tell mmpretrain's module of optional dependencies that those of the multimodal models are not there."""
    try:
        major = int(version('transformers').split('.')[0])
    except (PackageNotFoundError, ValueError):
        return
    if major >= FIRST_TOO_NEW:
        dependency.WITH_MULTIMODAL = False


def install() -> None:
    """Leave the multimodal models out when mmpretrain is imported; a second call does nothing."""
    AfterImport('mmpretrain.utils.dependency', leave_out).install()
