// The functions of OpenBLAS that the simulated cuBLAS and cuBLASLt compute with. The library is opened when it is first needed, so that
// the simulated GPU is built, and every chapter runs, where there is none.
#pragma once

#include <stdbool.h>

enum CBLAS_ORDER { CblasColMajor = 102 };
enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112 };

// Opens libopenblas.so.0. Returns false when it is not here, and says so once, in one line.
bool openblas_open(void);

// As in OpenBLAS's cblas.h (CBLAS reference: netlib.org/blas); only after openblas_open.
void openblas_set_num_threads(int threads);
void cblas_sgemm(enum CBLAS_ORDER, enum CBLAS_TRANSPOSE, enum CBLAS_TRANSPOSE, int m, int n, int k,
                 float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c,
                 int ldc);
void cblas_dgemm(enum CBLAS_ORDER, enum CBLAS_TRANSPOSE, enum CBLAS_TRANSPOSE, int m, int n, int k,
                 double alpha, const double *a, int lda, const double *b, int ldb, double beta, double *c,
                 int ldc);
void cblas_sgemv(enum CBLAS_ORDER, enum CBLAS_TRANSPOSE, int m, int n, float alpha, const float *a, int lda,
                 const float *x, int incx, float beta, float *y, int incy);
