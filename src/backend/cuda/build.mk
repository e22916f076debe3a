# build.mk - the CUDA backend: its library, its tests and its benches, and the same kernels from PTX on the CPU.
#
# Part of the Makefile. Kernels of HOPPER_CU use Hopper's instructions and are compiled for sm_90a alone, all others for
# each of ARCHS: make cuda ARCHS="80 89 90a 100". nvcc writes what each depends on beside the object. Tests of the
# backend run on a machine with a Hopper GPU: tests/ops and its like with GYRE_TEST_BACKEND=cuda, and those of
# tests/cuda (tools/gpu.sh).
ARCHS     ?= 90a
HOPPER_CU := attention_decode% attention_prefill% argmax_filter latent_% lm_head gemm_fp8_% gemv gemv_once l2_copy \
             l2_topology moe_kernels_% moe_list moe_router moe_stream delta_% gemm_w4%
NVCC      ?= nvcc
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC))))
CUDA_SRC  := $(wildcard src/backend/cuda/*.c src/backend/cuda/*/*.c src/backend/cuda/*/*/*.c)
CUDA_CU   := $(wildcard src/backend/cuda/*.cu src/backend/cuda/*/*.cu src/backend/cuda/*/*/*.cu)
CUDA_CODE := $(patsubst src/%.cu,build/cuda/%.cu.o,$(CUDA_CU))
CUDA_OBJ  := $(patsubst src/%.c,build/cuda/%.o,$(CUDA_SRC)) $(CUDA_CODE) build/cuda/kernels.o
# A library of the backend: all but gyre_plugin stays inside.
PLUGIN     = -shared -Wl,--version-script=tools/plugin.map -Wl,--no-undefined
# Every object of an archive that follows, called for or not; what comes after is linked as usual.
WHOLE_ARCHIVE := -Wl,--whole-archive
NO_MORE       := -Wl,--no-whole-archive
# The launch functions of the runtime are watched by src/backend/cuda/device/faults.c.
CUDA_WRAP := -Wl,--wrap=cudaLaunchKernelExC,--wrap=__cudaLaunchKernel
CUDA_LIBS := $(CUDA_WRAP) -L$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -lstdc++ -ldl -lrt
CUDA_CC    = $(CC) $(CPPFLAGS) $(CFLAGS) -Itests/rig -I$(CUDA_HOME)/include
NVCC_FLAGS := -O3 -std=c++17 -Isrc -Iinclude
SM90      := -gencode=arch=compute_90a,code=sm_90a
# Of an object, by its kernel's name.
archs_of   = $(if $(filter $(HOPPER_CU),$(notdir $(1:.cu.o=))),90a,$(ARCHS))
gencodes   = $(foreach a,$(call archs_of,$(1)),-gencode=arch=compute_$(a),code=sm_$(a))
SM90_PTX  := -gencode=arch=compute_90a,code=compute_90a --no-compress
NVCC_CODE  = $(NVCC) $(NVCC_FLAGS) -Xcompiler -fPIC -MMD -MP -MF $(@:.o=.d) -c -o $@
NVCC_PROGRAM = $(NVCC) $(NVCC_FLAGS) $(SM90) -MMD -MP -MF $@.d -MT $@ -o $@
cu_objects = $(foreach n,$(1),$(filter %/$(n).cu.o,$(CUDA_CODE)))
cu_source  = $(filter %/$(1).cu,$(CUDA_CU))

# The ops that a .cu file brings whole (own_op.h).
build/cuda/cuda_ops.h: FORCE
	@mkdir -p $(@D)
	@sed -n 's/^CUDA_OP(\([a-z0-9_]*\)) {.*/OWN(\1)/p' $(CUDA_CU) | LC_ALL=C sort | \
	    sed '1s/^/#define CUDA_OPS /;$$!s/$$/ \\/' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
build/cuda/backend/cuda/step/lower.o build/ptx/dry/backend/cuda/step/lower.o: build/cuda/cuda_ops.h
build/cuda/backend/cuda/step/lower.o build/ptx/dry/backend/cuda/step/lower.o: CPPFLAGS += -Ibuild/cuda

