// Stream-K's division of the work: which parts of which tiles a cluster walks over, in which order. Tiles are those of a
// cluster; a step is BLOCK_K of k.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

// The same for all clusters.
struct Schedule {
    int tiles_m, tiles_n; // tiles in C
    int k_tiles;          // steps of a tile
    int clusters;         // that work
    int split_tiles;      // so many tiles, the first, are cut; the others are whole
    int share, longer;    // steps of a cluster in the tiles that are cut; clusters that make one more
    long long busiest;    // steps of the busiest cluster, with those that handing sums over takes the time of

    // Where a cluster's share begins, in steps over all the tiles that are cut.
    __device__ int share_begin(int cluster) const { return cluster * share + min(cluster, longer); }
};

// Divides the tiles among at most `clusters` clusters; it cuts some if that is less work. Returns false when
// there are too many tiles.
static bool make_schedule(Schedule &schedule, int tiles_m, int tiles_n, int k_tiles, int clusters)
{
    // Steps that take about as long as giving and taking sums, from trials on an H200.
    constexpr int HAND_OVER = 24;
    const long long tiles = (long long)tiles_m * tiles_n;
    if (tiles > INT32_MAX - clusters) return false;
    const long long whole = ((tiles - 1) / clusters + 1) * k_tiles;
    schedule = {tiles_m, tiles_n, k_tiles, (int)min((long long)clusters, tiles), 0, 0, 0, whole};

    // With few tiles, not so many clusters that a share takes less time than handing it over.
    const long long split_tiles = tiles < clusters ? tiles : tiles % clusters + clusters;
    const long long steps = split_tiles * k_tiles;
    const int sharing = (int)min((long long)clusters, max(1LL, steps / HAND_OVER));
    const long long cut = (tiles * k_tiles - 1) / sharing + 1 + HAND_OVER;
    if (cut >= whole || steps > INT32_MAX) return true;
    schedule.split_tiles = (int)split_tiles;
    schedule.clusters = sharing;
    schedule.share = (int)(steps / sharing);
    schedule.longer = (int)(steps % sharing);
    schedule.busiest = cut;
    return true;
}

// A part of a tile, or all of it: steps k_begin to k_end - 1.
struct Segment {
    int tile, k_begin, k_end;

    __device__ int steps() const { return k_end - k_begin; }
};

// Walks over a cluster's segments: its share of the tiles that are cut, then whole tiles.
struct Segments {
    const Schedule &schedule;
    int cluster;   // from 0
    int at, end;   // of the share, in steps
    int next_tile; // of the whole ones

    __device__ Segments(const Schedule &schedule, int cluster)
        : schedule(schedule), cluster(cluster), at(schedule.share_begin(cluster)),
          end(schedule.share_begin(cluster + 1)), next_tile(schedule.split_tiles + cluster)
    {
    }

    __device__ bool next(Segment &segment)
    {
        const int k_tiles = schedule.k_tiles;
        if (at < end) {
            const int k_begin = at % k_tiles;
            segment = {at / k_tiles, k_begin, min(k_tiles, k_begin + end - at)};
            at += segment.steps();
            return true;
        }
        segment = {next_tile, 0, k_tiles};
        next_tile += schedule.clusters;
        return segment.tile < schedule.tiles_m * schedule.tiles_n;
    }
};
