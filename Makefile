# gyre - see README.md. `make run` and `make test` are the two commands; each installs what it lacks.
#
#   make                     build/gyre                  make V=1         shows the commands
#   make run                 the bundled model tells a story
#   make test                all tests; the last line is the summary
#   make test-fast           those for every commit: under a minute on two processors
#   make asan ubsan tsan     the same tests, built with clang's sanitizers
#   make fuzz [FUZZ=json] [FUZZ_SECONDS=600]             every target of tests/fuzz for that long
#   make soak [SOAK_SECONDS=600]                         mixed traffic, then hostile clients too: right answers, flat memory
#   make test-parity [BACKEND=cuda]                      every op of the dense test models against the CPU's plain functions
#   make test-arm            op tests and goldens as 64-bit Arm has them: elsewhere by a cross compiler and qemu-user
#   make ptx                 the kernels for GPUs on a machine on the CPU; make test runs them then: wants the CUDA toolkit, and no GPU
#   make bench               tables as docs/lab records them
#   make rooms               the include graph; fails on an edge that points up or sideways
#   make shape               fails on files, functions and lines that are too long
#   make explain             the program of the bundled model, one line an operation
#   make install [PREFIX=/usr/local] [DESTDIR=]          binary, library, headers, man page, completions
#   make wheel               the Python package, in build/release/wheel
#   make CC=clang            another compiler; each variant builds in a folder of its own

VERSION := $(shell sed -n 's/^\#define GYRE_VERSION "\(.*\)"/\1/p' include/gyre.h)
ifeq ($(origin CC),default)
CC      := gcc
endif
VARIANT ?= release$(patsubst %,-%,$(filter-out gcc,$(notdir $(CC))))
BUILD   := build/$(VARIANT)
OPT     ?= -O2 -g
SAN     ?=
PREFIX  ?= /usr/local

# What the compiler makes code for. One for Arm says it by its name, as it may not be installed yet.
ARCH := $(if $(filter aarch64-linux-gnu-%,$(notdir $(CC))),aarch64,$(shell $(CC) -dumpmachine 2>/dev/null || uname -m))

# A compiler for Arm on another processor: the libraries that it links lie in a folder of their own.
ifneq ($(filter aarch64-linux-gnu-%,$(notdir $(CC))),)
ifeq ($(filter aarch64,$(shell uname -m)),)
SYSROOT  := build/arm64
READY    := build/.setup-arm64
CPPFLAGS += --sysroot=$(SYSROOT)
LDFLAGS  += --sysroot=$(SYSROOT)
AR       := aarch64-linux-gnu-ar
LD       := aarch64-linux-gnu-ld
OBJCOPY  := aarch64-linux-gnu-objcopy
endif
endif
READY   ?= build/.setup-build
OBJCOPY ?= objcopy

# Position-independent for the shared library too; without interposition that costs nothing.
CPPFLAGS += -D_GNU_SOURCE -Isrc -Iinclude -MMD -MP
CFLAGS   += -std=c17 -Wall -Wextra -Wshadow -Wvla -Wno-missing-field-initializers -Werror -fPIC -fno-semantic-interposition $(OPT) $(SAN)
# src/main/model/fingerprint.c reads the build ID.
LDFLAGS  += -Wl,--build-id $(SAN)
LIB_LIBS  := -ljansson -lpcre2-8 -lutf8proc -lxxhash -lsodium -lpthread -lm
ALL_LIBS  := -lmicrohttpd -lz -ledit -lmd $(LIB_LIBS)

