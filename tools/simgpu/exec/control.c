/* control.c: branches, calls, exits, and the values that only a running warp knows (PTX ISA, "Control Flow Instructions",
 * "Special Registers", "Miscellaneous Instructions"). */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../front/flow.h"
#include "../front/lower.h"
#include "known.h"
#include "../report/report.h"
#include "../runtime/heap.h"
#include "../runtime/runtime.h"
#include "memory.h"
#include "tensor.h"
#include "warp.h"

/* ---- Branches --------------------------------------------------------------------------------------------------------- */

void lower_skip(struct warp *w, const struct inst *in, u32 mask)
{
    GO_ON(w, in, mask);
}

void lower_join(struct warp *w, const struct inst *in, u32 mask)
{
    (void)mask;
    warp_arrive(w, warp_index_of(w, in));
}

/* aux: so many plain instructions that it branches over, to where its lanes meet; 0: it does not do just that. */
void lower_branch(struct warp *w, const struct inst *in, u32 mask)
{
    if (mask == w->active)
        w->pc = w->frame->fn->code + in->target;
    else if (in->aux)
        warp_skip(w, in, mask);
    else
        warp_diverge(w, mask, (u32)in->target, in->reconverge);
}

bool lower_bra(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    if (!is_label(&p->op[0])) return refuse(lo, p, "a branch needs a label");
    in->exec = lower_branch;
    in->target = (s32)p->op[0].symbol->address;
    return true;
}

/* brx.idx: each lane's index chooses its target. Lanes with another target than the first lane's part one group at a time;
 * this instruction runs again for the rest. */
void lower_branch_table(struct warp *w, const struct inst *in, u32 mask)
{
    const u32 *index = lanes_of(w, in->a), *targets = in->data;
    u32 group = 0, chosen = index[first_lane(mask)];
    for (u32 i = 0; i < LANES; i++) group |= (u32)(index[i] == chosen) << i;
    group &= mask;
    if (chosen >= (u64)in->imm)
        fault(w, in, group, ERR_LAUNCH_FAILURE, "brx.idx with index %u in a table of %lld targets", chosen,
              (long long)in->imm);
    if (group == w->active) {
        w->pc = w->frame->fn->code + targets[chosen];
        return;
    }
    warp_diverge(w, group, targets[chosen], in->reconverge);
    w->pc = in; /* whoever stays comes here again */
}

bool lower_brx(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    if (is_label(&p->op[1])) return refuse(lo, p, "brx.idx needs a .branchtargets table");
    if (p->guard) return refuse(lo, p, "a guarded brx.idx");
    const struct symbol *table = p->op[1].symbol;
    u32 *targets = keep(table->target_count * sizeof *targets);
    for (u32 i = 0; i < table->target_count; i++) {
        if (!is_label(&table->targets[i])) return refuse(lo, p, "target %u is no label", i);
        targets[i] = (u32)table->targets[i].symbol->address;
    }
    in->exec = lower_branch_table;
    in->a = lower_source(lo, &p->op[0], T_U32);
    in->imm = table->target_count;
    in->data = targets;
    in->target = 0; /* lower.c then fills in where the lanes meet */
    return true;
}

/* ---- Exits --------------------------------------------------------------------------------------------------------------- */

void lower_exit(struct warp *w, const struct inst *in, u32 mask)
{
    (void)in;
    warp_exit(w, mask);
}

void lower_return(struct warp *w, const struct inst *in, u32 mask)
{
    (void)in, (void)mask;
    warp_return(w);
}

void lower_refused(struct warp *w, const struct inst *in, u32 mask)
{
    fault(w, in, mask, ERR_NOT_SUPPORTED, "%s", w->frame->fn->why);
}

bool lower_ret(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)p;
    if (lo->f->fn->is_kernel) {
        in->exec = lower_exit;
    } else {
        in->exec = lower_branch;
        in->target = (s32)lo->f->count;
    }
    return true;
}

bool lower_exit_instruction(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo, (void)p;
    in->exec = lower_exit;
    return true;
}

