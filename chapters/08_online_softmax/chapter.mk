ARCH   := 80
GOLDEN := softmax --types f32,bf16
NEEDS_08_online_softmax/step19_cluster := 90
NEEDS_08_online_softmax/step20_backward_cluster := 90
NEEDS_08_online_softmax/step21_classifier_cluster := 90
