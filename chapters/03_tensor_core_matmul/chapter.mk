ARCH   := 80
GOLDEN := matmul --types bf16