static void exec_trap(struct warp *w, const struct inst *in, u32 mask)
{
    bool grid = !w->block->launch->cooperative && warp_inlined_from(w, in, "/cooperative_groups");
    fault(w, in, mask, ERR_LAUNCH_FAILURE, "trap%s",
          grid ? ": grid.sync() in an ordinary launch: it needs cudaLaunchCooperativeKernel" : "");
}

bool lower_trap(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo, (void)p;
    in->exec = exec_trap;
    return true;
}

/* ---- Calls ----------------------------------------------------------------------------------------------------------------- */

static u8 *arg_of(struct warp *w, const struct inst *in, u32 k, u32 lane)
{
    return w->frame->args + lane * w->frame->fn->arg_bytes + in->more[k];
}
static u64 arg64(struct warp *w, const struct inst *in, u32 k, u32 lane)
{
    u64 v;
    memcpy(&v, arg_of(w, in, k, lane), 8);
    return v;
}

static void exec_call(struct warp *w, const struct inst *in, u32 mask)
{
    (void)mask;
    warp_call(w, in, in->data);
}

/* What a call passes: bytes of each result, then of each argument. */
struct call_form {
    u32 results, args, bytes[];
};

/* Whether a function has such results and parameters; `why` says what differs. */
static bool call_fits(const struct function *fn, const struct call_form *form, char *why, size_t size)
{
    if (fn->result_count != form->results || fn->param_count != form->args) {
        snprintf(why, size, "%u results and %u parameters, where the call has %u and %u", fn->result_count,
                 fn->param_count, form->results, form->args);
        return false;
    }
    for (u32 k = 0; k < form->results + form->args; k++) {
        bool is_result = k < form->results;
        u32 number = is_result ? k : k - form->results,
            bytes = is_result ? fn->results[number].bytes : fn->params[number].bytes;
        if (bytes == form->bytes[k]) continue;
        snprintf(why, size, "its %s %u has %u bytes, the call's %u", is_result ? "result" : "parameter",
                 number, bytes, form->bytes[k]);
        return false;
    }
    return true;
}

/* An indirect call: lanes that call another function than the first lane part and come here again. */
static void exec_call_indirect(struct warp *w, const struct inst *in, u32 mask)
{
    const u64 *address = lanes_of(w, in->a);
    u64 chosen = address[first_lane(mask)];
    u32 group = 0;
    for (u32 i = 0; i < LANES; i++) group |= (u32)(address[i] == chosen) << i;
    group &= mask;
    const struct function *callee = NULL;
    const struct module *m = w->frame->fn->module;
    for (u32 i = 0; i < m->function_count; i++)
        if ((u64)(uintptr_t)m->functions[i] == chosen) callee = m->functions[i];
    if (!callee || callee->is_kernel || !callee->code_count)
        fault(w, in, group, ERR_LAUNCH_FAILURE, "indirect call to 0x%llx, which is no device function",
              (unsigned long long)chosen);
    char why[128];
    if (!call_fits(callee, in->data, why, sizeof why))
        fault(w, in, group, ERR_LAUNCH_FAILURE, "an indirect call reaches %s, which has another type: %s",
              readable_name(callee->name), why);
    if (group != w->active) {
        u32 index = warp_index_of(w, in);
        warp_diverge(w, w->active & ~group, index, (s32)index + 1); /* the next instruction is a join */
    }
    warp_call(w, in, callee);
}

/* printf's arguments lie among the caller's .local variables: how many bytes at most. */
static size_t room_for_arguments(const struct warp *w, u64 address)
{
    u64 end = LOCAL_WINDOW + w->frame->local_base + w->frame->fn->local_bytes;
    return address >= LOCAL_WINDOW && address < end ? end - address : 0;
}

