/* explain.c: --explain: the page that teaches what a fault was about. */
#include <stdio.h>
#include <string.h>

#include "report.h"

/* Words of a report, and the section of a note that its reader needs; the first that fits counts. */
static const struct {
    const char *words, *section;
} SECTIONS[] = {
    {"over-arrival", "notes/13_tma_wgmma_matmul.md#4-the-idea-by-hand"},
    {"phase parity", "notes/13_tma_wgmma_matmul.md#4-the-idea-by-hand"},
    {"mbarrier.init", "notes/13_tma_wgmma_matmul.md#5-the-code-in-the-order-it-runs"},
    {"wgmma.fence is missing", "notes/13_tma_wgmma_matmul.md#5-the-code-in-the-order-it-runs"},
    {"wgmma.wait_group must come first", "notes/13_tma_wgmma_matmul.md#5-the-code-in-the-order-it-runs"},
    {"whose result it holds", "notes/13_tma_wgmma_matmul.md#5-the-code-in-the-order-it-runs"},
    {"the descriptor of", "notes/13_tma_wgmma_matmul.md#3-the-picture"},
    {"tensor map", "notes/13_tma_wgmma_matmul.md#5-the-code-in-the-order-it-runs"},
    {"setmaxnreg", "notes/14_warp_specialized_matmul.md#4-the-idea-by-hand"},
    {"fence.proxy.async is missing", "notes/glossary.md#the-kernel"},
    {"may still be in flight when that block leaves",
     "notes/14_warp_specialized_matmul.md#5-the-code-in-the-order-it-runs"},
    {"bulk store", "notes/14_warp_specialized_matmul.md#5-the-code-in-the-order-it-runs"},
    {"cp.async.bulk.wait_group", "notes/14_warp_specialized_matmul.md#5-the-code-in-the-order-it-runs"},
    {"this copy writes shared offset", "notes/14_warp_specialized_matmul.md#4-the-idea-by-hand"},
    {"while the copy was in flight", "notes/14_warp_specialized_matmul.md#4-the-idea-by-hand"},
    {"before the copy that brings it", "notes/13_tma_wgmma_matmul.md#4-the-idea-by-hand"},
    {"that the copy which brings it has landed", "notes/13_tma_wgmma_matmul.md#4-the-idea-by-hand"},
    {"before the cp.async at line", "notes/05_cp_async_pipeline.md#4-the-idea-by-hand"},
    {"nothing orders these two", "notes/simulated_gpu.md#strict-where-hardware-is-lucky"},
    {"which may not be over", "notes/simulated_gpu.md#strict-where-hardware-is-lucky"},
    {"griddepcontrol.wait", "notes/06_elementwise_layers.md#7-break-it"},
    {"race on shared offset", "notes/02_tiled_matmul.md#5-the-code-in-the-order-it-runs"},
    {"race on global memory", "notes/10_adamw_mixed_precision.md#5-the-code-in-the-order-it-runs"},
    {"accesses are in no order", "notes/10_adamw_mixed_precision.md#5-the-code-in-the-order-it-runs"},
    {"volatile does not order lanes", "notes/simulated_gpu.md#when-lanes-part"},
    {"divergent barrier", "notes/simulated_gpu.md#when-lanes-part"},
    {"nobody has written", "notes/simulated_gpu.md#strict-where-hardware-is-lucky"},
    {"accumulators that nothing has written", "notes/simulated_gpu.md#strict-where-hardware-is-lucky"},
    {"must be a multiple of", "notes/glossary.md#the-c-on-one-page"},
    {"tx-count", "notes/13_tma_wgmma_matmul.md#4-the-idea-by-hand"},
    {"coordinate", "notes/13_tma_wgmma_matmul.md#5-the-code-in-the-order-it-runs"},
    {"warpgroup", "notes/13_tma_wgmma_matmul.md#5-the-code-in-the-order-it-runs"},
    {"lanes of the warp write different values", "notes/02_tiled_matmul.md#5-the-code-in-the-order-it-runs"},
    {"must execute this instruction together", "notes/simulated_gpu.md#when-lanes-part"},
    {"member mask", "notes/simulated_gpu.md#when-lanes-part"},
    {"All lanes that are read must get here", "notes/simulated_gpu.md#when-lanes-part"},
    {"barrier.cluster", "notes/08_online_softmax.md#5-the-code-in-the-order-it-runs"},
    {"of a cluster of", "notes/08_online_softmax.md#5-the-code-in-the-order-it-runs"},
    {"before the wgmma at line", "notes/13_tma_wgmma_matmul.md#5-the-code-in-the-order-it-runs"},
    {"of the cluster", "notes/08_online_softmax.md#5-the-code-in-the-order-it-runs"},
    {"mbarrier", "notes/13_tma_wgmma_matmul.md#4-the-idea-by-hand"},
    {"threads here, but with", "notes/15_sm90_attention_forward.md#5-the-code-in-the-order-it-runs"},
    {"that its last phase is over", "notes/15_sm90_attention_forward.md#5-the-code-in-the-order-it-runs"},
    {"bytes of shared memory", "notes/04_swizzled_smem.md#7-break-it"},
    {"out of bounds", "notes/01_naive_matmul.md#5-the-code-in-the-order-it-runs"},
    {"deadlock", "notes/14_warp_specialized_matmul.md#4-the-idea-by-hand"},
    {"", "tools/simgpu/README.md#when-a-kernel-is-wrong"},
};

void explain(const char *report)
{
    size_t at = 0;
    if (!options.explain) return;
    while (!strstr(report, SECTIONS[at].words)) at++;
    fprintf(stderr, "  explained in %s\n", SECTIONS[at].section);
}
