/* proxy.c: which writes to shared memory the async proxy may see. */
#include "proxy.h"

#include "async.h"
#include "bulk.h"
#include "race.h"

#include <stdlib.h>
#include <string.h>

void proxy_start_block(struct block *b)
{
    const struct function *fn = b->launch->kernel;
    bool wanted = fn->uses_async_proxy;
    for (u32 i = 0; fn->calls && i < fn->module->function_count; i++)
        wanted |= fn->module->functions[i]->uses_async_proxy;
    u32 pieces = b->shared_bytes / 16 + 2, words = 2 * pieces + MAX_WARPS * LANES;
    if (!wanted) return;
    if (!b->stamps && !(b->stamps = malloc(words * sizeof *b->stamps))) abort();
    memset(b->stamps, 0, words * sizeof *b->stamps);
    b->lanes = b->stamps + pieces;
    b->fenced_lanes = b->lanes + pieces;
    b->in_flight = 0;
}

void proxy_free_block(struct block *b)
{
    free(b->stamps);
}

void proxy_fence(struct warp *w, u32 lanes)
{
    struct block *b = w->block;
    u32 now = ++b->clock;
    b->covered = b->last_sync;
    if (!b->stamps) return;
    if (lanes == w->live) {
        b->fenced[w->id] = now;
        return;
    }
    if (w->lanes_met > b->fenced[w->id]) b->fenced[w->id] = w->lanes_met;
    for (u32 lane = 0; lane < LANES; lane++) {
        u32 *fenced = &b->fenced_lanes[w->id * LANES + lane];
        u32 until = lanes >> lane & 1 ? now : order_met_until(w, lane, lanes);
        if (until > *fenced) *fenced = until;
    }
}

/* Of the lanes that wrote a piece those that no fence covers; ALL_LANES when that is not a matter of lanes. */
static u32 unfenced(const struct block *b, u32 piece)
{
    u32 when = b->stamps[piece] >> WRITER_BITS, writer = b->stamps[piece] & ((1 << WRITER_BITS) - 1),
        lanes = 0;
    if (!when || writer == WRITER_ASYNC || writer == WRITER_IN_FLIGHT || when < b->covered) return 0;
    if (writer >= MAX_WARPS) return ALL_LANES;
    if (when < b->fenced[writer]) return 0;
    for (u32 left = b->lanes[piece]; left; left &= left - 1)
        if (when >= b->fenced_lanes[writer * LANES + first_lane(left)]) lanes |= left & -left;
    return lanes == b->lanes[piece] ? ALL_LANES : lanes;
}

static void must_be_fenced(struct warp *w, const struct inst *in, u32 lanes, const struct block *b, u32 piece,
                           const char *does)
{
    u32 writer = b->stamps[piece] & ((1 << WRITER_BITS) - 1), missing = unfenced(b, piece);
    if (!missing || async_of_library(w, in)) return;
    char who[40] = "another block";
    const char *how = writer == WRITER_COPY ? "through the generic proxy" : "with an ordinary store";
    const struct function *fn;
    const struct inst *store = race_writer(b, 16 * piece, &fn);
    if (missing != ALL_LANES)
        snprintf(who, sizeof who, "lane %u of warp %u", first_lane(missing), writer);
    else if (writer < MAX_WARPS)
        snprintf(who, sizeof who, "warp %u", writer);
    if (writer == WRITER_COPY) snprintf(who, sizeof who, "a cp.async");
    breach_against(
        w, in, lanes, ERR_LAUNCH_FAILURE, fn, store,
        "fence.proxy.async is missing: %s wrote shared offset %u %s, and this instruction %s it through the async "
        "proxy%s",
        who, 16 * piece, how, does,
        missing == ALL_LANES
            ? ""
            : " (other lanes have executed the fence, which orders what they wrote, or knew of "
              "through __syncwarp() or a barrier before it)");
}

void proxy_overwrites(struct warp *w, const struct inst *in, u32 lane, const struct block *b, u32 at,
                      u32 bytes)
{
    for (u32 k = at / 16; b->stamps && k <= (at + bytes - 1) / 16; k++)
        must_be_fenced(w, in, 1u << lane, b, k, "overwrites");
}

void proxy_unwaited(struct warp *w, const struct inst *in, u32 lane, const struct block *b, u32 at)
{
    const struct bulk *c = NULL;
    for (u32 k = 0; !c && k < 16; k += 4)
        c = async_open_load(b, at + k); // st.async brings less than 16 bytes, too
    fault(w, in, 1u << lane, ERR_LAUNCH_FAILURE,
          "shared offset %u is read before the copy that brings it has been waited for: '%s' at line %u%s",
          at, c ? c->fn->text[c->in - c->fn->code] : "?", c ? c->fn->lines[c->in - c->fn->code].line : 0,
          async_gave_up(w));
}

/* The write to a piece that `lanes` of w are about to read is fenced, but they do not know of it. */
static _Noreturn void unordered(struct warp *w, const struct inst *in, u32 lanes, const struct block *b,
                                u32 piece, u32 writer, bool by_lane, const char *why)
{
    const struct function *fn;
    const struct inst *store = race_writer(b, 16 * piece, &fn);
    if (!by_lane)
        fault_against(
            w, in, lanes, ERR_LAUNCH_FAILURE, fn, store,
            "a barrier is missing: warp %u wrote shared offset %u, and nothing that this warp has waited for since says so%s",
            writer, 16 * piece, why);
    fault_against(
        w, in, lanes, ERR_LAUNCH_FAILURE, fn, store,
        "__syncwarp() is missing: lane %u of this warp wrote shared offset %u, and nothing since has made this lane wait "
        "for it",
        first_lane(b->lanes[piece] & ~lanes), 16 * piece);
}

void proxy_check(struct warp *w, const struct inst *in, u32 lanes, const struct block *b, u32 piece)
{
    u32 when = b->stamps[piece] >> WRITER_BITS, writer = b->stamps[piece] & ((1 << WRITER_BITS) - 1);
    if (writer == WRITER_IN_FLIGHT) proxy_unwaited(w, in, first_lane(lanes), b, 16 * piece);
    if (!when) return;
    must_be_fenced(w, in, lanes, b, piece, "reads");
    if (writer < MAX_WARPS && !order_knows_warp(w, b, writer, when))
        unordered(w, in, lanes, b, piece, writer, false, "");
    if (writer < MAX_WARPS && order_not_passed(w, b, writer, when, b->lanes[piece]))
        unordered(w, in, lanes, b, piece, writer, false, ORDER_OTHER_LANE);
    if (b != w->block || writer != w->id || when < w->lanes_met) return;
    for (u32 left = b->lanes[piece] & ~lanes; left; left &= left - 1)
        if (!order_met(w, when, left & -left, lanes)) unordered(w, in, lanes, b, piece, writer, true, "");
}
