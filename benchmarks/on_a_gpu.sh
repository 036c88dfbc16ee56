#!/usr/bin/env bash
# Measures what waits for a GPU, within 12 minutes on an H100, the most important first; the rest with --minutes 40. Each
# step writes its tables to RESULTS/STEP.md, row by row, and what else it says to RESULTS/STEP.log; RESULTS/summary.md has
# a line for each. A step that fails or takes too long is named there, what it had measured stays in
# RESULTS/STEP.part.md, and the next one starts. Started again with the same RESULTS, it does what is not done.
#
# usage: benchmarks/on_a_gpu.sh RESULTS [--device cuda|cpu] [--authors FOLDER] [--tiny] [--minutes N] [--list]
#   --device cpu   a stand-in without a GPU, in float32, without CUDA graphs
#   --authors F    the authors' backbone beside ours, from a checkout of their repository: benchmarks/against_authors.py
#   --tiny         small shapes, one run of each: whether everything runs, not how fast
#   --minutes N    start no step later, and end the last one then (default: 12)
#   --list         print the steps, and run none
# PYTHON is the interpreter (default: python).
set -uo pipefail

usage() {
    sed -n '/^# usage/,/^# PYTHON/s/^# \{0,1\}//p' "$0" >&2
    [ $# -eq 0 ] || echo "on_a_gpu.sh: $1" >&2
    exit 2
}

results='' device=cuda authors='' tiny='' minutes=12 list=''
while [ $# -gt 0 ]; do
    case $1 in
        --device) device=${2:-} && shift ;;
        --authors) authors=${2:-} && shift ;;
        --minutes) minutes=${2:-} && shift ;;
        --tiny) tiny=yes ;;
        --list) list=yes ;;
        -*) usage "there is no option $1" ;;
        *) [ -z "$results" ] && results=$1 || usage "two folders: $results and $1" ;;
    esac
    shift
done
[ -n "$results" ] || usage 'name the folder of the results'
[[ $device =~ ^(cpu|cuda)$ ]] || usage "--device must be cpu or cuda, got $device"
[[ $minutes =~ ^[1-9][0-9]*$ ]] || usage "--minutes must be a whole number from 1 on, got $minutes"
results=$(realpath --canonicalize-missing "$results")
[ -z "$authors" ] || authors=$(realpath --canonicalize-missing "$authors")
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
python=${PYTHON:-python}

child='' failed=0
trap '[ -z "$child" ] || kill "$child"; exit 130' INT TERM

# step NAME SECONDS COMMAND...: run a command, unless it is done.
step() {
    local name=$1 limit=$2 left=$((60 * minutes - SECONDS)) start=$SECONDS
    shift 2
    [ "$device" = cuda ] || limit=$((10 * limit))
    if [ -n "$list" ]; then
        printf '%s (%s s):' "$name" "$limit" && printf ' %q' "$@" && echo
        return
    fi
    [ ! -e "$results/$name.md" ] || return 0
    if [ "$left" -le 0 ]; then
        note "$name" "not started: $minutes minutes are over" 0
        return
    fi
    [ "$limit" -le "$left" ] || limit=$left
    local part=$results/$name.part.md
    printf '## %s, %s\n\n`%s`\n\n' "$name" "$(date --utc +%FT%TZ)" "$*" >> "$part"
    timeout --kill-after=10 "$limit" "$@" >> "$part" 2>> "$results/$name.log" &
    child=$!
    wait "$child"
    local status=$? took=$((SECONDS - start))
    child=''
    # What had to be killed after that ends as what had no memory.
    [ "$status" -ne 137 ] || [ "$took" -lt "$limit" ] || status=124
    local state=done
    case $status in
        0) ;;
        124) state="cut off after $limit s" ;;
        *) state="failed with exit code $status: $name.log" ;;
    esac
    printf '\n%s, %s s\n\n' "$state" "$took" >> "$part"
    [ "$state" != done ] || mv "$part" "$results/$name.md"
    note "$name" "$state" "$took"
}

# note NAME STATE SECONDS
note() {
    [ "$2" = done ] || failed=1
    printf '| %s | %s | %s |\n' "$1" "$2" "$3" | tee -a "$results/summary.md"
}

if [ -z "$list" ]; then
    if [ "$device" = cuda ]; then
        "$python" -c 'import sys; from bioattn_mm.ops.backends import CUDA_ARCHITECTURES; import torch
