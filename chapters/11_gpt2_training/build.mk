# build.mk: build/gpt2, the trainer of chapter 11. Included by the Makefile, behind chapters/build.mk.
GPT2_OBJ := $(patsubst %.c,build/obj/%.o,$(wildcard chapters/11_gpt2_training/trainer/*.c)) \
            $(filter-out build/obj/chapters/11_gpt2_training/main.o,$(OBJ_11_gpt2_training))
# What it reads unless TEXT says otherwise: this project.
TEXT     ?= $(sort README.md $(wildcard notes/*.md reference/*.py chapters/*/*.cu chapters/*/*.c chapters/*/*.h common/*/*))

build/gpt2: $(GPT2_OBJ) $(COMMON_OBJ) chapters/11_gpt2_training/chapter.mk chapters/11_gpt2_training/build.mk
	@echo "link $@"
	$Q$(CXX) -o $@ $(filter %.o,$^) $(LINK_11_gpt2_training)

build-11: build/gpt2

# On several GPUs it is chapter 22's.
TRAINER  := build/gpt2$(if $(GPUS),_parallel)
.PHONY: train
train:
	@$(MAKE) --no-print-directory $(if $(V),,-s) -j$(JOBS) $(TRAINER) $(SIM_FOR_11_gpt2_training)
	@$(if $(GPUS),tools/ranks.sh $(GPUS)) $(if $(SIM_FOR_11_gpt2_training),$(SIMGPU)) $(TRAINER) $(TRAIN) $(TEXT)
