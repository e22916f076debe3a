#!/bin/sh
# usage: tests/fuzz/run.sh BUILD PATTERN: runs each BUILD/fuzz_PATTERN for FUZZ_SECONDS on its seeds.
# New inputs are kept under BUILD/corpus, never in the tree; an input that breaks a target stays there too.
set -u
build=$1 pattern=$2 broken="" n=0
for target in "$build"/fuzz_*; do
    name=${target##*/fuzz_}
    case $name in *.d | *.o) continue ;; $pattern) ;; *) continue ;; esac
    n=$((n + 1))
    seeds=tests/fuzz/corpus/$name grown=$build/corpus/$name
    mkdir -p "$grown"
    [ -d "$seeds" ] || seeds=""
    echo "fuzz_$name: ${FUZZ_SECONDS:-60} s"
    "$target" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$grown/broken-" "$grown" $seeds >"$build/fuzz_$name.log" 2>&1
    if [ $? -ne 0 ]; then
        broken="$broken $name"
        tail -40 "$build/fuzz_$name.log"
    else
        grep -E 'number_of_executed_units|new_units_added' "$build/fuzz_$name.log"
    fi
done
[ $n -gt 0 ] || { echo "no fuzz target matches $pattern"; exit 1; }
[ -z "$broken" ] && echo "$n fuzz targets ran clean" || { echo "broken:$broken"; exit 1; }
