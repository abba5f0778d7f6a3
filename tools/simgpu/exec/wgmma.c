/* wgmma.c: products of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
 *
 * D is 64 x N, and warp i of the four has rows 16 i to 16 i + 15, in mma.m16n8's fragments, one for each 8 columns; so each
 * warp computes its own rows, and nothing passes between them. The result is in its registers at once, and two things
 * make up for that haste:
 *
 *      registers        from wgmma to the wait_group that ends its group, an instruction that touches D, or writes A, is a
 *                       fault (wgmma_watch); only a further wgmma may have them
 *      shared memory    A and B must not be written until then; stamps tell (exec/proxy.h)
 *
 * A product is complete for the warpgroup as a whole: a warp's wait ends when all four have issued what it waits for. So one
 * thread of the four warps may tell the producer that a stage is free.
 *
 * An operand in shared memory is named by a descriptor: where it starts, and how far apart its 8 x 16-byte core matrices
 * are (LBO, SBO). Where byte `kb` of row r lies (measured on an H200, all four modes, W the swizzle's width):
 *
 *      K-major         none  (r/8) SBO + (r%8) 16 + (kb/16) LBO + kb%16        W  (r/8) SBO + (r%8) W + kb
 *      MN-major        none  (mb/16) SBO + mb%16 + (k%8) 16 + (k/8) LBO        W  (mb/W) LBO + mb%W + (k%8) W + (k/8) SBO
 *      then            address ^= ((address >> 7) - base offset & mask) << 4,  mask 1, 3, 7 for W = 32, 64, 128 */
#include "wgmma.h"

#include <stdlib.h>
#include <string.h>

#include "../front/lower.h"
#include "accumulate.h"
#include "memory.h"
#include "proxy.h"
#include "undefined.h"
#include "warp.h"

enum { ROW_BYTES = 32, WORDS = 8 }; /* K is always 32 bytes */

struct form {
    u32 n, k;
    enum type a, b, d;
    bool saturate, a_in_registers, a_transposed, b_transposed;
    u32 a_sign, b_sign; /* bits to flip in each word: imm-scale */
    u32 d_count;        /* registers of D; in->more has them, then those of A */
};

/* A product in flight. */
struct product {
    const struct form *form;
    const struct inst *in;
    u64 number; /* among the warp's products; the same for all four warps */
    u32 group, issued;
    u64 a, b; /* descriptors */
};

enum { KEPT = 8 }; /* products whose B is kept decoded: a warp may run so far ahead of its peers */

struct wgmma_state {
    const struct frame *frame;  /* whose registers these are */
    u32 slots, committed, done; /* groups closed, groups waited for */
    u32 *result, *input;        /* by slot: the last group that writes the register, that reads it as A */
    u32 fences;                 /* wgmma.fence so far */
    struct touch {
        u32 fences, at; /* how many there had been, plus 1; by which instruction */
    } * accessed,
        *multiplied; /* by slot: the last ordinary access, if the function is watched; the last wgmma into it */
    u64 count, checked; /* products so far; those whose operands one of the four warps has checked */
    struct product *flight;
    u32 capacity;
    struct decoded *decoded; /* KEPT of them */
};

/* ---- Operands in shared memory -------------------------------------------------------------------------------------- */

struct matrix {
    u32 start, base, mask;
    u32 tile, inside, width; /* as many tiles as fill `width` bytes are `inside` apart, such groups `tile` */
    u32 row, next;           /* how far apart a tile's eight rows (or k's) are, and its two halves */
};

/* An operand is read in tiles of 8 rows (or columns): 16 pieces of 16 bytes, K-major two of each row, MN-major one of each k. */
enum { PIECES = 16 };

static struct matrix matrix_of(u64 descriptor, bool transposed)
{
    u32 mode = (u32)(descriptor >> 62), bits = mode ? 4 - mode : 0, width = 16u << bits;
    u32 lbo = (u32)(descriptor >> 16 & 0x3fff) << 4, sbo = (u32)(descriptor >> 32 & 0x3fff) << 4;
    bool wide = transposed && mode;
    return (struct matrix){.start = (u32)(descriptor & 0x3fff) << 4,
                           .base = (u32)(descriptor >> 49) & 7,
                           .mask = (1u << bits) - 1,
                           .tile = wide ? lbo : sbo,
                           .inside = wide ? 16 : 0,
                           .width = wide ? width : 16,
                           .row = width, /* 16 without a swizzle */
                           .next = wide                  ? sbo
                                   : transposed || !mode ? lbo
                                                         : 16};
}

