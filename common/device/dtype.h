// The element types, as the host's C and the kernels both name them.
#pragma once

// NumPy has no bf16 and no fp8: their bits are stored as unsigned integers, and the file's name says so.
enum dtype {
    F32 = 1, // '<f4' in NAME.npy
    F64,     // '<f8' in NAME.npy
    F16,     // '<f2' in NAME.npy
    BF16,    // '<u2' in NAME.bf16.npy
    E4M3,    // '|u1' in NAME.e4m3.npy
    E5M2,    // '|u1' in NAME.e5m2.npy
    I32,     // '<i4' in NAME.npy
    I64,     // '<i8' in NAME.npy
    U8,      // '|u1' in NAME.npy
};
