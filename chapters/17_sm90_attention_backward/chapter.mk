ARCH   := 90a
GOLDEN := attention_backward --types bf16,f16
