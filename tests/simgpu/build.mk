# build.mk: the CUDA programs of the simulated GPU's tests. tests/simgpu/F/x.cu, or the files of a folder x that are linked,
# become build/tests/simgpu/F/x, which holds PTX only: that is quick. SIMGPU_TEST_ARCH asks for machine code besides, as conformance/record.sh does.
SIMGPU_TESTS     := $(wildcard tests/simgpu/*/*.cu)
SIMGPU_LINKED    := tests/simgpu/programs/linked
SIMGPU_TEST_BIN  := $(SIMGPU_TESTS:%.cu=build/%) $(SIMGPU_LINKED:%=build/%)
SIMGPU_TEST_ARCH ?= -gencode arch=compute_90a,code=compute_90a
SIMGPU_TEST_FLAGS = -std=c++17 -O1 -lineinfo -cudart shared -Werror all-warnings -Xcompiler -Wall,-frounding-math

build/tests/simgpu/%: tests/simgpu/%.cu build/config.mk
	@mkdir -p $(@D)
	@echo "nvcc $<"
	$Q$(NVCC) $(SIMGPU_TEST_FLAGS) $(SIMGPU_TEST_ARCH) -MMD -MP -MF $@.d -o $@ $<

build/$(SIMGPU_LINKED): $(wildcard $(SIMGPU_LINKED)/*) $(SIMGPU_LINKED)/../expect.h build/config.mk
	@mkdir -p $(@D)
	@echo "nvcc -rdc=true $(filter %.cu,$^)"
	$Q$(NVCC) $(SIMGPU_TEST_FLAGS) $(SIMGPU_TEST_ARCH) -rdc=true -o $@ $(filter %.cu,$^)

build/tests/simgpu/programs/cub: SIMGPU_TEST_ARCH = -gencode arch=compute_80,code=compute_80

-include $(SIMGPU_TEST_BIN:=.d)

# Host programs that hold a part of the simulator itself against a plain model of it.
SIMGPU_MODELS := build/tests/simgpu/model/accumulate build/tests/simgpu/model/verify

build/tests/simgpu/model/accumulate: $(SIMGPU_OUT)/obj/exec/accumulate.o
build/tests/simgpu/model/verify: $(SIMGPU_CUDART_OBJECTS)
build/tests/simgpu/model/%: tests/simgpu/model/%.c
	@mkdir -p $(@D)
	@echo "gcc  $<"
	$Q$(CC) $(CFLAGS) $(SIMGPU_LDFLAGS) -o $@ $^ -lm

.PHONY: simgpu-tests
simgpu-tests:
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(SIMGPU_TEST_BIN) $(SIMGPU_MODELS)

test: simgpu-tests
