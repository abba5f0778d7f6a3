"""The operations of chapter 20: products of e4m3 numbers where groups of rows, or of columns, have matrices of their own.

aligned   D[r] = A[r] · B[row_group[r]]ᵀ: the group of a row is that of the first row of its 128; rows without one keep their D.
ragged    the first counts[0] rows are of group 0, the next counts[1] of group 1, and so on; the others keep their D.
masked    A (g, c, k), D (g, c, n): the first counts[i] rows of each of the g groups; the others keep their D.
k_groups  D[i] += A[:, columns of i] · B[:, columns of i]ᵀ: counts[i] columns, rounded up to a multiple of 128 with zeros.

Sums, scales and bounds are chapter 19's (fp8_gemm.py): a group is a product of its own.
"""

import fp8_gemm
import fp8_quantization as fp8
import numpy as np

from bounds import UNIT_ROUNDOFF, gamma, rounded_output
from fp8_quantization import GROUP, up_to

U = UNIT_ROUNDOFF["f32"]
BLOCK_M = 128


def split(rng, total, groups):
    """Counts that a router might give: some groups have most, some nothing."""
    share = rng.exponential(1.0, groups) * (rng.random(groups) < 0.8)
    return np.diff(np.floor(np.append(0, np.cumsum(share / max(share.sum(), 1e-9))) * total + 1e-6).astype(int), prepend=0)[1:]


def quantised_rows(x):
    """(out, scales (groups of k, rows)) of a matrix whose rows have a scale for each 128."""
    (out, _), (scale, _) = fp8.along_rows(x, np.zeros_like(x), "e4m3", False)
    return out, np.ascontiguousarray(scale, np.float32)


def quantised_squares(x):
    out, scale = fp8.by_groups(x, np.zeros_like(x), GROUP, GROUP, "e4m3", False)
    return out[0], scale[0].astype(np.float32)


def column_scales(scale, n):
    """Scales of squares (squares of n, groups of k) -> (groups of k, n)."""
    return np.repeat(scale.T.astype(np.float64), GROUP, 1)[:, :n]


class Grouped:
    INPUTS = ("A", "B", "scale_A", "scale_B", "counts", "D")
    OPTIONAL = ()
    OWN_TYPE = ("scale_A", "scale_B", "counts")
    FIXED = {"D": "bf16"}

    def cases(self, dtype):
        return {name: dict(zip(self.DIMS, shape)) | {"counts": counts} for name, (shape, counts) in self.CASES.items()}

    def of_shape(self, dims):
        return {"plain": dict(dims)}

    def check_shape(self, dims, dtype):
        return "k must be a multiple of 16, so that every row of A and B begins at a multiple of 16 bytes" if dims["k"] % 16 else None

    def inputs(self, rng, case):
        g, n, k = case["g"], case["n"], case["k"]
        A, scale_A = quantised_rows(rng.standard_normal((self.rows(case), k)))
        B, scale_B = zip(*(quantised_squares(rng.standard_normal((n, k)) * 2.0**i) for i in rng.integers(-3, 4, g)))
        return {"A": A.reshape(self.shapes(case)["A"]), "B": np.array(B), "scale_A": scale_A, "scale_B": np.array(scale_B)} | {
            self.OF_GROUPS: np.array(self.group_input(rng, case), np.int32),
            "D": rng.standard_normal(self.shapes(case)["D"]),
        }

    def group_input(self, rng, case):
        return split(rng, case["m"], case["g"]) if case.get("counts") is None else case["counts"]

    OF_GROUPS = "counts"

    def rows(self, case):
        return case["m"]

    def shapes(self, case):
        m, n, k, g = (case[name] for name in "mnkg")
        return {"A": (m, k), "B": (g, n, k), "D": (m, n)}

    def outputs(self, arrays, dtype):
        k, n = arrays["A"].shape[-1], arrays["B"].shape[1]
        A, D = arrays["A"].reshape(-1, k), arrays["D"].reshape(-1, n).astype(np.float64)
        error = np.zeros_like(D)
        for rows, group in self.segments(arrays):
            if len(A[rows]) == 0:
                continue
            scale_A = arrays["scale_A"][:, : len(A)][:, rows].astype(np.float64)
            value, magnitudes = fp8_gemm.promoted(A[rows], arrays["B"][group], scale_A, column_scales(arrays["scale_B"][group], n))
            D[rows], error[rows] = value, rounded_output(value, gamma(len(scale_A) + 3, U) * magnitudes, "bf16")
        return {"D.after": (D.reshape(arrays["D"].shape), error.reshape(arrays["D"].shape))}


