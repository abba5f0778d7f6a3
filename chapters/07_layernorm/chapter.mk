ARCH   := 80
GOLDEN := layernorm --types f32,bf16
# Launched early where the GPU can (launch.cuh).
NEEDS_07_layernorm/step2_layernorm_registers := 80 90
NEEDS_07_layernorm/step3_layernorm_residual := 80 90
NEEDS_07_layernorm/step4_rmsnorm := 80 90
NEEDS_07_layernorm/step8_gradient_ahead := 80 90
NEEDS_07_layernorm/step9_gradient_residual := 80 90
NEEDS_07_layernorm/step10_rmsnorm_gradient := 80 90
