#!/usr/bin/env bash
# Compiles the CPU operators with clang for Linux and macOS on 64-bit ARM, against the headers of the torch of a Python. That
# they can be linked and run there is not tried.
#
# usage: tests/package/cross_compile.sh PYTHON
set -euo pipefail
python=$(command -v "${1:?name a Python that has torch}")
[[ $python == /* ]] || python=$PWD/$python
cd "$(dirname "$0")/../../bioattn_mm/ops/csrc"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip install --quiet --target "$work" ziglang==0.17.1  # clang with the headers of both systems
torch=$("$python" -c 'import torch; print(torch.__path__[0])')
for target in aarch64-linux-gnu aarch64-macos; do
    for source in operators.cpp old_linux.cpp cpu/*.cpp; do
        PYTHONPATH=$work "$python" -m ziglang c++ -target "$target" -std=c++17 -O1 -fno-math-errno -fno-trapping-math -w \
            -DBIOATTN_VERSION='""' -I. -I"$torch/include" -c "$source" -o "$work/object.o"
        echo "$target: $source compiles"
    done
done
