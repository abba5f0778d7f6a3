ARCH       := 80
GOLDEN     := matmul --types bf16
GROWS_FROM := 03_tensor_core_matmul
