// cuBLASLt's matmul against sums in double: types, operations, layouts by rows and by columns, batches, epilogues, beta, a graph,
// and what is refused. The library is opened by name, so that the program builds where the toolkit has no cuBLASLt; the numbers
// are those of cublasLt.h. Passes on a GPU too.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dlfcn.h>

#include "expect.h"

typedef void *Pointer;
enum { R_32F = 0, R_16F = 2, R_16BF = 14, COMPUTE_32F = 68, COMPUTE_64F = 70 };
enum { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { LAYOUT_ORDER = 1, LAYOUT_BATCHES = 5, LAYOUT_STRIDE = 6 };
enum {
    TRANSA = 3,
    TRANSB = 4,
    EPILOGUE = 7,
    BIAS_POINTER = 8,
    AUX_POINTER = 11,
    AUX_LD = 12,
    AUX_STRIDE = 13
};
enum { DEFAULT = 1, RELU = 2, BIAS = 4, GELU = 32, GELU_GRADIENT = 64, AUX = 128 };

struct Heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

static struct {
    int (*create)(Pointer *), (*destroy)(Pointer);
    int (*layout_create)(Pointer *, int, uint64_t, uint64_t, int64_t), (*layout_destroy)(Pointer);
    int (*layout_set)(Pointer, int, const void *, size_t);
    int (*desc_create)(Pointer *, int, int), (*desc_destroy)(Pointer);
    int (*desc_set)(Pointer, int, const void *, size_t);
    int (*preference_create)(Pointer *), (*preference_destroy)(Pointer);
    int (*heuristic)(Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, int, Heuristic *, int *);
    int (*matmul)(Pointer, Pointer, const void *, const void *, Pointer, const void *, Pointer, const void *,
                  const void *, Pointer, void *, Pointer, const void *, void *, size_t, cudaStream_t);
} lt;
static Pointer handle, preference;
static cudaStream_t stream;

template <typename F>
static void find(void *library, const char *name, F *function)
{
    *function = (F)dlsym(library, name);
    if (!*function) printf("no %s\n", name), exit(1);
}

// Rounds to the type; returns what was stored.
static double put(void *array, size_t i, int type, double value)
{
    if (type == R_32F) return ((float *)array)[i] = (float)value;
    if (type == R_16F) return __half2float(((__half *)array)[i] = __float2half((float)value));
    return __bfloat162float(((__nv_bfloat16 *)array)[i] = __float2bfloat16((float)value));
}
static double take(const void *array, size_t i, int type)
{
    if (type == R_32F) return ((const float *)array)[i];
    if (type == R_16F) return __half2float(((const __half *)array)[i]);
    return __bfloat162float(((const __nv_bfloat16 *)array)[i]);
}

// A matrix of a batch of two: random, or NaN where nothing was written.
struct Matrix {
    int rows, columns, type, by_rows, ld;
    size_t stride, count;
    void *host, *device;
    Pointer layout;

