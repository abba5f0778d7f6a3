ARCH       := 90a
GOLDEN     := matmul_16bit
GROWS_FROM := 13_tma_wgmma_matmul
