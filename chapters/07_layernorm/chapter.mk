ARCH   := 80
GOLDEN := layernorm --types f32,bf16
