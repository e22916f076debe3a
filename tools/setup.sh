#!/bin/sh
# Installs the Debian or Ubuntu packages that gyre builds with, those that are missing only. Run by make.
# usage: tools/setup.sh build|test
set -eu

build="gcc make pkg-config libc6-dev libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev libedit-dev"
test="$build libcmocka-dev python3 xz-utils"

case "${1:-build}" in
build) wanted=$build ;;
test) wanted=$test ;;
dev) wanted="$test clang libclang-rt-14-dev clang-format" ;;
*) echo "usage: tools/setup.sh build|test|dev" >&2; exit 2 ;;
esac

missing=""
for package in $wanted; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

echo "installing:$missing" >&2
sudo=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "gyre needs these packages, and neither root nor sudo is here:$missing" >&2; exit 1; }
    sudo=sudo
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q >&2
$sudo apt-get install -y -q --no-install-recommends $missing >&2
