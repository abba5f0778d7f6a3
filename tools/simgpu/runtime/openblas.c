#include "openblas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static struct {
    bool found;
    __typeof__(&openblas_set_num_threads) set_num_threads;
    __typeof__(&cblas_sgemm) sgemm;
    __typeof__(&cblas_dgemm) dgemm;
    __typeof__(&cblas_sgemv) sgemv;
} blas;

static void open_library(void)
{
    void *library = dlopen("libopenblas.so.0", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "simgpu: cuBLAS: %s; it computes with OpenBLAS: install libopenblas0\n", dlerror());
        return;
    }
    // dlsym's object pointers become function pointers as POSIX prescribes.
    *(void **)&blas.set_num_threads = dlsym(library, "openblas_set_num_threads");
    *(void **)&blas.sgemm = dlsym(library, "cblas_sgemm");
    *(void **)&blas.dgemm = dlsym(library, "cblas_dgemm");
    *(void **)&blas.sgemv = dlsym(library, "cblas_sgemv");
    blas.found = blas.set_num_threads && blas.sgemm && blas.dgemm && blas.sgemv;
    if (!blas.found) fprintf(stderr, "simgpu: cuBLAS: libopenblas.so.0 has no C interface\n");
}

bool openblas_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    return blas.found;
}

void openblas_set_num_threads(int threads)
{
    blas.set_num_threads(threads);
}

void cblas_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE ta, enum CBLAS_TRANSPOSE tb, int m, int n,
                 int k, float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c,
                 int ldc)
{
    blas.sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_dgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE ta, enum CBLAS_TRANSPOSE tb, int m, int n,
                 int k, double alpha, const double *a, int lda, const double *b, int ldb, double beta,
                 double *c, int ldc)
{
    blas.dgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_sgemv(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE ta, int m, int n, float alpha, const float *a,
                 int lda, const float *x, int incx, float beta, float *y, int incy)
{
    blas.sgemv(order, ta, m, n, alpha, a, lda, x, incx, beta, y, incy);
}