static void exec_vprintf(struct warp *w, const struct inst *in, u32 mask)
{
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        u64 args = arg64(w, in, 2, i);
        size_t room = room_for_arguments(w, args);
        int result = device_printf(arg64(w, in, 1, i),
                                   room ? host_pointer(w, in, i, args, 1, ACCESS_READ) : NULL, room);
        if (result == TOO_FEW_ARGUMENTS)
            fault(w, in, 1u << i, ERR_ILLEGAL_ADDRESS,
                  "printf: its format asks for more arguments than it has");
        memcpy(arg_of(w, in, 0, i), &result, 4);
    }
}

/* The string at a device address, or what to say instead. */
static const char *text_at(u64 address, char text[256])
{
    struct allocation a;
    if (!heap_find(address, &a)) return "?";
    u64 room = a.address + a.bytes - address;
    snprintf(text, 256, "%.*s", (int)(room < 255 ? room : 255), (const char *)(uintptr_t)address);
    return text;
}

static void exec_assertfail(struct warp *w, const struct inst *in, u32 mask)
{
    u32 line, i = first_lane(mask);
    char file[256], function[256], text[256];
    memcpy(&line, arg_of(w, in, 2, i), 4);
    fault(w, in, mask, ERR_ASSERT, "%s:%u: %s: Assertion `%s` failed", text_at(arg64(w, in, 1, i), file),
          line, text_at(arg64(w, in, 3, i), function), text_at(arg64(w, in, 0, i), text));
}

static void exec_malloc(struct warp *w, const struct inst *in, u32 mask)
{
    for (u32 i = 0; i < LANES; i++)
        if (mask >> i & 1) {
            u64 p = heap_alloc(arg64(w, in, 1, i), ALLOCATION_DEVICE_MALLOC, NULL);
            memcpy(arg_of(w, in, 0, i), &p, 8);
        }
}

static void exec_free(struct warp *w, const struct inst *in, u32 mask)
{
    for (u32 i = 0; i < LANES; i++)
        if (mask >> i & 1 && arg64(w, in, 0, i) && !heap_free_in_kernel(arg64(w, in, 0, i)))
            fault(w, in, 1u << i, ERR_ILLEGAL_ADDRESS, "free(0x%llx): not an address that malloc returned",
                  (unsigned long long)arg64(w, in, 0, i));
    memory_refresh(w);
}

/* What the device runtime offers under these names: CUDA Programming Guide, "Formatted Output", "Assertion", "Dynamic
 * Global Memory Allocation". */
static const struct builtin {
    const char *name;
    exec_fn exec;
    struct function type;
} builtins[] = {
    {"vprintf",
     exec_vprintf,
     {.result_count = 1,
      .results = &(struct param){.bytes = 4},
      .param_count = 2,
      .params = (struct param[]){{.bytes = 8}, {.bytes = 8}}}},
    {"__assertfail",
     exec_assertfail,
     {.param_count = 5,
      .params = (struct param[]){{.bytes = 8}, {.bytes = 8}, {.bytes = 4}, {.bytes = 8}, {.bytes = 8}}}},
    {"malloc",
     exec_malloc,
     {.result_count = 1,
      .results = &(struct param){.bytes = 8},
      .param_count = 1,
      .params = &(struct param){.bytes = 8}}},
    {"free", exec_free, {.param_count = 1, .params = &(struct param){.bytes = 8}}}};