# The sources of rooms, with their sub-folders. What the headers in include/ promise is libgyre; what serves stands in front.
of_rooms   = $(foreach room,$(1),$(wildcard src/$(room)/*.c src/$(room)/*/*.c))
MAIN_SRC  := $(filter-out src/main/main.c,$(call of_rooms,client sizing hub console bench main))
LIB_SRC   := $(call of_rooms,base core file model backend/cpu backend/toy backend/ranks backend/xla sched grammar dist train engine jinja text lib quantize)
FRONT_SRC := $(call of_rooms,http api)
# Tests lie in folders by subject, and their programs side by side; those of the CUDA backend are build.mk's.
TEST_SRC  := $(filter-out tests/cuda/% tests/ptx/%,$(wildcard tests/*/test_*.c))
TEST_LIB  := $(wildcard tests/rig/*.c)
FUZZ_SRC  := $(wildcard tests/fuzz/fuzz_*.c)
BENCH_SRC := $(wildcard bench/*.c)

PAGE_SRC  := $(wildcard src/api/page/*)

obj     = $(patsubst %.c,$(BUILD)/%.o,$(1))
TESTS   := $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(TEST_SRC)))
FUZZERS := $(patsubst tests/fuzz/%.c,$(BUILD)/%,$(FUZZ_SRC))
BENCHES := $(patsubst %.c,$(BUILD)/%,$(BENCH_SRC))
OBJECTS := $(call obj,$(LIB_SRC) $(FRONT_SRC) $(MAIN_SRC) src/main/main.c $(TEST_SRC) $(TEST_LIB) $(FUZZ_SRC) $(BENCH_SRC)) $(BUILD)/page.o
LIBS    := $(BUILD)/libmain.a $(BUILD)/libfront.a $(BUILD)/libgyre.a

# Large text fixtures are committed packed.
DATA := $(patsubst %.tokens,%.tiktoken,$(patsubst tests/data/%.xz,build/data/%,$(shell find tests/data -name '*.xz' 2>/dev/null)))

# Use every processor, unless the caller said how many jobs.
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc)
endif
ifndef V
QUIET = @echo "  $(1)  $@";
endif

.DELETE_ON_ERROR:
.SECONDARY: $(OBJECTS)
.PHONY: all run test test-fast test-arm arm-binaries test-parity test-binaries test-objects cuda cuda-tests ptx ptx80 rooms shape explain asan ubsan tsan fuzz fuzz-binaries soak bench format clean install wheel FORCE
all: build/gyre

# ---- set-up -----------------------------------------------------------------------------------------------------
# Each level asks for more packages. They form a chain, as apt cannot run twice at once.
build/.setup-%: tools/setup.sh
	@tools/setup.sh $*
	@mkdir -p build && touch $@
build/.setup-test: | build/.setup-build
build/.setup-dev: | build/.setup-test
build/.setup-arm64: tools/sysroot.sh | build/.setup-test

# ---- build ------------------------------------------------------------------------------------------------------
# A file's name says which processor it is for; everything else is compiled for the plain architecture.
ifneq ($(filter x86_64%,$(ARCH)),)
$(BUILD)/%_avx2.o:   CFLAGS += -mavx2 -mfma -mf16c
$(BUILD)/%_avx512.o: CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
$(BUILD)/%_bf16.o:   CFLAGS += -mavx512bf16 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
$(BUILD)/%_vnni.o:   CFLAGS += -mavx512vnni -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
$(BUILD)/%_amx.o:    CFLAGS += -mamx-tile -mamx-bf16 -mamx-int8 -mgfni -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
endif
ifneq ($(filter aarch64%,$(ARCH)),)
$(BUILD)/%_dotprod.o: CFLAGS += -march=armv8.2-a+dotprod
endif
# Sums may be taken in another order there than written, which is the same in each run.
$(BUILD)/src/train/math/math_%.o: CFLAGS += -O3 -fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math -ffp-contract=fast
# Unrolled vector code takes a sanitizer minutes to compile and shows it little: these kernels get their bounds from callers
# that are instrumented, and the op tests hold them to the reference functions.
$(BUILD)/src/backend/cpu/kernels/kernels_%.o: override SAN :=
# Where variables live takes as long to find out there, and a profile needs lines alone.
$(BUILD)/src/backend/cpu/kernels/kernels_%.o: OPT := -O2 -g1
$(BUILD)/src/main/version.o $(BUILD)/src/main/flags/manual.o $(BUILD)/src/main/serve.o $(BUILD)/src/lib/backends.o: CPPFLAGS += -DGYRE_VERSION='"$(VERSION)"'
$(BUILD)/src/main/version.o $(BUILD)/src/main/flags/manual.o $(BUILD)/src/main/serve.o: Makefile
# What crosses the border to libgyre-cuda.so (src/core/plugin.h): other text is another interface.
INTERFACE = $(shell cat $$($(CC) -Isrc -Iinclude -MM -x c src/core/plugin.h | tr ' ' '\n' | grep '^src/' | LC_ALL=C sort) | cksum | cut -d' ' -f1)
$(BUILD)/src/lib/backends.o: CPPFLAGS += -DGYRE_INTERFACE=$(INTERFACE)u

# Which ops --device xla has: those that src/backend/xla/lower defines xla_NAME for.
XLA_LOWER := $(wildcard src/backend/xla/lower/*.c)
$(BUILD)/xla_ops.h: FORCE
	@mkdir -p $(@D)
	@sed -n 's/^void xla_\([a-z0-9_]*\)(struct lower \*c) {.*/LOWERED(\1)/p' $(XLA_LOWER) | LC_ALL=C sort | sed '1s/^/#define XLA_OPS /;$$!s/$$/ \\/' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(BUILD)/src/backend/xla/lower/lower.o: $(BUILD)/xla_ops.h
$(BUILD)/src/backend/xla/lower/lower.o: CPPFLAGS += -I$(BUILD)

# The description of the API is in the program as it is.
$(BUILD)/src/api/openapi.o: src/api/openapi.json

# Other flags are other objects: this file changes only when the command line of the compiler does.
FLAGS := $(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)
$(BUILD)/.flags: FORCE
	@mkdir -p $(@D) && echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' > $@

$(BUILD)/%.o: %.c $(BUILD)/.flags | $(READY)
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

# The chat page is HTML, and bytes in the program.
$(BUILD)/page.c: tools/page.sh $(PAGE_SRC)
	@mkdir -p $(@D)
	$(call QUIET,page)tools/page.sh src/api/page $@
$(BUILD)/page.o: $(BUILD)/page.c $(BUILD)/.flags | $(READY)
	$(call QUIET,cc)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/libgyre.a: $(call obj,$(LIB_SRC))
$(BUILD)/libfront.a: $(call obj,$(FRONT_SRC)) $(BUILD)/page.o
$(BUILD)/libmain.a: $(call obj,$(MAIN_SRC))
%.a:
	@rm -f $@
	$(call QUIET,ar)$(AR) rcs $@ $^

$(BUILD)/gyre: $(call obj,src/main/main.c) $(LIBS)
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $^ $(ALL_LIBS)

# Stays this machine's: another's is used where it was built.
build/gyre: $(BUILD)/gyre FORCE
	@$(if $(SYSROOT),echo "  arm  $<",ln -sfn $(VARIANT)/gyre $@)

run: build/gyre
	build/gyre run models/story --chat -p "Tell me a story about dog and ball." -n 300 --temperature 0.4 --top-p 0.9 \
	    --repetition-penalty 1.05 --seed 13

explain: build/gyre
	build/gyre explain models/story

# ---- tests ------------------------------------------------------------------------------------------------------
$(call obj,$(TEST_SRC) $(TEST_LIB)): CPPFLAGS += -Itests/rig
$(call obj,$(TEST_SRC) $(TEST_LIB)): | build/.setup-test

$(foreach t,$(TEST_SRC),$(eval $(BUILD)/tests/$(basename $(notdir $(t))): $(call obj,$(t))))
$(TESTS): $(call obj,$(TEST_LIB)) $(LIBS) | build/.setup-test
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LIBS) -lcmocka $(ALL_LIBS)

build/data/%: tests/data/%.xz | build/.setup-test
	@mkdir -p $(@D)
	$(call QUIET,xz)xz -dc $< > $@
build/data/%.tiktoken: tests/data/%.tokens.xz tools/fixtures/tiktoken.py | build/.setup-test
	@mkdir -p $(@D)
	$(call QUIET,unpack)tools/fixtures/tiktoken.py unpack $< > $@

# Makes calls of the C library fail; sanitizers have an allocator of their own.
$(BUILD)/libinject.so: tests/inject/inject.c
	@mkdir -p $(@D)
	$(call QUIET,ld)$(CC) -std=c17 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror -fPIC -shared -o $@ $< -ldl

test-binaries: $(TESTS) $(BUILD)/gyre $(BUILD)/libinject.so $(DATA) $(if $(filter build/release,$(BUILD)),$(if $(wildcard build/ptx/libgyre-cuda.so),ptx))

test-objects: $(call obj,$(TEST_SRC) $(TEST_LIB)) # that they compile

test: test-binaries
	@BUILD=$(BUILD) tests/run.sh

test-fast: test-binaries
	@BUILD=$(BUILD) tests/run.sh --fast

BACKEND ?= cpu
test-parity: $(BUILD)/tests/test_parity $(if $(filter cuda,$(BACKEND)),cuda)
	GYRE_TEST_BACKEND=$(BACKEND) GYRE_PLUGINS=$(BUILD) $<

ARM_TESTS := $(basename $(notdir $(wildcard tests/ops/test_ops*.c))) test_goldens test_kernels test_block_products test_blocks test_quant test_dtype
test-arm:
	@$(MAKE) --no-print-directory arm-binaries CC=aarch64-linux-gnu-gcc
	@tests/arm.sh build/release-aarch64-linux-gnu-gcc $(ARM_TESTS)
arm-binaries: $(BUILD)/gyre $(ARM_TESTS:%=$(BUILD)/tests/%)

SANITIZED = CC=clang OPT="-O1 -g -fno-omit-frame-pointer" TEST_TIMEOUT=2400
asan: build/.setup-dev
	@$(MAKE) --no-print-directory test VARIANT=asan $(SANITIZED) SAN="-fsanitize=address"
ubsan: build/.setup-dev
	@$(MAKE) --no-print-directory test VARIANT=ubsan $(SANITIZED) SAN="-fsanitize=undefined -fno-sanitize-recover=all"
tsan: build/.setup-dev
	@$(MAKE) --no-print-directory test VARIANT=tsan $(SANITIZED) SAN="-fsanitize=thread"
export TEST_TIMEOUT

SOAK_SECONDS ?= 600
soak: $(BUILD)/gyre
	@GYRE=$(BUILD)/gyre PYTHONDONTWRITEBYTECODE=1 python3 tests/cli/rig/soak.py --seconds $(SOAK_SECONDS)

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
include src/backend/cuda/build.mk

rooms:
	@tools/rooms.py

shape:
	@tools/shape.py

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
	@$(OBJCOPY) --wildcard --keep-global-symbol='gyre_*' --keep-global-symbol=backend_cpu $(@D)/gyre.o
	$(call QUIET,ar)$(AR) rcs $@ $(@D)/gyre.o

# The Python package of bindings/python, with the library inside.
wheel: $(BUILD)/libgyre.so
	@tools/wheel.sh $(BUILD) $(VERSION)

install: $(BUILD)/gyre $(BUILD)/libgyre.so $(BUILD)/install/libgyre.a
	@tools/install.sh $(BUILD) "$(DESTDIR)" "$(PREFIX)" $(VERSION)

format:
	clang-format -i $(wildcard src/*/*.[ch] src/*/*/*.[ch] src/*/*/*/*.[ch] src/*/*/*/*/*.[ch] include/*.h bench/*.[ch]) $(TEST_SRC) $(wildcard tests/rig/*.[ch] tests/ops/*.h tests/ptx/*.[ch] tests/ptx/parts/*.h tests/fuzz/*.c tests/inject/*.c)

clean:
	rm -rf build

-include $(OBJECTS:.o=.d)
