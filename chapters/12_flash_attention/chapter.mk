ARCH       := 80
GOLDEN     := attention --dtype bf16
GROWS_FROM := 05_cp_async_pipeline
