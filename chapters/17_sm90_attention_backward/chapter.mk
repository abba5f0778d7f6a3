ARCH    := 90a
GOLDEN  := attention_backward --types bf16,f16
FEW_SMS := 4
USES    := 16_sm90_attention_variants/plan 16_sm90_attention_variants/kernel_bf16 16_sm90_attention_variants/kernel_f16 \
           16_sm90_attention_variants/step6_pack_gqa 16_sm90_attention_variants/step7_split_kv \
           16_sm90_attention_variants/step8_paged_kv 16_sm90_attention_variants/step9_append_kv
MARKED  := kernel_bf16 kernel_f16
