#!/bin/sh
# Tests of the CUDA backend on a machine that has a Hopper GPU and the CUDA toolkit's libraries, and nothing of ours.
#
#   tools/gpu.sh pack            here: builds all of it and packs programs, libraries and models into
#                                build/gpu/gyre.tar.xz; with $GYRE_DRAFTS these trained drafts too
#   tools/gpu.sh run [OUT]       there, where nothing need be but tools/gpu.sh and build/gpu/gyre.tar.xz: unpacks that
#                                to /tmp/gyre-gpu ($GYRE_GPU_ROOT), runs every test in every dtype, then samples of the
#                                op tests under compute-sanitizer, and
#                                closes with a table; logs go to OUT, of the folder that tools is in
#   tools/gpu.sh tests [OUT], tools/gpu.sh sanitize [OUT]    one half of it
#   tools/gpu.sh speed [OUT]     there too: tools/claims.py, every speed that is claimed beside what is wanted; $ONLY
#                                names sections of it
#
# $JOBS (12) programs run side by side on each GPU there is, $SANITIZER_JOBS (3) of those under compute-sanitizer, which
# take turns. $GYRE_TEST_SEED decides what is drawn, and which case of a program is in which of its parts; it is
# printed.
set -eu
cd "$(dirname "$0")/.."
self=$PWD/tools/gpu.sh
there=${GYRE_GPU_ROOT:-/tmp/gyre-gpu}

