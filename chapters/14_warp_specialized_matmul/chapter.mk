ARCH    := 90a
GOLDEN  := matmul_16bit --types bf16,f16
FEW_SMS := 4
