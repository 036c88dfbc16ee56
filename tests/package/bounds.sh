#!/usr/bin/env bash
# Tries the bounds that pyproject.toml names. In the first Python, the lowest version of every package that has a lower
# bound; in the others, the versions of requirements/. In each, a wheel is built and the fast part of the suite runs:
# operators, layers and models. Every Python takes about 5 GB on disk and on the network, and some ten minutes.
#
# usage: tests/package/bounds.sh PYTHON ...    such as python3.10 python3.13
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ $# = 0 ]; then
    echo 'error: no Python to try: name some, such as python3.10 python3.13' >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source" "$work/suite"
git ls-files --cached --others --exclude-standard | tar --create --files-from=- | tar --extract --directory="$work/source"
# The tests without the package, which comes from the wheel; only the C++ sources lie beside them.
(cd "$work/source" && cp -r --parents tests pyproject.toml README.md configs tools bioattn_mm/ops/csrc "$work/suite")
# As `pip install 'bioattn_mm[...]'` asks, with == for >=.
sed -nE '/^dependencies/,/^\]/p; /^(detection|segmentation|classification) =/p' pyproject.toml \
    | grep -oE '"[a-z][^"]*"' | tr -d '"' | sed 's/>=/==/' | sort -u > "$work/lowest.txt"

first=1
for python in "$@"; do
    environment=$work/environment
    rm -rf "$environment"
    "$python" -m venv "$environment"
    if [ $first = 1 ]; then chosen=$work/lowest.txt; else chosen=requirements/runtime.txt; fi
    first=0
    PATH=$environment/bin:$PATH
    pip install --quiet --no-cache-dir -r requirements/build.txt -r requirements/test.txt -r "$chosen"
    # After opencv-python, which shares its folder and needs graphics libraries.
    pip install --quiet --no-deps --force-reinstall "$(grep opencv requirements/runtime.txt)"
    pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$environment" "$work/source"
    pip install --quiet --no-deps "$environment"/bioattn_mm-*.whl
    python --version
    pip freeze | grep -E '^(torch|torchvision|timm|onedl-.*)=='
    (cd "$work/suite" && python -m bioattn_mm.ops)
    (cd "$work/suite" && python -m pytest -q tests/ops tests/layers tests/models)
done
