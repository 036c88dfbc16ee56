"""Registering the models in timm as soon as timm is imported, before or after this package."""

from importlib import import_module

from ..compat.after_import import AfterImport


def install() -> None:
    """Register the models if timm is imported, else when it will be; `import bioattn_mm` calls this."""
    AfterImport('timm.models', lambda _: import_module('bioattn_mm.timm_models.timm_registry')).install()
