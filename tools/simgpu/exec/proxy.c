/* proxy.c: which writes to shared memory the async proxy may see. */
#include "proxy.h"

#include <stdlib.h>
#include <string.h>

void proxy_start_block(struct block *b)
{
    const struct function *fn = b->launch->kernel;
    bool wanted = fn->async_reads;
    for (u32 i = 0; fn->calls && i < fn->module->function_count; i++)
        wanted |= fn->module->functions[i]->async_reads;
    size_t bytes = (b->shared_bytes / 16 + 2) * sizeof *b->stamps;
    if (!wanted) return;
    if (!b->stamps && !(b->stamps = malloc(bytes))) abort();
    memset(b->stamps, 0, bytes);
    b->clock = 1;
}

void proxy_free_block(struct block *b)
{
    free(b->stamps);
}

void proxy_fence(struct warp *w)
{
    struct block *b = w->block;
    b->covered = b->last_sync;
    b->fenced[w->id] = ++b->clock;
}

void proxy_reads(struct warp *w, const struct inst *in, u32 lanes, const struct block *b, u32 at, u32 bytes)
{
    for (u32 k = at / 16; b->stamps && k <= (at + bytes - 1) / 16; k++) {
        u32 when = b->stamps[k] >> WRITER_BITS, writer = b->stamps[k] & ((1 << WRITER_BITS) - 1);
        if (!when || writer == WRITER_ASYNC || when < b->covered ||
            (writer < MAX_WARPS && when < b->fenced[writer]))
            continue;
        char who[24] = "another block";
        if (writer < MAX_WARPS) snprintf(who, sizeof who, "warp %u", writer);
        fault(
            w, in, lanes, ERR_LAUNCH_FAILURE,
            "fence.proxy.async is missing: %s wrote shared offset %u with an ordinary store, and this instruction reads it "
            "through the async proxy",
            who, 16 * k);
    }
}