sys.exit(not (torch.cuda.is_available() and CUDA_ARCHITECTURES))' ||
            {
                echo 'on_a_gpu.sh: no GPU, or no operators for CUDA in the checkout: python setup.py build_ext --inplace,' \
                    "or unzip -jo WHEEL 'bioattn_mm/ops/*.so' -d bioattn_mm/ops" >&2
                exit 2
            }
    fi
    mkdir -p "$results"
    printf '\n%s, %s%s\n\n| step | state | seconds |\n| --- | --- | --- |\n' \
        "$(date --utc +%FT%TZ)" "$device" "${tiny:+, tiny}" >> "$results/summary.md"
fi

swin=("$python" benchmarks/against_swin.py --device "$device")
paper=("$python" benchmarks/transnext_tables.py --device "$device")
whole=("$python" benchmarks/whole_step.py)
alone=("$python" benchmarks/ops.py --device "$device")
if [ -n "$tiny" ]; then
    check=(--operators gated_convolution)
    small=(--batch 1 --sizes 64x64) large=(--batch 1 --sizes 64x96) compile=(--compile aot_eager)
    swin+=(--repeats 1)
    paper+=(--repeats 1 --batch 1 --training-batch 2 --models Swin-T TransNeXt-Tiny)
    whole+=(--crop 64 --batch 2 --steps 3 --workers 0 --configs transnext/upernet_micro_ade20k)
    alone+=(--inputs 64 --stages 3 --repeats 1)
    detectors=(--configs transnext/mask2former_micro_ade20k)
else
    check=()
    small=(--batch 8 --sizes 512x512) large=(--batch 2 --sizes 800x1344) compile=(--compile)
    alone+=(--batch 8 --inputs 512 --repeats 3)
    detectors=(--batch 2 --steps 8 --configs transnext/mask_rcnn_tiny_coco transnext/dino_4scale_tiny_coco)
    detectors+=(transnext/mask2former_tiny_ade20k)
fi
if [ "$device" = cuda ]; then
    half=(--dtypes bfloat16) others=()
    ways=(--ways '' '--amp bfloat16' '--amp bfloat16 --cuda-graphs')
else
    # Without instructions for bfloat16 a CPU emulates it, and compiling FlexAttention takes minutes.
    half=(--dtypes float32) others=(--baselines FlexAttention-eager formulas-compiled)
    ways=(--ways '')
fi

step ops_check 60 "$python" -m bioattn_mm.ops --check --device "$device" "${check[@]}"
if [ -n "$authors" ]; then
    theirs=("$python" benchmarks/against_authors.py "$authors" --device "$device")
    [ "$device" = cuda ] && both=(float16 float32) || both=(float32)
    step authors_512 60 "${theirs[@]}" "${small[@]}" --dtypes "${both[@]}"
    step authors_800x1344 90 "${theirs[@]}" "${large[@]}" --dtypes "${both[@]}"
fi
step eager_800x1344 60 "${swin[@]}" "${large[@]}" "${half[@]}" --by-kernel
step eager_512 60 "${swin[@]}" "${small[@]}" "${half[@]}" --by-kernel
plain=(--models ViT-S ConViT-S GABViT-S PerViT-S 'RVT-S with VARS-SD' --reference ViT-S)
step plain_systems 90 "${swin[@]}" "${small[@]}" "${half[@]}" "${plain[@]}"
step gabswin 40 "${swin[@]}" "${small[@]}" "${half[@]}" --models Swin-S GABSwin-S --reference Swin-S
step step_by_part 60 "${whole[@]}" "${ways[@]:0:3}" --by-part
step detectors_by_part 120 "${whole[@]}" "${ways[@]:0:3}" --by-part "${detectors[@]}"
if [ "$device" = cuda ]; then
    step cuda_graphs_512 60 "${swin[@]}" "${small[@]}" "${half[@]}" --cuda-graphs
    step cuda_graphs_800x1344 60 "${swin[@]}" "${large[@]}" "${half[@]}" --cuda-graphs
fi
step tests 150 "$python" -m pytest -p no:cacheprovider --needs GPU --needs 'CUDA operators' \
    tests/ops $(grep --recursive --files-with-matches --include='test_*.py' -E "needs\('(GPU|CUDA operators)'\)" tests/[!o]*)
step plain_systems_800x1344 90 "${swin[@]}" "${large[@]}" "${half[@]}" "${plain[@]}"
step whole_step 360 "${whole[@]}" "${ways[@]}"
step compile_512 240 "${swin[@]}" "${small[@]}" "${half[@]}" "${compile[@]}"
step table_11 90 "${paper[@]}" --tables 11
step table_10 180 "${paper[@]}" --tables 10
step compile_800x1344 240 "${swin[@]}" "${large[@]}" "${half[@]}" "${compile[@]}"
step attention_alone 180 "${alone[@]}" "${others[@]}"
exit "$failed"
