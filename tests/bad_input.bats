#!/usr/bin/env bats
# Bad input is refused before anything runs: exit status 2 and one line that names the file or flag, what was found
# and what was expected. No device is needed for any of it.

# Bats sets stderr; CASE_DIR is set for the test that runs.
# shellcheck disable=SC2154,SC2030,SC2031
load test_helper/common

setup() {
    PROGRAM=$(chapter 01_naive_matmul)
    one_case 01_naive_matmul k_smallest # A (65, 1), B (33, 1), C (65, 33)
}

# refused MESSAGE: the case is refused with exactly this line.
refused() {
    run -2 --separate-stderr "$PROGRAM" --golden "$CASE_DIR"
    assert_equal "$stderr" "$1"
    assert_equal "$output" ""
}

@test "bad input: a missing input file is named" {
    rm "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: cannot open: No such file or directory"
}

@test "bad input: a missing expected output is named" {
    rm "$CASE_DIR/C.npy"
    refused "$CASE_DIR/C.npy: cannot open: No such file or directory"
}

@test "bad input: a missing tolerance is named" {
    rm "$CASE_DIR/C.tol.npy"
    refused "$CASE_DIR/C.tol.npy: cannot open: No such file or directory"
}

@test "bad input: data cut short is truncated" {
    truncate -s -1 "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: truncated: 259 bytes of data, shape (65, 1) of f32 needs 260"
}

@test "bad input: a header cut short is truncated" {
    truncate -s 50 "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: truncated: 50 bytes, its header alone needs 128"
}

@test "bad input: a file of nine bytes is truncated" {
    truncate -s 9 "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: truncated: 9 bytes, too short for a header"
}

@test "bad input: an empty file is no .npy file" {
    : >"$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: not a .npy file: it does not begin with \\x93NUMPY"
}

@test "bad input: a text file is no .npy file" {
    echo "1 2 3 4 5 6 7 8" >"$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: not a .npy file: it does not begin with \\x93NUMPY"
}

@test "bad input: bytes after the array are refused" {
    echo extra >>"$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: too long: 266 bytes of data, shape (65, 1) of f32 needs 260"
}

@test "bad input: a folder in place of a file is refused" {
    rm "$CASE_DIR/A.npy" && mkdir "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: not a regular file, expected a .npy file"
}

@test "bad input: an unknown .npy version is refused" {
    printf '\x04' | dd of="$CASE_DIR/A.npy" bs=1 seek=6 conv=notrunc status=none
    refused "$CASE_DIR/A.npy: .npy version 4.0, expected 1.0, 2.0 or 3.0"
}

@test "bad input: versions 2.0 and 3.0 are read" {
    local version
    for version in 2 3; do
        python 'a = np.load(sys.argv[1]); np.lib.format.write_array(open(sys.argv[1], "wb"), a, version=(int(sys.argv[2]), 0))' "$CASE_DIR/A.npy" $version
        run --separate-stderr "$PROGRAM" --golden "$CASE_DIR"
        refute [ "$status" -eq 2 ]
    done
}

@test "bad input: a wrong dtype is named beside the expected one" {
    python 'np.save(sys.argv[1], np.ones((65, 1)))' "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: dtype '<f8', expected '<f4' (f32)"
}

@test "bad input: big-endian data is refused as such" {
    python 'np.save(sys.argv[1], np.ones((65, 1), ">f4"))' "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: dtype '>f4' is big-endian, expected '<f4' (f32)"
}

@test "bad input: an integer output is refused where numbers are expected" {
    python 'np.save(sys.argv[1], np.ones((65, 33), np.int32))' "$CASE_DIR/C.npy"
    refused "$CASE_DIR/C.npy: dtype '<i4', expected '<f4' (f32) or '<f8' (f64)"
}

@test "bad input: Fortran order is refused with its remedy" {
    one_case 01_naive_matmul one_tile
    python 'np.save(sys.argv[1], np.asfortranarray(np.load(sys.argv[1])))' "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: fortran_order is True, expected C order: save numpy.ascontiguousarray(...)"
}

@test "bad input: a structured dtype is refused" {
    python 'np.save(sys.argv[1], np.zeros((65, 1), [("x", "<f4")]))' "$CASE_DIR/A.npy"
    run -2 --separate-stderr "$PROGRAM" --golden "$CASE_DIR"
    assert_regex "$stderr" "A.npy: header: descr is .*, expected a plain dtype such as '<f4'"
}