build/cuda/%.o: src/%.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CUDA_CC) -c -o $@ $<
build/cuda/%.cu.o: src/%.cu build/cuda/archs
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(NVCC_CODE) $(call gencodes,$@) $<
# Written anew where ARCHS is another.
build/cuda/archs: FORCE
	@mkdir -p $(@D)
	@echo '$(ARCHS)' | cmp -s - $@ || echo '$(ARCHS)' >$@
build/cuda/kernels.c: tools/kernels.py $(CUDA_CODE)
	$(call QUIET,list)tools/kernels.py $@ $(CUDA_CODE)
build/cuda/kernels.o: build/cuda/kernels.c
	$(call QUIET,cc)$(CUDA_CC) -c -o $@ $<
build/cuda/backend/cuda/plugin.o: CPPFLAGS += -DGYRE_VERSION='"$(VERSION)"' -DGYRE_INTERFACE=$(INTERFACE)u

# The kernels and what they need of core and base.
$(BUILD)/libgyre-cuda.so: $(CUDA_OBJ) $(BUILD)/libgyre.a tools/plugin.map
	$(call QUIET,ld)$(CC) $(LDFLAGS) $(PLUGIN) -Wl,--as-needed -Wl,-rpath,$(CUDA_HOME)/lib64 -o $@ $(CUDA_OBJ) \
	    $(BUILD)/libgyre.a $(CUDA_LIBS) $(LIB_LIBS)
cuda: $(BUILD)/libgyre-cuda.so $(BUILD)/gyre

# ---- tests on a GPU ---------------------------------------------------------------------------------------------
# Host code over parts of the backend, or over all of it: those hold every kernel, as the list of them says.
CUDA_UNITS := $(patsubst tests/cuda/%.c,build/cuda/%,$(wildcard tests/cuda/test_*.c))
build/cuda/libbackend.a: $(CUDA_OBJ)
$(addprefix build/cuda/test_,nodes cache faults filtered_steps draft_steps two_devices): WHOLE := $(WHOLE_ARCHIVE)
$(CUDA_UNITS): build/cuda/%: build/cuda/tests/%.o build/cuda/libbackend.a $(LIBS)
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $< $(WHOLE) build/cuda/libbackend.a $(NO_MORE) $(LIBS) -Wl,--as-needed \
	    -lcmocka -lm $(ALL_LIBS) $(CUDA_LIBS)
build/cuda/tests/%.o: tests/cuda/%.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CUDA_CC) -c -o $@ $<
# WITH is what a program is linked with beside its source: $^ would hold what that includes too, as dependencies say.
# Kernels alone, against double precision; the test includes the .cu. In build/racecheck as racecheck has them.
GEMM_TESTS := $(addprefix build/cuda/test_gemm_fp8_,small_m gated split_k prefill)
KERNEL_TESTS  := $(GEMM_TESTS) $(addprefix build/cuda/test_,place place_blocks l2_topology quantise argmax_filter \
    gemm_w4 handed meeting moe)
MOE_OBJECTS   := moe_kernels_bf16 moe_kernels_f16 moe_kernels_quads moe_list moe_router moe moe_stream rows
$(GEMM_TESTS) $(GEMM_TESTS:build/cuda/%=build/racecheck/%): WITH := $(call cu_source,l2_copy)
build/cuda/test_argmax_filter: WITH := $(call cu_objects,lm_head sample)
build/cuda/test_moe: WITH := $(call cu_objects,$(MOE_OBJECTS))
$(KERNEL_TESTS): build/cuda/%: tests/cuda/%.cu $(CUDA_CODE)
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(NVCC_PROGRAM) $< $(WITH)
$(GEMM_TESTS:build/cuda/%=build/racecheck/%): build/racecheck/%: tests/cuda/%.cu
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(NVCC_PROGRAM) -DGYRE_RACECHECK $< $(WITH)

# Programs that time kernels alone; bench/cuda says how.
CUDA_BENCHES := $(addprefix build/cuda/bench_,gemm_fp8_gated gemm_fp8_prefill gemm_fp8_small_m gemm_w4 library \
    lm_head sample argmax_filter attention nodes linear moe meeting delta)
