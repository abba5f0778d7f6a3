ARCH    := 90a
GOLDEN  := fp8_attention --types e4m3
FEW_SMS := 4
USES    := 15_sm90_attention_forward/step10_tma_store