/* The offsets in shared memory of a tile's pieces: K-major the first of each row, then the second; MN-major in the order of k. */
static inline void find_pieces(const struct block *b, const struct matrix *m, u32 tile, u32 at[PIECES])
{
    struct matrix x = *m;
    u32 origin = x.start + tile * 16 / x.width * x.tile + tile * x.inside % x.width;
    for (u32 i = 0; i < PIECES; i++) {
        u32 linear = origin + i % 8 * x.row + i / 8 * x.next;
        at[i] = ((linear ^ (((linear >> 7) - x.base) & x.mask) << 4) & 0x3ffff) - b->shared_base;
    }
}

/* Pieces that one product has looked at. What was written together with one of them, by the same lanes, needs no second look. A
 * tile that ordinary stores have written is of several warps, some lanes of each. */
enum { SEEN = 32 };
struct seen {
    struct write {
        u32 stamp, landing, lanes; /* at first of what was never written */
    } write[SEEN];
};

/* Copies pieces, which the warp may read. */
static void read_pieces(struct warp *w, const struct inst *in, const u32 at[PIECES], const char *name,
                        struct seen *seen, u32 four[PIECES][4])
{
    const struct block *b = w->block;
    const u32 *stamps = b->stamps, *landing = b->order->landing, *lanes = b->lanes, bytes = b->shared_bytes;
    u32 *read = order_reader(w->block, ACTOR_WARPGROUP + w->id / 4), number = (u32)w->wgmma->count;
    for (u32 i = 0; i < PIECES; i++) {
        u32 piece = at[i] / 16;
        if (at[i] > bytes || at[i] + 16 > bytes)
            fault(
                w, in, ALL_LANES, ERR_ILLEGAL_ADDRESS,
                "out of bounds: the descriptor of %s reaches shared offset %d; the block has %u bytes of shared memory",
                name, (s32)at[i], bytes);
        const struct write now = {stamps[piece], landing[piece], lanes[piece]};
        struct write *same = &seen->write[(now.stamp ^ now.lanes % (SEEN - 1)) % SEEN];
        if ((now.stamp ^ same->stamp) | (now.landing ^ same->landing) | (now.lanes ^ same->lanes)) {
            proxy_reads(w, in, ALL_LANES, b, at[i], 16);
            *same = now;
        }
        read[piece] = number;
        memcpy(four[i], b->shared + at[i], 16);
    }
}

/* Eight rows (of A) or columns (of B), in 32-bit words along k. */
static void gather(struct warp *w, const struct inst *in, const struct matrix *m, bool transposed,
                   const char *name, u32 tile, u32 sign, struct seen *seen, u32 words[WORDS][TILE])
{
    u32 at[PIECES], four[PIECES][4];
    find_pieces(w->block, m, tile, at);
    read_pieces(w, in, at, name, seen, four);
    for (u32 i = 0; i < PIECES && sign; i++)
        for (u32 q = 0; q < 4; q++) four[i][q] ^= sign;
    for (u32 half = 0; half < 2 && !transposed; half++) spread(four[8 * half], &words[4 * half]);
    for (u32 k = 0; k < PIECES && transposed; k += 2) {
        u16 even[8], odd[8];
        memcpy(even, four[k], 16);
        memcpy(odd, four[k + 1], 16);
        for (u32 i = 0; i < 8; i++) words[k / 2][i] = even[i] | (u32)odd[i] << 16;
    }
}

/* Whether these tiles were written since; then *offset is that of the latest such piece. */
static bool changed(const struct block *b, const struct matrix *m, u32 tiles, u32 since, u32 *offset)
{
    u32 at[PIECES], latest = 0;
    for (u32 tile = 0; tile < tiles; tile++) {
        find_pieces(b, m, tile, at);
        for (u32 i = 0; i < PIECES; i++) {
            u32 stamp = b->stamps[at[i] / 16];
            latest = stamp > latest ? stamp : latest;
        }
    }
    if (latest >> WRITER_BITS < since) return false;
    for (u32 tile = tiles; tile-- > 0;) {
        find_pieces(b, m, tile, at);
        for (u32 i = PIECES; i-- > 0;)
            if (b->stamps[at[i] / 16] == latest) *offset = at[i];
    }
    return true;
}

