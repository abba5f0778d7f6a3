ARCH       := 80
GOLDEN     := matmul --types bf16
GROWS_FROM := 02_tiled_matmul
