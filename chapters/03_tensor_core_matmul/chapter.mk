ARCH   := 80
GOLDEN := matmul --dtype bf16
