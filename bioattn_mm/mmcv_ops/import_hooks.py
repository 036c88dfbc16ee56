"""Import hooks: modules of ours where none is installed, and actions after other packages' modules are imported."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class StandIn:
    """Finder and loader of a module that may not be installed, after those of `importlib.abc`.

    Args:
        name: The module, with its package.
        origin: The module of this package that provides it.
        contents: By the names of its functions and classes the modules of this subpackage that have them, which are
            imported with the module: PyTorch and NumPy take time.
        others: The module's `__getattr__`, for names that are not in `contents`.
        is_package: Whether the module has submodules.
    """

    def __init__(
        self,
        name: str,
        origin: str,
        contents: Mapping[str, str],
        others: Callable[[str], object] | None = None,
        is_package: bool = False,
    ) -> None:
        self.name, self.origin, self.contents, self.others = name, origin, contents, others
        self.is_package = is_package

    def install(self) -> None:
        """Append this to `sys.meta_path`, once, so that an installed module takes precedence."""
        if self not in sys.meta_path:
            sys.meta_path.append(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        return ModuleSpec(name, self, origin=self.origin, is_package=self.is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name, f'Stand-in by {self.origin}.')

    def exec_module(self, module: ModuleType) -> None:
        for name, source in self.contents.items():
            setattr(module, name, getattr(import_module(f'.{source}', __package__), name))
        if self.others is not None:
            module.__getattr__ = self.others


class AfterImport:
    """Finder of modules of other packages, after `importlib.abc.MetaPathFinder`.

    It answers with what Python finds by itself, plus a call of ours, by the name of the module, after that has run.
    So `import bioattn_mm`, which takes hundredths of a second, imports none of the packages that take seconds.
    """

    def __init__(self, actions: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self.actions = actions

    def install(self) -> None:
        """Call the actions of modules that are imported already, and the others when they are; once."""
        if self in sys.meta_path:
            return
        sys.meta_path.insert(0, self)
        for name, action in self.actions.items():
            if name in sys.modules:
                action(sys.modules[name])

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in self.actions else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self.actions[name](module)

            spec.loader.exec_module = exec_module
        return spec
