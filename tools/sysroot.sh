#!/bin/sh
# Unpacks the libraries of another architecture into a folder, for a cross compiler's --sysroot and for qemu-user's -L:
# of the packages named those that end in -dev, and what they depend on, of this distribution. The machine's own
# packages and lists are not touched, and root is not needed. Debian's archive has all architectures; Ubuntu's for x86
# has no arm64.
#
#   tools/sysroot.sh ARCHITECTURE FOLDER PACKAGE...
set -eu

arch=$1 folder=$2
shift 2
wanted=
for package; do
    case $package in *-dev) wanted="$wanted $package" ;; esac
done

# why_not: what the distribution has to do with it.
why_not() {
    ! grep -qsE '^(ID|ID_LIKE)=.*ubuntu' /etc/os-release ||
        echo "; Ubuntu keeps $arch apart from x86, on its ports archive: use Debian, or add it to apt's sources"
}

rm -rf "$folder" "$folder.tmp"
mkdir -p "$folder.tmp/apt/lists/partial" "$folder.tmp/cache/archives/partial" "$folder.tmp/root"
tmp=$(cd "$folder.tmp" && pwd)
trap 'rm -rf "$tmp"' EXIT
: >"$tmp/status" # nothing is installed there, so that all that is needed is fetched

# apt NAME...: apt-get with lists, cache and state of its own.
apt() {
    apt-get -q -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User= -o Debug::NoLocking=1 \
        -o Dir::State="$tmp/apt" -o Dir::State::status="$tmp/status" -o Dir::Cache="$tmp/cache" "$@" >"$tmp/log" 2>&1 ||
        { cat "$tmp/log" >&2; echo "sysroot: apt-get could not fetch the libraries for $arch$(why_not)" >&2; exit 1; }
}
echo "setup: fetching libraries for $arch" >&2
apt update
apt install -y --no-install-recommends --download-only $wanted
for package in "$tmp"/cache/archives/*.deb; do
    dpkg-deb -x "$package" "$tmp/root"
done
mv "$tmp/root" "$folder"
