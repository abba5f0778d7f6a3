# build.mk: the readers of what others wrote (PTX, fatbins, .npy), fed with any bytes. build/fuzz/replay/X takes files, with
# gcc's sanitizers: tests/fuzz.bats gives it those of tests/fuzz/X. build/fuzz/search/X looks for more, with clang's libFuzzer.
FUZZ    ?= ptx
MINUTES ?= 10

FUZZ_SIMULATOR := $(SIMGPU_CUDART_OBJECTS:$(SIMGPU_OUT)/obj/%=%)
FUZZ_CFLAGS    := -std=gnu11 -g -march=native -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
                  -fno-sanitize=float-divide-by-zero,float-cast-overflow -isystem $(or $(CUDA_INCLUDE),/usr/local/cuda/include)
fuzz_search     = clang $(FUZZ_CFLAGS) -O1
fuzz_replay     = $(CC) $(FUZZ_CFLAGS) -O0

# $1: replay or search, $2: how that is compiled, $3: and linked with a reader.
define fuzz_rules
build/fuzz/$1/obj/%.o: $(SIMGPU_DIR)/%.c build/config.mk
	@mkdir -p $$(@D)
	@echo "$1  $$<"
	$$Q$2 -MMD -MP -c -o $$@ $$<

build/fuzz/$1/ptx build/fuzz/$1/fatbin: build/fuzz/$1/%: tests/fuzz/%.c $3 $(FUZZ_SIMULATOR:%=build/fuzz/$1/obj/%)
build/fuzz/$1/npy: build/fuzz/$1/%: tests/fuzz/%.c $3 common/harness/npy.c
build/fuzz/$1/ptx build/fuzz/$1/fatbin build/fuzz/$1/npy:
	@mkdir -p $$(@D)
	@echo "link $$@"
	$$Q$2 $(if $(filter search,$1),-fsanitize=fuzzer) -pthread -o $$@ $$^ -ldl -lm

-include $(FUZZ_SIMULATOR:%.o=build/fuzz/$1/obj/%.d)
endef
$(eval $(call fuzz_rules,replay,$(fuzz_replay),tests/fuzz/replay.c))
$(eval $(call fuzz_rules,search,$(fuzz_search) -fsanitize=fuzzer-no-link,))

.PHONY: fuzz fuzz-replay
fuzz-replay:
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(foreach reader,ptx fatbin npy,build/fuzz/replay/$(reader))

test: fuzz-replay

fuzz: build/config.mk
	@$(MAKE) --no-print-directory -s -j$(JOBS) build/fuzz/search/$(FUZZ)
	@tests/fuzz/search.sh $(FUZZ) $(MINUTES)
