#!/usr/bin/env bash
# The operators under AddressSanitizer: they are compiled with it in a copy of the checkout, build/asan, and their tests run
# there. A read or write outside of a tensor's memory ends the run, and the message says where it was.
#
# usage: tests/ops/asan.sh PYTHON [ARGUMENTS OF PYTEST]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath --no-symlinks "${1:?name a Python that has torch}")
tests/ops/copy_checkout.sh build/asan
cd build/asan
# What comes last on the command line counts; the flags of setup.py would leave no lines to name.
cat > c++ <<'SCRIPT'
#!/bin/sh
exec g++ "$@" -fsanitize=address -fno-omit-frame-pointer -O1 -g1
SCRIPT
chmod +x c++
CXX=$PWD/c++ CC=$PWD/c++ "$python" setup.py --quiet build_ext --inplace
# Python does not load the C++ library at its start, when AddressSanitizer looks for what throws exceptions. Memory that is
# not given back at the end is Python's and PyTorch's.
export LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)"
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export PYTHONPATH=$PWD PYTHONMALLOC=malloc
# Without the emulation of CUDA, which changes stacks by itself, and without what starts compilers or other processes.
"$python" -m pytest -p no:cacheprovider tests/ops "${@:2}" \
    -k 'not cuda and not compile and not export and not launches and not report and not registered'
