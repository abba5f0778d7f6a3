# build.mk: what is made of common/ and of each chapter. Included by the Makefile, which has FOLDERS and the compilers.
#
# A chapter is a folder with main.c, step*.cu, .c and .cu files that they share, and chapter.mk, which sets ARCH (the oldest GPU it
# runs on, or an exact one such as 90a), GOLDEN (its reference/golden.py arguments), LIBS, and USES (steps of other chapters that it calls,
# 08_online_softmax/step8_causal; $(USES_11_gpt2_training), all that another chapter uses), MARKED (files of kernels that several steps
# launch, which make marks for make trace-N), FEW_SMS (multiprocessors of a second simulated GPU, for kernels whose blocks stay as long as there is
# work), and NEEDS_CHAPTER/stepK_NAME (the architecture of a step that needs a newer GPU than the others, or several, if it has code of its own for
# the newest of them).

# PTX for every architecture of a chapter, and machine code besides where this machine's GPU can run it: a GPU of
# the same or a newer architecture, but for an exact one (90a) only that.
sass_here = $(if $(GPU_ARCH),$(or $(filter $1,$(GPU_ARCH)a),$(if $(filter %a,$1),,$(shell [ $(GPU_ARCH) -ge $1 ] && echo $(GPU_ARCH)))))
arch_of   = $(or $(NEEDS_$1/$2),$(ARCH_$1))
gencode   = $(foreach a,$1,-gencode arch=compute_$a,code=compute_$a) \
            $(foreach a,$(call sass_here,$(lastword $1)),-gencode arch=compute_$a,code=sm_$a)

build/obj/%.o: %.c build/config.mk
	@mkdir -p $(@D)
	@echo "gcc  $<"
	$Q$(CC) $(CFLAGS) $(DEPENDS) -isystem $(CUDA_INCLUDE) -c -o $@ $<

# Other flags than last time (another GPU_ARCH) are a reason to compile again; make -n does not take note.
# $1: a folder of sources, $2: its -gencode flags.
define flags_rule
ifdef CUDA_LIB
ifeq ($$(findstring n,$$(filter-out --%,$$(firstword -$$(MAKEFLAGS)))),)
ifneq ($$(strip $$(file <build/obj/$1/flags)),$$(strip $$(NVCCFLAGS) $2))
$$(shell mkdir -p build/obj/$1; echo '$$(NVCCFLAGS) $2' >build/obj/$1/flags)
endif
endif
endif
endef

# The kernels of common/ run wherever any chapter does; on sm_90 one tells the next when it may begin.
GENCODE_common := $(call gencode,75 90)
$(eval $(call flags_rule,common,$$(GENCODE_common)))
build/obj/common/%.o: common/%.cu build/obj/common/flags build/config.mk
	@mkdir -p $(@D)
	@echo "nvcc $<"
	$Q$(NVCC) $(NVCCFLAGS) $(GENCODE_common) $(DEPENDS) -c -o $@ $<

