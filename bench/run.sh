#!/bin/sh
# Prints tables as docs/lab records them; run by make bench. The machine should have nothing else to do.
#
#   BUILD=build/release bench/run.sh [NAME...]     all, or those named: machine startup decode itl load and the
#                                                  programs of bench/
set -eu
cd "$(dirname "$0")/.."
: "${BUILD:=build/release}"

machine() {
    date -u '+%Y-%m-%d %H:%M UTC'
    sed -n 's/^model name\t*: //p' /proc/cpuinfo | sort | uniq -c | sed 's/^ *\([0-9]*\) /\1 x /'
    free -h 2>/dev/null | awk '/^Mem:/ { print "memory " $2 }'
    echo "load $(cut -d' ' -f1-3 /proc/loadavg), $(uname -sr), $(gcc --version | head -n 1)"
    git log -1 --format='commit %h %s' 2>/dev/null || true
}

startup() { python3 bench/startup.py "$BUILD/gyre"; }

# What the CPU can read from memory, and how close decoding comes to it.
decode() {
    "$BUILD/gyre" bench tests/data/configs/Qwen--Qwen2.5-0.5B/config.json --load-format dummy -p 128 -n 32
    "$BUILD/gyre" bench models/story
}

itl() { GYRE="$BUILD/gyre" python3 bench/itl.py; }

load() { GYRE="$BUILD/gyre" python3 bench/load.py; }

for name in ${*:-machine startup decode itl load $(cd bench && ls ./*.c | sed 's,./\(.*\)\.c$,\1,')}; do
    echo "== $name"
    case $name in
    machine | startup | decode | itl | load) $name ;;
    *) "$BUILD/bench/$name" ;;
    esac
    echo
done
