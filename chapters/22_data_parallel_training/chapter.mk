ARCH   := 80
GOLDEN := data_parallel --types f32,bf16
USES   := 11_gpt2_training/attention 11_gpt2_training/layers 11_gpt2_training/model 11_gpt2_training/profile 11_gpt2_training/run \
          11_gpt2_training/step2_fused $(USES_11_gpt2_training)
LIBS   := -pthread
