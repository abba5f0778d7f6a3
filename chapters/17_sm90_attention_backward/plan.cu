// How a backward pass is cut up, and its three kernels in turn.
#include "plan.h"

#include <algorithm>
#include <cmath>

#include "workspace.cuh"

constexpr int64_t L2_BYTES = 32 << 20; // for the heads whose tiles of keys are worked on in turn
// Tiles of keys in a sequence up to which the first block stores its part of dQ. To clear that costs one pass over it, to ask who is the
// first something for each tile of keys: with 64, an atomic each, D = 128 loses by it (results/trials/17_first_stores_h200.csv).
constexpr int FIRST_STORES_TILES = 16;

static bool is_aligned(const void *pointer)
{
    return pointer && (uintptr_t)pointer % 16 == 0;
}

extern "C" const char *attention_backward_refused(const struct attention_variant_backward *b)
{
    const attention_variant &v = b->forward;
    if (v.dtype != BF16 && v.dtype != F16) return "dtype must be BF16 or F16";
    if (!is_aligned(v.Q) || !is_aligned(v.K) || !is_aligned(v.V) || !is_aligned(v.O) || !is_aligned(b->dO) ||
        !is_aligned(b->dQ) || !is_aligned(b->dK) || !is_aligned(b->dV) || !v.LSE)
        return "Q, K, V, O, LSE, dO, dQ, dK and dV must be given, and begin at multiples of 16 bytes";
    if (v.batch < 1 || v.heads < 1 || v.kv_heads < 1 || v.q_len < 1 || v.k_len < 1 || v.batch > 65535 ||
        v.heads > 65535)
        return "batch and heads must be from 1 to 65535, kv_heads, q_len and k_len at least 1";
    if (v.heads % v.kv_heads)
        return "heads must be a multiple of kv_heads: every K/V head serves as many query heads";
    if (v.head_dim != v.v_head_dim || (v.head_dim != 64 && v.head_dim != 128 && v.head_dim != 256))
        return "head dimensions must be 64, 128 or 256, and V's that of Q and K";
    if (v.left < 0 || v.right < 0) return "left and right must be at least 0";
    if (!(v.softcap >= 0 && v.softcap < INFINITY)) return "softcap must be at least 0 and finite";
    if (v.sinks || v.used_k || v.page_table || v.K_new || v.rotary_cos)
        return "there is no backward pass of sinks, used_k, page_table, K_new or rotary_cos";
    if (!v.cu_q != !v.cu_k) return "cu_q and cu_k come together";
    const int64_t q_rows = v.cu_q ? v.q_total : (int64_t)v.batch * v.q_len,
                  k_rows = v.cu_k ? v.k_total : (int64_t)v.batch * v.k_len;
    if (v.q_len > 1 << 29 || v.k_len > 1 << 29 || q_rows < 1 || q_rows > 1 << 30 || k_rows < 1 ||
        k_rows > 1 << 30)
        return "lengths must be at most 2^29, rows in all from 1 to 2^30";
    return NULL;
}

// The last step whose variant is asked for.
static BackwardVariant needed(const attention_variant_backward &b)
{
    const attention_variant &v = b.forward;
    return v.cu_q                                                                            ? VARLEN
           : v.softcap > 0                                                                   ? SOFTCAP
           : v.left < ATTENTION_UNBOUNDED || (v.right != 0 && v.right < ATTENTION_UNBOUNDED) ? WINDOW
           : b.deterministic                                                                 ? DETERMINISTIC
                                                                                             : TILES;
}

// Queries in a tile from step 6 on.
static int queries_in_tile(const attention_variant &v)
{
    if (v.softcap > 0) return TILE_Q_SOFTCAP;
    const bool bounded = v.left < v.k_len - 1 || v.right < v.k_len - 1;
    switch (v.head_dim) {
    case 64: return TILE_Q_64;
    case 128: return bounded ? TILE_Q_128_BOUNDED : TILE_Q_128;
    default: return TILE_Q_256;
    }
}

// Gives the plan its pointers, and returns how many bytes they need.
static size_t lay_out(BackwardPlan &plan, const attention_variant_backward &b)
{
    const size_t tiles = (size_t)b.forward.heads * plan.q_tiles, rows = tiles * plan.q_tile;
    plan.LSE_log2 = (float *)b.workspace;
    plan.dPsum = plan.LSE_log2 + rows;
    plan.dQ_sum = (float4 *)(plan.dPsum + rows);
    plan.arrived = (unsigned *)(plan.dQ_sum + rows * b.forward.head_dim / 4);
    plan.taken = plan.arrived + DQ_PARTS * tiles;
    return (char *)(plan.taken + 1) - (char *)b.workspace;
}

