/* tensor.c: matrix fragments and the tensor cores (PTX ISA, "Warp-Level Matrix Instructions").
 *
 * A fragment is a matrix spread over the registers of a warp. All of them come from one picture, an 8x8 matrix of
 * 16-bit elements in one register: lane l holds row l/4, columns 2*(l%4) and 2*(l%4)+1, so that the register's 32
 * lanes, one after the other, are the matrix in row-major order:
 *
 *            column  0  1   2  3   4  5   6  7
 *      row 0        lane 0  lane 1  lane 2  lane 3
 *      row 1        lane 4  lane 5  lane 6  lane 7
 *       ...
 *      row 7        lane 28 lane 29 lane 30 lane 31        (the lower column in the lower half)
 *
 * All these instructions are .sync.aligned: the 32 lanes of the warp execute them together. */
#include <string.h>

#include "../front/lower.h"
#include "accumulate.h"
#include "memory.h"
#include "numeric.h"
#include "tensor.h"
#include "warp.h"

bool tensor_whole_warp(struct warp *w, const struct inst *in, u32 mask)
{
    if (mask == ALL_LANES) return true;
    if (w->live != ALL_LANES || mask != w->active)
        fault(
            w, in, mask, ERR_LAUNCH_FAILURE,
            "all 32 threads of a warp must execute this instruction together: lanes 0x%08x do, lanes 0x%08x %s",
            mask, w->live != ALL_LANES ? ~w->live : w->active & ~mask,
            w->live != ALL_LANES ? "have exited or never were" : "skip it");
    return warp_gather(w, in, mask, ALL_LANES, EXCHANGE) != 0;
}

u32 tensor_fragment(struct lowering *lo, const struct ptx_inst *p, const struct ptx_operand *o,
                    enum type type, operand *out)
{
    u32 n = o->kind == OPERAND_VECTOR ? o->count : 1;
    const struct ptx_operand *e = o->kind == OPERAND_VECTOR ? o->element : o;
    for (u32 k = 0; k < n; k++) {
        out[k] = is_written(o) ? lower_dest(lo, &e[k], type) : lower_source(lo, &e[k], type);
        if (e[k].kind != OPERAND_REG) return refuse(lo, p, "register %u of a fragment is no register", k);
    }
    return n;
}

/* ---- ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit elements ---------------------------------------------- */

static void transpose(u32 matrix[LANES])
{
    u16 in[8][8], out[8][8];
    memcpy(in, matrix, sizeof in);
    for (u32 row = 0; row < 8; row++)
        for (u32 column = 0; column < 8; column++) out[row][column] = in[column][row];
    memcpy(matrix, out, sizeof out);
}

/* Lanes 8m to 8m+7 hold the addresses of the rows of matrix m, 16 bytes each. The 128 bytes of a matrix are one pass
 * through the banks, unless its rows begin in the same ones. */
static void row_addresses(struct warp *w, const struct inst *in, bool is_write, u64 address[LANES])
{
    u32 mask = in->count == 4 ? ALL_LANES : (1u << 8 * in->count) - 1;
    memory_addresses(w, in, mask, address);
    for (u32 i = 0; i < LANES && in->space == SPACE_GENERIC; i++)
        if (address[i] - SHARED_WINDOW >= WINDOW_BYTES)
            fault(w, in, 1u << i & mask, ERR_INVALID_ADDRESS_SPACE,
                  "the generic address 0x%llx is not one of shared memory", (unsigned long long)address[i]);
    memory_resolve(w, in, mask, address, 16, 16, (is_write ? ACCESS_WRITE : ACCESS_READ) | ACCESS_TOGETHER);
}

/* more: a register for each of in->count matrices. flags: .trans. */
static void exec_ldmatrix(struct warp *w, const struct inst *in, u32 mask)
{
    u64 row[LANES];
    if (!tensor_whole_warp(w, in, mask)) return;
    row_addresses(w, in, false, row);
    for (u32 m = 0; m < in->count; m++) {
        u32 *d = lanes_of(w, in->more[m]);
        for (u32 r = 0; r < 8; r++) memcpy(d + 4 * r, (const void *)(uintptr_t)row[8 * m + r], 16);
        if (in->flags) transpose(d);
    }
}