/* call (results), function, (arguments);  call (results), register, (arguments), prototype; */
bool lower_call(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    const struct ptx_operand *results = NULL, *args = NULL, *callee = NULL;
    for (u32 k = 0; k < p->op_count; k++) {
        const struct ptx_operand *o = &p->op[k];
        if (o->kind == OPERAND_LIST && !callee)
            results = o;
        else if (o->kind == OPERAND_LIST)
            args = o;
        else if (!callee)
            callee = o;
    }
    u32 count = (results ? results->count : 0) + (args ? args->count : 0), n = 0;
    operand *more = lower_more(lo, count);
    struct call_form *form = keep(sizeof *form + count * sizeof *form->bytes);
    char why[128];
    for (int list = 0; list < 2; list++) {
        const struct ptx_operand *l = list ? args : results;
        for (u32 k = 0; l && k < l->count; k++) {
            const struct symbol *s = l->element[k].symbol;
            if (l->element[k].kind != OPERAND_SYMBOL || !s || s->kind != SYM_ARG)
                return refuse(lo, p, "arguments that are not .param variables");
            form->bytes[n] = (u32)s->bytes;
            more[n++] = (u32)s->address;
        }
    }
    form->results = results ? results->count : 0;
    form->args = args ? args->count : 0;
    in->more = more;
    in->data = form;
    if (!callee) return refuse(lo, p, "a call without a function");
    if (callee->kind == OPERAND_REG) {
        in->exec = exec_call_indirect;
        in->a = lower_source(lo, callee, T_U64);
        return true;
    }
    if (callee->kind != OPERAND_SYMBOL || callee->symbol->kind != SYM_FUNCTION)
        return refuse(lo, p, "not a function");
    const struct function *fn = callee->symbol->fn;
    for (u32 k = 0; k < sizeof builtins / sizeof *builtins; k++)
        if (streq(fn->name, builtins[k].name)) {
            in->exec = builtins[k].exec;
            return call_fits(&builtins[k].type, form, why, sizeof why) ||
                   refuse(lo, p, "%s has another type: %s", fn->name, why);
        }
    if (fn->is_kernel) return refuse(lo, p, "%s is a kernel", fn->name);
    if (callee->symbol->linkage == LINK_EXTERN) return lower_undefined(lo, callee->symbol);
    in->exec = exec_call;
    in->data = fn;
    return call_fits(fn, form, why, sizeof why) ||
           refuse(lo, p, "%s has another type: %s", readable_name(fn->name), why);
}

/* ---- Values known at run time only ------------------------------------------------------------------------------------------ */

static void exec_local_address(struct warp *w, const struct inst *in, u32 mask)
{
    u64 v = w->frame->local_base + (u64)in->imm;
    if (in->bytes == 8) {
        u64 *d = lanes_of(w, in->d);
        FOR_LANES(mask, { d[i] = v; });
    } else {
        u32 *d = lanes_of(w, in->d);
        FOR_LANES(mask, { d[i] = (u32)v; });
    }
}

static void exec_param_address(struct warp *w, const struct inst *in, u32 mask)
{
    u64 v = (u64)(uintptr_t)w->block->launch->params + (u64)in->imm, *d = lanes_of(w, in->d);
    FOR_LANES(mask, { d[i] = v; });
}

operand lower_runtime_value(struct lowering *lo, enum runtime_value kind, u64 offset, u32 bytes)
{
    operand d = lower_temp(lo, kind == RUNTIME_PARAM ? 8 : bytes);
    struct inst *in = lower_emit(lo);
    in->exec = kind == RUNTIME_PARAM ? exec_param_address : exec_local_address;
    in->d = d;
    in->imm = (s64)offset;
    in->bytes = (u8)bytes;
    return d;
}

static void exec_narrow64(struct warp *w, const struct inst *in, u32 mask)
{
    const u64 *a = lanes_of(w, in->a);
    u32 *d = lanes_of(w, in->d), keep_bits = (u32)in->imm;
    FOR_LANES(mask, { d[i] = (u32)a[i] & keep_bits; });
}
static void exec_narrow32(struct warp *w, const struct inst *in, u32 mask)
{
    const u32 *a = lanes_of(w, in->a);
    u32 *d = lanes_of(w, in->d), keep_bits = (u32)in->imm;
    FOR_LANES(mask, { d[i] = a[i] & keep_bits; });
}

/* A register wider than the instruction's type: the type's low bits (PTX ISA, "Operand Size Exceeding Instruction-Type
 * Size"). */