@test "bad input: a wrong inner dimension is named beside the expected shape" {
    python 'np.save(sys.argv[1], np.ones((33, 2), np.float32))' "$CASE_DIR/B.npy"
    refused "$CASE_DIR/B.npy: shape (33, 2), expected (n,k) = (33, 1)"
}

@test "bad input: a wrong output shape is named" {
    python 'np.save(sys.argv[1], np.ones((33, 65)))' "$CASE_DIR/C.npy"
    refused "$CASE_DIR/C.npy: shape (33, 65), expected (m,n) = (65, 33)"
}

@test "bad input: a wrong rank is named" {
    python 'np.save(sys.argv[1], np.ones(65, np.float32))' "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: shape (65,), expected (m,k) = (65, 1)"
}

@test "bad input: a bias of the wrong length is named" {
    python 'np.save(sys.argv[1], np.ones(34, np.float32))' "$CASE_DIR/bias.npy"
    refused "$CASE_DIR/bias.npy: shape (34,), expected (n) = (33,)"
}

@test "bad input: a dimension of zero is refused" {
    python 'np.save(sys.argv[1], np.ones((0, 1), np.float32))' "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: shape (0, 1), expected every dimension to be at least 1"
}

# header TEXT FILE: a .npy file whose header says TEXT, without data.
header() {
    python 'h = sys.argv[1].encode().ljust(117) + b"\n"; open(sys.argv[2], "wb").write(b"\x93NUMPY\x01\x00" + len(h).to_bytes(2, "little") + h)' "$1" "$2"
}

@test "bad input: a negative dimension is refused" {
    header "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 2), }" "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: header: shape holds '-4', expected a whole number of at least 1"
}

@test "bad input: a size that overflows 64 bits is refused" {
    header "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }" "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: shape (4294967296, 4294967296): the size overflows 64 bits"
}

@test "bad input: a dimension that overflows 64 bits is refused" {
    header "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 1), }" "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: header: shape holds 99999999999999999999, which overflows 64 bits"
}

@test "bad input: a huge shape without its data is truncated, not allocated" {
    header "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 1000), }" "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: truncated: 0 bytes of data, shape (1000000000000, 1000) of f32 needs 4000000000000000"
}

@test "bad input: a header that is no dictionary is refused" {
    header "['descr']" "$CASE_DIR/A.npy"
    run -2 --separate-stderr "$PROGRAM" --golden "$CASE_DIR"
    assert_regex "$stderr" "A.npy: header: begins with .*, expected a dictionary"
}

@test "bad input: a header key that comes twice, is unknown or is missing is refused" {
    header "{'descr': '<f4', 'descr': '<f4', 'shape': (1,), }" "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: header: key 'descr' is unknown or comes twice"
    header "{'descr': '<f4', 'fortran_order': False, }" "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: header: 'shape' is missing"
    header "{'descr': '<f4', 'order': False, }" "$CASE_DIR/A.npy"
    refused "$CASE_DIR/A.npy: header: key 'order' is unknown or comes twice"
}

@test "bad input: every prefix of a good file is refused" {
    local bytes size
    size=$(stat -c %s "$CASE_DIR/A.npy")
    cp "$CASE_DIR/A.npy" "$BATS_TEST_TMPDIR/good.npy"
    for ((bytes = 0; bytes < size; bytes += 7)); do
        head -c $bytes "$BATS_TEST_TMPDIR/good.npy" >"$CASE_DIR/A.npy"
        run -2 "$PROGRAM" --golden "$CASE_DIR"
        assert_one_line
        assert_line --partial "$CASE_DIR/A.npy: "
    done
}

@test "bad input: headers with random bytes never crash the reader" {
    local seed
    cp "$CASE_DIR/A.npy" "$BATS_TEST_TMPDIR/good.npy"
    python 'data = open(sys.argv[1], "rb").read()
for seed in range(1, 61):
    r = np.random.default_rng(seed); d = bytearray(data)
    for i in r.integers(6, 128, 3): d[i] = r.integers(256)
    open(f"{sys.argv[2]}/{seed}.npy", "wb").write(d)' "$BATS_TEST_TMPDIR/good.npy" "$BATS_TEST_TMPDIR"
    for seed in {1..60}; do
        cp "$BATS_TEST_TMPDIR/$seed.npy" "$CASE_DIR/A.npy"
        run "$PROGRAM" --golden "$CASE_DIR"
        [[ $status -eq 2 || $status -eq 3 ]] # 3: still a good file, and no device here
    done
}

