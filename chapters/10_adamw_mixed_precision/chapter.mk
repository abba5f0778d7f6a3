ARCH   := 80
GOLDEN := adamw --types f32,bf16
# Launched early where the GPU can (launch.cuh).
NEEDS_10_adamw_mixed_precision/step2_adamw_fours := 80 90
