// Chapter 9: attention and the layers' products, with cuBLAS to multiply: what is left to write, and where the bytes go.
#include "../../common/harness/chapter.h"
#include "launchers.h"

enum { SOURCE, DESTINATION }; // tensors of permute and unpermute
enum { QKV, ATT, OUTPUT };    // of attention_forward
enum { BACKWARD_QKV, BACKWARD_ATT, DOUT, DATT, DQKV };
enum { BIAS_DOUT, BIAS_GRADIENT };
enum { INP, WEIGHT, MATMUL_DOUT, DINP, DWEIGHT, DBIAS };
enum { X, W, BIAS, PRE, GELU_OUT };
enum { PERMUTE_B, PERMUTE_T, S, PERMUTE_H, PERMUTE_D }; // dimensions of permute
enum { B, T, H, D };                                    // of attention
enum { ROWS, OC, C };                                   // of the products; the first two of bias_backward

// Device memory for `parts` arrays of (B, T, H, D), kept between launches.
static void *scratch(const struct run *run, size_t parts)
{
    static void *memory;
    static size_t size;
    const size_t bytes =
        parts * (size_t)(run->dim[B] * run->dim[T] * run->dim[H] * run->dim[D]) * dtype_bytes(run->type);
    if (size < bytes) {
        CUDA_CHECK(cudaFree(memory));
        CUDA_CHECK(cudaMalloc(&memory, bytes));
        size = bytes;
    }
    return memory;
}

LAUNCH(head_permute, run->data[SOURCE], run->data[DESTINATION], run->dim[PERMUTE_B], run->dim[PERMUTE_T],
       run->dim[S], run->dim[PERMUTE_H], run->dim[PERMUTE_D])
LAUNCH(attention_forward, run->data[QKV], run->data[ATT], run->data[OUTPUT], scratch(run, 4), run->dim[B],
       run->dim[T], run->dim[H], run->dim[D])
LAUNCH(attention_backward, run->data[BACKWARD_QKV], run->data[BACKWARD_ATT], run->data[DOUT], run->data[DATT],
       run->data[DQKV], scratch(run, 7), run->dim[B], run->dim[T], run->dim[H], run->dim[D])
LAUNCH(bias_backward, run->data[BIAS_DOUT], run->data[BIAS_GRADIENT], run->dim[ROWS], run->dim[OC])
LAUNCH(matmul_backward, run->data[INP], run->data[WEIGHT], run->data[MATMUL_DOUT], run->data[DINP],
       run->data[DWEIGHT], run->data[DBIAS], run->dim[ROWS], run->dim[C], run->dim[OC])
LAUNCH(matmul_gelu_forward, run->data[X], run->data[W], run->data[BIAS], run->data[PRE], run->data[GELU_OUT],
       run->dim[ROWS], run->dim[C], run->dim[OC])

static const char *check_heads(const int64_t *dim)
{
    if (dim[PERMUTE_B] > 65535) return "b must be below 65536";
    if (dim[S] > 65535 || dim[PERMUTE_H] > 65535) return "s and h must be below 65536";
    const int64_t blocks = dim[S] * dim[PERMUTE_H] * ((dim[PERMUTE_D] + 255) / 256);
    return blocks > 65535 ? "s * h, times d / 256 rounded up, must be below 65536" : NULL;
}

static const char *check_attention(const int64_t *dim)
{
    if (dim[T] > 16384) return "t must be at most 16384";
    if (dim[B] > 65535 || dim[H] > 21845 || dim[H] * 3 * ((dim[D] + 255) / 256) > 65535)
        return "b must be below 65536, and 3 h, times d / 256 rounded up, too";
    return dim[B] * dim[H] * dim[T] > INT32_MAX ? "b * h * t must be below 2^31" : NULL;
}

static const char *check_epilogue(const int64_t *dim)
{
    return dim[OC] % 8 ? "oc must be a multiple of 8" : NULL;
}

#define LAYER .types = {F32, BF16}
#define BYTES LAYER, .baseline = DEVICE_COPY, .limit = LIMIT_MEMORY
// 16 sequences of GPT-2's smallest and its largest, and one with heads of 128.
#define HEADS                                                                                                \
    BYTES, .dims = {"b", "t", "s", "h", "d"}, .check_shape = check_heads,                                    \
           .bench = {"b=16,t=1024,s=3,h=12,d=64", "b=16,t=1024,s=3,h=25,d=64", "b=16,t=1024,s=3,h=32,d=128", \
                     "b=16,t=1024,s=1,h=32,d=128"},                                                          \
           .bytes = "2*size*b*t*s*h*d"
#define ATTENTION                                                        \
    LAYER, .dims = {"b", "t", "h", "d"}, .check_shape = check_attention, \
           .bench = {"b=16,t=1024,h=12,d=64", "b=16,t=1024,h=25,d=64"}, .bench_difference = 0.02
#define PRODUCT \
    LAYER, .dims = {"rows", "oc", "c"}, .bench = {"rows=16384,oc=3072,c=768", "rows=16384,oc=6400,c=1600"}

