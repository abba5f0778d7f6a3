/* tensor_f64.c: mma.sync and wmma on f64 (PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f64 floating point type" and those
 * of m16n8k4, m16n8k8, m16n8k16). Lane l is in group g = l/4, at t = l%4:
 *
 *      A           column t   4+t ..     B         column g      C, D      column 2t   2t+1
 *      row g       reg 0      reg 2      row t     reg 0         row g     reg 0       reg 1
 *      row g+8     reg 1      reg 3      row 4+t   reg 1 ..      row g+8   reg 2       reg 3
 *
 * m8n8k4 has rows g only. An element of D is C's with the products added to it in the order of k, each with one rounding: PTX
 * leaves the order open, and what an H200 does was not measured. wmma.m8n8k4, whose fragments PTX leaves open, uses the same. */
#include <string.h>

#include "memory.h"
#include "tensor.h"
#include "warp.h"

enum { MAX_M = 16, N = 8, MAX_K = 16, MAX_F64_REGISTERS = 8 };
enum matrix { MATRIX_D, MATRIX_A, MATRIX_B, MATRIX_C, MATRICES };

struct product_f64 {
    u32 m, k;
    u32 registers[MATRICES]; /* in inst.more, in this order */
    enum matrix matrix;      /* wmma.load and .store: which */
    bool by_rows;            /* ... whether memory runs along its rows */
};

static void count_registers(struct product_f64 *p)
{
    p->registers[MATRIX_A] = p->m * p->k / LANES;
    p->registers[MATRIX_B] = N * p->k / LANES;
    p->registers[MATRIX_C] = p->registers[MATRIX_D] = p->m * N / LANES;
}

/* Where register `r` of a lane has its element. */
static void place(const struct product_f64 *p, enum matrix matrix, u32 lane, u32 r, u32 *row, u32 *column)
{
    u32 g = lane / 4, t = lane % 4, halves = p->m / 8;
    if (matrix == MATRIX_A)
        *row = g + 8 * (r % halves), *column = t + 4 * (r / halves);
    else if (matrix == MATRIX_B)
        *row = t + 4 * r, *column = g;
    else
        *row = g + 8 * (r / 2), *column = 2 * t + r % 2;
}

static void read_matrix(struct warp *w, const struct product_f64 *p, enum matrix matrix,
                        const operand *registers, double out[MAX_M][MAX_K])
{
    for (u32 r = 0; r < p->registers[matrix]; r++) {
        const double *lane = lanes_of(w, registers[r]);
        for (u32 l = 0; l < LANES; l++) {
            u32 row, column;
            place(p, matrix, l, r, &row, &column);
            out[row][column] = lane[l];
        }
    }
}

static void exec_mma_f64(struct warp *w, const struct inst *in, u32 mask)
{
    const struct product_f64 *p = in->data;
    const operand *D = in->more, *A = D + p->registers[MATRIX_D], *B = A + p->registers[MATRIX_A],
                  *C = B + p->registers[MATRIX_B];
    double a[MAX_M][MAX_K], b[MAX_M][MAX_K], c[MAX_M][MAX_K];
    if (!tensor_whole_warp(w, in, mask)) return;
    read_matrix(w, p, MATRIX_A, A, a);
    read_matrix(w, p, MATRIX_B, B, b);
    read_matrix(w, p, MATRIX_C, C, c);
    for (u32 r = 0; r < p->registers[MATRIX_D]; r++) {
        double *d = lanes_of(w, D[r]);
        for (u32 l = 0; l < LANES; l++) {
            u32 row, column;
            place(p, MATRIX_D, l, r, &row, &column);
            double sum = c[row][column];
            for (u32 k = 0; k < p->k; k++) sum = __builtin_fma(a[row][k], b[k][column], sum);
            d[l] = sum;
        }
    }
    if (w->counters) w->counters[warp_index_of(w, in)].flops += 2ull * p->m * N * p->k;
}

