ARCH   := 80
GOLDEN := attention --dtype bf16