class Aligned(Grouped):
    INPUTS = ("A", "B", "scale_A", "scale_B", "row_group", "D")
    OWN_TYPE = ("scale_A", "scale_B", "row_group")
    OF_GROUPS = "row_group"
    DIMS = ("m", "n", "k", "g")
    # The group of each tile of 128 rows.
    CASES = {
        "smallest": ((1, 1, 16, 1), [0]),
        "ragged": ((300, 139, 272, 3), [2, -1, 0]),
        "two_groups": ((256, 200, 144, 2), [0, 1]),
        "odd_n": ((133, 71, 144, 4), [3, 3]),
        "pairs": ((645, 200, 144, 3), [1, 1, -1, -1, 0, 2]),
        "nobody": ((128, 40, 16, 2), [-1]),
        "deep": ((128, 40, 1808, 2), [1]),
    }

    def group_input(self, rng, case):
        tiles = -(-case["m"] // BLOCK_M)
        groups = np.sort(rng.integers(-1, case["g"], tiles)) if case.get("counts") is None else case["counts"]
        return np.repeat(groups, BLOCK_M)[: case["m"]]

    def segments(self, arrays):
        group = arrays["row_group"]
        if group.max() >= len(arrays["B"]):
            raise ValueError(f"row_group: {group.max()}, expected at most {len(arrays['B']) - 1}")
        for row in range(0, len(group), BLOCK_M):
            if group[row] >= 0:
                yield slice(row, row + BLOCK_M), group[row]


def check_counts(counts, most):
    if counts.min() < 0:
        raise ValueError(f"counts: {counts.min()}, expected at least 0")
    if most < 0:
        raise ValueError(f"counts: {-most} more than there is room for")


class Ragged(Grouped):
    DIMS = ("m", "n", "k", "g")
    CASES = {
        "smallest": ((1, 1, 16, 1), [1]),
        "ragged": ((270, 139, 272, 5), [70, 0, 131, 1, 60]),
        "one_has_all": ((197, 200, 144, 4), [0, 0, 197, 0]),
        "pairs": ((600, 250, 144, 3), [257, 30, 256]),
        "one_row": ((1, 264, 144, 3), [0, 1, 0]),
        "all_empty": ((20, 40, 16, 3), [0, 0, 0]),
        "many_groups": ((90, 72, 144, 60), ([0, 3, 1, 0, 2] * 12)),
        "odd_n": ((150, 71, 144, 2), [129, 20]),
        "tail": ((150, 72, 144, 2), [80, 50]),
        "deep": ((130, 40, 1808, 2), [65, 65]),
    }

    def segments(self, arrays):
        counts = arrays["counts"].astype(int)
        check_counts(counts, len(arrays["A"]) - counts.sum())
        ends = np.cumsum(counts)
        return ((slice(end - count, end), i) for i, (count, end) in enumerate(zip(counts, ends)))


class Masked(Grouped):
    INPUTS = (*Grouped.INPUTS, "e")
    OWN_TYPE = (*Grouped.OWN_TYPE, "e")
    DIMS = ("g", "c", "n", "k", "e")
    CASES = {
        "smallest": ((1, 1, 1, 16, 1), [1]),
        "ragged": ((3, 150, 139, 272, 70), [150, 0, 65]),
        "halves": ((4, 130, 72, 144, 100), [64, 65, 128, 129]),
        "decode": ((9, 21, 200, 400, 8), [3, 0, 21, 7, 1, 0, 12, 20, 5]),
        "all_empty": ((2, 5, 40, 16, 1), [0, 0]),
        "many_groups": ((70, 3, 40, 144, 1), [3, 0, 1, 0, 2] * 14),
        "odd_n": ((2, 33, 71, 144, 20), [33, 18]),
        "deep": ((2, 70, 40, 1808, 40), [70, 9]),
    }

    def group_input(self, rng, case):
        return rng.integers(0, case["c"] + 1, case["g"]) * (rng.random(case["g"]) < 0.8) if case.get("counts") is None else case["counts"]

    def inputs(self, rng, case):
        arrays = super().inputs(rng, case)
        return arrays | {"e": np.array(case["e"], np.int32)}

    def rows(self, case):
        return case["g"] * case["c"]

    def shapes(self, case):
        g, c, n, k, _ = (case[name] for name in self.DIMS)
        return {"A": (g, c, k), "B": (g, n, k), "D": (g, c, n)}

    def segments(self, arrays):
        capacity, counts = arrays["A"].shape[1], arrays["counts"].astype(int)
        check_counts(counts, capacity - counts.max())
        return ((slice(i * capacity, i * capacity + count), i) for i, count in enumerate(counts))


class KGroups(Grouped):
    DIMS = ("m", "n", "k", "g")
    OWN_TYPE = (*Grouped.OWN_TYPE, "D")
    FIXED = {}
    CASES = {
        "smallest": ((1, 1, 128, 1), [1]),
        "ragged": ((131, 139, 640, 4), [200, 0, 60, 128]),
        "one_has_all": ((70, 264, 384, 3), [0, 300, 0]),
        "all_empty": ((20, 40, 128, 3), [0, 0, 0]),
        "several_tiles": ((200, 300, 384, 2), [129, 77]),
        "odd_n": ((66, 71, 256, 2), [3, 128]),
        "deep": ((24, 40, 2048, 2), [1000, 897]),
    }

    def check_shape(self, dims, dtype):
        return "k must be a multiple of 128, since every group begins at one" if dims["k"] % GROUP else None

    def shapes(self, case):
        m, n, k, g = (case[name] for name in self.DIMS)
        return {"A": (m, k), "B": (n, k), "D": (g, m, n)}

    def group_input(self, rng, case):
        if case.get("counts") is not None:
            return case["counts"]
        blocks = split(rng, case["k"] // GROUP, case["g"])
        return [int(rng.integers((b - 1) * GROUP + 1, b * GROUP + 1)) if b else 0 for b in blocks]

    def inputs(self, rng, case):
        m, n, k = (case[name] for name in "mnk")
        counts = np.array(self.group_input(rng, case), np.int32)
        there = np.concatenate([np.arange(up_to(c, GROUP)) < c for c in counts] + [np.zeros(0, bool)])
        there = np.pad(there, (0, k - len(there)))
        arrays = {"counts": counts, "D": rng.standard_normal((case["g"], m, n)).astype(np.float32)}
        for name, rows in ("A", m), ("B", n):
            arrays[name], arrays[f"scale_{name}"] = quantised_rows(rng.standard_normal((rows, k)) * there)
        return arrays

    def outputs(self, arrays, dtype):
        counts = up_to(arrays["counts"].astype(int), GROUP)
        check_counts(arrays["counts"], arrays["A"].shape[1] - counts.sum())
        D = arrays["D"].astype(np.float64)
        error = np.zeros_like(D)
        for i, (count, end) in enumerate(zip(counts, np.cumsum(counts))):
            if count == 0:
                continue
            columns, blocks = slice(end - count, end), slice((end - count) // GROUP, end // GROUP)
            scales = (arrays[f"scale_{x}"][blocks, : len(arrays[x])].astype(np.float64) for x in "AB")
            product, magnitudes = fp8_gemm.promoted(arrays["A"][:, columns], arrays["B"][:, columns], *scales)
            D[i] += product
            error[i] = gamma(count // GROUP + 3, U) * magnitudes * (1 + U) + U * (np.abs(D[i]) + np.abs(product))
        return {"D.after": (D, error)}


OPERATIONS = {"aligned": Aligned(), "ragged": Ragged(), "masked": Masked(), "k_groups": KGroups()}