operand lower_narrowed(struct lowering *lo, operand wide, u32 have_bytes, u32 want_bytes)
{
    operand d = lower_temp(lo, 4);
    struct inst *in = lower_emit(lo);
    if (have_bytes > 8) refuse(lo, lo->at, "a 128-bit register for a narrower type");
    in->exec = have_bytes == 8 ? exec_narrow64 : exec_narrow32;
    in->a = wide;
    in->d = d;
    in->imm = want_bytes == 4 ? 0xffffffffll : (1ll << 8 * want_bytes) - 1;
    return d;
}

static void exec_widen(struct warp *w, const struct inst *in, u32 mask)
{
    const u32 *a = lanes_of(w, in->a);
    u64 *d = lanes_of(w, in->d);
    FOR_LANES(mask, { d[i] = a[i]; });
}

static void exec_is_cluster(struct warp *w, const struct inst *in, u32 mask)
{
    set_predicate(w, in->d, mask, w->block->launch->clustered ? ALL_LANES : 0);
}

enum { CLOCK_CYCLES, CLOCK_CYCLES_HIGH, CLOCK_NANOSECONDS, CLOCK_NANOSECONDS_HIGH };

/* %clock counts instructions (warp_clock): it grows, as a clock must, and says nothing about time on a GPU. */
static void exec_clock(struct warp *w, const struct inst *in, u32 mask)
{
    u64 v = warp_clock(w);
    if (in->aux >= CLOCK_NANOSECONDS) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        v = (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
    }
    if (in->aux == CLOCK_CYCLES_HIGH || in->aux == CLOCK_NANOSECONDS_HIGH) v >>= 32;
    if (in->bytes == 8) {
        u64 *d = lanes_of(w, in->d);
        FOR_LANES(mask, { d[i] = v; });
    } else {
        u32 *d = lanes_of(w, in->d);
        FOR_LANES(mask, { d[i] = (u32)v; });
    }
}

static const struct {
    const char *name;
    u16 special;
} specials[] = {
    {"%tid.x", SR_TID_X},
    {"%tid.y", SR_TID_Y},
    {"%tid.z", SR_TID_Z},
    {"%laneid", SR_LANEID},
    {"%ntid.x", SR_NTID_X},
    {"%ntid.y", SR_NTID_Y},
    {"%ntid.z", SR_NTID_Z},
    {"%warpid", SR_WARPID},
    {"%nwarpid", SR_NWARPID},
    {"%ctaid.x", SR_CTAID_X},
    {"%ctaid.y", SR_CTAID_Y},
    {"%ctaid.z", SR_CTAID_Z},
    {"%nctaid.x", SR_NCTAID_X},
    {"%nctaid.y", SR_NCTAID_Y},
    {"%nctaid.z", SR_NCTAID_Z},
    {"%smid", SR_SMID},
    {"%nsmid", SR_NSMID},
    {"%gridid", SR_GRIDID},
    {"%lanemask_eq", SR_LANEMASK_EQ},
    {"%lanemask_le", SR_LANEMASK_LE},
    {"%lanemask_lt", SR_LANEMASK_LT},
    {"%lanemask_ge", SR_LANEMASK_GE},
    {"%lanemask_gt", SR_LANEMASK_GT},
    {"%dynamic_smem_size", SR_DYNAMIC_SMEM},
    {"%total_smem_size", SR_TOTAL_SMEM},
    {"%aggr_smem_size", SR_TOTAL_SMEM},
    {"%clusterid.x", SR_CLUSTERID_X},
    {"%clusterid.y", SR_CLUSTERID_Y},
    {"%clusterid.z", SR_CLUSTERID_Z},
    {"%nclusterid.x", SR_NCLUSTERID_X},
    {"%nclusterid.y", SR_NCLUSTERID_Y},
    {"%nclusterid.z", SR_NCLUSTERID_Z},
    {"%cluster_ctaid.x", SR_CLUSTER_CTAID_X},
    {"%cluster_ctaid.y", SR_CLUSTER_CTAID_Y},
    {"%cluster_ctaid.z", SR_CLUSTER_CTAID_Z},
    {"%cluster_nctaid.x", SR_CLUSTER_NCTAID_X},
    {"%cluster_nctaid.y", SR_CLUSTER_NCTAID_Y},
    {"%cluster_nctaid.z", SR_CLUSTER_NCTAID_Z},
    {"%envreg1", SR_WORKSPACE_HIGH},
    {"%envreg2", SR_WORKSPACE_LOW},
    {"%cluster_ctarank", SR_CLUSTER_CTARANK},
    {"%cluster_nctarank", SR_CLUSTER_NCTARANK},
};
static const struct {
    const char *name;
    u16 clock;
} clocks[] = {{"%clock", CLOCK_CYCLES},
              {"%clock_hi", CLOCK_CYCLES_HIGH},
              {"%clock64", CLOCK_CYCLES},
              {"%globaltimer", CLOCK_NANOSECONDS},
              {"%globaltimer_lo", CLOCK_NANOSECONDS},
              {"%globaltimer_hi", CLOCK_NANOSECONDS_HIGH}};

