#!/bin/sh
# Runs fuzz targets, as many at a time as there are processors, and says one line for each.
#
#   FUZZ_SECONDS=60 tests/fuzz/run.sh build/fuzz [PATTERN]
#
# Seeds are read from tests/fuzz/corpus/NAME; what is found goes to BUILD/corpus/NAME, so that a later run goes on from
# there. An input that crashes, leaks, runs out of time or memory is kept in BUILD/found/NAME, and the exit code is 1.
set -u
cd "$(dirname "$0")/../.."
export FUZZ_SECONDS="${FUZZ_SECONDS:-60}"

# --one BUILD NAME: one target, one line.
run_one() {
    build=$1 name=$2
    mkdir -p "$build/corpus/$name" "$build/found/$name" "tests/fuzz/corpus/$name"
    rm -f "$build/found/$name"/*
    "$build/fuzz_$name" -max_total_time="$FUZZ_SECONDS" -timeout=30 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
        -max_len=1048576 -print_final_stats=1 -artifact_prefix="$build/found/$name/" \
        "$build/corpus/$name" "tests/fuzz/corpus/$name" >"$build/$name.log" 2>&1
    rc=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log")
    covered=$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' "$build/$name.log" | tail -n 1)
    found=$(find "$build/found/$name" -type f | wc -l)
    if [ $rc -eq 0 ] && [ "$found" -eq 0 ]; then
        echo "fuzz $name: clean, ${runs:-0} runs, ${covered:-0} edges"
    else
        last=$(tail -n 40 "$build/$name.log" | sed 's/^/    /') # in one write: others write too
        printf '%s\n%s\n' "fuzz $name: FAILED (exit code $rc); inputs are in $build/found/$name" "$last"
        : >"$build/found/$name.failed"
    fi
}

[ "$1" = --one ] && { run_one "$2" "$3"; exit 0; }

build=$1 pattern=${2:-*}
names=$(cd tests/fuzz && for f in fuzz_$pattern.c; do [ -f "$f" ] && basename "${f#fuzz_}" .c; done)
[ -n "$names" ] || { echo "fuzz: no target fits $pattern" >&2; exit 2; }
rm -f "$build"/found/*.failed
printf '%s\n' $names | xargs -P "$(nproc)" -n 1 "$0" --one "$build"
! ls "$build"/found/*.failed >/dev/null 2>&1
