#!/bin/sh
# Runs test programs that were built for 64-bit Arm under qemu-user, and the model of this tree, on a processor without
# dot products (as in a Raspberry Pi 4) and on one with them (Raspberry Pi 5, Graviton 2). On an Arm machine they run as
# they are, with what its processor has. make test-arm builds them and calls this.
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

# tell WHERE: tests, and a story by reference functions and by NEON, on what RUN_WITH is.
tell() {
    echo "arm: on $1"
    tests/run.sh $names || fail "tests fail on $1"
    for kernels in reference neon; do
        $RUN_WITH "$BUILD/gyre" run models/story -p "Once upon a time" -n 8 --temperature 0 \
            --device-option kernels=$kernels >"$BUILD/story.$kernels" 2>"$BUILD/story.err" ||
            { cat "$BUILD/story.err"; fail "gyre run fails on $1"; }
    done
    cmp "$BUILD/story.reference" "$BUILD/story.neon" || fail "kernels tell another story on $1"
}

names=$*
if [ "$(uname -m)" = aarch64 ]; then
    export RUN_WITH=
    tell "this processor"
    grep -q asimddp /proc/cpuinfo || exit 0 # it has no dot products
else
    for cpu in cortex-a72 cortex-a76; do
        export RUN_WITH="qemu-aarch64 -cpu $cpu -L $SYSROOT"
        tell "an emulated $cpu"
    done
fi
! grep -q SKIPPED "$BUILD/results/test_block_products.out" || fail "no product of dots was run"