operand lower_special(struct lowering *lo, const char *name, u32 bytes)
{
    for (u32 k = 0; k < sizeof clocks / sizeof *clocks; k++)
        if (streq(clocks[k].name, name)) {
            operand d = lower_temp(lo, bytes);
            struct inst *in = lower_emit(lo);
            in->exec = exec_clock;
            in->d = d;
            in->aux = clocks[k].clock;
            in->bytes = (u8)bytes;
            return d;
        }
    for (u32 k = 0; k < sizeof specials / sizeof *specials; k++)
        if (streq(specials[k].name, name)) {
            operand o = special_operand(specials[k].special);
            if (bytes == 4) return o;
            operand d = lower_temp(lo, 8);
            struct inst *in = lower_emit(lo);
            in->exec = exec_widen;
            in->a = o;
            in->d = d;
            return d;
        }
    if (streq(name, "%reserved_smem_offset_1")) return lower_const(lo, 0, bytes);
    if (streq(name, "%is_explicit_cluster")) {
        operand o = lower_temp(lo, 4);
        struct inst *in = lower_emit(lo);
        in->exec = exec_is_cluster;
        in->d = o;
        return o;
    }
    refuse(lo, lo->at, "the simulated GPU has no special register %s", name);
    return lower_const(lo, 0, bytes);
}

/* ---- Hints that change no value ----------------------------------------------------------------------------------------------- */

static void exec_nothing(struct warp *w, const struct inst *in, u32 mask)
{
    (void)w, (void)in, (void)mask;
}

/* A thread that sleeps waits for others: give them their turn. */
static void exec_nanosleep(struct warp *w, const struct inst *in, u32 mask)
{
    (void)in, (void)mask;
    w->polled = true;
    warp_give_way(w);
}

bool lower_nanosleep(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo, (void)p;
    in->exec = exec_nanosleep;
    return true;
}

/* griddepcontrol.wait: the launches before are over, and what they wrote is there. */
static void exec_wait_for_launch(struct warp *w, const struct inst *in, u32 mask)
{
    (void)in, (void)mask;
    if (w->block->launch->dependent) known_wait_for_launch(w);
}

static void exec_launch_dependents(struct warp *w, const struct inst *in, u32 mask)
{
    (void)w, (void)in, (void)mask;
    known_launches_dependents();
}

bool lower_griddepcontrol(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo;
    in->exec = has_mod(p, "wait") ? exec_wait_for_launch : exec_launch_dependents;
    return true;
}

bool lower_nothing(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo, (void)p;
    in->exec = exec_nothing;
    return true;
}

/* pmevent 0 stops the warp's clock, pmevent 1 starts it again: what lies between, such as the writing of a trace, is not
 * counted (common/device/trace.cuh). Other events change nothing. */
static void exec_pmevent(struct warp *w, const struct inst *in, u32 mask)
{
    (void)mask;
    if (in->imm == 0) w->clock_stopped = warp_clock(w);
    if (in->imm == 1) w->ahead -= warp_clock(w) - w->clock_stopped;
}

