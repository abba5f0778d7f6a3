# Attention as a library, build/libcookbook_attention.a: the kernels of chapters 12, 15, 16 and 17 behind cookbook_attention.h, and an
# example. Included by the Makefile, after the chapters.
LIBRARY_OBJ := $(patsubst %,build/obj/%.o,library/forward library/backward common/device/tensor_map $(addprefix chapters/, \
    12_flash_attention/step12_one_barrier 15_sm90_attention_forward/step10_tma_store \
    $(addprefix 16_sm90_attention_variants/,plan kernel_bf16 kernel_f16 step6_pack_gqa step7_split_kv step8_paged_kv step9_append_kv) \
    $(addprefix 17_sm90_attention_backward/,plan kernel_bf16 kernel_f16 preprocess postprocess step10_varlen)))

.PHONY: library
library: build/library/example

# One object, in which only the library's own names are left for others to see.
build/libcookbook_attention.a: $(LIBRARY_OBJ) library/build.mk
	@echo "ar   $@"
	@mkdir -p build/library
	$Qld -r --force-group-allocation -o build/library/attention.o $(LIBRARY_OBJ)
	$Qobjcopy --wildcard --keep-global-symbol='cookbook_attention_*' build/library/attention.o
	@rm -f $@
	$Qar rcs $@ build/library/attention.o

build/library/example: build/obj/library/example.o build/libcookbook_attention.a
	@echo "link $@"
	$Q$(CC) -o $@ $^ -L$(CUDA_LIB) -l:libcudart.so.13 -Wl,-rpath,$(CUDA_LIB) -lstdc++ -lm
