ARCH   := 80
GOLDEN := softmax