/* B, decoded once for the four warps, by the first that comes: it must stay as it is until the product is complete. */
struct decoded {
    const struct form *form;
    u64 number, descriptor; /* of the product, and of B */
    u32 capacity;
    struct column_tile *tile;
};

/* ---- Counting ------------------------------------------------------------------------------------------------------- */

/* An operand is read as its core matrices lie, 8 rows (or 8 k's) of 16 bytes: 128 bytes, one pass, unless rows meet in a bank. */
static void count_matrix(struct counter *c, const struct block *b, const struct matrix *m, u32 first,
                         u32 tiles)
{
    u32 at[PIECES], ideal;
    for (u32 tile = first; tile < first + tiles; tile++) {
        find_pieces(b, m, tile, at);
        for (u32 half = 0; half < 2; half++) {
            u64 address[LANES] = {0};
            for (u32 row = 0; row < 8; row++) address[row] = at[8 * half + row];
            c->shared_wavefronts += shared_passes(0xff, address, 16, &ideal);
            c->shared_ideal += ideal;
        }
    }
}

/* Each warp counts its rows of A, and the first of the four counts B, which the tensor cores share. */
static void count_product(struct warp *w, const struct inst *in, const struct product *p)
{
    const struct form *f = p->form;
    struct counter *c = &w->counters[warp_index_of(w, in)];
    struct matrix A = matrix_of(p->a, f->a_transposed), B = matrix_of(p->b, f->b_transposed);
    c->flops += 2ull * 16 * f->n * f->k;
    if (!f->a_in_registers) count_matrix(c, w->block, &A, 2 * (w->id % 4), 2);
    if (w->id % 4 == 0) count_matrix(c, w->block, &B, 0, f->n / TILE);
}

/* ---- What is in flight ------------------------------------------------------------------------------------------------- */

void wgmma_start_warp(struct warp *w)
{
    w->wgmma_in_flight = 0;
    wgmma_free_warp(w);
    w->wgmma = NULL;
}

void wgmma_free_warp(struct warp *w)
{
    if (!w->wgmma) return;
    for (u32 i = 0; i < KEPT; i++) free(w->wgmma->decoded[i].tile);
    free(w->wgmma->decoded);
    free(w->wgmma->result);
    free(w->wgmma->accessed);
    free(w->wgmma->flight);
    free(w->wgmma);
}

static struct wgmma_state *state_of(struct warp *w)
{
    struct wgmma_state *s = w->wgmma;
    if (!s && (!(s = w->wgmma = calloc(1, sizeof *s)) || !(s->decoded = calloc(KEPT, sizeof *s->decoded))))
        abort();
    return s;
}

/* The same, with what is known of the registers of the function that runs. */
static struct wgmma_state *registers_of(struct warp *w)
{
    struct wgmma_state *s = state_of(w);
    if (s->frame != w->frame) {
        free(s->result);
        free(s->accessed);
        s->frame = w->frame;
        s->slots = w->frame->fn->reg_bytes / 64 + 1;
        s->result = calloc(2 * s->slots, sizeof *s->result);
        s->accessed = calloc(2 * s->slots, sizeof *s->accessed);
        if (!s->result || !s->accessed) abort();
        s->input = s->result + s->slots;
        s->multiplied = s->accessed + s->slots;
    }
    return s;
}

/* ---- The product ---------------------------------------------------------------------------------------------------- */

