#!/bin/sh
# Runs every test program of $BUILD and every tests/cli/test_*.py, as many at a time as there are processors, and
# closes with one line of totals. A test program is a cmocka group; a python file is a unittest module.
#
#   BUILD=build/release tests/run.sh [NAME...]     all, or those named: flags is tests/test_flags.c or tests/cli/test_flags.py
#   BUILD=build/release tests/run.sh --fast        all that are for every commit: under a minute on two idle processors
#
# What takes long says in its first comment "Not in make test-fast" and why, but for test_ptx_*; op tests draw fewer cases then.
# A test that uses more than $TEST_TIMEOUT seconds (600) of processor time, or hangs, is killed and counts as failed under
# its name (tests/limit.py). Time on the clock is no measure: others may use this machine.
set -u
cd "$(dirname "$0")/.."
: "${BUILD:=build/release}" "${TEST_TIMEOUT:=600}"
results=$BUILD/results
export BUILD TEST_TIMEOUT results

# Some tests ask for more memory than there is and want to be told so, under a sanitizer too.
for tool in ASAN TSAN UBSAN; do
    eval "export ${tool}_OPTIONS=\"allocator_may_return_null=1:\${${tool}_OPTIONS:-}\""
done

# --one NAME: runs it and says how it went in one line; the output of a failure follows.
run_one() {
    case $1 in
    *.py) set -- "$1" env GYRE="$BUILD/gyre" PYTHONDONTWRITEBYTECODE=1 python3 tests/cli/run_module.py "$1" ;;
    *) set -- "$1" "$BUILD/tests/$1" ;;
    esac
    ok='^\[       OK \]' bad='^\[  FAILED  \] [^ ]+$' skip='^\[  SKIPPED \] [^ ]+$'
    name=$1 out=$results/$1.out
    shift
    begin=$(date +%s)
    tests/limit.py "$TEST_TIMEOUT" "$@" >"$out" 2>&1 </dev/null
    rc=$?
    used="$(tail -n 1 "$out" | sed -n 's/^limit: used //p') on a processor, $(($(date +%s) - begin)) s on the clock"
    passed=$(grep -cE "$ok" "$out") failed=$(grep -E "$bad" "$out" | sort -u | wc -l) skipped=$(grep -cE "$skip" "$out")
    note=""
    case $rc in
    0) [ $((passed + skipped)) -gt 0 ] || { failed=1; note=" (ran no test)"; } ;;
    124) note=" ($(tail -n 1 "$out" | sed 's/^limit: //'))"; failed=$((failed + 1)) ;;
    *) [ "$failed" -gt 0 ] || { failed=1; note=" (exit code $rc)"; } ;;
    esac
    echo "$passed $failed $skipped $name" >"$results/$name.count"
    line="$name: $passed passed"
    [ "$failed" -gt 0 ] && line="$line, $failed FAILED$note"
    [ "$skipped" -gt 0 ] && line="$line, $skipped skipped"
    line="$line, ${used# on a processor, }"
    # One write, so that the lines of tests that end together do not mix.
    if [ "$failed" -gt 0 ]; then
        printf '%s\n%s\n' "$line" "$(sed 's/^/    /' "$out")"
    else
        echo "$line"
    fi
}

[ "${1:-}" = --one ] && { run_one "$2"; exit 0; }

jobs=$(nproc) skip=
[ "${1:-}" = --fast ] && {
    shift
    jobs=$((2 * jobs)) skip="Not in make test-fast" # twice as many at a time: some of them sleep
    export GYRE_TEST_BRIEF=1
}
names=""
for path in tests/test_*.c tests/cli/test_*.py; do
    [ -f "$path" ] || continue
    [ -n "$skip" ] && head -n 20 "$path" | grep -q "$skip" && continue
    name=$(basename "$path" .c)
    [ -n "$skip" ] && case $name in test_ptx_*) continue ;; esac
    short=${name#test_}
    for wanted in "${@:-all}"; do
        case $wanted in all | "$name" | "${short%.py}") names="$names $name" ;; esac
    done
done
[ -n "$names" ] || { echo "no test of that name"; exit 2; }

rm -rf "$results" && mkdir -p "$results"
printf '%s\n' $names | xargs -P "$jobs" -n 1 "$0" --one

cat "$results"/*.count | awk '
    { passed += $1; failed += $2; skipped += $3; if ($2) broken = broken " " $4; n++ }
    END { if (skipped) print "skipped: " skipped; if (broken) print "failed:" broken; print passed + 0 " passed, " failed + 0 " failed" }
' | tee "$results/summary"
grep -q ', 0 failed$' "$results/summary"
