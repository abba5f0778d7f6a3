ARCH   := 80
GOLDEN := gpt2 --types f32,bf16
USES   := 06_elementwise_layers/step3_residual_stream 06_elementwise_layers/step6_gelu_exp2 06_elementwise_layers/step7_gelu_gradient \
          06_elementwise_layers/step9_encoder_rows 06_elementwise_layers/step14_encoder_chunks \
          07_layernorm/step2_layernorm_registers 07_layernorm/step3_layernorm_residual 07_layernorm/step8_gradient_ahead \
          07_layernorm/step9_gradient_residual \
          08_online_softmax/step10_causal_reverse 08_online_softmax/step15_causal_backward 08_online_softmax/step17_classifier_shared \
          09_cublas_attention/blas 09_cublas_attention/step6_attention_reverse 09_cublas_attention/step8_gradient_in_place \
          09_cublas_attention/step10_bias_partials 10_adamw_mixed_precision/step8_loss_scale \
          10_adamw_mixed_precision/step9_update_in_one_pass 12_flash_attention/step12_one_barrier \
          14_warp_specialized_matmul/step5_ping_pong 15_sm90_attention_forward/step10_tma_store \
          17_sm90_attention_backward/plan 17_sm90_attention_backward/preprocess 17_sm90_attention_backward/postprocess \
          17_sm90_attention_backward/kernel_bf16 17_sm90_attention_backward/kernel_f16 17_sm90_attention_backward/step6_tiles \
          17_sm90_attention_backward/step7_deterministic
