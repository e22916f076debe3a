#!/bin/sh
# Runs test programs that were built for 64-bit Arm under qemu-user, and the model of this tree, on a processor without
# dot products (as in a Raspberry Pi 4) and on one with them (Raspberry Pi 5, Graviton 2). make test-arm builds them and
# calls this.
#
#   tests/arm.sh build/release-aarch64-linux-gnu-gcc NAME...
#
# Of op tests and goldens a part is run, another one each time: GYRE_TEST_PART=1/1 runs all, in an hour or two.
set -u
cd "$(dirname "$0")/.."
BUILD=$1 SYSROOT=build/arm64
shift
export BUILD GYRE_TEST_PART="${GYRE_TEST_PART:-1/40}"

fail() {
    echo "arm: $1"
    exit 1
}

for cpu in cortex-a72 cortex-a76; do
    export RUN_WITH="qemu-aarch64 -cpu $cpu -L $SYSROOT"
    echo "arm: on an emulated $cpu"
    tests/run.sh "$@" || fail "tests fail on $cpu"
    for kernels in reference neon; do
        $RUN_WITH "$BUILD/gyre" run models/story -p "Once upon a time" -n 8 --temperature 0 \
            --device-option kernels=$kernels >"$BUILD/story.$kernels" 2>"$BUILD/story.err" ||
            { cat "$BUILD/story.err"; fail "gyre run fails on $cpu"; }
    done
    cmp "$BUILD/story.reference" "$BUILD/story.neon" || fail "kernels tell another story on $cpu"
done
! grep -q SKIPPED "$BUILD/results/test_block_products.out" || fail "no product of dots was run"
