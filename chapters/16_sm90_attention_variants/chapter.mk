ARCH    := 90a
GOLDEN  := attention_variants --types bf16,f16
FEW_SMS := 4
MARKED  := kernel_bf16 kernel_f16
