ARCH       := 90a
GOLDEN     := matmul_16bit --types bf16,f16
GROWS_FROM := 13_tma_wgmma_matmul