static BackwardPlan make_plan(const attention_variant_backward &b, int q_tile, bool by_columns)
{
    const attention_variant &v = b.forward;
    BackwardPlan plan = {};
    const float scale = 1 / std::sqrt((float)v.head_dim), log2_e = 1.44269504f;
    plan.c = (v.softcap > 0 ? v.softcap : scale) * log2_e;
    plan.cap_c = v.softcap > 0 ? 2 * log2_e * scale / v.softcap : 0;
    plan.q_tile = q_tile;
    plan.by_columns = by_columns;
    plan.sharing_heads = v.heads / v.kv_heads;
    const int64_t head_bytes = (int64_t)plan.sharing_heads * v.q_len * v.head_dim * 8; // of Q, dO, dQ_sum
    while (plan.log2_heads_together < 2 && v.kv_heads % (2 << plan.log2_heads_together) == 0 &&
           head_bytes << (plan.log2_heads_together + 1) <= L2_BYTES)
        plan.log2_heads_together++;
    plan.q_rows = v.cu_q ? v.q_total : v.batch * v.q_len;
    plan.k_rows = v.cu_k ? v.k_total : v.batch * v.k_len;
    plan.q_tiles = all_tiles(v.cu_q, plan.q_rows, v.batch, v.q_len, q_tile);
    plan.kv_tiles = all_tiles(v.cu_k, plan.k_rows, v.batch, v.k_len, TILE_KEYS);
    const unsigned sequences = v.cu_k ? 1 : v.batch; // that the numbers of works tell apart
    plan.works = {plan.kv_tiles / sequences << plan.log2_heads_together,
                  (unsigned)v.kv_heads >> plan.log2_heads_together, sequences};
    plan.num_works =
        (int)((int64_t)plan.kv_tiles * v.kv_heads); // what does not fit is refused, see launch_kernel
    lay_out(plan, b);
    return plan;
}

// From step 6 on.
static BackwardPlan plan_variant(const attention_variant_backward &b)
{
    const attention_variant &v = b.forward;
    BackwardPlan plan = make_plan(b, queries_in_tile(v), is_ahead(v.head_dim, v.softcap > 0));
    plan.first_stores =
        v.head_dim < 256 && (b.deterministic || tiles_in(v.k_len, TILE_KEYS) <= FIRST_STORES_TILES);
    return plan;
}

extern "C" size_t attention_backward_variant_bytes(const struct attention_variant_backward *b)
{
    if (attention_backward_refused(b)) return 0;
    BackwardPlan plan = plan_variant(*b);
    return lay_out(plan, *b);
}

cudaError_t launch_backward(const attention_variant_backward &asked, BackwardVariant last,
                            cudaStream_t stream)
{
    attention_variant_backward b = asked;
    attention_variant &v = b.forward;
    if (attention_backward_refused(&b) || needed(b) > last || !is_aligned(b.workspace))
        return cudaErrorInvalidValue;
    v.left = v.left < ATTENTION_UNBOUNDED ? v.left : ATTENTION_UNBOUNDED;
    v.right = v.right < ATTENTION_UNBOUNDED ? v.right : ATTENTION_UNBOUNDED;
    const BackwardPlan plan = plan_variant(b);
    cudaError_t error = preprocess(b, plan, stream);
    if (error == cudaSuccess) error = (v.dtype == F16 ? products_f16 : products_bf16)(b, plan, stream);
    return error == cudaSuccess ? postprocess(b, plan, stream) : error;
}

attention_variant_backward without_variants(const attention_backward &a)
{
    const attention &f = a.forward;
    attention_variant_backward b = {};
    b.forward.dtype = f.dtype;
    b.forward.batch = f.batch, b.forward.heads = f.heads, b.forward.kv_heads = f.kv_heads;
    b.forward.head_dim = b.forward.v_head_dim = f.head_dim;
    b.forward.q_len = f.q_len, b.forward.k_len = f.k_len;
    b.forward.Q = f.Q, b.forward.K = f.K, b.forward.V = f.V, b.forward.O = f.O, b.forward.LSE = f.LSE;
    b.forward.left = ATTENTION_UNBOUNDED;
    b.forward.right = f.causal ? 0 : ATTENTION_UNBOUNDED;
    b.dO = a.dO, b.dQ = a.dQ, b.dK = a.dK, b.dV = a.dV;
    b.workspace = a.workspace;
    return b;
}

// --- Steps 1 to 5 ---------------------------------------------------------------------------------------------------------

// Enough for any step.
extern "C" size_t attention_backward_workspace_bytes(const attention *forward)
{
    attention_backward a = {};
    a.forward = *forward;
    const attention_variant_backward b = without_variants(a);
    size_t bytes = 0;
    for (const int q_tile : {TILE_Q, queries_in_tile(b.forward)}) {
        BackwardPlan plan = make_plan(b, q_tile, false);
        bytes = std::max(bytes, lay_out(plan, b));
    }
    return bytes;
}

static cudaError_t with_plan(decltype(preprocess) *launch, const attention_backward *a, cudaStream_t stream)
{
    const attention_variant_backward b = without_variants(*a);
    return attention_backward_refused(&b) ? cudaErrorInvalidValue
                                          : launch(b, make_plan(b, TILE_Q, false), stream);
}

extern "C" cudaError_t backward_preprocess(const attention_backward *a, cudaStream_t stream)
{
    return with_plan(preprocess, a, stream);
}

extern "C" cudaError_t backward_postprocess(const attention_backward *a, cudaStream_t stream)
{
    return with_plan(postprocess, a, stream);
}