static const struct column_tile *decoded_b(struct warp *w, const struct inst *in, const struct product *p)
{
    const struct form *f = p->form;
    for (u32 k = w->id & ~3u; k <= (w->id | 3); k++) {
        const struct wgmma_state *s = w->block->warps[k].wgmma;
        const struct decoded *d = s ? &s->decoded[p->number % KEPT] : NULL;
        if (d && d->form == f && d->number == p->number && d->descriptor == p->b) return d->tile;
    }
    struct decoded *d = &w->wgmma->decoded[p->number % KEPT];
    struct matrix B = matrix_of(p->b, f->b_transposed);
    struct seen seen = {0};
    u32 words[WORDS][TILE];
    if (f->n / TILE > d->capacity) {
        free(d->tile);
        d->capacity = f->n / TILE;
        if (!(d->tile = aligned_alloc(64, d->capacity * sizeof *d->tile))) abort();
    }
    for (u32 tile = 0; tile < f->n / TILE; tile++) {
        gather(w, in, &B, f->b_transposed, "B", tile, f->b_sign, &seen, words);
        decode_columns(&d->tile[tile], f->b, false, words, f->k);
    }
    d->form = f;
    d->number = p->number;
    d->descriptor = p->b;
    return d->tile;
}

static void decode_a(struct warp *w, const struct inst *in, const struct product *p, struct row_tile *rows)
{
    const struct form *f = p->form;
    struct matrix A = matrix_of(p->a, f->a_transposed);
    struct seen seen = {0};
    u32 words[WORDS][TILE];
    for (u32 half = 0; half < 2; half++) {
        for (u32 r = half; r < 4 && f->a_in_registers; r += 2) {
            u32 lane[LANES];
            memcpy(lane, lanes_of(w, in->more[f->d_count + r]), sizeof lane);
            for (u32 l = 0; l < LANES; l++) lane[l] ^= f->a_sign;
            spread(lane, &words[4 * (r / 2)]);
        }
        if (!f->a_in_registers)
            gather(w, in, &A, f->a_transposed, "A", 2 * (w->id % 4) + half, f->a_sign, &seen, words);
        decode_rows(rows, half, f->a, false, words, f->k);
    }
}

/* D's registers of 8 columns: one for each half and parity, but f16 has both parities in one. */
static void multiply(struct warp *w, const struct inst *in, const struct product *p, bool adds)
{
    static const u32 zeros[LANES];
    u32 halves[4][LANES] = {{0}};
    const struct form *f = p->form;
    bool fp8 = f->a == T_E4M3 || f->a == T_E5M2;
    struct dot_rule rule = {
        .depth = f->k, .fraction = fp8 ? 13 : 25, .precision = fp8 ? 13 : 23, .f16 = f->d == T_F16};
    struct row_tile rows;
    decode_a(w, in, p, &rows);
    const struct column_tile *columns = decoded_b(w, in, p);
    for (u32 tile = 0; tile < f->n / TILE; tile++, columns++) {
        const u32 *c[4];
        u32 *d[4];
        for (u32 q = 0; q < 4; q++) {
            d[q] = rule.f16 ? halves[q] : lanes_of(w, in->more[4 * tile + q]);
            c[q] = adds ? d[q] : zeros;
        }
        for (u32 half = 0; half < 2 && rule.f16; half++)
            unpack_f16(lanes_of(w, in->more[2 * tile + half]), halves[2 * half], halves[2 * half + 1]);
        if (f->d == T_S32)
            dot_integers(f->k, f->saturate, &rows, columns, c, d);
        else
            (options.exact_mma ? dot_exact : dot_fused)(&rule, &rows, columns, c, d);
        for (u32 half = 0; half < 2 && rule.f16; half++)
            pack_f16(halves[2 * half], halves[2 * half + 1], lanes_of(w, in->more[2 * tile + half]));
    }
}

static u32 slot_of(operand o)
{
    return (u32)o / 64;
}

static _Noreturn void touched_fault(struct warp *w, const struct inst *in, const struct product *p,
                                    const char *name, bool written, bool result)
{
    const struct function *fn = w->frame->fn;
    u32 at = p ? (u32)(p->in - fn->code) : 0;
    fault_against(w, in, w->active, ERR_LAUNCH_FAILURE, fn, p ? p->in : NULL,
                  "register %s is %s before the wgmma at line %u%s: wgmma.wait_group must come first", name,
                  written ? "written" : "read", p ? fn->lines[at].line : 0,
                  result ? ", whose result it holds, has been waited for"
                         : ", which reads A from it, has been waited for");
}

static const struct product *product_of_group(const struct warp *w, u32 group)
{
    for (u32 i = 0; i < w->wgmma_in_flight; i++)
        if (w->wgmma->flight[i].group == group) return &w->wgmma->flight[i];
    return NULL;
}

