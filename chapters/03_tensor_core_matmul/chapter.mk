ARCH       := 80
GOLDEN     := matmul --dtype bf16
GROWS_FROM := 02_tiled_matmul
