# gyre - see README.md. `make run` and `make test` are the two commands; each installs what it lacks.
#
#   make                     build/gyre                  make V=1         shows the commands
#   make run                 the bundled model tells a story
#   make test                all tests; the last line is the summary
#   make asan ubsan tsan     the same tests, built with clang's sanitizers
#   make fuzz [FUZZ=json] [FUZZ_SECONDS=600]             every target of tests/fuzz for that long
#   make soak [SOAK_SECONDS=600]                         mixed traffic at a server: right answers, flat memory
#   make test-parity [BACKEND=cuda]                      every op of the dense test models against the CPU's plain functions
#   make ptx                 the kernels for GPUs on a machine on the CPU; make test runs them then: wants the CUDA toolkit, and no GPU
#   make bench               what docs/benchmarks.md records
#   make rooms               the include graph; fails on an edge that points up or sideways
#   make explain             the program of the bundled model, one line an operation
#   make install [PREFIX=/usr/local] [DESTDIR=]          binary, library, header, man page, completions
#   make CC=clang            another compiler; each variant builds in a folder of its own

VERSION := 0.1.0
ifeq ($(origin CC),default)
CC      := gcc
endif
VARIANT ?= release$(patsubst %,-%,$(filter-out gcc,$(notdir $(CC))))
BUILD   := build/$(VARIANT)
OPT     ?= -O2 -g
SAN     ?=
PREFIX  ?= /usr/local

# Position-independent for the shared library too; without interposition that costs nothing.
CPPFLAGS += -D_GNU_SOURCE -Isrc -Iinclude -MMD -MP
CFLAGS   += -std=c17 -Wall -Wextra -Wshadow -Wvla -Wno-missing-field-initializers -Werror -fPIC -fno-semantic-interposition $(OPT) $(SAN)
LDFLAGS  += $(SAN)
LIB_LIBS  := -ljansson -lpcre2-8 -lxxhash -lpthread -lm
ALL_LIBS  := -lutf8proc -lsodium -lmicrohttpd -ledit $(LIB_LIBS)