/* a: the address; c: the stride in elements; more: registers */
static void exec_wmma_move_f64(struct warp *w, const struct inst *in, u32 mask)
{
    const struct product_f64 *p = in->data;
    bool is_store = p->matrix == MATRIX_D;
    const u32 *stride = lanes_of(w, in->c);
    u64 base[LANES], address[LANES];
    if (!tensor_whole_warp(w, in, mask)) return;
    memory_addresses(w, in, ALL_LANES, base);
    for (u32 r = 0; r < p->registers[p->matrix]; r++) {
        for (u32 l = 0; l < LANES; l++) {
            u32 row, column;
            if (base[l] != base[0] || stride[l] != stride[0])
                fault(w, in, 1u << l, ERR_LAUNCH_FAILURE,
                      "the lanes of the warp give different addresses or strides");
            place(p, p->matrix, l, r, &row, &column);
            address[l] =
                base[0] + 8 * (p->by_rows ? (u64)row * stride[0] + column : (u64)column * stride[0] + row);
        }
        memory_resolve(w, in, ALL_LANES, address, 8, 8, is_store);
        u64 *lane = lanes_of(w, in->more[r]);
        for (u32 l = 0; l < LANES; l++) {
            u64 *at = (u64 *)(uintptr_t)address[l];
            if (is_store)
                *at = lane[l];
            else
                lane[l] = *at;
        }
    }
}

/* mma.sync.aligned.shape.row.col.f64.f64.f64.f64 d, a, b, c;  wmma.mma.sync.aligned.alayout.blayout.m8n8k4{.rn}.f64... */
bool lower_mma_f64(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    static const struct {
        const char *name;
        u32 m, k;
    } shapes[] = {{"m8n8k4", 8, 4}, {"m16n8k4", 16, 4}, {"m16n8k8", 16, 8}, {"m16n8k16", 16, 16}};
    struct product_f64 *out = keep(sizeof *out);
    u32 types = 0;
    for (u32 i = 0; i < p->mod_count; i++) {
        const char *m = p->mod[i];
        for (u32 s = 0; s < sizeof shapes / sizeof *shapes; s++)
            if (streq(m, shapes[s].name)) out->m = shapes[s].m, out->k = shapes[s].k;
        if (streq(m, "f64"))
            types++;
        else if (!streq(m, "sync") && !streq(m, "aligned") && !streq(m, "row") && !streq(m, "col") &&
                 !streq(m, "rn") && m[0] != 'm')
            return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    if (!out->m || types != 4) return refuse(lo, p, "this form of %s on f64", p->opcode);
    count_registers(out);
    operand *more = lower_more(lo, MATRICES * MAX_F64_REGISTERS), *at = more;
    for (u32 k = 0; k < MATRICES; k++) {
        const struct ptx_operand *o = &p->op[k];
        u32 n = o->kind == OPERAND_VECTOR ? o->count : 1;
        if (n != out->registers[k])
            return refuse(lo, p, "%u registers in operand %u; it has %u", out->registers[k], k + 1, n);
        if (!tensor_fragment(lo, p, o, T_F64, at)) return false;
        at += n;
    }
    in->exec = exec_mma_f64;
    in->more = more;
    in->data = out;
    return true;
}

/* wmma.load.a.sync.aligned.layout.m8n8k4{.ss}.f64 r, [p]{, stride};  wmma.store.d likewise, [p], r{, stride} */
bool lower_wmma_move_f64(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    const bool is_store = !is_written(&p->op[0]);
    const char *matrix = p->mod_count > 1 ? p->mod[1] : "";
    struct product_f64 *out = keep(sizeof *out);
    *out = (struct product_f64){.m = 8, .k = 4, .by_rows = has_mod(p, "row")};
    out->matrix = *matrix == 'a'   ? MATRIX_A
                  : *matrix == 'b' ? MATRIX_B
                  : *matrix == 'c' ? MATRIX_C
                                   : MATRIX_D;
    count_registers(out);
    in->space = has_mod(p, "global")                                ? SPACE_GLOBAL
                : has_mod(p, "shared") || has_mod(p, "shared::cta") ? SPACE_SHARED
                                                                    : SPACE_GENERIC;
    if (!has_mod(p, "m8n8k4") || (out->matrix == MATRIX_D) != is_store)
        return refuse(lo, p, "this form of wmma on f64");
    const struct ptx_operand *registers = &p->op[is_store];
    u32 n = registers->kind == OPERAND_VECTOR ? registers->count : 1;
    if (n != out->registers[out->matrix]) return refuse(lo, p, "%u registers do not hold this matrix", n);
    operand *more = lower_more(lo, n);
    if (!tensor_fragment(lo, p, registers, T_F64, more) || !lower_address(lo, &p->op[!is_store], in))
        return false;
    u32 rows = out->matrix == MATRIX_B ? out->k : out->m, columns = out->matrix == MATRIX_A ? out->k : N;
    in->c = p->op_count > 2 ? lower_source(lo, &p->op[2], T_U32)
                            : lower_const(lo, out->by_rows ? columns : rows, 4);
    in->exec = exec_wmma_move_f64;
    in->more = more;
    in->data = out;
    return true;
}
