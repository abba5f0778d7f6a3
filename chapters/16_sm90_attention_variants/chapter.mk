ARCH   := 90a
GOLDEN := attention_variants --types bf16,f16