# $1: the chapter's folder, $2: its number.
define chapter_rules
ARCH   :=
GOLDEN :=
LIBS   :=
USES   :=
MARKED :=
FEW_SMS :=
include chapters/$1/chapter.mk
ARCH_$1     := $$(ARCH)
GOLDEN_$1   := $$(GOLDEN)
LIBS_$1     := $$(LIBS)
USES_$1     := $$(USES)
FEW_SMS_$1  := $$(FEW_SMS)
MARKED_$1   := $$(MARKED:%=build/trace/$1/%.o)
SASS_$1     := $$(sort $$(ARCH_$1) $$(if $$(filter %a,$$(ARCH_$1)),,90))
GENCODE_$1  := $$(call gencode,$$(ARCH_$1))
SIM_FOR_$1  := $$(if $$(and $$(call sass_here,$$(firstword $$(ARCH_$1))),$$(filter-out sim,$$(or $$(DEVICE),auto))),,$$(SIMGPU) $$(SIMGPU_LIBS))
STEPS_$1    := $$(sort $$(wildcard chapters/$1/*.cu))
OBJ_$1      := $$(patsubst %.c,build/obj/%.o,$$(sort $$(wildcard chapters/$1/*.c))) $$(STEPS_$1:%.cu=build/obj/%.o) $$(USES:%=build/obj/chapters/%.o)
LINK_$1      = -L$$(CUDA_LIB) -l:libcudart.so.13 $$(patsubst %,-Wl$$(comma)-rpath$$(comma)%,$$(sort $$(CUDA_LIB) $$(CUBLAS_LIB))) -Wl,--enable-new-dtags $$(LIBS_$1) -ldl -lm
TRACED_$1    = $$(basename $$(notdir $$(if $$(STEP),$$(wildcard $$(foreach s,step$$(STEP)_* step[0-9]_$$(STEP) step[0-9][0-9]_$$(STEP),chapters/$1/$$s.cu)))))

$(call flags_rule,chapters/$1,$$(GENCODE_$1))

build/obj/chapters/$1/%.o: chapters/$1/%.cu build/obj/chapters/$1/flags build/config.mk
	@mkdir -p $$(@D)
	@echo "nvcc $$<"
	$$Q$$(NVCC) $$(NVCCFLAGS) $$(call gencode,$$(call arch_of,$1,$$*)) $$(DEPENDS) -c -o $$@ $$<

build/chapters/$1: $$(OBJ_$1) $$(COMMON_OBJ) chapters/$1/chapter.mk
	@mkdir -p $$(@D)
	@echo "link $$@"
	$$Q$$(CXX) -o $$@ $$(filter %.o,$$^) $$(LINK_$1)

# A program with marks (common/device/trace.cuh): one step and the kernels that steps share are compiled anew, the rest is the timed program's.
build/trace/$1/%.o: chapters/$1/%.cu build/obj/chapters/$1/flags build/config.mk
	@mkdir -p $$(@D)
	@echo "nvcc -DTRACE $$<"
	$$Q$$(NVCC) $$(NVCCFLAGS) -DTRACE $$(call gencode,$$(call arch_of,$1,$$*)) $$(DEPENDS) -c -o $$@ $$<

.PRECIOUS: build/trace/$1/%.o
build/trace/$1/%: build/trace/$1/%.o $$(MARKED_$1) $$(OBJ_$1) $$(COMMON_OBJ)
	@echo "link $$@"
	$$Q$$(CXX) -o $$@ $$(filter-out $$(patsubst build/trace/%,build/obj/chapters/%,build/trace/$1/$$*.o $$(MARKED_$1)),$$(filter %.o,$$^)) $$(LINK_$1)

build/golden/$1/.stamp: $$(wildcard reference/*.py) chapters/$1/chapter.mk
	@echo "golden files of chapter $2"
	@rm -rf $$(@D)
	@$$(PYTHON) reference/golden.py $$(GOLDEN_$1) --out $$(@D)
	@touch $$@

build/sass/$1/%.ok: chapters/$1/%.cu $$(wildcard common/*/*.cuh chapters/$1/*.cuh) tools/sass.sh build/config.mk
	@mkdir -p $$(@D)
	@for arch in $$(or $$(NEEDS_$1/$$*),$$(SASS_$1)); do tools/sass.sh $$(NVCC) $$< $$$$arch build/sass/$1/$$*.sm_$$$$arch.cubin $$(NVCCFLAGS) || exit 1; done
	@touch $$@

.PHONY: build-$2 chapter-$2 bench-$2 diff-$2 trace-$2
build-$2: build/chapters/$1 build/golden/$1/.stamp $$(SIM_FOR_$1)

chapter-$2:
	@$$(MAKE) --no-print-directory $$(if $$(V),,-s) -j$$(JOBS) build-$2
	@echo -n "chapter $2 "; FEW_SMS=$$(FEW_SMS_$1) tools/run.sh $1 $$(firstword $$(ARCH_$1)) $$(GOLDEN_$1)

bench-$2: need-gpu build-$2
	@mkdir -p results
	TORCH_LIB=$$(TORCH_LIB) COOKBOOK_COMMIT=$$$$(git rev-parse --short HEAD 2>/dev/null) build/chapters/$1 --bench \
	    $$(if $$(SHAPE),--shape $$(SHAPE)) $$(if $$(OP),--op $$(OP)) $$(if $$(TYPE),--type $$(TYPE)) $$(if $$(STEP),--step $$(STEP)) --json results/$$(GPU_FILE).json

trace-$2: need-test
	@$$(if $$(TRACED_$1),,echo "make trace-$2: $$(if $$(STEP),STEP=$$(STEP): no such step,no step), expected STEP= and one of $$(patsubst chapters/$1/step%.cu,%,$$(STEPS_$1))" >&2; exit 2)
	@$$(if $$(TRACED_$1),$$(MAKE) --no-print-directory $$(if $$(V),,-s) -j$$(JOBS) build-$2 build/trace/$1/$$(TRACED_$1))
	@mkdir -p $$(dir $$(or $$(TRACE),build/traces/))
	@echo -n "chapter $2 "; PROGRAM=build/trace/$1/$$(TRACED_$1) TRACE=$$(or $$(TRACE),build/traces/$1.$$(TRACED_$1).json) \
	    tools/run.sh $1 $$(firstword $$(ARCH_$1)) $$(GOLDEN_$1)
	@.venv/bin/python3 tools/timeline.py $$(or $$(TRACE),build/traces/$1.$$(TRACED_$1).json)

diff-$2:
	@$$(PYTHON) tools/diff.py $1
endef
$(foreach c,$(FOLDERS),$(eval $(call chapter_rules,$c,$(call number,$c))))