@test "bad input: NaN is never expected" {
    python 'a = np.load(sys.argv[1]); a[3, 5] = np.nan; np.save(sys.argv[1], a)' "$CASE_DIR/C.npy"
    refused "$CASE_DIR/C.npy: C[row 3, col 5] is NaN, expected a number: NaN is never right"
}

@test "bad input: a tolerance that is NaN, negative or infinite is refused" {
    local value shown
    for value in nan -1 inf; do
        one_case 01_naive_matmul one_element
        python 'np.save(sys.argv[1], np.full((1, 1), float(sys.argv[2])))' "$CASE_DIR/C.tol.npy" $value
        run -2 --separate-stderr "$PROGRAM" --golden "$CASE_DIR"
        shown=${stderr#"$CASE_DIR/C.tol.npy: C[row 0, col 0] is "}
        assert_equal "$shown" "$value, expected a finite tolerance of at least 0"
        rm -r "$CASE_DIR"
    done
}

@test "bad input: a file that no tensor explains is refused" {
    cp "$CASE_DIR/A.npy" "$CASE_DIR/bais.npy"
    refused "$CASE_DIR/bais.npy: no tensor has this file in a case of f32; --help lists them"
}

@test "bad input: a folder without cases is refused" {
    mkdir "$BATS_TEST_TMPDIR/empty"
    run -2 --separate-stderr "$PROGRAM" --golden "$BATS_TEST_TMPDIR/empty"
    assert_equal "$stderr" "--golden $BATS_TEST_TMPDIR/empty: no cases, expected folders of .npy files"
}

@test "bad input: a golden folder that is not there is named" {
    run -2 --separate-stderr "$PROGRAM" --golden /nonexistent
    assert_equal "$stderr" "--golden /nonexistent: cannot read the golden folder: No such file or directory"
}

@test "bad input: bf16 in a file for f32 is refused by its name" {
    PROGRAM=$(chapter 03_tensor_core_matmul)
    run -2 --separate-stderr "$PROGRAM" --golden "$CASE_DIR"
    assert_equal "$stderr" "$CASE_DIR/A.npy: no tensor has this file in a case of bf16; --help lists them"
}

@test "bad input: a bf16 case whose k is no multiple of 8 is refused before it runs" {
    local dir=$BATS_TEST_TMPDIR/k9
    mkdir "$dir"
    python 'd = sys.argv[1]
for name, shape in ("A", (3, 9)), ("B", (2, 9)): np.save(f"{d}/{name}.bf16.npy", np.ones(shape, np.uint16))
np.save(f"{d}/C.npy", np.ones((3, 2))); np.save(f"{d}/C.tol.npy", np.ones((3, 2)))' "$dir"
    run -2 --separate-stderr "$(chapter 03_tensor_core_matmul)" --golden "$dir"
    assert_equal "$stderr" "$dir: shape m=3,n=2,k=9: k must be a multiple of 8, so that every row of A and B begins at a multiple of 16 bytes"
}

@test "bad input: SHAPE is refused by make with the size that is wrong" {
    local shape message
    while IFS='|' read -r shape message; do
        run -2 --separate-stderr "$PYTHON" reference/golden.py matmul --types f32 --out "$BATS_TEST_TMPDIR/out" --shape "$shape"
        assert_equal "$stderr" "SHAPE '$shape': $message"
    done <<'EOF'
m=0,n=4,k=4|m is 0, expected 1 to 2147483647
m=4,n=-4,k=4|n is -4, expected 1 to 2147483647
m=4,n=4,k=99999999999999999999|k is 99999999999999999999, expected 1 to 2147483647
m=4,n=4,k=2147483647|A (4, 2147483647) is too large, expected at most 134217728 elements
m=4,n=4|k is missing
m=4,n=4,m=4,k=4|m comes twice
m=4,n=4,k=four|k is 'four', expected a whole number
m=4,n=4,q=4|found 'q=4', expected m=SIZE,n=SIZE,k=SIZE
EOF
}
