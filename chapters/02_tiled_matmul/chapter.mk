ARCH       := 75
GOLDEN     := matmul --dtype f32
GROWS_FROM := 01_naive_matmul
