ARCH       := 80
GOLDEN     := matmul --types bf16
GROWS_FROM := 04_swizzled_smem
