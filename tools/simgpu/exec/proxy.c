/* proxy.c: which writes to shared memory the async proxy may see. */
#include "proxy.h"

#include "async.h"
#include "bulk.h"

#include <stdlib.h>
#include <string.h>

void proxy_start_block(struct block *b)
{
    const struct function *fn = b->launch->kernel;
    bool wanted = fn->uses_async_proxy;
    for (u32 i = 0; fn->calls && i < fn->module->function_count; i++)
        wanted |= fn->module->functions[i]->uses_async_proxy;
    size_t bytes = (b->shared_bytes / 16 + 2) * sizeof *b->stamps;
    if (!wanted) return;
    if (!b->stamps && !(b->stamps = malloc(2 * bytes))) abort();
    memset(b->stamps, 0, 2 * bytes);
    b->lanes = b->stamps + bytes / sizeof *b->stamps;
    b->in_flight = 0;
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

void proxy_unwaited(struct warp *w, const struct inst *in, u32 lane, const struct block *b, u32 at)
{
    const struct bulk *c = async_open_load(b, at);
    fault(w, in, 1u << lane, ERR_LAUNCH_FAILURE,
          "shared offset %u is read before the copy that brings it has been waited for: '%s' at line %u", at,
          c ? c->fn->text[c->in - c->fn->code] : "?", c ? c->fn->lines[c->in - c->fn->code].line : 0);
}

void proxy_check(struct warp *w, const struct inst *in, u32 lanes, const struct block *b, u32 piece)
{
    u32 when = b->stamps[piece] >> WRITER_BITS, writer = b->stamps[piece] & ((1 << WRITER_BITS) - 1);
    if (writer == WRITER_IN_FLIGHT) proxy_unwaited(w, in, first_lane(lanes), b, 16 * piece);
    if (!when) return;
    if (when >= b->covered && (writer >= MAX_WARPS || when >= b->fenced[writer])) {
        char who[24] = "another block";
        const char *how = writer == WRITER_COPY ? "through the generic proxy" : "with an ordinary store";
        if (writer < MAX_WARPS) snprintf(who, sizeof who, "warp %u", writer);
        if (writer == WRITER_COPY) snprintf(who, sizeof who, "a cp.async");
        breach(w, in, lanes, ERR_LAUNCH_FAILURE,
               "fence.proxy.async is missing: %s wrote shared offset %u %s, and this instruction reads it "
               "through the async proxy",
               who, 16 * piece, how);
    }
    if (writer < MAX_WARPS && !order_knows_warp(w, b, writer, when))
        fault(
            w, in, lanes, ERR_LAUNCH_FAILURE,
            "a barrier is missing: warp %u wrote shared offset %u, and nothing that this warp has waited for since says so",
            writer, 16 * piece);
    if (b == w->block && writer == w->id && b->lanes[piece] & ~lanes && when >= w->lanes_met)
        fault(
            w, in, lanes, ERR_LAUNCH_FAILURE,
            "__syncwarp() is missing: lane %u of this warp wrote shared offset %u, and nothing since has made this lane wait "
            "for it",
            first_lane(b->lanes[piece] & ~lanes), 16 * piece);
}
