#!/bin/sh
# Installs the Debian or Ubuntu packages that gyre builds with: those that are missing, and nothing when none is. Run
# by make; needs the network only when something is missing.
#
#   tools/setup.sh build    a compiler and the libraries
#   tools/setup.sh test     and what the tests run with, a browser among it where the distribution has one as a package
#   tools/setup.sh dev      and clang, its sanitizers and clang-format
#   tools/setup.sh arm64    test's, a compiler for Arm, qemu to run what it makes, and Arm's libraries in build/arm64
set -eu

build="gcc make libc6-dev libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev libsodium-dev"
build="$build libedit-dev libmicrohttpd-dev zlib1g-dev libmd-dev libcurl4-openssl-dev"
test="$build libcmocka-dev python3 python3-venv xz-utils openssl curl ca-certificates"
browser="chromium-headless-shell fonts-dejavu-core" # Debian's, 100 MB; the tests of the chat page are skipped without

case "${1:-build}" in
build) wanted=$build ;;
test) wanted=$test ;;
dev) wanted="$test clang clang-format" ;;
arm64) wanted="$test gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" ;;
*) echo "usage: tools/setup.sh build|test|dev|arm64" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
    if [ "${1:-}" = arm64 ]; then
        echo "setup: libraries for arm64 are unpacked from Debian's packages, and this is neither Debian nor Ubuntu" >&2
        exit 1
    fi
    echo "setup: this is neither Debian nor Ubuntu, so nothing is installed;" \
        "gyre needs what these packages hold: $wanted" >&2
    exit 0
fi

# missing NAME...: those that are not installed.
missing() {
    for package; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || printf ' %s' "$package"
    done
}

give_up() {
    echo "setup: $1; as root: apt-get update && apt-get install$2" >&2
    exit 1
}

# as_root COMMAND...: through sudo where this user is not root. sudo may ask for a password, but only somebody.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif [ -t 0 ]; then
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    else
        sudo -n env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

# install NAME...: brings in what is missing.
install() {
    lacking=$(missing "$@")
    [ -n "$lacking" ] || return 0
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
        give_up "packages are missing, and this user is not root and has no sudo" "$lacking"
    echo "setup: installing$lacking" >&2
    export DEBIAN_FRONTEND=noninteractive
    # Packages may be installable from the lists that are here; stale lists or none are the common reason for failure.
    as_root apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends $lacking >/dev/null 2>&1 ||
        { as_root apt-get -o DPkg::Lock::Timeout=300 update -q >&2 &&
            as_root apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends $lacking >&2; } ||
        give_up "packages are missing, and apt-get could not install them" "$lacking"
}

install $wanted
if [ "${1:-build}" != build ] && ! command -v chromium >/dev/null &&
    apt-cache show chromium-headless-shell >/dev/null 2>&1; then
    install $browser
fi
if [ "${1:-build}" = dev ]; then # the sanitizers' runtime is a package of clang's own version
    install "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
fi
if [ "${1:-}" = arm64 ]; then
    tools/sysroot.sh arm64 build/arm64 $build libcmocka-dev
fi
