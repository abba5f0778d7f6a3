ARCH    := 90a
GOLDEN  := mixture_of_experts --types e4m3
FEW_SMS := 4
USES    := 19_fp8_gemm/baseline 18_fp8_quantization/step6_fused
