ARCH   := 80
GOLDEN := elementwise --types f32,bf16
