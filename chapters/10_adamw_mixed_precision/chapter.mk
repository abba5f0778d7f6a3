ARCH   := 80
GOLDEN := adamw --types f32,bf16
