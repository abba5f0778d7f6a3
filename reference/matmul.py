"""C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]): the definition, its error bound, and the cases of the matmul chapters."""

import numpy as np

import bounds


class Matmul:
    DIMS = ("m", "n", "k")
    INPUTS = ("A", "B", "bias")
    OPTIONAL = ("bias",)
    OWN_TYPE = ()

    def cases(self, dtype):
        """Name -> dimensions and what is special about the case. 16-bit rows must be multiples of 16 bytes: k % 8 == 0."""
        k = (lambda size: size) if dtype == "f32" else (lambda size: -(-size // 8) * 8)
        return {
            "one_element": dict(m=1, n=1, k=k(1)),
            "k_smallest": dict(m=65, n=33, k=k(1)),
            "one_tile": dict(m=128, n=128, k=32),
            "several_tiles": dict(m=256, n=384, k=192),
            "several_tiles_bias": dict(m=256, n=256, k=136, bias=True),
            "tall": dict(m=640, n=8, k=40),
            "wide": dict(m=8, n=640, k=40, bias=True),
            "deep": dict(m=24, n=40, k=1024),
            "ragged": dict(m=131, n=139, k=k(67)),
            "ragged_bias": dict(m=37, n=259, k=k(101), bias=True),
            "outliers": dict(m=96, n=80, k=64, bias=True, outliers=True),
        }

    def of_shape(self, dims):
        """The cases of a shape that the user asks for."""
        return {"plain": dict(dims), "bias": dict(dims, bias=True)}

    def check_shape(self, dims, dtype):
        """None, or what the dimensions would have to be."""
        if dtype != "f32" and dims["k"] % 8:
            return "k must be a multiple of 8, so that every row of A and B begins at a multiple of 16 bytes"
        return None

    def shapes(self, dims):
        """Tensor name -> shape."""
        m, n, k = (dims[name] for name in self.DIMS)
        return {"A": (m, k), "B": (n, k), "bias": (n,), "C": (m, n)}

    def inputs(self, rng, case):
        """Standard normal A (m, k), B (n, k) and bias (n,) in float64, before they are rounded to the chapter's type.

        Outliers: a few elements a thousand times larger. The bound is componentwise, so only the outputs that they reach
        are allowed a larger error.
        """
        names = [name for name in self.INPUTS if name not in self.OPTIONAL or case.get(name)]
        arrays = {name: rng.standard_normal(self.shapes(case)[name]) for name in names}
        if case.get("outliers"):
            for name in ("A", "B"):
                flat = arrays[name].reshape(-1)
                flat[rng.choice(flat.size, 5, replace=False)] *= 1000
        return arrays

    def outputs(self, arrays, dtype):
        """Output name -> (expected in float64, how far a correct kernel may be off), both (m, n).

        arrays: A (m, k), B (n, k) and perhaps bias (n,), of type `dtype`. |A| · |B|ᵀ + |bias| is the sum of the absolute
        values of all addends, which the bounds multiply.
        """
        A, B = (arrays[name].astype(np.float64) for name in "AB")
        bias = arrays.get("bias", np.zeros(B.shape[0])).astype(np.float64)
        C = A @ B.T + bias
        absolute = np.abs(A) @ np.abs(B).T + np.abs(bias)
        return {"C": (C, self.tolerance(C, absolute, A.shape[1], dtype))}

    def tolerance(self, C, absolute, k, dtype):
        """How far a correct kernel may be off C (m, n), whose addends' absolute values sum up to `absolute`."""
        if dtype == "f32":
            return bounds.fp32_sum_of_products(k + 1, absolute)  # the bias is one more addend
        return bounds.rounded_output(C, bounds.tensor_core_sum_of_products(k, absolute), dtype)


OPERATIONS = {"matmul": Matmul()}
