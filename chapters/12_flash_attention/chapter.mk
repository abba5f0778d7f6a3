ARCH       := 80
GOLDEN     := attention --types bf16,f16
GROWS_FROM := 05_cp_async_pipeline