bool lower_pmevent(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo;
    in->imm = has_mod(p, "mask") ? -1 : (s64)p->op[0].imm;
    in->exec = exec_pmevent;
    return true;
}

/* ---- Register pool -------------------------------------------------------------------------------------------------------------- */

/* setmaxnreg: a block's registers are those of its kernel's launch bounds; what a warp gives up goes to the block's pool, and
 * a warp that asks for more waits until the pool has as many (measured on an H200). In a kernel whose registers at entry are
 * ptxas's own choice, it ignores the instruction (its warning C7508). imm: registers a thread; flags: inc. */
static void exec_setmaxnreg(struct warp *w, const struct inst *in, u32 mask)
{
    struct block *b = w->block;
    const struct function *k = b->launch->kernel;
    u32 want = (u32)in->imm;
    if (!k->max_registers && !k->min_blocks) {
        remark(
            w, in, mask,
            "setmaxnreg is ignored, as ptxas ignores it (C7508): nothing says with how many registers the kernel "
            "starts; __launch_bounds__(threads, 1) does");
        return;
    }
    if ((w->id | 3) >= b->warp_count)
        fault(w, in, mask, ERR_LAUNCH_FAILURE,
              "setmaxnreg is for a warpgroup, four warps, the first a multiple of 4: warp %u of %u has none",
              w->id, b->warp_count);
    if (!tensor_whole_warp(w, in, mask)) return;
    if (!w->registers) {
        w->registers = k->max_registers ? k->max_registers : 65536 / (k->max_threads * k->min_blocks) / 8 * 8;
        if (w->registers > 248) w->registers = 248;
    }
    if (in->flags ? want < w->registers : want > w->registers)
        fault(w, in, mask, ERR_LAUNCH_FAILURE, "setmaxnreg.%s to %u registers, but the warp has %u",
              in->flags ? "inc" : "dec", want, w->registers);
    if (in->flags && (want - w->registers) * LANES > b->register_pool) {
        warp_park(w, SPLIT_WAIT_REGISTERS,
                  warp_index_of(w, in)); /* tries again when a warp has given some up */
        return;
    }
    b->register_pool += (w->registers - want) * LANES;
    w->registers = want;
    w->register_changes++;
    for (u32 k = w->id & ~3u; k <= (w->id | 3); k++) {
        const struct warp *peer = &b->warps[k];
        if (peer->register_changes == w->register_changes && peer->registers != want)
            fault(
                w, in, mask, ERR_LAUNCH_FAILURE,
                "setmaxnreg to %u registers, but warp %u of this warpgroup has executed one to %u: all four must "
                "execute the same",
                want, k, peer->registers);
    }
    for (u32 k = 0; k < b->warp_count && !in->flags; k++)
        for (s32 i = 0; i < b->warps[k].split_count; i++)
            if (b->warps[k].splits[i].state == SPLIT_WAIT_REGISTERS)
                b->warps[k].splits[i].state = SPLIT_READY;
}

void registers_leave(struct warp *w)
{
    if ((w->id | 3) >= w->block->warp_count) return;
    for (u32 k = w->id & ~3u; k <= (w->id | 3); k++) {
        const struct warp *peer = &w->block->warps[k];
        if (!peer->live && peer->register_changes != w->register_changes)
            fault(
                w, w->pc - 1, 1, ERR_LAUNCH_FAILURE,
                "warps %u and %u of a warpgroup have executed %u and %u setmaxnreg: all four must execute each",
                w->id, k, w->register_changes, peer->register_changes);
    }
}

bool lower_setmaxnreg(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    if (has_mod(p, "inc") == has_mod(p, "dec")) return refuse(lo, p, "this form of setmaxnreg");
    in->imm = (s64)p->op[0].imm;
    if (in->imm < 24 || in->imm > 256 || in->imm % 8)
        return refuse(lo, p, "%lld registers; it must be 24 to 256, a multiple of 8", (long long)in->imm);
    in->flags = has_mod(p, "inc");
    in->exec = exec_setmaxnreg;
    return true;
}
