#!/usr/bin/env bash
# What a user gets who has no checkout: builds an sdist and a wheel from it, installs each into an empty environment,
# and there trains two iterations and predicts with `bioattn`. The wheel has its operators; the sdist is installed
# without them, as BIOATTN_MM_WITHOUT_OPS=1 asks for. openmim trains and tests with the wheel, too. What the wheel
# exports runs in an environment that has bioattn_mm_runtime, and so no PyTorch, with the label maps of the checkpoint.
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

# use NAME OPERATORS: the package comes from the environment, has operators or none, trains and predicts.
use() {
    "../$1/bin/python" - "$(realpath "../$1")" "$2" << 'END'
import sys
import bioattn_mm
from bioattn_mm.ops.backends import LIBRARY_IS_LOADED
assert bioattn_mm.__file__.startswith(sys.argv[1]), bioattn_mm.__file__
assert LIBRARY_IS_LOADED == (sys.argv[2] == 'compiled')
END
    "../$1/bin/bioattn" train transnext/upernet_micro_ade20k --mini --work-dir "$1" --cfg-options \
        train_cfg.max_iters=2 train_cfg.val_interval=2 train_dataloader.num_workers=0 \
        train_dataloader.persistent_workers=False > "$1.log" 2>&1 || { tail -30 "$1.log"; exit 1; }
    "../$1/bin/bioattn" predict transnext/upernet_micro_ade20k "$1/iter_2.pth" --mini --out "$1/predictions" \
        data/mini/ADEChallengeData2016/images/validation
    test "$(find "$1/predictions" -name '*.png' | wc -l)" -ge 2
}

install wheel ../dist/bioattn_mm-*.whl
../wheel/bin/bioattn --help
../wheel/bin/bioattn make-mini-datasets --num-train 4 --num-val 2
use wheel compiled
images=data/mini/ADEChallengeData2016/images/validation
../wheel/bin/bioattn export transnext/upernet_micro_ade20k wheel/iter_2.pth --mini --out exported \
    --deploy-cfg deploy/segmentation_onnxruntime_dynamic > export.log 2>&1 || { tail -30 export.log; exit 1; }
"$python" -m venv ../runtime
../runtime/bin/pip install --quiet '../checkout/packaging/runtime[openvino]'
if ../runtime/bin/python -c 'import torch'; then exit 1; fi
for backend in onnxruntime openvino; do
    ../runtime/bin/bioattn-runtime exported/end2end.onnx $images --backend $backend --out "exported/$backend"
    "$python" - "wheel/predictions/labels" "exported/$backend/labels" << 'END'
import sys
from pathlib import Path
import numpy as np
from PIL import Image
ours, expected = ([np.asarray(Image.open(file)) for file in sorted(Path(folder).glob('*.png'))] for folder in sys.argv[1:])
assert len(ours) == len(expected) >= 2
assert all((one == other).mean() > 0.999 for one, other in zip(ours, expected))
END
done
# openmim finds the wheel's tools, configs and index. The weights that it would download are an empty file.
install mim ../dist/bioattn_mm-*.whl
"$python" -m pip --python ../mim/bin/python install --quiet openmim 2> mim_install.log || { cat mim_install.log; exit 1; }
touch upernet_transnext_tiny_512x512_160k_ade20k_in1k.pth
{
    ../mim/bin/mim download bioattn_mm --config transnext_upernet_tiny_ade20k --dest . \
    && ../mim/bin/mim train bioattn_mm transnext_upernet_tiny_ade20k.py --mini --work-dir mim --cfg-options \
        train_cfg.max_iters=2 train_cfg.val_interval=2 \
    && ../mim/bin/mim test bioattn_mm transnext_upernet_tiny_ade20k.py --checkpoint mim/iter_2.pth --mini
} > mim.log 2>&1 || { tail -30 mim.log; exit 1; }
BIOATTN_MM_WITHOUT_OPS=1 install sdist ../dist/bioattn_mm-*.tar.gz
use sdist none
echo 'wheel and sdist: installed, trained and predicted; wheel: found, trained and tested by mim; exported: predicted without PyTorch'
