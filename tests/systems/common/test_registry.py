"""In a new process, `type='bioattn_mm.ConViT'` is found in the root registries, and imports no other library."""

import subprocess
import sys

import pytest

# In the order in which they are resolved: models are the last, because they import timm.
ENTRIES = dict(
    HOOKS=['AtomicCheckpointHook', 'SeedingHook', 'ShardableEMAHook', 'SkipBadDataHook'],
    LOOPS=['ResumableEpochBasedTrainLoop'],
    MODEL_WRAPPERS=['CPUDistributedDataParallel'],
    STRATEGIES=['FSDP2Strategy'],
    TRANSFORMS=['CheckedLoadImageFromFile', 'CheckedLoadPanopticAnnotations'],
    OPTIM_WRAPPERS=['BFloat16OptimWrapper'],
    OPTIM_WRAPPER_CONSTRUCTORS=['CombinedRulesConstructor', 'MergedGroupsConstructor'],
    MODELS=['ConViT', 'GABSwin'],
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
import timm
assert timm.is_model('transnext_tiny')  # of bioattn_mm, which was imported before timm
"""


def output(code: str) -> list[str]:
    process = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.mark.slow
def test_models_are_registered_where_timm_comes_first() -> None:
    output("import timm, bioattn_mm; assert timm.is_model('transnext_tiny')")


def test_an_entry_imports_no_library_that_it_does_not_need() -> None:
    wanted = [name + ' timm' * (kind == 'MODELS') for kind, names in ENTRIES.items() for name in names]
    assert output(RESOLVE) == wanted
