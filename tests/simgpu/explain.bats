#!/usr/bin/env bats
# --explain: a fault names the section of the notes that teaches what it is about, and that section is there.

# shellcheck disable=SC2154
load ../test_helper/common

TABLE=$ROOT/tools/simgpu/report/explain.c

# explains KERNEL SECTION [PROGRAM [OPTIONS]]: the fault of this kernel, of faults/faults.cu or another, names the section, once.
explains() {
    run -1 "$SIMGPU" --explain --max-instructions 300000 "${@:4}" "$ROOT/build/tests/simgpu/${3-faults/faults}" "$1"
    assert_line "  explained in $2"
    assert_equal "$(grep -c 'explained in' <<<"$output")" 1
}

@test "explain: faults name the section that teaches them" {
    explains read_beyond notes/01_naive_matmul.md#5-the-code-in-the-order-it-runs
    explains shared_beyond notes/04_swizzled_smem.md#7-break-it
    explains misaligned_vector notes/glossary.md#the-c-on-one-page
    explains unwaited_copy notes/05_cp_async_pipeline.md#4-the-idea-by-hand
    explains source_changed notes/14_warp_specialized_matmul.md#4-the-idea-by-hand
    explains over_arrival notes/13_tma_wgmma_matmul.md#4-the-idea-by-hand
    explains divergent_barrier notes/simulated_gpu.md#when-lanes-part
    explains uneven_barrier notes/15_sm90_attention_forward.md#5-the-code-in-the-order-it-runs
    explains mbarrier_overwritten notes/13_tma_wgmma_matmul.md#4-the-idea-by-hand bugs/tma
    explains operand_overwritten notes/13_tma_wgmma_matmul.md#5-the-code-in-the-order-it-runs bugs/wgmma
    explains peer_not_started notes/08_online_softmax.md#5-the-code-in-the-order-it-runs hopper/broken_clusters
    explains shuffle_from_the_exited notes/simulated_gpu.md#when-lanes-part bugs/warp
    explains mask_without_itself notes/simulated_gpu.md#when-lanes-part bugs/warp
    explains written_twice_by_a_warp notes/02_tiled_matmul.md#5-the-code-in-the-order-it-runs bugs/shared
    explains both_write notes/simulated_gpu.md#strict-where-hardware-is-lucky bugs/streams --seed 1
    explains buffer_refilled notes/simulated_gpu.md#strict-where-hardware-is-lucky bugs/streams --seed 1
    explains absent_warp notes/14_warp_specialized_matmul.md#4-the-idea-by-hand
    explains null_pointer tools/simgpu/README.md#when-a-kernel-is-wrong
}

@test "explain: without the option no section is named, and make chapter-N asks for it" {
    run -1 "$SIMGPU" "$ROOT/build/tests/simgpu/faults/faults" read_beyond
    refute_output --partial "explained in"
    grep -q 'simgpu --explain' "$ROOT/tools/run.sh"
}

@test "explain: every section named is there, under the name that GitHub gives it" {
    local file place
    while IFS='#' read -r file place; do
        run -0 grep -E '^#+ ' "$ROOT/$file"
        run -0 sed -E 's/^#+ //; s/[^A-Za-z0-9 _-]//g; s/ /-/g; s/.*/\L&/' <<<"$output"
        assert_line "$place"
    done < <(grep -oE '"(notes|tools)/[^"]+"' "$TABLE" | tr -d '"' | sort -u)
}

@test "explain: every row of the table has words of a report" {
    local words
    # A long message is several strings, one below the other.
    cat "$ROOT"/tools/simgpu/{exec,runtime}/*.c "$ROOT/tools/simgpu/report/faults.c" | sed -z 's/"\n *"//g' >"$BATS_TEST_TMPDIR/sources"
    while read -r words; do
        grep -qF -- "$words" "$BATS_TEST_TMPDIR/sources" || fail "no report has the words '$words'"
    done < <(sed -n 's/^    {"\([^"]\+\)",.*/\1/p' "$TABLE")
}
