#!/bin/sh
# Tests of the CUDA backend on a machine that has a Hopper GPU and the CUDA toolkit's libraries, and nothing of ours.
#
#   tools/gpu.sh pack          here: builds all of it and packs programs and libraries into build/gpu/gyre.tar.xz
#   tools/gpu.sh run [OUT]     there, in the root of the sources beside build/gpu: unpacks, runs every test in every dtype, prints one
#                              line each; logs go to OUT
set -eu
cd "$(dirname "$0")/.."

pack() {
    make cuda cuda-tests
    rm -rf build/gpu && mkdir -p build/gpu/root/lib
    for program in build/cuda/test_* build/release/gyre build/release/libgyre-cuda.so; do
        strip -o "build/gpu/root/$(basename "$program")" "$program"
    done
    # What a machine with CUDA and Python has not: everything but the C library, CUDA's own and what libcurl brings.
    ldd build/release/gyre build/cuda/test_ops | awk '/=> \// {print $3}' | sort -u |
        grep -E '/lib(cmocka|edit|bsd|md|microhttpd|jansson|pcre2|xxhash|utf8proc|tinfo|sodium)' | xargs -I{} cp -L {} build/gpu/root/lib
    tar cJf build/gpu/gyre.tar.xz -C build/gpu/root . && rm -r build/gpu/root
    ls -l build/gpu/gyre.tar.xz
}

run() {
    out=${1:-build/gpu/logs}
    mkdir -p "$out" /tmp/gyre-gpu
    tar xJf build/gpu/gyre.tar.xz -C /tmp/gyre-gpu
    export GYRE_TEST_BACKEND=cuda LD_LIBRARY_PATH=/tmp/gyre-gpu/lib:/usr/local/cuda/lib64
    failed=0
    for test in /tmp/gyre-gpu/test_ops*; do
        one "$test" "$(basename "$test")" || failed=1
    done
    for dtype in float32 float16 bfloat16; do
        GYRE_TEST_DTYPE=$dtype one /tmp/gyre-gpu/test_goldens "test_goldens_$dtype" || failed=1
    done
    return $failed
}

one() {
    if timeout 300 ${CHECKER:-} "$1" >"$out/$2.log" 2>&1; then
        echo "$2: $(grep -c '^\[       OK' "$out/$2.log") passed"
    else
        echo "$2: FAILED"
        grep -E 'ERROR|off by|differs' "$out/$2.log" | head -n 5
        return 1
    fi
}

case ${1:-} in
pack) pack ;;
run) shift && run "$@" ;;
*) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