static void exec_stmatrix(struct warp *w, const struct inst *in, u32 mask)
{
    u64 row[LANES];
    u32 matrix[LANES];
    if (!tensor_whole_warp(w, in, mask)) return;
    row_addresses(w, in, true, row);
    for (u32 m = 0; m < in->count; m++) {
        memcpy(matrix, lanes_of(w, in->more[m]), sizeof matrix);
        if (in->flags) transpose(matrix);
        for (u32 r = 0; r < 8; r++) memcpy((void *)(uintptr_t)row[8 * m + r], matrix + 4 * r, 16);
    }
}

static void exec_movmatrix(struct warp *w, const struct inst *in, u32 mask)
{
    u32 matrix[LANES];
    if (!tensor_whole_warp(w, in, mask)) return;
    memcpy(matrix, lanes_of(w, in->a), sizeof matrix);
    transpose(matrix);
    memcpy(lanes_of(w, in->d), matrix, sizeof matrix);
}

/* ldmatrix.sync.aligned.m8n8.num{.trans}{.shared}.b16 r, [p];  stmatrix likewise, [p], r */
bool lower_matrix_move(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    bool loads = is_written(&p->op[0]);
    in->space = SPACE_GENERIC;
    in->count = 0;
    for (u32 k = 0; k < p->mod_count; k++) {
        const char *m = p->mod[k];
        if (streq(m, "x1") || streq(m, "x2") || streq(m, "x4"))
            in->count = (u8)(m[1] - '0');
        else if (streq(m, "trans"))
            in->flags = 1;
        else if (streq(m, "shared") || streq(m, "shared::cta"))
            in->space = SPACE_SHARED;
        else if (!streq(m, "sync") && !streq(m, "aligned") && !streq(m, "m8n8") && !streq(m, "b16"))
            return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    if (!in->count) return refuse(lo, p, "this form of %s", p->opcode);
    const struct ptx_operand *registers = &p->op[!loads];
    if ((registers->kind == OPERAND_VECTOR ? registers->count : 1) != in->count)
        return refuse(lo, p, "it needs %u registers", in->count);
    operand *more = lower_more(lo, in->count);
    in->more = more;
    in->exec = loads ? exec_ldmatrix : exec_stmatrix;
    return tensor_fragment(lo, p, registers, T_B32, more) && lower_address(lo, &p->op[loads], in);
}

/* movmatrix.sync.aligned.m8n8.trans.b16 d, a */
bool lower_movmatrix(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    if (!has_mod(p, "m8n8") || !has_mod(p, "trans") || !has_mod(p, "b16"))
        return refuse(lo, p, "this form of movmatrix");
    in->exec = exec_movmatrix;
    in->a = lower_source(lo, &p->op[1], T_B32);
    in->d = lower_dest(lo, &p->op[0], T_B32);
    return true;
}

/* ---- One product ---------------------------------------------------------------------------------------------------- */

struct product {
    u32 m, n, k;
    enum type a, b, d; /* elements of A and of B; C and D: T_F32, T_F16, T_S32 */
    bool saturate;     /* .satfinite */
    u32 registers[4];  /* of d, a, b, c: in inst.more, in this order */
};

static u32 words_of(const struct product *p)
{
    return p->k * type_bytes(p->a) / 4;
}

/* A product's operands and sums: A as two times 8 rows, B as 8 columns, in words along k; C, then D, as fragments. */
struct operands {
    u32 a[2][MAX_WORDS][TILE], b[MAX_WORDS][TILE];
    u32 d[4][LANES]; /* [2 half + parity] (exec/accumulate.h) */
};

static void decode_operands(const struct product *p, const struct operands *o, bool as_f16, u32 depth,
                            struct row_tile *rows, struct column_tile *columns)
{
    for (u32 half = 0; half < 2; half++) decode_rows(rows, half, p->a, as_f16, o->a[half], depth);
    decode_columns(columns, p->b, as_f16, o->b, depth);
}

/* Half h of each word: fp8 elements k with k/2 odd (h = 1) or even, packed again. */
static void halves(const u32 (*words)[TILE], u32 count, u32 h, u32 (*out)[TILE])
{
    for (u32 k = 0; k < count; k += 2)
        for (u32 i = 0; i < TILE; i++)
            out[k / 2][i] = (words[k][i] >> 16 * h & 0xffff) | (words[k + 1][i] >> 16 * h) << 16;
}

/* Hopper's mma.sync has no fp8: ptxas widens the elements to f16, multiplies twice, first the lower halves of all
 * registers, then the upper ones on top, and adds C to that in an ordinary addition. */
static void multiply_fp8(const struct product *p, struct operands *o)
{
    struct dot_rule rule = {.depth = p->k / 2, .fraction = 25, .precision = 23, .f16 = p->d == T_F16};
    struct operands part = {.d = {{0}}};
    u32 *const sum[4] = {part.d[0], part.d[1], part.d[2], part.d[3]};
    for (u32 h = 0; h < 2; h++) {
        struct row_tile rows;
        struct column_tile columns;
        for (u32 half = 0; half < 2; half++) halves(o->a[half], words_of(p), h, part.a[half]);
        halves(o->b, words_of(p), h, part.b);
        decode_operands(p, &part, true, rule.depth, &rows, &columns);
        dot_fused(&rule, &rows, &columns, (const u32 *const *)sum, sum);
    }
    for (u32 q = 0; q < 4; q++)
        for (u32 l = 0; l < LANES; l++) {
            float x = rule.f16 ? f32_of_f16(sum[q][l]) + f32_of_f16(o->d[q][l])
                               : f32_of_bits(sum[q][l]) + f32_of_bits(o->d[q][l]);
            o->d[q][l] = rule.f16 ? f16_of_f32(x) : x != x ? NAN_F32 : bits_of_f32(x);
        }
}

/* d += a b */
static void multiply(const struct product *p, struct operands *o)
{
    struct row_tile rows;
    struct column_tile columns;
    u32 *const d[4] = {o->d[0], o->d[1], o->d[2], o->d[3]};
    if (type_bytes(p->a) == 1 && p->d != T_S32 && !options.exact_mma) {
        multiply_fp8(p, o);
        return;
    }
    struct dot_rule rule = {.depth = p->k, .fraction = 25, .precision = 23, .f16 = p->d == T_F16};
    decode_operands(p, o, false, p->k, &rows, &columns);
    if (p->d == T_S32)
        dot_integers(p->k, p->saturate, &rows, &columns, (const u32 *const *)d, d);
    else
        (options.exact_mma ? dot_exact : dot_fused)(&rule, &rows, &columns, (const u32 *const *)d, d);
}

static void count_flops(struct warp *w, const struct inst *in, const struct product *p)
{
    if (w->counters) w->counters[warp_index_of(w, in)].flops += 2ull * p->m * p->n * p->k;
}

/* ---- mma.sync ------------------------------------------------------------------------------------------------------- */

/* Fragments of mma.m16n8k*, for elements of any width, in 32-bit words along k. Lane l is in group g = l/4, at t = l%4:
 *
 *      A         words 0-3   4-7       B         column g       C, D      column 2t   2t+1
 *      row g     reg 0       reg 2     word t    reg 0          row g     reg 0       reg 1
 *      row g+8   reg 1       reg 3     word 4+t  reg 1          row g+8   reg 2       reg 3
 *
 * A register of A holds word t of the four. k8 of f16 and bf16, k4 of tf32 and k16 of bytes have four words only: regs 0
 * and 1 of A, reg 0 of B. f16 C and D hold both columns in one register: reg 0 is row g, reg 1 row g+8. m8n8k16 has the
 * upper half only. */
static void read_fragments(struct warp *w, const struct inst *in, const struct product *p, struct operands *o)
{
    const operand *A = in->more + p->registers[0], *B = A + p->registers[1], *C = B + p->registers[2];
    for (u32 r = 0; r < p->registers[1]; r++) spread(lanes_of(w, A[r]), &o->a[r % 2][4 * (r / 2)]);
    for (u32 r = 0; r < p->registers[2]; r++) spread(lanes_of(w, B[r]), &o->b[4 * r]);
    for (u32 r = 0; r < p->registers[3]; r++) {
        const u32 *lane = lanes_of(w, C[r]);
        if (p->d == T_F16)
            unpack_f16(lane, o->d[2 * r], o->d[2 * r + 1]);
        else
            memcpy(o->d[r], lane, sizeof o->d[r]);
    }
}

static void write_fragment(struct warp *w, const struct inst *in, const struct product *p,
                           const struct operands *o)
{
    for (u32 r = 0; r < p->registers[0]; r++) {
        u32 *lane = lanes_of(w, in->more[r]);
        if (p->d == T_F16)
            pack_f16(o->d[2 * r], o->d[2 * r + 1], lane);
        else
            memcpy(lane, o->d[r], sizeof o->d[r]);
    }
}

static void exec_mma(struct warp *w, const struct inst *in, u32 mask)
{
    const struct product *p = in->data;
    struct operands o = {.d = {{0}}};
    if (!tensor_whole_warp(w, in, mask)) return;
    read_fragments(w, in, p, &o);
    multiply(p, &o);
    write_fragment(w, in, p, &o);
    count_flops(w, in, p);
}

/* Whether the tensor core multiplies these types; `types` are D, A, B, C. */
static bool read_types(struct lowering *lo, const struct ptx_inst *p, const enum type types[4],
                       struct product *out)
{
    enum type d = types[0], a = types[1], b = types[2];
    bool a_fp8 = a == T_E4M3 || a == T_E5M2, b_fp8 = b == T_E4M3 || b == T_E5M2,
         a_int = a == T_S8 || a == T_U8, b_int = b == T_S8 || b == T_U8;
    bool known =
        (a_fp8 && b_fp8) || (a_int && b_int) || (a == b && (a == T_F16 || a == T_BF16 || a == T_TF32));
    bool fits = a_int ? d == T_S32 : d == T_F32 || (d == T_F16 && (a == T_F16 || a_fp8));
    if (!known || !fits || d != types[3]) return refuse(lo, p, "these element types are not supported");
    if (out->saturate && !a_int) return refuse(lo, p, "the modifier .satfinite is not supported");
    out->a = a;
    out->b = b;
    out->d = d;
    return true;
}

static bool read_product_registers(struct lowering *lo, const struct ptx_inst *p, struct inst *in,
                                   struct product *out, const u32 expected[4])
{
    operand *more = lower_more(lo, 32), *at = more;
    for (u32 k = 0; k < 4; k++) {
        const struct ptx_operand *o = &p->op[k];
        u32 n = o->kind == OPERAND_VECTOR ? o->count : 1;
        if (n != expected[k])
            return refuse(lo, p, "%u registers in operand %u; it has %u", expected[k], k + 1, n);
        if (!tensor_fragment(lo, p, o, T_B32, at)) return false;
        out->registers[k] = n;
        at += n;
    }
    in->more = more;
    in->data = out;
    return true;
}

struct shape {
    const char *name;
    u32 m, n, k;
    u32 widths; /* bytes an element may have, as a sum */
};

static bool read_product(struct lowering *lo, const struct ptx_inst *p, const struct shape *shapes,
                         struct product *out)
{
    enum type types[4];
    u32 type_count = 0, widths = 0;
    for (u32 k = 0; k < p->mod_count; k++) {
        const char *m = p->mod[k];
        enum type t = type_named(m);
        if (t != T_NONE && type_count < 4)
            types[type_count++] = t;
        else if (streq(m, "satfinite"))
            out->saturate = true;
        else if (m[0] == 'm' && m[1] >= '0' && m[1] <= '9') {
            const struct shape *s = shapes;
            while (s->name && !streq(s->name, m)) s++;
            if (!s->name) return refuse(lo, p, "the shape .%s is not supported", m);
            out->m = s->m, out->n = s->n, out->k = s->k;
            widths = s->widths;
        } else if (!streq(m, "sync") && !streq(m, "aligned") && !streq(m, "row") && !streq(m, "col") &&
                   !(k == 0 && streq(m, "mma")))
            return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    if (type_count == 2) { /* wmma: f16 elements go without saying */
        types[3] = types[1];
        types[1] = types[2] = T_F16;
    } else if (type_count != 4) {
        return refuse(lo, p, "its types are missing");
    }
    if (!widths) return refuse(lo, p, "this form of %s", p->opcode);
    if (!read_types(lo, p, types, out)) return false;
    if (!(widths & type_bytes(out->a))) return refuse(lo, p, "this shape has no elements of this type");
    return true;
}

/* mma.sync.aligned.shape.row.col{.satfinite}.dtype.atype.btype.ctype d, a, b, c */
bool lower_mma(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    static const struct shape shapes[] = {{"m16n8k4", 16, 8, 4, 4},       {"m16n8k8", 16, 8, 8, 4 + 2},
                                          {"m16n8k16", 16, 8, 16, 2 + 1}, {"m16n8k32", 16, 8, 32, 1},
                                          {"m8n8k16", 8, 8, 16, 1},       {NULL, 0, 0, 0, 0}};
    struct product *out = keep(sizeof *out);
    if (!read_product(lo, p, shapes, out)) return false;
    if (out->m == 8 && out->d != T_S32) return refuse(lo, p, "this shape has no elements of this type");
    u32 words = words_of(out), c = out->m / 8 * (out->d == T_F16 ? 1 : 2);
    in->exec = exec_mma;
    return read_product_registers(lo, p, in, out, (u32[]){c, words / 4 * out->m / 8, words / 4, c});
}

/* ---- wmma ----------------------------------------------------------------------------------------------------------- */

/* PTX leaves open which element a lane holds; only the C++ interface says that a, b and c are touched element by
 * element. Here the words of a matrix (k fastest in A and B, rows fastest in C and D) are dealt out to the lanes one
 * after the other, `registers` words each, from the start again when the registers hold more than the matrix has. */
struct wmma_matrix {
    u32 outer, inner, registers;
    u32 bytes;        /* an element */
    bool inner_first; /* memory runs along the inner index too */
};
enum { MAX_MATRIX_BYTES = 1024 };

/* The matrix as it lies in memory: lines of `run` bytes, `stride` apart. Moved in pieces of up to 16 bytes, a lane each. */
static void move_lines(struct warp *w, const struct inst *in, const struct wmma_matrix *m,
                       u8 image[MAX_MATRIX_BYTES], bool is_write)
{
    u32 lines = m->inner_first ? m->outer : m->inner, run = (m->inner_first ? m->inner : m->outer) * m->bytes;
    u32 piece = run < 16 ? run : 16, pieces = lines * run / piece;
    const u32 *strides = lanes_of(w, in->c);
    u64 base[LANES], address[LANES], stride = (u64)strides[0] * m->bytes;
    memory_addresses(w, in, ALL_LANES, base);
    for (u32 i = 1; i < LANES; i++)
        if (base[i] != base[0] || strides[i] != strides[0])
            fault(w, in, 1u << i, ERR_LAUNCH_FAILURE,
                  "the lanes of the warp give different addresses or strides");
    for (u32 first = 0; first < pieces; first += LANES) {
        u32 count = pieces - first < LANES ? pieces - first : LANES;
        for (u32 i = 0; i < LANES; i++) {
            u32 at = (first + (i < count ? i : 0)) * piece;
            address[i] = base[0] + at / run * stride + at % run;
        }
        memory_resolve(w, in, count == LANES ? ALL_LANES : (1u << count) - 1, address, piece, piece,
                       (is_write ? ACCESS_WRITE : ACCESS_READ) | ACCESS_TOGETHER);
        for (u32 i = 0; i < count; i++) {
            u8 *mine = image + (first + i) * piece, *theirs = (u8 *)(uintptr_t)address[i];
            memcpy(is_write ? theirs : mine, is_write ? mine : theirs, piece);
        }
    }
}

/* Exchanges the two indices of lines x run elements. */
static void exchange(const u8 *from, u8 *to, u32 lines, u32 run, u32 bytes)
{
    for (u32 i = 0; i < lines; i++)
        for (u32 k = 0; k < run; k++)
            memcpy(to + (k * lines + i) * bytes, from + (i * run + k) * bytes, bytes);
}

static void exec_wmma_load(struct warp *w, const struct inst *in, u32 mask)
{
    const struct wmma_matrix *m = in->data;
    u8 image[MAX_MATRIX_BYTES];
    u32 words[MAX_MATRIX_BYTES / 4], count = m->outer * m->inner * m->bytes / 4;
    if (!tensor_whole_warp(w, in, mask)) return;
    move_lines(w, in, m, image, false);
    if (m->inner_first)
        memcpy(words, image, sizeof words);
    else
        exchange(image, (u8 *)words, m->inner, m->outer, m->bytes);
    for (u32 r = 0; r < m->registers; r++) {
        u32 *d = lanes_of(w, in->more[r]);
        for (u32 l = 0; l < LANES; l++) d[l] = words[(l * m->registers + r) % count];
    }
}

/* The words of a fragment, in order. */
static void gather_words(struct warp *w, const operand *registers, u32 n, u32 words[MAX_MATRIX_BYTES / 4])
{
    for (u32 r = 0; r < n; r++) {
        const u32 *lane = lanes_of(w, registers[r]);
        for (u32 l = 0; l < LANES; l++) words[l * n + r] = lane[l];
    }
}

static void exec_wmma_store(struct warp *w, const struct inst *in, u32 mask)
{
    const struct wmma_matrix *m = in->data;
    u8 image[MAX_MATRIX_BYTES];
    u32 words[MAX_MATRIX_BYTES / 4];
    if (!tensor_whole_warp(w, in, mask)) return;
    gather_words(w, in->more, m->registers, words);
    if (m->inner_first)
        memcpy(image, words, sizeof image);
    else
        exchange((const u8 *)words, image, m->outer, m->inner, m->bytes);
    move_lines(w, in, m, image, true);
}

/* 16 rows (or the 8 that there are) and 8 columns of D, in steps along k. */
static void multiply_part(const struct product *p, const struct product *step, u32 row, u32 column,
                          const u32 *a, const u32 *b, u32 *c)
{
    u32 depth = words_of(p), step_depth = words_of(step);
    struct operands o = {.d = {{0}}};
    for (u32 q = 0; q < 4; q++)
        for (u32 l = 0; l < LANES; l++) {
            u32 at = (column + 2 * (l % 4) + q % 2) * p->m + row + TILE * (q / 2) + l / 4;
            if (q / 2 * TILE < p->m) o.d[q][l] = p->d == T_F16 ? ((const u16 *)c)[at] : c[at];
        }
    for (u32 first = 0; first < depth; first += step_depth) {
        for (u32 k = 0; k < step_depth; k++)
            for (u32 i = 0; i < TILE; i++) {
                for (u32 half = 0; half * TILE < p->m && half < 2; half++)
                    o.a[half][k][i] = a[(row + TILE * half + i) * depth + first + k];
                o.b[k][i] = b[(column + i) * depth + first + k];
            }
        multiply(step, &o);
    }
    for (u32 q = 0; q < 4; q++)
        for (u32 l = 0; l < LANES; l++) {
            u32 at = (column + 2 * (l % 4) + q % 2) * p->m + row + TILE * (q / 2) + l / 4;
            if (q / 2 * TILE >= p->m) continue;
            if (p->d == T_F16)
                ((u16 *)c)[at] = (u16)o.d[q][l];
            else
                c[at] = o.d[q][l];
        }
}

static void exec_wmma_mma(struct warp *w, const struct inst *in, u32 mask)
{
    const struct product *p = in->data;
    const operand *A = in->more + p->registers[0], *B = A + p->registers[1], *C = B + p->registers[2];
    u32 a_words[MAX_MATRIX_BYTES / 4], b_words[MAX_MATRIX_BYTES / 4], c_words[MAX_MATRIX_BYTES / 4];
    struct product step = *p;
    if (p->a == T_TF32) step.k = 4; /* ptxas makes m16n8k4 of it, two in a row */
    if (!tensor_whole_warp(w, in, mask)) return;
    gather_words(w, A, p->registers[1], a_words);
    gather_words(w, B, p->registers[2], b_words);
    gather_words(w, C, p->registers[3], c_words);
    for (u32 row = 0; row < p->m; row += 2 * TILE)
        for (u32 column = 0; column < p->n; column += TILE)
            multiply_part(p, &step, row, column, a_words, b_words, c_words);
    for (u32 r = 0; r < p->registers[0]; r++) {
        u32 *lane = lanes_of(w, in->more[r]);
        for (u32 l = 0; l < LANES; l++) lane[l] = c_words[l * p->registers[0] + r];
    }
    count_flops(w, in, p);
}

static const struct shape wmma_shapes[] = {{"m16n16k16", 16, 16, 16, 2 + 1},
                                           {"m32n8k16", 32, 8, 16, 2 + 1},
                                           {"m8n32k16", 8, 32, 16, 2 + 1},
                                           {"m16n16k8", 16, 16, 8, 4},
                                           {NULL, 0, 0, 0, 0}};

/* wmma.load.a.sync.aligned.row.shape{.ss}.type r, [p]{, stride};  wmma.store.d likewise, [p], r{, stride} */
bool lower_wmma_move(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    const bool loads = is_written(&p->op[0]);
    const struct shape *shape = NULL;
    const char *matrix = p->mod_count > 1 ? p->mod[1] : "";
    enum type type = mod_type(p, 0);
    bool row = false;
    in->space = SPACE_GENERIC;
    for (u32 k = 2; k < p->mod_count; k++) {
        const char *m = p->mod[k];
        if (streq(m, "row"))
            row = true;
        else if (streq(m, "global"))
            in->space = SPACE_GLOBAL;
        else if (streq(m, "shared") || streq(m, "shared::cta"))
            in->space = SPACE_SHARED;
        else if (m[0] == 'm' && !shape) {
            for (shape = wmma_shapes; shape->name && !streq(shape->name, m);) shape++;
            if (!shape->name) return refuse(lo, p, "the shape .%s is not supported", m);
        } else if (!streq(m, "sync") && !streq(m, "aligned") && !streq(m, "col") && type_named(m) == T_NONE)
            return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    if (!shape || type == T_NONE || type_bytes(type) > 4 || !strchr(loads ? "abc" : "d", matrix[0]))
        return refuse(lo, p, "this form of wmma");
    struct wmma_matrix *out = keep(sizeof *out);
    out->bytes = type_bytes(type);
    out->outer = matrix[0] == 'a' ? shape->m : shape->n;
    out->inner = matrix[0] == 'a' || matrix[0] == 'b' ? shape->k : shape->m;
    out->inner_first = row == (matrix[0] == 'a');
    const struct ptx_operand *registers = &p->op[!loads];
    operand *more = lower_more(lo, 8);
    u32 n = registers->kind == OPERAND_VECTOR ? registers->count : 1,
        words = out->outer * out->inner * out->bytes / 4;
    if (n > 8 || n * LANES % words) return refuse(lo, p, "%u registers do not hold this matrix", n);
    if (!tensor_fragment(lo, p, registers, T_B32, more) || !lower_address(lo, &p->op[loads], in))
        return false;
    out->registers = n;
    in->more = more;
    in->data = out;
    in->c = p->op_count > 2 ? lower_source(lo, &p->op[2], T_U32)
                            : lower_const(lo, out->inner_first ? out->inner : out->outer, 4);
    in->exec = loads ? exec_wmma_load : exec_wmma_store;
    return true;
}

bool lower_wmma(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    struct product *out = keep(sizeof *out);
    if (!read_product(lo, p, wmma_shapes, out)) return false;
    u32 c =
        out->d == T_F16 ? 4 : 8; /* f16 A and B always have 8 registers; the others as many as they need */
    u32 a = out->a == T_F16 ? 8 : out->m * words_of(out) / LANES,
        b = out->a == T_F16 ? 8 : out->n * words_of(out) / LANES;
    in->exec = exec_wmma_mma;
    return read_product_registers(lo, p, in, out, (u32[]){c, a, b, c});
}
