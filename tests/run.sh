#!/bin/sh
# Runs every test program of $BUILD and every tests/cli/*/test_*.py, as many at a time as there are processors, and
# closes with one line of totals. A test program is a cmocka group; a python file is a unittest module.
#
#   BUILD=build/release tests/run.sh [NAME...]     all, or those named: flags is tests/*/test_flags.c or a test_flags.py
#   BUILD=build/release tests/run.sh --fast        all that are for every commit: under a minute on two idle processors
#
# What takes long says in its first comment "Not in make test-fast" and why, but for test_ptx_*, and single tests say
# @slow (tests/cli/rig/brief.py). Op tests and goldens take a twelfth of their cases then, another one in each run
# (op_rig.h). What takes minutes, on XLA and from PTX, takes a part of its cases in make test too, and all of them in
# some hours by make test GYRE_TEST_ALL=1 (tests/cli/rig/parts.py). A test that uses more than $TEST_TIMEOUT seconds of
# processor time (600; 7200 of all cases), or hangs, is killed and counts as failed under its name (tests/limit.py).
# Time on the clock is no measure: others may use this machine.
set -u
cd "$(dirname "$0")/.."
: "${BUILD:=build/release}" "${TEST_TIMEOUT:=${GYRE_TEST_ALL:+7200}}" "${TEST_TIMEOUT:=600}"
RESULTS=$BUILD/results
export BUILD TEST_TIMEOUT RESULTS HF_HUB_OFFLINE=1 # no test asks the hub

# Some tests ask for more memory than there is and want to be told so, under a sanitizer too.
for tool in ASAN TSAN UBSAN; do
    eval "export ${tool}_OPTIONS=\"allocator_may_return_null=1:\${${tool}_OPTIONS:-}\""
done

jobs=$(nproc)
all=$(find tests -name 'test_*.c' ! -path 'tests/cuda/*' ! -path 'tests/ptx/*' | sort
    find tests/cli -name 'test_*.py' | sort)
paths=$(grep -L "Not in make test-fast" $all | grep -v /test_ptx_)
if [ "${1:-}" = --fast ]; then
    shift
    jobs=$((5 * jobs)) # the longest, which begin, sleep for most of their time
    export GYRE_TEST_BRIEF=1 GYRE_TEST_PART=1/12
else
    paths="$(echo "$all" | grep -vxF "$paths" | sort -r) $paths" # what takes long first: see side_by_side.py
fi
names=""
for path in $paths; do
    name=${path##*/} name=${name%.c}
    short=${name#test_}
    for wanted in "${@:-all}"; do
        case $wanted in all | "$name" | "${short%.py}") names="$names $name" ;; esac
    done
done
[ -n "$names" ] || { echo "no test of that name"; exit 2; }

rm -rf "$RESULTS" && mkdir -p "$RESULTS"
python3 tests/side_by_side.py "$jobs" $names

cat "$RESULTS"/*.count | awk '
    { passed += $1; failed += $2; skipped += $3; if ($2) broken = broken " " $4; n++ }
    END {
        if (skipped) print "skipped: " skipped
        if (broken) print "failed:" broken
        print passed + 0 " passed, " failed + 0 " failed"
    }
' | tee "$RESULTS/summary"
grep -q ', 0 failed$' "$RESULTS/summary"
