ARCH   := 80
GOLDEN := softmax --types f32,bf16
