/* Counts what a launch issues and moves, as a profiler does, while CTAs run one after the other.

   A warp issues a basic block as often as the lane that runs it most. That is exact where lanes do
   not part for longer than a guard, as in Triton's kernels, whose branches are of a whole CTA. */
#include "machine.h"
#include <stdlib.h>

typedef struct { u32 warp, insn, run, size; int space, kind; u64 at; } Access;

u32 *block_runs;   /* of each thread of the CTA, and block; 0: nothing is counted */
u32 num_blocks;
static u64 *block_sums, *sums;
static Access *accesses;
static u32 num_accesses, max_accesses;

/* Let the next launches add to these: [blocks] and [4]. 0: nothing is counted. */
void machine_count(u64 *blocks, u32 num, u64 *of_memory) {
    block_sums = blocks; sums = of_memory; num_blocks = num; num_accesses = 0;
    free(block_runs);
    block_runs = blocks ? calloc((u64)MAX_THREADS * (num + 1), sizeof(u32)) : 0;
}

void count_access(int space, int kind, u64 at, u32 size) {
    if (num_accesses == max_accesses) {
        max_accesses = max_accesses ? 2 * max_accesses : 1 << 16;
        accesses = realloc(accesses, max_accesses * sizeof(Access));
        if (!accesses) abort();
    }
    u32 run = block_runs[running->tid * num_blocks + running->block];
    accesses[num_accesses++] = (Access){running->warp, running->insn, run, size, space, kind, at};
}

static int in_turn(const void *one, const void *other) {
    const Access *a = one, *b = other;
    if (a->warp != b->warp) return a->warp < b->warp ? -1 : 1;
    if (a->run != b->run) return a->run < b->run ? -1 : 1;
    if (a->insn != b->insn) return a->insn < b->insn ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* Count what lanes of a warp access at once, sorted by address: sectors, or wavefronts of shared
   memory beyond the least, where each bank gives one word of 4 bytes at a time. */
static void count_together(const Access *first, u32 num) {
    u32 width = first->space == GLOBAL ? 32 : 4, num_units = 0, most = 0, of_bank[32] = {0};
    u64 next = 0;   /* the first unit that is not counted */
    for (u32 k = 0; k < num; k++) {
        u64 unit = first[k].at / width, last = (first[k].at + first[k].size - 1) / width;
        for (unit = unit < next ? next : unit; unit <= last; unit++) {
            u32 of_this = ++of_bank[unit % 32];
            num_units++;
            most = of_this > most ? of_this : most;
            next = unit + 1;
        }
    }
    if (first->space == GLOBAL) sums[first->kind] += num_units;
    else sums[CONFLICTS] += most - (num_units + 31) / 32;
}

/* Add up what a CTA did that has ended. */
void count_cta(u32 num_threads) {
    for (u32 warp = 0; 32 * warp < num_threads; warp++)
        for (u32 block = 0; block < num_blocks; block++) {
            u32 most = 0;
            for (u32 k = 32 * warp; k < num_threads && k < 32 * warp + 32; k++) {
                u32 *runs = block_runs + k * num_blocks + block;
                most = *runs > most ? *runs : most;
                *runs = 0;
            }
            block_sums[block] += most;
        }
    qsort(accesses, num_accesses, sizeof(Access), in_turn);
    for (u32 k = 0, end; k < num_accesses; k = end) {
        const Access *first = accesses + k;
        for (end = k; end < num_accesses && accesses[end].warp == first->warp
             && accesses[end].run == first->run && accesses[end].insn == first->insn; end++);
        count_together(first, end - k);
    }
    num_accesses = 0;
}
