ARCH       := 90a
GOLDEN     := matmul_16bit --types bf16,f16
GROWS_FROM := 05_cp_async_pipeline
