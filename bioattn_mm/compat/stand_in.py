"""Modules of this package in the place of those that are not installed."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType


class StandIn:
    """Finder and loader of a module, after `importlib.abc.MetaPathFinder` and `importlib.abc.Loader`.

    Args:
        name: The module, with its package.
        origin: The module of this package that provides it.
        fill: Gives the module its content, when it is imported.
        is_package: Whether the module has submodules.
    """

    def __init__(self, name: str, origin: str, fill: Callable[[ModuleType], None], is_package: bool = False) -> None:
        self.name, self.origin, self.fill, self.is_package = name, origin, fill, is_package

    def install(self) -> None:
        """Append this to `sys.meta_path`, which Python asks for modules that no other finder has found.

        So an installed module takes precedence, and nothing is imported before the module is.
        """
        sys.meta_path.append(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        return ModuleSpec(name, self, origin=self.origin, is_package=self.is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name, f'Stand-in by {self.origin}.')

    def exec_module(self, module: ModuleType) -> None:
        self.fill(module)
