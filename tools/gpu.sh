#!/bin/sh
# Tests of the CUDA backend on a machine that has a Hopper GPU and the CUDA toolkit's libraries, and nothing of ours.
#
#   tools/gpu.sh pack            here: builds all of it and packs programs and libraries into build/gpu/gyre.tar.xz
#   tools/gpu.sh run [OUT]       there, in the root of the sources beside build/gpu: unpacks, runs every test in every dtype, prints one
#                                line each; logs go to OUT
#   tools/gpu.sh sanitize [OUT]  there, after run or in place of it: compute-sanitizer's memcheck, racecheck, initcheck and synccheck over a
#                                prompt and an answer of small models
set -eu
cd "$(dirname "$0")/.."
there=/tmp/gyre-gpu

pack() {
    tests=$(ls tests/test_ops*.c tests/test_goldens.c tests/test_device.c tests/test_parity.c tests/test_overlap.c tests/test_sample_rows.c | sed 's/\.c$//')
    make cuda cuda-tests $(for t in $tests; do echo "build/release/$t"; done)
    rm -rf build/gpu && mkdir -p build/gpu/root/lib
    for program in $(for t in $tests; do echo "build/release/$t"; done) build/release/gyre build/release/libgyre-cuda.so build/cuda/test_nodes build/cuda/test_tiles build/cuda/test_wide; do
        strip -o "build/gpu/root/$(basename "$program")" "$program"
    done
    # What a machine with CUDA and Python has not: everything but the C library, CUDA's own and what libcurl brings.
    ldd build/release/gyre build/release/tests/test_ops | awk '/=> \// {print $3}' | sort -u |
        grep -E '/lib(cmocka|edit|bsd|md|microhttpd|jansson|pcre2|xxhash|utf8proc|tinfo|sodium)' | xargs -I{} cp -L {} build/gpu/root/lib
    tar cJf build/gpu/gyre.tar.xz -C build/gpu/root . && rm -r build/gpu/root
    ls -l build/gpu/gyre.tar.xz
}

unpack() {
    out=${1:-build/gpu/logs}
    mkdir -p "$out" $there
    tar xJf build/gpu/gyre.tar.xz -C $there
    export GYRE_TEST_BACKEND=cuda GYRE_PLUGINS=$there LD_LIBRARY_PATH=$there/lib:/usr/local/cuda/lib64
    failed=0
}

run() {
    unpack "$@"
    for test in $there/test_ops* $there/test_overlap $there/test_sample_rows; do
        one "$(basename "$test")" "$test" || failed=1
    done
    for dtype in float32 float16 bfloat16; do
        for test in test_parity test_goldens; do
            GYRE_TEST_DTYPE=$dtype one "${test}_$dtype" $there/$test || failed=1
        done
    done
    one test_nodes $there/test_nodes || failed=1
    one test_tiles $there/test_tiles || failed=1
    one test_wide $there/test_wide || failed=1
    GYRE_TEST_DTYPE=float16 one test_device $there/test_device || failed=1
    GYRE_TEST_DTYPE=float16 GYRE_TEST_QUANTIZATION=fp8 GYRE_TEST_KV_DTYPE=fp8 one test_parity_fp8 $there/test_parity || failed=1
    return $failed
}

sanitize() {
    unpack "$@"
    for tool in memcheck racecheck initcheck synccheck; do
        for model in llama gemma3 qwen3_5_moe; do
            one "${tool}_$model" compute-sanitizer --tool $tool --error-exitcode 1 $there/gyre run tests/models/$model --device cuda \
                --prompt-ids 5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21 -n 6 --temperature 0 --max-num-batched-tokens 32 --max-num-seqs 2 || failed=1
        done
    done
    return $failed
}

# one NAME COMMAND...: its log, and a line that says how it went
one() {
    log=$out/$1.log name=$1
    shift
    if timeout 300 "$@" >"$log" 2>&1; then
        echo "$name: ok, $(grep -c '^\[       OK' "$log") passed"
    else
        echo "$name: FAILED"
        grep -E 'ERROR|off by|differs|=========     (at|by)' "$log" | head -n 5
        return 1
    fi
}

case ${1:-} in
pack) pack ;;
run | sanitize) what=$1 && shift && $what "$@" ;;
*) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
