ARCH    := 90a
GOLDEN  := sm90_attention --types bf16,f16
FEW_SMS := 4
