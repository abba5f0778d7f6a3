# build.mk: build/gpt2_parallel, chapter 11's trainer on several GPUs, and how many there are. Included by the Makefile, behind
# chapters/build.mk.
GPT2_PARALLEL_OBJ := $(patsubst %.c,build/obj/%.o,$(wildcard chapters/22_data_parallel_training/trainer/*.c) \
                         $(filter-out %/alone.c,$(wildcard chapters/11_gpt2_training/trainer/*.c))) \
                     $(filter-out build/obj/chapters/22_data_parallel_training/main.o,$(OBJ_22_data_parallel_training))

build/gpt2_parallel: $(GPT2_PARALLEL_OBJ) $(COMMON_OBJ) chapters/22_data_parallel_training/chapter.mk chapters/22_data_parallel_training/build.mk
	@echo "link $@"
	$Q$(CXX) -o $@ $(filter %.o,$^) $(LINK_22_data_parallel_training)

build-22: build/gpt2_parallel

# A process for each GPU of this machine, or two simulated ones.
chapter-22: export RANKS = $(or $(GPUS),$(if $(SIM_FOR_22_data_parallel_training),2,$(words $(GPU_NODES))))
# Where the NCCL of .venv or of the user's own Python is, for a machine whose loader finds none.
chapter-22 train: export NCCL_LIB ?= $(firstword $(foreach p,.venv/bin/python3 python3,$(shell $p -c \
    'import nvidia.nccl, os; print(os.path.join(list(nvidia.nccl.__path__)[0], "lib"))' 2>/dev/null)))
