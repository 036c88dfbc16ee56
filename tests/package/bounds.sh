#!/usr/bin/env bash
# One wheel in every torch: installs it into an environment for each torch and each Python that has it, where there is no
# compiler, runs `python -m bioattn_mm.ops --check` and the tests of the operators, and trains two iterations of a config
# of each framework. With the lowest torch, every package has the lowest version that pyproject.toml names. An environment
# takes about 6 GB on disk and on the network, and some ten minutes; one after the other is made and removed.
#
# usage: tests/package/bounds.sh WHEEL PYTHON ...    such as dist/*.whl python3.10 python3.13
#        BOUNDS_TORCHES='2.13.0 newest' tests/package/bounds.sh ...    for others than all
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ $# -lt 2 ]; then
    echo 'error: a wheel and a Python are needed, such as dist/bioattn_mm-0.1.0-py3-none-any.whl python3.12' >&2
    exit 2
fi
wheel=$(realpath "$1")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/suite"
# The tests without the package, which comes from the wheel.
cp -r --parents tests pyproject.toml README.md configs tools bioattn_mm/ops/csrc "$work/suite"
# As `pip install 'bioattn_mm[...]'` asks, with == for >=.
sed -nE '/^dependencies/,/^\]/p; /^(detection|segmentation|classification) =/p' pyproject.toml \
    | grep -oE '"[a-z][^"]*"' | tr -d '"' | sed 's/>=/==/' | sort -u > "$work/lowest.txt"
lowest=$(sed -n 's/^torch==//p' "$work/lowest.txt")
export CC=no-compiler CXX=no-compiler

for torch in ${BOUNDS_TORCHES:-$lowest 2.11.0 2.13.0 2.13.0+cpu newest}; do
    tried=
    for python in "$@"; do
        environment=$work/environment
        rm -rf "$environment"
        "$python" -m venv "$environment"
        PATH=$environment/bin:$PATH
        if [ "$torch" = newest ]; then named=torch; else named=torch==$torch; fi
        # A torch for the CPU may have no torchvision that fits: then there are the operators alone.
        with=torchvision
        case $torch in *+cpu) with= ;; esac
        if ! pip install --quiet --no-compile --no-cache-dir "$named" $with > "$work/pip.log" 2>&1; then
            tail -1 "$work/pip.log"
            echo "$python: no torch $torch for it"
            continue
        fi
        tried=yes
        pip install --quiet --no-compile --no-cache-dir numpy pytest packaging
        if [ -n "$with" ]; then
            if [ "$torch" = "$lowest" ]; then pip install --quiet --no-compile --no-cache-dir -r "$work/lowest.txt"; fi
            pip install --quiet --no-compile --no-cache-dir -r requirements/test.txt \
                "$wheel[detection,segmentation,classification]" "$(pip freeze | grep ^torch==)"
            # After opencv-python, which shares its folder and needs graphics libraries.
            pip install --quiet --no-deps --force-reinstall "$(pip freeze | grep ^opencv-python-headless)"
        else
            pip install --quiet --no-deps "$wheel"
        fi
        python --version
        pip freeze | grep -E '^(torch|torchvision|numpy|timm|onedl-.*)=='
        (
            cd "$work/suite"
            python -m bioattn_mm.ops --check --no-times | tail -1
            if [ -z "$with" ]; then exit 0; fi
            python -m pytest -q -p no:cacheprovider tests/ops
            bioattn make-mini-datasets --num-train 4 --num-val 2
            for config in mask_rcnn_micro_coco upernet_micro_ade20k transnext-micro_8xb128_in1k; do
                bioattn train "transnext/$config" --mini --work-dir "$work/$config" --cfg-options \
                    train_cfg.max_iters=2 train_cfg.val_interval=2 train_dataloader.num_workers=0 \
                    train_dataloader.persistent_workers=False > "$work/$config.log" 2>&1 \
                    || { tail -30 "$work/$config.log"; exit 1; }
                echo "trained two iterations of $config"
            done
        )
    done
    test -n "$tried" || { echo "error: none of $* has torch $torch" >&2; exit 1; }
done
