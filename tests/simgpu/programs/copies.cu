// Copies and fills in one, two and three dimensions, pitched and async, and what the runtime knows about pointers.
#include "expect.h"

int main()
{
    enum { WIDTH = 100, HEIGHT = 37, DEPTH = 5 };
    // 2-D: host rows of WIDTH to pitched device rows, device to device, and back as a sub-rectangle.
    static unsigned char host[HEIGHT][WIDTH], back[HEIGHT][WIDTH];
    for (int i = 0; i < HEIGHT * WIDTH; i++) host[i / WIDTH][i % WIDTH] = (unsigned char)(i * 7);
    unsigned char *a, *b;
    size_t pitch, pitch_b;
    CUDA(cudaMallocPitch(&a, &pitch, WIDTH, HEIGHT));
    CUDA(cudaMallocPitch(&b, &pitch_b, 2 * WIDTH, HEIGHT));
    EXPECT(pitch >= WIDTH && pitch % 32 == 0);
    CUDA(cudaMemset2D(b, pitch_b, 0xab, 2 * WIDTH, HEIGHT));
    CUDA(cudaMemcpy2D(a, pitch, host, WIDTH, WIDTH, HEIGHT, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy2DAsync(b + WIDTH, pitch_b, a, pitch, WIDTH, HEIGHT, cudaMemcpyDeviceToDevice, 0));
    CUDA(cudaMemcpy2D(back, WIDTH, b + WIDTH, pitch_b, WIDTH, HEIGHT, cudaMemcpyDefault));
    EXPECT(memcmp(host, back, sizeof host) == 0);
    CUDA(cudaMemcpy2D(back, WIDTH, b, pitch_b, WIDTH, HEIGHT, cudaMemcpyDeviceToHost));
    for (int i = 0; i < HEIGHT * WIDTH; i++) EXPECT(back[i / WIDTH][i % WIDTH] == 0xab);

    // 3-D: a box from the middle of one volume.
    static unsigned char volume[DEPTH][HEIGHT][WIDTH], box[2][10][20];
    for (int i = 0; i < DEPTH * HEIGHT * WIDTH; i++)
        volume[i / (HEIGHT * WIDTH)][i / WIDTH % HEIGHT][i % WIDTH] = (unsigned char)(i * 13 + i / 256);
    cudaPitchedPtr device;
    CUDA(cudaMalloc3D(&device, make_cudaExtent(WIDTH, HEIGHT, DEPTH)));
    cudaMemcpy3DParms up = {};
    up.srcPtr = make_cudaPitchedPtr(volume, WIDTH, WIDTH, HEIGHT);
    up.dstPtr = device;
    up.extent = make_cudaExtent(WIDTH, HEIGHT, DEPTH);
    up.kind = cudaMemcpyHostToDevice;
    CUDA(cudaMemcpy3D(&up));
    cudaMemcpy3DParms down = {};
    down.srcPtr = device;
    down.srcPos = make_cudaPos(30, 12, 2);
    down.dstPtr = make_cudaPitchedPtr(box, 20, 20, 10);
    down.extent = make_cudaExtent(20, 10, 2);
    down.kind = cudaMemcpyDeviceToHost;
    CUDA(cudaMemcpy3DAsync(&down, 0));
    CUDA(cudaStreamSynchronize(0));
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < 10; y++) EXPECT(memcmp(box[z][y], &volume[2 + z][12 + y][30], 20) == 0);

    // Fresh device memory is poison, zero-byte calls do nothing, free(NULL) is allowed.
    float *fresh, values[16];
    CUDA(cudaMalloc(&fresh, sizeof values));
    CUDA(cudaMemcpy(values, fresh, sizeof values, cudaMemcpyDeviceToHost));
    EXPECT(isnan(values[0]) && isnan(values[15]));
    CUDA(cudaMemcpy(fresh, values, 0, cudaMemcpyHostToDevice));
    CUDA(cudaMemsetAsync(fresh, 0, sizeof values, 0));
    CUDA(cudaMemcpyPeer(values, 0, fresh, 0, 0));
    CUDA(cudaMemcpy(values, fresh + 1, sizeof values - 4, cudaMemcpyDefault));
    EXPECT(values[0] == 0 && values[14] == 0 && isnan(values[15]));
    void *nothing;
    CUDA(cudaMalloc(&nothing, 0));
    CUDA(cudaFree(NULL));

    size_t free_before, free_after, total;
    void *more;
    CUDA(cudaMemGetInfo(&free_before, &total));
    CUDA(cudaMalloc(&more, 1 << 20));
    CUDA(cudaMemGetInfo(&free_after, &total));
    EXPECT(free_after <= free_before - (1 << 20) && free_before <= total);
    CUDA(cudaFree(more));

    cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, fresh + 3));
    EXPECT(attributes.type == cudaMemoryTypeDevice && attributes.device == 0 &&
           attributes.devicePointer == fresh + 3);
    CUDA(cudaPointerGetAttributes(&attributes, host));
    EXPECT(attributes.type == cudaMemoryTypeUnregistered);
    CUDA(cudaHostRegister(host, sizeof host, cudaHostRegisterDefault));
    CUDA(cudaPointerGetAttributes(&attributes, &host[1]));
    EXPECT(attributes.type == cudaMemoryTypeHost);
    EXPECT(cudaHostRegister(host, sizeof host, cudaHostRegisterDefault) ==
           cudaErrorHostMemoryAlreadyRegistered);
    CUDA(cudaHostUnregister(host));
    EXPECT(cudaHostUnregister(host) == cudaErrorHostMemoryNotRegistered);
    return verdict();
}
