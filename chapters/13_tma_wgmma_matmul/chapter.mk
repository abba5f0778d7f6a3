ARCH       := 90a
GOLDEN     := matmul_16bit
GROWS_FROM := 05_cp_async_pipeline
