"""Something to do as soon as a module of another package is imported, before or after this package."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class AfterImport:
    """Finder of one module, after `importlib.abc.MetaPathFinder`.

    It answers with what Python finds by itself, plus a call of ours after the module has run. So `import bioattn_mm`,
    which takes hundredths of a second, imports none of the packages that take seconds.

    Args:
        name: The module, with its package.
        action: Called once, with the module.
    """

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self.name, self.action = name, action

    def install(self) -> None:
        """Call the action if the module is imported, else put this into `sys.meta_path`, which Python asks."""
        if self.name in sys.modules:
            self.action(sys.modules[self.name])
        elif not any(isinstance(finder, AfterImport) and finder.name == self.name for finder in sys.meta_path):
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == self.name else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self.action(module)

            spec.loader.exec_module = exec_module
        return spec