# Test programs share one library of the engine, or each would be as large as it.
pack() {
    tests=$(ls tests/ops/test_ops*.c | sed 's:.*/\(.*\)\.c$:\1:')
    tests="$tests test_goldens test_device test_parity test_overlap test_sample_rows"
    tests="$tests test_draft_models test_draft_goldens test_screened_masks"
    release=build/release root=build/gpu/root
    qwen3=build/data/tokenizers/qwen3 racecheck=build/racecheck
    make cuda cuda-tests $qwen3/tokenizer.json $qwen3/tokenizer_config.json $racecheck/libgyre-cuda.so \
        $(for t in small_m gated split_k prefill; do echo "$racecheck/test_gemm_fp8_$t"; done) \
        $(for t in $tests; do echo "$release/tests/$t"; done)
    rm -rf build/gpu && mkdir -p $root/lib $root/racecheck
    cc -shared -o $root/libgyre-tests.so -Wl,--whole-archive $release/libgyre.a -Wl,--no-whole-archive \
        $release/tests/rig/op_*.o $release/tests/rig/parity_*.o $release/tests/rig/draft_rig.o \
        -lcmocka -ljansson -lpcre2-8 -lxxhash -lsodium -lpthread -lm
    for t in $tests; do
        cc -o "$root/$t" $release/tests/*/$t.o -L$root -lgyre-tests -lcmocka -ljansson -lm \
            -Wl,-rpath,'$ORIGIN' -Wl,--allow-shlib-undefined
    done
    cp $(find build/cuda -maxdepth 1 -name 'test_*' -type f -perm -u+x) $release/gyre $release/libgyre-cuda.so $root
    cp $racecheck/libgyre-cuda.so $(find $racecheck -maxdepth 1 -name 'test_*' ! -name '*.d') $root/racecheck
    strip $(find $root -type f)
    mkdir -p $root/tests
    cp -r models $root
    mkdir -p $root/claims/qwen2.5-7b $root/claims/llama-3.1-8b $root/claims/gemma-4-31b
    cp tests/data/configs/Qwen--Qwen2.5-7B/config.json $qwen3/* $root/claims/qwen2.5-7b
    cp tests/data/configs/meta-llama--Meta-Llama-3.1-8B/config.json $root/claims/llama-3.1-8b
    # Its shapes alone: FP8 is what is claimed, and the checkpoint's matrices would stay in four bits.
    xz -dc tests/data/configs/nvidia--Gemma-4-31B-IT-NVFP4/config.json.xz | python3 -c 'import json, sys
c = json.load(sys.stdin); del c["quantization_config"]; print(json.dumps(c))' >$root/claims/gemma-4-31b/config.json
    cp -r tests/models tests/models_random $root/tests
    [ -z "${GYRE_DRAFTS:-}" ] || cp -rL "$GYRE_DRAFTS" $root/drafts
    # What a machine with CUDA and Python has not: everything but the C library, CUDA's own and what libcurl brings.
    ldd $release/gyre $release/tests/test_ops | awk '/=> \// {print $3}' | sort -u |
        grep -E '/lib(cmocka|edit|bsd|md|microhttpd|jansson|pcre2|xxhash|utf8proc|tinfo|sodium)' |
        xargs -I{} cp -L {} $root/lib
    # Six programs hold all kernels each, so that a window of all of it makes a third less.
    tar cf - -C $root . | xz -T1 --lzma2=preset=2,dict=512MiB >build/gpu/gyre.tar.xz && rm -r $root
    ls -l build/gpu/gyre.tar.xz
}

# What to run: a name, then a command with its environment, a line each; what takes longest first.
tests() {
    fp8="GYRE_TEST_DTYPE=float16 GYRE_TEST_QUANTIZATION=fp8 GYRE_TEST_KV_DTYPE=fp8"
    for k in 1 2 3 4 5 6; do
        echo "attention_$k GYRE_TEST_PART=$k/6 $there/test_ops_attention"
    done
    for k in 1 2 3; do echo "linear_$k GYRE_TEST_PART=$k/3 $there/test_ops_linear"; done
    for t in linear_e4m3 gated; do
        for k in 1 2; do echo "${t}_$k GYRE_TEST_PART=$k/2 $there/test_ops_$t"; done
    done
    echo "latent $there/test_ops_latent"
    for t in thousands eight_bit each_of sixteen captured what_others; do
        echo "device_$t GYRE_TEST_DTYPE=float16 GYRE_TEST_ONLY=$t* $there/test_device"
    done
    echo "device_prefill GYRE_LINEAR=prefill GYRE_TEST_DTYPE=float16 GYRE_TEST_ONLY=thousands* $there/test_device"
    for k in 1 2 3 4; do
        echo "device_screening_$k GYRE_TEST_PART=$k/4 GYRE_TEST_ONLY=screening* $there/test_device"
    done
    for k in 1 2 3 4; do echo "parity_fp8_$k $fp8 GYRE_TEST_PART=$k/4 $there/test_parity"; done
    for dtype in float32 float16 bfloat16; do
        for k in 1 2; do echo "parity_${dtype}_$k GYRE_TEST_DTYPE=$dtype GYRE_TEST_PART=$k/2 $there/test_parity"; done
    done
    for dtype in float32 auto bfloat16; do # auto: float16, of checkpoints in bfloat16
        asked="GYRE_TEST_DTYPE=$dtype"
        [ $dtype != auto ] || asked=
        for k in 1 2 3; do echo "goldens_${dtype}_$k $asked GYRE_TEST_PART=$k/3 $there/test_goldens"; done
    done
    linears="linear linear_e4m3 gated"
    for path in library gemv small_m gated split_k prefill; do # wherever it can be taken, not where it is fastest
        for t in $linears; do echo "${t}_by_$path GYRE_LINEAR=$path GYRE_TEST_PART=1/6 $there/test_ops_$t"; done
        echo "layer_by_$path GYRE_LINEAR=$path GYRE_TEST_PART=2/4 $there/test_ops_layer"
    done
    for path in gated split_k; do
        near="GYRE_L2_COPIES=force GYRE_LINEAR=$path"
        for t in $linears; do echo "${t}_near_$path $near GYRE_TEST_PART=2/6 $there/test_ops_$t"; done
        echo "layer_near_$path $near GYRE_TEST_PART=3/4 $there/test_ops_layer"
    done
    echo "layer_near GYRE_L2_COPIES=force GYRE_TEST_PART=4/4 $there/test_ops_layer"
    echo "device_near GYRE_L2_COPIES=force GYRE_TEST_DTYPE=float16 GYRE_TEST_ONLY=thousands* $there/test_device"
    echo "parity_near $fp8 GYRE_L2_COPIES=force GYRE_TEST_PART=1/4 $there/test_parity"
    for t in draft_models screened_masks; do echo "$t $there/test_$t"; done
    [ ! -d "$there/drafts" ] || echo "draft_goldens GYRE_DRAFTS=$there/drafts $there/test_draft_goldens"
    echo "head_by_library GYRE_LINEAR=library $there/test_ops_head"
    plain="GYRE_TEST_KERNELS=plain"
    most="ops_rows ops_norm ops_head ops_moe ops_recurrent"
    for t in ops ops_layer $most; do echo "plain_$t $plain $there/test_$t"; done
    for t in $linears attention; do echo "plain_$t $plain GYRE_TEST_PART=1/6 $there/test_ops_$t"; done
    echo "plain_parity $plain GYRE_TEST_PART=1/2 $there/test_parity"
    for n in 1 64; do echo "head_screened_$n GYRE_ARGMAX_FILTER=$n $there/test_ops_head"; done
    for k in 1 2 3; do echo "layer_$k GYRE_TEST_PART=$k/3 $there/test_ops_layer"; done
    for k in 1 2; do echo "ops_$k GYRE_TEST_PART=$k/2 $there/test_ops"; done
    for t in $most ops_refusals ops_int4_cache overlap sample_rows; do echo "$t $there/test_$t"; done
    for t in "$there"/test_*; do
        case ${t##*/test_} in
        ops* | goldens | device | parity | overlap | sample_rows | draft_models | draft_goldens | screened_masks) ;;
        cache | faults | two_devices) ;;
        *) echo "unit_${t##*/test_} $t" ;;
        esac
    done
}

