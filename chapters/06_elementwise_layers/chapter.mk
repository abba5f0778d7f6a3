ARCH   := 80
GOLDEN := elementwise --types f32,bf16
# Launched early where the GPU can (launch.cuh).
NEEDS_06_elementwise_layers/step3_residual_stream := 80 90
NEEDS_06_elementwise_layers/step4_residual_gradient := 80 90
NEEDS_06_elementwise_layers/step5_gelu := 80 90
NEEDS_06_elementwise_layers/step6_gelu_exp2 := 80 90
NEEDS_06_elementwise_layers/step7_gelu_gradient := 80 90
NEEDS_06_elementwise_layers/step9_encoder_rows := 80 90
NEEDS_06_elementwise_layers/step12_encoder_buckets := 80 90
NEEDS_06_elementwise_layers/step13_encoder_sorted := 80 90
NEEDS_06_elementwise_layers/step14_encoder_chunks := 80 90
NEEDS_06_elementwise_layers/step15_encoder_ahead := 80 90
