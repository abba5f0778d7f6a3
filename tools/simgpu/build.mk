# The simulated GPU: build/simgpu/simgpu and the libraries it puts in front of NVIDIA's. Included by the top Makefile.
# CUDA_INCLUDE: the toolkit's headers. Nothing of the toolkit is linked.

CUDA_INCLUDE ?= /usr/local/cuda/include
CC ?= gcc

SIMGPU_DIR   := tools/simgpu
SIMGPU_BUILD := build/simgpu

SIMGPU_CFLAGS := -std=gnu11 -O3 -g -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math -fPIC \
                 -fvisibility=hidden -pthread -Wall -Wextra -Werror -isystem $(CUDA_INCLUDE)
ifeq ($(shell uname -m),x86_64)
SIMGPU_CFLAGS += -mprefer-vector-width=512
endif

SIMGPU_CUBLAS_SOURCES := $(SIMGPU_DIR)/runtime/cublas.c
SIMGPU_CUDART_SOURCES := $(filter-out $(SIMGPU_CUBLAS_SOURCES), \
                           $(foreach folder,front exec runtime report,$(wildcard $(SIMGPU_DIR)/$(folder)/*.c)))
simgpu_objects = $(patsubst $(SIMGPU_DIR)/%.c,$(SIMGPU_BUILD)/obj/%.o,$(1))

SIMGPU := $(SIMGPU_BUILD)/simgpu
SIMGPU_LIBS := $(SIMGPU_BUILD)/lib/libcudart.so.13 $(SIMGPU_BUILD)/lib/libcublas.so.13

.PHONY: simgpu
simgpu: $(SIMGPU) $(SIMGPU_LIBS) ## build the simulated GPU

$(SIMGPU_BUILD)/obj/%.o: $(SIMGPU_DIR)/%.c
	@mkdir -p $(@D)
	$(CC) $(SIMGPU_CFLAGS) -MMD -MP -c $< -o $@

$(SIMGPU): $(call simgpu_objects,$(SIMGPU_DIR)/main.c)
	$(CC) $^ -o $@

$(SIMGPU_BUILD)/lib/libcudart.so.13: $(call simgpu_objects,$(SIMGPU_CUDART_SOURCES)) $(SIMGPU_DIR)/runtime/libcudart.map
	@mkdir -p $(@D)
	$(CC) -shared -pthread -Wl,-soname,$(@F) -Wl,-z,defs -Wl,-Bsymbolic \
	    -Wl,--version-script=$(SIMGPU_DIR)/runtime/libcudart.map $(filter %.o,$^) -o $@ -lzstd -lm

$(SIMGPU_BUILD)/lib/libcublas.so.13: $(call simgpu_objects,$(SIMGPU_CUBLAS_SOURCES)) $(SIMGPU_DIR)/runtime/libcublas.map \
                                     $(SIMGPU_BUILD)/lib/libcudart.so.13
	$(CC) -shared -pthread -Wl,-soname,$(@F) -Wl,-z,defs -Wl,-Bsymbolic \
	    -Wl,--version-script=$(SIMGPU_DIR)/runtime/libcublas.map $(filter %.o,$^) -o $@ \
	    $(SIMGPU_BUILD)/lib/libcudart.so.13 -lopenblas -lm

-include $(patsubst %.o,%.d,$(call simgpu_objects,$(SIMGPU_CUDART_SOURCES) $(SIMGPU_CUBLAS_SOURCES) $(SIMGPU_DIR)/main.c))
