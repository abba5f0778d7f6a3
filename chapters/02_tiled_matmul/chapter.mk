ARCH   := 75
GOLDEN := matmul --dtype f32
