ARCH       := 80
GOLDEN     := matmul --dtype bf16
GROWS_FROM := 04_swizzled_smem
