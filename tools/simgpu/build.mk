# The simulated GPU: build/simgpu/simgpu and the libraries that it puts in front of NVIDIA's. Included by the Makefile, which
# says where the toolkit's headers are (CUDA_INCLUDE); nothing of the toolkit is linked.

# SAN=address,undefined or SAN=thread: built with gcc's sanitizers, in a folder of its own.
SIMGPU_DIR := tools/simgpu
SIMGPU_OUT := build/simgpu$(if $(SAN),-$(subst $(comma),-,$(SAN)))
SIMGPU     := $(SIMGPU_OUT)/simgpu
SIMGPU_LIBS := $(addprefix $(SIMGPU_OUT)/lib/,libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libnccl.so.2 libcuda.so.1)

SIMGPU_OPTIMISE ?= $(if $(SAN),-O1,-O3)
SIMGPU_CFLAGS := -std=gnu11 $(SIMGPU_OPTIMISE) -g -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math -fPIC -pthread \
                 -fvisibility=hidden -Wall -Wextra -Werror $(if $(filter x86_64,$(shell uname -m)),-mprefer-vector-width=512)
SIMGPU_LDFLAGS := -pthread
ifdef SAN
SIMGPU_CFLAGS  += -fno-omit-frame-pointer -fsanitize=$(SAN) -fno-sanitize-recover=all
SIMGPU_CFLAGS  += $(if $(findstring thread,$(SAN)),-Wno-tsan) # fences that guest programs execute
SIMGPU_CFLAGS  += -DSANITIZER='"$(shell $(CC) -print-file-name=lib$(if $(findstring thread,$(SAN)),t,a)san.so)"'
SIMGPU_LDFLAGS += -fsanitize=$(SAN)
endif

simgpu_objects        = $(patsubst $(SIMGPU_DIR)/%.c,$(SIMGPU_OUT)/obj/%.o,$1)
SIMGPU_MAIN_OBJECTS   := $(call simgpu_objects,$(SIMGPU_DIR)/main.c)
simgpu_blas           = $(call simgpu_objects,$(SIMGPU_DIR)/runtime/blas.c $(SIMGPU_DIR)/runtime/openblas.c $(SIMGPU_DIR)/runtime/$1.c)
SIMGPU_BLAS_OBJECTS   := $(sort $(call simgpu_blas,cublas) $(call simgpu_blas,cublaslt))
SIMGPU_NCCL_OBJECTS   := $(call simgpu_objects,$(SIMGPU_DIR)/runtime/nccl.c $(SIMGPU_DIR)/runtime/blas.c)
SIMGPU_DRIVER_OBJECTS := $(call simgpu_objects,$(SIMGPU_DIR)/runtime/driver.c)
SIMGPU_CUDART_OBJECTS := $(filter-out $(SIMGPU_BLAS_OBJECTS) $(SIMGPU_NCCL_OBJECTS) $(SIMGPU_DRIVER_OBJECTS), \
    $(call simgpu_objects,$(foreach folder,front exec runtime report,$(wildcard $(SIMGPU_DIR)/$(folder)/*.c))))

.PHONY: simgpu simgpu-sanitize
simgpu: $(SIMGPU) $(SIMGPU_LIBS)

simgpu-sanitize: simgpu simgpu-tests
	@$(if $(SAN),,echo "make simgpu-sanitize: SAN=address,undefined or SAN=thread" >&2; exit 2)
	@TSAN_OPTIONS=suppressions=$(CURDIR)/$(SIMGPU_DIR)/guest.supp SIMGPU_UNDER_TEST=$(CURDIR)/$(SIMGPU) tests/run.sh $(wildcard tests/simgpu/*.bats)

$(SIMGPU_OUT)/obj/%.o: $(SIMGPU_DIR)/%.c $(SIMGPU_DIR)/build.mk build/config.mk
	@mkdir -p $(@D)
	@echo "gcc  $<"
	$Q$(CC) $(SIMGPU_CFLAGS) -MMD -MP -isystem $(or $(CUDA_INCLUDE),/usr/local/cuda/include) -c -o $@ $<

$(SIMGPU): $(SIMGPU_MAIN_OBJECTS)
	@echo "link $@"
	$Q$(CC) $(SIMGPU_LDFLAGS) -o $@ $^

# $1: the version script, $2: further inputs and libraries.
simgpu_link = $(CC) -shared $(SIMGPU_LDFLAGS) -o $@ -Wl,-soname,$(@F) $(if $(SAN),,-Wl,-z,defs) -Wl,-Bsymbolic -Wl,--version-script=$1 \
    $(filter %.o,$^) $2

$(SIMGPU_OUT)/lib/libcudart.so.13: $(SIMGPU_CUDART_OBJECTS) $(SIMGPU_DIR)/runtime/libcudart.map
	@mkdir -p $(@D)
	@echo "link $@"
	$Q$(call simgpu_link,$(SIMGPU_DIR)/runtime/libcudart.map,-lm)

$(SIMGPU_OUT)/lib/libcublas.so.13: $(call simgpu_blas,cublas)
$(SIMGPU_OUT)/lib/libcublasLt.so.13: $(call simgpu_blas,cublaslt)
$(SIMGPU_OUT)/lib/libcublas.so.13 $(SIMGPU_OUT)/lib/libcublasLt.so.13: $(SIMGPU_DIR)/runtime/libcublas.map $(SIMGPU_OUT)/lib/libcudart.so.13
	@echo "link $@"
	$Q$(call simgpu_link,<(sed 's/@/$(@F)/' $(SIMGPU_DIR)/runtime/libcublas.map),$(SIMGPU_OUT)/lib/libcudart.so.13 -lm)

$(SIMGPU_OUT)/lib/libnccl.so.2: $(SIMGPU_NCCL_OBJECTS) $(SIMGPU_DIR)/runtime/libnccl.map $(SIMGPU_OUT)/lib/libcudart.so.13
	@mkdir -p $(@D)
	@echo "link $@"
	$Q$(call simgpu_link,$(SIMGPU_DIR)/runtime/libnccl.map,$(SIMGPU_OUT)/lib/libcudart.so.13)

$(SIMGPU_OUT)/lib/libcuda.so.1: $(SIMGPU_DRIVER_OBJECTS) $(SIMGPU_DIR)/runtime/libcuda.map $(SIMGPU_OUT)/lib/libcudart.so.13
	@echo "link $@"
	$Q$(call simgpu_link,$(SIMGPU_DIR)/runtime/libcuda.map,$(SIMGPU_OUT)/lib/libcudart.so.13)

-include $(patsubst %.o,%.d,$(SIMGPU_MAIN_OBJECTS) $(SIMGPU_BLAS_OBJECTS) $(SIMGPU_NCCL_OBJECTS) $(SIMGPU_DRIVER_OBJECTS) $(SIMGPU_CUDART_OBJECTS))

build/simgpu/bench: $(SIMGPU_DIR)/bench.cu build/config.mk
	@mkdir -p $(@D)
	@echo "nvcc $<"
	$Q$(NVCC) -std=c++17 -O3 -lineinfo -cudart shared -gencode arch=compute_90a,code=compute_90a -MMD -MP -MF $@.d -o $@ $<

.PHONY: bench-sim
bench-sim: simgpu build/simgpu/bench
	@COOKBOOK_COMMIT=$$(git rev-parse --short HEAD 2>/dev/null) $(PYTHON) tools/bench_sim.py