static const struct operation operations[] = {
    {
        .name = "permute",
        .title = "out[s,b,h,t,d] = inp[b,t,s,h,d]",
        HEADS,
        .tensors = {[SOURCE] = {"inp", RUN_TYPE, IN, "b,t,s,h,d"},
                    [DESTINATION] = {"out", RUN_TYPE, OUT, "s,b,h,t,d"}},
        .steps = STEPS(STEP(head_permute, permute), STEP(head_permute, permute_packs)),
        .launch = launch_head_permute,
    },
    {
        .name = "unpermute",
        .title = "out[b,t,s,h,d] = inp[s,b,h,t,d]",
        HEADS,
        .tensors = {[SOURCE] = {"inp", RUN_TYPE, IN, "s,b,h,t,d"},
                    [DESTINATION] = {"out", RUN_TYPE, OUT, "b,t,s,h,d"}},
        .steps = STEPS(STEP(head_unpermute, unpermute_packs)),
        .launch = launch_head_permute,
    },
    {
        .name = "attention_forward",
        .title = "att = softmax of the causal Q K^T / sqrt(d), out = att V",
        ATTENTION,
        .tensors = {[QKV] = {"qkv", RUN_TYPE, IN, "b,t,3,h,d"},
                    [ATT] = {"att", RUN_TYPE, OUT, "b,h,t,t"},
                    [OUTPUT] = {"out", RUN_TYPE, OUT, "b,t,h,d"}},
        .steps =
            STEPS(STEP(attention_forward, attention_permuted), STEP(attention_forward, attention_in_place),
                  STEP(attention_forward, attention_reverse)),
        .launch = launch_attention_forward,
        .flops = "4*b*h*t*t*d",
        .bytes = "size*(4*b*t*h*d+b*h*t*t)",
    },
    {
        .name = "attention_backward",
        .title = "dqkv, and datt, the gradient of Q K^T, of attention_forward",
        ATTENTION,
        .tensors = {[BACKWARD_QKV] = {"qkv", RUN_TYPE, IN, "b,t,3,h,d"},
                    [BACKWARD_ATT] = {"att", RUN_TYPE, IN, "b,h,t,t"},
                    [DOUT] = {"dout", RUN_TYPE, IN, "b,t,h,d"},
                    [DATT] = {"datt", RUN_TYPE, OUT, "b,h,t,t"},
                    [DQKV] = {"dqkv", RUN_TYPE, OUT, "b,t,3,h,d"}},
        .steps =
            STEPS(STEP(attention_backward, gradient_permuted), STEP(attention_backward, gradient_in_place)),
        .launch = launch_attention_backward,
        .flops = "8*b*h*t*t*d",
        .bytes = "size*(7*b*t*h*d+2*b*h*t*t)",
    },
    {
        .name = "bias_backward",
        .title = "dbias, in fp32, += the sum of the rows of dout",
        BYTES,
        .dims = {"rows", "oc"},
        .tensors =
            {[BIAS_DOUT] = {"dout", RUN_TYPE, IN, "rows,oc"}, [BIAS_GRADIENT] = {"dbias", F32, INOUT, "oc"}},
        .steps = STEPS(STEP(bias_backward, bias_atomics), STEP(bias_backward, bias_partials)),
        .launch = launch_bias_backward,
        .bytes = "size*rows*oc+8*oc",
        .bench = {"rows=16384,oc=768", "rows=16384,oc=3072", "rows=16384,oc=6400", "rows=32768,oc=3072"},
    },
    {
        .name = "matmul_backward",
        .title =
            "dinp = dout weight, and in fp32 dweight += dout^T inp, dbias += the sum of the rows of dout",
        PRODUCT,
        .tensors = {[INP] = {"inp", RUN_TYPE, IN, "rows,c"},
                    [WEIGHT] = {"weight", RUN_TYPE, IN, "oc,c"},
                    [MATMUL_DOUT] = {"dout", RUN_TYPE, IN, "rows,oc"},
                    [DINP] = {"dinp", RUN_TYPE, OUT, "rows,c"},
                    [DWEIGHT] = {"dweight", F32, INOUT, "oc,c"},
                    [DBIAS] = {"dbias", F32, INOUT, "oc"}},
        .steps = STEPS(STEP(matmul_backward, matmul_gradient)),
        .launch = launch_matmul_backward,
        .flops = "4*rows*oc*c",
        .bytes = "size*(2*rows*c+oc*c+rows*oc)+8*(oc*c+oc)",
    },
    {
        .name = "matmul_gelu",
        .title = "pre = inp weight^T + bias, out = GELU(pre)",
        PRODUCT,
        .check_shape = check_epilogue,
        .tensors = {[X] = {"inp", RUN_TYPE, IN, "rows,c"},
                    [W] = {"weight", RUN_TYPE, IN, "oc,c"},
                    [BIAS] = {"bias", RUN_TYPE, IN, "oc"},
                    [PRE] = {"pre", RUN_TYPE, OUT, "rows,oc"},
                    [GELU_OUT] = {"out", RUN_TYPE, OUT, "rows,oc"}},
        .steps =
            STEPS(STEP(matmul_gelu_forward, matmul_gelu), STEP(matmul_gelu_forward, matmul_gelu_epilogue)),
        .launch = launch_matmul_gelu_forward,
        .bench_difference = 0.02,
        .flops = "2*rows*oc*c",
        .bytes = "size*(rows*c+oc*c+oc+2*rows*oc)",
    },
};

CHAPTER(operations)