# Those that take all of the card's memory, or count what is left: when nobody else runs.
alone() {
    echo "unit_cache $there/test_cache"
    echo "unit_faults $there/test_faults"
}

# What takes all GPUs.
together() {
    [ "$(echo "$gpus" | wc -w)" -lt 2 ] ||
        echo "unit_two_devices CUDA_VISIBLE_DEVICES=$(echo "$gpus" | tr ' ' ',') $there/test_two_devices"
}

# A step costs a sanitizer a tenth of a second, racecheck up to half of one, so of each program a sample: one case in
# PARTS, with few steps (GYRE_TEST_BRIEF); but racecheck has each case of attention's fast kernels in some dtype, and
# all have products alone. Their filters by kernel are of no use: with any of them racecheck and synccheck end in a
# fault.
under() { # TOOL COMMAND
    echo "compute-sanitizer --launch-timeout 60 --tool $1 --error-exitcode 1 $2"
}
sample_of() { # TOOL PROGRAM:PARTS [VARIABLE=VALUE...]
    tool=$1 sample=$2
    shift 2
    parts=${sample#*:} part=$(($(echo "$tool$sample${GYRE_TEST_SEED:-}" | cksum | cut -d' ' -f1) % parts + 1))
    echo "GYRE_TEST_BRIEF=1 GYRE_TEST_PART=$part/$parts $* $(under $tool $there/test_${sample%:*})"
}
samples() {
    race="GYRE_PLUGINS=$there/racecheck" brief="GYRE_TEST_BRIEF=1"
    fast="GYRE_TEST_ONLY=what_fast*"
    for k in 1 2; do
        echo "racecheck_fast_attention_$k $(sample_of racecheck ops_attention:1 "$race" "$fast" GYRE_TEST_PART=$k/2)"
    done
    for k in 1 2 3; do
        echo "racecheck_split_$k $brief GYRE_TEST_PART=$k/3 $(under racecheck $there/racecheck/test_gemm_fp8_split_k)"
    done
    for path in prefill gated small_m; do
        echo "racecheck_$path $brief $(under racecheck $there/racecheck/test_gemm_fp8_$path)"
    done
    for sample in ops_linear:60 ops_linear_e4m3:60 ops_gated:20 ops_rows:20 ops_layer:40 ops:10 ops_moe:8 \
        ops_attention:20 ops_latent:4 ops_recurrent:4 ops_head:6 sample_rows:1; do
        echo "racecheck_${sample%:*} $(sample_of racecheck $sample "$race")"
    done
    echo "racecheck_head_screened $(sample_of racecheck ops_head:6 "$race" GYRE_ARGMAX_FILTER=64)"
    echo "racecheck_many_pairs $(sample_of racecheck ops_layer:1 "$race" GYRE_TEST_ONLY="many_pairs*")"
    echo "racecheck_rows_by_gemv $(sample_of racecheck ops_linear_e4m3:40 "$race" GYRE_LINEAR=gemv)"
    for path in split_k gated; do
        near="GYRE_L2_COPIES=force GYRE_LINEAR=$path"
        echo "memcheck_near_$path $(sample_of memcheck ops_linear_e4m3:20 "$near")"
        echo "racecheck_near_$path $(sample_of racecheck ops_linear_e4m3:40 "$race" "$near")"
    done
    for path in split_k prefill gated small_m; do
        for tool in memcheck initcheck synccheck; do
            echo "${tool}_$path $brief $(under $tool $there/test_gemm_fp8_$path)"
        done
    done
    for sample in ops_linear:40 ops_linear_e4m3:40 ops_gated:20 ops_rows:20 ops_layer:60 \
        ops_attention:30 ops_latent:4 ops:8 ops_moe:6 ops_recurrent:3 ops_head:6 sample_rows:1; do
        for tool in memcheck initcheck; do
            echo "${tool}_${sample%:*} $(sample_of $tool $sample)"
        done
        # Of the build for these tools: sixteen blocks of a cluster, which SAMPLE takes for a few rows, end in a fault
        # of the tool.
        echo "synccheck_${sample%:*} $(sample_of synccheck $sample "$race")"
    done
    echo "memcheck_head_screened $(sample_of memcheck ops_head:6 GYRE_ARGMAX_FILTER=64)"
}

# --one NAME COMMAND...: its log, and a line of the table. Where the models are
one() {
    cd "$there"
    name=$1 log=$out/$1.log result=ok
    shift
    begin=$(date +%s)
    set -- CUDA_VISIBLE_DEVICES="$(echo "$gpus" | cut -d' ' -f$((slot % $(echo "$gpus" | wc -w) + 1)))" "$@"
    timeout -k 5 "${LIMIT:-300}" env "$@" >"$log" 2>&1 || result="FAILED ($?)"
    passed=$(grep -cE '^\[       OK|^all fine|^[0-9]+ cases, 0 bad' "$log" || true)
    [ "$passed" -gt 0 ] || [ "$result" != ok ] || result="FAILED (none)"
    note=$(grep -E 'SUMMARY:' "$log" | head -n 1 | sed 's/^=* *//')
    [ "$result" = ok ] ||
        note="$note $(grep -E 'ERROR:|off by|differs|=+     at' "$log" | head -n 2 | cut -c 1-200 | tr '\n' ';')"
    printf '%-28s %-12s %3d passed %4d s  %s\n' "$name" "$result" "$passed" $(($(date +%s) - begin)) "$note" |
        tee "$out/$name.line"
}

# GPUs by number, those of CUDA_VISIBLE_DEVICES or all.
gpus() {
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
        echo "$CUDA_VISIBLE_DEVICES" | tr ',' ' '
    else
        seq -s ' ' 0 $(($(nvidia-smi -L | wc -l) - 1))
    fi
}

# The lines of standard input, so many side by side on each GPU.
side_by_side() {
    tr '\n' '\0' | xargs -0 --process-slot-var=slot -P $(($1 * $(echo "$gpus" | wc -w))) -I{} \
        sh -c "set -f; exec \"\$self\" --one {}"
}

# What was packed, where it is run, and what programs need in their environment.
unpack() {
    mkdir -p "$out" "$there"
    out=$(cd "$out" && pwd) there=$(cd "$there" && pwd) # programs run there
    [ ! -e build/gpu/gyre.tar.xz ] || tar xJf build/gpu/gyre.tar.xz -C "$there"
    [ -e "$there/libgyre-cuda.so" ] || {
        echo "tools/gpu.sh: neither build/gpu/gyre.tar.xz nor what it holds in $there" >&2
        exit 1
    }
    # One, or parts would not be parts of one whole.
    export GYRE_TEST_SEED="${GYRE_TEST_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}"
    GYRE_PLUGINS=$(cd "${GYRE_PLUGINS:-$there}" && pwd)
    export out self GYRE_PLUGINS GYRE_GPU_ROOT="$there" GYRE_TEST_BACKEND=cuda
    export LD_LIBRARY_PATH="$there/lib:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}"
}

# Lists of programs, and the table.
all() {
    unpack
    rm -f "$out"/*.line
    begin=$(date +%s)
    gpus=$(gpus)
    export gpus
    for list; do
        case $list in
        alone) jobs=1 ;;
        samples) jobs=${SANITIZER_JOBS:-3} ;;
        *) jobs=${JOBS:-12} ;;
        esac
        "$list" | side_by_side "$jobs"
    done
    echo "---- $*, $(($(date +%s) - begin)) s, GYRE_TEST_SEED=$GYRE_TEST_SEED"
    sort "$out"/*.line
    n_failed=$(grep -lE '^[^ ]+ +FAILED' "$out"/*.line | wc -l)
    echo "$(ls "$out"/*.line | wc -l) programs, $n_failed failed"
    [ "$n_failed" -eq 0 ]
}

speed() {
    tools/claims.py --gyre "$there/gyre" --models "$there/claims" --out "$out" ${ONLY:+--only "$ONLY"}
}

case ${1:-} in
pack) pack ;;
run) out=${2:-build/gpu/logs} && all tests alone together samples ;;
tests) out=${2:-build/gpu/logs} && all tests alone together ;;
sanitize) out=${2:-build/gpu/logs} && all samples ;;
speed) out=${2:-build/gpu/logs} && unpack && speed ;;
--one) shift && one "$@" ;;
*) sed -n '2,13s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
