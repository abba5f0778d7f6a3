# build.mk: what the book's figures are drawn from (tools/book/figures.py). Included by the Makefile.

# Layouts and orders: the kernels' own files, run on the simulated GPU whatever this machine has, so that every book is the same.
build/book_layouts: tools/book/layouts.cu build/config.mk
	@mkdir -p $(@D)
	@echo "nvcc $<"
	$Q$(NVCC) -std=c++17 -O1 -cudart shared -Werror all-warnings -Xcompiler -Wall -gencode arch=compute_90a,code=compute_90a \
	    -MMD -MP -MF $@.d -o $@ $<

-include build/book_layouts.d

build/figures/layouts.json: build/book_layouts $(SIMGPU) $(SIMGPU_LIBS)
	@mkdir -p $(@D)
	@$(SIMGPU) $< >$@

# FLOP and bytes of a chapter's operations. The kernels that main.c names are not called, and not linked.
BOOK_WORK := $(patsubst chapters/%/main.c,build/figures/work/%,$(shell grep -l '^CHAPTER' chapters/*/main.c))

$(BOOK_WORK): build/figures/work/%: tools/book/work.c chapters/%/main.c build/obj/common/harness/shape.o build/obj/common/harness/npy.o
	@mkdir -p $(@D)
	@echo "gcc  $< of $*"
	$Q$(CC) $(CFLAGS) -MMD -MP -MF $@.d -isystem $(CUDA_INCLUDE) -DMAIN='"../../chapters/$*/main.c"' -no-pie -o $@ $(filter %/work.c %.o,$^) \
	    -Wl,--unresolved-symbols=ignore-all -lm

-include $(BOOK_WORK:=.d)

.PHONY: book-figures
book-figures: build/figures/layouts.json $(BOOK_WORK)
