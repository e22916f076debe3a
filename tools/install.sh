#!/bin/sh
# Puts a built gyre where it belongs; run by make install.
# usage: tools/install.sh BUILD DESTDIR PREFIX VERSION
set -eu
build=$1 root=$2$3 prefix=$3 version=$4
major=${version%%.*}

install -d "$root/bin" "$root/lib/pkgconfig" "$root/include" "$root/share/man/man1" \
    "$root/share/bash-completion/completions" "$root/share/zsh/site-functions" "$root/share/fish/vendor_completions.d"
install -m 755 "$build/gyre" "$root/bin/gyre"
install -m 644 include/gyre.h include/gyre_text.h "$root/include/"
[ ! -e "$build/libgyre-cuda.so" ] || # the command looks there
    install -D -m 755 "$build/libgyre-cuda.so" "$root/lib/gyre/libgyre-cuda.so"
install -m 644 "$build/install/libgyre.a" "$root/lib/libgyre.a"
install -m 644 "$build/libgyre.so" "$root/lib/libgyre.so.$version"
ln -sfn "libgyre.so.$version" "$root/lib/libgyre.so.$major"
ln -sfn "libgyre.so.$version" "$root/lib/libgyre.so"

cat >"$root/lib/pkgconfig/gyre.pc" <<END
prefix=$prefix
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: gyre
Description: inference engine for large language models
Version: $version
Requires.private: jansson libpcre2-8 libutf8proc libxxhash libsodium
Cflags: -I\${includedir}
Libs: -L\${libdir} -lgyre
Libs.private: -lpthread -lm
END

"$build/gyre" help --format man >"$root/share/man/man1/gyre.1"
"$build/gyre" help --format bash >"$root/share/bash-completion/completions/gyre"
"$build/gyre" help --format zsh >"$root/share/zsh/site-functions/_gyre"
"$build/gyre" help --format fish >"$root/share/fish/vendor_completions.d/gyre.fish"
