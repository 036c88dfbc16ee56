#!/usr/bin/env bash
# The operators on 64-bit ARM: GCC compiles the CPU library for it in a copy of the checkout, build/arm, and their tests run
# there in an emulation of that processor (QEMU), with Debian's Python and PyTorch's wheel for it. On Debian or Ubuntu, with
#     dpkg --add-architecture arm64; apt-get update; apt-get install qemu-user-static crossbuild-essential-arm64
#
# usage: tests/ops/arm.sh PYTHON [ARGUMENTS OF PYTEST]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath --no-symlinks "${1:?name a Python that has torch}")
# The newest whose wheel for ARM is without CUDA, which would be gigabytes of libraries more.
torch=2.10.0 torchvision=0.25.0
for command in qemu-aarch64-static aarch64-linux-gnu-g++; do
    type "$command" > /dev/null 2>&1 ||
        { echo "error: there is no $command; the head of $0 says how to install it" >&2; exit 2; }
done
dpkg --print-foreign-architectures | grep -qx arm64 ||
    { echo "error: apt knows no packages for arm64; the head of $0 says how to add them" >&2; exit 2; }
tests/ops/copy_checkout.sh build/arm
cd build/arm

# Python and the libraries that it needs, unpacked and not installed.
if [ ! -e root/.ready ]; then
    mkdir -p debs root
    (
        cd debs
        apt-get download $(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
            --no-replaces --no-enhances python3:arm64 libstdc++6:arm64 | grep -E '^[a-z0-9].*:arm64$' | sort -u)
    )
    for package in debs/*.deb; do dpkg --extract "$package" root; done
    touch root/.ready
fi
emulated=$(echo root/usr/bin/python3.?? | cut -d' ' -f1)
release=${emulated##*python}

# pip would ask for what torch needs on this machine: so packages that need torch come without what they need.
if [ ! -e site/.ready ]; then
    rm -rf site
    for_arm=(--quiet --target site --upgrade --only-binary=:all: --python-version "$release" --implementation cp
        --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64
        --platform manylinux2014_aarch64)
    version() { sed -n "s/^$1==//p" ../../requirements/*.txt; }
    pinned() { for name in "$@"; do echo "$name==$(version "$name")"; done; }
    "$python" -m pip install "${for_arm[@]}" \
        filelock fsspec jinja2 networkx packaging pillow pyyaml setuptools sympy typing-extensions \
        $(pinned numpy onedl-mmengine opencv-python-headless pycocotools huggingface_hub safetensors rich pytest)
    "$python" -m pip install "${for_arm[@]}" --no-deps "torch==$torch" "torchvision==$torchvision" $(pinned timm)
    touch site/.ready
fi

# The linker passes over the libraries of this machine's torch, which are for another processor.
LDFLAGS="-L$PWD/site/torch/lib" FORCE_CUDA=0 CUDA_VISIBLE_DEVICES= CXX=aarch64-linux-gnu-g++ CC=aarch64-linux-gnu-g++ \
    "$python" setup.py --quiet build_ext --inplace
export PYTHONPATH=$PWD:$PWD/site PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
emulate() { nice -n 19 qemu-aarch64-static -L root "$emulated" "$@"; }
emulate -c 'import platform, torch, bioattn_mm.ops; print(
    platform.machine(), platform.python_version(), torch.__version__, torch.ops.bioattn_mm.cpu_capabilities())'
# Compilers and other processes would run outside of the emulation. There are vectors of one width alone, so the tests of
# all widths say nothing new.
export CC=no-compiler CXX=no-compiler
emulate -m pytest -p no:cacheprovider tests/ops --ignore tests/ops/test_capabilities.py "${@:2}" \
    -k 'not cuda and not compile and not export and not launches and not report and not registered'
