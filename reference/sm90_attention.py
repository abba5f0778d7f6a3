"""Attention as in attention.py, for the Hopper chapters: head dimensions of 64, 128 and 256, and the cases that they need."""

import numpy as np

import attention


class Sm90Attention(attention.Attention):
    HEAD_DIMS = (64, 128, 256)

    def cases(self, dtype):
        """Those of chapter 12, and: lengths at the edge of a tile, D = 256, more tiles than SMs, scores that rise."""

        def case(q, k, d, h=1, g=1, b=1, **special):
            return dict(b=b, q=q, k=k, h=h, g=g, d=d, **special)

        if dtype == "f16":
            return super().cases(dtype) | {
                "rising": case(130, 700, 128, rising=True),
                "d256_causal": case(150, 150, 256, h=2, causal=True),
            }
        return super().cases(dtype) | {
            "len127": case(127, 127, 64, h=3, g=3),
            "len128_causal": case(128, 128, 128, h=2, causal=True),
            "len129_causal": case(129, 129, 64, causal=True),
            "d256": case(200, 333, 256, h=2),
            "d256_causal": case(300, 300, 256, h=2, causal=True),
            "d256_whole_tiles": case(256, 256, 256, h=2),
            "d256_empty_rows_causal": case(200, 30, 256, causal=True),
            "rising": case(200, 900, 64, rising=True),
            "rising_causal": case(400, 400, 128, rising=True, causal=True),
            "d256_rising": case(70, 500, 256, rising=True),
            "many_tiles": case(70, 40, 64, h=50, g=10, b=3),
            "many_tiles_causal": case(200, 200, 128, h=40, g=5, b=2, causal=True),
        }

    def pipeline_error(self, Q, K, V, causal, dtype, O):
        """The larger error of two versions: with m the maximum, where the largest P is 1 and so not rounded, and with an m
        that follows only scores 2^8 above it, as the kernels have it."""
        lazy = attention.tile_by_tile(Q, K, V, causal, 64, np.float32, dtype, slack=8)[0].astype(np.float64)
        return np.maximum(super().pipeline_error(Q, K, V, causal, dtype, O), np.abs(lazy - O))

    def inputs(self, rng, case):
        """As for chapter 12. Rising: each key's score is about 0.12 above that of the key before, for every query, so that
        the maximum grows by more than a factor of 2^8 from tile to tile."""
        arrays = super().inputs(rng, case)
        if case.get("rising"):
            arrays["Q"][..., 0] = 1
            arrays["K"][..., 0] = 0.12 * np.sqrt(case["d"]) * np.arange(case["k"])[:, None]
        return arrays


OPERATIONS = {"attention": Sm90Attention()}