/* A mov is no access, as for front/warpgroup.c. */
static void note_accesses(struct warp *w, const struct inst *in, const struct touched *t)
{
    struct wgmma_state *s = registers_of(w);
    if (t->moves) {
        struct touch none = {0}, from = t->count == 2 ? s->accessed[t->reg[0].slot] : none,
                     *to = &s->accessed[t->reg[t->count - 1].slot];
        if (in->guard == NO_OPERAND || from.fences > to->fences) *to = from;
        return;
    }
    for (u32 i = 0; i < t->count; i++)
        s->accessed[t->reg[i].slot] = (struct touch){s->fences + 1, warp_index_of(w, in)};
}

void wgmma_watch(struct warp *w, const struct inst *in)
{
    const struct function *fn = w->frame->fn;
    const struct touched *t = fn->touched ? fn->touched[in - fn->code] : NULL;
    if (t && fn->watches_fences) note_accesses(w, in, t);
    struct wgmma_state *s = w->wgmma;
    if (!t || !s || w->frame != s->frame) return;
    for (u32 i = 0; i < t->count; i++) {
        const struct touched_register *r = &t->reg[i];
        if (s->result[r->slot] > s->done && !(t->copies && !r->written))
            touched_fault(w, in, product_of_group(w, s->result[r->slot]), r->name, r->written, true);
        if (r->written && s->input[r->slot] > s->done)
            touched_fault(w, in, product_of_group(w, s->input[r->slot]), r->name, true, false);
    }
    if (t->copies && s->result[t->reg[0].slot] > s->done)
        s->result[t->reg[1].slot] = s->result[t->reg[0].slot];
}

/* The loop that watches takes over, or hands back. */
static void change_loop(struct warp *w)
{
    w->unused_budget = w->budget;
    w->budget = 0;
}

/* All four warps of the group must execute the same products, with the same descriptors. */
static void compare_with_group(struct warp *w, const struct inst *in, const struct product *p)
{
    const struct wgmma_state *s = w->wgmma;
    for (u32 k = w->id & ~3u; k <= (w->id | 3); k++) {
        const struct warp *peer = &w->block->warps[k];
        u64 count = peer->wgmma ? peer->wgmma->count : 0;
        if (!peer->live && count < s->count)
            fault(
                w, in, w->active, ERR_LAUNCH_FAILURE,
                "warp %u of this warpgroup has exited after %llu wgmma instructions, and this one executes its number %llu: "
                "all four execute each",
                k, (unsigned long long)count, (unsigned long long)s->count);
        for (u32 i = 0; i < peer->wgmma_in_flight; i++) {
            const struct product *q = &peer->wgmma->flight[i];
            bool b = q->b != p->b;
            if (q->number == p->number && (b || q->a != p->a))
                fault(w, in, w->active, ERR_LAUNCH_FAILURE,
                      "the descriptor of %s is 0x%016llx here, and warp %u of this warpgroup has 0x%016llx",
                      b ? "B" : "A", (unsigned long long)(b ? p->b : p->a), k,
                      (unsigned long long)(b ? q->b : q->a));
        }
    }
}

void wgmma_leave(struct warp *w)
{
    if (!w->wgmma || (w->id | 3) >= w->block->warp_count) return;
    for (u32 k = w->id & ~3u; k <= (w->id | 3); k++) {
        const struct warp *peer = &w->block->warps[k];
        u64 count = peer->wgmma ? peer->wgmma->count : 0;
        if (!peer->live && count != w->wgmma->count)
            fault(
                w, w->pc - 1, 1, ERR_LAUNCH_FAILURE,
                "warps %u and %u of a warpgroup have executed %llu and %llu wgmma instructions: all four execute each",
                w->id, k, (unsigned long long)w->wgmma->count, (unsigned long long)count);
    }
}

static bool warpgroup(struct warp *w, const struct inst *in, u32 mask)
{
    if ((w->id | 3) >= w->block->warp_count)
        fault(w, in, mask, ERR_LAUNCH_FAILURE,
              "a warpgroup is four warps, the first a multiple of 4: warp %u of %u has none", w->id,
              w->block->warp_count);
    if (mask == ALL_LANES) return true;
    if (w->live != ALL_LANES || mask != w->active)
        fault(w, in, mask, ERR_LAUNCH_FAILURE,
              "all threads of a warpgroup must execute this instruction together: lanes 0x%08x do", mask);
    return warp_gather(w, in, mask, ALL_LANES, false) != 0;
}