    Matrix(int rows_, int columns_, int type_, int by_rows_)
        : rows(rows_), columns(columns_), type(type_), by_rows(by_rows_)
    {
        const int32_t batches = 2;
        ld = (by_rows ? columns : rows) + 8;
        stride = (size_t)ld * (by_rows ? rows : columns) + 16;
        count = batches * stride;
        host = malloc(4 * count);
        for (size_t i = 0; i < count; i++) put(host, i, type, random_float());
        CUDA(cudaMalloc(&device, 4 * count));
        CUDA(cudaMemcpy(device, host, 4 * count, cudaMemcpyHostToDevice));
        const int64_t step = (int64_t)stride;
        EXPECT(lt.layout_create(&layout, type, rows, columns, ld) == SUCCESS);
        EXPECT(lt.layout_set(layout, LAYOUT_ORDER, &by_rows, sizeof by_rows) == SUCCESS);
        EXPECT(lt.layout_set(layout, LAYOUT_BATCHES, &batches, sizeof batches) == SUCCESS);
        EXPECT(lt.layout_set(layout, LAYOUT_STRIDE, &step, sizeof step) == SUCCESS);
    }
    ~Matrix()
    {
        free(host);
        CUDA(cudaFree(device));
        EXPECT(lt.layout_destroy(layout) == SUCCESS);
    }
    double at(int batch, int r, int c) const
    {
        return take(host, batch * stride + (by_rows ? (size_t)r * ld + c : (size_t)c * ld + r), type);
    }
};

static Pointer describe(int ta, int tb, uint32_t epilogue, void *bias, void *aux, int64_t aux_ld,
                        int64_t aux_stride)
{
    Pointer desc;
    EXPECT(lt.desc_create(&desc, COMPUTE_32F, R_32F) == SUCCESS);
    EXPECT(lt.desc_set(desc, TRANSA, &ta, sizeof ta) == SUCCESS &&
           lt.desc_set(desc, TRANSB, &tb, sizeof tb) == SUCCESS);
    EXPECT(lt.desc_set(desc, EPILOGUE, &epilogue, sizeof epilogue) == SUCCESS);
    if (epilogue & BIAS) EXPECT(lt.desc_set(desc, BIAS_POINTER, &bias, sizeof bias) == SUCCESS);
    if (epilogue & AUX) {
        EXPECT(lt.desc_set(desc, AUX_POINTER, &aux, sizeof aux) == SUCCESS);
        EXPECT(lt.desc_set(desc, AUX_LD, &aux_ld, sizeof aux_ld) == SUCCESS);
        EXPECT(lt.desc_set(desc, AUX_STRIDE, &aux_stride, sizeof aux_stride) == SUCCESS);
    }
    return desc;
}

static double activated(uint32_t epilogue, double x)
{
    if (epilogue & RELU) return x > 0 ? x : 0;
    if (epilogue & GELU) return 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
    return x;
}

static double slope(double x)
{
    const double t = tanh(0.7978845608 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608 * (1 + 3 * 0.044715 * x * x);
}

static void product(int m, int n, int k, int type, int out, int ta, int tb, int by_rows, uint32_t epilogue,
                    float beta, bool in_graph)
{
    const int before = failures;
    Matrix a(ta ? k : m, ta ? m : k, type, by_rows), b(tb ? n : k, tb ? k : n, type, 0),
        c(m, n, out, by_rows), d(m, n, out, by_rows), aux(m, n, out, 0), bias(m, 1, out, 0);
    const float alpha = 0.5f;
    Pointer desc = describe(ta, tb, epilogue, bias.device, aux.device, aux.ld, (int64_t)aux.stride);
    Heuristic best, several[8];
    int found = 0;
    EXPECT(lt.heuristic(handle, desc, a.layout, b.layout, c.layout, d.layout, preference, 8, several,
                        &found) == SUCCESS);
    EXPECT(found >= 1 && found <= 8);
    EXPECT(lt.heuristic(handle, desc, a.layout, b.layout, c.layout, d.layout, preference, 1, &best, &found) ==
           SUCCESS);
    EXPECT(found == 1);
    void *workspace;
    CUDA(cudaMalloc(&workspace, best.workspace + 1));
    cudaGraph_t graph;
    if (in_graph) CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    EXPECT(lt.matmul(handle, desc, &alpha, a.device, a.layout, b.device, b.layout, &beta, c.device, c.layout,
                     d.device, d.layout, best.algorithm, workspace, best.workspace, stream) == SUCCESS);
    if (in_graph) {
        cudaGraphExec_t exec;
        CUDA(cudaStreamEndCapture(stream, &graph));
        CUDA(cudaGraphInstantiate(&exec, graph, 0));
        CUDA(cudaGraphLaunch(exec, stream));
    }
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(d.host, d.device, 4 * d.count, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(aux.host, aux.device, 4 * aux.count, cudaMemcpyDeviceToHost));
    const double unit = out == R_32F ? 1e-6 : out == R_16F ? 0x1p-11 : 0x1p-8;
    const bool gradient = epilogue & GELU_GRADIENT; // aux is read then
    for (int i = 0; i < 2; i++)
        for (int x = 0; x < n; x++)
            for (int y = 0; y < m; y++) {
                double want = beta ? beta * c.at(i, y, x) : 0, terms = fabs(want);
                for (int z = 0; z < k; z++) {
                    const double term =
                        alpha * (ta ? a.at(i, z, y) : a.at(i, y, z)) * (tb ? b.at(i, x, z) : b.at(i, z, x));
                    want += term;
                    terms += fabs(term);
                }
                if (epilogue & BIAS) want += bias.at(0, y, 0);
                double tolerance = 1e-6 * terms + 2 * unit * fabs(want) +
                                   2e-3 * !!(epilogue & (GELU | GELU_GRADIENT)) * fabs(want) + 1e-6;
                if (gradient) {
                    want *= slope(aux.at(i, y, x));
                    tolerance *= 1.2; // GELU's largest slope is 1.13
                } else if (epilogue & AUX)
                    EXPECT(fabs(aux.at(i, y, x) - want) <= tolerance);
                EXPECT(fabs(d.at(i, y, x) - activated(epilogue, want)) <= tolerance);
            }
    if (failures > before)
        printf("m=%d n=%d k=%d types %d %d, operations %d %d, by rows %d, epilogue %u, beta %g\n", m, n, k,
               type, out, ta, tb, by_rows, epilogue, beta);
    CUDA(cudaFree(workspace));
    EXPECT(lt.desc_destroy(desc) == SUCCESS);
}

static void refused(void)
{
    Matrix a(16, 8, R_16BF, 0), b(8, 24, R_16BF, 0), wrong(16, 16, R_16BF, 0);
    Pointer right = describe(0, 0, DEFAULT, nullptr, nullptr, 0, 0);
    Heuristic best;
    int found;
    const float one = 1, zero = 0;
    EXPECT(lt.heuristic(handle, right, a.layout, b.layout, wrong.layout, wrong.layout, preference, 1, &best,
                        &found) == INVALID_VALUE);
    EXPECT(lt.matmul(handle, right, &one, a.device, a.layout, b.device, b.layout, &zero, wrong.device,
                     wrong.layout, wrong.device, wrong.layout, nullptr, nullptr, 0, stream) == INVALID_VALUE);
    EXPECT(lt.desc_set(right, TRANSA, &one, 8) == INVALID_VALUE);
    EXPECT(lt.desc_destroy(right) == SUCCESS);
}

int main()
{
    void *library = dlopen("libcublasLt.so.13", RTLD_NOW);
    if (!library) return printf("%s\n", dlerror()), 1;
    find(library, "cublasLtCreate", &lt.create);
    find(library, "cublasLtDestroy", &lt.destroy);
    find(library, "cublasLtMatrixLayoutCreate", &lt.layout_create);
    find(library, "cublasLtMatrixLayoutDestroy", &lt.layout_destroy);
    find(library, "cublasLtMatrixLayoutSetAttribute", &lt.layout_set);
    find(library, "cublasLtMatmulDescCreate", &lt.desc_create);
    find(library, "cublasLtMatmulDescDestroy", &lt.desc_destroy);
    find(library, "cublasLtMatmulDescSetAttribute", &lt.desc_set);
    find(library, "cublasLtMatmulPreferenceCreate", &lt.preference_create);
    find(library, "cublasLtMatmulPreferenceDestroy", &lt.preference_destroy);
    find(library, "cublasLtMatmulAlgoGetHeuristic", &lt.heuristic);
    find(library, "cublasLtMatmul", &lt.matmul);
    EXPECT(lt.create(&handle) == SUCCESS && lt.preference_create(&preference) == SUCCESS);
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const struct {
        int in, out;
    } types[] = {{R_32F, R_32F}, {R_16F, R_16F}, {R_16BF, R_16BF}, {R_16BF, R_32F}, {R_16F, R_32F}};
    for (auto t : types)
        for (int ta = 0; ta < 2; ta++)
            for (int tb = 0; tb < 2; tb++)
                product(40, 24, 56, t.in, t.out, ta, tb, 0, DEFAULT, ta ? 0.0f : 2.0f, tb);
    product(40, 24, 56, R_16BF, R_16BF, 1, 0, 1, DEFAULT, 1, false);
    for (uint32_t epilogue :
         {(uint32_t)RELU, (uint32_t)BIAS, (uint32_t)(RELU | BIAS), (uint32_t)GELU, (uint32_t)(GELU | BIAS),
          (uint32_t)(GELU | AUX | BIAS), (uint32_t)(GELU_GRADIENT | AUX)})
        for (int type : {(int)R_32F, (int)R_16BF})
            product(32, 48, 64, type, type, 1, 0, 0, epilogue, 0, false);
    refused();
    EXPECT(lt.preference_destroy(preference) == SUCCESS && lt.destroy(handle) == SUCCESS);
    return verdict();
}
