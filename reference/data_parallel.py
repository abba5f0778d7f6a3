"""The operation of chapter 22: chapter 11's training steps. How many GPUs share a batch does not change what is right: the mean of the
parts' gradients is the gradient of the whole, and sums of parts are sums in another order, which gpt2.py's tolerances allow for."""

import gpt2
import numpy as np


class DataParallel(gpt2.Gpt2):
    def cases(self, dtype):
        # Batches for 1, 2, 3, 4, 6, 8, 12 and 24 ranks; 3 divides few of the parameters' sizes, 16 not all of them.
        shapes = {"tiny": (4, 24, 5, 2, 2, 32, 61, 9), "ragged": (3, 24, 3, 3, 1, 8, 13, 9)}
        return {name: dict(zip(self.DIMS, shape)) for name, shape in shapes.items()}

    def inputs(self, rng, case):
        """An epsilon of the size of gradients: without one AdamW's first step is lr to the side of each gradient's sign, and where that is
        within the noise, one of the few steps goes to the other side."""
        return super().inputs(rng, case) | {"epsilon": np.float32(1e-3)}


OPERATIONS = {"data_parallel_step": DataParallel()}