/* No register of D or A has been accessed since the last wgmma.fence, but by products of the same shape into D. */
static void check_fence(struct warp *w, const struct inst *in, const struct form *f)
{
    const struct wgmma_state *s = w->wgmma;
    const struct function *fn = w->frame->fn;
    if (!s->fences)
        fault(w, in, w->active, ERR_LAUNCH_FAILURE,
              "wgmma.fence is missing: this warp has executed none before its first wgmma");
    for (u32 r = 0; r < f->d_count + (f->a_in_registers ? 4 : 0); r++) {
        u32 slot = slot_of(in->more[r]);
        struct touch ordinary = s->accessed[slot], product = s->multiplied[slot];
        const struct form *other = fn->code[product.at].data;
        if (ordinary.fences > s->fences)
            fault_against(
                w, in, w->active, ERR_LAUNCH_FAILURE, fn, &fn->code[ordinary.at],
                "wgmma.fence is missing: a register of %s was accessed at line %u since the last one",
                r < f->d_count ? "the accumulator" : "A", fn->lines[ordinary.at].line);
        if (r < f->d_count && product.fences > s->fences && (other->n != f->n || other->k != f->k))
            fault_against(
                w, in, w->active, ERR_LAUNCH_FAILURE, fn, &fn->code[product.at],
                "wgmma.fence is missing: the wgmma at line %u, since the last one, has another shape (m64n%uk%u) and "
                "writes the same accumulator",
                fn->lines[product.at].line, other->n, other->k);
    }
}

/* ---- Instructions -------------------------------------------------------------------------------------------------------- */

/* a, b: descriptors (a: NO_OPERAND when A is in registers); c: scale-d (aux: flip). */
static void exec_mma(struct warp *w, const struct inst *in, u32 mask)
{
    const struct form *f = in->data;
    if (!warpgroup(w, in, mask)) return;
    struct wgmma_state *s = registers_of(w);
    check_fence(w, in, f);
    s->count++;
    struct product p = {.form = f, .in = in, .number = s->count, .group = s->committed + 1};
    if (in->a != NO_OPERAND) p.a = *(u64 *)lanes_of(w, in->a);
    p.b = *(u64 *)lanes_of(w, in->b);
    compare_with_group(w, in, &p);
    for (u32 r = 0; f->a_in_registers && r < 4; r++) {
        u32 slot = slot_of(in->more[f->d_count + r]);
        if (s->result[slot] > s->done)
            touched_fault(w, in, product_of_group(w, s->result[slot]), "of A", false, true);
        s->input[slot] = p.group;
    }
    bool adds = (predicate_of(w, in->c) ^ (in->aux ? ~0u : 0)) & 1;
    bool set = !adds || !(in->flags & PRODUCT_UNSET);
    for (u32 r = 0; r < f->d_count && !set; r++) set = s->result[slot_of(in->more[r])] != 0;
    if (!set) undefined_accumulators(w, in, mask, ", or let scale-d be 0");
    p.issued = ++w->block->clock;
    order_product(w, in, p.number);
    multiply(w, in, &p, adds);
    for (u32 r = 0; r < f->d_count; r++) {
        s->result[slot_of(in->more[r])] = p.group;
        s->multiplied[slot_of(in->more[r])] = (struct touch){s->fences + 1, warp_index_of(w, in)};
    }
    if (w->counters) count_product(w, in, &p);
    if (!w->wgmma_in_flight) change_loop(w);
    if (w->wgmma_in_flight == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 16;
        if (!(s->flight = realloc(s->flight, s->capacity * sizeof *s->flight))) abort();
    }
    s->flight[w->wgmma_in_flight++] = p;
    for (u32 k = w->id & ~3u; k <= (w->id | 3); k++) {
        struct warp *peer = &w->block->warps[k];
        for (s32 i = 0; i < peer->split_count; i++)
            if (peer->splits[i].state == SPLIT_WAIT_GROUP) peer->splits[i].state = SPLIT_READY;
    }
}

