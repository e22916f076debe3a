# gyre - see README.md. `make` builds build/gyre; `make run` and `make test` are the two commands.
#
# Variants build into folders of their own: make CC=clang, make asan, make ubsan, make tsan.

CC      ?= gcc
ifeq ($(origin CC),default)
CC      := gcc
endif
VARIANT ?= release
BUILD   := build/$(VARIANT)
OPT     ?= -O2 -g
SAN     ?=
CPPFLAGS += -D_GNU_SOURCE -Isrc -Iinclude -I$(BUILD) -MMD -MP
CFLAGS  += -std=c17 -Wall -Wextra -Wshadow -Wvla -Wno-missing-field-initializers -Werror $(OPT) $(SAN)
LDFLAGS += $(SAN)
LDLIBS  += -ljansson -lpcre2-8 -lutf8proc -lxxhash -ledit -lpthread -lm

MAIN_SRC := $(filter-out src/main/main.c,$(wildcard src/main/*.c))
LIB_SRC  := $(wildcard src/base/*.c src/core/*.c src/file/*.c src/model/*.c src/backend/cpu/*.c src/sched/*.c \
                       src/grammar/*.c src/engine/*.c src/text/*.c src/http/*.c src/api/*.c)
TEST_SRC := $(wildcard tests/test_*.c)
TEST_LIB := $(filter-out $(TEST_SRC),$(wildcard tests/*.c))
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)

obj = $(patsubst %.c,$(BUILD)/%.o,$(1))
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(TEST_SRC))

.SECONDARY:
.PHONY: all run test rooms explain asan ubsan tsan fuzz bench format clean install setup test-binaries
all: build/gyre

# A file's name says which processor it is for; everything else is compiled for the plain architecture.
ifeq ($(shell uname -m),x86_64)
$(BUILD)/%_avx2.o:   CFLAGS += -mavx2 -mfma -mf16c
$(BUILD)/%_avx512.o: CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
endif

build/.setup-%: tools/setup.sh
	@tools/setup.sh $*
	@mkdir -p build && touch $@

$(BUILD)/%.o: %.c | build/.setup-build
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/libgyre.a: $(call obj,$(LIB_SRC))
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/libmain.a: $(call obj,$(MAIN_SRC))
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/gyre: $(call obj,src/main/main.c) $(BUILD)/libmain.a $(BUILD)/libgyre.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

build/gyre: $(BUILD)/gyre
	@ln -sf $(VARIANT)/gyre $@

run: build/gyre
	build/gyre run models/story --chat -p "Tell me a story about a little fox." -n 300 --temperature 0.7 --seed 7

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(call obj,$(TEST_LIB)) $(BUILD)/libmain.a $(BUILD)/libgyre.a | build/.setup-test
	$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

test-binaries: build/.setup-test $(TESTS) build/gyre

test: build/.setup-test
	@$(MAKE) --no-print-directory -j$$(nproc) test-binaries
	@BUILD=$(BUILD) tests/run.sh

asan:
	@$(MAKE) test VARIANT=asan CC=clang OPT="-O1 -g" SAN="-fsanitize=address,leak -fno-omit-frame-pointer"
ubsan:
	@$(MAKE) test VARIANT=ubsan CC=clang OPT="-O1 -g" SAN="-fsanitize=undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
tsan:
	@$(MAKE) test VARIANT=tsan CC=clang OPT="-O1 -g" SAN="-fsanitize=thread -fno-omit-frame-pointer"

# make fuzz [FUZZ_SECONDS=600] [FUZZ=json]: every target of tests/fuzz for that long.
FUZZ_SECONDS ?= 60
FUZZ ?= *
fuzz:
	@$(MAKE) --no-print-directory VARIANT=fuzz CC=clang OPT="-O1 -g" SAN="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all" \
	    fuzz-binaries
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tests/fuzz/run.sh build/fuzz '$(FUZZ)'
fuzz-binaries: build/.setup-dev $(patsubst tests/fuzz/%.c,$(BUILD)/%,$(FUZZ_SRC))
$(BUILD)/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/libgyre.a
	$(CC) -fsanitize=fuzzer,address,undefined -o $@ $^ $(LDLIBS)

rooms:
	@tools/rooms.py

explain: build/gyre
	build/gyre explain models/story

format:
	clang-format -i $(wildcard src/*/*.[ch] src/*/*/*.[ch] include/*.h tests/*.[ch] tests/fuzz/*.c)

clean:
	rm -rf build

-include $(shell find build/$(VARIANT) -name '*.d' 2>/dev/null)
