ARCH   := 89
GOLDEN := fp8_quantization --types e4m3,e5m2
