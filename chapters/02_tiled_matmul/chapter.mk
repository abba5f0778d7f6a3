ARCH       := 75
GOLDEN     := matmul --types f32
GROWS_FROM := 01_naive_matmul
