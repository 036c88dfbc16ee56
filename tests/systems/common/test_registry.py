"""`type='bioattn_mm.TransNeXt'` is found from the scope of every OpenMMLab library, and imports no other library.

In processes of their own, where nothing has been imported before.
"""

import subprocess
import sys

import pytest

LIBRARIES = ('mmdet', 'mmseg', 'mmpretrain')
# Each library has a process of its own, which is forked from one that has imported what all of them import.
BUILD = f"""
import importlib, os, sys
import torchvision, mmengine.runner
for library in {LIBRARIES}:
    process = os.fork()
    if not process:
        import bioattn_mm
        models = importlib.import_module(library + '.registry').MODELS
        mmengine.registry.init_default_scope(library)
        backbone = models.build(dict(type='bioattn_mm.TransNeXt', arch='micro'))
        print(library, type(backbone).__module__, backbone.out_channels)
        break
    if os.waitpid(process, 0)[1]:
        sys.exit(1)
"""
# In the order in which they are resolved: models are the last, because they import timm.
ENTRIES = dict(
    HOOKS=['AtomicCheckpointHook', 'SeedingHook', 'ShardableEMAHook', 'SkipBadDataHook'],
    LOOPS=['ResumableEpochBasedTrainLoop'],
    MODEL_WRAPPERS=['CPUDistributedDataParallel'],
    STRATEGIES=['FSDP2Strategy'],
    TRANSFORMS=['CheckedLoadImageFromFile', 'CheckedLoadPanopticAnnotations'],
    OPTIM_WRAPPERS=['BFloat16OptimWrapper'],
    OPTIM_WRAPPER_CONSTRUCTORS=['CombinedRulesConstructor', 'MergedGroupsConstructor'],
    MODELS=['ConViT', 'GABSwin', 'CompatibleDINO'],
    METRICS=['CocoPanopticMetric'],
    VISUALIZERS=['PanopticVisualizer'],
)
RESOLVE = f"""
import sys
import bioattn_mm
from mmengine import registry
for kind, names in {ENTRIES}.items():
    for name in names:
        assert getattr(registry, kind).get('bioattn_mm.' + name).__name__ == name
        libraries = ('mmdet', 'mmseg', 'mmpretrain', 'mmdeploy', 'timm')
        print(name, *(library for library in libraries if library in sys.modules))
"""


def output(code: str) -> list[str]:
    """The lines that code prints in a process of its own."""
    process = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.mark.slow
def test_found_from_the_scope_of_every_library() -> None:
    lines = [line for line in output(BUILD) if line.startswith(LIBRARIES)]
    assert lines == [f'{library} bioattn_mm.systems.transnext.backbone (48, 96, 192, 384)' for library in LIBRARIES]


def test_an_entry_imports_no_library_that_it_does_not_need() -> None:
    imported = {name: libraries for name, *libraries in (line.split() for line in output(RESOLVE))}
    for kind, names in ENTRIES.items():
        for name in names:
            if kind not in ('MODELS', 'METRICS', 'VISUALIZERS'):
                assert imported[name] == []
    assert imported['ConViT'] == imported['GABSwin'] == ['timm']
    assert 'mmdet' in imported['CompatibleDINO']
