// Says in which order the blocks of a grid started; each must do so once.
#include "expect.h"

__device__ unsigned tickets;

__global__ void draw_ticket(unsigned *ticket_of)
{
    ticket_of[blockIdx.x] = atomicAdd(&tickets, 1);
}

int main()
{
    constexpr unsigned BLOCKS = 100;
    unsigned *device, ticket_of[BLOCKS], block_of[BLOCKS];
    CUDA(cudaMalloc(&device, sizeof ticket_of));
    draw_ticket<<<BLOCKS, 1>>>(device);
    CUDA(cudaMemcpy(ticket_of, device, sizeof ticket_of, cudaMemcpyDeviceToHost));
    for (unsigned &block : block_of) block = BLOCKS;
    for (unsigned block = 0; block < BLOCKS; block++) block_of[ticket_of[block]] = block;
    for (unsigned block : block_of) {
        EXPECT(block < BLOCKS);
        printf("%s%u", block == block_of[0] ? "" : " ", block);
    }
    printf("\n");
    return verdict();
}
