#!/bin/sh
# Writes the chat page as a C file: its parts joined into one HTML file, the same packed, its tag, and a policy that
# lets the browser run this script and style and no other.
#
#   tools/page.sh src/api/page OUT.c
#
# What is written is `const struct page page` of api/page.h; beside OUT.c lies the HTML, to look at.
set -eu
from=$1 out=$2 html=${2%.c}.html

# The digest of standard input as policies and tags have it.
sha256() {
    for byte in $(sha256sum | cut -d ' ' -f 1 | sed 's/../0x& /g'); do
        printf "\\$(printf %03o "$byte")"
    done | base64 -w 0
}

# between TAG: what the browser hashes, which is all between the tags, their line ends too.
between() {
    awk -v tag="$1" '
        $0 == "</" tag ">" { inside = 0 }
        inside { print }
        $0 == "<" tag ">" { inside = 1; print "" }
    ' "$html"
}

# bytes NAME FILE: an array.
bytes() {
    printf 'static const unsigned char %s[] = {\n' "$1"
    od -An -v -tu1 "$2" | sed 's/  */,/g; s/^,//; s/$/,/'
    printf '};\n'
}

scripts=
for part in dom tex markdown highlight client store tools chat race main; do scripts="$scripts $from/$part.js"; done
cat $scripts >"$out.js"
sed -e "/^@style@$/{r $from/style.css
d}" -e "/^@script@$/{r $out.js
d}" "$from/page.html" >"$html"
rm "$out.js"
gzip -9 -n -c "$html" >"$html.gz"

{
    echo '/* Made by tools/page.sh. */'
    echo '#include "api/page.h"'
    bytes html "$html"
    bytes packed "$html.gz"
    printf 'const struct page page = {html, sizeof html, packed, sizeof packed,\n'
    printf '    "W/\\"%s\\"",\n' "$(sha256 <"$html" | cut -c 1-22)"
    cat <<END
    "default-src 'none'; script-src 'sha256-$(between script | sha256)'; "
    "style-src 'sha256-$(between style | sha256)'; img-src data:; connect-src http: https:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"};
END
} >"$out"
