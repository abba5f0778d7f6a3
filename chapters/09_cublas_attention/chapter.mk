ARCH   := 80
GOLDEN := cublas_attention --types f32,bf16
USES   := 06_elementwise_layers/step7_gelu_gradient 08_online_softmax/step8_causal 08_online_softmax/step10_causal_reverse 08_online_softmax/step15_causal_backward
# Launched early where the GPU can (launch.cuh).
NEEDS_09_cublas_attention/step2_permute_packs := 80 90
NEEDS_09_cublas_attention/step3_unpermute_packs := 80 90
