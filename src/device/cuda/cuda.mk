# cuda.mk - the CUDA plug-in, libmaxc_cuda.so, and the GPU programs under tests/cuda and bench/gpu. Included by the
# Makefile; adds nothing where nvcc is not found or CUDA=0 is given, so the CPU build never needs CUDA.
#
#   make cuda        build/release/libmaxc_cuda.so
#   make gpu-bin     build/gpu/*, one program per tests/cuda/*.cu and bench/gpu/*.cu (self-contained but for the
#                    driver and the libraries it opens at run time)
#   make test-gpu    correctness on the device; prints one line and succeeds where there is none
#   make bench-gpu   timings on the device
#
# The CUDA runtime is linked statically; cuBLASLt, cuDNN and NVRTC are opened with dlopen, so a machine
# without one of them still loads the plug-in and says what is missing.
ifneq ($(HAVE_NVCC),)
ifneq ($(CUDA),0)
CUDA_HOME ?= $(abspath $(dir $(realpath $(HAVE_NVCC)))/..)
CU_DIR := src/device/cuda
CU_BUILD := $(BUILD)/cuda
CU_C := $(wildcard $(CU_DIR)/*/*.c)
CU_CU := $(wildcard $(CU_DIR)/*/*.cu)
CU_OBJ := $(CU_C:$(CU_DIR)/%.c=$(CU_BUILD)/%.o) $(CU_CU:$(CU_DIR)/%.cu=$(CU_BUILD)/%.cu.o)
# The base library, once more with -fPIC off: the GPU programs stand alone, without the plug-in loader.
CU_BASE := $(patsubst src/base/%.c,$(CU_BUILD)/base_%.o,src/base/status.c src/base/arena.c src/base/reserve.c src/base/str.c src/base/library.c src/base/shown.c src/base/utf8.c)
# sm_90a machine code, and PTX from which the driver makes code for every other GPU from Ampere on.
# CU_ARCH="$(CU_ARCH_ALL)" builds machine code for all of them (several minutes).
CU_ARCH_ALL := -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a \
               -gencode=arch=compute_100,code=sm_100 -gencode=arch=compute_100,code=compute_100
NVCC ?= nvcc
CU_ARCH ?= -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=compute_80
NVCCFLAGS := -std=c++17 -O3 -lineinfo -Isrc -I$(CUDA_HOME)/include -Xcompiler -fPIC,-Wall \
             -Wno-deprecated-gpu-targets --expt-relaxed-constexpr
CU_CFLAGS := -std=gnu11 -O2 -g -fPIC $(WARN) -Wno-format-zero-length -D_GNU_SOURCE -Isrc -I$(B)/gen -Wno-missing-field-initializers -isystem $(CUDA_HOME)/include
GPU_SRC := $(wildcard tests/cuda/*.cu bench/gpu/*.cu)
GPU_BIN := $(patsubst %.cu,$(BUILD)/gpu/%,$(notdir $(GPU_SRC)))

.PHONY: cuda gpu-bin test-gpu bench-gpu
cuda: $(BUILD)/release/libmaxc_cuda.so
gpu-bin: $(GPU_BIN)

$(CU_BUILD)/%.o: $(CU_DIR)/%.c | $(B)/gen/ops.h $(B)/gen/interface.h
	@mkdir -p $(@D)
	@echo "  CC  $<"
	@gcc $(CU_CFLAGS) -MMD -c $< -o $@
$(CU_BUILD)/base_%.o: src/base/%.c
	@mkdir -p $(@D)
	@gcc $(CU_CFLAGS) -MMD -c $< -o $@
$(CU_BUILD)/%.cu.o: $(CU_DIR)/%.cu
	@mkdir -p $(@D)
	@echo "  NVCC $<"
	@$(NVCC) $(NVCCFLAGS) $(CU_ARCH) -MMD -c $< -o $@
# The blocks stand alone; the glue (device, ops) needs the program it is opened by.
CU_GLUE := device.o program.o staging.o hosted.o op_% fused_source.o compile_check.o group.o peers.o kernel_time.o comm_stream.o nccl.o nccl_group.o
CU_BLOCKS := $(foreach o,$(CU_OBJ),$(if $(filter $(CU_GLUE),$(notdir $o)),,$o))
$(CU_BUILD)/cuda_ops_table.c: tools/scan $(CU_C) $(CU_CU)
	@mkdir -p $(@D)
	@tools/scan cuda_ops > $@
$(CU_BUILD)/cuda_ops_table.o: $(CU_BUILD)/cuda_ops_table.c
	@gcc $(CU_CFLAGS) -c $< -o $@
# -Bsymbolic: the plug-in calls its own functions, whatever the program that opens it has of the same name.
$(BUILD)/release/libmaxc_cuda.so: $(CU_OBJ) $(CU_BUILD)/cuda_ops_table.o
	@mkdir -p $(@D)
	@echo "  LD  $@"
	@gcc -shared -o $@ $^ $(CUDA_HOME)/lib64/libcudart_static.a -lrt -lpthread -ldl -lstdc++ \
	    -Wl,--exclude-libs,ALL,-Bsymbolic
vpath %.cu tests/cuda bench/gpu
$(BUILD)/gpu/%: %.cu $(wildcard tests/cuda/*.cuh) $(CU_BLOCKS) $(CU_BASE)
	@mkdir -p $(@D)
	@echo "  NVCC $@"
	@$(NVCC) $(NVCCFLAGS) $(CU_ARCH) -Itests/cuda $< $(CU_BLOCKS) $(CU_BASE) -cudart static -ldl -lm -ljansson -o $@
test-gpu: all cuda $(BUILD)/gpu/blocks_test
	@$(MAKE) --no-print-directory MODE=plain $(BUILD)/plain/tests_run
	@tools/test-gpu
bench-gpu: all cuda gpu-bin
	@bench/gpu/train
	@for p in $(GPU_BIN); do $$p || exit 1; done
# A header that is gone does not stop the build: what included it is made anew.
$(CU_DIR)/%.cuh $(CU_DIR)/%.h: ;
-include $(wildcard $(CU_BUILD)/*.d $(CU_BUILD)/*/*.d)
endif
endif
