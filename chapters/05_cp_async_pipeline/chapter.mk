ARCH    := 80
GOLDEN  := matmul --types bf16
FEW_SMS := 4
