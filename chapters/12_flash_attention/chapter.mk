ARCH   := 80
GOLDEN := attention --types bf16,f16