static void exec_fence(struct warp *w, const struct inst *in, u32 mask)
{
    if (warpgroup(w, in, mask)) state_of(w)->fences++;
}

static void exec_commit(struct warp *w, const struct inst *in, u32 mask)
{
    if (warpgroup(w, in, mask)) state_of(w)->committed++;
}

/* Nobody may have written p's operands since the first of the four warps issued it. */
static void check_operands(struct warp *w, const struct inst *in, const struct product *p)
{
    struct matrix A = matrix_of(p->a, p->form->a_transposed), B = matrix_of(p->b, p->form->b_transposed);
    u32 since = p->issued;
    for (u32 k = w->id & ~3u; k <= (w->id | 3); k++) {
        struct warp *peer = &w->block->warps[k];
        for (u32 i = 0; i < peer->wgmma_in_flight; i++) {
            const struct product *q = &peer->wgmma->flight[i];
            if (q->number == p->number && q->issued < since) since = q->issued;
        }
        peer->wgmma->checked = p->number;
    }
    u32 at = 0;
    bool a = !p->form->a_in_registers && changed(w->block, &A, 64 / TILE, since, &at);
    if (!a && !changed(w->block, &B, p->form->n / TILE, since, &at)) return;
    const struct function *fn;
    const struct inst *store = race_writer(w->block, at, &fn);
    fault_against(
        w, in, w->active, ERR_LAUNCH_FAILURE, fn, store,
        "shared memory of operand %s was written before the wgmma at line %u that reads it was waited for",
        a ? "A" : "B", w->frame->fn->lines[p->in - w->frame->fn->code].line);
}

/* imm: groups that may stay in flight */
static void exec_wait(struct warp *w, const struct inst *in, u32 mask)
{
    if (!warpgroup(w, in, mask)) return;
    struct wgmma_state *s = state_of(w);
    u32 kept = 0, before = w->wgmma_in_flight, done = s->done;
    u64 last = 0;
    if ((u64)in->imm <= s->committed && s->committed - (u32)in->imm > done)
        done = s->committed - (u32)in->imm;
    for (u32 i = 0; i < before; i++)
        if (s->flight[i].group <= done) last = s->flight[i].number;
    for (u32 k = w->id & ~3u; k <= (w->id | 3); k++) {
        const struct warp *peer = &w->block->warps[k];
        if (last && (!peer->wgmma || peer->wgmma->count < last)) {
            warp_park(w, SPLIT_WAIT_GROUP,
                      warp_index_of(w, in)); /* tries again when a warp of the four has issued one */
            return;
        }
    }
    s->done = done;
    order_products_done(w, last);
    order_executed_together(w);
    for (u32 i = 0; i < before; i++) {
        struct product p = s->flight[i];
        if (p.group > done)
            s->flight[kept++] = p;
        else if (p.number > s->checked)
            check_operands(w, in, &p);
    }
    w->wgmma_in_flight = kept;
    if (before && !kept) change_loop(w);
}

/* ---- Lowering --------------------------------------------------------------------------------------------------------------- */

static bool read_immediate(struct lowering *lo, const struct ptx_inst *p, u32 *at, s64 *value)
{
    if (*at >= p->op_count || p->op[*at].kind != OPERAND_IMM) return refuse(lo, p, "this form of wgmma");
    *value = (s64)p->op[(*at)++].imm;
    return true;
}

static bool read_shape(const char *m, u32 *n, u32 *k)
{
    char rest;
    return sscanf(m, "m64n%uk%u%c", n, k, &rest) == 2;
}

static bool known_types(const struct form *f)
{
    bool a8 = f->a == T_E4M3 || f->a == T_E5M2, b8 = f->b == T_E4M3 || f->b == T_E5M2,
         ai = f->a == T_S8 || f->a == T_U8, bi = f->b == T_S8 || f->b == T_U8;
    u32 step = ai && f->n > 32 ? 16 : 8;
    if (f->n < 8 || f->n > 256 || f->n % step || f->k * type_bytes(f->a) != ROW_BYTES) return false;
    if (ai && bi) return f->d == T_S32 && f->n != 40;
    if (a8 && b8) return f->d == T_F32 || f->d == T_F16;
    return f->a == f->b && ((f->a == T_F16 && f->d == T_F16) ||
                            (f->d == T_F32 && (f->a == T_F16 || f->a == T_BF16 || f->a == T_TF32)));
}

