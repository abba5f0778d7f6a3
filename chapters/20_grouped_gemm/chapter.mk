ARCH   := 90a
GOLDEN := grouped_gemm --types e4m3
USES   := 19_fp8_gemm/baseline
