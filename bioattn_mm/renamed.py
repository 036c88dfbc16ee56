"""Modules under their old names, which can be imported until 0.2.0, with a warning."""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_CONFIG = ('classes', 'config', 'fractions', 'imagenet', 'installed', 'mini', 'own_data', 'pipelines', 'runner')
# A subpackage stands for all modules in it.
RENAMED = {
    'bioattn_mm.deploy': 'bioattn_mm.mmdeploy_rewriters',
    'bioattn_mm.cli.threads': 'bioattn_mm.process_settings',
    'bioattn_mm.timm_hook': 'bioattn_mm.timm_models.hook',
    'bioattn_mm.timm_registry': 'bioattn_mm.timm_models.timm_registry',
    'bioattn_mm.models.timm_models': 'bioattn_mm.timm_models.models',
    **{f'bioattn_mm.cli.{name}': f'bioattn_mm.run_config.{name}' for name in _CONFIG},
}


class _Renamed(MetaPathFinder, Loader):
    """Finder and loader of modules under their old names, each of which is the module that has the new one."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if self._new_name(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = self._new_name(spec.name)
        warnings.warn(f'{spec.name} is {new} now: import that', DeprecationWarning, stacklevel=2)
        module = import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has run under its new name; it only gets the specification back that Python replaced."""
        module.__spec__ = module.__spec__.loader_state

    @staticmethod
    def _new_name(name: str) -> str | None:
        old = next((old for old in RENAMED if name == old or name.startswith(f'{old}.')), None)
        return None if old is None else RENAMED[old] + name.removeprefix(old)


def install() -> None:
    """Let Python find the old names; `import bioattn_mm` calls this."""
    if not any(type(finder).__name__ == '_Renamed' for finder in sys.meta_path):
        sys.meta_path.append(_Renamed())