/* imm-scale-a, -b of floating-point types; imm-trans-a (when A is in shared memory), -b of 16-bit ones */
static bool read_scales(struct lowering *lo, const struct ptx_inst *p, struct form *f)
{
    u32 at = 4;
    s64 v = 0;
    u32 sign = type_bytes(f->a) == 1 ? 0x80808080u : type_bytes(f->a) == 2 ? 0x80008000u : 0x80000000u;
    if (f->d == T_S32) return p->op_count == 4 ? true : refuse(lo, p, "this form of wgmma");
    for (u32 k = 0; k < 2; k++) {
        if (!read_immediate(lo, p, &at, &v)) return false;
        if (v != 1 && v != -1) return refuse(lo, p, "a scale of %lld", (long long)v);
        *(k ? &f->b_sign : &f->a_sign) = v < 0 ? sign : 0;
    }
    for (u32 k = f->a_in_registers; k < 2 && type_bytes(f->a) == 2; k++) {
        if (!read_immediate(lo, p, &at, &v)) return false;
        *(k ? &f->b_transposed : &f->a_transposed) = v != 0;
    }
    return at == p->op_count ? true : refuse(lo, p, "%u operands; it has %u", at, p->op_count);
}

bool lower_product(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    if (p->guard) return refuse(lo, p, "a guarded wgmma");
    if (has_mod(p, "sp")) return refuse(lo, p, "a sparse A");
    struct form *f = keep(sizeof *f);
    enum type types[3];
    u32 type_count = 0, flip;
    for (u32 k = 1; k < p->mod_count; k++) {
        const char *m = p->mod[k];
        if (type_named(m) != T_NONE && type_count < 3)
            types[type_count++] = type_named(m);
        else if (streq(m, "satfinite"))
            f->saturate = true;
        else if (!streq(m, "sync") && !streq(m, "aligned") && !read_shape(m, &f->n, &f->k))
            return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    if (type_count != 3) return refuse(lo, p, "this form of wgmma");
    f->d = types[0], f->a = types[1], f->b = types[2];
    if (!known_types(f)) return refuse(lo, p, "this shape with these element types");
    f->a_in_registers = p->op[1].kind == OPERAND_VECTOR;
    f->d_count = f->n / (f->d == T_F16 ? 4 : 2);
    if (!read_scales(lo, p, f)) return false;
    if (p->op[0].kind != OPERAND_VECTOR || p->op[0].count != f->d_count ||
        (f->a_in_registers && p->op[1].count != 4))
        return refuse(lo, p, "D has %u registers here, and A 4", f->d_count);
    operand *more = lower_more(lo, f->d_count + 4);
    for (u32 r = 0; r < f->d_count; r++) more[r] = lower_dest(lo, &p->op[0].element[r], T_B32);
    for (u32 r = 0; f->a_in_registers && r < 4; r++)
        more[f->d_count + r] = lower_source(lo, &p->op[1].element[r], T_B32);
    for (u32 r = 0; r < f->d_count; r++)
        if (p->op[0].element[r].kind != OPERAND_REG) return refuse(lo, p, "a fragment without a register");
    bool set = false;
    for (u32 r = 0; r < f->d_count; r++) set |= p->op[0].element[r].reg->set;
    in->flags = set ? 0 : PRODUCT_UNSET;
    in->exec = exec_mma;
    in->more = more;
    in->data = f;
    if (!f->a_in_registers) in->a = lower_source(lo, &p->op[1], T_B64);
    in->b = lower_source(lo, &p->op[2], T_B64);
    in->c = lower_predicate(lo, &p->op[3], &flip);
    in->aux = flip != 0;
    lo->f->fn->uses_async_proxy = true;
    return true;
}

bool lower_product_fence(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    in->exec = exec_fence;
    return p->guard ? refuse(lo, p, "a guarded wgmma") : true;
}

bool lower_product_commit(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    in->exec = exec_commit;
    return p->guard ? refuse(lo, p, "a guarded wgmma") : true;
}

bool lower_product_wait(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    in->exec = exec_wait;
    in->imm = (s64)p->op[0].imm;
    return p->guard ? refuse(lo, p, "a guarded wgmma") : true;
}
