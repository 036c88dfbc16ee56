#!/usr/bin/env bash
# What a user gets who has no checkout: builds an sdist and a wheel from it, and installs each into an empty environment.
# With the wheel, which has its operators, `bioattn` trains two iterations by a user's config, predicts and exports. The
# same label maps come from the sdist, installed without operators as BIOATTN_MM_WITHOUT_OPS=1 asks for, and from what
# was exported in an environment that has bioattn_mm_runtime, and so no PyTorch. The sdist trains a step by the name of a
# config in it, and openmim trains and tests with the wheel.
#
# usage: tests/package/check.sh [PYTHON]    PYTHON: of an environment with the dependencies and those of the extra
#                                           deploy (default: .venv/bin/python)
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath --no-symlinks "${1:-.venv/bin/python}")
export PATH="$(dirname "$python"):$PATH"  # ninja
unset PYTHONPATH BIOATTN_MM_WITHOUT_OPS FORCE_CUDA  # for the CPU alone, for speed

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/checkout" "$work/dist" "$work/user"
git ls-files --cached --others --exclude-standard | tar --create --files-from=- | tar --extract --directory="$work/checkout"
cd "$work/checkout"
"$python" -c 'from setuptools import build_meta; build_meta.build_sdist("../dist")' > ../sdist.log 2>&1 \
    || { cat ../sdist.log; exit 1; }
cd "$work/user"
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir ../dist ../dist/bioattn_mm-*.tar.gz
ls -l ../dist

# An environment with bioattn_mm from FILE, and all other packages from PYTHON's. They come by their folder: .pth files
# in it, such as that of an editable bioattn_mm, are not read.
# install NAME FILE
install() {
    "$python" -m venv --without-pip "../$1"
    local site
    site=$("../$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/dependencies.pth"
    "$python" -m pip --python "../$1/bin/python" install --quiet --no-deps --no-index --no-build-isolation \
        --ignore-installed "$2"
}

# check NAME OPERATORS: the package comes from the environment, and has operators or none.
check() {
    "../$1/bin/python" - "$(realpath "../$1")" "$2" << 'END'
import sys
import bioattn_mm
from bioattn_mm.ops.backends import LIBRARY_IS_LOADED
assert bioattn_mm.__file__.startswith(sys.argv[1]), bioattn_mm.__file__
assert LIBRARY_IS_LOADED == (sys.argv[2] == 'compiled')
END
}

# equals FOLDER: the label maps in it are those of the wheel.
equals() {
    "$python" - wheel/labels "$1/labels" << 'END'
import sys
from pathlib import Path
import numpy as np
from PIL import Image
ours, expected = ([np.asarray(Image.open(file)) for file in sorted(Path(folder).glob('*.png'))] for folder in sys.argv[1:])
assert len(ours) == len(expected) >= 2
assert all((one == other).mean() > 0.999 for one, other in zip(ours, expected))
END
}

images=data/mini/ADEChallengeData2016/images/validation
in_process='train_dataloader.num_workers=0 train_dataloader.persistent_workers=False'
install wheel ../dist/bioattn_mm-*.whl
check wheel compiled
../wheel/bin/bioattn --help
configs=$(../wheel/bin/python -c 'import bioattn_mm; print(*bioattn_mm.__path__)')/.mim/configs
sed "s|\.\./\.\./configs|$configs|" ../checkout/tests/tools/upernet_small.py > small.py
../wheel/bin/bioattn make-mini-datasets --num-train 4 --num-val 2
../wheel/bin/bioattn train small.py --mini --work-dir work --cfg-options train_cfg.max_iters=2 train_cfg.val_interval=2 \
    $in_process > train.log 2>&1 || { tail -30 train.log; exit 1; }
../wheel/bin/bioattn predict small.py work/iter_2.pth --mini --out wheel $images
../wheel/bin/bioattn export small.py work/iter_2.pth --mini --out exported \
    --deploy-cfg deploy/segmentation_onnxruntime_dynamic > export.log 2>&1 || { tail -30 export.log; exit 1; }
"$python" -m venv ../runtime
../runtime/bin/pip install --quiet '../checkout/packaging/runtime[openvino]'
if ../runtime/bin/python -c 'import torch'; then exit 1; fi
for backend in onnxruntime openvino; do
    ../runtime/bin/bioattn-runtime exported/end2end.onnx $images --backend $backend --out "exported/$backend"
    equals "exported/$backend"
done
BIOATTN_MM_WITHOUT_OPS=1 install sdist ../dist/bioattn_mm-*.tar.gz
check sdist none
../sdist/bin/bioattn train transnext/upernet_micro_ade20k --mini --dry-run --cfg-options $in_process \
    > dry_run.log 2>&1 || { tail -30 dry_run.log; exit 1; }
../sdist/bin/bioattn predict small.py work/iter_2.pth --mini --out sdist $images
equals sdist
# openmim finds the wheel's tools, configs and index. The weights that it would download are an empty file.
install mim ../dist/bioattn_mm-*.whl
"$python" -m pip --python ../mim/bin/python install --quiet openmim 2> mim_install.log || { cat mim_install.log; exit 1; }
touch upernet_transnext_tiny_512x512_160k_ade20k_in1k.pth
{
    ../mim/bin/mim download bioattn_mm --config transnext_upernet_tiny_ade20k --dest . \
    && ../mim/bin/mim train bioattn_mm small.py --mini --work-dir mim --cfg-options \
        train_cfg.max_iters=2 train_cfg.val_interval=2 $in_process \
    && ../mim/bin/mim test bioattn_mm small.py --checkpoint mim/iter_2.pth --mini
} > mim.log 2>&1 || { tail -30 mim.log; exit 1; }
echo 'wheel: trained and predicted, also by mim; sdist and what was exported, without PyTorch: predicted the same'