MAIN_SRC := $(filter-out src/main/main.c,$(wildcard src/main/*.c))
# What gyre.h promises is libgyre; text and what serves stand in front of it.
LIB_SRC   := $(wildcard src/base/*.c src/core/*.c src/file/*.c src/model/*.c src/backend/cpu/*.c src/backend/toy/*.c src/sched/*.c \
                        src/grammar/*.c src/dist/*.c src/engine/*.c)
FRONT_SRC := $(wildcard src/text/*.c src/http/*.c src/api/*.c)
TEST_SRC  := $(wildcard tests/test_*.c)
TEST_LIB  := $(filter-out $(TEST_SRC),$(wildcard tests/*.c))
FUZZ_SRC  := $(wildcard tests/fuzz/fuzz_*.c)
BENCH_SRC := $(wildcard bench/*.c)

PAGE_SRC  := $(wildcard src/api/page/*)

obj     = $(patsubst %.c,$(BUILD)/%.o,$(1))
TESTS   := $(patsubst %.c,$(BUILD)/%,$(TEST_SRC))
FUZZERS := $(patsubst tests/fuzz/%.c,$(BUILD)/%,$(FUZZ_SRC))
BENCHES := $(patsubst %.c,$(BUILD)/%,$(BENCH_SRC))
OBJECTS := $(call obj,$(LIB_SRC) $(FRONT_SRC) $(MAIN_SRC) src/main/main.c $(TEST_SRC) $(TEST_LIB) $(FUZZ_SRC) $(BENCH_SRC)) $(BUILD)/page.o
LIBS    := $(BUILD)/libmain.a $(BUILD)/libfront.a $(BUILD)/libgyre.a

# Large text fixtures are committed packed.
DATA := $(patsubst tests/data/%.xz,build/data/%,$(shell find tests/data -name '*.xz' 2>/dev/null))

# Use every processor, unless the caller said how many jobs.
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc)
endif
ifndef V
QUIET = @echo "  $(1)  $@";
endif

.DELETE_ON_ERROR:
.SECONDARY: $(OBJECTS)
.PHONY: all run test test-parity test-binaries cuda cuda-tests ptx rooms explain asan ubsan tsan fuzz fuzz-binaries soak bench format clean install FORCE
all: build/gyre

# ---- set-up -----------------------------------------------------------------------------------------------------
# Each level asks for more packages. They form a chain, as apt cannot run twice at once.
build/.setup-%: tools/setup.sh
	@tools/setup.sh $*
	@mkdir -p build && touch $@
build/.setup-test: | build/.setup-build
build/.setup-dev: | build/.setup-test

# ---- build ------------------------------------------------------------------------------------------------------
# A file's name says which processor it is for; everything else is compiled for the plain architecture.
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine 2>/dev/null || uname -m)),)
$(BUILD)/%_avx2.o:   CFLAGS += -mavx2 -mfma -mf16c
$(BUILD)/%_avx512.o: CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
$(BUILD)/%_amx.o:    CFLAGS += -mamx-tile -mamx-bf16 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
endif
# Unrolled vector code takes a sanitizer minutes to compile and shows it little: these kernels get their bounds from callers
# that are instrumented, and the op tests hold them to the reference functions.
$(BUILD)/src/backend/cpu/kernels_%.o: override SAN :=
$(BUILD)/src/main/version.o $(BUILD)/src/main/manual.o $(BUILD)/src/main/serve.o $(BUILD)/src/main/backends.o: CPPFLAGS += -DGYRE_VERSION='"$(VERSION)"'
$(BUILD)/src/main/version.o $(BUILD)/src/main/manual.o $(BUILD)/src/main/serve.o: Makefile
# What crosses the border to libgyre-cuda.so (src/core/plugin.h): other text is another interface.
INTERFACE = $(shell cat $$($(CC) -Isrc -Iinclude -MM -x c src/core/plugin.h | tr ' ' '\n' | grep '^src/' | sort) | cksum | cut -d' ' -f1)
$(BUILD)/src/main/backends.o: CPPFLAGS += -DGYRE_INTERFACE=$(INTERFACE)u

# The description of the API is in the program as it is.
$(BUILD)/src/api/openapi.o: src/api/openapi.json

# Other flags are other objects: this file changes only when the command line of the compiler does.
FLAGS := $(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)
$(BUILD)/.flags: FORCE
	@mkdir -p $(@D) && echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' > $@

$(BUILD)/%.o: %.c $(BUILD)/.flags | build/.setup-build
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

# The chat page is HTML, and bytes in the program.
$(BUILD)/page.c: tools/page.sh $(PAGE_SRC)
	@mkdir -p $(@D)
	$(call QUIET,page)tools/page.sh src/api/page $@
$(BUILD)/page.o: $(BUILD)/page.c $(BUILD)/.flags | build/.setup-build
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/libgyre.a: $(call obj,$(LIB_SRC))
$(BUILD)/libfront.a: $(call obj,$(FRONT_SRC)) $(BUILD)/page.o
$(BUILD)/libmain.a: $(call obj,$(MAIN_SRC))
%.a:
	@rm -f $@
	$(call QUIET,ar)$(AR) rcs $@ $^

$(BUILD)/gyre: $(call obj,src/main/main.c) $(LIBS)
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $^ $(ALL_LIBS)

build/gyre: $(BUILD)/gyre FORCE
	@ln -sfn $(VARIANT)/gyre $@

run: build/gyre
	build/gyre run models/story --chat -p "Tell me a story about dog and ball." -n 300 --temperature 0.4 --top-p 0.9 \
	    --repetition-penalty 1.05 --seed 13

explain: build/gyre
	build/gyre explain models/story

# ---- tests ------------------------------------------------------------------------------------------------------
$(call obj,$(TEST_SRC) $(TEST_LIB)): | build/.setup-test

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(call obj,$(TEST_LIB)) $(LIBS) | build/.setup-test
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(ALL_LIBS)

build/data/%: tests/data/%.xz | build/.setup-test
	@mkdir -p $(@D)
	$(call QUIET,xz)xz -dc $< > $@

test-binaries: $(TESTS) $(BUILD)/gyre $(DATA) $(if $(filter build/release,$(BUILD)),$(if $(wildcard build/ptx/libgyre-cuda.so),ptx))

test: test-binaries
	@BUILD=$(BUILD) tests/run.sh

BACKEND ?= cpu
test-parity: $(BUILD)/tests/test_parity $(if $(filter cuda,$(BACKEND)),cuda)
	GYRE_TEST_BACKEND=$(BACKEND) GYRE_PLUGINS=$(BUILD) $<

SANITIZED = CC=clang OPT="-O1 -g -fno-omit-frame-pointer" TEST_TIMEOUT=1200
asan: build/.setup-dev
	@$(MAKE) --no-print-directory test VARIANT=asan $(SANITIZED) SAN="-fsanitize=address"
ubsan: build/.setup-dev
	@$(MAKE) --no-print-directory test VARIANT=ubsan $(SANITIZED) SAN="-fsanitize=undefined -fno-sanitize-recover=all"
tsan: build/.setup-dev
	@$(MAKE) --no-print-directory test VARIANT=tsan $(SANITIZED) SAN="-fsanitize=thread"
export TEST_TIMEOUT

SOAK_SECONDS ?= 600
soak: $(BUILD)/gyre
	@GYRE=$(BUILD)/gyre PYTHONDONTWRITEBYTECODE=1 python3 tests/cli/soak.py --seconds $(SOAK_SECONDS)

FUZZ_SECONDS ?= 60
FUZZ ?= *
fuzz: build/.setup-dev
	@$(MAKE) --no-print-directory fuzz-binaries VARIANT=fuzz CC=clang OPT="-O1 -g -fno-omit-frame-pointer" \
	    SAN="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all"
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tests/fuzz/run.sh build/fuzz '$(FUZZ)'
fuzz-binaries: $(FUZZERS)
$(FUZZERS): $(BUILD)/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(LIBS)
	$(call QUIET,ld)$(CC) -fsanitize=fuzzer,address,undefined -o $@ $^ $(ALL_LIBS)

# ---- GPU --------------------------------------------------------------------------------------------------------
# Tests of the CUDA backend run on a machine with a Hopper GPU: build/cuda/test_ops and its like, with GYRE_TEST_BACKEND=cuda.
NVCC      ?= nvcc
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC))))
CUDA_SRC  := $(wildcard src/backend/cuda/*.c)
CUDA_CODE := $(patsubst src/%.cu,build/cuda/%.cu.o,$(wildcard src/backend/cuda/*.cu))
CUDA_OBJ  := $(patsubst src/%.c,build/cuda/%.o,$(CUDA_SRC)) $(CUDA_CODE) build/cuda/kernels.o
KERNEL_HEADERS := $(addprefix src/backend/cuda/,kernels.h near.h sides.h)
# The launch functions of the runtime are watched by src/backend/cuda/faults.c.
CUDA_WRAP := -Wl,--wrap=cudaLaunchKernelExC,--wrap=__cudaLaunchKernel
CUDA_LIBS := $(CUDA_WRAP) -L$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -lstdc++ -ldl -lrt
CUDA_TESTS := $(patsubst tests/%.c,build/cuda/%,$(wildcard tests/test_ops*.c) $(addprefix tests/test_,goldens.c overlap.c sample_rows.c))

build/cuda/%.o: src/%.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) -I$(CUDA_HOME)/include -c -o $@ $<
build/cuda/%.cu.o: src/%.cu $(KERNEL_HEADERS) $(wildcard src/backend/cuda/*.cuh)
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -Xcompiler -fPIC -c -o $@ $<
build/cuda/kernels.c: tools/kernels.py $(CUDA_CODE)
	$(call QUIET,list)tools/kernels.py $@ $(CUDA_CODE)
build/cuda/kernels.o: build/cuda/kernels.c
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<
$(CUDA_TESTS): build/cuda/%: $(BUILD)/tests/%.o $(BUILD)/tests/op_rig.o $(CUDA_OBJ) $(LIBS)
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $^ -Wl,--as-needed -lcmocka $(ALL_LIBS) $(CUDA_LIBS)
# Tests of kernels alone, and programs that time them.
CUDA_UNITS := $(patsubst tests/cuda/%.c,build/cuda/%,$(wildcard tests/cuda/test_*.c))
build/cuda/libbackend.a: $(CUDA_OBJ)
$(CUDA_UNITS): build/cuda/%: build/cuda/tests/%.o build/cuda/libbackend.a $(LIBS)
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $< $(WHOLE) build/cuda/libbackend.a -Wl,--no-whole-archive $(LIBS) -Wl,--as-needed -lcmocka -lm \
	    $(ALL_LIBS) $(CUDA_LIBS)
# Those with a whole backend hold all of its kernels, as the list of them says.
build/cuda/test_nodes build/cuda/test_cache build/cuda/test_faults build/cuda/test_screened_steps: WHOLE := -Wl,--whole-archive
build/cuda/linear: bench/cuda/linear.cu bench/cuda/products.cuh build/cuda/backend/cuda/stream.cu.o
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $< $(filter %.o,$^) -lcublasLt
build/cuda/tests/%.o: tests/cuda/%.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) -Itests -I$(CUDA_HOME)/include -c -o $@ $<
# Products alone, against double precision; in build/racecheck as racecheck has them.
PRODUCT_TESTS := $(addprefix build/cuda/test_,tiles wide split large)
$(PRODUCT_TESTS) $(PRODUCT_TESTS:build/cuda/%=build/racecheck/%): build/%: $(wildcard tests/cuda/*.cuh) $(KERNEL_HEADERS) src/backend/cuda/near.cu $(wildcard src/backend/cuda/*.cuh)
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(NVCC) -O3 $(if $(findstring racecheck,$@),-DGYRE_RACECHECK) -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ \
	    tests/cuda/$(@F).cu src/backend/cuda/near.cu
$(foreach t,tiles wide split large,$(eval build/cuda/test_$(t) build/racecheck/test_$(t): tests/cuda/test_$(t).cu src/backend/cuda/$(t).cu))
build/cuda/test_place: tests/cuda/test_place.cu tests/cuda/products.cuh src/backend/cuda/place.cu src/backend/cuda/kernels.h src/backend/cuda/device.cuh
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $<
build/cuda/test_sides: tests/cuda/test_sides.cu tests/cuda/products.cuh $(addprefix src/backend/cuda/,sides.cu near.cu sides.h near.h kernels.h device.cuh)
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $<
build/cuda/test_quantise: tests/cuda/test_quantise.cu tests/cuda/products.cuh tests/cuda/rows_of_sizes.cuh src/backend/cuda/quantise.cu src/backend/cuda/kernels.h $(wildcard src/backend/cuda/*.cuh)
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $<
build/cuda/test_screen: tests/cuda/test_screen.cu tests/cuda/products.cuh src/backend/cuda/screen.cu src/backend/cuda/kernels.h $(wildcard src/backend/cuda/*.cuh) build/cuda/backend/cuda/head.cu.o build/cuda/backend/cuda/sample.cu.o
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $< $(filter %.o,$^)
build/cuda/bench_wide: bench/cuda/wide.cu bench/cuda/products.cuh src/backend/cuda/wide.cu src/backend/cuda/near.cu $(KERNEL_HEADERS) $(wildcard src/backend/cuda/*.cuh)
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $< src/backend/cuda/near.cu -lcublasLt
build/cuda/bench_large: bench/cuda/large.cu bench/cuda/products.cuh src/backend/cuda/large.cu src/backend/cuda/kernels.h $(wildcard src/backend/cuda/*.cuh)
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $< -lcublasLt
build/cuda/bench_library: bench/cuda/library.cu bench/cuda/products.cuh bench/cuda/graph_time.cuh src/backend/cuda/kernels.h
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $< -lcublasLt
build/cuda/bench_head: bench/cuda/head.cu bench/cuda/products.cuh src/backend/cuda/head.cu src/backend/cuda/kernels.h $(wildcard src/backend/cuda/*.cuh)
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $< -lcublasLt
build/cuda/bench_sample: bench/cuda/sample.cu bench/cuda/graph_time.cuh src/backend/cuda/sample.cu src/backend/cuda/kernels.h $(wildcard src/backend/cuda/*.cuh)
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $<
build/cuda/bench_screen: bench/cuda/screen.cu bench/cuda/graph_time.cuh src/backend/cuda/screen.cu src/backend/cuda/kernels.h $(wildcard src/backend/cuda/*.cuh) build/cuda/backend/cuda/head.cu.o build/cuda/backend/cuda/sample.cu.o build/cuda/backend/cuda/sides.cu.o
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $< $(filter %.o,$^) -lcublasLt
build/cuda/bench_tiles: bench/cuda/tiles.cu bench/cuda/products.cuh src/backend/cuda/tiles.cu src/backend/cuda/kernels.h build/cuda/backend/cuda/norm.cu.o build/cuda/backend/cuda/quantise.cu.o
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $< $(filter %.o,$^) -lcublasLt
cuda-tests: $(CUDA_TESTS) $(CUDA_UNITS) build/cuda/bench_attention build/cuda/linear $(PRODUCT_TESTS) build/cuda/test_place build/cuda/test_sides build/cuda/test_quantise build/cuda/test_screen build/cuda/bench_tiles build/cuda/bench_wide build/cuda/bench_large build/cuda/bench_library build/cuda/bench_head build/cuda/bench_screen build/cuda/bench_sample build/cuda/libtimeline.so
build/cuda/bench_nodes: bench/cuda/nodes.cu $(CUDA_OBJ)
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o $@ $< \
	    build/cuda/backend/cuda/elementwise.cu.o build/cuda/backend/cuda/quantise.cu.o
# Kernels alone, checked and timed; bench/cuda says how.
build/cuda/bench_attention: bench/cuda/attention.cu $(patsubst %,build/cuda/backend/cuda/%.cu.o,attention attention_parts attention_decode attention_decode_bytes attention_decode_warps attention_prefill attention_prefill_halves qkv_prep)
	$(call QUIET,nvcc)$(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -cudart static -o $@ $^
# Beside a program of ours: when each kernel ran, by CUPTI, which it loads itself.
build/cuda/libtimeline.so: bench/cuda/timeline.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) -I$(CUDA_HOME)/include -shared -o $@ $< -ldl -lpthread
build/cuda/backend/cuda/plugin.o: CPPFLAGS += -DGYRE_VERSION='"$(VERSION)"' -DGYRE_INTERFACE=$(INTERFACE)u

# The kernels and what they need of core and base; all but gyre_plugin stays inside.
$(BUILD)/libgyre-cuda.so: $(CUDA_OBJ) $(BUILD)/libgyre.a tools/plugin.map
	$(call QUIET,ld)$(CC) $(LDFLAGS) -shared -Wl,--version-script=tools/plugin.map -Wl,--as-needed -Wl,--no-undefined \
	    -Wl,-rpath,$(CUDA_HOME)/lib64 -o $@ $(CUDA_OBJ) $(BUILD)/libgyre.a $(CUDA_LIBS) $(LIB_LIBS)
cuda: $(BUILD)/libgyre-cuda.so $(BUILD)/gyre

# The same for compute-sanitizer's racecheck: kernels in which every lane arrives where a warp does (bulk.cuh).
RACE_CODE := $(patsubst src/%.cu,build/racecheck/%.cu.o,$(shell grep -lE 'GYRE_RACECHECK|WARP_ARRIVALS|barrier_arrive_warp|include "backend/cuda/(act|decode|prefill|screen|stream|tiles|wide)_' src/backend/cuda/*.cu))
RACE_OBJ  := $(filter-out $(patsubst build/racecheck/%,build/cuda/%,$(RACE_CODE)) build/cuda/kernels.o,$(CUDA_OBJ)) $(RACE_CODE)
build/racecheck/%.cu.o: src/%.cu $(KERNEL_HEADERS) $(wildcard src/backend/cuda/*.cuh)
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(NVCC) -O3 -DGYRE_RACECHECK -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -Xcompiler -fPIC -c -o $@ $<
build/racecheck/kernels.c: tools/kernels.py $(RACE_OBJ)
	$(call QUIET,list)tools/kernels.py $@ $(filter %.cu.o,$(RACE_OBJ))
build/racecheck/kernels.o: build/racecheck/kernels.c
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<
build/racecheck/libgyre-cuda.so: $(RACE_OBJ) build/racecheck/kernels.o $(BUILD)/libgyre.a tools/plugin.map
	$(call QUIET,ld)$(CC) $(LDFLAGS) -shared -Wl,--version-script=tools/plugin.map -Wl,--as-needed -Wl,--no-undefined \
	    -Wl,-rpath,$(CUDA_HOME)/lib64 -o $@ $(RACE_OBJ) build/racecheck/kernels.o $(BUILD)/libgyre.a $(CUDA_LIBS) $(LIB_LIBS)

# ---- GPU code without a GPU ---------------------------------------------------------------------------------------
# The same programs on a machine on the CPU that runs their kernels from PTX: tests/ptx/machine.h. ptxas has no part in it.
PTX_TESTS := $(addprefix build/ptx/test_,machine matrices copies wide split large tiles quantise place sides screen stream graphs nodes)
PTX_CODE  := $(CUDA_CODE:build/cuda/%=build/ptx/%)
PTX_OBJ   := $(filter-out $(CUDA_CODE) build/cuda/kernels.o,$(CUDA_OBJ)) $(PTX_CODE) build/ptx/kernels.o
PTX_NVCC  := $(NVCC) -O3 -std=c++17 -gencode=arch=compute_90a,code=compute_90a --no-compress -Isrc -Iinclude -Xcompiler -fPIC
PTX_LIBS  := $(CUDA_WRAP) build/ptx/libmachine.a -lstdc++ -lpthread -ldl -lm
build/ptx/%.cu.o: src/%.cu $(KERNEL_HEADERS) $(wildcard src/backend/cuda/*.cuh)
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(PTX_NVCC) -c -o $@ $<
build/ptx/%.cu.o: tests/cuda/%.cu $(wildcard tests/cuda/*.cuh) $(KERNEL_HEADERS) $(wildcard src/backend/cuda/*.cu src/backend/cuda/*.cuh)
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(PTX_NVCC) -c -o $@ $<
build/ptx/kernels.c: tools/kernels.py $(PTX_CODE)
	$(call QUIET,list)tools/kernels.py --ptx $@ $(PTX_CODE)
build/ptx/kernels.o: build/ptx/kernels.c
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<
# Optimised as far as the compiler goes, since tests wait for it, and products and sums may be one operation.
build/ptx/%.o: tests/ptx/%.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) -std=gnu17 -O3 -march=x86-64-v3 -Wno-shadow -I$(CUDA_HOME)/include -c -o $@ $<
build/ptx/libmachine.a: $(patsubst tests/ptx/%.c,build/ptx/%.o,$(filter-out tests/ptx/test_%,$(wildcard tests/ptx/*.c)))
build/ptx/libbackend.a: $(PTX_OBJ)
$(addprefix build/ptx/test_,tiles wide split large): build/ptx/backend/cuda/near.cu.o
build/ptx/test_screen: build/ptx/backend/cuda/head.cu.o build/ptx/backend/cuda/sample.cu.o
build/ptx/test_%: build/ptx/test_%.cu.o build/ptx/libmachine.a
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $(filter %.cu.o,$^) build/ptx/libmachine.a -lstdc++ -lpthread -lm
build/ptx/test_machine build/ptx/test_copies: build/ptx/%: build/ptx/%.o build/ptx/libmachine.a
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka -lpthread -lm
build/ptx/test_matrices: build/ptx/test_matrices.o build/ptx/matrices.o
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka -lm
build/ptx/test_nodes build/ptx/test_cache build/ptx/test_graphs build/ptx/test_screened_steps: WHOLE := -Wl,--whole-archive
$(addprefix build/ptx/test_,stream graphs nodes cache screened_steps): build/ptx/%: build/cuda/tests/%.o build/ptx/libbackend.a build/ptx/libmachine.a $(LIBS)
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $< $(WHOLE) build/ptx/libbackend.a -Wl,--no-whole-archive $(LIBS) -lcmocka $(ALL_LIBS) $(PTX_LIBS)
build/ptx/libgyre-cuda.so: $(PTX_OBJ) build/ptx/libmachine.a $(BUILD)/libgyre.a tools/plugin.map
	$(call QUIET,ld)$(CC) $(LDFLAGS) -shared -Wl,--version-script=tools/plugin.map -Wl,--no-undefined -o $@ $(PTX_OBJ) $(BUILD)/libgyre.a $(PTX_LIBS) $(LIB_LIBS)
# The host side on a device that computes nothing (tests/cuda/dry), with what sanitizers see of it.
DRY_OBJ := $(patsubst src/%.c,build/ptx/dry/%.o,$(CUDA_SRC)) build/ptx/dry/device.o build/ptx/dry/test_dry.o
DRY_SAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined
build/ptx/dry/backend/cuda/plugin.o: CPPFLAGS += -DGYRE_VERSION='"$(VERSION)"' -DGYRE_INTERFACE=$(INTERFACE)u
build/ptx/dry/%.o: src/%.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) $(DRY_SAN) -I$(CUDA_HOME)/include -c -o $@ $<
build/ptx/dry/%.o: tests/cuda/dry/%.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) $(DRY_SAN) -Itests -I$(CUDA_HOME)/include -c -o $@ $<
build/ptx/dry/test_dry: $(DRY_OBJ) $(PTX_CODE) build/ptx/kernels.o $(LIBS)
	$(call QUIET,ld)$(CC) $(LDFLAGS) $(DRY_SAN) -o $@ $^ -Wl,--as-needed -lcmocka $(ALL_LIBS) $(CUDA_WRAP) -lstdc++ -ldl
ptx: $(PTX_TESTS) build/ptx/libgyre-cuda.so build/ptx/dry/test_dry

rooms:
	@tools/rooms.py

# ---- measuring --------------------------------------------------------------------------------------------------
$(BENCHES): $(BUILD)/%: $(BUILD)/%.o $(LIBS)
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $^ $(ALL_LIBS)

bench: $(BENCHES) $(BUILD)/gyre $(DATA)
	@BUILD=$(BUILD) bench/run.sh

# ---- installing -------------------------------------------------------------------------------------------------
# The libraries show the names of gyre.h and nothing else, so that our other names cannot meet those of a program.
$(BUILD)/libgyre.so: $(BUILD)/libgyre.a tools/gyre.map
	$(call QUIET,ld)$(CC) $(LDFLAGS) -shared -Wl,-soname,libgyre.so.0 -Wl,--version-script=tools/gyre.map -Wl,--no-undefined \
	    -o $@ -Wl,--whole-archive $< -Wl,--no-whole-archive $(LIB_LIBS)

$(BUILD)/install/libgyre.a: $(BUILD)/libgyre.a
	@mkdir -p $(@D) && rm -f $@
	@$(LD) -r -o $(@D)/gyre.o --whole-archive $<
	@objcopy --wildcard --keep-global-symbol='gyre_*' --keep-global-symbol=backend_cpu $(@D)/gyre.o
	$(call QUIET,ar)$(AR) rcs $@ $(@D)/gyre.o

install: $(BUILD)/gyre $(BUILD)/libgyre.so $(BUILD)/install/libgyre.a
	@tools/install.sh $(BUILD) "$(DESTDIR)" "$(PREFIX)" $(VERSION)

format:
	clang-format -i $(wildcard src/*/*.[ch] src/*/*/*.[ch] include/*.h bench/*.[ch] tests/*.[ch] tests/ptx/*.[ch] tests/fuzz/*.c)

clean:
	rm -rf build

-include $(OBJECTS:.o=.d) $(CUDA_OBJ:.o=.d) $(wildcard build/ptx/*.d) $(patsubst build/cuda/%,build/cuda/tests/%.d,$(CUDA_UNITS)) $(DRY_OBJ:.o=.d)
