ARCH   := 75
GOLDEN := matmul --types f32
