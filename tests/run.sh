#!/bin/sh
# Runs every test program of $BUILD and every tests/cli/test_*.py, and closes with one line of totals.
# A test program is a cmocka group, named in the arguments or all of them; a python file is a unittest module.
set -u
passed=0 failed=0 broken=""
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# one NAME COMMAND...: runs it, counts the lines that match $ok and $bad, shows the output of a failure.
one() {
    name=$1; shift
    "$@" >"$tmp/out" 2>&1
    rc=$?
    p=$(grep -cE "$ok" "$tmp/out"); f=$(grep -cE "$bad" "$tmp/out")
    [ $rc -ne 0 ] && [ "$f" -eq 0 ] && f=1
    passed=$((passed + p)) failed=$((failed + f))
    if [ $rc -ne 0 ]; then broken="$broken $name"; cat "$tmp/out"; else echo "$name: $p passed"; fi
}

ok='^\[       OK \]' bad='^\[  FAILED  \] [a-z_0-9]+$'
for source in tests/test_*.c; do
    name=$(basename "$source" .c)
    one "$name" "$BUILD/tests/$name"
done

ok='\.\.\. ok$' bad='\.\.\. (FAIL|ERROR)$'
for script in tests/cli/test_*.py; do
    [ -f "$script" ] && one "$(basename "$script")" env GYRE="$BUILD/gyre" python3 -m unittest -v "$script"
done

[ -n "$broken" ] && echo "failed:$broken"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
