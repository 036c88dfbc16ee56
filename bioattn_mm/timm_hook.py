"""Registering the models in timm as soon as timm is imported, before or after this package.

`import bioattn_mm` takes hundredths of a second and `import timm` seconds, so the one does not cause the other.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

TIMM_MODELS, REGISTRY = 'timm.models', 'bioattn_mm.timm_registry'


def install() -> None:
    """Register the models if timm is imported, else when it will be; `import bioattn_mm` calls this.

    The latter puts a finder into `sys.meta_path`, which Python asks where a module is. It answers for `timm.models`
    alone, with what Python finds by itself, plus a call of ours after the module has run.
    """
    if TIMM_MODELS in sys.modules:
        import_module(REGISTRY)
    elif Finder not in sys.meta_path:
        sys.meta_path.insert(0, Finder)


class Finder:
    """Finder of `timm.models`, after `importlib.abc.MetaPathFinder`."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == TIMM_MODELS else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                import_module(REGISTRY)

            spec.loader.exec_module = exec_module
        return spec
