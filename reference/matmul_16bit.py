"""C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]) with A, B and bias in bf16 or f16, for the Hopper chapters.

Two operations: `matmul`, C in the type of A and B, and `matmul_f32`, C in fp32, as it was accumulated.
"""

import bounds
import matmul


class Matmul16Bit(matmul.Matmul):
    def __init__(self, f32_out):
        self.f32_out = f32_out

    def cases(self, dtype):
        """Name -> dimensions and what is special about the case. k % 8 == 0: TMA's rows."""
        if dtype == "f16":
            ragged = {"ragged": dict(m=131, n=139, k=72, bias=True)}
            return ragged if self.f32_out else ragged | {"tiles": dict(m=136, n=264, k=200)}
        some = {
            "one_element": dict(m=1, n=1, k=8),
            "tile": dict(m=128, n=256, k=64),
            "several_tiles_bias": dict(m=384, n=520, k=328, bias=True),
            "ragged_bias": dict(m=37, n=259, k=104, bias=True),
        }
        if self.f32_out:
            return some
        return some | {
            "k_smallest": dict(m=65, n=34, k=8),  # rows of C of pairs, but of no 16 bytes: not TMA's
            "tall": dict(m=640, n=8, k=40),
            "wide": dict(m=8, n=640, k=40, bias=True),
            "deep": dict(m=24, n=40, k=1024),
            "outliers": dict(m=96, n=80, k=64, bias=True, outliers=True),
        }

    def tolerance(self, C, absolute, k, dtype):
        """As for any matmul, but that C in fp32 is not rounded once more."""
        return bounds.tensor_core_sum_of_products(k, absolute) if self.f32_out else super().tolerance(C, absolute, k, dtype)



OPERATIONS = {"matmul": Matmul16Bit(f32_out=False), "matmul_f32": Matmul16Bit(f32_out=True)}
