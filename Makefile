# The Kernel Cookbook. `make help` lists what there is; everything that is generated lands in build/.
SHELL         := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS     += --no-builtin-rules
.DELETE_ON_ERROR:

# --- What this machine has ------------------------------------------------------------------------------------------

# build/config.mk says where nvcc, Python and the GPU are. make writes it first if it is missing, if that Python is gone, or
# if the machine gained or lost a GPU since, and installs on the way what running a chapter needs and is missing.
WITHOUT_SETUP := help clean doctor
ifneq ($(filter-out $(WITHOUT_SETUP),$(MAKECMDGOALS)),)
include build/config.mk
GPU_NODES := $(strip $(sort $(wildcard /dev/nvidia[0-9]* /dev/dxg)))
ifeq ($(MAKE_RESTARTS),)
ifneq ($(if $(wildcard $(PYTHON)),$(GPU_NODES),none),$(GPU_NODES_SEEN))
build/config.mk: force
endif
endif
endif

build/config.mk: tools/setup.sh requirements.txt
	@tools/setup.sh run

.PHONY: force
force:

# --- Chapters -------------------------------------------------------------------------------------------------------

FOLDERS  := $(sort $(notdir $(patsubst %/,%,$(dir $(wildcard chapters/*/step1_*.cu)))))
number    = $(shell echo $$((10#$(firstword $(subst _, ,$1)))))
NUMBERS  := $(foreach c,$(FOLDERS),$(call number,$c))

CC         := gcc
CXX        := g++
CFLAGS     := -std=gnu11 -O2 -g -Wall -Wextra -Werror
NVCCFLAGS  := -std=c++17 -O3 -lineinfo -Werror all-warnings -Xcompiler -Wall,-Wextra
DEPENDS     = -MMD -MP -MF $(@:.o=.d)
COMMON_OBJ := $(patsubst %.c,build/obj/%.o,$(wildcard common/*/*.c)) $(patsubst %.cu,build/obj/%.o,$(wildcard common/*/*.cu))
JOBS       := $(shell nproc)
comma      := ,
Q          := $(if $(V),,@)

# The simulated GPU (sets SIMGPU and SIMGPU_LIBS), the CUDA programs of its tests, and what is made of a chapter.
include tools/simgpu/build.mk
include $(wildcard tests/*/build.mk) # a student's tree has none
include chapters/build.mk
include $(wildcard library/build.mk)
include $(wildcard tools/book/build.mk)
include $(wildcard chapters/*/build.mk)

export PYTHONPYCACHEPREFIX := build/pycache
unexport PYTHONDONTWRITEBYTECODE
export DEVICE OP TYPE STEP CASE SHAPE SEED PROFILE PYTHON GPU_NAME GPU_ARCH GPU_DRIVER_CUDA

-include $(shell find build/obj build/trace -name '*.d' 2>/dev/null)

# --- Commands -------------------------------------------------------------------------------------------------------

## chapter-N      check chapter N's steps against NumPy, on the GPU or the simulated GPU
##                  STEP=K|NAME CASE=NAME: only that one; SHAPE=m=333,n=77,k=129 SEED=5: a shape of your own
##                  OP=NAME: only that operation of a chapter that has several; TYPE=bf16: only that type
##                  DEVICE=auto|gpu|sim: where; PROFILE=0: without the simulated GPU's counters
chapter-% diff-% trace-%:
	@echo "make $@: no such chapter; there are $(NUMBERS)" >&2; exit 2

## chapters       every chapter in turn
.PHONY: chapters
chapters:
	@for n in $(NUMBERS); do $(MAKE) --no-print-directory chapter-$$n || exit 1; done

## diff-N         what each step of chapter N changes from the one that it grows from

## trace-N        one step's timeline: what each role of a block did when, chapters from 13 on; build/traces/….json for Perfetto, ….svg
##                  STEP=NAME and CASE=NAME or SHAPE=…; TRACE=FILE: where to; SIMGPU_SMS=2: a simulated GPU so small that blocks stay

## check-gpu      every chapter on this machine's GPU: its cases, SHAPES=20 random ones of each operation, compute-sanitizer's four tools
##                  CHAPTERS="14 17": only these; PARTS="golden random": only so; JOBS=8: random ones in so many processes; tools/check_gpu.sh says the rest
.PHONY: check-gpu
check-gpu: build/config.mk
	@$(if $(GPU_NAME)$(START),,echo "make check-gpu: this machine has no GPU; make chapters runs them on the simulated one" >&2; exit 2)
	@$(MAKE) --no-print-directory build
	@tools/check_gpu.sh $(CHAPTERS)

## train          train GPT-2 on this project's text: TRAIN="--steps 200 --layers 4", build/gpt2 --help lists more; TEXT="FILE..."
##                  GPUS=2: on so many GPUs of this machine, or simulated ones, a process each; chapter-22 takes it as well

## test           every test; TESTS=tests/cli.bats: only those
TESTS = $(sort $(wildcard tests/*.bats tests/simgpu/*.bats))
.PHONY: test need-test build all
need-test: build/config.mk
	@tools/setup.sh test
test: need-test build
	@tests/run.sh $(TESTS)

## build          build everything, run nothing; V=1 shows the commands
build:
	@$(MAKE) --no-print-directory $(if $(V),,-s) -j$(JOBS) all
all: $(NUMBERS:%=build-%) $(SIMGPU) $(SIMGPU_LIBS)

## exercises      list them; hint-4.2: a hint to one of them, LEVEL=2 a plainer one, LEVEL=3 nearly the answer
.PHONY: exercises student grade submission gradescope
exercises: build/config.mk
	@$(PYTHON) tools/classroom/exercises.py list
hint-%: build/config.mk
	@$(PYTHON) tools/classroom/exercises.py hint $* $(LEVEL)

## predict-N      say chapter N's counters before the run, then see what they are
predict-%: build/config.mk
	@$(PYTHON) tools/classroom/predict.py $*

## grade          points for each exercise of this tree, or of SUBMISSION=DIR; EXERCISE=4.2: only for that one
##                  SEED=7: other data; HIDDEN=FILE: more shapes; TAP=, JUNIT=, JSON=FILE: the result too, JSON as Gradescope reads it
EXERCISED = $(foreach e,$(wildcard exercises/[0-9][0-9].toml),$(call number,$(basename $(notdir $e))))
grade: build/config.mk
	@$(MAKE) --no-print-directory $(if $(V),,-s) -j$(JOBS) $(EXERCISED:%=build-%) $(SIMGPU) $(SIMGPU_LIBS)
	@$(PYTHON) tools/classroom/grade.py $(if $(SUBMISSION),--submission "$$SUBMISSION") $(if $(EXERCISE),--exercise $(EXERCISE)) \
	    $(if $(SEED),--seed $(SEED)) $(if $(HIDDEN),--hidden $(HIDDEN)) $(if $(TAP),--tap $(TAP)) $(if $(JUNIT),--junit $(JUNIT)) $(if $(JSON),--json $(JSON))

## student        write a student's tree, the solutions cut out: OUT=DIR [CHAPTERS=1-5]
student: build/config.mk
	@$(if $(OUT),,echo "make student: expected OUT=DIR, a new folder" >&2; exit 2)
	@$(PYTHON) tools/classroom/student.py --out $(OUT) $(if $(CHAPTERS),--chapters $(CHAPTERS))

## submission     pack what you wrote for the exercises: OUT=submission.zip
submission: build/config.mk
	@$(PYTHON) tools/classroom/pack.py submission $(or $(OUT),submission.zip)

## gradescope     Gradescope's autograder: OUT=autograder.zip [CHAPTERS=1-5] [SEED=7] [HIDDEN=FILE]
gradescope: build/config.mk
	@$(PYTHON) tools/classroom/pack.py gradescope $(or $(OUT),autograder.zip) $(if $(CHAPTERS),--chapters $(CHAPTERS)) \
	    $(if $(SEED),--seed $(SEED)) $(if $(HIDDEN),--hidden $(HIDDEN))

## golden         generate the golden files of every chapter
.PHONY: golden
golden: $(FOLDERS:%=build/golden/%/.stamp)

## bench          time every chapter beside its baseline and record it in results/ (needs a GPU); bench-N: only chapter N
# Where the PyTorch of the user's own Python is, the attention chapters' baseline; nothing where it has none.
TORCH_LIB ?= $(shell python3 -c 'import importlib.util as u, os; s = u.find_spec("torch"); print(os.path.dirname(s.origin) + "/lib" if s else "")' 2>/dev/null)
GPU_FILE = $(shell echo "$(GPU_NAME)" | tr 'A-Z ' 'a-z_' | tr -dc 'a-z0-9_')
.PHONY: bench need-gpu
need-gpu:
	@$(if $(GPU_NAME),,echo "make bench: this machine has no GPU, and the simulated GPU has no speed to measure" >&2; exit 2)
bench: need-gpu
	@for n in $(NUMBERS); do $(MAKE) --no-print-directory bench-$$n || exit 1; done

## simgpu         build the simulated GPU

## simgpu-sanitize  its tests with gcc's sanitizers: SAN=address,undefined or SAN=thread

## fuzz           look for input that breaks a reader: FUZZ=ptx|fatbin|npy MINUTES=10 (needs clang)

## library        build/libcookbook_attention.a: attention for programs of your own, and build/library/example, which uses it

## bench-sim      how many warp instructions a second the simulated GPU executes on one thread

## report         write the tables of README.md and the plots of notes/figures from results/
.PHONY: report
report: need-test
	@.venv/bin/python3 tools/report.py

## timelines      draw the timelines that the notes show; on a GPU keep their traces in results/traces
.PHONY: timelines
timelines: need-test
	@$(MAKE) --no-print-directory $(if $(V),,-s) -j$(JOBS) build-13 build-14 build-15 build-17 $$(tools/timelines.sh programs)
	@tools/timelines.sh record
	@tools/timelines.sh draw

## book           the notes as a site to read from disk, code beside the text: build/book/site/index.html
.PHONY: book
book: build/config.mk
	@$(if $(wildcard notes/results.md),,echo "make book: a student's tree has only some of the notes; whoever made it has the book" >&2; exit 2)
	@tools/setup.sh book
	@$(MAKE) --no-print-directory $(if $(V),,-s) -j$(JOBS) book-figures
	@.venv/bin/python3 tools/book/book.py

## sass           assemble every kernel for its architectures; fail on undeclared spills and on ptxas warnings
.PHONY: sass
sass: $(foreach c,$(FOLDERS),$(patsubst chapters/%.cu,build/sass/%.ok,$(STEPS_$c)))

## conformance-record  run the conformance kernels on a real GPU and record what it computes
.PHONY: conformance-record
conformance-record: build/config.mk
	@tests/simgpu/conformance/record.sh

## lint           formatting, shell scripts, warnings, cppcheck
C_FILES     = $(shell find common chapters $(wildcard library) tools tests -name '*.[ch]')
CUDA_FILES  = $(shell find common chapters tools tests -name '*.cu' -o -name '*.cuh')
SHELL_FILES = .ci/run $(shell find tools tests -name '*.sh' -o -name '*.bash' -o -name '*.bats')
# What cppcheck 2.10 gets wrong: it takes arrays filled in a loop for uninitialised (gcc -Werror judges that better), and
# does not parse every GNU C expression or know C11's _Noreturn.
CPPCHECK_WRONG = -D_Noreturn='__attribute__((noreturn))' --suppress=uninitvar --suppress=ctuuninitvar --suppress=internalAstError
.PHONY: lint format
lint: build
	@tools/setup.sh lint
	@echo "clang-format";  clang-format --dry-run -Werror $(C_FILES) $(CUDA_FILES)
	@echo "shellcheck";    shellcheck $(SHELL_FILES)
	@echo "cppcheck";      cppcheck -j $(JOBS) --quiet --error-exitcode=1 --inline-suppr --std=c11 --enable=warning,portability \
	    $(CPPCHECK_WRONG) $(filter %.c,$(C_FILES))

## format         apply the formatting
format: build/config.mk
	clang-format -i $(C_FILES) $(CUDA_FILES)

## doctor         what was found on this machine, its versions, and what is missing
.PHONY: doctor
doctor:
	@tools/setup.sh --doctor

## clean          remove build/
.PHONY: clean
clean:
	rm -rf build

## help           print this
.PHONY: help
help:
	@sed -n 's/^## /  /p' Makefile