build/cuda/bench_gemm_fp8_gated: WITH := $(call cu_source,l2_copy)
build/cuda/bench_linear: WITH := $(call cu_objects,gemv)
build/cuda/bench_gemm_w4: WITH := $(call cu_objects,gemm_w4 gemm_w4_few gemm_w4_many)
build/cuda/bench_delta: WITH := $(call cu_objects,delta_decode delta_chunk_inputs delta_chunk_parts delta_chunk_scan \
    delta_norm)
build/cuda/bench_meeting: WITH := $(call cu_objects,norm)
build/cuda/bench_moe: WITH := $(call cu_objects,$(MOE_OBJECTS))
build/cuda/bench_argmax_filter: WITH := $(call cu_objects,lm_head sample l2_topology)
build/cuda/bench_gemm_fp8_small_m: WITH := $(call cu_objects,norm quantise)
build/cuda/bench_nodes: WITH := $(call cu_objects,elementwise quantise)
build/cuda/bench_attention: WITH := $(call cu_objects,attention attention_parts attention_decode \
    attention_decode_bytes attention_decode_warps attention_prefill attention_prefill_halves qkv_prep)
$(CUDA_BENCHES): build/cuda/bench_%: bench/cuda/%.cu $(CUDA_CODE)
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(NVCC_PROGRAM) -cudart static $< $(WITH) -lcublasLt
# Beside a program of ours: when each kernel ran, by CUPTI, which it loads itself.
build/cuda/libtimeline.so: bench/cuda/timeline.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CUDA_CC) -shared -o $@ $< -ldl -lpthread
cuda-tests: $(CUDA_UNITS) $(KERNEL_TESTS)
cuda-benches: $(CUDA_BENCHES) build/cuda/libtimeline.so

# The library for compute-sanitizer's racecheck: kernels in which every lane arrives where a warp does (ptx/bulk.cuh).
RACE_PARTS := (act|decode|prefill|argmax_filter|gemv|gemm_fp8_(small_m|gated))_
RACE_CODE  := $(patsubst src/%.cu,build/racecheck/%.cu.o,$(shell grep -lE \
    'GYRE_RACECHECK|WARP_ARRIVALS|barrier_arrive_warp|include "backend/cuda/[a-z0-9_/]*/$(RACE_PARTS)' $(CUDA_CU)))
RACE_PLAIN := $(filter-out $(patsubst build/racecheck/%,build/cuda/%,$(RACE_CODE)) build/cuda/kernels.o,$(CUDA_OBJ))
RACE_OBJ   := $(RACE_PLAIN) $(RACE_CODE)
build/racecheck/%.cu.o: src/%.cu
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(NVCC_CODE) -DGYRE_RACECHECK $(SM90) $<
build/racecheck/kernels.c: tools/kernels.py $(RACE_OBJ)
	$(call QUIET,list)tools/kernels.py $@ $(filter %.cu.o,$(RACE_OBJ))
build/racecheck/kernels.o: build/racecheck/kernels.c
	$(call QUIET,cc)$(CUDA_CC) -c -o $@ $<
build/racecheck/libgyre-cuda.so: $(RACE_OBJ) build/racecheck/kernels.o $(BUILD)/libgyre.a tools/plugin.map
	$(call QUIET,ld)$(CC) $(LDFLAGS) $(PLUGIN) -Wl,--as-needed -Wl,-rpath,$(CUDA_HOME)/lib64 -o $@ $(RACE_OBJ) \
	    build/racecheck/kernels.o $(BUILD)/libgyre.a $(CUDA_LIBS) $(LIB_LIBS)

# ---- GPU code without a GPU -------------------------------------------------------------------------------------
# The same programs on a machine on the CPU that runs their kernels from PTX: tests/ptx/machine.h. ptxas has no part
# in it.
PTX_KERNEL_TESTS := $(patsubst build/cuda/%,build/ptx/%,$(KERNEL_TESTS))
PTX_UNITS := $(addprefix build/ptx/test_,gemv graphs nodes cache filtered_steps draft_steps two_devices)
PTX_TESTS := $(addprefix build/ptx/test_,machine matrices copies) $(PTX_KERNEL_TESTS) \
    $(filter-out %cache %filtered_steps,$(PTX_UNITS))
