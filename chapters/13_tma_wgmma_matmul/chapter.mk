ARCH   := 90a
GOLDEN := matmul_16bit
