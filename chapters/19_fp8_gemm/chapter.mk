ARCH    := 90a
GOLDEN  := fp8_gemm --types e4m3
FEW_SMS := 4