PTX_CODE  := $(CUDA_CODE:build/cuda/%=build/ptx/%)
PTX_OBJ   := $(filter-out $(CUDA_CODE) build/cuda/kernels.o,$(CUDA_OBJ)) $(PTX_CODE) build/ptx/kernels.o
PTX_LIBS  := $(CUDA_WRAP) build/ptx/libmachine.a -lstdc++ -lpthread -ldl -lm
build/ptx/%.cu.o: src/%.cu
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(NVCC_CODE) $(SM90_PTX) $<
build/ptx/%.cu.o: tests/cuda/%.cu
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(NVCC_CODE) $(SM90_PTX) $<
build/ptx/kernels.c: tools/kernels.py $(PTX_CODE)
	$(call QUIET,list)tools/kernels.py --ptx $@ $(PTX_CODE)
build/ptx/kernels.o: build/ptx/kernels.c
	$(call QUIET,cc)$(CUDA_CC) -c -o $@ $<
# Optimised as far as the compiler goes, since tests wait for it, and products and sums may be one operation.
build/ptx/%.o: tests/ptx/%.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CUDA_CC) -std=gnu17 -O3 -march=x86-64-v3 -Wno-shadow -c -o $@ $<
build/ptx/libmachine.a: $(patsubst tests/ptx/%.c,build/ptx/%.o,$(filter-out tests/ptx/test_%,$(wildcard tests/ptx/*.c)))
build/ptx/libbackend.a: $(PTX_OBJ)
ptx_objects = $(patsubst build/cuda/%,build/ptx/%,$(call cu_objects,$(1)))
$(patsubst build/cuda/%,build/ptx/%,$(GEMM_TESTS)): $(call ptx_objects,l2_copy)
build/ptx/test_argmax_filter: $(call ptx_objects,lm_head sample)
build/ptx/test_moe: $(call ptx_objects,$(MOE_OBJECTS))
$(PTX_KERNEL_TESTS): build/ptx/test_%: build/ptx/test_%.cu.o build/ptx/libmachine.a
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $(filter %.cu.o,$^) build/ptx/libmachine.a -lstdc++ -lpthread -lm
build/ptx/test_machine build/ptx/test_copies: build/ptx/%: build/ptx/%.o build/ptx/libmachine.a
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka -lpthread -lm
build/ptx/test_matrices: build/ptx/test_matrices.o build/ptx/matrices.o
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka -lm
$(filter-out %gemv,$(PTX_UNITS)): WHOLE := $(WHOLE_ARCHIVE)
$(PTX_UNITS): build/ptx/%: build/cuda/tests/%.o build/ptx/libbackend.a build/ptx/libmachine.a $(LIBS)
	$(call QUIET,ld)$(CC) $(LDFLAGS) -o $@ $< $(WHOLE) build/ptx/libbackend.a $(NO_MORE) $(LIBS) -lcmocka \
	    $(ALL_LIBS) $(PTX_LIBS)
build/ptx/libgyre-cuda.so: $(PTX_OBJ) build/ptx/libmachine.a $(BUILD)/libgyre.a tools/plugin.map
	$(call QUIET,ld)$(CC) $(LDFLAGS) $(PLUGIN) -o $@ $(PTX_OBJ) $(BUILD)/libgyre.a $(PTX_LIBS) $(LIB_LIBS)
# The same with plain kernels for sm_80, as a card before Hopper has them: make ptx80, then op tests with
# GYRE_TEST_BACKEND=cuda GYRE_PLUGINS=build/ptx80 GYRE_TEST_KERNELS=plain GYRE_PTX_CAPABILITY=89 (or 80, without FP8).
is_plain    = $(if $(filter $(HOPPER_CU),$(notdir $(1:.cu.o=))),,$(1))
PTX80_PLAIN := $(patsubst build/ptx/%,build/ptx80/%,$(foreach o,$(PTX_CODE),$(call is_plain,$(o))))
PTX80_CODE  := $(filter-out $(PTX80_PLAIN:build/ptx80/%=build/ptx/%),$(PTX_CODE)) $(PTX80_PLAIN)
PTX80_OBJ   := $(filter-out $(CUDA_CODE) build/cuda/kernels.o,$(CUDA_OBJ)) $(PTX80_CODE) build/ptx80/kernels.o
build/ptx80/%.cu.o: src/%.cu
	@mkdir -p $(@D)
	$(call QUIET,nvcc)$(NVCC_CODE) -gencode=arch=compute_80,code=compute_80 --no-compress $<
build/ptx80/kernels.c: tools/kernels.py $(PTX80_CODE)
	$(call QUIET,list)tools/kernels.py --ptx $@ $(PTX80_CODE)
build/ptx80/kernels.o: build/ptx80/kernels.c
	$(call QUIET,cc)$(CUDA_CC) -c -o $@ $<
build/ptx80/libgyre-cuda.so: $(PTX80_OBJ) build/ptx/libmachine.a $(BUILD)/libgyre.a tools/plugin.map
	$(call QUIET,ld)$(CC) $(LDFLAGS) $(PLUGIN) -o $@ $(PTX80_OBJ) $(BUILD)/libgyre.a $(PTX_LIBS) $(LIB_LIBS)
ptx80: build/ptx80/libgyre-cuda.so
# The host side on a device that computes nothing (tests/cuda/dry), with what sanitizers see of it.
DRY_OBJ := $(patsubst src/%.c,build/ptx/dry/%.o,$(CUDA_SRC)) build/ptx/dry/device.o
DRY_TESTS := build/ptx/dry/test_dry build/ptx/dry/test_warnings
DRY_SAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined
build/ptx/dry/backend/cuda/plugin.o: CPPFLAGS += -DGYRE_VERSION='"$(VERSION)"' -DGYRE_INTERFACE=$(INTERFACE)u
build/ptx/dry/%.o: src/%.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CUDA_CC) $(DRY_SAN) -c -o $@ $<
build/ptx/dry/%.o: tests/cuda/dry/%.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CUDA_CC) $(DRY_SAN) -c -o $@ $<
$(DRY_TESTS): %: %.o $(DRY_OBJ) $(PTX_CODE) build/ptx/kernels.o $(LIBS)
	$(call QUIET,ld)$(CC) $(LDFLAGS) $(DRY_SAN) -o $@ $^ -Wl,--as-needed -lcmocka $(ALL_LIBS) $(CUDA_WRAP) \
	    -lstdc++ -ldl
DRY_QUADS := $(addprefix build/ptx/dry/,test_quads.o backend/cuda/weights/quads.o backend/cuda/linear/fuse.o)
build/ptx/dry/test_quads: $(DRY_QUADS) $(LIBS)
	$(call QUIET,ld)$(CC) $(LDFLAGS) $(DRY_SAN) -o $@ $^ -Wl,--as-needed -lcmocka $(ALL_LIBS)
# The same as a library, for models of real sizes (tests/cli/cuda/test_ptx_shapes.py): what is launched, not what comes
# of it.
build/ptx/dry/library/device.o: tests/cuda/dry/device.c
	@mkdir -p $(@D)
	$(call QUIET,cc)$(CUDA_CC) -DDRY_LIBRARY -c -o $@ $<
build/ptx/dry/library/libgyre-cuda.so: $(PTX_OBJ) build/ptx/dry/library/device.o $(BUILD)/libgyre.a tools/plugin.map
	$(call QUIET,ld)$(CC) $(LDFLAGS) $(PLUGIN) -o $@ $(filter %.o %.a,$^) $(CUDA_WRAP) -lstdc++ -ldl \
	    -lpthread -lm $(LIB_LIBS)
ptx: $(PTX_TESTS) build/ptx/libgyre-cuda.so build/ptx/dry/library/libgyre-cuda.so $(DRY_TESTS) build/ptx/dry/test_quads

-include $(CUDA_OBJ:.o=.d) $(PTX_CODE:.o=.d) $(PTX80_PLAIN:.o=.d) $(RACE_CODE:.o=.d) $(DRY_OBJ:.o=.d) \
    build/ptx/dry/library/device.d $(DRY_TESTS:=.d) $(wildcard build/ptx/*.d build/cuda/*.d build/racecheck/*.d) \
    build/ptx/dry/test_quads.d $(patsubst build/cuda/%,build/cuda/tests/%.d,$(CUDA_UNITS))
