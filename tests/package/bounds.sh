#!/usr/bin/env bash
# One wheel in every torch: installs it with all its extras into an environment for each torch and each Python that has it,
# where there is no compiler, runs `python -m bioattn_mm.ops --check`, and trains two steps with mmdet, mmseg, mmpretrain and
# timm. The operators' tests run in the first Python that has a torch, because the libraries know nothing of Python, and
# those of each instruction set in `make test-capabilities`. With the lowest torch, every package has the lowest version that
# pyproject.toml names. An environment takes about 7 GB on disk, 4 GB on the network and five to ten minutes; one after the
# other is made and removed, and a table of them is printed at the end.
#
# usage: tests/package/bounds.sh WHEEL PYTHON ...    such as dist/*.whl python3.13 python3.10
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
grep ^pytest requirements/test.txt > "$work/pytest.txt"
export CC=no-compiler CXX=no-compiler
format='%-14s %-20s %-8s %-36s %-44s %s\n'
printf "$format" Python torch NumPy '`ops --check`' "operators' tests" trained > "$work/table"
install() { pip install --quiet --no-compile --no-cache-dir "$@"; }
version() { pip freeze | sed -n "s/^$1==//p"; }

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
        if ! install "$named" $with > "$work/pip.log" 2>&1; then
            tail -1 "$work/pip.log"
            echo "$python: no torch $torch for it"
            continue
        fi
        if [ -n "$with" ]; then
            if [ "$torch" = "$lowest" ]; then install -r "$work/lowest.txt"; fi
            install -r "$work/pytest.txt" "$wheel[all]" "torch==$(version torch)"
            # After opencv-python, which shares its folder and needs graphics libraries.
            install --no-deps --force-reinstall "opencv-python-headless==$(version opencv-python-headless)"
        else
            install numpy packaging rich
            install --no-deps "$wheel"
        fi
        python --version
        pip freeze | grep -E '^(torch|torchvision|numpy|timm|onedl-.*)=='
        cd "$work/suite"
        checked=$(python -m bioattn_mm.ops --check --no-times | tail -1)
        echo "$checked"
        passed=- trained=-
        if [ -n "$with" ]; then
            if [ -z "$tried" ]; then
                python -m pytest -q -p no:cacheprovider --ignore tests/ops/test_capabilities.py tests/ops \
                    | tee "$work/tests.log"
                passed=$(tail -1 "$work/tests.log")
            fi
            trained=
            bioattn make-mini-datasets --num-train 4 --num-val 2
            for config in mask_rcnn_micro_coco upernet_micro_ade20k transnext-micro_8xb128_in1k; do
                bioattn train "transnext/$config" --mini --work-dir "$work/$config" --cfg-options \
                    train_cfg.max_iters=2 train_cfg.val_interval=2 train_dataloader.num_workers=0 \
                    train_dataloader.persistent_workers=False > "$work/$config.log" 2>&1 \
                    || { tail -30 "$work/$config.log"; exit 1; }
                echo "trained two iterations of $config"
                trained="$trained$config "
                rm -rf "$work/$config"
            done
            python tests/package/train_timm.py
            trained="${trained}timm"
        fi
        cd "$OLDPWD"
        printf "$format" "$(python --version)" "$(version torch)" "$(version numpy)" \
            "$checked" "$passed" "$trained" >> "$work/table"
        tried=yes
    done
    test -n "$tried" || { echo "error: none of $* has torch $torch" >&2; exit 1; }
done
cat "$work/table"
