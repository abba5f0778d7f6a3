// What a launch may ask, how its work is cut up, and how much memory that takes.
#include <numeric>

#include "plan.h"

extern "C" const char *attention_refused(const struct attention_variant *v)
{
    const uintptr_t bits =
        (uintptr_t)v->Q | (uintptr_t)v->K | (uintptr_t)v->V | (uintptr_t)v->O | (uintptr_t)v->workspace;
#define SERVES(D, DV) || (v->head_dim == D && v->v_head_dim == DV)
    if (!(false ATTENTION_HEAD_DIMS(SERVES)))
        return "head dimensions must be 64, 128 or 256, or 192 with V's 128, or 64 with V's 256";
    if (v->dtype != BF16 && v->dtype != F16) return "dtype must be bf16 or f16";
    if (!v->Q || !v->K || !v->V || !v->O || !v->LSE) return "Q, K, V, O and LSE must be there";
    if (bits % 16) return "Q, K, V, O and the workspace must begin at multiples of 16 bytes";
    if (v->batch < 1 || v->heads < 1 || v->kv_heads < 1 || v->q_len < 1 || v->k_len < 1)
        return "the batch, the heads and the lengths must be at least 1";
    if (v->heads % v->kv_heads)
        return "heads must be a multiple of kv_heads: every K/V head serves as many query heads";
    if (v->heads > 65535 || v->batch > 65535) return "the batch and the heads must be at most 65535";
    if (v->left < 0 || v->right < 0) return "left and right must be at least 0";
    if (!(v->softcap >= 0)) return "softcap must be at least 0";
    if (v->cu_k && !v->cu_q) return "cu_k needs cu_q";
    if (v->cu_k && (v->used_k || v->page_table || v->K_new))
        return "cu_k goes without used_k, page_table and K_new";
    if (v->page_table && (v->page_size < 1 || v->pages < 1 || v->pages_per_sequence < 1))
        return "page_table needs pages, page_size and pages_per_sequence";
    if (v->page_table && (int64_t)v->batch * v->pages_per_sequence > INT32_MAX)
        return "page_table must have fewer than 2^31 pages";
    if (v->page_table && v->k_len > (int64_t)v->pages_per_sequence * v->page_size)
        return "k_len must be at most pages_per_sequence * page_size";
    if (!v->K_new != !v->V_new) return "K_new and V_new come together";
    if (v->K_new && (!v->used_k || v->new_len < 1)) return "K_new needs used_k and new_len";
    if (v->K_new && v->cu_q) return "K_new goes without cu_q";
    if (!v->rotary_cos != !v->rotary_sin) return "rotary_cos and rotary_sin come together";
    if (v->rotary_cos && !v->K_new) return "rotary_cos needs K_new";
    if (v->rotary_cos && (v->rotary_dim < 2 || v->rotary_dim % 2 || v->rotary_dim > v->head_dim))
        return "rotary_dim must be even, at least 2 and at most head_dim";
    const int64_t q_rows = v->cu_q ? v->q_total : (int64_t)v->batch * v->q_len,
                  k_rows = v->page_table ? (int64_t)v->pages * v->page_size
                           : v->cu_k     ? v->k_total
                                         : (int64_t)v->batch * v->k_len;
    if (v->q_len > 1 << 29 || v->k_len > 1 << 29 || q_rows < 1 || q_rows > 1 << 30 || k_rows < 1 ||
        k_rows > 1 << 30)
        return "lengths must be at most 2^29, rows in all at most 2^30";
    return NULL;
}

// The last step whose variant is asked for.
static Variant needed(const attention_variant &v)
{
    return v.K_new                      ? APPEND_KV
           : v.page_table               ? PAGED_KV
           : v.cu_q || v.used_k         ? VARLEN
           : v.head_dim != v.v_head_dim ? HEAD_DIMS
           : v.sinks                    ? SINKS
           : v.softcap > 0              ? SOFTCAP
                                        : WINDOW;
}

// How a step up to `last` cuts the work up; the pointers are NULL.
static Plan make_plan(const attention_variant &v, Variant last)
{
    Plan plan = {};
    plan.pack = last >= PACK_GQA ? heads_in_pack(v) : 1;
    plan.few = (int64_t)v.q_len * plan.pack <= WG_Q;
    plan.box = keys_in_box(v, tile_keys(plan.few, v.v_head_dim));
    if (plan.box == 0) plan.few = true;
    plan.read_once = plan.few && v.heads / v.kv_heads == plan.pack;
    plan.q_rows = v.cu_q ? v.q_total : v.batch * v.q_len;
    plan.k_rows = v.page_table ? v.pages * v.page_size : v.cu_k ? v.k_total : v.batch * v.k_len;
    plan.queries = block_consumers(plan.few, v.head_dim, v.v_head_dim) * (WG_Q / plan.pack);
    plan.packs = v.heads / plan.pack;
    const int64_t sequence_tiles = (int64_t)plan.packs * ((v.q_len - 1) / plan.queries + 1),
                  tiles = v.batch * sequence_tiles;
    plan.sequence_tiles = (int)sequence_tiles;
    plan.num_tiles = tiles > INT32_MAX ? -1 : (int)tiles;
    if (plan.num_tiles < 0) return plan;
    plan.shares = last >= SPLIT_KV ? shares_of_keys(v, plan) : plan.num_tiles;
    const int whole = std::gcd(plan.shares, plan.num_tiles);
    plan.tile_units = plan.shares / whole;
    plan.share_units = plan.num_tiles / whole;
    // A tile that is no whole number of shares long may lie across two more.
    plan.parts = plan.shares / plan.num_tiles + (plan.shares % plan.num_tiles ? 2 : 0);
    return plan;
}

// Bytes of O and LSE of all parts; 0 when a tile has one.
static size_t parts_bytes(const attention_variant &v, const Plan &plan)
{
    if (plan.parts <= 1) return 0;
    return (size_t)plan.parts * plan.q_rows * v.heads * (v.v_head_dim + 1) * sizeof(float);
}

extern "C" size_t attention_workspace_bytes(const struct attention_variant *v)
{
    return attention_refused(v) ? 0 : parts_bytes(*v, make_plan(*v, APPEND_KV)) + turned_bytes(*v);
}

cudaError_t launch_attention(const attention_variant &asked, Variant last, cudaStream_t stream)
{
    if (attention_refused(&asked) || needed(asked) > last) return cudaErrorInvalidValue;
    attention_variant v = asked;
    v.left = v.left < ATTENTION_UNBOUNDED ? v.left : ATTENTION_UNBOUNDED;
    v.right = v.right < ATTENTION_UNBOUNDED ? v.right : ATTENTION_UNBOUNDED;
    Plan plan = make_plan(v, last);
    if (plan.num_tiles < 0) return cudaErrorInvalidValue;
    if (!v.workspace && (plan.parts > 1 || v.rotary_cos)) return cudaErrorInvalidValue;
    if (v.rotary_cos) v.Q = v.workspace; // append_kv has turned it
    if (!v.K_new) v.new_len = 0;
    plan.O_parts = (float *)((char *)v.workspace + turned_bytes(v));
    plan.LSE_parts = plan.O_parts + (size_t)plan.parts * plan.q_rows * v.heads * v.v_head_dim;
    cudaError_t error = v.dtype == F16 ? launch_f16(v, plan, stream) : launch_bf16(v, plan, stream);
    if (error == cudaSuccess && plan.parts > 1) error = combine_parts(v, plan, stream);
    return error;
}
